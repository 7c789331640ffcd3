"""The virtual clock: with real threads, in milliseconds of real time."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace

import pytest

from pynamo_locking import ExpiringMixin, LockableModel, LockSettings, TTLAttribute, locked_all
from pynamo_locking._io import runtime
from pynamo_locking._locks import heartbeat
from pynamo_locking.exceptions import ConfigurationError, ItemLocked, LockLost, LockTimeout
from pynamo_locking_testing import ClockView, MemoryDynamoDB, VirtualClock
from tests.support.models import declare
from tests.support.parties import in_thread

HOUR = 3600
#: Only a broken clock needs as long, in real seconds.
PATIENCE_S = 30


#: An item with a lock and a time of expiry.
Counter = declare(
    "Counter", ExpiringMixin, LockableModel, hash_key="pk", numbers="n", lock=True, expires=TTLAttribute(null=True)
)
Counter.Meta.lock_settings = LockSettings(request_timeout=0.02)


@pytest.fixture
def database():
    """A table in memory, with one item."""
    with MemoryDynamoDB() as database:
        Counter.create_table()
        Counter("a").save()
        yield database


@pytest.fixture
def clock(database):
    """A virtual clock, and the table in memory."""
    with VirtualClock(datetime(2026, 1, 1, tzinfo=timezone.utc)) as clock:
        yield clock


def start(*calls):
    """Run calls in threads; return a function that waits for them and gives their results, errors among them."""
    results = [None] * len(calls)

    def run(index, call):
        try:
            results[index] = call()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[index] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(calls)]
    for thread in threads:
        thread.start()

    def join():
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return results

    return join


def until(is_so):
    """Wait, in real time, for other threads to get there."""
    real = threading.Event()
    assert any(is_so() or real.wait(0.001) for _ in range(1000 * PATIENCE_S))


# Leases, as an application would test them


def test_a_holder_without_heartbeat_expires(clock):
    """The next one gets in after a lease, and the writes of the first are refused."""
    dead = Counter.locked("a", heartbeat=False, lease=10, settings=LockSettings(max_callers_per_entry=1))
    in_thread(dead.acquire)
    with Counter.locked("a", wait=60) as lock:
        assert lock.ticket == dead.ticket + 1
    assert 10 <= clock.elapsed < 20
    with pytest.raises(LockLost):
        dead.item.save()


@pytest.mark.parametrize(("place", "renewals"), [("same process", 2), ("another process", 0)])
def test_a_silent_holder_costs_one_lease(clock, place, renewals):
    """Callers of its process know when it gave its last sign of life. A holder that goes on is not evicted."""
    lock = Counter.locked("a", heartbeat=False, lease=100, settings=LockSettings(max_clock_skew=None))
    in_thread(lock.acquire)
    for _ in range(renewals):
        clock.sleep(50)
        lock.renew()

    def wait_for_it():
        waiter = Counter.locked("a", wait=HOUR, settings=LockSettings(max_clock_skew=None))
        with clock.another_process() if place == "another process" else nullcontext(), waiter:
            return clock.elapsed - 50 * renewals

    assert 105 <= in_thread(wait_for_it) < 110
    with pytest.raises(LockLost):
        lock.renew()


def test_a_waiter_that_stands_still_costs_one_lease(clock):
    """A task has renewed its entry, and then its loop stands still: callers of its process know since when."""
    settings = LockSettings(max_clock_skew=None)
    loop = asyncio.new_event_loop()

    async def renewed():
        while not any(entry.heartbeats for entry in Counter.lock_state("a").waiters):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)

    with clock.another_process():
        holder = Counter.locked("a", lease=100, settings=settings).acquire()
    waiter = loop.create_task(Counter.locked("a", lease=100, wait=HOUR, settings=settings).aacquire())
    loop.run_until_complete(renewed())
    renewed_s = clock.elapsed

    def wait_for_it():
        with Counter.locked("a", wait=HOUR, settings=settings):
            return clock.elapsed

    join = start(wait_for_it)
    with clock.another_process():
        holder.release()
    [acquired_s] = join()
    waiter.cancel()
    loop.run_until_complete(asyncio.gather(waiter, return_exceptions=True))
    loop.close()
    assert renewed_s + 100 <= acquired_s < renewed_s + 130


@pytest.mark.parametrize(("skew", "least", "most"), [(None, 200, 220), (5, 100, 115)])
def test_behind_a_dead_holder_of_several_locks(clock, skew, least, most):
    """Each lock is looked at once those before it are held: without the hint that is a lease for each of them."""
    Counter("b").save()
    settings = LockSettings(max_clock_skew=skew)

    def all_of_them(**options):
        return locked_all(*(Counter.locked(name, settings=settings, **options) for name in "ab"), wait=HOUR)

    dead = all_of_them(heartbeat=False, lease=100)
    with clock.another_process():
        dead.__enter__()
    with clock.another_process(), all_of_them():
        assert least <= clock.elapsed < most


def test_a_holder_with_heartbeat_survives_an_hour(clock):
    """It is renewed hundreds of times meanwhile, and no other caller gets in."""
    with Counter.locked("a", lease=10) as lock:
        clock.sleep(HOUR)
        assert lock.remaining > 0
        assert not lock.lost.is_set()
        with pytest.raises(LockTimeout):
            in_thread(Counter.locked("a", wait=60).acquire)
        lock.item.save()
    assert clock.elapsed == HOUR + 60


def test_a_holder_whose_renewals_are_lost_loses(clock):
    """What an outage does, seen from an application: the event is set, and the callback comes once."""
    reasons = []
    lock = Counter.locked("a", lease=10, on_lost=reasons.append)
    in_thread(lock.acquire)
    clock.auto_jump = False
    thread = heartbeat.heartbeat_thread._thread_of_view()
    with thread._condition:
        thread._due.clear()  # no thread to renew it
    clock.auto_jump = True
    with Counter.locked("a", wait=60):
        pass
    with pytest.raises(LockLost):
        lock.renew()
    assert lock.lost.wait(HOUR)
    clock.sleep(1)
    assert reasons == ["evicted"]
    with pytest.raises(LockLost):
        lock.release()


def test_an_item_expires_after_a_jump(clock):
    """To the second."""
    Counter("b", expires=timedelta(hours=1)).save()
    clock.jump(HOUR - 1)
    assert Counter.get("b").pk == "b"
    clock.jump(1)
    with pytest.raises(Counter.DoesNotExist):
        Counter.get("b")


def test_a_bounded_wait_ends_in_time(clock):
    """After exactly its virtual seconds."""
    with Counter.locked("a"):
        begun = clock.elapsed
        with pytest.raises(LockTimeout):
            in_thread(Counter.locked("a", wait=300).acquire)
        assert clock.elapsed - begun == pytest.approx(300)


def test_a_batch_goes_by_the_clock(clock):
    """Its threads are the library's, and wait for a lock in virtual time."""
    with Counter.guarded_batch() as batch:
        for number in range(30):
            batch.save(Counter(f"b-{number}", expires=timedelta(hours=1)))
    clock.jump(HOUR)
    assert Counter.count("b-7") == 0


