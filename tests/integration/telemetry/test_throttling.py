"""Requests that DynamoDB throttles: the reason and the resource in errors, events, logs and metrics."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ReadTimeoutError
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError, PynamoDBException, VerboseClientError
from pynamodb.signals import post_dynamodb_send

from pynamo_locking import TransactWrite, events, transaction
from pynamo_locking._io import transaction_record
from pynamo_locking.events import Throttled
from pynamo_locking.exceptions import LockingError, OutcomeUnknown
from pynamo_locking.telemetry import logs
from pynamo_locking_testing import VirtualClock, throttled
from tests.support import runtime
from tests.support.models import declare
from tests.support.transaction_models import Purse, Transactions, make_long_from
from tests.support.wire import Forward, on, tapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine
    from tests.integration.telemetry.conftest import Traced

Account: Any = declare("Account", hash_key="id", lock=True, version=True, numbers="balance")
LIMITS: list[Any] = [
    "AccountLimitExceeded",
    "KeyRangeThroughputExceeded",
    "MaxOnDemandThroughputExceeded",
    "ProvisionedThroughputExceeded",
]


@pytest.fixture
def heard(cheap: Engine) -> Iterator[list[Throttled]]:
    cheap.bind(Account)
    Account("a").save()
    heard: list[Throttled] = []
    with VirtualClock(), events.subscribe(heard.append, Throttled):
        yield heard


def commit() -> None:
    with transaction() as tx:
        tx.save(Account("b"))
        tx.save(Account("c"))


def transact() -> None:
    with TransactWrite(connection=Account._get_connection().connection) as transaction:
        transaction.save(Account("b"))
        transaction.save(Account("c"))


def guarded_batch() -> None:
    with Account.guarded_batch() as batch:
        batch.save(Account("b"))
        batch.save(Account("c"))


def read_committed() -> None:
    with transaction(isolation="read_committed") as tx:
        tx.get(Account, "a")


def _name(*keys: str) -> str:
    return ", ".join(f"{Account.Meta.table_name}/{key}" for key in keys)


WAYS: dict[str, tuple[Callable[[], Any], str, tuple[str, ...]]] = {
    "get": (lambda: Account.get("a"), "Read", ("a",)),
    "read committed": (read_committed, "Read", ("a",)),
    "save": (lambda: Account("b").save(), "Write", ("b",)),
    "update": (lambda: Account("b").update([Account.balance.add(1)]), "Write", ("b",)),
    "acquire": (lambda: Account.locked("a", wait=3).acquire(), "Write", ("a",)),
    "try": (lambda: Account.locked("a", wait=0).acquire(), "Write", ("a",)),
    "lock state": (lambda: Account.lock_state("a"), "Read", ("a",)),
    "commit": (commit, "Write", ("b", "c")),
    "TransactWrite": (transact, "Write", ("b", "c")),
    "guarded batch": (guarded_batch, "Write", ("b", "c")),
}


@pytest.mark.parametrize(
    ("way", "limit", "index"),
    [
        *((way, LIMITS[0], None) for way in WAYS),
        *((way, limit, index) for way in ("get", "save") for limit in LIMITS[1:] for index in (None, "by-owner")),
    ],
)
def test_each_reason_is_in_the_error_and_in_a_metric(
    heard: list[Throttled], traced: Traced, limit: Any, index: str | None, way: str
) -> None:
    """With the table or the index, and in an event with the key; a metric has no key."""
    act, kind, keys = WAYS[way]
    table = Account.Meta.table_name
    reason = f"{'Table' if index is None else 'Index'}{kind}{limit}"
    with (
        throttled(Account, limit=limit, index=index) as strikes,
        pytest.raises((LockingError, PynamoDBException)) as caught,
    ):
        act()
    resource = table if index is None else f"{table}/index/{index}"
    assert f"{reason} of {resource}" in str(caught.value)

    assert len(heard) == strikes.count
    last = heard[-1]
    assert (last.reason, last.table, last.index) == (reason, table, index)
    assert {name for event in heard for name in event.name.split(", ")} >= {_name(key) for key in keys}

    points = traced.points("throttled")
    assert sum(point.value for point in points) == strikes.count
    place = {"db.system.name": "aws.dynamodb", "db.collection.name": table, "pynamo_locking.reason": reason}
    about = place if index is None else {**place, "pynamo_locking.index": index}
    assert about in [dict(point.attributes) for point in points]


def test_a_retry_hides_no_throttling(heard: list[Throttled], caplog: pytest.LogCaptureFixture) -> None:
    """The caller sees nothing of it; the log has the key and the reason."""
    with logs.install("mine", of=Throttled), caplog.at_level(logging.INFO, "mine"), throttled(Account, times=2):
        Account.locked("a", wait=9).acquire().release()
    line = f"Throttled {_name('a')} (reason TableWriteProvisionedThroughputExceeded)"
    assert [record.getMessage() for record in caplog.records if record.name == "mine"] == [line] * 2
    assert len(heard) == 2


def test_an_error_has_the_reasons_as_dynamodb_gave_them(heard: list[Throttled]) -> None:
    """Where PynamoDB's copy of the error lacks them."""
    with throttled(Account), pytest.raises(PynamoDBException) as caught:
        Account("b").save()
    cause: Any = caught.value.cause
    [reason] = cause.response["ThrottlingReasons"]
    assert reason["resource"].endswith(f":table/{Account.Meta.table_name}")
    assert cause.response["Error"]["Message"] == "throttled by a test"


