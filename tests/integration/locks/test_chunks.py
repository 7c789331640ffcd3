"""Records in lists under a lock: `chunks` and `achunks`."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from pynamo_locking.exceptions import ConfigurationError, LockLost
from pynamo_locking_testing import VirtualClock
from tests.support.models import Locks
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def locks(engine):
    engine.bind(Locks)
    return Locks


@pytest.fixture
def clock(memory):
    memory.bind(Locks)
    with VirtualClock() as clock:
        yield clock


def test_seed_003_tuning_a_lock_that_is_renewed_every_n_records(locks):
    """Seed 003, "performance tuning": "extend the lock after every ten records, or each group of work"."""
    with locks.locked("import", heartbeat=False) as lock, count_requests() as counted:
        done = []
        for chunk in lock.chunks(range(25), every=10):
            done.append(len(chunk))
            assert counted.total == len(done) - 1
        renewals = locks.lock_state("import").holders[0].heartbeats

    assert done == [10, 10, 5]
    assert renewals == 3
    assert counted.by_operation == {"UpdateItem": 3, "GetItem": 1}  # the renewals, and the look of this test


def test_records_are_read_when_they_are_needed(locks):
    """A generator without an end is as good as a list, and one that is left early has read no more."""
    records = iter(range(10**9))
    with locks.locked("import") as lock:
        for chunk in lock.chunks(records, every=3):
            if chunk[-1] == 5:
                break
        assert list(lock.chunks([], every=3)) == []
    assert next(records) == 6


def test_a_lost_lock_ends_the_work_before_the_next_list(locks):
    """An operator broke it while the first list was worked on."""
    done = []
    with pytest.raises(LockLost, match="no longer in the queue"), locks.locked("import") as lock:
        for chunk in lock.chunks(range(10), every=4):
            done.append(chunk)
            locks.break_lock("import", ticket=lock.ticket)
    assert done == [[0, 1, 2, 3]]


def test_the_last_list_is_no_exception(locks):
    with pytest.raises(LockLost), locks.locked("import") as lock:
        for _ in lock.chunks(range(4), every=4):
            locks.break_lock("import", ticket=lock.ticket)


def test_a_list_is_handed_out_when_so_much_of_the_lease_is_used(clock):
    """Records that come slowly make short lists: less than what has to remain is left after so many of them."""

    def slow() -> Iterator[int]:
        for number in range(10):
            clock.sleep(9)
            yield number

    with Locks.locked("import", lease=60, heartbeat=False) as lock:
        thirds = [(chunk, lock.remaining > 59) for chunk in lock.chunks(slow(), every=100)]
    with Locks.locked("import", lease=60, heartbeat=False) as lock:
        halves = [len(chunk) for chunk in lock.chunks(slow(), every=100, remaining=30)]

    assert thirds == [([0, 1, 2], True), ([3, 4, 5], True), ([6, 7, 8], True), ([9], False)]
    assert halves == [4, 4, 2]


def test_slow_work_does_not_make_short_lists(clock):
    """The lease is renewed before more records are read."""
    with Locks.locked("import", lease=60, heartbeat=False) as lock:
        done = []
        for chunk in lock.chunks(range(9), every=3):
            clock.sleep(50)
            done.append(chunk)
    assert [len(chunk) for chunk in done] == [3, 3, 3]


@pytest.mark.parametrize("every", [0, -1, True, 2.0, None])
def test_a_list_has_a_whole_number_of_records(clock, every):
    with Locks.locked("import") as lock:
        with pytest.raises(ConfigurationError, match="every must be a whole number above 0, got"):
            lock.chunks([], every)
        with pytest.raises(ConfigurationError, match=r"remaining \(60 s\) must be less than the lease \(60 s\)"):
            lock.chunks([], 1, remaining=60)


def test_a_lock_that_is_not_held_has_no_chunks(clock):
    """It is refused by the call, not by the first list."""
    lock = Locks.locked("import")
    for method in (lock.chunks, lock.achunks):
        with pytest.raises(ConfigurationError, match="is not held by this Lock object"):
            method([1], 1)


async def test_tasks(locks):
    """Records of both kinds of iterables; a loss ends it as it does for threads."""
    numbers = range(5)

    async def awaited() -> AsyncIterator[int]:
        for number in numbers:
            await asyncio.sleep(0)
            yield number

    with pytest.raises(LockLost):
        async with locks.locked("import") as lock:
            for records in (numbers, awaited()):
                assert [chunk async for chunk in lock.achunks(records, every=2)] == [[0, 1], [2, 3], [4]]
            hint = re.escape("use `async for chunk in lock.achunks(...)`")
            with pytest.raises(ConfigurationError, match=hint):
                lock.chunks(numbers, 2)
            assert locks.lock_state("import").holders[0].heartbeats == 6
            async for _ in lock.achunks(numbers, every=2):
                locks.break_lock("import", ticket=lock.ticket)
