"""Real signals at random moments, on an engine that answers over HTTP: before, during and after its requests.

`test_interrupts` raises `KeyboardInterrupt` at each place of the package. Here a thread sends SIGINT, wherever the main
thread is: in the package, in PynamoDB, in a socket, in the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import locked_all, transaction
from tests.support.interrupts import (
    in_a_block,
    in_a_block_of_a_task,
    in_an_edit,
    in_an_edit_of_a_task,
    none_left,
    until_at_rest,
)
from tests.support.transaction_models import FEW, Purse, Transactions, make_long_from, marked_rows, purses, rows_of
from tests.support.workers import Locks, Plain, until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pynamo_locking import Lock


pytestmark = [
    pytest.mark.processes,
    pytest.mark.interrupts,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of sockets, tasks and loops
    pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals that a thread sends"),
    pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="only it hears signals"),
]


class Handler:
    """Hears every SIGINT of a test, and passes it on only while a run is to be interrupted.

    The event loop puts a handler of its own into its place, and one that is interrupted does not put it back.
    """

    def __init__(self) -> None:
        self.armed = False
        self.heard = 0
        self.dropped = 0
        self._inner: Any = signal.default_int_handler

    def __call__(self, number: int, frame: Any) -> None:
        self.heard += 1
        if self.armed:
            self._inner(number, frame)

    def drop(self, told: Any) -> None:
        """Python drops an interrupt that comes in a finalizer, and tells a hook."""
        self.dropped += issubclass(told.exc_type, KeyboardInterrupt)

    def replace(self, patch: pytest.MonkeyPatch) -> None:
        """Stay the handler of the process, whatever others set, until the patch is undone."""
        set_handler, get_handler = signal.signal, signal.getsignal

        def set_inner(number: int, handler: Any) -> Any:
            if number != signal.SIGINT:
                return set_handler(number, handler)
            before, self._inner = self._inner, handler
            return before

        set_handler(signal.SIGINT, self)
        patch.setattr(signal, "signal", set_inner)
        patch.setattr(
            signal, "getsignal", lambda number: self._inner if number == signal.SIGINT else get_handler(number)
        )
        patch.setattr(sys, "unraisablehook", self.drop)

    def interrupts(self, start: Callable[[], None], run: Callable[[], Any], sent: threading.Event) -> int:
        """Start a thread that sends signals, run a function, and wait until all are sent; counts what is raised."""
        self._inner, raised, is_over = signal.default_int_handler, 0, False
        steps = iter([start, run])
        while not is_over:
            try:
                try:
                    self.armed = True
                    for step in steps:
                        step()
                    while not sent.is_set():  # an interrupt would end a `join` for good
                        time.sleep(0.001)
                    signal.pthread_sigmask(signal.SIG_BLOCK, ())  # hears what has been sent
                    is_over = True
                finally:
                    self.armed = False
            except KeyboardInterrupt:
                self.armed = False  # one more may have come in `finally`
                raised += 1
        return raised


def interrupt(
    handler: Handler,
    run: Callable[[], Any],
    times: int,
    check: Callable[[str], Any],
    *,
    signals: int = 1,
    seed: int = 15,
) -> None:
    """Interrupt a function so many times at random moments, and check each time what that has left.

    Args:
        handler: hears the signals.
        run: what to interrupt.
        times: how often.
        check: is told when the interrupts came.
        signals: how many each time.
        seed: of the moments.
    """
    run()  # what is made once and kept
    usual = min(seconds_of(run) for _ in range(3))  # one alone may have met a busy moment, and all pauses go by it
    chance, main = random.Random(seed), threading.get_ident()

    def send(pauses: list[float], sent: threading.Event) -> None:
        for pause in pauses:
            time.sleep(pause)
            signal.pthread_kill(main, signal.SIGINT)
        sent.set()

    interrupted = 0
    for _ in range(times):
        pauses = [chance.uniform(0, usual), *(chance.uniform(0, usual / 2) for _ in range(signals - 1))]
        sent, heard, dropped = threading.Event(), handler.heard, handler.dropped
        raised = handler.interrupts(threading.Thread(target=send, args=(pauses, sent)).start, run, sent)
        assert handler.heard > heard, "a signal that was sent has not been heard"
        dropped = handler.dropped - dropped
        interrupted += raised > 0 or dropped > 0
        check(f"interrupted after {pauses} s of {usual} s, {raised} raised, {dropped} dropped by a finalizer")
    assert interrupted  # C code may drop one, and not tell


def seconds_of(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def in_a_loop(work: Coroutine[Any, Any, Any]) -> None:
    """As `asyncio.run`; an interrupt stays one wherever in the loop it comes.

    Between the end of the task and that of the loop, an interrupt leaves a stop in the loop's queue. That stop ends the
    next step of the loop's shutdown, with a RuntimeError in place of the interrupt (CPython 3.11, `Runner.close`).
    """
    try:
        asyncio.run(work)
    except RuntimeError as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise error.__context__ from None


async def in_a_block_of_an_item() -> None:
    async with Plain.locked("a") as lock:
        await lock.aitem()


def in_a_block_with_an_item() -> None:
    with Plain.locked("a") as lock:
        lock.item.value += 1
        lock.item.save()


async def in_three_locks() -> None:
    async with locked_all(Locks.locked("a"), Locks.locked("b"), Plain.locked("a")):
        await asyncio.sleep(0)


#: The last pair's lock, and what releases it. An interrupt that comes before `release` has begun leaves the lock held.
of_a_pair: dict[Lock[Any], Callable[[], object]] = {}


def by_acquire_and_release() -> None:
    lock = Locks.locked("a")
    of_a_pair[lock] = lock.release
    lock.acquire()
    lock.release()


async def by_acquire_and_release_of_a_task() -> None:
    lock = Locks.locked("a")
    of_a_pair[lock] = lambda: asyncio.run(lock.arelease())
    await lock.aacquire()
    await lock.arelease()


def release_what_a_pair_holds() -> None:
    """Do what a caller does who hears of the interrupt."""
    for lock, release in of_a_pair.items():
        if lock.is_held:
            release()
    of_a_pair.clear()


@pytest.fixture(autouse=True)
def _collects_its_sockets():
    """What the interrupts have left unclosed is collected here, where its warnings are let be; not in a later test."""
    yield
    gc.collect()


@pytest.fixture
def quick_switches():
    """Let the thread that sends signals run at once: a call takes less time here than Python's interval."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def handler(monkeypatch):
    before, handler = signal.getsignal(signal.SIGINT), Handler()
    handler.replace(monkeypatch)
    yield handler
    monkeypatch.undo()
    signal.signal(signal.SIGINT, before)


