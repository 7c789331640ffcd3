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
from pynamo_locking._io import client, concurrency
from pynamo_locking._locks import held_lock
from pynamo_locking.exceptions import ConfigurationError, ItemLocked, ItemNotFound, LockLost, LockTimeout
from tests.support.parties import in_thread
from tests.support.wire import count_requests
from tests.support.workers import PATIENCE, Beside, Locks, Plain, Versioned, in_line, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

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


def bind(engine: Engine) -> Engine:
    """Items "a" and "b" of each model, with lock documents: the first lock ever makes one, for a write more."""
    engine.bind(Plain, Versioned, Locks, Beside)
    for model, key in itertools.product((Plain, Versioned, Beside), "ab"):
        model(key).save()
        with model.locked(key):
            pass
    return engine


@pytest.fixture
def memory(memory):
    return bind(memory)


@pytest.fixture
def cheap(cheap):
    return bind(cheap)


async def until_waiting(model: Any, key: str, count: int) -> None:
    """Wait until so many callers are behind the holder, without a request in the event loop."""

    def waiting() -> int:
        return len(model.lock_state(key).waiters) + len(in_line(model, key))

    while await asyncio.to_thread(waiting) != count:  # noqa: ASYNC110 - no event for it
        await asyncio.sleep(0.02)


def crew() -> int:
    return sum(thread.name == "pynamo-locking-asyncio" for thread in threading.enumerate())


# Many tasks


@pytest.mark.parametrize("model", [Plain, Versioned, Beside])
async def test_tasks_take_turns(cheap, model):
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


class Counted(set[object]):
    """The threads at work, and the most there were at a time. A thread that has left may live on for a moment."""

    most = 0

    def add(self, thread: object) -> None:
        super().add(thread)
        self.most = max(self.most, len(self))


async def test_two_hundred_tasks_wait_without_threads(cheap, monkeypatch):
    """200 tasks wait: no thread is at it, the holder saves and gives back through threads, and all are served."""
    threads = Counted()

    async def work() -> None:
        async with Plain.edit("a", settings=DEAF) as item:
            item.value += 1

    async with Plain.locked("a", settings=DEAF) as lock:
        tasks = [asyncio.create_task(work()) for _ in range(200)]
        await until_waiting(Plain, "a", 200)
        while crew():  # noqa: ASYNC110 - the last answer is being heard
            await asyncio.sleep(0.001)
        monkeypatch.setattr(concurrency.blocking_threads, "_threads", threads)
        lock.item.value = 1000
        await asyncio.to_thread(lock.item.save)
    await asyncio.gather(*tasks)
    assert Plain.get("a", consistent_read=True).value == 1200
    assert Plain.lock_state("a").entries == ()
    assert 1 <= threads.most <= concurrency.MAX_THREADS
    until(lambda: crew() == 0, "the threads to leave")


async def test_who_holds_a_lock_goes_before_those_who_want_it(memory, monkeypatch):
    """All threads are busy with tasks that enter the queue, and more such tasks wait for one: the release is next."""
    dispatch, sent = client.dispatch, list[str]()
    begun, go_on = threading.Event(), threading.Event()

    def held_up(*args: Any) -> Any:
        sent.append(args[2]["UpdateExpression"].split()[0])
        begun.set()
        assert go_on.wait(PATIENCE)
        return dispatch(*args)

    apart = replace(DEAF, max_callers_per_entry=1)

    async def work() -> None:
        async with Plain.locked("a", settings=apart):
            pass

    monkeypatch.setattr(concurrency, "MAX_THREADS", 1)
    async with Plain.locked("a", settings=apart):
        until(lambda: crew() == 0, "the thread to leave")
        monkeypatch.setattr(client, "dispatch", held_up)
        tasks = [asyncio.create_task(work()) for _ in range(5)]
        while not begun.is_set():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(go_on.set)  # that is, once we wait for the release
    await asyncio.gather(*tasks)
    assert sent[:3] == ["SET", "REMOVE", "SET"]


