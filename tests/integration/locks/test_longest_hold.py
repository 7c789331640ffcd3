"""A holder that hangs while its heartbeat lives lets go: `max_hold`."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import LockSettings, events, locked_all
from pynamo_locking.exceptions import ConfigurationError, LockLost
from pynamo_locking_testing import VirtualClock, lose_lock
from tests.support import runtime
from tests.support.models import APART, Account, Device, Locks
from tests.support.parties import SLOW_CLOCK, in_thread
from tests.support.workers import until_queued

if TYPE_CHECKING:
    from collections.abc import Iterator


LEASE = 12.0


@pytest.fixture
def clock(memory):
    memory.bind(Locks, Account, Device)
    Account("a", balance=1).save()
    with VirtualClock() as clock:
        yield clock


@contextmanager
def held_under_terms(clock: VirtualClock, **terms: Any) -> Iterator[tuple[Any, list[tuple[str, float]], list[float]]]:
    """Hold "job", for which another process waits; yield the lock, what its holder hears, and when the other has it.

    The other's thread is one of the runtime: virtual time does not go on without it, however busy the machine is.
    """
    heard, granted, is_over = list[tuple[str, float]](), list[float](), runtime.event()

    def wait() -> None:
        with Locks.locked("job", wait=math.inf, settings=APART):
            granted.append(clock.elapsed)
        is_over.set()

    def on_lost(reason: str) -> None:
        heard.append((reason, clock.elapsed))

    lock = Locks.locked("job", lease=LEASE, settings=APART, on_lost=on_lost, **terms).acquire()
    runtime.spawn(wait, "waiter")
    yield lock, heard, granted
    assert is_over.wait(60)
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.slow
def test_a_lock_is_held_for_so_long_at_most(clock, caplog):
    """The holder hears of it while most of its lease is left; another party is let in when that has ended."""
    emitted: list[events.Event] = []
    with (
        events.subscribe(emitted.append, events.Lost),
        held_under_terms(clock, max_hold=timedelta(seconds=50)) as (lock, heard, granted),
    ):
        clock.sleep(49)
        assert lock.is_held
        clock.sleep(2)
        assert not lock.is_held
        assert lock.lost.is_set()
        for refused in (lock.renew, lambda: lock.ensure_remaining(1)):
            with pytest.raises(LockLost, match="was held for max_hold") as lost:
                refused()
            assert lost.value.reason == "max_hold"
        clock.sleep(20)

    assert heard == [("max_hold", pytest.approx(50, abs=0.1))]
    [at] = granted
    # The last renewal was a third of a lease before the end, at most.
    assert 50 + LEASE * 2 / 3 <= at <= 50 + LEASE * SLOW_CLOCK + 1
    assert [getattr(event, "reason", "") for event in emitted] == ["max_hold"]
    assert "max_hold" in caplog.text


def test_the_release_after_it_lets_the_next_one_in(clock):
    """The entry is removed, although the lock counts as lost; the holder hears of the loss."""
    with pytest.raises(LockLost, match="max_hold"), Locks.locked("job", lease=LEASE, max_hold=30, settings=APART):
        clock.sleep(31)
        assert Locks.lock_state("job").holders
    assert not Locks.lock_state("job").holders


@pytest.mark.parametrize("heartbeat", [True, False])
def test_guarded_writes_are_refused_after_it(clock, heartbeat):
    """Also without a heartbeat, where the caller renews."""
    with pytest.raises(LockLost), Account.locked("a", lease=LEASE, max_hold=13, heartbeat=heartbeat) as lock:
        clock.sleep(11)
        lock.renew()
        lock.item.balance = 2
        lock.item.save()
        clock.sleep(3)
        assert not lock.is_held
        lock.item.balance = 3
        with pytest.raises(LockLost, match="max_hold"):
            lock.item.save()
        with pytest.raises(LockLost, match="max_hold"):
            lock.renew()
    assert Account.get("a").balance == 2
    assert not Account.lock_state("a").holders


def test_an_edit_that_took_too_long_saves_nothing(clock):
    with pytest.raises(LockLost), Account.edit("a", lease=LEASE, max_hold=LEASE) as account:
        account.balance = 5
        clock.sleep(13)
    assert Account.get("a").balance == 1
    assert not Account.lock_state("a").holders


def test_a_lock_inside_a_lock_ends_with_it(clock):
    """It counts from the one grant there was; the outer block's limit holds for all."""
    with pytest.raises(LockLost), Locks.locked("job", lease=LEASE, max_hold=30):
        clock.sleep(25)
        with Locks.locked("job", lease=LEASE, max_hold=1000) as inner:
            clock.sleep(4)
            assert inner.is_held
            clock.sleep(2)
            with pytest.raises(LockLost), Locks.locked("job"):
                raise AssertionError
    assert not Locks.lock_state("job").entries


