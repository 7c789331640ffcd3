"""What joins event loops and threads: the crew, calls, pauses, and attempts that are abandoned."""

from __future__ import annotations

import asyncio
import itertools
import threading
from functools import partial
from typing import Any

import pytest

from pynamo_locking._core.lock_modes import WHOLE
from pynamo_locking._io import concurrency, lock_record, runtime, stored_rows, wakeups
from pynamo_locking._io.concurrency import Pause, Pool, run_steps
from pynamo_locking._io.lock_record import new_entry
from pynamo_locking._io.wakeups import Mailbox
from pynamo_locking._locks import acquire
from tests.support.runtime import changed, installed
from tests.unit.helpers import opened, own_entry, row

PATIENCE_S = 60


class Held:
    """Work that waits until it may go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.is_done = False

    def __call__(self) -> str:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        self.is_done = True
        return "done"


class FewThreads(runtime.Runtime):
    """A world that starts only so many threads, or none at all."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most
        self.started = list[threading.Thread]()

    def spawn(self, target: Any, name: str) -> None:
        if self.left == 0:
            raise RuntimeError("can't start new thread")
        self.left -= 1
        self.started.append(threading.Thread(target=target, name=name, daemon=True))
        self.started[-1].start()


@pytest.fixture
def few(request: pytest.FixtureRequest):
    """Such a world, with as many threads as the test says."""
    with installed(FewThreads(request.param)) as world:
        yield world


@pytest.mark.parametrize("few", [1000], indirect=True)
def test_a_bounded_number_of_threads(few: FewThreads) -> None:
    """However much is to be done; and they leave when nothing is."""
    crew, works = concurrency.BlockingThreads(), [Held() for _ in range(concurrency.MAX_THREADS + 5)]
    for work in works:
        crew.do(work)
    for work in works[: concurrency.MAX_THREADS]:
        assert work.begun.wait(PATIENCE_S)
    assert len(few.started) == concurrency.MAX_THREADS
    assert not any(work.begun.is_set() for work in works[concurrency.MAX_THREADS :])
    for work in works:
        work.go_on.set()
    for thread in few.started:
        thread.join()
    assert all(work.is_done for work in works)
    assert not crew._threads


@pytest.mark.parametrize("few", [0], indirect=True)
def test_no_thread_at_all(few: FewThreads) -> None:
    """The caller hears of it, and nothing is done later, behind its back."""
    crew = concurrency.BlockingThreads()
    with pytest.raises(RuntimeError):
        crew.do(lambda: None)
    assert (crew._threads, list(crew._waiting)) == (set(), [])


@pytest.mark.parametrize("few", [1], indirect=True)
def test_one_thread_is_enough(few: FewThreads, caplog: pytest.LogCaptureFixture) -> None:
    """Who holds goes before those who wait, what is as urgent in order; a failure is logged, and ends no thread."""
    crew, first, order = concurrency.BlockingThreads(), Held(), list[str]()
    crew.do(first)
    assert first.begun.wait(PATIENCE_S)
    for name in ("look", "release", "look again", "save"):
        crew.do(partial(order.append, name), is_urgent="look" not in name)
    crew.do(lambda: 1 / 0, is_urgent=True)
    first.go_on.set()
    few.started[0].join()
    assert order == ["release", "save", "look", "look again"]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    assert not crew._threads


@pytest.mark.parametrize("few", [0], indirect=True)
def test_without_a_thread_the_loop_waits(few: FewThreads) -> None:
    """A lock that could not be given back would be renewed for ever, so the request is made in the loop."""
    assert asyncio.run(concurrency.to_the_end(threading.get_ident)) == threading.get_ident()


@pytest.mark.parametrize("few", [0], indirect=True)
def test_without_a_thread_nothing_is_renewed_for_a_task_that_has_gone(few: FewThreads) -> None:
    """Its lease ends by itself, and nothing is raised into the collector."""
    own = own_entry()
    acquire.release_later(lambda: None, own)
    assert own.ownership.is_over


