"""Locks for tasks of asyncio: the same locks, with one event loop or several, beside threads, in one queue."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import LockSettings, locked_all
from pynamo_locking._io import concurrency
from pynamo_locking.exceptions import ConfigurationError, ItemLocked, ItemNotFound, LockLost, LockTimeout
from tests.support.parties import in_thread
from tests.support.wire import ALL, count_requests, on
from tests.support.workers import PATIENCE, Beside, Locks, Plain, in_line, until

if TYPE_CHECKING:
    from collections.abc import Callable


#: Who waits is woken by a release, never by a look of its own.
DEAF: Final = LockSettings(
    lease=100,
    wait=PATIENCE,
    min_poll_interval=1000,
    poll_interval=1000,
    max_poll_interval=1000,
    max_waiters=300,
    request_timeout=10,
)


@pytest.fixture
def memory(memory):
    """Items "a" and "b" of each model, with lock documents: the first lock ever makes one, for a write more."""
    memory.bind(Plain, Locks, Beside)
    for model, key in itertools.product((Plain, Beside), "ab"):
        model(key).save()
        with model.locked(key):
            pass
    return memory


async def until_waiting(model: Any, key: str, count: int) -> None:
    """Wait until so many callers are behind the holder, without a request in the event loop."""

    def waiting() -> int:
        return len(model.lock_state(key).waiters) + len(in_line(model, key))

    while await asyncio.to_thread(waiting) != count:  # noqa: ASYNC110 - no event for it
        await asyncio.sleep(0.02)


def crew() -> int:
    return sum(thread.name == "pynamo-locking-asyncio" for thread in threading.enumerate())


# Many tasks


@pytest.mark.parametrize("model", [Plain, Beside])
async def test_tasks_take_turns(memory, model):
    """40 tasks increment one item: no increment is lost, and they are served in the order of their tickets."""
    served: list[tuple[int, int]] = []

    async def work() -> None:
        edit = model.edit("a", settings=DEAF)
        async with edit as item:
            item.value += 1
            served.append((edit.lock.ticket, item.value))

    await asyncio.gather(*[work() for _ in range(40)])
    assert served == sorted(served)
    assert model.get("a", consistent_read=True).value == 40
    assert model.lock_state("a").entries == ()


async def test_many_tasks_wait_without_threads(memory):
    """100 tasks wait: no thread is at it, the holder saves and gives back through few threads, and all are served."""
    at_work: list[int] = []

    async def work() -> None:
        async with Plain.edit("a", settings=DEAF) as item:
            item.value += 1

    async with Plain.locked("a", settings=DEAF) as lock:
        tasks = [asyncio.create_task(work()) for _ in range(100)]
        await until_waiting(Plain, "a", 100)
        while crew():  # noqa: ASYNC110 - the last answer is being heard
            await asyncio.sleep(0.001)
        lock.item.value = 1000
        await asyncio.to_thread(lock.item.save)
    with on("UpdateItem", times=ALL).before(lambda: at_work.append(crew())):
        await asyncio.gather(*tasks)
    assert Plain.get("a", consistent_read=True).value == 1100
    assert Plain.lock_state("a").entries == ()
    assert 1 <= max(at_work) < 50


async def test_who_holds_a_lock_goes_before_those_who_want_it(memory, monkeypatch):
    """All threads are busy with tasks that enter the queue, and more such tasks wait for one: the release is next."""
    begun, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    apart = replace(DEAF, max_callers_per_entry=1)

    async def work() -> None:
        async with Plain.locked("a", settings=apart):
            pass

    monkeypatch.setattr(concurrency, "MAX_THREADS", 1)
    holder = await Plain.locked("a", settings=apart).aacquire()
    until(lambda: crew() == 0, "the thread to leave")
    with on("UpdateItem").watch() as sent, on("UpdateItem").before(hold_up):
        tasks = [asyncio.create_task(work()) for _ in range(5)]
        while not begun.is_set():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(go_on.set)  # that is, once we wait for the release
        await holder.arelease()
        await asyncio.gather(*tasks)
    assert [body["UpdateExpression"].split()[0] for body in sent.bodies[:3]] == ["SET", "REMOVE", "SET"]


def test_several_loops(memory):
    """Loops in four threads, with four tasks each, beside four plain threads: all are in one queue."""

    async def work() -> None:
        async with Plain.edit("a", settings=DEAF) as item:
            item.value += 1

    async def several() -> None:
        await asyncio.gather(*[work() for _ in range(4)])

    def plainly() -> None:
        with Plain.edit("a", settings=DEAF) as item:
            item.value += 1

    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            pool.submit(lambda: asyncio.run(several()))
            pool.submit(plainly)
    assert Plain.get("a", consistent_read=True).value == 20


# What is known of a lock, and costs


async def test_an_item_elsewhere_is_read_on_demand(memory):
    """With the lock in a row of its own `item` refuses to block; `aitem` reads it, once."""
    async with Beside.locked("a") as lock:
        with pytest.raises(ConfigurationError, match="aitem"):
            _ = lock.item
        with count_requests() as requests:
            assert (await lock.aitem()) is (await lock.aitem())
            assert lock.item.value == 0
        assert requests.total == 1
    async with Plain.locked("a") as inner:
        Plain.get("a").save()
        with pytest.raises(ConfigurationError, match="aitem"):
            _ = inner.item
        assert (await inner.aitem()).name == "a"


# Who is who


async def test_a_task_takes_again_by_either_form(memory):
    """Inside of a block of `with` or `async with` it has the lock; a task that it began is another party."""

    async def other() -> None:
        async with Plain.locked("a", wait=0):
            raise AssertionError

    async with Plain.locked("a") as lock:
        with Plain.locked("a") as inner:
            assert inner.ticket == lock.ticket
    with Plain.locked("a") as outer:
        async with Plain.locked("a") as inner:
            assert inner.ticket == outer.ticket
        with pytest.raises(LockTimeout):
            await asyncio.create_task(other())
        assert outer.is_held
    assert Plain.lock_state("a").entries == ()


async def test_writes_are_guarded_in_the_task_and_in_its_threads(memory):
    """Every copy that is saved inside names the entry, and is refused once that is gone; outside it is a stranger's."""
    with pytest.raises(ConfigurationError):  # it was given back in the block
        async with Plain.locked("a", heartbeat=False) as lock:
            Plain.get("a").save()
            await asyncio.to_thread(lambda: Plain.get("a").save())
            assert Plain.lock_state("a").holders[0].writes == 2
            with pytest.raises(ItemLocked):
                in_thread(lambda: Plain.get("a").save())
            assert Plain.break_lock("a", ticket=lock.ticket)
            with pytest.raises(LockLost):
                await asyncio.to_thread(Plain.get("a").save)
            with pytest.raises(LockLost):
                await lock.arenew()
            with pytest.raises(LockLost):
                await lock.arelease()
        Plain.get("a").save()


