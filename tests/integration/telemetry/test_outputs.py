"""Logs, signals, traces and metrics: what becomes of the events."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import blinker
import pytest
from opentelemetry import trace

from pynamo_locking import events, transaction
from pynamo_locking.exceptions import ConfigurationError, Conflict, LockLost, LockTimeout, OutcomeUnknown, StaleVersion
from pynamo_locking.telemetry import logs, opentelemetry, signals
from pynamo_locking_testing import VirtualClock
from tests.integration.telemetry.conftest import Traced, left_open
from tests.integration.telemetry.forked import in_child
from tests.support.models import Account, Document, Locks
from tests.support.parties import abandoned, held_elsewhere, in_thread
from tests.support.transaction_models import Purse, Transactions
from tests.support.wire import ALL, on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine


@pytest.fixture(autouse=True)
def _tables(memory: Engine) -> None:
    memory.bind(Locks, Account, Document, Purse, Transactions)
    Account("a").save()
    Document("f", 1).save()
    for lock in (Account.locked("a"), Document.locked("f", 1)):
        with lock:
            pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Virtual time, with few looks."""
    rare = replace(Account.Meta.lock_settings, poll_interval=0.5, max_poll_interval=0.5)
    monkeypatch.setattr(Account.Meta, "lock_settings", rare)
    with VirtualClock() as clock:
        yield clock


def conflict() -> None:
    """One write is refused."""
    stale = Document.get("f", 1)
    Document.get("f", 1).save()
    with pytest.raises(StaleVersion):
        stale.save()


def take_in_vain() -> None:
    with pytest.raises(LockTimeout):
        Account.locked("a", wait=0.05, heartbeat=False).acquire()


# Logs


def facts_in(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name.startswith("lock_")}


def test_each_event_is_one_record(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """With its kind and name in the message, and all of its facts as attributes, which JSON takes as they are."""
    lock = Account.locked("a", owner="me\n", heartbeat=False)
    with caplog.at_level(logging.INFO, "pynamo_locking.events"), logs.install(), lock:
        clock.sleep(2)
    acquired, released = caplog.records
    about = f"{lock.name} (owner me\\x0a, ticket {lock.ticket}"
    assert acquired.getMessage() == f"Acquired {about}, waited 0 ms, lease 60000 ms)"
    assert released.getMessage() == f"Released {about}, held 2000 ms)"
    assert (released.levelno, released.name) == (logging.INFO, "pynamo_locking.events")
    facts = facts_in(released)
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["lock_event"], facts["lock_held_ms"], facts["lock_owner"]) == ("Released", 2000, "me\n")
    assert (facts["lock_name"], facts["lock_model"], facts["lock_ticket"]) == (lock.name, "Account", lock.ticket)


def test_what_is_notable_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A time-out is; that a wait begins is not. The logger and the level are the caller's."""
    mine = logging.getLogger("mine")
    with caplog.at_level(logging.DEBUG, "mine"), held_elsewhere(Account.locked("a")), logs.install(mine, logging.DEBUG):
        take_in_vain()
    found = [(record.levelname, record.lock_event) for record in caplog.records if record.name == "mine"]  # type: ignore[attr-defined]
    assert found == [("DEBUG", "Waiting"), ("WARNING", "TimedOut")]