# The clock itself


def test_it_tells_the_time(clock):
    """Wall clock, monotonic clock and elapsed seconds go together."""
    assert clock.now == datetime(2026, 1, 1, tzinfo=timezone.utc)
    before = clock.monotonic(), clock.time_ms()
    clock.jump(90.5)
    assert clock.now == datetime(2026, 1, 1, 0, 1, 30, 500_000, tzinfo=timezone.utc)
    assert (clock.monotonic() - before[0], clock.time_ms() - before[1]) == (90.5, 90_500)
    assert clock.elapsed == 90.5
    assert (runtime.current.monotonic(), runtime.current.time_ms()) == (clock.monotonic(), clock.time_ms())


def test_it_starts_with_the_time_of_the_world():
    """So that an application's own `datetime.now` agrees with it at first, and locks from before have their lease."""
    real = runtime.current
    before = real.time_ms()
    with VirtualClock() as clock:
        assert before <= clock.time_ms() <= real.time_ms()
        assert clock.monotonic() - 0.001 <= real.monotonic()


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_time_does_not_go_back(clock, seconds):
    """Nor nowhere."""
    with pytest.raises(ConfigurationError):
        clock.jump(seconds)


def test_a_start_needs_a_time_zone():
    """A naive time would mean another moment on each machine."""
    with pytest.raises(ConfigurationError):
        VirtualClock(datetime(2026, 1, 1))  # noqa: DTZ001


def test_sleepers_wake_in_order(clock):
    """Whatever the order in which they fell asleep."""
    woken = []

    def sleep(seconds):
        clock.sleep(seconds)
        woken.append((seconds, clock.elapsed))

    clock.auto_jump = False
    join = start(*[lambda s=s: sleep(s) for s in (3, 1, 2)])
    until(lambda: len(clock._timeline._sleepers) == 3)
    clock.auto_jump = True
    clock.sleep(10)
    assert join() == [None] * 3
    assert woken == [(1, 1), (2, 2), (3, 3)]


