"""Ctrl-C at every place where Python lets one in leaves no entry in a queue.

CPython raises `KeyboardInterrupt` where a function begins, where a coroutine or a generator goes on, and after each
call of a builtin. These tests raise it there themselves: at the first such place of the package, then at the second
one, and so on until there are no more. Each request is interrupted before it is sent, and after it is applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from typing_extensions import Self

import pynamo_locking
from pynamo_locking import LockSettings, locked_all, transaction, transactional
from pynamo_locking._io import client, lock_requests, wakeups
from pynamo_locking._locks import heartbeat, local_queue, release
from pynamo_locking.exceptions import TransactionAborted
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support import parties, workers
from tests.support.interrupts import (
    by_acquire_and_release,
    by_acquire_and_release_of_a_task,
    in_a_block,
    in_a_block_of_a_task,
    in_an_edit,
    in_an_edit_of_a_task,
    none_left,
    until_at_rest,
)
from tests.support.transaction_models import FEW, Purse, Transactions, make_long_from, marked_rows, purses, stored
from tests.support.workers import Beside, Locks, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tests.engines.engine import Engine

pytestmark = pytest.mark.interrupts

ROOT: Final = Path(pynamo_locking.__file__).parent
#: Python drops what is raised while a finalizer runs, or a generator is collected.
LET_BE: Final = {"__del__", "<genexpr>"}
#: It raises what a profile function raises where a generator goes on outside of the generator, past its `finally`; an
#: interrupt is raised inside.
IS_PYTHON_3_10: Final = sys.version_info < (3, 11)


@pytest.fixture(autouse=True)
def _room_for_lost_frames():
    """CPython 3.11 loses count of its recursion where a profile function raises, and never gets below again."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 100_000)
    yield
    sys.setrecursionlimit(before + 50_000)


@functools.cache
def _is_ours(path: str) -> bool:
    return Path(path).is_relative_to(ROOT)


class Injected:
    """Raises `KeyboardInterrupt` at one place of a block, if it has so many.

    Args:
        place: which place; from 1.
        let_be: names of functions that are not interrupted at their very beginning.
    """

    def __init__(self, place: int, let_be: set[str]) -> None:
        self._left = place
        self._let_be = let_be
        self.where = "nowhere"
        self._dispatch = client.dispatch.__code__

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not _is_ours(code.co_filename):
            return
        goes_on = IS_PYTHON_3_10 and frame.f_lasti >= 0
        is_place = event == "c_return" or (event == "call" and code.co_name not in self._let_be and not goes_on)
        is_answer = event == "return" and code is self._dispatch
        if is_place or is_answer:
            self._left -= 1
            if not self._left:
                sys.setprofile(None)
                self.where = f"{event} in {code.co_filename}:{frame.f_lineno} {code.co_name}"
                raise KeyboardInterrupt

    @property
    def was_raised(self) -> bool:
        return self._left <= 0

    def __enter__(self) -> Self:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        sys.setprofile(None)
        # CPython 3.11 can take the traceback of what a profile function raises in a coroutine for something to call.
        return kind is KeyboardInterrupt or (self.was_raised and str(error) == "'traceback' object is not callable")


def each_place(run: Callable[[], Any], check: Callable[[str], Any], let_be: set[str] = LET_BE, step: int = 1) -> int:
    """Interrupt a function at its places, check what each has left, and return how many there were.

    It tries one in three, and begins at another one in every run.
    """
    step *= 3
    run()  # what is made once and kept
    place = random.randint(1, step)
    while True:
        # A sweep would be interrupted at each of its steps, and have one more each time.
        heartbeat.heartbeat_thread._released = 0
        with Injected(place, let_be) as injected:
            run()
        until_at_rest()
        check(injected.where)
        if not injected.was_raised:
            return place - 1
        place += step


@pytest.fixture
def models(memory, monkeypatch):
    for model in (Locks, workers.Plain, workers.Versioned):
        monkeypatch.setattr(model.Meta, "lock_settings", replace(workers.SETTINGS, lease=60, request_timeout=2))
    memory.bind(Locks, Beside, workers.Plain, workers.Versioned)
    workers.Plain("a").save()
    workers.Versioned("a").save()


def in_an_item() -> None:
    with workers.Plain.locked("a") as lock:
        _ = lock.item


