"""A task that is cancelled, wherever it is, leaves nothing behind: no entry, no lock, no thread, no complaint."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import threading
import weakref
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import LockSettings, locked_all
from tests.support import runtime
from tests.support.cancelling import Cancelled, ended
from tests.support.local_wakeups import mailboxes
from tests.support.wire import on
from tests.support.workers import PATIENCE, Beside, Locks, Plain, in_line, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


#: Who waits is woken by a release, and looks by itself only where two releases at once crossed on their way to it.
DEAF: Final = LockSettings(
    lease=100, wait=50, min_poll_interval=1000, poll_interval=1000, max_poll_interval=1000, request_timeout=10
)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What asyncio has logged."""
    return [record.getMessage() for record in caplog.records if record.name == "asyncio"]


@pytest.fixture(autouse=True)
def _no_complaints(caplog):
    """No exception was left unheard, no mailbox open, no thread at work."""
    yield
    gc.collect()
    until(lambda: not has_threads(), "the threads to leave")
    assert complaints(caplog) == []
    assert mailboxes() == []


@pytest.fixture
def memory(memory):
    """The engine with the items of these tests."""
    memory.bind(Locks, Beside, Plain)
    for model, key in itertools.product((Plain, Beside), "ab"):
        model(key).save()
    return memory


def state() -> list[Any]:
    """All entries of all locks of these tests."""
    return [entry for model in (Plain, Beside) for key in "ab" for entry in model.lock_state(key).entries]


def waiting(model: Any, key: str) -> list[str]:
    """Whose callers wait, in the queue or behind a caller of this process."""
    return [each.owner for each in (*model.lock_state(key).waiters, *(each.new for each in in_line(model, key)))]


def has_threads() -> bool:
    """Whether threads work for tasks."""
    return any(thread.name == "pynamo-locking-asyncio" for thread in threading.enumerate())


def has_sleeper() -> bool:
    """Whether a task waits for a release."""
    boxes = [box for of_lock in mailboxes() for box in of_lock]
    return any(box.on_wakeup for box in (*boxes, *(each.mailbox for each in in_line(Plain, "a"))))


async def locks() -> None:
    async with Plain.locked("a", settings=DEAF) as lock:
        await lock.arenew()
        async with Plain.locked("a") as inner:
            assert inner.ticket == lock.ticket


async def edits() -> None:
    async with Plain.edit("a", settings=DEAF) as item:
        item.value += 1


async def edits_beside() -> None:
    async with Beside.edit("a", settings=DEAF) as item:
        item.value += 1


async def takes_all() -> None:
    async with locked_all(Beside.locked("b", settings=DEAF), Plain.locked("a", settings=DEAF), wait=50):
        await asyncio.sleep(0)


async def tries() -> None:
    async with Plain.try_locked("a") as lock:
        assert lock is not None


async def ranges() -> None:
    async with Locks.locked_range("r", 1, 5, settings=DEAF), Locks.locked_range("r", 7, 9, settings=DEAF):
        pass


ALONE: Final = [locks, edits, edits_beside, takes_all, tries, ranges]


def each_place(run: Callable[[int], Awaitable[tuple[bool, int]]]) -> int:
    """Run again and again, cancelled one place later each time, until no place is left; return how many there were."""
    for place in itertools.count(1):
        is_through, places = asyncio.run(run(place))  # type: ignore[arg-type]
        assert state() == []
        assert Locks.lock_state("r").entries == ()
        if places < place:
            assert is_through
            return place - 1
    raise AssertionError


@pytest.mark.parametrize("how", ["begins", "ends", "again"])
@pytest.mark.parametrize("work", ALONE)
def test_cancelled_at_each_place(memory, work, how):
    """Taking, holding, renewing, saving, giving back: nothing is left, wherever and however often it is cancelled."""
    saved: list[bool] = []

    async def run(place: int) -> tuple[bool, int]:
        cancelled = Cancelled(work(), place, how)
        is_through = await ended(asyncio.ensure_future(cancelled))
        saved.append(is_through)
        return is_through, cancelled.places

    assert each_place(run) >= 2
    assert 0 <= Plain.get("a").value + Beside.get("a").value <= len(saved)


@pytest.fixture(params=[1, 32], ids=["apart", "shared"])
def deaf(request, monkeypatch):
    """The settings, with an entry for each caller, or one for all."""
    settings = replace(DEAF, max_callers_per_entry=request.param)
    monkeypatch.setitem(globals(), "DEAF", settings)
    return settings


