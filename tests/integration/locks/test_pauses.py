"""A process stands still (SIGSTOP) for longer than its lease, and wakes up without knowing it."""

from __future__ import annotations

import random
import time

import pytest

from pynamo_locking import LockSettings
from pynamo_locking.exceptions import LockLost
from tests.integration.locks.conftest import bind
from tests.support.workers import Beside, Plain, Versioned, crew, until_next_beat, until_over, until_queued

pytestmark = [pytest.mark.waits, pytest.mark.processes]

LEASE = 1.5
SETTINGS = LockSettings(lease=LEASE, request_timeout=0.25, poll_interval=0.02)
#: The same, for callers of a process that share an entry.
SHARED = LockSettings(lease=LEASE, request_timeout=0.25, poll_interval=0.02, max_callers_per_entry=32)

all_models = pytest.mark.parametrize("model", [Plain, Versioned, Beside])


@all_models
@pytest.mark.parametrize("heartbeat", [True, False], ids=["heartbeat", "no heartbeat"])
def test_write_of_a_holder_that_was_succeeded(real_engine, model, heartbeat):
    """The write of a holder that woke up after its eviction is refused; the successor's stands."""
    with crew(real_engine, 2, *bind(real_engine, model, "a")) as [paused, successor]:
        old = paused.call("enter", model, "a", settings=SETTINGS, heartbeat=heartbeat)
        assert paused.call("add", "a", 1) == 1
        paused.pause()
        new = successor.call("enter", model, "a", settings=SETTINGS)
        assert new.ticket > old.ticket
        assert successor.call("add", "a", 10) == 11

        # It is waiting in the pipe when the process wakes up. Without a heartbeat nothing but this very
        # write can find out about the eviction.
        paused.start("add", "a", 100)
        paused.resume()
        with pytest.raises(LockLost) as refused:
            paused.result()
        assert (refused.value.reason, refused.value.ticket) == ("evicted", old.ticket)
        assert model.get("a", consistent_read=True).value == 11

        facts = paused.call("wait_for_loss", "a")
        assert facts.reasons == ["evicted"]
        assert facts.lost
        assert not facts.is_held
        with pytest.raises(LockLost):
            paused.call("add", "a", 100)
        with pytest.raises(LockLost):
            paused.call("leave", "a")

        assert [entry.ticket for entry in model.lock_state("a").entries] == [new.ticket]
        assert successor.call("add", "a", 10) == 21
        assert not successor.call("facts", "a").lost
        successor.call("leave", "a")
    assert model.get("a", consistent_read=True).value == 21
    assert model.lock_state("a").entries == ()


@all_models
def test_holder_that_was_not_evicted(real_engine, model):
    """A holder whose lease passed while no other party came goes on as if nothing had happened."""
    with crew(real_engine, 1, *bind(real_engine, model, "a")) as [paused]:
        taken = paused.call("enter", model, "a", settings=SETTINGS)
        paused.pause()
        until_over(model, "a", taken.ticket)
        paused.start("add", "a", 1)
        paused.resume()
        assert paused.result() == 1
        until_next_beat(model, "a", taken.ticket)
        facts = paused.call("facts", "a")
        assert (facts.lost, facts.reasons, facts.is_held) == (False, [], True)
        paused.call("leave", "a")
    assert model.get("a", consistent_read=True).value == 1
    assert model.lock_state("a").entries == ()


@pytest.mark.parametrize("model", [Plain, Beside])
def test_waiter_that_was_passed(real_engine, model):
    """A waiter that woke up after its eviction enters again, behind those who came meanwhile, and is served."""
    with crew(real_engine, 3, *bind(real_engine, model, "a")) as [holder, paused, behind]:
        first = holder.call("enter", model, "a", settings=SETTINGS)
        paused.start("enter", model, "a", settings=SETTINGS)
        evicted = until_queued(model, "a", 2)[1]
        paused.pause()
        behind.start("enter", model, "a", settings=SETTINGS)
        until_queued(model, "a", 3)
        left = until_queued(model, "a", 2)
        assert left[0] == first.ticket
        assert evicted not in left
        assert holder.call("add", "a", 1) == 1

        paused.resume()
        again = until_queued(model, "a", 3)
        assert again[:2] == left
        assert behind.is_waiting()
        holder.call("leave", "a")
        assert behind.result().ticket == left[1]
        assert behind.call("add", "a", 1) == 2
        assert paused.is_waiting()
        behind.call("leave", "a")
        assert paused.result().ticket == again[2]
        assert paused.call("add", "a", 1) == 3
        assert not paused.call("facts", "a").lost
        paused.call("leave", "a")
    assert model.lock_state("a").entries == ()


def test_a_process_is_killed_or_stands_still_in_the_middle_of_a_block(real_engine):
    """The others go on after the lease. In the process that wakes up the holder has lost, and the others get a turn."""
    with crew(real_engine, 3, *bind(real_engine, Plain, "a")) as [killed, paused, others]:
        Plain("b").save()
        tickets, last = dict[str, int](), 0
        for worker, key in ((killed, "a"), (paused, "b")):
            worker.call("line_up", Plain, key, 4, stops_at=1, settings=SHARED)
            worker.call("until_one_stops")  # the first is served, the second holds the lock, two wait
            entries = Plain.lock_state(key).entries
            assert sum(entry.callers for entry in entries) == 3
            tickets[key] = entries[0].ticket
        killed.kill()
        paused.pause()
        for key, ticket in tickets.items():
            others.call("line_up", Plain, key, 3, settings=SHARED)
            served, lost = others.call("line_is_over")
            assert [increment.value for increment in served] == [2, 3, 4]
            assert served[0].ticket > ticket
            assert not lost
            last = served[-1].ticket

        paused.resume()
        late, lost = paused.call("line_is_over")
        assert lost == [tickets["b"]]
        assert [increment.value for increment in late] == [1, 5, 6]
        assert late[1].ticket > last
    assert [Plain.get(key, consistent_read=True).value for key in "ab"] == [4, 6]
    assert [Plain.lock_state(key).entries for key in "ab"] == [(), ()]


@pytest.mark.slow
@pytest.mark.parametrize("model", [Plain, Beside])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "paused"])
@pytest.mark.parametrize("seed", range(4))
def test_a_block_at_any_moment(real_engine, model, is_killed, seed):
    """Whatever the callers of a process were at when it died or stood still, no increment is lost or made twice."""
    chance = random.Random(seed)
    with crew(real_engine, 2, *bind(real_engine, model, "a")) as [victim, others]:
        for worker in (victim, others):
            worker.call("line_up", model, "a", 6, times=10, settings=SHARED)
        time.sleep(chance.random() * 0.5)
        if is_killed:
            victim.kill()
        else:
            victim.pause()
        done, lost = others.call("line_is_over")
        if not is_killed:
            victim.resume()
            more, more_lost = victim.call("line_is_over")
            assert len(more) + len(more_lost) == 60
            done = sorted([*done, *more], key=lambda increment: increment.ticket)
            lost += more_lost
        values = [increment.value for increment in done]
        assert values == sorted(set(values))
        assert not is_killed or (len(values) == 60 and not lost)
        assert len(lost) <= 1
        assert model.get("a", consistent_read=True).value >= values[-1]
        if not is_killed:
            assert model.get("a", consistent_read=True).value in (len(values), len(values) + len(lost))
    assert model.lock_state("a").entries == ()
