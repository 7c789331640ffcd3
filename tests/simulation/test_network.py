"""Each fault does at the network what it says: applied or not, and what the client hears of it.

How transactions go step by step is in `test_native`.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from pynamo_locking_testing._engine.choices import Listed, Recorded
from pynamo_locking_testing._engine.faults import Fault, Faults
from pynamo_locking_testing._engine.network import Network
from pynamo_locking_testing._engine.scheduler import LATENCY_S, START_S, Process, Scheduler
from pynamo_locking_testing.clock import ClockView
from tests.simulation.bench import Bench, create_table, every, place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class _Wire:
    """One client of a network with one fault, on an item `{key: k}` with a counter `n`."""

    def __init__(self, fault: Fault | None, scheduling: Sequence[int] = ()) -> None:
        self.scheduler = Scheduler(Recorded(Listed(scheduling)), None, 1000.0, lambda: None, is_fine=False)
        self.faults = Faults(Recorded(Listed([1])), {} if fault is None else {fault: 1})
        self.network = Network(self.scheduler, self.faults, pause_s=9.0)
        create_table(self.network)
        self.heard: Any = None
        self.told: list[Fault | None] = []
        self.network.on_request.append(lambda _, fault, __: self.told.append(fault))

    def add(self, **besides: Any) -> None:
        """Add one to the counter, outside of the client's repetitions."""
        update = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
        self._send("UpdateItem", {"TableName": "table", "Key": {"key": {"S": "k"}}, **update, **besides})

    def get(self, *, is_consistent: bool = False) -> None:
        """Read the counter."""
        self._send("GetItem", {"TableName": "table", "Key": {"key": {"S": "k"}}, "ConsistentRead": is_consistent})

    def _send(self, operation: str, kwargs: dict[str, Any]) -> None:
        try:
            self.heard = self.network.attempt(operation, kwargs, 1.0)
        except Exception as error:  # noqa: BLE001 - what the client hears
            self.heard = error

    def play(self, *steps: Callable[[], object]) -> None:
        """Do this in one actor of process 0."""
        self.scheduler.spawn(Process("p0", ClockView(self.scheduler)), "client", lambda: [step() for step in steps])
        self.scheduler.run()

    @property
    def count(self) -> int:
        """How often the addition was applied."""
        answer = self.network.handle("GetItem", {"TableName": "table", "Key": {"key": {"S": "k"}}})
        return int(answer.get("Item", {"n": {"N": "0"}})["n"]["N"])


def _code(heard: Any) -> str:
    response: Any = heard.response if isinstance(heard, ClientError) else None
    return str(response["Error"]["Code"]) if response else type(heard).__name__


#: By fault: how often the write is applied, and what the client hears.
EFFECTS = {
    None: (1, "dict"),
    Fault.THROTTLED: (0, "ThrottlingException"),
    Fault.HOT: (0, "ProvisionedThroughputExceededException"),
    Fault.NO_CONNECTION: (0, ConnectTimeoutError.__name__),
    Fault.FAILED_BEFORE: (0, "InternalServerError"),
    Fault.FAILED_AFTER: (1, "InternalServerError"),
    Fault.LOST_REQUEST: (0, ReadTimeoutError.__name__),
    Fault.LOST_RESPONSE: (1, ReadTimeoutError.__name__),
    Fault.LATE: (1, ReadTimeoutError.__name__),  # sooner or later, see below
    Fault.CONFLICT: (0, "TransactionConflictException"),
    Fault.CRASH_BEFORE: (0, "NoneType"),  # hears nothing any more
    Fault.CRASH_AFTER: (1, "NoneType"),
    Fault.PAUSE_BEFORE: (1, "dict"),
    Fault.PAUSE_AFTER: (1, "dict"),
    Fault.REPLICATED: (0, "ReplicatedWriteConflictException"),
    Fault.DOUBLED: (1, "dict"),  # does not happen to what does not know itself, see below
}