def test_a_higher_level_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is logged below the level that was asked for."""
    with held_elsewhere(Account.locked("a")), logs.install("mine", logging.ERROR):
        take_in_vain()
    assert {record.levelno for record in caplog.records if record.name == "mine"} == {logging.ERROR}


def test_only_some_events_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """By their class, as for any subscriber; a transaction is named by its id."""
    with logs.install("mine", logging.ERROR, of=events.TransactionEvent):
        with Account.locked("a"):
            pass
        with transaction() as tx:
            tx.save(Purse("p"))
    [message] = caplog.messages
    assert message.startswith(f"TransactionCommitted {tx.id} (owner ")


def outage(clock: VirtualClock, owner: str) -> Any:
    """Hold a lock while no request arrives for ten minutes, until it is renewed again; return it."""
    with Account.locked("a", lease=30, owner=owner) as lock:
        with on("UpdateItem", times=1_000_000).lose_request() as lost:
            clock.sleep(600)
        clock.sleep(10)
    assert lost.hits > 300
    return lock


LINES = [
    "{} could not be renewed for 10.0 s: 20.0 s of its lease of 30 s are left. The heart",
    "{} could not be renewed for 3#.# s: its lease has ended, so another owner may acquire it, and its guarded",
    *["{} could not be renewed for ###.# s: its lease has ended"] * 2,
    "{} is renewed again after 60#.# s; its lease had ended, and no other owner acquired it",
]


def test_an_outage_is_logged_seldom(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """When it begins, when the lease has ended, then after two minutes, four, and when it is over."""
    lock = outage(clock, "me")
    about = f"lock {lock.name} ticket {lock.ticket} (holder me)"
    patterns = [re.escape(line.format(about)).replace(r"\#", r"\d") for line in LINES]
    assert len(caplog.messages) == len(patterns), caplog.messages
    for message, pattern in zip(caplog.messages, patterns, strict=True):
        assert re.match(pattern, message)


def test_an_outage_is_not_logged_twice(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Records of events take the place of those lines; the attempts between them are for who debugs."""
    with caplog.at_level(logging.INFO, "pynamo_locking"), logs.install():
        outage(clock, "me")
    warnings_told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [message.split()[0] for message in warnings_told] == ["RenewalFailed"] * (len(LINES) - 1) + ["Renewed"]
    assert sum(message.startswith("RenewalFailed") for message in caplog.messages) == len(LINES) - 1
    assert {record.name for record in caplog.records} == {"pynamo_locking.events"}
    first, *_, over = warnings_told
    assert "remaining 20000 ms, error ConnectionClosedError, failing 10000 ms" in first
    assert ", failed 60" in over