# Waking up


@pytest.mark.parametrize("holder", ["task", "thread"])
@pytest.mark.parametrize("waiter", ["task", "thread"])
async def test_a_release_wakes_who_waits_in_the_process(memory, holder, waiter):
    """Task or thread, both ways: no waiter polls, the release brings the image along, and no read is made."""

    def edit() -> None:
        with Plain.edit("a", settings=DEAF) as item:
            item.value += 1

    async def edit_in_task() -> None:
        async with Plain.edit("a", settings=DEAF) as item:
            item.value += 1

    if holder == "task":
        lock: Any = Plain.locked("a", settings=DEAF)
        await lock.aacquire()
        release: Callable[[], Any] = lock.arelease
    else:
        taken = in_thread(lambda: Plain.locked("a", settings=DEAF).acquire())
        release = lambda: asyncio.to_thread(taken.release)  # noqa: E731
    waiting = asyncio.create_task(edit_in_task() if waiter == "task" else asyncio.to_thread(edit))
    await until_waiting(Plain, "a", 1)
    with count_requests() as requests:
        await release()
        await waiting
    assert requests.by_operation == {"UpdateItem": 2}
    assert Plain.get("a").value == 1


async def test_errors_are_the_same(memory):
    """No item, no time, wrong arguments, an object that is in use."""

    async def never_awaited(reason: str) -> None: ...

    for way in (Plain.locked, Plain.edit, Plain.try_locked):
        with pytest.raises(ConfigurationError, match="coroutine function"):
            way("a", on_lost=never_awaited)
    with pytest.raises(ItemNotFound):
        await Plain.locked("gone").aacquire()
    with pytest.raises(ConfigurationError):
        Plain.locked("a", lease=0)
    with pytest.raises(ConfigurationError, match="exclusive"):
        Plain.edit("a", shared=True)
    async with Plain.locked("a") as lock:

        async def misuse() -> None:
            with pytest.raises(ConfigurationError, match="in use"):
                await lock.aacquire()

        await asyncio.create_task(misuse())


# Programs

