"""Threads of one process: they hear of each other's releases, and always tidy up behind themselves."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import LockSettings
from pynamo_locking._locks import lock as lock_module
from pynamo_locking.exceptions import LockTimeout
from pynamo_locking_testing import VirtualClock
from tests.integration.locks.conftest import bind
from tests.support import runtime
from tests.support.parties import in_thread
from tests.support.wire import count_requests, on
from tests.support.workers import Beside, Plain, Versioned, crew, until, until_in_line, until_queued

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


#: No thread that waits for a look of its own gets through in time.
LAZY = LockSettings(
    lease=100, wait=100, min_poll_interval=50, poll_interval=50, max_poll_interval=50, request_timeout=10
)
#: The same with an entry for each caller, so that a thread stands for another process.
APART = replace(LAZY, max_callers_per_entry=1)

THREADS = 8


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
def test_threads_take_turns(concurrent_engine, model):
    """8 threads increment one item 5 times each: the sum is 40, in ticket order. No thread polls in time."""
    bind(concurrent_engine, model, "a")

    def work() -> list[tuple[int, int]]:
        done = []
        for _ in range(5):
            edit = model.edit("a", settings=LAZY)
            with edit as item:
                item.value += 1
            done.append((edit.lock.ticket, item.value))
        return done

    served = sorted(itertools.chain.from_iterable(in_threads(THREADS, work)))
    assert [value for _, value in served] == list(range(1, THREADS * 5 + 1))
    assert model.get("a", consistent_read=True).value == THREADS * 5
    assert model.lock_state("a").entries == ()


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
    assert counted.by_operation == {"UpdateItem": 1 + THREADS + 1}
    assert Plain.get("a", consistent_read=True).value == THREADS


@pytest.mark.parametrize("model", [Beside])
def test_release_wakes_the_first_of_the_queue(memory, model):
    """Who is next in DynamoDB's queue is woken, even if another thread began to wait earlier."""
    bind(memory, model, "a")
    is_late, go_on = threading.Event(), threading.Event()

    def come_late() -> None:
        is_late.set()
        go_on.wait()

    def work(owner: str) -> int:
        with model.edit("a", settings=APART, owner=owner) as item:
            item.value += 1
        return item.value

    with ThreadPoolExecutor(2) as pool, on("UpdateItem", where=lambda body: "'late'" in str(body)).before(come_late):
        with model.edit("a", settings=APART, owner="holder"):
            late = pool.submit(work, "late")
            is_late.wait()
            early = pool.submit(work, "early")
            until_queued(model, "a", 2)
            go_on.set()
            until_queued(model, "a", 3)
        assert (early.result(), late.result()) == (1, 2)


def with_another_thread_at_line(number: int, act: Callable[[], Any], other: Callable[[], Any]) -> bool:
    """Call `act`, and `other` in a thread at that line of it in `lock.py`; return whether it has so many.

    Without the GIL a thread switch may come there. Who waits for a mutex of the thread that has stopped goes on after.
    """
    left = [number]
    thread = threading.Thread(target=other)

    def at_each_line(_frame: FrameType, event: str, _argument: object) -> Any:
        left[0] -= event == "line"
        if not left[0] and thread.ident is None:
            thread.start()
            thread.join(0.1)
        return at_each_line

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        return at_each_line if frame.f_code.co_filename == lock_module.__file__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        act()
    finally:
        sys.settrace(before)
    if thread.ident is None:
        return False
    thread.join()
    return True


def test_a_thread_acquires_again_what_another_one_releases(plain_item):
    """Whichever comes first: it holds the lock afterwards, by the entry that was there or by a new one."""
    for number in itertools.count(1):
        first, again = Plain.locked("a"), Plain.locked("a")
        first.acquire()
        if not with_another_thread_at_line(number, again.acquire, first.release):
            break
        assert again.is_held
        assert [entry.ticket for entry in Plain.lock_state("a").entries] == [again.ticket]
        again.release()
        assert Plain.lock_state("a").entries == ()
    assert number > 20
    again.release()
    first.release()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError])
