"""Since when an entry waits, or holds the lock."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from pynamo_locking import events
from pynamo_locking.exceptions import LockTimeout
from pynamo_locking_testing import VirtualClock
from tests.support import runtime
from tests.support.models import APART, Account, Locks
from tests.support.parties import held_elsewhere, in_thread, shifted_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking import LockSettings


@pytest.fixture
def clock(memory):
    memory.bind(Account, Locks)
    Account("a").save()
    with VirtualClock() as clock:
        yield clock


def test_seed_000_created_at_of_a_queued_lock_row(engine):
    """Seed 000, "creating queued lock row": `createdAt` and `expiresAt`, for a holder and for a waiter."""
    engine.bind(Locks)
    with shifted_clock() as clock, Locks.locked("job", heartbeat=False, settings=APART) as lock:
        began_ms = runtime.time_ms()
        clock.shift += 300
        with held_elsewhere(Locks.locked("beside", heartbeat=False)):
            pass  # another lock has a queue of its own
        (holder,) = Locks.lock_state("job").holders
        assert 299 <= holder.queued_for <= 330
        assert holder.queued_for == pytest.approx(holder.held_for, abs=0.01)
        assert holder.entered_ms <= began_ms
        assert holder.until_ms == holder.entered_ms + 60_000
        lock.renew()
        (renewed,) = Locks.lock_state("job").holders
        assert renewed.entered_ms == holder.entered_ms
        assert renewed.until_ms >= holder.until_ms + 299_000
        assert renewed.granted_ms is not None
        assert 0 <= renewed.granted_ms - renewed.entered_ms < 30_000


@contextlib.contextmanager
def waiting(clock: VirtualClock, settings: LockSettings | None = None) -> Iterator[None]:
    """Let another thread wait for the lock, and hold it for 90 s.

    It is one of the runtime: virtual time does not go on without it, however busy the machine is.
    """
    is_over = runtime.event()

    def wait() -> None:
        with Account.locked("a", owner="second", wait=10_000, settings=settings):
            clock.sleep(90)
        is_over.set()

    runtime.spawn(wait, "waiter")
    yield
    assert is_over.wait(600)


def test_a_waiter_becomes_the_holder(clock):
    """What it has held is exact from its first renewal under the lock on; before, at most a third of the lease more."""
    first, began = Account.locked("a", owner="first", settings=APART).acquire(), clock.elapsed
    clock.sleep(100)
    with waiting(clock, APART):
        until_entries(clock, 2)
        entered = clock.elapsed
        clock.sleep(30)
        state, now = Account.lock_state("a"), clock.elapsed
        (holder,), (waiter,) = state.holders, state.waiters
        assert (holder.held_for, holder.queued_for) == pytest.approx((now - began, now - began), abs=1)
        assert (waiter.queued_for, waiter.granted_ms) == (pytest.approx(now - entered, abs=1), None)

        first.release()
        until_entries(clock, 1)
        granted = clock.elapsed
        (fresh,) = Account.lock_state("a").holders
        assert fresh.queued_for == pytest.approx(granted - entered, abs=1)
        assert 0 <= fresh.held_for <= 22
        clock.sleep(45)
        (holder,), now = Account.lock_state("a").holders, clock.elapsed
        assert holder.held_for == pytest.approx(now - granted, abs=3)
        assert holder.queued_for == pytest.approx(now - entered, abs=1)


def until_entries(clock: VirtualClock, count: int) -> None:
    for _ in range(100_000):
        if len(Account.lock_state("a").entries) == count:
            return
        clock.sleep(0.01)
    raise AssertionError("it did not enter")


def test_an_entry_of_a_block_counts_from_its_hand_over(clock):
    """The next caller of the process holds the lock from the write on that stores its entry."""
    first = Account.locked("a", owner="first").acquire()
    with waiting(clock):
        clock.sleep(50)
        first.release()
        clock.sleep(5)
        (holder,) = Account.lock_state("a").holders
        assert holder.owner == "second"
        assert (holder.held_for, holder.queued_for) == pytest.approx((5, 5), abs=1)


def test_a_timeout_says_for_how_long(clock):
    """In words, and in its queue."""
    with held_elsewhere(Account.locked("a", owner="first", settings=APART)):
        clock.sleep(42)
        with pytest.raises(LockTimeout, match=r"held by first \(ticket \d+\) for 4[23] s\. Nothing is held") as caught:
            Account.locked("a", wait=0).acquire()
    assert caught.value.queue is not None
    assert caught.value.queue.holders[0].held_for == pytest.approx(42, abs=1)


def test_seed_003_when_a_lock_ends_can_be_read(engine):
    """Seed 003, "items of the lock table": the time when the lock ends, as text that people read in a console.

    An entry, a renewal and a hand-over set it. It stays behind in an idle row, where it is over soon.
    """
    engine.bind(Locks)
    with shifted_clock() as clock:
        with Locks.locked("job", lease=30, heartbeat=False) as lock:
            first = ends_at()
            # The clock is asked for the entry first, and then for the text.
            assert 0 <= first - Locks.lock_state("job").holders[0].until_ms < 1000
            clock.shift += 20
            lock.renew()
            assert ends_at() >= first + 19_000
        assert ends_at() > runtime.time_ms()
        clock.shift += 40
        assert ends_at() < runtime.time_ms()
        Locks.get("job").save()
        assert "lease_ends" in row()


def ends_at() -> int:
    return round(datetime.fromisoformat(row()["lease_ends"]["S"].replace("Z", "+00:00")).timestamp() * 1000)


def row() -> dict[str, dict[str, str]]:
    return Locks._get_connection().get_item("job")["Item"]


@pytest.mark.parametrize("heartbeat", [True, False])
def test_a_caller_of_the_same_process_is_told_for_how_long_it_is_held(clock, heartbeat):
    """It has made no request of its own, and what the holder saw when it came is old."""
    told: list[events.Event] = []
    with (
        Account.locked("a", owner="first", lease=60, heartbeat=heartbeat),
        events.subscribe(told.append, (events.Waiting, events.TimedOut)),
    ):
        clock.sleep(50)
        with pytest.raises(LockTimeout, match=r"held by first \(ticket \d+\) for 55 s") as timeout:
            in_thread(Account.locked("a", wait=5).acquire)
    assert [getattr(event, "holder_held_ms", None) for event in told] == [
        pytest.approx(50_000, abs=100),
        pytest.approx(55_000, abs=100),
    ]
    assert timeout.value.queue is not None
    [holder] = timeout.value.queue.holders
    assert holder.held_for == pytest.approx(55, abs=0.1)
    assert holder.age == pytest.approx(15 if heartbeat else 55, abs=0.1)  # renewals are due after each 20 s