def test_without_auto_jump_time_stands_still(clock):
    """A waiter goes on after a jump, at the new moment."""
    clock.auto_jump = False
    dead = Counter.locked(
        "a", heartbeat=False, lease=10, settings=LockSettings(max_callers_per_entry=1)
    )  # as of another process
    in_thread(dead.acquire)
    entered = threading.Event()

    def wait_for_it():
        entered.set()
        with Counter.locked("a", wait=HOUR) as lock:
            return lock.ticket, clock.elapsed

    join = start(wait_for_it)
    assert entered.wait(PATIENCE_S)
    until(lambda: bool(Counter.lock_state("a").waiters))
    until(lambda: bool(clock._timeline._sleepers))  # a jump wakes what sleeps, and waits for nothing else
    assert clock.elapsed == 0
    for _ in range(8):
        clock.jump(5)
    [(ticket, elapsed)] = join()
    assert ticket == dead.ticket + 1
    assert elapsed in (10, 15, 20, 25)


def test_heartbeats_alone_do_not_move_time(clock):
    """While a test computes with a lock in its hands, time stands still."""
    with Counter.locked("a"):
        until(lambda: bool(clock._timeline._sleepers))
        assert clock.elapsed == 0


def test_events_wait_in_virtual_time(clock):
    """`lock.lost.wait` takes no real time, and hears of a loss at once."""
    with Counter.locked("a") as lock:
        assert lock.lost.wait(HOUR) is False
        assert clock.elapsed == HOUR
        join = start(lambda: lock.lost.wait(HOUR))
        until(lambda: bool([s for s in clock._timeline._sleepers if s.place is lock.lost._changed]))
        lock.lost.set()
        assert join() == [True]
        lock.lost.clear()


def test_mutexes_are_handed_on_in_order(clock):
    """A thread that waits for a mutex does not hold up time, and the owner may take it again."""
    mutex = runtime.current.mutex()
    order = []

    def take(number):
        with mutex:
            order.append(number)
            assert in_thread(lambda: mutex.acquire(blocking=False)) is False
            clock.sleep(1)
            assert in_thread(lambda: mutex.acquire(blocking=False)) is False

    mutex.acquire()
    mutex.acquire()
    joins = []
    for number in range(3):
        joins.append(start(lambda number=number: take(number)))
        until(lambda number=number: len([s for s in clock._timeline._sleepers if s.place is mutex._free]) > number)
    assert in_thread(lambda: mutex.acquire(blocking=False)) is False
    mutex.release()
    assert order == []
    mutex.release()
    assert [join() for join in joins] == [[None]] * 3
    assert order == [0, 1, 2]
    assert clock.elapsed == 3


# Entering and leaving


def test_it_ends_with_its_block(database):
    """The world, the heartbeat and the threads are those from before."""
    before, thread = runtime.current, heartbeat.heartbeat_thread
    with VirtualClock() as clock:
        lock = Counter.locked("a")
        lock.acquire()
        threads = tuple(clock._timeline._threads)
        assert len(threads) == 1
    lock.release()
    assert not threads[0].is_alive()
    assert runtime.current is before
    assert heartbeat.heartbeat_thread is thread


def test_a_second_clock_is_refused(clock):
    """And so is the same one again: its threads have ended."""
    with pytest.raises(ConfigurationError), VirtualClock():
        pass
    other = VirtualClock.__new__(VirtualClock)
    other.__dict__.update(clock.__dict__)
    with pytest.raises(ConfigurationError), other:
        pass


def test_a_thread_that_still_waits_hears_of_the_end():
    """It gets an error, and does not hang for ever."""
    with VirtualClock(auto_jump=False) as clock:
        join = start(lambda: clock.sleep(HOUR))
        until(lambda: bool(clock._timeline._sleepers))
    [error] = join()
    assert isinstance(error, ConfigurationError)
    with pytest.raises(ConfigurationError):
        clock.sleep(1)


@pytest.mark.waits
def test_a_lock_from_before_lives_in_real_time(database):
    """The heartbeat of the process goes on by the real clock, and renews only what is really old."""
    with Counter.locked("a", lease=9) as lock:  # renewed after 3 s; 6 s more for a machine that is busy
        before = lock._handle.entry.clock.deadline
        with VirtualClock() as clock:
            clock.jump(HOUR)
            renewed = threading.Event()
            handle = database.handle

            def see(operation, kwargs):
                answer = handle(operation, kwargs)
                if operation == "UpdateItem":
                    renewed.set()
                return answer

            database.handle = see
            assert renewed.wait(PATIENCE_S), (lock.lost.is_set(), [thread.name for thread in threading.enumerate()])
        assert before <= lock._handle.entry.clock.deadline < before + 60
        assert not lock.lost.is_set()


def test_a_lock_from_before_keeps_its_lease(database):
    """What is left of it does not change because the clock does."""
    with Counter.locked("a", lease=HOUR) as lock, VirtualClock() as clock:
        assert 0 < lock.remaining <= HOUR
        clock.jump(HOUR)
        assert lock.remaining == 0