@pytest.mark.parametrize("code", ["ThrottlingError", "ProvisionedThroughputExceeded"])
def test_a_cancelled_transaction_tells_which_item_it_was(heard: list[Throttled], code: str) -> None:
    """It gives no other reason than a code for each action."""
    refusal = ("TransactionCanceledException", None, code)
    said = pytest.raises(LockingError, match=f"{code} of {Account.Meta.table_name}")
    with on("TransactWriteItems").answer(refusal, always=True) as sent, said:
        commit()
    assert len(heard) == len(sent)
    assert {(event.name, event.reason, event.index) for event in heard} == {(_name("c"), code, None)}


def test_a_throttled_statement_of_a_batch_is_told(heard: list[Throttled]) -> None:
    """Of those the table is known; each of the two is sent again."""

    def refuse(_endpoint: object, request: Any, operation: str, forward: Forward) -> Any:
        if operation != "BatchExecuteStatement":
            return forward()
        refused = [{"Error": {"Code": "ThrottlingError", "Message": "too fast"}}] * len(
            json.loads(request.body)["Statements"]
        )
        answer = {"Responses": refused, "ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": {}}}
        return (SimpleNamespace(status_code=200, headers={}, content=b""), answer), None

    with tapped(refuse):
        guarded_batch()
    told = [(event.name, event.reason) for event in heard]
    assert told == [(Account.Meta.table_name, "ThrottlingError")] * len(told)
    assert len(told) >= 2


def test_attempts_that_botocore_repeats_are_told(heard: list[Throttled]) -> None:
    """The engine's answers have no reason, so the code is one."""
    codes = ["ThrottlingException", "RequestLimitExceeded", "ProvisionedThroughputExceededException"]
    with on("GetItem").answer(*codes):
        read_committed()
    assert [(event.name, event.reason) for event in heard] == [(_name("a"), code) for code in codes]


def test_a_request_inside_of_another_one_tells_of_itself(heard: list[Throttled]) -> None:
    """As that of a receiver of PynamoDB's signals; the attempts before it are those of the other request."""

    def look(_sender: object, **_: object) -> None:
        if not seen:
            seen.append(True)
            Account._get_connection().get_item("z")

    seen: list[bool] = []
    post_dynamodb_send.connect(look)
    with on("GetItem").answer("ThrottlingException"):
        read_committed()
    post_dynamodb_send.disconnect(look)
    assert seen
    assert [event.name for event in heard] == [_name("a")]