async def test_two_hundred_tasks_on_fifty_locks(cheap):
    """Four tasks for each of 50 locks, each of which takes two in any order: nothing is lost, none waits for ever."""
    keys = [f"k{i}" for i in range(50)]
    for key in keys:
        Plain(key).save()

    async def work(number: int) -> None:
        one, other = keys[number % 50], keys[(number * 7 + 1) % 50]
        settings = LockSettings(poll_interval=0.05, wait=PATIENCE, request_timeout=10)
        async with locked_all(Plain.locked(one, settings=settings), Plain.locked(other, settings=settings)) as pair:
            for lock in {one: pair[0], other: pair[1]}.values():
                item = await lock.aitem()
                item.value += 1
                await asyncio.to_thread(item.save)

    await asyncio.gather(*[work(number) for number in range(200)])
    expected = sum(1 if number % 50 == (number * 7 + 1) % 50 else 2 for number in range(200))
    assert sum(item.value for item in Plain.scan(consistent_read=True)) == expected
    assert all(item.lock.entries == () for item in Plain.scan(consistent_read=True))
    until(lambda: crew() == 0, "the threads to leave")


def test_several_loops(cheap):
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


async def test_it_has_the_facts_and_the_cost_of_a_lock(cheap):
    """Ticket, item, lease and guard are those of the entry; 1 write to enter, 1 to leave, no read."""
    lock = Plain.locked("a", lease=50, owner="me")
    assert (lock.is_held, lock.remaining, lock.owner) == (False, 0.0, "me")
    with count_requests() as requests:
        async with lock as same:
            assert same is lock
            assert lock.is_held
            assert 0 < lock.remaining <= 50
            assert not lock.lost.is_set()
            assert lock.item.name == "a"
            assert str(lock.ticket) in repr(lock)
    assert requests.by_operation == {"UpdateItem": 2}
    assert not lock.is_held
    async with lock:
        [holder] = Plain.lock_state("a").holders
        assert (holder.ticket, holder.owner) == (lock.ticket, "me")
        Plain("a", value=3).save(lock.held_condition())
        with count_requests() as requests:
            await lock.aensure_remaining(1)
            await lock.arenew()
        assert requests.by_operation == {"UpdateItem": 1}
        with pytest.raises(ConfigurationError):
            await lock.aensure_remaining(50)
        await lock.adowngrade()
        assert Plain.lock_state("a").holders[0].mode == "shared"
    with pytest.raises(ConfigurationError):
        await lock.arelease()


async def test_an_edit_costs_two_writes(cheap):
    """As `edit`; nothing is saved if the block raises."""
    with count_requests() as requests:
        async with Plain.edit("a") as item:
            item.value = 5
    assert requests.by_operation == {"UpdateItem": 2}
    with pytest.raises(RuntimeError, match="no"):
        async with Plain.edit("a") as item:
            item.value = 6
            raise RuntimeError("no")
    assert Plain.get("a", consistent_read=True).value == 5


async def test_an_item_elsewhere_is_read_on_demand(cheap):
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


async def test_a_task_takes_again_for_free_and_others_wait(memory):
    """Also between `with` and `async with`; a task that it began is another party."""

    async def other() -> None:
        async with Plain.locked("a", wait=0):
            raise AssertionError

    async with Plain.locked("a") as lock:
        with count_requests() as requests:
            async with Plain.locked("a") as inner:
                with Plain.locked("a") as innermost:
                    assert {lock.ticket, inner.ticket, innermost.ticket} == {lock.ticket}
        assert requests.total == 0
        assert lock.is_held
        with pytest.raises(LockTimeout):
            await asyncio.create_task(other())
    with Plain.locked("a"), pytest.raises(LockTimeout):
        await asyncio.create_task(other())
    with Plain.locked("a") as outer:
        async with Plain.locked("a") as inner:
            assert inner.ticket == outer.ticket
        assert not held_lock.holds_nothing()
    assert held_lock.holds_nothing()
    async with Plain.locked("a"):
        assert not held_lock.holds_nothing()
    assert held_lock.holds_nothing()
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