def test_the_next_caller_of_this_process(clock):
    """Who waits in the same process gets its turn after the lease, as others do."""
    holder, found = Locks.locked("job", lease=LEASE, max_hold=20).acquire(), list[tuple[int, float]]()

    def wait() -> None:
        with Locks.locked("job", lease=LEASE, wait=math.inf) as lock:
            found.append((lock.ticket, clock.elapsed))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    clock.sleep(60)
    for thread in threads:
        thread.join()
    assert [ticket for ticket, _ in found] == sorted({ticket for ticket, _ in found})
    assert found[0][0] > holder.ticket
    assert found[0][1] >= 20 + LEASE * 2 / 3
    with pytest.raises(LockLost):
        holder.release()
    assert not Locks.lock_state("job").entries


def test_it_counts_from_the_grant(clock):
    """Work that waited for long has its whole time from then on, although its entry was renewed before."""
    found, is_over = list[bool](), runtime.event()

    def wait() -> None:
        with Locks.locked("job", lease=LEASE, max_hold=LEASE, settings=APART) as lock:
            clock.sleep(LEASE * 0.96)
            found.append(lock.is_held)
        is_over.set()

    with Locks.locked("job", settings=APART):
        runtime.spawn(wait, "waiter")
        clock.sleep(LEASE * 1.25)  # renewals are due after each third
    assert is_over.wait(60)
    assert found == [True]


def test_several_ranges_together(clock):
    """They are one entry, which is renewed if one of them is to be, and the shortest of their holds ends all."""
    locks = (
        Locks.locked_range("job", 0, 10, lease=LEASE),
        Locks.locked_range("job", 20, 30, lease=LEASE, heartbeat=False, max_hold=40),
    )
    with pytest.raises(LockLost, match="max_hold"), locked_all(*locks) as [first, second]:
        clock.sleep(35)
        assert second.is_held
        clock.sleep(6)
        first.renew()


@pytest.mark.slow
def test_a_lock_that_is_lost_while_the_others_are_waited_for(clock):
    """The block is not entered with it, and nothing is held."""

    def enter() -> None:
        first = Locks.locked("a", lease=LEASE, max_hold=13, settings=APART)
        with locked_all(first, Locks.locked("b", settings=APART)):
            assert first.is_held

    enter()
    in_thread(Locks.locked("b", lease=30, heartbeat=False, settings=APART).acquire)  # dies
    with pytest.raises(LockLost) as lost:
        enter()
    assert lost.value.reason == "max_hold"
    assert not Locks.lock_state("a").entries


async def test_a_task_whose_first_lock_is_lost_while_it_waits_for_the_second(memory):
    """The same for tasks."""
    memory.bind(Locks)

    async def enter() -> None:
        async with locked_all(Locks.locked("a"), Locks.locked("b")):
            raise AssertionError

    async with Locks.locked("b"):
        entering = asyncio.create_task(enter())
        await asyncio.to_thread(until_queued, Locks, "a", 1)
        await asyncio.to_thread(lose_lock, Locks, "a")
    with pytest.raises(LockLost):
        await entering
    assert not Locks.lock_state("a").entries


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_hold": 59}, r"max_hold \(59 s\) is shorter than the lease \(60 s\)"),
        ({"max_hold": -1}, "max_hold must not be negative"),
        ({"max_hold": "1h"}, "max_hold must be seconds"),
        ({"heartbeat": "work"}, "heartbeat must be True or False, not 'work'. For work that may hang: max_hold"),
    ],
)
def test_options_that_cannot_work(options, message):
    """They are refused before any request, as an argument and in the settings."""
    for make in (lambda **given: Locks.locked("job", **given), LockSettings):
        with pytest.raises(ConfigurationError, match=message):
            make(**options)


def test_settings_hold_unless_an_argument_says_otherwise(clock):
    settings = LockSettings(max_hold=timedelta(minutes=2))
    assert settings.max_hold == 120
    assert LockSettings().max_hold == math.inf
    with Locks.locked("job", settings=settings, max_hold=math.inf) as lock:
        clock.sleep(300)
        assert lock.is_held

    def hang() -> None:
        with pytest.raises(LockLost, match="max_hold"), Locks.locked("job", settings=settings):
            clock.sleep(121)

    in_thread(hang)
