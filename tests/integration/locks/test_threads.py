"""Threads of one process: they hear of each other's releases, and always tidy up behind themselves."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import LockSettings
from pynamo_locking._io import lock_requests
from pynamo_locking._io.wakeups import Mailbox
from pynamo_locking._locks import heartbeat
from pynamo_locking.exceptions import LockTimeout
from tests.support.wire import count_requests
from tests.support.workers import PATIENCE, Beside, Locks, Plain, Versioned, crew, until, until_in_line, until_queued

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.alone

#: No thread that waits for a look of its own gets through in time.
LAZY = LockSettings(
    lease=100, wait=100, min_poll_interval=50, poll_interval=50, max_poll_interval=50, request_timeout=10
)
#: The same with an entry for each caller, so that a thread stands for another process.
APART = replace(LAZY, max_callers_per_entry=1)

THREADS = 32


@pytest.fixture
def idle_at_once(monkeypatch):
    """Heartbeat threads leave soon after they ran out of work."""
    monkeypatch.setattr(heartbeat, "_IDLE_S", 0.1)


def heartbeat_threads() -> int:
    return sum(thread.name == "pynamo-locking-heartbeat" for thread in threading.enumerate())


def in_threads(count: int, work: Callable[[], Any]) -> list[Any]:
    """``work()`` in so many threads that start together; the results."""
    barrier = threading.Barrier(count)

    def start() -> Any:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(start) for _ in range(count)]]


@pytest.mark.parametrize("model", [Plain, Versioned, Beside])
def test_threads_take_turns(dynoxide, model):
    """32 threads increment one item 5 times each: the sum is 160, in ticket order."""
    dynoxide.bind(*([Locks, Beside] if model is Beside else [model]))
    model("a").save()

    def work() -> list[tuple[int, int]]:
        done = []
        for _ in range(5):
            edit = model.edit("a", settings=LockSettings(request_timeout=5))
            with edit as item:
                item.value += 1
            done.append((edit.lock.ticket, item.value))
        return done

    served = sorted(itertools.chain.from_iterable(in_threads(THREADS, work)))
    assert [value for _, value in served] == list(range(1, THREADS * 5 + 1))
    assert model.get("a", consistent_read=True).value == THREADS * 5
    assert model.lock_state("a").entries == ()


def test_a_release_wakes_the_next_thread(plain_item):
    """No thread polls in time, and yet all get through, with fewer reads than there were turns to wait for."""

    def work() -> None:
        for _ in range(5):
            with Plain.edit("a", settings=LAZY) as item:
                item.value += 1

    with count_requests() as counted:
        in_threads(THREADS, work)
    assert Plain.get("a", consistent_read=True).value == THREADS * 5
    # Polling takes at least one read for each of those who waited; the release brings the image along.
    assert counted.by_operation["GetItem"] < THREADS * 5


def test_handoff_makes_no_read(plain_item):
    """Once all are in the queue, each turn costs one write to leave and nothing else."""

    def work() -> None:
        with Plain.edit("a", settings=APART) as item:
            item.value += 1

    with ThreadPoolExecutor(THREADS) as pool, Plain.locked("a", settings=APART) as lock:
        futures = [pool.submit(work) for _ in range(THREADS)]
        until_queued(Plain, "a", THREADS + 1)
        with count_requests() as counted:
            lock.release()
            for future in futures:
                future.result()
            lock.acquire()
    writes = 1 + THREADS + 1
    assert counted.by_operation == {"UpdateItem": writes}
    assert Plain.get("a", consistent_read=True).value == THREADS


def test_release_wakes_the_first_of_the_queue(dynoxide, monkeypatch):
    """Who is next in DynamoDB's queue is woken, even if another thread began to wait earlier."""
    dynoxide.bind(Locks, Beside)
    Beside("a").save()
    deaf = LockSettings(
        lease=100,
        wait=20,
        min_poll_interval=1000,
        poll_interval=1000,
        max_poll_interval=1000,
        request_timeout=10,
        max_callers_per_entry=1,
    )
    enter, is_late, go_on = lock_requests.enter, threading.Event(), threading.Event()

    def delayed(row: Any, new: Any, capacity: int) -> Any:
        if new.owner == "late":
            is_late.set()
            assert go_on.wait(PATIENCE)
        return enter(row, new, capacity)

    def work(owner: str) -> int:
        with Beside.edit("a", settings=deaf, owner=owner) as item:
            item.value += 1
        return item.value

    monkeypatch.setattr(lock_requests, "enter", delayed)
    with ThreadPoolExecutor(2) as pool:
        with Beside.edit("a", settings=deaf, owner="holder"):
            late = pool.submit(work, "late")
            assert is_late.wait(PATIENCE)
            early = pool.submit(work, "early")
            until_queued(Beside, "a", 2)
            go_on.set()
            until_queued(Beside, "a", 3)
        assert (early.result(), late.result()) == (1, 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError])