def test_a_put_is_named_by_the_keys_of_its_own_table(memory: Engine) -> None:
    """Two Regions may have tables of one name with other keys; and a model may name its table by an ARN."""
    here: Any = declare("Here", texts="email")
    there: Any = declare("There", hash_key="email", lock=False)
    memory.bind(here)
    there.Meta.table_name = here.Meta.table_name
    connections = [model._get_connection().connection for model in (there, here)]
    with events.subscribe((heard := list[Throttled]()).append, Throttled), throttled(here):
        with pytest.raises(PutError):
            here("a", email="e").save()
        arn = f"arn:aws:dynamodb:us-east-1:123456789012:table/{here.Meta.table_name}"
        with pytest.raises(VerboseClientError):
            connections[1].dispatch("GetItem", {"TableName": arn, "Key": {"key": {"S": "b"}}})
    assert {(event.name, event.table) for event in heard} == {
        (f"{here.Meta.table_name}/{key}", here.Meta.table_name) for key in "ab"
    }


def test_requests_of_a_subscriber_are_no_attempts_of_the_request(heard: list[Throttled]) -> None:
    """It may read while it is told. That its own request had no answer puts no other one in doubt."""
    seen: list[str] = []

    def look(event: Throttled) -> None:
        with on("GetItem").answer(ReadTimeoutError):
            seen.append(Account.get("a").id)

    refused = on("UpdateItem").answer("ThrottlingException", always=True)
    with events.subscribe(look, Throttled), refused, pytest.raises(PutError) as caught:
        Account("b").save()
    assert seen == ["a"] * len(heard)
    assert not isinstance(caught.value, OutcomeUnknown)


def test_a_connection_that_is_handed_in_is_seen(heard: list[Throttled]) -> None:
    """From then on; one of PynamoDB that was never handed in is not."""
    model: Any = Account._get_connection().connection
    mine, other = (Connection(region=model.region, host=model.host) for _ in range(2))
    for each in (mine, other):
        each._local.session = model._local.session
        each._client = model.client
    TransactWrite(connection=mine)
    table, key = Account.Meta.table_name, {"id": {"S": "a"}}
    with throttled(Account):
        with pytest.raises(VerboseClientError, match="TableReadProvisionedThroughputExceeded of"):
            mine.dispatch("GetItem", {"TableName": table, "Key": key})
        with pytest.raises(VerboseClientError, match=r"throttled by a test$"):
            other.dispatch("GetItem", {"TableName": table, "Key": key})
    assert [event.name for event in heard] == [_name("a")]


def test_no_mutex_is_held_while_a_subscriber_runs(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a thread that needs it. Each operation is throttled once, under a lock and in a long commit."""
    memory.bind(Account, Purse, Transactions)
    Account("a").save()
    mine, told = threading.local(), list[tuple[str, int]]()

    class Counted:
        """A mutex that counts those which this thread holds."""

        def __init__(self) -> None:
            self.mutex = threading.RLock()

        def __enter__(self) -> None:
            self.mutex.acquire()
            mine.held = getattr(mine, "held", 0) + 1

        def __exit__(self, *_: object) -> None:
            mine.held -= 1
            self.mutex.release()

    def is_new(body: dict[str, Any]) -> bool:
        place = str([*body, body.get("UpdateExpression")])
        is_new = place not in struck
        struck.add(place)
        return is_new

    struck: set[str] = set()
    written = "PutItem", "UpdateItem", "TransactWriteItems"
    monkeypatch.setattr(transaction_record, "next_renewal", lambda *_: 0.0)
    make_long_from(monkeypatch, 2)
    with (
        runtime.changed(mutex=Counted),
        events.subscribe(lambda event: told.append((event.operation, getattr(mine, "held", 0))), Throttled),
        on(*written, where=is_new).answer("ThrottlingException", always=True),
    ):
        with Account.locked("a", heartbeat=False) as lock:
            for write in (lock.renew, lambda: lock.item.update([Account.balance.add(1)])):
                with suppress(OutcomeUnknown, PynamoDBException):
                    write()
        with transaction() as tx:
            for i in range(4):
                tx.save(Purse(f"p{i}"))
    assert {held for _, held in told} == {0}
    assert {operation for operation, _ in told} == {"PutItem", "UpdateItem", "TransactWriteItems"}
    assert len(told) == len(struck) > 5