# Other processes


def test_a_view_is_ahead_and_fast():
    """The wall clock by an offset, the monotonic one by a rate since the view was made."""
    source = SimpleNamespace(monotonic=lambda: now[0], time_ms=lambda: int(now[0] * 1000))
    now = [100.0]
    view = ClockView(source, skew_s=-2.5, drift=0.25)
    assert (view.monotonic(), view.time_ms()) == (100.0, 97_500)
    now[0] = 108.0
    assert (view.monotonic(), view.time_ms()) == (110.0, 105_500)
    assert view.true_seconds(10) == 8


@pytest.mark.parametrize("drift", [-1, -2, float("nan")])
def test_a_clock_goes_forward(drift):
    """A process whose clock stands still would wait for ever."""
    with pytest.raises(ConfigurationError):
        ClockView(SimpleNamespace(monotonic=lambda: 0.0, time_ms=lambda: 0), drift=drift)


def test_processes_differ(clock):
    """Each has its own clocks, and code in it goes by them."""
    ahead, fast = clock.another_process(skew_s=60), clock.another_process(drift=0.5)
    clock.jump(10)
    with ahead:
        assert runtime.current.time_ms() == clock.time_ms() + 60_000
        with fast:
            assert runtime.current.monotonic() == clock.monotonic() + 5
            assert runtime.current.time_ms() == clock.time_ms()
            runtime.current.sleep(15)
        assert runtime.current.monotonic() == clock.monotonic()
    assert runtime.current.time_ms() == clock.time_ms()
    assert clock.elapsed == 20


def test_a_process_sees_items_expire_early(clock):
    """The clock of the one who asks decides."""
    Counter("b", expires=timedelta(minutes=1)).save()
    with clock.another_process(skew_s=61):
        assert Counter.count("b") == 0
    assert Counter.count("b") == 1


def test_heartbeats_of_a_drifting_process_keep_its_lock(clock):
    """Its heartbeat goes by the same clocks as its lease, however far they are from the true ones."""
    process = clock.another_process(skew_s=300, drift=-0.02)
    clock.jump(HOUR)
    with process:
        lock = Counter.locked("a", lease=10)
        lock.acquire()
    with pytest.raises(LockTimeout):
        in_thread(Counter.locked("a", wait=300).acquire)
    assert not lock.lost.is_set()
    with process:
        assert 0 < lock.remaining <= 10
        lock.release()


def test_a_process_is_another_party(clock):
    """Code in it holds none of the locks of the code around it, and still has its own the next time."""
    ours, theirs = clock.another_process(), clock.another_process()
    with ours:
        lock = Counter.locked("a")
        lock.acquire()
    with theirs:
        with pytest.raises(LockTimeout):
            Counter.locked("a", wait=5).acquire()
        with pytest.raises(ItemLocked):
            Counter.get("a").update([Counter.n.set(1)])
    with ours:
        with Counter.locked("a", wait=0) as again:
            again.item.save()
        lock.release()


def test_callers_of_two_processes_share_no_entry(clock):
    """Each process has a line of its own."""
    clock.auto_jump = False

    def wait_in(process):
        with process, Counter.locked("a"):
            pass

    with Counter.locked("a"):
        join = start(*(partial(wait_in, clock.another_process()) for _ in range(2)))
        until(lambda: len(Counter.lock_state("a").waiters) == 2)
        clock.auto_jump = True
    join()


async def test_a_task_waits_in_virtual_time(clock):
    """For a holder that dies, and until its own deadline."""
    in_thread(Counter.locked("a", heartbeat=False, lease=100, settings=LockSettings(max_callers_per_entry=1)).acquire)
    with pytest.raises(LockTimeout):
        await asyncio.wait_for(Counter.locked("a", wait=5).aacquire(), PATIENCE_S)
    assert clock.elapsed == pytest.approx(5)
    async with Counter.locked("a", wait=HOUR):
        assert 100 <= clock.elapsed < 120


def test_waits_go_by_the_clock_of_the_process(clock):
    """A fast clock ends them early."""
    with Counter.locked("a"), clock.another_process(drift=1):
        begun = clock.elapsed
        context = contextvars.copy_context()
        with pytest.raises(LockTimeout):
            in_thread(lambda: context.run(Counter.locked("a", wait=100).acquire))
        assert clock.elapsed - begun == pytest.approx(50)


def test_the_database_has_the_true_time(clock):
    """Whichever process asks: a token of a transaction does not age because a caller's clock is wrong."""
    database = MemoryDynamoDB()
    with clock.another_process(skew_s=3600):
        assert database.time_ms() == clock.time_ms()