def test_exception_while_waiting(plain_item, error):
    """Whatever is raised in a thread that waits, its entry leaves the queue with it."""

    def raising(condition: threading.Condition, timeout: float | None) -> bool:
        if threading.current_thread().name.startswith("pynamo-locking"):
            return bool(condition.wait(timeout))
        assert len(Plain.lock_state("a").entries) == 2
        raise error("while waiting")

    def wait() -> None:
        with pytest.raises(error, match="while waiting"):
            Plain.locked("a").acquire()

    with Plain.locked("a", settings=APART) as lock:
        with runtime.changed(wait=raising):
            in_threads(1, wait)
        assert [entry.ticket for entry in Plain.lock_state("a").entries] == [lock.ticket]


@pytest.mark.processes
def test_ctrl_c_while_waiting(dynoxide):
    """A process that is interrupted (SIGINT) while it waits leaves no entry, and can go on."""
    bind(dynoxide, Plain, "a")
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


def test_many_threads_wait_and_many_locks_are_renewed(memory):
    """A few threads renew them all, and nothing is lost."""
    bind(memory, Plain, *(names := [f"item-{i}" for i in range(60)]))
    others = heartbeat_threads()
    with VirtualClock() as clock:
        locks = [Plain.locked(name, lease=60).acquire() for name in names]
        clock.auto_jump = False
        with ThreadPoolExecutor(30) as pool:
            waiting = [pool.submit(lambda: Plain.locked(names[0]).acquire().release()) for _ in range(30)]
            until_in_line(Plain, names[0], 30)
            clock.jump(20)
            until(lambda: all(item.lock.holders[0].heartbeats >= 1 for item in Plain.scan()), "the renewals")
            assert heartbeat_threads() <= others + 10
            assert not any(lock.lost.is_set() for lock in locks)
            for lock in locks:
                lock.release()
            for each in waiting:
                each.result()
    assert all(item.lock.entries == () for item in Plain.scan(consistent_read=True))


class _InTurn(runtime.Runtime):
    """A world in which `come` is called as soon as a thread has done with a Lock object that it could not acquire."""

    come: Callable[[], object] | None = None

    def exclusive(self) -> Any:
        return _Handing(self)


class _Handing:
    def __init__(self, world: _InTurn) -> None:
        self._world = world
        self._mutex = threading.Lock()
        self.acquire = self._mutex.acquire

    def release(self) -> None:
        self._mutex.release()
        come, self._world.come = self._world.come, None
        if come is not None:
            in_thread(come)


def test_a_lock_object_that_another_thread_uses_next(plain_item):
    """What the first thread undoes, since it was not granted the lock, is not what the second one holds."""
    with runtime.installed(_InTurn()) as world:
        holder, lock = Plain.locked("a"), Plain.locked("a", wait=0)

        def come() -> None:
            holder.release()
            lock.acquire()

        in_thread(holder.acquire)
        world.come = come
        with pytest.raises(LockTimeout):
            lock.acquire()
        assert lock.is_held
        lock.release()
    assert Plain.lock_state("a").entries == ()


#: An older Python has no such flag.
OLDER = """
import sys

class Flags:
    thread_inherit_context = int(sys._xoptions["thread_inherit_context"])

    def __getattr__(self, name, flags=sys.flags):
        return getattr(flags, name)

sys.flags = Flags()
"""
INHERITED = """
from pynamo_locking import transaction
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing import MemoryDynamoDB
from tests.support.workers import Plain

with MemoryDynamoDB():
    Plain.create_table()
    Plain("a").save()
    for block in (Plain.locked("a"), transaction()):
        try:
            with block:
                print("entered")
        except ConfigurationError as error:
            assert "Set PYTHON_THREAD_INHERIT_CONTEXT=0" in str(error)
            print("refused")
    assert Plain.lock_state("a").entries == ()
"""


@pytest.mark.processes
@pytest.mark.parametrize(("is_inherited", "word"), [(0, "entered"), (1, "refused")])
def test_threads_that_inherit_what_their_starter_holds(is_inherited, word):
    """They are refused: CPython from 3.14 on, and there without the GIL unless the option says otherwise."""
    program = INHERITED if sys.version_info >= (3, 14) else OLDER + INHERITED
    command = [sys.executable, "-X", f"thread_inherit_context={is_inherited}", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"{word}\n{word}\n", "")