async def test_a_loss_is_told(memory):
    """`on_lost` is called, `lost` is set, and leaving the block says so; an error of the block goes first."""
    reasons: list[str] = []

    with pytest.raises(LockLost):
        async with Plain.locked("a", on_lost=reasons.append) as lock:
            Plain.break_lock("a", ticket=lock.ticket)
            with pytest.raises(LockLost):
                await lock.arenew()
            assert lock.lost.is_set()
            assert not lock.is_held
    with pytest.raises(RuntimeError, match="mine"):
        async with Plain.locked("a") as lock:
            Plain.break_lock("a", ticket=lock.ticket)
            raise RuntimeError("mine")
    until(lambda: reasons == ["evicted"], "on_lost")


async def test_the_heartbeat_renews(virtual_clock, memory):
    """The one heartbeat of the process serves locks of tasks as well."""
    async with Plain.locked("a", lease=60) as lock:
        for beat in range(1, 5):
            virtual_clock.jump(20)
            until(lambda beat=beat: Plain.lock_state("a").holders[0].heartbeats >= beat)
        assert lock.is_held


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


# Ways to ask


async def test_try_first_and_range(memory):
    """`try_locked`, `locked_first` and `locked_range` do in a task what they do in a thread."""

    async def other(expected: str | None) -> None:
        async with Plain.try_locked("a") as lock:
            assert lock is None
        async with Plain.locked_first(["gone", "a", "b"]) as lock:
            assert (None if lock is None else lock.item.name) == expected

    async def ranges() -> None:
        with pytest.raises(LockTimeout):
            await Locks.locked_range("r", 5, 8, wait=0).aacquire()
        async with Locks.locked_range("r", 6, 8, wait=0) as part:
            assert part.is_held
            with pytest.raises(ConfigurationError):
                await part.aitem()

    async with Plain.try_locked("a") as lock:
        assert lock is not None
        await asyncio.create_task(other("b"))
        async with Plain.locked("b"):
            await asyncio.create_task(other(None))
    async with Locks.locked_range("r", 0, 6) as part:
        assert part.is_held
        await asyncio.create_task(ranges())
    async with Locks.locked("name") as named:
        assert named.name == "name"
    assert Plain.lock_state("a").entries == Plain.lock_state("b").entries == ()
    assert Locks.lock_state("r").entries == Locks.lock_state("name").entries == ()


async def test_all_or_none(memory):
    """Tasks and threads that name them in opposite orders do not wait in a circle; who runs out of time has none."""

    async def one(*keys: str) -> None:
        async with locked_all(*[Plain.locked(key, settings=DEAF) for key in keys], wait=PATIENCE) as locks:
            assert [lock.item.name for lock in locks] == list(keys)

    def two(*keys: str) -> None:
        with locked_all(*[Plain.locked(key, settings=DEAF) for key in keys]):
            pass

    async def short() -> None:
        async with locked_all(Plain.locked("a"), Plain.locked("b"), wait=0):
            raise AssertionError

    work = [one("a", "b"), one("b", "a"), asyncio.to_thread(two, "b", "a"), asyncio.to_thread(two, "a", "b")]
    await asyncio.gather(*work)
    async with Plain.locked("b"):
        with pytest.raises(LockTimeout):
            await asyncio.create_task(short())
        assert Plain.lock_state("a").entries == ()


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
from pynamo_locking.testing import MemoryDynamoDB

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
from pynamo_locking.testing import MemoryDynamoDB
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


@pytest.mark.parametrize("script", [FORK, LATER], ids=["fork", "import"])
def test_programs(script):
    """A child process has lost what its parent holds, and locks anew; asyncio is imported by those who use it."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("well\n", "")