async def test_a_call_in_another_thread() -> None:
    """It returns and raises what the work does; in a copy of the task's context."""

    assert await concurrency.call(threading.get_ident) != threading.get_ident()
    assert await concurrency.to_the_end(lambda: 5) == 5
    for how in (concurrency.call, concurrency.to_the_end):
        with pytest.raises(KeyError):
            await how(lambda: {}["missing"])
        with pytest.raises(RuntimeError, match="StopIteration"):  # which a future would refuse: nobody would hear of it
            await asyncio.wait_for(how(lambda: next(iter(()))), PATIENCE_S)


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_to_the_end_means_to_the_end(times: int) -> None:
    """However often the task is cancelled, it ends after the work, and as one that was cancelled."""

    work = Held()
    task = asyncio.create_task(concurrency.to_the_end(work))
    await asyncio.to_thread(work.begun.wait, PATIENCE_S)
    for _ in range(times):
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.is_done


def test_an_error_of_who_was_cancelled_is_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    """It is not lost, and asyncio does not complain that it was never retrieved."""

    def fail() -> None:
        work()
        raise KeyError("mine")

    async def main() -> None:
        task = asyncio.create_task(concurrency.to_the_end(fail))
        await asyncio.to_thread(work.begun.wait, PATIENCE_S)
        task.cancel()
        await asyncio.sleep(0)
        work.go_on.set()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        causes = [cancelled.value]
        while causes[-1] is not None:
            causes.append(causes[-1].__cause__ or causes[-1].__context__)
        assert any(isinstance(cause, KeyError) for cause in causes)

    work = Held()
    asyncio.run(main())
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_a_plain_call_is_cancelled_at_once() -> None:
    """The thread goes on, and what it returns is dropped."""

    work = Held()
    task = asyncio.create_task(concurrency.call(work))
    await asyncio.to_thread(work.begun.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not work.is_done
    work.go_on.set()


def test_an_answer_to_a_closed_loop_is_dropped() -> None:
    """The thread lives on."""

    async def main() -> None:
        task = asyncio.create_task(concurrency.call(work))
        await asyncio.to_thread(work.begun.wait, PATIENCE_S)
        task.cancel()

    work, after = Held(), Held()
    asyncio.run(main())
    work.go_on.set()
    after.go_on.set()
    concurrency.start(after)
    assert after.begun.wait(PATIENCE_S)


# Pauses


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_ring_ends_a_pause(when: str) -> None:
    """Whether it came before the task began to listen, or comes from another thread while it does."""
    image = {"account_id": {"S": "a-1"}}

    mailbox = Mailbox()
    if when == "before":
        mailbox.put(image)
    task = asyncio.create_task(concurrency.spend(Pause(1e9, mailbox)))
    await asyncio.sleep(0)
    if when == "during":
        assert not task.done()
        await asyncio.to_thread(mailbox.put, image)
    assert await asyncio.wait_for(task, PATIENCE_S) == image
    assert mailbox.on_wakeup is None


async def test_a_pause_ends_by_itself() -> None:
    """With nothing in the mailbox, or without one."""

    assert await concurrency.spend(Pause(0, Mailbox())) is None
    assert await concurrency.spend(Pause(0.001)) is None
    assert await concurrency.spend(Pause(-1)) is None


def test_a_ring_for_a_loop_that_has_gone_does_no_harm() -> None:
    """Least of all the thread that gives back its lock."""
    mailbox = opened(row())
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(concurrency.spend(Pause(1e9, mailbox)))
        loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        mailbox.listen(lambda: concurrency._call_soon(loop, lambda: None))
        loop.close()
        wakeups.tell_waiters(row(), None)
    finally:
        wakeups.close_mailbox(row(), mailbox)


# Images that cross on their way


def document(*tickets: int, following: int = 10, beat: int = 0) -> dict[str, Any]:
    """An item with these entries in its lock document."""
    entries = {f"e{ticket}": new_entry("me", WHOLE, 60, 0, ticket=ticket) for ticket in tickets}
    for entry in entries.values():
        entry["L"][lock_record.FACTS]["M"][lock_record.BEAT] = stored_rows.number(beat)
    return {
        "lock": {
            "M": {
                lock_record.SINCE: stored_rows.number(1),
                lock_record.NEXT: {"L": [stored_rows.number(following)]},
                lock_record.QUEUE: {"M": entries},
                lock_record.EVICTED: {"M": {}},
            }
        }
    }


#: Each after the one before it, of one document.
IN_ORDER = [
    document(1, 2, 3, following=4),
    document(2, 3, following=4),
    document(2, 3, following=4, beat=1),
    document(2, 3, 4, following=5),
    document(3, 4, following=5),
    document(following=5),
]


@pytest.mark.parametrize(("older", "newer"), [*itertools.combinations(IN_ORDER, 2)])
def test_the_newest_image_counts_in_whatever_order_they_come(older: Any, newer: Any) -> None:
    """Two threads that release one after the other may hand over the other way round."""
    for first, second in [(older, newer), (newer, older)]:
        mailbox = opened(row())
        try:
            wakeups.tell_waiters(row(), first)
            wakeups.tell_waiters(row(), second)
        finally:
            wakeups.close_mailbox(row(), mailbox)
        assert mailbox.wait(0) is newer
        assert mailbox.wait(0) is None


@pytest.mark.parametrize("images", [[IN_ORDER[1], None], [None, IN_ORDER[1]]])
def test_a_ring_without_an_image_is_not_forgotten_for_one_with_it(images: list[Any]) -> None:
    """The image may be the older one: if it is not enough, the waiter looks at once, without a further wake-up."""
    mailbox = opened(row())
    try:
        for image in images:
            wakeups.tell_waiters(row(), image)
    finally:
        wakeups.close_mailbox(row(), mailbox)
    assert mailbox.wait(0) is IN_ORDER[1]
    assert mailbox.wait(1e9) is None
    wakes = list[int]()
    mailbox.listen(lambda: wakes.append(1))
    assert wakes == []


def test_steps_are_closed_by_whatever_interrupts_a_pause() -> None:
    """A thread that is interrupted while it sleeps runs the way out of the steps, and raises the interrupt."""
    ways_out = list[type[BaseException]]()

    def steps() -> Any:
        try:
            yield Pause(1)
        except BaseException as error:
            ways_out.append(type(error))
            raise

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with changed(sleep=interrupt), pytest.raises(KeyboardInterrupt):
        run_steps(steps())
    assert ways_out == [GeneratorExit]


# Pools of threads: with too few of them, and interrupted


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pool_makes_do_with_fewer_threads(crowded, threads):
    """All jobs are done, and the caller hears of each."""
    done, heard = [], []
    crowded(threads)
    Pool([lambda i=i: done.append(i) for i in range(20)], 4, heard.append).run()
    assert sorted(done) == sorted(heard) == list(range(20))


def test_a_pool_without_any_thread_begins_nothing(crowded):
    """And says so."""
    crowded(0)
    pool = Pool([pytest.fail], 4, pytest.fail)
    with pytest.raises(RuntimeError, match="new thread"):
        pool.run()
    assert pool.begun == set()


def test_a_pool_that_is_interrupted_twice_keeps_no_thread(monkeypatch):
    """Ctrl-C, and another one while the first is being seen to: its threads end all the same."""
    waits = threading.Event()

    class Watched(runtime.Runtime):
        def wait(self, condition, timeout):
            if threading.current_thread() is not threading.main_thread():
                waits.set()
            return super().wait(condition, timeout)

    def interrupt(_index):
        assert waits.wait(60)  # a thread that is ahead waits for us
        monkeypatch.setattr(pool, "_end_workers", interrupt_again)
        raise KeyboardInterrupt

    def interrupt_again():
        monkeypatch.undo()
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with installed(Watched()), pytest.raises(KeyboardInterrupt):
        pool = Pool([lambda: None] * 10, 1, interrupt)
        pool.run()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert len(pool.begun) < 10
