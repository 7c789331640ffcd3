"""What a client sends and cannot be is answered by 422 in each framework, an absent item by 404 if that is wanted."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking.exceptions import InvalidInput
from pynamo_locking.recipes import IdempotencyTable, idempotent
from pynamo_locking.transactions import Transaction
from tests.integration.contrib.frameworks import FRAMEWORKS, PROBLEM, Answer, Application
from tests.support.interval_models import Booking, SlotLocks
from tests.support.models import Account, Device, Document, Locks, declare
from tests.support.transaction_models import Purse, Session, Transactions
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

Calls = declare("Calls", IdempotencyTable, table_name="calls")
NAIVE: Final = datetime(2026, 11, 21, 12)  # noqa: DTZ001
NOON: Final = NAIVE.replace(tzinfo=timezone.utc)
LONG: Final = 500 * "secret"
LONE: Final = "secret" + chr(0xDC80)


@idempotent(Calls, key="key")
def pay(key: Any) -> str:
    return "paid"


def reserved(begin: datetime, end: datetime) -> None:
    Booking.intervals.insert_disjoint([Booking(1, end, begin=begin)])


VALUES: Final[dict[str, Any]] = {
    "an empty idempotency key": lambda: Transaction(idempotency_key=""),
    "a long idempotency key": lambda: Transaction(idempotency_key=LONG),
    "a lone surrogate in it": lambda: Transaction(idempotency_key=LONE),
    "a long idempotency key to ask for": lambda: Transactions.outcome(idempotency_key=LONG),
    "an empty key of a call": lambda: pay(""),
    "a long key of a call": lambda: pay(LONG),
    "a lone surrogate in the key of a call": lambda: pay(LONE),
    "an interval that ends before it begins": lambda: reserved(NOON, NOON),
    "an interval without a zone": lambda: reserved(NAIVE, NAIVE),
    "a range that ends before it begins": lambda: Locks.locked_range("blue", "secret", "a"),
    "a range without a zone": lambda: Locks.locked_range("blue", NAIVE, None),
    "a time of expiry without a zone": lambda: Session("s", expires_at=NAIVE),
    "a long key": lambda: Account.edit(LONG),
    "a long key in a transaction": lambda: Transaction().get(Purse, LONG),
    "a lone surrogate in a key": lambda: Account.edit(LONE),
    "no key": lambda: Account.edit(None),
    "a number of many digits": lambda: Document.edit("f", int(3000 * "7")),
    "no suspended transaction": lambda: Transaction(Transactions).resume(None, [Purse]),
}


def answer_of(framework: type[Application], view: Callable[[], Any], **options: Any) -> Answer:
    return framework({("GET", "/"): lambda _: view()}, **options).send("GET", "/")


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, shop: object) -> type[Application]:
    return FRAMEWORKS[request.param]


@pytest.fixture(autouse=True)
def _tables(memory: Any) -> None:
    memory.bind(Account, Device, Document, Purse, Session, Transactions, Locks, SlotLocks, Booking, Calls)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_cannot_be(framework: type[Application], value: str) -> None:
    """422, before anything is sent; neither answer nor message has all of the value."""
    raised = []

    def view() -> Any:
        try:
            VALUES[value]()
        except Exception as error:
            raised.append(error)
            raise

    with count_requests() as counted:
        answer = answer_of(framework, view)
    assert (*answer.problem, answer.headers["Content-Type"]) == (422, "invalid-input", PROBLEM)
    assert "secret" not in answer.text
    assert counted.total == 0
    [error] = raised
    assert isinstance(error, InvalidInput)
    assert isinstance(error, ValueError)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda: Account.get(""), 500),
        (lambda: Account.get(LONG), 500),
        (lambda: Account(LONG).save(), 422),
        (lambda: Device(LONG).save(), 500),
        (lambda: Device(LONE).save(), 500),
    ],
)
def test_a_key_that_the_application_checks(framework: type[Application], call: Any, status: int) -> None:
    """Reads, and writes of models without a lock attribute, send it: an error of the program looks the same."""
    assert answer_of(framework, call).status == status


def absent_in_a_transaction() -> None:
    Transaction().get(Purse, "none")


@pytest.mark.parametrize(
    "look", [lambda: Account.get("none"), lambda: Account.locked("none").acquire(), absent_in_a_transaction]
)
@pytest.mark.parametrize("is_wanted", [True, False])
def test_an_item_that_is_not_there(framework: type[Application], look: Any, is_wanted: bool) -> None:
    """404 as an option: else the application handles it."""
    options = {"answer_not_found": True} if is_wanted else {}
    assert answer_of(framework, look, **options).problem == ((404, "not-found") if is_wanted else (500, None))