@pytest.mark.parametrize("fault", EFFECTS, ids=lambda fault: fault.value if fault else "no fault")
def test_a_fault_does_what_it_says(fault: Fault | None) -> None:
    """Whether the write is applied, and what the client hears, is as the comment of the fault says."""
    wire = _Wire(fault)
    wire.play(wire.add)
    assert (wire.count, _code(wire.heard)) == EFFECTS[fault]
    assert wire.faults.happened == (Counter() if fault in (None, Fault.DOUBLED) else Counter([fault]))


def test_every_fault_is_tested_here() -> None:
    """No fault is added without saying here what it does; stale reads have a test of their own."""
    assert set(EFFECTS) == {None, *Fault} - {Fault.STALE}


@pytest.mark.parametrize(("named", "count"), [("q[0]", 2), ("q", 1)])
def test_what_is_made_under_a_lock_may_be_doubled(named: str, count: int) -> None:
    """Both copies are applied if nothing refuses the second one, and the client hears of that one only.

    What is made under a lock names a ticket.
    """
    wire = _Wire(Fault.DOUBLED)
    wire.play(lambda: wire.add(ConditionExpression=f"attribute_not_exists(q) OR {named} = n"))
    assert (wire.count, _code(wire.heard)) == (count, "dict")
    assert wire.told == [Fault.DOUBLED if count == 2 else None]


def test_a_time_out_takes_its_time() -> None:
    """A client that hears nothing waits for its time-out, on its own clock."""
    for fault in (Fault.LOST_REQUEST, Fault.LOST_RESPONSE, Fault.LATE):
        wire = _Wire(fault)
        wire.play(wire.add)
        assert 1.0 <= wire.scheduler.now <= 1.0 + LATENCY_S


def test_a_late_write_lands_at_any_later_step_or_at_the_end() -> None:
    """A late request is an option of the scheduler like any actor, and is not lost if it is never chosen."""
    counts = []
    for landing_or_time in (0, 1):
        wire = _Wire(Fault.LATE, scheduling=[landing_or_time])
        wire.play(wire.add)
        before = wire.count
        wire.scheduler.let_land()
        counts.append((before, wire.count))
    assert counts == [(1, 1), (0, 1)]


@pytest.mark.parametrize(("is_consistent", "sees"), [(False, "1"), (True, "2")])
def test_a_stale_read_shows_the_item_before_the_last_write(is_consistent: bool, sees: str) -> None:
    """An eventually consistent read may be old; a consistent one never is, as no such fault is offered to it."""
    wire = _Wire(Fault.STALE)
    wire.play(wire.add, wire.add, lambda: wire.get(is_consistent=is_consistent))
    assert wire.heard["Item"]["n"]["N"] == sees
    assert wire.count == 2


@pytest.mark.parametrize("fault", [Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER])
def test_a_pause_before_and_one_after_differ_in_when_the_request_is_applied(fault: Fault) -> None:
    """The write is applied after the pause, or before it."""
    wire = _Wire(fault)
    at = list[float]()
    wire.network.on_changes.append(lambda *_: at.append(wire.scheduler.now))
    wire.play(wire.add)
    assert (at[0] > 9.0) is (fault is Fault.PAUSE_BEFORE)
    assert wire.scheduler.now >= 9.0


def test_faults_do_not_exceed_their_budget() -> None:
    """However willing the choices, each kind happens only as often as the plan allows."""
    faults = Faults(Recorded(Listed([1] * 20)), {Fault.THROTTLED: 2, Fault.LOST_REQUEST: 1})
    for _ in range(20):
        faults.at("UpdateItem", is_consistent=False, may_conflict=True, now=0.0)
    assert faults.happened == Counter({Fault.THROTTLED: 2, Fault.LOST_REQUEST: 1})