def test_a_loss_and_an_eviction_are_not_logged_twice(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Without `install` the library says it itself, with whose ticket it was."""

    def rob() -> list[str]:
        caplog.clear()
        robbed = Account.locked("a", owner="late", lease=10, heartbeat=False)
        in_thread(robbed.acquire)
        clock.sleep(11)
        with Account.locked("a", owner="heir", wait=60, heartbeat=False), pytest.raises(LockLost):
            robbed.release()
        return [message for message in caplog.messages if f"ticket {robbed.ticket}" in message]

    evicting, lost = rob()
    assert evicting.startswith("evicting from the lock ")
    assert " of late (lease 10 s)" in evicting
    assert re.match(r"lost lock .* ticket \d+ \(holder late\): evicted", lost)
    with logs.install(level=logging.DEBUG), caplog.at_level(logging.WARNING):
        evicted, lost = (message.split()[0] for message in rob())
    assert (evicted, lost) == ("Evicted", "Lost")
    with logs.install(of=events.TransactionEvent):
        assert [message.split()[0] for message in rob()] == ["evicting", "lost"]


def test_a_level_is_a_number() -> None:
    """A name is refused at once, not at the first event."""
    with pytest.raises(ConfigurationError, match="level"):
        logs.install(level="INFO")  # type: ignore[arg-type]


def test_the_warnings_stay(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Those of the library itself do not depend on any subscription."""
    lock = Account.locked("a", heartbeat=False).acquire()
    with on("UpdateItem", times=5).lose_request():
        lock.release()
    assert "a thread goes on with it" in caplog.text
    while Account.lock_state("a").entries:  # until it was
        clock.sleep(1)


# Signals


def test_a_signal_has_the_model_as_its_sender() -> None:
    """So that a receiver hears of one model only."""
    heard: list[tuple[Any, str]] = []

    def receive(sender: Any, event: events.Acquired) -> None:
        heard.append((sender, event.name))

    signals.acquired.connect(receive, sender=Account)
    with signals.install(), Account.locked("a") as lock, Document.locked("f", 1), Locks.locked("n"):
        pass
    with Account.locked("a"):
        pass
    assert heard == [(Account, lock.name)]


def test_every_kind_has_a_signal() -> None:
    """Named like its class, in the words of Python."""
    leaves = {kind for name in events.__all__ if isinstance(kind := getattr(events, name), type)}
    leaves = {kind for kind in leaves if issubclass(kind, events.Event) and not kind.__subclasses__()}
    assert {signals._signal(kind) for kind in leaves} == {
        each for each in vars(signals).values() if isinstance(each, blinker.NamedSignal)
    }
    assert signals.transaction_rolled_back.name == "transaction_rolled_back"
    for signal in map(signals._signal, leaves):
        assert vars(signals)[signal.name] is signal


def test_a_transaction_has_no_sender() -> None:
    """Its models may be many."""
    heard: list[Any] = []
    receive = lambda sender, event: heard.append((sender, event.path))  # noqa: E731
    with signals.transaction_committed.connected_to(receive), signals.install(), transaction() as tx:
        tx.save(Purse("p"))
    assert heard == [(None, "single")]


def test_a_receiver_that_fails_harms_no_lock(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged like any subscriber."""

    def fail(sender: Any, event: events.Event) -> None:
        raise ValueError

    with signals.released.connected_to(fail), signals.install(), Account.locked("a"):
        pass
    assert Account.lock_state("a").holders == ()
    assert "failed on Released" in caplog.text


@pytest.mark.parametrize(
    ("module", "needs", "extra", "package"),
    [("signals", "blinker", "signals", "blinker"), ("opentelemetry", "opentelemetry", "otel", "opentelemetry-api")],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, needs: str, extra: str, package: str
) -> None:
    """With the extra that brings it, and a command that works without a clone of the repository."""
    name = f"pynamo_locking.telemetry.{module}"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, needs, None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=rf"the extra `{extra}` brings: pip install '{package}>="):
        importlib.import_module(name)


# Traces


def named(span_or_point: Any, name: str) -> Any:
    return span_or_point.attributes[f"pynamo_locking.{name}"]


def test_a_lock_is_two_spans_under_the_callers(clock: VirtualClock, traced: Traced) -> None:
    """Acquire until hold begins, which has a link to it; both are children of the span that was current."""
    lock = Account.locked("a", owner="me", heartbeat=False)
    with traced.tracer.start_as_current_span("request") as parent, lock:
        clock.sleep(2)
    acquire, hold = traced.span("acquire"), traced.span("hold")
    for span in (acquire, hold):
        assert span.parent == parent.get_span_context()
        assert span.attributes is not None
        assert span.attributes["db.system.name"] == "aws.dynamodb"
        assert span.attributes["db.collection.name"] == Account.Meta.table_name
        assert (named(span, "name"), named(span, "ticket"), named(span, "owner")) == (lock.name, lock.ticket, "me")
    [link] = hold.links
    assert link.context == acquire.context
    assert hold.start_time == acquire.end_time
    assert hold.end_time - hold.start_time == 2_000_000_000  # type: ignore[operator]
    assert (named(hold, "writes"), named(hold, "is_confirmed")) == (0, True)
    assert hold.status.status_code is trace.StatusCode.UNSET
    assert (acquire.name, hold.name) == (f"acquire {Account.Meta.table_name}", f"hold {Account.Meta.table_name}")


def test_without_a_span_they_begin_a_trace(traced: Traced) -> None:
    """Nothing has to be current."""
    with Account.locked("a"):
        pass
    assert [span.parent for span in traced.spans] == [None, None]


def test_the_span_of_a_wait_is_as_long_as_the_wait(clock: VirtualClock, traced: Traced) -> None:
    """Who was evicted, and that we waited, is told by events of the caller's span."""
    abandoned(Account.locked("a", owner="dead", lease=10, heartbeat=False))
    traced.exporter.clear()
    with traced.tracer.start_as_current_span("request"), Account.locked("a", heartbeat=False):
        pass
    acquire, request = traced.span("acquire"), traced.span("request")
    assert acquire.end_time - acquire.start_time >= 10_000_000_000  # type: ignore[operator]
    assert named(acquire, "polls") > 1
    [wait] = traced.points("lock.wait.duration")
    assert 10 <= wait.sum < 60
    waiting, evicted = request.events
    assert (waiting.name, named(waiting, "holder")) == ("Waiting", "dead")
    assert (evicted.name, named(evicted, "owner")) == ("Evicted", "dead")


def test_the_heartbeat_tells_the_span_of_the_lock(clock: VirtualClock, traced: Traced) -> None:
    """Its thread has no span of its own; renewals are events of the hold, at their time."""
    with Account.locked("a", lease=30), on("UpdateItem").lose_request():
        clock.sleep(25)
    hold = traced.span("hold")
    assert [event.name for event in hold.events][:2] == ["RenewalFailed", "Renewed"]
    assert hold.events[0].timestamp - hold.start_time == 10_000_000_000  # type: ignore[operator]
    assert named(hold.events[1], "outcome") == "renewed"
    assert {span.name.split()[0] for span in traced.spans} == {"acquire", "hold"}
    renewals = {named(point, "outcome"): point.value for point in traced.points("lock.renewals")}
    assert renewals == {"failed": 1, "renewed": sum(event.name == "Renewed" for event in hold.events)}


def test_a_time_out_is_an_error(traced: Traced) -> None:
    """And a try that finds the lock taken is none; both have their type."""
    with held_elsewhere(Account.locked("a")):
        take_in_vain()
        with Account.try_locked("a") as lock:
            assert lock is None
    spans = [span for span in traced.spans if span.attributes and "error.type" in span.attributes]
    assert [span.status.status_code for span in spans] == [trace.StatusCode.ERROR, trace.StatusCode.UNSET]
    assert {span.attributes["error.type"] for span in spans if span.attributes} == {"LockTimeout"}


def test_a_loss_is_an_error_of_the_hold(traced: Traced) -> None:
    """The span ends with the loss, once."""
    with contextlib.suppress(LockLost), Account.locked("a", heartbeat=False) as lock:
        Account.break_lock("a", ticket=lock.ticket)
        with pytest.raises(LockLost):
            lock.renew()
        assert traced.span("hold").status.status_code is trace.StatusCode.ERROR
    assert named(traced.span("hold"), "reason") == "evicted"
    [point] = traced.points("lock.lost")
    assert (point.value, named(point, "reason")) == (1, "evicted")


def test_conflicts_are_events_of_the_callers_span(traced: Traced) -> None:
    """With their type; and counted."""
    with traced.tracer.start_as_current_span("request"):
        conflict()
    [event] = traced.span("request").events
    assert event.attributes is not None
    assert (event.name, event.attributes["error.type"]) == ("WriteRefused", "StaleVersion")
    assert named(event, "name") == Document.locked("f", 1).name
    [point] = traced.points("conflicts")
    assert point.value == 1
    assert dict(point.attributes) == {
        "db.system.name": "aws.dynamodb",
        "db.collection.name": Document.Meta.table_name,
        "pynamo_locking.model": "Document",
        "error.type": "StaleVersion",
        "pynamo_locking.operation": "put",
    }


def warned_of(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """What the log of the test has warned of, by kind of event."""
    found = [record for record in caplog.records if record.name == "mine" and record.levelno == logging.WARNING]
    return [vars(record)["lock_event"] for record in found]


def test_a_write_in_doubt_is_a_warning_and_no_conflict(traced: Traced, caplog: pytest.LogCaptureFixture) -> None:
    """It may have changed something, so it is counted apart."""
    account = Account.get("a")
    silence = on("UpdateItem", times=ALL).lose_response()
    with logs.install("mine"), traced.tracer.start_as_current_span("request"), silence, pytest.raises(OutcomeUnknown):
        account.update([Account.balance.add(1)])
    assert warned_of(caplog) == ["WriteInDoubt"]
    assert [event.name for event in traced.span("request").events] == ["WriteInDoubt"]
    [point] = traced.points("writes.in_doubt")
    assert (point.value, point.attributes["error.type"]) == (1, "OutcomeUnknown")
    assert traced.points("conflicts") == []


def test_a_recovery_is_a_warning_and_is_counted(
    clock: VirtualClock, traced: Traced, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what became of the transaction, and by who completed it."""
    tx = left_open(clock, monkeypatch, is_decided=True)
    with logs.install("mine"), traced.tracer.start_as_current_span("request"):
        Transactions.recover(tx.id)
    assert warned_of(caplog) == ["TransactionRecovered"]
    assert [event.name for event in traced.span("request").events] == ["TransactionRecovered"]
    [point] = traced.points("transactions.recovered")
    assert (point.value, named(point, "outcome"), named(point, "recovered_by")) == (1, "finished", "recover")


def test_a_late_renewal_is_counted_as_late(clock: VirtualClock, traced: Traced) -> None:
    """A waiter could have evicted us."""
    with Account.locked("a", lease=30, heartbeat=False) as lock:
        for passes_s in (29, 31):
            clock.jump(passes_s)
            lock.renew()
    renewals = {named(point, "outcome"): point.value for point in traced.points("lock.renewals")}
    assert renewals == {"renewed": 1, "late": 1}


def test_a_transaction_is_a_span(clock: VirtualClock, traced: Traced) -> None:
    """From its beginning to its end, under the caller's; one that is rolled back for an error has that."""
    with traced.tracer.start_as_current_span("request") as parent:
        with transaction() as tx:
            tx.save(Purse("p"))
            clock.sleep(3)
        with pytest.raises(Conflict), transaction() as refused:
            refused.save(Purse("p"), Purse.purse_id.does_not_exist())
    first, second = [span for span in traced.spans if span.name == "transaction"]
    assert first.parent == second.parent == parent.get_span_context()
    assert first.end_time - first.start_time == pytest.approx(3_000_000_000, abs=2_000_000)  # type: ignore[operator]
    assert (named(first, "transaction_id"), named(first, "path"), named(first, "outcome")) == (
        tx.id,
        "single",
        "committed",
    )
    assert second.status.status_code is trace.StatusCode.ERROR
    assert named(second, "outcome") == "rolled_back"
    counted = {named(point, "outcome"): point for point in traced.points("transaction.duration")}
    assert {outcome: point.count for outcome, point in counted.items()} == {"committed": 1, "rolled_back": 1}
    assert counted["committed"].sum == pytest.approx(3, abs=0.01)


def test_the_parent_is_found_from_a_worker_thread_of_asyncio(traced: Traced) -> None:
    """Its context is a copy of the task's."""

    def work() -> None:
        with Account.locked("a"):
            pass

    async def main() -> Any:
        with traced.tracer.start_as_current_span("request") as parent:
            await asyncio.to_thread(work)
        return parent.get_span_context()

    parent = asyncio.run(main())
    assert [span.parent for span in traced.spans if span.name != "request"] == [parent, parent]


# Metrics


def test_durations_are_seconds(clock: VirtualClock, traced: Traced) -> None:
    """By table and model; no name of a lock is in a metric."""
    for seconds in (1, 3):
        with Account.locked("a", heartbeat=False):
            clock.sleep(seconds)
    [hold], [wait] = traced.points("lock.hold.duration"), traced.points("lock.wait.duration")
    [units] = traced.points("lock.consumed_units")
    assert units.value == 4  # of each two requests
    assert (hold.count, hold.sum, hold.min, hold.max) == (2, 4, 1, 3)
    assert (wait.count, wait.sum) == (2, 0)
    assert tuple(hold.explicit_bounds) == opentelemetry.BUCKETS_S
    assert dict(hold.attributes) == {
        "db.system.name": "aws.dynamodb",
        "db.collection.name": Account.Meta.table_name,
        "pynamo_locking.model": "Account",
    }


class JobLocks(Locks):
    """Other locks in the same table."""


def test_what_is_held_is_counted_by_table_and_model(traced: Traced) -> None:
    """At the moment in which a reader of the metrics asks."""

    def held() -> dict[tuple[str, str], int]:
        return {
            (point.attributes["db.collection.name"], point.attributes["pynamo_locking.model"]): point.value
            for point in traced.points("lock.held")
        }

    JobLocks.Meta.table_name = Locks.Meta.table_name
    with Account.locked("a"), Locks.locked("x"), Locks.locked("y"), JobLocks.locked("z"):
        assert held() == {
            (Account.Meta.table_name, "Account"): 1,
            (Locks.Meta.table_name, "Locks"): 2,
            (Locks.Meta.table_name, "JobLocks"): 1,
        }
    assert held() == {}


def test_units_and_evictions_are_counted(clock: VirtualClock, traced: Traced) -> None:
    """Of all requests of locks."""
    abandoned(Account.locked("a", lease=10, heartbeat=False))
    [before] = traced.points("lock.consumed_units")
    with Account.locked("a", heartbeat=False):
        pass
    [point], [units] = traced.points("lock.evictions"), traced.points("lock.consumed_units")
    assert point.value == 1
    assert before.value == 1
    assert units.value > 4  # it entered, looked, evicted, and left


def test_cancelling_ends_spans_of_what_is_held() -> None:
    """And what happens later makes none."""
    traced = Traced()
    installed = opentelemetry.install(tracer_provider=traced.tracers, meter_provider=traced.meters)
    with Account.locked("a"):
        installed.cancel()
        assert traced.span("hold").end_time is not None
        assert traced.points("lock.held") == []
    assert len(traced.spans) == 2


def test_another_provider_counts_what_was_acquired_since() -> None:
    """Each installation knows what it was told."""
    first, second = Traced(), Traced()
    with opentelemetry.install(tracer_provider=first.tracers, meter_provider=first.meters), Account.locked("a"):
        with opentelemetry.install(tracer_provider=second.tracers, meter_provider=second.meters):
            assert second.points("lock.held") == []
        assert [point.value for point in first.points("lock.held")] == [1]


def test_installed_anew() -> None:
    """With the same providers: what is held is counted, once, though the gauge was made by the first installation."""
    traced = Traced()
    for number in (1, 2, 3):
        with opentelemetry.install(tracer_provider=traced.tracers, meter_provider=traced.meters):
            with (
                opentelemetry.install(tracer_provider=traced.tracers, meter_provider=Traced().meters),
                Account.locked("a"),
            ):
                assert [point.value for point in traced.points("lock.held")] == [1]
            [wait] = traced.points("lock.wait.duration")
            assert wait.count == number
        assert traced.points("lock.held") == []


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_tells_of_its_own_locks_only(traced: Traced) -> None:
    """What the parent holds is neither held nor ended in the child, which stays subscribed."""

    def child() -> str:
        held = [point.value for point in traced.points("lock.held")]
        with Locks.locked("of the child"):
            inside = [point.value for point in traced.points("lock.held")]
        ended = sorted(span.name.split()[0] for span in traced.spans)
        return f"{held} {inside} {ended}"

    with Account.locked("a"):
        traced.exporter.clear()
        assert in_child(child) == "[] [1] ['acquire', 'hold']"
        assert [point.value for point in traced.points("lock.held")] == [1]
    assert traced.span("hold").status.status_code is trace.StatusCode.UNSET