def test_exception_while_waiting(plain_item, monkeypatch, error):
    """Whatever is raised in a thread that waits, its entry leaves the queue with it."""

    def raising(mailbox: Mailbox, timeout: float) -> None:
        assert len(Plain.lock_state("a").entries) == 2
        raise error("while waiting")

    def wait() -> None:
        with pytest.raises(error, match="while waiting"):
            Plain.locked("a").acquire()

    monkeypatch.setattr(Mailbox, "wait", raising)
    with Plain.locked("a", settings=APART) as lock:
        in_threads(1, wait)
        assert [entry.ticket for entry in Plain.lock_state("a").entries] == [lock.ticket]


@pytest.mark.processes
def test_ctrl_c_while_waiting(dynoxide, plain_item):
    """A process that is interrupted (SIGINT) while it waits leaves no entry, and can go on."""
    with crew(dynoxide, 1, Plain) as [worker]:
        with Plain.locked("a") as lock:
            worker.start("enter", Plain, "a", settings=LAZY)
            until_queued(Plain, "a", 2)
            worker.interrupt()
            assert isinstance(worker.failure(), KeyboardInterrupt)
            assert [entry.ticket for entry in Plain.lock_state("a").entries] == [lock.ticket]
        worker.call("enter", Plain, "a")
        assert worker.call("add", "a") == 1
        worker.call("leave", "a")


def test_timeout_leaves_no_entry(plain_item):
    """Threads that run out of time are gone from the queue, and those behind them are served."""

    def too_short() -> LockTimeout:
        with pytest.raises(LockTimeout) as late:
            Plain.locked("a", wait=1).acquire()  # long enough for an answer, which says who holds the lock
        return late.value

    with Plain.locked("a", settings=APART) as lock:
        errors = in_threads(8, too_short)
        assert [entry.ticket for entry in Plain.lock_state("a").entries] == [lock.ticket]
        seen = [error.queue for error in errors if error.queue]  # who leads the line in the last moment has not looked
        assert {queue.holders[0].ticket for queue in seen} == {lock.ticket}
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(too_short)
            until_queued(Plain, "a", 2)
            second = pool.submit(lambda: Plain.locked("a").acquire().release())
            first.result()
            until_queued(Plain, "a", 2)
            lock.release()
            second.result()
            lock.acquire()


def test_two_hundred_threads_wait(plain_item, idle_at_once):
    """200 waiting threads need no heartbeat threads, and nothing is left of them."""
    settings = LockSettings(max_poll_interval=10, request_timeout=10)
    started_with = threading.active_count()
    stop = threading.Event()

    class StopError(Exception):
        pass

    def wait() -> None:
        with pytest.raises(StopError):
            Plain.locked("a", settings=settings).acquire()

    original = Mailbox.wait

    def wait_for_stop(mailbox: Mailbox, timeout: float) -> Any:
        if stop.wait(timeout):
            raise StopError
        return original(mailbox, 0)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(200) as pool:
        patch.setattr(Mailbox, "wait", wait_for_stop)
        with Plain.locked("a", lease=90, settings=settings):
            futures = [pool.submit(wait) for _ in range(200)]
            try:
                until_in_line(Plain, "a", 200)
                assert 1 <= heartbeat_threads() <= heartbeat.MAX_THREADS
            finally:
                stop.set()
            for future in futures:
                future.result()
            assert len(Plain.lock_state("a").entries) == 1
    until(lambda: threading.active_count() <= started_with, "the threads to end")


def test_two_hundred_locks_are_renewed(dynoxide, idle_at_once):
    """The heartbeat of 200 locks keeps all of them, with few threads, which leave when they are released."""
    dynoxide.bind(Plain)
    names = [f"item-{i}" for i in range(200)]
    with Plain.batch_write(unguarded=True) as batch:
        for name in names:
            batch.save(Plain(name))
    started_with = threading.active_count()
    settings = LockSettings(lease=12, request_timeout=2)
    locks = [Plain.locked(name, settings=settings).acquire() for name in names]
    most = 0

    def all_renewed() -> bool:
        nonlocal most
        most = max(most, heartbeat_threads())
        return all(item.lock.holders[0].heartbeats >= 1 for item in Plain.scan(consistent_read=True))

    until(all_renewed)
    assert 1 <= most <= heartbeat.MAX_THREADS
    assert not any(lock.lost.is_set() for lock in locks)
    for lock in locks:
        lock.release()
    assert all(item.lock.entries == () for item in Plain.scan(consistent_read=True))
    until(lambda: threading.active_count() <= started_with, "the threads to end")