def nothing_left(where: str) -> None:
    until_at_rest()
    release_what_a_pair_holds()
    none_left((Locks, "a"), (Locks, "b"), (Plain, "a"))(where)


@pytest.mark.parametrize("run", [in_a_block, in_a_block_with_an_item, in_an_edit, by_acquire_and_release])
def test_interrupted_locks(dynoxide, handler, run):
    dynoxide.bind(Locks, Plain)
    Plain("a").save()
    interrupt(handler, run, 60, nothing_left)


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize(
    "run",
    [
        in_a_block_of_a_task,
        in_a_block_of_an_item,
        in_an_edit_of_a_task,
        in_three_locks,
        by_acquire_and_release_of_a_task,
    ],
)
def test_interrupted_tasks(dynoxide, handler, run, signals):
    """The first signal cancels the task, since Python 3.11; one more goes through the loop wherever that is."""
    dynoxide.bind(Locks, Plain)
    Plain("a").save()
    interrupt(handler, lambda: in_a_loop(run()), 40, nothing_left, signals=signals)


def in_a_task(move: Callable[[], None]) -> None:
    """As the documentation says: a signal cancels the task, and the thread goes on to its end."""
    in_a_loop(asyncio.to_thread(move))


def no_thread_is_at_work() -> bool:
    """The idle threads of a loop or a pool that an interrupt has dropped end when these are collected."""
    gc.collect()
    return not any(name in each.name for each in threading.enumerate() for name in ("batch", "asyncio"))


@pytest.mark.parametrize("form", [lambda move: move(), in_a_task], ids=["thread", "task"])
@pytest.mark.parametrize(
    ("count", "most", "times"),
    [(FEW, 100, 40), (FEW + 2, FEW, 30), (102, 100, 10)],
    ids=["short", "long", "of 102"],
)
def test_interrupted_transactions(dynoxide, handler, monkeypatch, *, count, most, times, form):
    """Nothing of it is applied or all; `sweep` finishes what is left. No mark stays, and no money comes or goes."""
    dynoxide.bind(Purse, Transactions)
    make_long_from(monkeypatch, most)
    even = {purse.purse_id for i, purse in enumerate(purses(count)) if i % 2 == 0}

    def move() -> None:
        with transaction(lease=3) as tx:
            for purse in Purse.scan(consistent_read=True):
                tx.update(purse, [Purse.balance.add(1 if purse.purse_id in even else -1)])

    def check(where: str) -> None:
        until(no_thread_is_at_work, "threads")
        report = Transactions.sweep()
        assert (report.failed, report.pending) == ({}, 0), where
        assert Transactions.sweep().examined == 0, where
        assert marked_rows(Purse) == [], where
        balances = {(row["purse_id"]["S"] in even, int(row["balance"]["N"])) for row in rows_of(Purse)}
        assert len(balances) == 2, where
        assert sum(balance for _, balance in balances) == 200, where

    interrupt(handler, lambda: form(move), times, check)


async def twice_with_one_lock_of_a_task() -> None:
    lock = Locks.locked("a")
    async with lock, lock:
        pass


def twice_with_one_lock() -> None:
    lock = Locks.locked("a")
    with lock, lock:
        pass


@pytest.mark.usefixtures("quick_switches")
def test_two_hundred_interrupts_leave_no_entry_that_is_renewed(memory, handler):
    """Of all ways into a lock. The engine has no network, so the signals come while this package is at work."""
    memory.bind(Locks, Plain)
    Plain("a").save()
    threads = (in_a_block, twice_with_one_lock, in_a_block_with_an_item, in_an_edit, by_acquire_and_release)
    tasks = (in_a_block_of_a_task, twice_with_one_lock_of_a_task, in_an_edit_of_a_task, in_three_locks)
    runs = [*threads, *(lambda run=run: in_a_loop(run()) for run in tasks)]
    for number, run in enumerate(runs):
        interrupt(handler, run, 23, nothing_left, seed=number)
