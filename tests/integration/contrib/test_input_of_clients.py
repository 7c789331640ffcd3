"""What a client sends and cannot be is answered by 422 in each framework, an absent item by 404 if that is wanted."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime, timezone
from typing import Any, Final

import flask
import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from pynamo_locking.contrib.flask import PynamoLocking
from pynamo_locking.contrib.starlette import PynamoLocking as PynamoLockingOfStarlette
from pynamo_locking.exceptions import InvalidInput
from pynamo_locking.recipes import IdempotencyTable, idempotent
from pynamo_locking.transactions import Transaction
from tests.support.interval_models import Booking, SlotLocks
from tests.support.models import Account, Device, Document, Locks, declare
from tests.support.transaction_models import Purse, Session, Transactions
from tests.support.wire import count_requests

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


def of_flask(view: Any, **options: Any) -> Any:
    app = flask.Flask(__name__)
    app.config.update({f"PYNAMO_LOCKING_{name.upper()}": value for name, value in options.items()})
    PynamoLocking([]).init_app(app)
    app.add_url_rule("/", view_func=view)
    answer = app.test_client().get("/")
    return answer.status_code, answer.content_type, answer.json


def over_asgi(app: Any) -> Any:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.get("/")

    answer = asyncio.run(asked())
    kind = answer.headers["Content-Type"]
    return answer.status_code, kind, answer.json() if "json" in kind else None


def of_starlette(view: Any, **options: Any) -> Any:
    app = Starlette(routes=[Route("/", lambda request: view())])
    PynamoLockingOfStarlette().init_app(app, **options)
    return over_asgi(app)


def of_fastapi(view: Any, **options: Any) -> Any:
    app = FastAPI()
    PynamoLockingOfStarlette().init_app(app, **options)
    app.get("/")(view)
    return over_asgi(app)


def of_django(view: Any, **options: Any) -> Any:
    from django.conf import settings
    from django.test import Client, override_settings
    from django.urls import path

    urls = type(sys)("urls")
    urls.urlpatterns = [path("", lambda request: view())]  # type: ignore[attr-defined]
    changed = {**settings.PYNAMO_LOCKING, **{name.upper(): value for name, value in options.items()}}
    with override_settings(ROOT_URLCONF=urls, PYNAMO_LOCKING=changed):
        answer = Client(raise_request_exception=False).get("/")
        return answer.status_code, answer["Content-Type"], answer.json() if "json" in answer["Content-Type"] else None


FRAMEWORKS: Final = {"flask": of_flask, "starlette": of_starlette, "fastapi": of_fastapi, "django": of_django}
PROBLEM: Final = "application/problem+json"


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, shop: Any) -> Any:
    return FRAMEWORKS[request.param]


@pytest.fixture(autouse=True)
def _tables(memory: Any) -> None:
    memory.bind(Account, Device, Document, Purse, Session, Transactions, Locks, SlotLocks, Booking, Calls)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_cannot_be(framework: Any, value: str) -> None:
    """422, before anything is sent; neither answer nor message has all of the value."""
    raised = []

    def view() -> Any:
        try:
            VALUES[value]()
        except Exception as error:
            raised.append(error)
            raise

    with count_requests() as counted:
        status, kind, body = framework(view)
    assert (status, kind, body and body["code"]) == (422, PROBLEM, "invalid-input")
    assert "secret" not in str(body)
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
def test_a_key_that_the_application_checks(framework: Any, call: Any, status: int) -> None:
    """Reads, and writes of models without a lock attribute, send it: an error of the program looks the same."""
    assert framework(call)[0] == status


def absent_in_a_transaction() -> None:
    Transaction().get(Purse, "none")


@pytest.mark.parametrize(
    "look", [lambda: Account.get("none"), lambda: Account.locked("none").acquire(), absent_in_a_transaction]
)
@pytest.mark.parametrize("is_wanted", [True, False])
def test_an_item_that_is_not_there(framework: Any, look: Any, is_wanted: bool) -> None:
    """404 as an option: else the application handles it."""
    status, _, body = framework(look, **({"answer_not_found": True} if is_wanted else {}))
    assert (status, body and body["code"]) == ((404, "not-found") if is_wanted else (500, None))