def in_a_nested_block() -> None:
    with Locks.locked("a"), Locks.locked("a"):
        pass


def twice_with_one_lock() -> None:
    lock = Locks.locked("a")
    with lock, lock:
        pass


def in_an_edit_inside_a_lock() -> None:
    with workers.Plain.locked("a"), workers.Plain.edit("a") as item:
        item.value += 1


def in_two_locks() -> None:
    with locked_all(Locks.locked("a"), workers.Plain.locked("a")):
        pass


def in_the_first_free() -> None:
    with Locks.locked_first(["a", "b"]):
        pass


def by_acquire_and_release_inside() -> None:
    with Locks.locked("a"):
        by_acquire_and_release()


async def in_two_locks_of_a_task() -> None:
    async with locked_all(Locks.locked("a"), workers.Plain.locked("a")):
        pass


async def by_a_task_that_is_cancelled() -> None:
    task = asyncio.create_task(in_a_block_of_a_task())
    await asyncio.sleep(0)  # it is entering the queue
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


class Overtaken:
    """A change of an item that another writer changes first, the first time."""

    def __init__(self) -> None:
        self.is_done = False

    def __call__(self, item: Any) -> None:
        if not self.is_done:
            self.is_done = True
            workers.Plain.get("a", consistent_read=True).touch()
        item.value += 1


def in_a_retry_of_modify() -> None:
    workers.Plain.modify("a", Overtaken())


def in_a_retry_of_a_transaction() -> None:
    change = Overtaken()

    @transactional()
    def run(tx: Transaction) -> None:
        item = tx.get(workers.Plain, "a")
        change(item)
        tx.save(item)

    run()


@pytest.mark.parametrize(
    "run",
    [
        in_a_block,
        in_an_item,
        in_a_nested_block,
        twice_with_one_lock,
        in_an_edit,
        in_an_edit_inside_a_lock,
        in_two_locks,
        in_the_first_free,
    ],
)
def test_an_interrupted_block_leaves_no_entry(models, run):
    """Wherever the interrupt comes: before the grant, between it and the block, at its end, in the release."""
    assert each_place(run, none_left((Locks, "a"), (Locks, "b"), (workers.Plain, "a")))


# An interrupt may come while the finalizer of the transaction before runs.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("run", [in_a_retry_of_modify, in_a_retry_of_a_transaction])
def test_an_interrupted_retry_leaves_no_entry(models, run):
    """So it is with the locks that a retry holds."""
    assert each_place(run, none_left((workers.Plain, "a")), step=5)


@pytest.mark.parametrize("run", [by_acquire_and_release, by_acquire_and_release_inside])
def test_an_interrupted_pair_leaves_no_entry(models, run):
    """So it is with `acquire` and `release`, unless the interrupt comes before `release` has begun."""
    assert each_place(run, none_left((Locks, "a")), LET_BE | {"release", "end_block"})


# Python drops an interrupt in a generator that is collected at that moment, and tells of it so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("run", "let_be"),
    [
        (in_a_block_of_a_task, set()),
        (in_an_edit_of_a_task, set()),
        (in_two_locks_of_a_task, set()),
        (by_a_task_that_is_cancelled, {"acquire_in_task"}),  # a profiler can replace what is thrown into it
        (by_acquire_and_release_of_a_task, {"arelease", "aend_block"}),  # as for `release`
    ],
)
def test_an_interrupted_task_leaves_no_entry(models, run, let_be):
    """So it is where the interrupt goes through an event loop, which then never hears what a thread has done."""
    assert each_place(lambda: asyncio.run(run()), none_left((Locks, "a"), (workers.Plain, "a")), LET_BE | let_be)


def committed_by_its_block(begun: list[Transaction]) -> None:
    with transaction() as tx:
        begun.append(tx)
        item = tx.get(workers.Versioned, "a", for_update=True)
        item.value += 1
        tx.save(item)


def committed_together(begun: list[Transaction]) -> None:
    with transaction() as tx:
        begun.append(tx)
        tx.touch(tx.get(workers.Versioned, "a", for_update=True))
        tx.touch(tx.get(workers.Versioned, "b", for_update=True))


def committed_in_its_block(begun: list[Transaction]) -> None:
    with Transaction() as tx:
        begun.append(tx)
        tx.get(workers.Versioned, "a", for_share=True)
        tx.commit()