@pytest.mark.parametrize("how", ["begins", "ends", "again"])
@pytest.mark.parametrize("work", [locks, edits, edits_beside, takes_all])
def test_cancelled_in_the_queue(deaf, memory, work, how):
    """The same behind a holder, whose release wakes it: entering, waiting, granted; and the next one is served."""
    model = Beside if work in (edits_beside, takes_all) else Plain
    key = "b" if work is takes_all else "a"

    async def behind() -> None:
        async with model.locked(key, settings=DEAF, owner="last"):
            pass

    async def run(place: int) -> tuple[bool, int]:
        async with model.locked(key, settings=DEAF) as holder:
            cancelled = Cancelled(work(), place, how)
            waiter = asyncio.ensure_future(cancelled)
            while len(waiting(model, key)) < 1 and not waiter.done():  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0)
            last = asyncio.ensure_future(behind())
            while "last" not in waiting(model, key):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0)
            assert holder.is_held
        is_through = await ended(waiter)
        assert await ended(last)
        return is_through, cancelled.places

    assert each_place(run) >= 3


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("work", ALONE)
def test_cancelled_in_the_middle_of_each_request(memory, work, moment):
    """While a request is on its way to DynamoDB, or its answer on the way back."""

    async def run(place: int) -> tuple[bool, int]:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work())

        def cancel() -> None:
            is_cancelled = threading.Event()
            loop.call_soon_threadsafe(task.cancel)
            loop.call_soon_threadsafe(is_cancelled.set)
            assert is_cancelled.wait(PATIENCE)

        with on().watch() as requests, getattr(on(nth=place), moment)(cancel):
            return await ended(task), requests.hits

    assert each_place(run) >= 2


async def test_out_of_time_from_outside(memory):
    """`asyncio.wait_for` ends a wait, and the holder has not noticed."""
    async with Plain.locked("a", settings=DEAF) as holder:

        async def wait() -> None:
            await Plain.locked("a", settings=DEAF).aacquire()

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.create_task(wait()), 0.02)  # else it is this task, from Python 3.12 on
        assert [entry.ticket for entry in state()] == [holder.ticket]
    assert state() == []


def test_a_program_ends_with_tasks_at_work(memory):
    """`asyncio.run` cancels what is left: the holder and those who wait leave the queue.

    An entry that was handed over to a caller who was cancelled meanwhile is removed by a thread, soon after.
    """
    begun: list[int] = []

    async def hold(key: str) -> None:
        async with Plain.locked(key, settings=DEAF):
            begun.append(1)
            await asyncio.sleep(1000)

    async def main() -> None:
        _tasks = [asyncio.create_task(hold(key)) for key in "abababab"]
        while sum(len(waiting(Plain, key)) for key in "ab") < 6 or len(begun) < 2:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)

    asyncio.run(main())
    until(lambda: state() == [])


@pytest.mark.processes
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
def test_ctrl_c(memory):
    """So it is after an interrupt from the keyboard."""

    async def wait() -> None:
        async with Plain.locked("a", settings=DEAF):
            pass

    async def main() -> None:
        async with Plain.locked("a", settings=DEAF):
            waiter = asyncio.create_task(wait())
            while not waiting(Plain, "a"):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0)
            signal.raise_signal(signal.SIGINT)
            await waiter

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert state() == []


@pytest.mark.parametrize("when", ["holding", "waiting", "entering"])
def test_a_loop_that_is_closed_under_its_tasks(memory, caplog, when):
    """These tasks never end; when they are collected, threads tidy up behind them."""
    count = 1 if when == "holding" else 2
    is_on_its_way, go_on, held = threading.Event(), threading.Event(), threading.Event()

    def hold_up() -> None:
        if when == "entering":
            is_on_its_way.set()
            assert go_on.wait(PATIENCE)

    async def hold() -> None:
        async with Plain.locked("a", settings=DEAF):
            held.set()
            await asyncio.get_running_loop().create_future()

    def is_so_far() -> bool:
        return {"holding": held.is_set(), "waiting": has_sleeper(), "entering": is_on_its_way.is_set()}[when]

    async def until_then() -> None:
        tasks = [asyncio.create_task(hold()) for _ in range(count)]
        while not is_so_far():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    loop = asyncio.new_event_loop()
    with on("UpdateItem").after(hold_up):
        loop.run_until_complete(until_then())
    loop.close()
    go_on.set()
    until(lambda: gc.collect() >= 0 and len(complaints(caplog)) == count and state() == [], "the tasks to be collected")
    assert {complaint[:34] for complaint in complaints(caplog)} == {"Task was destroyed but it is pendi"}
    caplog.clear()


@pytest.mark.parametrize("passes", range(1, 7))
def test_a_loop_that_is_closed_after_a_few_passes(memory, caplog, passes):
    """Nothing keeps its tasks, however far they have begun, not even until the next loop of this thread."""

    async def hold() -> None:
        async with Plain.locked("a", settings=DEAF):
            await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    tasks = weakref.WeakSet(loop.create_task(hold()) for _ in range(3))
    for _ in range(passes):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    until(lambda: gc.collect() >= 0 and not tasks and state() == [], "the tasks to be collected")
    caplog.clear()


@pytest.mark.parametrize("way", [locks, edits])
async def test_no_thread_can_be_started(memory, way):
    """The holder saves and gives back all the same; who waits hears of it, and its entry is removed."""
    with ExitStack() as stack:
        async with Plain.edit("a", settings=DEAF) as item:
            waiter = asyncio.ensure_future(way())
            while not has_sleeper():  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0)
            until(lambda: not has_threads(), "the threads to leave")
            stack.enter_context(runtime.no_thread_starts())
            item.value = 7
        with pytest.raises(RuntimeError, match="start new thread"):
            await waiter
    assert state() == []
    assert Plain.get("a").value == 7