def test_reads_suffer_only_what_reads_can_suffer() -> None:
    """A read cannot be applied, land late or conflict."""
    for fault in (Fault.FAILED_AFTER, Fault.LOST_RESPONSE, Fault.LATE, Fault.CONFLICT):
        faults = Faults(Recorded(Listed([])), {fault: 1})
        faults._choices = SimpleNamespace(pick=lambda n, _: n - 1)  # type: ignore[assignment]
        assert faults.at("GetItem", is_consistent=False, may_conflict=False, now=0.0) is None


def test_the_client_tries_again_as_botocore_does() -> None:
    """After a lost response the client sends its request once more, and adds twice: what ambiguity is about."""
    wire = _Wire(Fault.LOST_RESPONSE)
    connection: Any = SimpleNamespace(
        _retry_configuration="LEGACY", _read_timeout_seconds=1, _max_retry_attempts_exception=1
    )
    client = wire.network.client_for(connection)
    update = {"UpdateExpression": "ADD n :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    wire.play(lambda: client.update_item(TableName="table", Key={"key": {"S": "k"}}, **update))
    assert wire.count == 2


# Expiry


def _with_rows(bench: Bench, expires_s: int, most: int | None = None) -> None:
    bench.network.expire("table", most=most)
    for key in "ab":
        row = {"key": {"S": key}, "n": {"N": "1"}, "expires_s": {"N": str(int(START_S) + expires_s)}}
        bench.network.handle("PutItem", {"TableName": "table", "Item": row})


def _read_both(bench: Bench) -> tuple[int, int]:
    return bench.get("a"), bench.get("b")


def _look_twice(bench: Bench) -> None:
    bench.spawn("client", lambda: _read_both(bench), lambda: bench.sleep(20.0), lambda: _read_both(bench))


@pytest.mark.parametrize(
    ("expires_s", "most", "seen"),
    [(10, None, {(1, 1), (0, 1), (1, 0), (0, 0)}), (10, 1, {(1, 1), (0, 1), (1, 0)}), (30, None, {(1, 1)})],
)
def test_expired_items_go_at_any_time(expires_s: int, most: int | None, seen: set[Any]) -> None:
    """Never before their time, at any step after it, or not at all; and no more of them than allowed."""

    def build(bench: Bench) -> None:
        _with_rows(bench, expires_s, most)
        _look_twice(bench)

    runs = list(every(build))
    assert {run.heard["client"][0] for run in runs} == {(1, 1)}
    assert {run.heard["client"][2] for run in runs} == seen


def test_a_row_that_lives_longer_than_was_thought_stays() -> None:
    """Whether its time is over is looked at when it goes, not when that was planned; and it is told of as a change."""
    orders = set()

    def build(bench: Bench) -> None:
        _with_rows(bench, -10)
        later = {":later": {"N": str(int(START_S) + 1000)}}
        prolong = {"UpdateExpression": "SET expires_s = :later", "ExpressionAttributeValues": later}
        told: list[Any] = bench.heard.setdefault("told", [])
        bench.network.on_changes.append(
            lambda request, changes: told.extend(request.operation for each in changes if each.place == place("a"))
        )
        key = {"TableName": "table", "Key": {"key": {"S": "a"}}}
        bench.spawn("other", lambda: bench.send("UpdateItem", **key, **prolong), lambda: bench.get("a"))

    for run in every(build):
        orders.add((*run.heard["told"], run.heard["other"][1]))
    assert orders == {("TTL", "UpdateItem", 0), ("UpdateItem", 1)}


def test_a_pending_item_does_not_expire() -> None:
    """A transaction finds what it has prepared."""
    pending = set[tuple[str, bool]]()

    def build(bench: Bench) -> None:
        _with_rows(bench, -10)
        bench.network.on_changes.append(
            lambda request, changes: pending.update(
                (request.operation, bench.network.is_pending(each.place)) for each in changes
            )
        )
        bench.spawn("writer", lambda: bench.add("c", "a"))

    for run in every(build):
        assert run.heard["writer"] == ["done"]
        assert (run.count("c"), run.count("a")) in {(1, 1), (1, 2), (1, 0)}
    assert pending == {("TransactWriteItems", False), ("TTL", False)}


def test_rows_of_other_tables_and_without_a_time_stay() -> None:
    """A rule is for one table and one attribute."""
    bench = Bench()
    _with_rows(bench, -10)
    bench.network._expiries.clear()
    bench.network.expire("elsewhere")
    bench.network.expire("table", "another_attribute")
    _look_twice(bench)
    bench.play()
    assert (bench.count("a"), bench.count("b")) == (1, 1)


# Batches of statements


def _batch(*keys: str) -> list[dict[str, Any]]:
    """Return statements that set counters from 0 to 1."""
    text = 'UPDATE "table" SET "n" = ? WHERE "key" = ? AND ("n" = ?)'
    return [{"Statement": text, "Parameters": [{"N": "1"}, {"S": key}, {"N": "0"}]} for key in keys]


def _struck(fault: Fault | None, operation: str) -> tuple[Any, list[int]]:
    """Send a batch for two items, and let a fault strike; return what is heard, and what is stored in the end."""
    bench = Bench(fault=fault, steps=False)
    bench.faults.operation = operation
    for key in "ab":
        bench.network.handle("PutItem", {"TableName": "table", "Item": {"key": {"S": key}, "n": {"N": "0"}}})
    bench.spawn("client", lambda: bench.send("BatchExecuteStatement", Statements=_batch("a", "b"))["Responses"])
    [heard] = bench.play().heard["client"]
    return heard, [bench.count(key) for key in "ab"]


#: By fault of a whole batch: what the client hears, and whether it is applied in the end.
OF_BATCHES = {
    None: ([{}, {}], 1),
    Fault.THROTTLED: ("ThrottlingException", 0),
    Fault.FAILED_BEFORE: ("InternalServerError", 0),
    Fault.FAILED_AFTER: ("InternalServerError", 1),
    Fault.LOST_REQUEST: ("ReadTimeoutError", 0),
    Fault.LOST_RESPONSE: ("ReadTimeoutError", 1),
    Fault.LATE: ("ReadTimeoutError", 1),
}


@pytest.mark.parametrize("fault", OF_BATCHES, ids=lambda fault: fault and fault.value)
def test_a_fault_strikes_a_whole_batch(fault: Fault | None) -> None:
    """All of it is applied, now or late, or nothing; the client hears one answer about all."""
    heard, is_applied = OF_BATCHES[fault]
    assert _struck(fault, "BatchExecuteStatement") == (heard, [is_applied] * 2)


#: By fault of one statement: what the client hears, and whether that one is applied in the end.
OF_STATEMENTS = {
    Fault.THROTTLED: ([{"Error": {"Code": "ThrottlingError"}}, {}], 0),
    Fault.HOT: ([{"Error": {"Code": "ProvisionedThroughputExceeded"}}, {}], 0),
    Fault.CONFLICT: ([{"Error": {"Code": "TransactionConflict"}}, {}], 0),
    Fault.REPLICATED: ([{"Error": {"Code": "ReplicatedWriteConflict"}}, {}], 0),
    Fault.FAILED_AFTER: ([{"Error": {"Code": "InternalServerError"}}, {}], 1),
    Fault.LOST_REQUEST: ("ReadTimeoutError", 0),
    Fault.LOST_RESPONSE: ("ReadTimeoutError", 1),
    Fault.LATE: ("ReadTimeoutError", 1),
}


@pytest.mark.parametrize("fault", OF_STATEMENTS, ids=lambda fault: fault.value)
def test_a_fault_strikes_one_statement_of_a_batch(fault: Fault) -> None:
    """The other one is applied: a part is refused for now, or the answer about both is lost."""
    heard, is_applied = OF_STATEMENTS[fault]
    assert _struck(fault, "UpdateItem") == (heard, [is_applied, 1])
