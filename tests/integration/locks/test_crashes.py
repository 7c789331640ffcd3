"""Processes are killed (SIGKILL) in the queue: everybody else gets the lock, in the order of tickets."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import ItemLocked
from tests.support.parties import SLOW_CLOCK
from tests.support.wire import count_requests
from tests.support.workers import Plain, Taken, crew, until_next_beat, until_over, until_queued

pytestmark = [pytest.mark.waits, pytest.mark.processes]

#: Long enough that a busy machine does not make the living look dead: a waiter that was evicted would come back as the
#: last one, and the test would wait for it while the next one holds the lock.
LEASE = 4.8
#: The silence after which an entry is dead: the lease and the margin for clocks that run unevenly.
SILENCE = LEASE * SLOW_CLOCK
SKEW = 0.1
WITH_HINT = LockSettings(lease=LEASE, request_timeout=0.4, poll_interval=0.02, max_clock_skew=SKEW)
WITHOUT_HINT = LockSettings(lease=LEASE, request_timeout=0.4, poll_interval=0.02, max_clock_skew=None)
both_settings = pytest.mark.parametrize("settings", [WITH_HINT, WITHOUT_HINT], ids=["hint", "no hint"])


@pytest.fixture
def engine(real_engine):
    """The engine, with one item."""
    real_engine.bind(Plain)
    Plain("a").save()
    return real_engine


def evictions(bodies: list[tuple[str, Any]]) -> int:
    """How many of the requests removed dead entries."""
    return sum(":b0" in body.get("ExpressionAttributeValues", {}) for _, body in bodies)


@both_settings
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["holder", "first waiter", "middle waiter"])
def test_one_of_five_is_killed(engine, victim, settings):
    """The four survivors get the lock in ticket order, a few leases later, and leave an empty queue."""
    with crew(engine, 5, Plain) as workers:
        for count, worker in enumerate(workers, 1):
            worker.start("enter", Plain, "a", settings=settings)
            tickets = until_queued(Plain, "a", count)
        alive_at = until_next_beat(Plain, "a", tickets[victim])
        workers[victim].kill()

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
    if settings.max_clock_skew is None:
        assert taken[victim].at - alive_at >= SILENCE


def test_outsider_is_refused_while_the_holder_lives(engine, monkeypatch):
    """A plain save of an item whose holder renews is refused, also after more than a lease; then it gets through."""
    monkeypatch.setattr(Plain.Meta, "lock_settings", WITH_HINT)
    with crew(engine, 1, Plain) as [worker]:
        taken = worker.call("enter", Plain, "a")
        entered = time.monotonic()
        while time.monotonic() - entered < LEASE + SKEW:
            until_next_beat(Plain, "a", taken.ticket)
        with pytest.raises(ItemLocked) as refused:
            Plain("a", value=7).save(add_version_condition=False)
        assert refused.value.ticket == taken.ticket
        worker.kill()
    until_over(Plain, "a", taken.ticket, SKEW)
    with count_requests() as counted:
        Plain("a", value=7).save(add_version_condition=False)
    assert evictions(counted.bodies) == 1
    state = Plain.lock_state("a")
    assert state.entries == ()
    assert state.was_evicted(taken.ticket)


@both_settings
def test_mass_crash_in_front_of_the_survivor(engine, settings):
    """10 waiters die at once, behind a holder that leaves: all of them are evicted, and the survivor is next.

    How many requests that takes depends on when each was last renewed; test_modes has it in virtual time.
    """
    with crew(engine, 3, Plain) as [holder, crowd, survivor]:
        holder.call("enter", Plain, "a", settings=settings)
        crowd.call("crowd", Plain, "a", 10, settings=settings)
        until_queued(Plain, "a", 11)
        survivor.start("enter_counting", Plain, "a", settings=settings)
        tickets = until_queued(Plain, "a", 12)
        alive_at = until_next_beat(Plain, "a", tickets[10])
        crowd.kill()
        holder.call("leave", "a")
        taken, requests = survivor.result()
        survivor.call("leave", "a")
    assert taken.ticket == tickets[11]
    assert 1 <= evictions(requests) <= 10
    if settings.max_clock_skew is None:
        assert taken.at - alive_at >= SILENCE
    assert Plain.lock_state("a").entries == ()
