"""The proxy that throttles hot keys before an engine: who is refused, what is charged, and that others see nothing."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from benchmarks.contenders.counters import CREDENTIALS, REGION, create_table
from pynamo_locking import LockSettings, NamedLock, events
from pynamo_locking_testing._engine.partitions import Partitions
from tests.conftest import ON_AWS
from tests.support.faults import Fault
from tests.support.models import declare
from tests.support.proxy import Proxy, nth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine

pytestmark = pytest.mark.skipif(ON_AWS, reason="the proxy stands before an engine on this machine")

REFUSED = "ProvisionedThroughputExceededException"
#: Ten units of each kind, and so slow that next to nothing comes back in the course of a test: what is more than
#: nothing lets one more request pass, which overdraws it.
FEW = {"write_units": 0.001, "read_units": 0.001, "burst_s": 10_000}

#: Locks in rows of their own.
Names = declare("Names", NamedLock, lock_settings=LockSettings(wait=60))


def _time_of_requests() -> Callable[[], float]:
    """Return a clock that goes on by 20 ms whenever it is read: how fast this machine is does not matter."""
    readings = itertools.count()
    return lambda: next(readings) * 0.02


def _lead_through(proxy: Proxy, engine: Engine) -> None:
    """Send the locks' requests to the proxy; the engine's fixture puts it back."""
    meta: Any = Names.Meta
    meta.host = proxy.url
    model: Any = Names
    model._connection = None
    model._get_connection().connection._local.session = engine._session


def _client(proxy: Proxy, attempts: int) -> Any:
    config = Config(parameter_validation=False, retries={"mode": "standard", "total_max_attempts": attempts})
    session = botocore.session.get_session()
    return session.create_client(
        "dynamodb",
        REGION,
        endpoint_url=proxy.url,
        config=config,
        aws_access_key_id=CREDENTIALS["aws_access_key_id"],
        aws_secret_access_key=CREDENTIALS["aws_secret_access_key"],
    )


class _Hot:
    """A client behind the proxy, and a table with a hash and a range key."""

    def __init__(self, proxy: Proxy, engine: Engine) -> None:
        self.proxy = proxy
        self.table = engine.new_name("hot")
        self.client: Any = _client(proxy, attempts=1)
        create_table(self.client, self.table, "key", "row")

    def named(self, key: str, row: str = "r") -> dict[str, Any]:
        return {"TableName": self.table, "Key": {"key": {"S": key}, "row": {"S": row}}}

    def put(self, key: str, row: str = "r", size: int = 0, **more: Any) -> dict[str, Any]:
        item = {"key": {"S": key}, "row": {"S": row}, "body": {"S": "x" * size}}
        answer: dict[str, Any] = self.client.put_item(TableName=self.table, Item=item, **more)
        return answer

    def says(self, error: type[Exception] = ClientError) -> Any:
        return pytest.raises(error, match=REFUSED)

    @property
    def written(self) -> float:
        return self.proxy.units[False]

    @property
    def read(self) -> float:
        return self.proxy.units[True]


@pytest.fixture
def hot(dynoxide: Engine) -> Iterator[_Hot]:
    """A table with ten units for each key."""
    assert dynoxide.host is not None
    with Proxy(dynoxide.host, Partitions(**FEW)) as proxy:
        yield _Hot(proxy, dynoxide)
        assert proxy.errors == []


def test_a_hot_key_is_refused_and_the_others_are_not(hot: _Hot) -> None:
    """All rows of one hash key share its units; another key, and reads, have theirs."""
    for i in range(11):
        hot.put("hot", f"r{i}")
    with hot.says() as caught:
        hot.put("hot", "another row")

    [told] = caught.value.response["ThrottlingReasons"]
    assert told["reason"] == "TableWriteKeyRangeThroughputExceeded"
    assert told["resource"].endswith(f":table/{hot.table}")
    assert hot.proxy.throttled == {"PutItem": 1}
    hot.put("cold")
    assert hot.client.get_item(**hot.named("hot", "r9"))["Item"]
    assert "Item" not in hot.client.get_item(**hot.named("hot", "another row"))


def test_a_refused_condition_is_billed_by_what_it_met(hot: _Hot) -> None:
    """Not by what it would have written; the item is shown to those who asked for it alone."""
    hot.put("a", size=3000)
    for shown in ({}, {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}):
        with pytest.raises(ClientError, match="ConditionalCheckFailed") as caught:
            hot.put("a", ConditionExpression="attribute_not_exists(body)", **shown)
        assert ("Item" in caught.value.response) is bool(shown)

    assert hot.written == 3 + 3 + 3


def test_a_transaction_is_cancelled(hot: _Hot) -> None:
    """As a whole, and the reasons say which of the keys it was; it pays twice."""
    puts = [{"Put": {"TableName": hot.table, "Item": hot.named(key)["Key"]}} for key in ("cold", "hot")]
    hot.client.transact_write_items(TransactItems=puts)
    assert hot.written == 4
    for _ in range(9):
        hot.put("hot")
    with pytest.raises(ClientError, match="TransactionCanceledException") as caught:
        hot.client.transact_write_items(TransactItems=puts)

    assert [reason["Code"] for reason in caught.value.response["CancellationReasons"]] == ["None", "ThrottlingError"]


def test_our_lock_gets_through(dynoxide: Engine) -> None:
    """Turns on a hot row are slow, and all of them are taken: each thread waits, and none gives up.

    Each refusal is told, with its reason and the row.
    """
    assert dynoxide.host is not None
    dynoxide.bind(Names)
    told: list[events.Throttled] = []
    with (
        events.subscribe(told.append, events.Throttled),
        Proxy(dynoxide.host, Partitions(10, 30), clock=_time_of_requests()) as proxy,
    ):
        _lead_through(proxy, dynoxide)
        inside: list[int] = []

        def turns() -> None:
            for _ in range(4):
                with Names.locked("hot", settings=LockSettings(max_callers_per_entry=1)) as lock:
                    inside.append(lock.ticket)

        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(turns) for _ in range(4)]:
                future.result(60)
    assert inside == sorted(inside)
    assert len(inside) == 16
    assert len(told) == proxy.throttled.total() > 0
    assert {event.name for event in told} == {f"{Names.Meta.table_name}/hot"}
    assert {event.reason for event in told} <= {f"Table{kind}KeyRangeThroughputExceeded" for kind in ("Read", "Write")}


def test_reasons_that_botocore_does_not_parse_are_told(dynoxide: Engine) -> None:
    """Older releases leave them out; another attempt succeeds."""
    assert dynoxide.host is not None
    dynoxide.bind(Names)
    told: list[events.Throttled] = []
    with events.subscribe(told.append, events.Throttled), Proxy(dynoxide.host) as proxy:
        _lead_through(proxy, dynoxide)
        proxy.plan = nth(0, Fault.THROTTLED)
        Names.lock_state("hot")
    assert [(event.reason, event.table) for event in told] == [("TableReadAccountLimitExceeded", Names.Meta.table_name)]
