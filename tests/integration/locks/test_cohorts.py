"""Callers of one process that wait for the same lock: one entry stands for them, and is handed over."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import LockSettings
from pynamo_locking._core.lock_modes import WHOLE
from pynamo_locking._core.lock_queue import QueueEntry
from pynamo_locking._io import lock_requests
from pynamo_locking._io.concurrency import TO_THREADS
from pynamo_locking._io.wakeups import Mailbox
from pynamo_locking._locks import local_queue
from pynamo_locking.exceptions import ItemNotFound, LockLost, LockTimeout
from pynamo_locking_testing import VirtualClock
from tests.integration.locks.conftest import with_item
from tests.support import runtime
from tests.support.parties import SLOW_CLOCK
from tests.support.wire import Chosen, count_requests, on
from tests.support.workers import (
    PATIENCE,
    Beside,
    Locks,
    Plain,
    Versioned,
    in_line,
    steps_of,
    until,
    until_in_line,
    until_queued,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


#: No caller that waits for a look of its own gets through in time.
LAZY = LockSettings(
    lease=100, wait=math.inf, min_poll_interval=50, poll_interval=50, max_poll_interval=50, request_timeout=10
)
#: The same, with an entry for each caller.
ALONE = LockSettings(
    lease=100, wait=math.inf, min_poll_interval=0.01, poll_interval=0.02, request_timeout=10, max_callers_per_entry=1
)


@pytest.fixture(autouse=True)
def _nobody_is_left_in_line():
    """An example of the documentation may have left a lock held in this process."""
    local_queue.local_queues.clear()
    yield
    assert not local_queue.local_queues


@contextmanager
def lined_up(model: Any, key: str, *works: Callable[[], Any]) -> Iterator[list[Future[Any]]]:
    """Start functions in threads, one after the other; each is in line before the next one starts."""
    with ThreadPoolExecutor(len(works)) as pool:
        futures, before = [], len(in_line(model, key))
        for i, work in enumerate(works, start=1):
            futures.append(pool.submit(work))
            until_in_line(model, key, before + i)
        yield futures


def edit(model: Any, settings: LockSettings = LAZY, **options: Any) -> Callable[[], tuple[int, int]]:
    """Return a function that increments the item, and returns its ticket and the new value."""

    def work() -> tuple[int, int]:
        edited = model.edit("a", settings=settings, **options)
        with edited as item:
            item.value += 1
        return edited.lock.ticket, int(item.value)

    return work


@pytest.fixture(params=[Plain, Beside])
def model(request, memory):
    yield from with_item(memory, request.param)


@pytest.fixture
def clock():
    """Time that stands still until a test moves it."""
    with VirtualClock(auto_jump=False) as clock:
        yield clock


def let_time_pass(clock: VirtualClock) -> None:
    """Let it move by itself from now on, also if all threads sleep by now."""
    clock.auto_jump = True
    clock.sleep(0.001)


@pytest.fixture(params=[Plain, Versioned, Beside])
def model_anywhere(request, concurrent_engine):
    yield from with_item(concurrent_engine, request.param)


def test_in_order_of_arrival(model_anywhere):
    """All tickets are of one draw, and each turn is one write; a transaction returns no item, so the next one reads."""
    lock = model_anywhere.locked("a", settings=LAZY).acquire()
    with lined_up(model_anywhere, "a", *[edit(model_anywhere)] * 4) as futures, count_requests() as counted:
        lock.release()
        served = [future.result() for future in futures]
    assert served == [(lock.ticket + i, i) for i in range(1, 5)]
    beside = {"UpdateItem": 1, "TransactWriteItems": 4, "TransactGetItems": 4, "GetItem": 3}
    assert counted.by_operation == (beside if model_anywhere is Beside else {"UpdateItem": 5})


@pytest.mark.parametrize(
    ("block", "order"),
    [
        (1, "b0 a1 b1 a2 b2 a3 b3 a4 b4 a5 b5"),
        (2, "b0 a1 a2 b1 b2 a3 a4 b3 b4 a5 b5"),
        (32, "b0 a1 a2 a3 a4 a5 b1 b2 b3 b4 b5"),
    ],
)
def test_the_order_between_processes(plain_item, block, order):
    """The callers of a and b come by turns. One entry serves that many callers, then the next one.

    So before a caller with j others of its process in line are served, of each other process that has come later, at
    most (j // block + 1) * block callers.
    """
    settings, served = LockSettings(max_callers_per_entry=block, lease=1000, wait=1000), list[str]()
    threads = list[threading.Thread]()
    came = ["b0", "a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4", "a5", "b5"]

    def take(name: str) -> None:
        with processes[name[0]], Plain.locked("a", settings=settings):
            served.append(name)

    def have_arrived() -> int:
        lined_up = 0
        for process in processes.values():
            with process:
                lined_up += len(in_line(Plain, "a"))
        return lined_up + len(Plain.lock_state("a").waiters)

    with VirtualClock(auto_jump=False) as clock:
        processes = {name: clock.another_process() for name in "ab"}
        with processes["a"], Plain.locked("a", settings=settings):
            for name in came:
                threads.append(threading.Thread(target=take, args=(name,)))
                threads[-1].start()
                until(lambda: have_arrived() == len(threads), f"the arrival of {name}")
            clock.auto_jump = True  # a caller that misses a release while it comes for its entry polls
        for thread in threads:
            thread.join(PATIENCE)
    assert served == order.split()
    for name in came if block > 1 else ():
        others_in_line = max(0, int(name[1:]) - 1)
        later = [each for each in served[: served.index(name)] if came.index(each) > came.index(name)]
        assert len(later) <= (others_in_line // block + 1) * block


def test_a_task_that_never_comes_costs_a_quarter_of_a_lease(plain_item):
    """Its loop was closed after an interrupt, and no entry is left: the next caller does not wait for a whole lease."""
    settings, loop = LockSettings(lease=100), asyncio.new_event_loop()
    with VirtualClock() as clock:
        lock = Plain.locked("a", settings=settings).acquire()
        task = loop.create_task(Plain.locked("a", settings=settings).aacquire())
        loop.run_until_complete(asyncio.sleep(0))
        until_in_line(Plain, "a", 1)
        loop.close()
        lock.downgrade()  # so it hands nothing over
        lock.release()
        assert Plain.lock_state("a").entries == ()
        with Plain.locked("a", settings=settings, wait=300):
            assert clock.elapsed < 50
        del task
        gc.collect()


def test_a_caller_that_was_handed_the_lock_has_its_whole_lease(plain_item):
    """Not a quarter, which is its time to come: the caller behind it does not evict it."""
    settings = LockSettings(lease=100, wait=300)

    def hold_for_most_of_it() -> None:
        with Plain.locked("a", settings=settings, heartbeat=False) as lock:
            clock.auto_jump = True
            clock.sleep(80)
            lock.item.save()

    with VirtualClock(auto_jump=False) as clock:
        first = Plain.locked("a", settings=settings).acquire()
        with lined_up(Plain, "a", hold_for_most_of_it, edit(Plain, settings)) as futures:
            first.release()
            for future in futures:
                future.result()


def test_a_row_outlives_the_lease_of_a_caller_that_was_handed_its_lock(memory, clock):
    """Its TTL is set by the hand-over, too: the lease of the next caller may be longer."""
    memory.bind(Locks)
    first, three_days = Locks.locked("job", settings=LAZY).acquire(), 3 * 24 * 3600

    def hold() -> tuple[float, float]:
        with Locks.locked("job", settings=replace(LAZY, lease=three_days, max_lease=three_days)):
            return Locks.get("job").expires.timestamp(), Locks.lock_state("job").holders[0].until_ms / 1000

    with lined_up(Locks, "job", hold) as (future,):
        first.release()
        expires, until_s = future.result()
    assert expires >= until_s + 24 * 3600


async def test_tasks_are_served_in_order_of_arrival(plain_item):
    """100 tasks: each turn is one write, whatever the threads do that make the requests."""
    served: list[int] = []

    async def work(number: int) -> None:
        async with Plain.edit("a", settings=LAZY) as item:
            item.value += 1
            served.append(number)

    with count_requests() as counted:
        async with Plain.locked("a", settings=LAZY):
            tasks = [asyncio.create_task(work(number)) for number in range(100)]
            await asyncio.to_thread(until_in_line, Plain, "a", 100)
        await asyncio.gather(*tasks)
    assert served == list(range(100))
    assert counted.by_operation == {"UpdateItem": 103}  # 2 to enter for the first time, 1 to release


def test_a_caller_that_is_called_to_lead_is_not_woken_in_the_queue(plain_item):
    """The caller behind it calls it once more, before it has come. That is no reason to read the item."""

    def acquisition(settings: LockSettings) -> Any:
        lock = Plain.locked("a", settings=settings)
        return steps_of(lock)

    def granted(steps: Any) -> Any:
        with pytest.raises(StopIteration) as done:
            while True:
                next(steps)
        return done.value.value

    first = granted(acquisition(LAZY))
    other, called, behind = acquisition(ALONE), acquisition(LAZY), acquisition(LAZY)
    next(other)
    next(other)  # in the queue, as another process would be
    next(called)  # in line
    first.release()
    with closing(other), closing(called), closing(behind):
        next(behind)
        assert next(called) is TO_THREADS
        assert not next(called).mailbox._is_woken


def test_callers_in_line_sleep(plain_item, monkeypatch, clock):
    """One of them looks whether the leader still acts, another one when that caller has left."""
    looked, is_leading = list[str](), local_queue.is_leading

    def looks(caller: local_queue.LocalWaiter) -> bool:
        looked.append(caller.new.owner)
        return is_leading(caller)

    def lookers() -> set[str]:
        looked.clear()
        for _ in range(20):
            clock.jump(0.05)
            until(lambda: len(looked) > 0, "a look")
        return set(looked)

    lock = Plain.locked("a", settings=QUICK).acquire()
    works = [edit(Plain, QUICK, owner=f"w{i}", wait=0.5 if i == 0 else math.inf) for i in range(5)]
    with lined_up(Plain, "a", *works) as futures:
        clock.jump(0.5)
        with pytest.raises(LockTimeout):
            futures[0].result()
        monkeypatch.setattr(local_queue, "is_leading", looks)
        assert lookers() == {"w4"}
        lock.release()
        assert [future.result()[1] for future in futures[1:]] == [1, 2, 3, 4]


def test_the_entry_says_for_how_many_it_stands(model):
    lock = model.locked("a", settings=LAZY).acquire()
    assert model.lock_state("a").entries[0].callers == 1
    inner, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with model.locked("a", settings=LAZY):
            inner.set()
            go_on.wait()

    with lined_up(model, "a", work, edit(model), edit(model)) as futures:
        lock.release()
        inner.wait()
        entry = model.lock_state("a").entries[0]
        assert (entry.ticket, entry.callers, entry.last_ticket) == (lock.ticket + 1, 3, lock.ticket + 3)
        assert model.lock_state("a").next_ticket == lock.ticket + 4
        go_on.set()
        assert futures[2].result() == (lock.ticket + 3, 2)


def test_a_caller_whose_time_is_over_leaves_the_line(model, clock):
    lock = model.locked("a", settings=LAZY).acquire()
    with lined_up(model, "a", edit(model), edit(model, wait=0.2), edit(model)) as futures:
        with count_requests() as counted:
            clock.jump(0.3)
            held = rf"other callers of this process were first; 1 ahead; held by .* \(ticket {lock.ticket}\)"
            with pytest.raises(LockTimeout, match=held) as late:
                futures[1].result()
        assert (late.value.queue.holders[0].ticket, counted.total) == (lock.ticket, 0)
        lock.release()
        assert [futures[i].result() for i in (0, 2)] == [(lock.ticket + 1, 1), (lock.ticket + 2, 2)]


def test_a_leader_whose_time_is_over_hands_its_place_over(model, clock):
    """The callers behind it keep the place in the queue that it drew for them."""
    other = model.locked("a", settings=ALONE).acquire()
    has_company, entering = threading.Event(), threading.Event()

    def wait_for_company() -> None:
        entering.set()
        has_company.wait()

    def has_entered() -> bool:
        clock.jump(0.01)
        return len(model.lock_state("a").entries) == 2

    with ThreadPoolExecutor(2) as pool:
        with on("UpdateItem").lose_request(wait_for_company):  # the next one is for both
            leader = pool.submit(edit(model, wait=50))
            entering.wait()
        with lined_up(model, "a", edit(model)) as (behind,):
            has_company.set()
            until(has_entered, "an entry")
            assert model.lock_state("a").entries[1].callers == 2
            newcomer = pool.submit(edit(model, ALONE))
            until_queued(model, "a", 3)
            clock.jump(50)
            with pytest.raises(LockTimeout):
                leader.result()
            until_queued(model, "a", 3)
            other.release()
            let_time_pass(clock)
            assert behind.result() == (other.ticket + 2, 1)
            assert newcomer.result() == (other.ticket + 3, 2)


def test_a_holder_that_has_shared_hands_nothing_over(model):
    """Else the next caller would come ahead of readers that have been let in meanwhile."""
    lock = model.locked("a", settings=LAZY).acquire()
    second, go_on = model.locked("a", settings=LAZY), threading.Event()

    def downgraded() -> None:
        with second:
            second.downgrade()
            go_on.wait()

    with lined_up(model, "a", downgraded, edit(model)) as futures:
        lock.release()
        until(lambda: [entry.mode for entry in model.lock_state("a").entries] == ["shared"], "a downgrade")
        with model.locked("a", settings=ALONE, shared=True) as reader:
            go_on.set()
            futures[0].result()
            until_queued(model, "a", 2)
            assert [entry.mode for entry in model.lock_state("a").holders] == ["shared"]
            assert reader.is_held
        assert futures[1].result()[0] > reader.ticket


@pytest.mark.parametrize("notices", [False, True])
def test_a_lock_that_is_broken_in_this_process_holds_up_none_of_its_callers(model, notices):
    """They enter the queue anew at once, whether or not the holder has noticed; it neither saves nor hands over."""
    lock = model.locked("a", settings=LAZY, heartbeat=False).acquire()
    with lined_up(model, "a", edit(model, wait=20), edit(model, wait=20)) as futures:
        model.break_lock("a", ticket=lock.ticket)
        if notices:
            with pytest.raises(LockLost):
                lock.renew()
        assert [future.result()[1] for future in futures] == [1, 2]
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.parametrize("lost", [Chosen.lose_request, Chosen.lose_response])
@pytest.mark.parametrize("times", [1, 2])
def test_a_hand_over_without_an_answer(model, lost, times):
    """Each caller gets its turn once, whatever became of the write that hands over."""
    lock = model.locked("a", settings=LAZY).acquire()
    operation = "TransactWriteItems" if model is Beside else "UpdateItem"
    with lined_up(model, "a", *[edit(model)] * 3) as futures, lost(on(operation, times=times)):
        lock.release()
        done = [future.result()[1] for future in futures]
    assert done == [1, 2, 3]
    assert model.get("a", consistent_read=True).value == 3


def test_threads_and_tasks_are_in_one_line(plain_item):
    lock = Plain.locked("a", settings=LAZY).acquire()

    async def task() -> int:
        async with Plain.edit("a", settings=LAZY) as item:
            item.value += 1
        return int(item.value)

    with lined_up(Plain, "a", edit(Plain), lambda: asyncio.run(task()), edit(Plain)) as futures:
        with count_requests() as counted:
            lock.release()
            assert [futures[0].result()[1], futures[1].result(), futures[2].result()[1]] == [1, 2, 3]
        assert counted.by_operation == {"UpdateItem": 4}


@pytest.mark.parametrize("how", ["cancelled", "over"])
async def test_tasks_leave_the_line_in_their_loop(plain_item, how):
    """Cancelled or timed out, they make no request and start no thread, however many there are."""
    lock, started = Plain.locked("a", settings=ALONE).acquire(), list[str]()

    def spawn(target: Callable[[], None], name: str) -> None:
        started.append(name)
        runtime.Runtime().spawn(target, name)

    async def work(wait: float) -> None:
        async with Plain.edit("a", settings=LAZY, wait=wait):
            raise AssertionError

    leader = asyncio.create_task(work(100))
    await asyncio.to_thread(until_queued, Plain, "a", 2)
    tasks = [asyncio.create_task(work(100 if how == "cancelled" else 0.05)) for _ in range(100)]
    if how == "cancelled":
        await asyncio.to_thread(until_in_line, Plain, "a", 100)
    gc.collect()  # what other tests have left behind is removed by a thread
    with runtime.changed(spawn=spawn), count_requests() as counted:
        for task in tasks if how == "cancelled" else ():
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(error) for error in ended} == {asyncio.CancelledError if how == "cancelled" else LockTimeout}
    assert how == "cancelled" or all("other callers of this process were first" in str(error) for error in ended)
    assert (started, counted.by_operation, in_line(Plain, "a")) == ([], {}, [])
    leader.cancel()
    await asyncio.wait([leader])
    lock.release()


async def test_tasks_that_begin_together_let_others_run(plain_item):
    """Each begins in another pass of the loop, so a thousand of them do not hold it up."""
    passes = 0
    with Plain.locked("a", settings=LAZY):
        tasks = [asyncio.create_task(Plain.locked("a", settings=LAZY).aacquire()) for _ in range(50)]
        while len(in_line(Plain, "a")) < 50:
            await asyncio.sleep(0)
            passes += 1
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert passes >= 50


def local_waiters(
    count: int, *, lease: float = 60, remove: Callable[[Any, str], None] = lambda *_: None
) -> list[local_queue.LocalWaiter]:
    """Enqueue callers that act only by what a test calls for them."""
    row, new = Plain.locked("a")._handle.target.row, lock_requests.NewEntry("of a test", "a test", lease)
    waiters = [local_queue.LocalWaiter(row, new, Mailbox(), 32, remove) for _ in range(count)]
    for waiter in waiters:
        local_queue.enqueue_locally(waiter)
    return waiters


#: What a test lets a caller hand over.
HELD = QueueEntry("held", 1, "first", WHOLE, 60_000, 0, 0, 0, 0)
#: Looks whether the caller that leads is still there.
QUICK = LockSettings(lease=100, wait=math.inf, poll_interval=0.02, max_poll_interval=0.05, request_timeout=10)


def test_who_can_leave_the_line(plain_item):
    """A caller without an entry, whether or not it leads; not the caller whose entry is stored or may be."""
    first, second, third = local_waiters(3)
    assert not local_queue.leave_local_queue(first), "it acts for the others"
    assert local_queue.handover_to_next(first, HELD) is not None
    assert not local_queue.leave_local_queue(second), "a write that stores its entry may be under way"
    local_queue.let_next_lead(first)
    assert not local_queue.leave_local_queue(second), "it has an entry, and does not know of it"
    local_queue.accept_handover(second)
    local_queue.let_next_lead(second)
    assert local_queue.leave_local_queue(third), "it leads, and has not begun to"


def test_the_last_in_line_wakes_the_first_if_the_leader_is_gone(plain_item, clock):
    """A caller that an interrupt has kept from leaving does not hold up the others."""
    [leader] = local_waiters(1)
    with lined_up(Plain, "a", edit(Plain, QUICK, wait=0.5), edit(Plain, QUICK), edit(Plain, QUICK)) as futures:
        clock.jump(0.5)
        with pytest.raises(LockTimeout):  # of the first watcher
            futures[0].result()
        del leader
        let_time_pass(clock)
        assert [future.result()[1] for future in futures[1:]] == [1, 2]


@pytest.mark.parametrize("block", [0, -1, 1.5, "2", True, None, 401])
def test_the_size_of_a_block_is_checked(block):
    with pytest.raises(Exception, match="max_callers_per_entry must be a whole number from 1 to 400"):
        LockSettings(max_callers_per_entry=block)


def test_a_holder_that_hangs_does_not_hold_up_its_process(model, clock):
    """Its lease has ended, so the callers behind it enter by themselves, as other processes would."""
    lock = model.locked("a", settings=QUICK, heartbeat=False).acquire()
    with lined_up(model, "a", edit(model, QUICK), edit(model, QUICK)) as futures:
        clock.jump(QUICK.lease * SLOW_CLOCK)
        assert [future.result()[1] for future in futures] == [1, 2]
    with pytest.raises(LockLost):
        lock.release()


def test_a_task_that_is_cancelled_while_the_lock_is_handed_to_it(plain_item):
    """Its entry is stored after it has left: it is removed, and the caller behind it has its turn."""
    sent, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        sent.set()
        assert go_on.wait(PATIENCE)

    async def cancelled() -> None:
        async with Plain.locked("a", settings=LAZY):
            pytest.fail("it was cancelled")

    async def play() -> None:
        task = asyncio.create_task(cancelled())
        await asyncio.to_thread(sent.wait)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        go_on.set()

    lock = Plain.locked("a", settings=LAZY).acquire()
    with lined_up(Plain, "a", lambda: asyncio.run(play()), edit(Plain)) as futures:
        with on("UpdateItem").before(hold_up):
            lock.release()
        futures[0].result()
        assert futures[1].result()[1] == 1
    until(lambda: Plain.lock_state("a").entries == (), "an empty queue")


def test_a_leader_and_the_caller_after_it_are_gone(plain_item):
    """The leader chose its successor, which left, and was then kept from passing on: the third caller leads."""
    removed = list[str]()
    first, second = local_waiters(2, remove=lambda _, entry: removed.append(entry))
    assert local_queue.handover_to_next(first, HELD) is not None
    local_queue.abandon(second)
    with lined_up(Plain, "a", edit(Plain, QUICK)) as (future,):
        del first
        assert future.result()[1] == 1
    assert removed == ["of a test"]


def test_a_leader_that_stands_still_does_not_hold_up_its_process(plain_item, clock):
    """It shows no sign of life for a lease, so the next caller enters by itself."""
    [leader] = local_waiters(1)
    with lined_up(Plain, "a", edit(Plain, QUICK), edit(Plain, QUICK)) as futures:
        let_time_pass(clock)
        assert sorted(future.result()[1] for future in futures) == [1, 2]
    assert clock.elapsed >= 60
    assert local_queue.tickets_to_reserve(leader) == 1


def test_a_task_that_leads_in_a_loop_that_is_blocked(plain_item, clock):
    """The thread of its loop waits for the same lock: the entry of the task is evicted, and it enters again later."""
    first = Plain.locked("a", settings=ALONE).acquire()

    def release_without(ticket: int) -> None:
        until(lambda: ticket not in [entry.ticket for entry in Plain.lock_state("a").entries], "an eviction")
        first.release()

    async def play() -> list[int]:
        async def work() -> int:
            async with Plain.edit("a", settings=QUICK) as item:
                item.value += 1
            return int(item.value)

        task = asyncio.create_task(work())
        ticket = (await asyncio.to_thread(until_queued, Plain, "a", 2))[1]
        threading.Thread(target=release_without, args=(ticket,)).start()
        let_time_pass(clock)
        return [edit(Plain, QUICK)()[1], await task]  # the first one blocks the loop

    assert asyncio.run(play()) == [1, 2]


def test_a_leader_that_was_thought_dead_and_lives(plain_item, clock):
    """Another one leads after a lease without a sign of life. If that does not come, whoever looks leads."""
    leader, second, third, fourth = local_waiters(4)
    clock.jump(60)
    assert not local_queue.is_leading(fourth), "the second leads"
    local_queue.note_alive(leader, clock.monotonic())
    assert local_queue.tickets_to_reserve(leader) == 1, "it acts for itself alone"
    clock.jump(14)
    assert not local_queue.is_leading(fourth), "the second may still come"
    clock.jump(1)
    assert local_queue.is_leading(fourth), "the third may be a task of the same loop as the second"
    assert local_queue.tickets_to_reserve(fourth) == 2
    assert local_queue.is_leading(second), "it comes late, and acts for itself"
    assert not local_queue.is_leading(third)
    for waiter in (fourth, third, second, leader):
        local_queue.abandon(waiter)


def test_a_leader_that_comes_late_leads_if_nobody_does(plain_item, clock):
    leader, second, third = local_waiters(3)
    local_queue.let_next_lead(leader)
    clock.jump(15)
    assert local_queue.is_leading(second)
    assert not local_queue.is_leading(third)
    assert local_queue.tickets_to_reserve(second) == 2
    for waiter in (third, second):
        local_queue.abandon(waiter)


def test_an_interrupt_while_the_next_caller_is_chosen(plain_item):
    """The leader has left, and the next look of any caller completes the change."""
    first, second, third = local_waiters(3)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with runtime.changed(monotonic=interrupted), pytest.raises(KeyboardInterrupt):
        local_queue.let_next_lead(first)
    assert not local_queue.is_leading(third)
    assert local_queue.is_leading(second)
    for waiter in (third, second):
        local_queue.abandon(waiter)


def test_an_edit_that_deletes_its_item(model):
    """The callers in line hear that there is no item, one after the other, and nothing stays in the queue."""
    lock = model.locked("a", settings=LAZY).acquire()

    def delete() -> None:
        with model.edit("a", settings=LAZY) as item:
            item.delete()

    with lined_up(model, "a", delete, edit(model), edit(model)) as futures:
        lock.release()
        futures[0].result()
        for future in futures[1:]:
            with pytest.raises((ItemNotFound, model.DoesNotExist)):
                future.result()


@pytest.mark.parametrize("order", ["aataa", *(pytest.param(each, marks=pytest.mark.slow) for each in ("attt", "tata"))])
def test_threads_beside_tasks_of_a_loop_that_stands_still(plain_item, clock, order):
    """In line before the threads and behind them, the tasks neither lead nor leave: a thread leads in their place."""
    loop, left = asyncio.new_event_loop(), list[asyncio.Task[int]]()

    async def add_one() -> int:
        async with Plain.edit("a", settings=QUICK) as item:
            item.value += 1
        return int(item.value)

    async def line_up() -> None:
        count = len(in_line(Plain, "a"))
        left.append(asyncio.create_task(add_one()))
        while len(in_line(Plain, "a")) == count:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)

    holder, futures = Plain.locked("a", settings=QUICK).acquire(), list[Future[tuple[int, int]]]()
    with ThreadPoolExecutor(4) as pool:
        for i, each in enumerate(order, start=1):
            if each == "a":
                loop.run_until_complete(line_up())
            else:
                futures.append(pool.submit(edit(Plain, QUICK)))
            until_in_line(Plain, "a", i)
        let_time_pass(clock)
        holder.release()
        assert sorted(future.result()[1] for future in futures) == [*range(1, len(futures) + 1)]
    after = loop.run_until_complete(asyncio.gather(*left)) if left else []
    loop.close()
    assert sorted(after) == [*range(len(futures) + 1, len(order) + 1)]