def rolled_back_by_hand(begun: list[Transaction]) -> None:
    tx = Transaction()
    begun.append(tx)
    try:
        tx.get(workers.Versioned, "a", for_update=True)
    finally:
        tx.rollback()


@pytest.mark.parametrize(
    "run", [committed_by_its_block, committed_together, committed_in_its_block, rolled_back_by_hand]
)
def test_an_interrupted_transaction_leaves_no_entry(models, run):
    """Wherever the interrupt comes, and although the transaction is still referenced: nothing renews its lock."""
    begun: list[Transaction] = []
    let_be = LET_BE | ({"rollback"} if run is rolled_back_by_hand else set())  # as `release` above
    workers.Versioned("b").save()
    assert each_place(lambda: run(begun), none_left((workers.Versioned, "a"), (workers.Versioned, "b")), let_be)


def test_a_second_interrupt_does_not_stop_the_removal(models, monkeypatch):
    """Ctrl-C again, while the entry is removed because of the first one: a thread goes on."""
    original, second = lock_requests.release, iter([KeyboardInterrupt()])

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        for interrupt in second:
            raise interrupt
        return original(*args, **kwargs)

    def wait(*_: Any) -> None:
        raise KeyboardInterrupt

    with parties.held_elsewhere(workers.Plain.locked("a")), monkeypatch.context() as patch:
        patch.setattr(lock_requests, "release", interrupted)
        patch.setattr(wakeups.Mailbox, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            workers.Plain.locked("a", shared=True).acquire()  # it has an entry of its own
        until(lambda: not release._unfinished, "the thread that removes the entry")
        assert len(workers.Plain.lock_state("a").entries) == 1
    none_left((workers.Plain, "a"))("the second interrupt")


@pytest.mark.parametrize("is_long", [False, True])
def test_an_interrupted_transaction_is_all_or_none(memory, monkeypatch, is_long):
    """What is left of it, `sweep` finishes: no mark stays, and the money is all there."""
    if is_long:
        make_long_from(monkeypatch)
    memory.bind(Purse, Transactions)
    names = [purse.purse_id for purse in purses(FEW + 2)]

    def move() -> None:
        # The virtual clock may let its lease pass while the interrupt is on its way out.
        with contextlib.suppress(TransactionAborted), transaction() as tx:
            for name in names:
                tx.update(tx.get(Purse, name), [Purse.balance.add(1)])

    def check(where: str) -> None:
        Transactions.sweep()
        assert marked_rows(Purse) == [], where
        assert len({stored(Purse, name)["balance"]["N"] for name in names}) == 1, where

    with VirtualClock():
        assert each_place(move, check, step=5 if is_long else 2)


#: What begins the programs of these tests.
MODEL: Final = """
import sys, threading
from pynamo_locking import LockSettings, NamedLock

class Locks(NamedLock):
    class Meta:
        table_name, host, region = sys.argv[1:]
        aws_access_key_id = aws_secret_access_key = "dummy"
"""
ENDING: Final = """

for name in ("of the main thread", "another"):
    Locks.locked(name).acquire()
for name in map(str, range(20)):
    broken = Locks.locked(name).acquire()
    Locks.break_lock(name, ticket=broken.ticket)
taken = threading.Event()

def hold():
    with Locks.locked("of a daemon"):
        taken.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
taken.wait()
sys.exit(3)
"""
LATE: Final = """
import atexit, logging, threading

logging.basicConfig(format="%(message)s")
beaten = threading.Event()
atexit.register(beaten.wait, 20)  # runs after what a library registers that is imported later
"""
BEATING: Final = """
from pynamo_locking._locks.heartbeat import HeartbeatThread

renew = HeartbeatThread._renew

def noted(self, own):
    due = renew(self, own)
    if not Locks.lock_state("a").entries:
        beaten.set()
    return due

HeartbeatThread._renew = noted
Locks.locked("a", on_lost=print, settings=LockSettings(lease=0.6, request_timeout=0.1)).acquire()
"""
UNANSWERED: Final = """
import logging
from pynamo_locking_testing import throttled

def start(thread):
    raise RuntimeError("can't start new thread")

logging.disable()
lock = Locks.locked("a").acquire()
threading.Thread.start = start
with throttled(Locks):
    lock.release()
"""


def ended(engine: Engine, program: str) -> tuple[int, str, str]:
    """Run a program; return its exit code, and what it wrote."""
    engine.bind(Locks)
    meta: Any = Locks.Meta
    command = [sys.executable, "-c", program, meta.table_name, meta.host, meta.region]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.processes
def test_a_release_without_an_answer_is_made_up_for_at_the_end_of_the_process(dynoxide):
    """Where no thread could go on with it; the next caller does not wait for the end of the lease."""
    assert ended(dynoxide, MODEL + UNANSWERED) == (0, "", "")
    left = Locks.lock_state("a").entries
    assert left == (), "the process has ended, and left the entry whose removal had no answer"


@pytest.mark.processes
def test_a_heartbeat_after_the_end_of_a_process_is_no_loss(dynoxide):
    """What other callbacks of the end do may take longer than the time to the next renewal."""
    assert ended(dynoxide, LATE + MODEL + BEATING) == (0, "", "")
    assert Locks.lock_state("a").entries == ()


@pytest.mark.processes
def test_the_end_of_a_process_inside_a_lock(dynoxide):
    """What the main thread has taken is given back, broken locks or not; a daemon thread may be at work to the last."""
    assert ended(dynoxide, MODEL + ENDING) == (3, "", "")
    for name in ("of the main thread", "another"):
        assert Locks.lock_state(name).entries == ()
    assert len(Locks.lock_state("of a daemon").entries) == 1


CALLING: Final = """
from pynamo_locking.recipes import IdempotencyTable

class Calls(IdempotencyTable):
    Meta = Locks.Meta

call = Calls.call("k", on_abandoned="raise")
call.__enter__()
"""


@pytest.mark.processes
def test_the_end_of_a_process_inside_a_call(dynoxide):
    """Its work may have been done, so its key is not freed if it must not be made again by itself."""
    assert ended(dynoxide, MODEL + CALLING) == (0, "", "")
    assert len(Locks.lock_state("k").entries) == 1


#: The callers of this process share an entry, and none of them has to wait for the end of a lease.
IN_LINE = LockSettings(
    lease=60, wait=30, poll_interval=0.02, max_poll_interval=0.05, request_timeout=1, max_callers_per_entry=32
)


class Line:
    """Threads that want the same lock as the one that is interrupted."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.served = 0

    def edit(self) -> None:
        with workers.Plain.edit("a", settings=IN_LINE) as item:
            item.value += 1

    def start(self, work: Callable[[], None] | None = None) -> None:
        def served() -> None:
            (work or self.edit)()
            self.served += 1

        self.threads.append(threading.Thread(target=served))
        self.threads[-1].start()

    def waits(self) -> int:
        return sum(len(cohort.waiting) for cohort in list(local_queue.local_queues.values()))

    def as_holder(self) -> None:
        """Hand over to the next caller."""
        with workers.Plain.edit("a", settings=IN_LINE) as item:
            for i in range(2):
                self.start()
                until(lambda: self.waits() == i + 1)  # noqa: B023
            item.value += 1

    def as_next(self) -> None:
        """Wait, with one caller behind, until the lock is handed over."""
        holds, is_over = threading.Event(), threading.Event()

        def first() -> None:
            with workers.Plain.edit("a", settings=IN_LINE) as item:
                holds.set()
                until(lambda: self.waits() or is_over.is_set())
                self.start()
                until(lambda: self.waits() > 1 or is_over.is_set())
                item.value += 1

        self.start(first)
        holds.wait()
        try:
            self.edit()
        finally:
            is_over.set()

    def check(self, where: str) -> None:
        """Require that all others were served, and that nothing is left."""
        for thread in self.threads:  # the first one may add another while it is waited for
            thread.join()
        assert self.served == len(self.threads), where
        self.served = 0
        self.threads.clear()
        until_at_rest()
        none_left((workers.Plain, "a"))(where)
        until(lambda: not local_queue.local_queues or gc.collect() < 0, where)


# As above, of `holders_in`, which its caller does not read to the end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("who", ["as_holder", "as_next"])
def test_an_interrupted_caller_does_not_hold_up_those_in_line(models, who):
    """Wherever the interrupt comes: the callers before it and behind it are served, and none waits for a lease."""
    line = Line()

    for place in range(random.randint(1, 3), 10_000, 3):
        with Injected(place, LET_BE) as injected:
            getattr(line, who)()
        line.check(injected.where)
        if not injected.was_raised:
            return
