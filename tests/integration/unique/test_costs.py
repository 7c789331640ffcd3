"""What unique values cost, in requests on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import TransactWrite, transaction
from pynamo_locking.exceptions import NotUnique
from pynamo_locking.transactions import Transaction
from tests.support.models import Locks
from tests.support.transaction_models import Transactions, make_long_from
from tests.support.unique_models import EVERY, Member, Uniques, User, rows
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

#: Models whose plain writes are single requests.
BOTH: Any = pytest.mark.parametrize("model", [User, Member])


@pytest.fixture(autouse=True)
def _tables(cheap: Engine) -> None:
    cheap.bind(Uniques, Locks, Transactions, *EVERY)


def cost(act: Callable[[], object]) -> tuple[dict[str, int], int]:
    """The requests by name, and the actions of the last transaction among them."""
    with count_requests() as counted:
        act()
    written = [body for name, body in counted.bodies if name == "TransactWriteItems"]
    return dict(counted.by_operation), len(written[-1]["TransactItems"]) if written else 0


@BOTH
def test_single_writes(model: Any) -> None:
    """A change is one transaction of the item and its rows; all other writes are as they were."""
    save = "PutItem" if model is User else "UpdateItem"
    item = model("a", email="x")
    assert cost(item.save) == ({"TransactWriteItems": 1}, 2)
    item.age = 1
    assert cost(item.save) == ({save: 1}, 0)
    assert cost(lambda: item.update([model.age.set(2)])) == ({"UpdateItem": 1}, 0)
    item.email = "y"
    assert cost(item.save) == ({"TransactWriteItems": 1}, 3)
    item = model.get("a")
    item.email = "z"
    assert cost(item.save) == ({"TransactWriteItems": 1}, 3)
    assert cost(lambda: item.update([model.email.set("x")])) == ({"TransactWriteItems": 1, "GetItem": 1}, 3)
    assert cost(lambda: item.update([model.email.set("x")])) == ({"UpdateItem": 1}, 0)
    assert cost(item.touch) == ({"UpdateItem": 1}, 0)
    assert cost(item.delete) == ({"TransactWriteItems": 1}, 2)


@BOTH
def test_an_item_without_a_value(model: Any) -> None:
    """Costs nothing more at all."""
    item = model("a")
    assert cost(item.save)[0].keys() <= {"PutItem", "UpdateItem"}
    assert cost(item.delete) == ({"DeleteItem": 1}, 0)


@BOTH
def test_batches(model: Any) -> None:
    """Saves that change no unique value are sent together."""
    items = [model(str(number), email=f"x{number}") for number in range(5)]
    for item in items:
        item.save()
        item.age = 3

    def write() -> None:
        with model.guarded_batch() as batch:
            for item in items:
                batch.save(item)

    assert cost(write) == ({"BatchExecuteStatement": 1}, 0)
    items[0].email = "new"
    assert cost(write) == ({"BatchExecuteStatement": 1, "TransactWriteItems": 1}, 3)


@BOTH
def test_transactions(model: Any) -> None:
    """Actions of the one transaction, and no read more."""
    a, b = model("a", email="x"), model("b", email="y")

    def save() -> None:
        with transaction() as tx:
            tx.save(a)
            tx.save(b)

    assert cost(save) == ({"TransactWriteItems": 1}, 4)
    a.email, b.email = "y", "x"
    assert cost(save) == ({"TransactWriteItems": 1}, 4)
    a.age = b.age = 3
    assert cost(save) == ({"TransactWriteItems": 1}, 2)

    def change() -> None:
        with transaction() as tx:
            found = tx.get(model, "a")
            found.email = "new"
            tx.save(found)

    assert cost(change) == ({"GetItem": 1, "TransactWriteItems": 1}, 3)

    def by_hand() -> None:
        with TransactWrite(connection=model._get_connection().connection) as tx:
            tx.save(model("c", email="c"))
            tx.delete(model.get("b"))

    assert cost(by_hand) == ({"GetItem": 1, "TransactWriteItems": 1}, 4)


@pytest.mark.parametrize("count", [1, 9], ids=["native", "long"])
@pytest.mark.parametrize("change", ["create", "change", "swap", "delete", "keep"])
def test_a_plan_changes_nothing(monkeypatch: pytest.MonkeyPatch, change: str, count: int) -> None:
    """plan() says the same however often it is asked, and leaves the transaction as it was."""
    make_long_from(monkeypatch)
    for i in range(count if change != "create" else 0):
        Member(str(i), email=f"x{i}").save()
    tx = Transaction()
    for i in range(count):
        item = Member(str(i)) if change == "create" else tx.get(Member, str(i))
        if change == "delete":
            tx.delete(item)
            continue
        item.email = f"x{(i + (change == 'swap')) % count}" if change in ("swap", "keep") else f"y{i}"
        tx.save(item)
        tx.plan()
    point = tx.savepoint()
    plan = tx.plan()
    assert plan == tx.plan()
    point.rollback()
    assert plan == tx.plan()
    tx.commit()
    assert Member.check_unique().is_sound


def test_a_plan_of_a_value_that_two_items_want() -> None:
    """Is refused as the commit would be; the transaction can go on."""
    tx = Transaction()
    a, b = User("a", email="x"), User("b", email="x")
    tx.save(a)
    tx.save(b)
    with pytest.raises(NotUnique):
        tx.plan()
    b.email = "y"
    tx.save(b)
    assert tx.plan().path == "native"
    tx.commit()
    assert rows() == {"x": "a", "y": "b"}
