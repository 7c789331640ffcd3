"""Processes are killed (SIGKILL) in the queue: everybody else gets the lock, in the order of tickets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import ItemLocked, LockTimeout
from tests.support.wire import count_requests
from tests.support.workers import Plain, Taken, crew, until_next_beat, until_over, until_queued

if TYPE_CHECKING:
    from tests.engines.engine import Engine

pytestmark = [pytest.mark.waits, pytest.mark.processes]

#: Long enough that a busy machine does not make the living look dead: a waiter that was evicted would come back as the
#: last one, and the test would wait for it while the next one holds the lock.
LEASE = 4.8
#: The silence after which an entry is dead: the lease and the margin for clocks that run unevenly.
SILENCE = LEASE * 1.05
SKEW = 0.1
WITH_HINT = LockSettings(lease=LEASE, request_timeout=0.4, poll_interval=0.02, max_clock_skew=SKEW)
WITHOUT_HINT = LockSettings(lease=LEASE, request_timeout=0.4, poll_interval=0.02, max_clock_skew=None)
#: An upper bound for what takes about one lease, on a machine that does other things as well.
FEW_LEASES = 6

both_settings = pytest.mark.parametrize("settings", [WITH_HINT, WITHOUT_HINT], ids=["hint", "no hint"])


@pytest.fixture
def engine(real_engine):
    """The engine, with one item."""
    real_engine.bind(Plain)
    Plain("a").save()
    return real_engine


def died(engine: Engine, settings: LockSettings, *, for_long: float = SKEW) -> int:
    """Let a process take the lock and die; return its ticket when its lease has been over for a while."""
    with crew(engine, 1, Plain) as [worker]:
        ticket: int = worker.call("enter", Plain, "a", settings=settings).ticket
        worker.kill()
    until_over(Plain, "a", ticket, for_long)
    return ticket


@pytest.fixture
def report(record_property, request):
    """Print and record how long a recovery took, in leases."""

    def report(seconds: float) -> None:
        leases = round(seconds / LEASE, 2)
        record_property("recovery_in_leases", leases)
        print(f"\n{request.node.name}: recovered {leases} leases after the crash")  # noqa: T201 - seen with -s

    return report


def evictions(bodies: list[tuple[str, Any]]) -> int:
    """How many of the requests removed dead entries."""
    return sum(":b0" in body.get("ExpressionAttributeValues", {}) for _, body in bodies)


@both_settings
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["holder", "first waiter", "middle waiter"])
def test_one_of_five_is_killed(engine, victim, settings, report):
    """The four survivors get the lock in ticket order, a few leases later, and leave an empty queue."""
    with crew(engine, 5, Plain) as workers:
        for count, worker in enumerate(workers, 1):
            worker.start("enter", Plain, "a", settings=settings)
            tickets = until_queued(Plain, "a", count)
        alive_at = until_next_beat(Plain, "a", tickets[victim])
        killed_at = workers[victim].kill()

        taken: list[Taken] = []
        survivors = [worker for worker in workers if worker is not workers[victim]]
        for position, worker in enumerate(survivors, 1):
            taken.append(worker.result())
            worker.call("add", "a")
            assert all(other.is_waiting() for other in survivors[position:])
            worker.call("leave", "a")

    assert [one.ticket for one in taken] == [ticket for ticket in tickets if ticket != tickets[victim]]
    assert taken == sorted(taken, key=lambda one: one.at)
    assert Plain.lock_state("a").entries == ()
    assert Plain.get("a", consistent_read=True).value == 4
    successor = taken[victim]
    report(successor.at - killed_at)
    if settings.max_clock_skew is None:
        assert successor.at - alive_at >= SILENCE
    assert successor.at - killed_at < FEW_LEASES * LEASE


def test_newcomer_after_the_lease_does_not_wait(engine):
    """With the hint, a holder that died long ago does not even keep out who has no time to wait."""
    dead = died(engine, WITH_HINT)
    with Plain.locked("a", wait=0, settings=WITH_HINT) as lock:
        assert lock.ticket > dead


def test_newcomer_without_the_hint_watches_a_lease(engine, report):
    """Without the hint, a newcomer watches a whole lease, however long ago the holder died."""
    dead = died(engine, WITHOUT_HINT, for_long=2 * SKEW)
    with pytest.raises(LockTimeout):
        Plain.locked("a", wait=0, settings=WITHOUT_HINT).acquire()
    started = time.monotonic()
    with Plain.locked("a", settings=WITHOUT_HINT) as lock:
        watched = time.monotonic() - started
        assert lock.ticket > dead
    report(watched)
    assert SILENCE <= watched < FEW_LEASES * LEASE


def test_outsider_is_refused_while_the_holder_lives(engine, monkeypatch):
    """A plain save of an item whose holder renews is refused, also after more than a lease."""
    monkeypatch.setattr(Plain.Meta, "lock_settings", WITH_HINT)
    with crew(engine, 1, Plain) as [worker]:
        taken = worker.call("enter", Plain, "a")
        entered = time.monotonic()
        while time.monotonic() - entered < LEASE + SKEW:
            until_next_beat(Plain, "a", taken.ticket)
        with pytest.raises(ItemLocked) as refused:
            Plain("a", value=7).save()
        assert refused.value.ticket == taken.ticket
        worker.call("leave", "a")
    Plain("a", value=7).save()


def test_outsider_evicts_a_dead_holder(engine, monkeypatch):
    """A plain save gets through once the hint says that the killed holder is dead."""
    monkeypatch.setattr(Plain.Meta, "lock_settings", WITH_HINT)
    dead = died(engine, WITH_HINT)
    with count_requests() as counted:
        Plain("a", value=7).save()
    assert evictions(counted.bodies) == 1
    state = Plain.lock_state("a")
    assert state.entries == ()
    assert state.was_evicted(dead)
    assert Plain.get("a", consistent_read=True).value == 7


def test_outsider_without_the_hint_is_refused(engine, monkeypatch):
    """Without the hint nothing proves to a plain save that the killed holder is dead."""
    monkeypatch.setattr(Plain.Meta, "lock_settings", WITHOUT_HINT)
    dead = died(engine, WITHOUT_HINT, for_long=2 * SKEW)
    with pytest.raises(ItemLocked) as refused:
        Plain("a", value=7).save()
    assert refused.value.ticket == dead
    assert [entry.ticket for entry in Plain.lock_state("a").entries] == [dead]
    assert Plain.get("a", consistent_read=True).value == 0


@both_settings
def test_mass_crash_before_the_survivor_came(engine, settings, report):
    """A holder and 10 waiters died at once: who comes later removes all of them in one request."""
    with crew(engine, 1, Plain) as [worker]:
        worker.call("crowd", Plain, "a", 11, settings=settings)
        until_queued(Plain, "a", 11)
        worker.kill()
    last = Plain.lock_state("a").entries
    for entry in last:
        until_over(Plain, "a", entry.ticket, SKEW)
    started = time.monotonic()
    with count_requests() as counted, Plain.locked("a", settings=settings) as lock:
        waited = time.monotonic() - started
        assert lock.ticket > last[-1].ticket
    report(waited)
    assert evictions(counted.bodies) == 1
    if settings.max_clock_skew is None:
        assert waited >= SILENCE
    assert waited < FEW_LEASES * LEASE
    assert Plain.lock_state("a").entries == ()


@both_settings
def test_mass_crash_in_front_of_the_survivor(engine, settings, report, record_property):
    """10 waiters die at once, behind a holder that leaves: the survivor needs one lease, not ten."""
    with crew(engine, 3, Plain) as [holder, crowd, survivor]:
        holder.call("enter", Plain, "a", settings=settings)
        crowd.call("crowd", Plain, "a", 10, settings=settings)
        until_queued(Plain, "a", 11)
        survivor.start("enter_counting", Plain, "a", settings=settings)
        tickets = until_queued(Plain, "a", 12)
        alive_at = until_next_beat(Plain, "a", tickets[10])
        killed_at = crowd.kill()
        holder.call("leave", "a")
        taken, requests = survivor.result()
        survivor.call("leave", "a")
    assert taken.ticket == tickets[11]
    report(taken.at - killed_at)
    record_property("evict_requests", evictions(requests))
    print(f"{evictions(requests)} request(s) removed 10 dead waiters")  # noqa: T201 - seen with -s
    if settings.max_clock_skew is None:
        assert taken.at - alive_at >= SILENCE
    assert taken.at - killed_at < FEW_LEASES * LEASE
    assert Plain.lock_state("a").entries == ()