FORK: Final = """
import asyncio, gc, os
from pynamo_locking import LockSettings, NamedLock
from pynamo_locking_testing import MemoryDynamoDB

class Locks(NamedLock):
    class Meta:
        table_name = "locks"
        region = "us-east-1"

def queue(name):
    return len(Locks.lock_state(name).entries)

async def wait():
    async with Locks.locked("a"):
        pass

async def again():
    async with Locks.locked("b") as lock:
        assert lock.is_held
    assert queue("b") == 0

async def main():
    async with Locks.locked("a", settings=LockSettings(max_callers_per_entry=1)) as lock:
        waiting = [asyncio.create_task(wait()) for _ in range(3)]  # one in the queue, two in line behind it
        while queue("a") < 2:
            await asyncio.sleep(0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                asyncio._set_running_loop(None)
                assert lock.lost.is_set() and not lock.is_held
                waiting = None
                gc.collect()
                asyncio.run(again())
                gc.collect()
                assert queue("a") == 2
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lock.is_held
    await asyncio.gather(*waiting)
    assert queue("a") == 0

with MemoryDynamoDB():
    Locks.create_table()
    asyncio.run(main())
print("well")
"""


async def test_a_lock_is_released_as_it_was_acquired(memory):
    """The other form is refused, and the error names what to write; the lock stays held."""
    by_thread = Plain.locked("a")

    async with Plain.locked("a") as lock:
        for method in (lock.release, lambda: in_thread(lock.release)):
            with pytest.raises(ConfigurationError, match=r"use `await lock.arelease\(\)`"):
                method()
        with pytest.raises(ConfigurationError, match=r"acquired with `async with`.*Acquire it so again"), lock:
            raise AssertionError
        async with lock:
            assert lock.is_held
        assert lock.is_held
    with by_thread:
        with pytest.raises(ConfigurationError, match=r"release it with `lock.release\(\)`"):
            await by_thread.arelease()
        with pytest.raises(ConfigurationError, match=r"acquired with `with`.*Acquire it so again"):
            await by_thread.aacquire()
        await by_thread.arenew()
        assert by_thread.is_held
    assert Plain.lock_state("a").entries == ()


async def test_what_blocks_is_refused_in_a_task_that_awaits_its_lock(memory):
    """The error names the method to await; a thread of the task may call what blocks."""
    async with Beside.locked("a", lease=50) as lock:
        for method, call in {
            "renew": lock.renew,
            "ensure_remaining": lambda: lock.ensure_remaining(1),
            "downgrade": lock.downgrade,
            "item": lambda: lock.item,
        }.items():
            with count_requests() as requests, pytest.raises(ConfigurationError, match=rf"`await lock.a{method}\("):
                call()
            assert requests.total == 0
        await asyncio.to_thread(lock.renew)
        await asyncio.to_thread(lock.ensure_remaining, 1)
        assert (await asyncio.to_thread(lambda: lock.item)) is lock.item
        await asyncio.to_thread(lock.downgrade)
        assert Beside.lock_state("a").holders[0].mode == "shared"


async def test_one_block_for_threads_and_tasks(memory):
    """What `edit`, `try_locked` and `locked_all` return serves `with` and `async with`, and can be used again."""
    edit, tried, both = Plain.edit("a"), Plain.try_locked("a"), locked_all(Plain.locked("a"), Plain.locked("b"))

    for _ in range(2):
        async with edit as item:
            item.value += 1
        async with tried as lock:
            assert lock is not None
            assert lock.is_held
        async with both as locks:
            assert [lock.is_held for lock in locks] == [True, True]
        with edit as item:
            item.value += 1
        with tried as lock:
            assert lock is not None
            assert lock.item.value == item.value
        with both as locks:
            assert [lock.is_held for lock in locks] == [True, True]
    assert Plain.get("a").value == 4
    assert Plain.lock_state("a").entries == Plain.lock_state("b").entries == ()


def test_a_lock_whose_loop_was_closed(memory):
    """It is held still, and can be given back; to take it in another loop is refused, and says why."""
    lock = Locks.locked("a")

    async def take() -> None:
        await lock.aacquire()

    asyncio.run(take())
    with pytest.raises(ConfigurationError, match="event loop was closed before it gave the lock back"):
        asyncio.run(take())
    assert lock.is_held
    asyncio.run(lock.arelease())
    assert Locks.lock_state("a").entries == ()


LATER: Final = """
import sys
sys.modules["blinker"] = None  # PynamoDB takes it if it is there, and its older releases import asyncio
import pynamo_locking
assert "asyncio" not in sys.modules
from pynamo_locking_testing import MemoryDynamoDB
class Locks(pynamo_locking.NamedLock):
    class Meta:
        table_name = "locks"
        region = "us-east-1"
with MemoryDynamoDB():
    Locks.create_table()
    with Locks.locked("a") as lock:
        lock.renew()
assert "asyncio" not in sys.modules
print("well")
"""


@pytest.mark.processes
@pytest.mark.parametrize("script", [FORK, LATER], ids=["fork", "import"])
def test_programs(script):
    """A child process has lost what its parent holds, and locks anew; asyncio is imported by those who use it."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("well\n", "")
