"""Virtual time for tests: leases end and items expire without a real wait."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from contextlib import ExitStack
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, Protocol

from typing_extensions import Self

from pynamo_locking._io import runtime
from pynamo_locking._locks import context, heartbeat, local_queue
from pynamo_locking._locks.heartbeat import HeartbeatThread
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamo_locking._io.runtime import Runtime
    from pynamo_locking._locks.held_lock import HeldEntry


#: For so many looks time waits for a thread of the application that it has woken, and that does something real. They
#: are counted, not timed: on a machine that is busy with other processes, the thread and who looks are late together.
_MOST_LOOKS: Final = 20

#: The pause between two looks.
_LOOK_S: Final = 0.005


#: Threads of the library have names that begin so. That of the heartbeat only keeps locks alive.
_LIBRARY: Final = "pynamo-locking-"
_HEARTBEAT: Final = f"{_LIBRARY}heartbeat"


class Closed(BaseException):
    """Ends a thread of the library that waits in a timeline that has ended."""


class Sleeper:
    """A thread that waits for a moment on the timeline, or for a notification at a place (a condition) before."""

    def __init__(self, place: object, until: float) -> None:
        self.place = place
        self.until = until
        self.was_notified = False
        self.thread: threading.Thread = threading.current_thread()
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def wake(self) -> None:
        """Wake the thread."""
        self._wakeup.release()

    def rest(self) -> None:
        """Wait to be woken."""
        self._wakeup.acquire()


class Timeline:
    """Elapsed virtual seconds, and the threads that wait on them.

    Threads of the library are those that were started by `spawn`. Time moves by itself to the next moment for which a
    thread waits. It does so when no thread of the library runs, and no thread that was just woken. It does not move
    for a thread that only keeps locks alive.
    """

    def __init__(self, real: Runtime, *, auto_jump: bool) -> None:
        self.elapsed: float = 0.0
        self.auto_jump = auto_jump
        self.is_closed: bool = False
        self._real = real
        self._guard = threading.RLock()
        self._sleepers: list[Sleeper] = []
        self._threads: set[threading.Thread] = set()
        self._running: set[threading.Thread] = set()  # of the library
        self._woken: dict[threading.Thread, int] = {}  # of the application: for how many more looks time waits
        self._is_watched = False

    # For the threads that wait

    def wait(self, place: object, seconds: float | None) -> bool:
        """Wait for a notification at a place, or for a time; return whether there was one.

        If the timeline ends meanwhile, a thread of the library gets `Closed`, all others a `ConfigurationError`.
        """
        sleeper = self.fall_asleep(place, seconds)
        self.sleep_on(sleeper)
        return sleeper.was_notified

    def fall_asleep(self, place: object, seconds: float | None) -> Sleeper:
        """Note that the running thread waits from now on; it can be notified before it calls `sleep_on`."""
        with self._guard:
            self._refuse_if_closed()
            sleeper = Sleeper(place, math.inf if seconds is None else self.elapsed + max(0.0, seconds))
            self._sleepers.append(sleeper)
            self._running.discard(sleeper.thread)
            self._woken.pop(sleeper.thread, None)
            self._move()
            return sleeper

    def sleep_on(self, sleeper: Sleeper) -> None:
        """Wait until the sleeper is woken."""
        try:
            sleeper.rest()
        except BaseException:  # an interrupt, most likely
            with self._guard:
                if sleeper in self._sleepers:
                    self._wake(sleeper)
            raise
        self._refuse_if_closed()

    def _refuse_if_closed(self) -> None:
        if not self.is_closed:
            return
        if threading.current_thread() in self._threads:
            raise Closed
        raise ConfigurationError(
            "the `with` block of the VirtualClock was left while this thread waited in it, or used something that "
            "was made in it: let threads end inside of the block."
        )

    # For those that wake them

    def tell(self, place: object, limit: int | None = None) -> None:
        """Wake the threads that wait at a place, in the order of their arrival."""
        with self._guard:
            for sleeper in [s for s in self._sleepers if s.place is place][:limit]:
                sleeper.was_notified = True
                self._wake(sleeper)

    def jump(self, seconds: float) -> None:
        """Move time, and wake every thread whose moment has come by then, all at the new moment."""
        with self._guard:
            self._wake_all(self.elapsed + seconds)

    def _move(self) -> None:
        """Move time if no thread runs that it has to wait for."""
        self._woken = {thread: looks for thread, looks in self._woken.items() if looks and thread.is_alive()}
        if self._running or self._woken:
            return
        worth = any(sleeper.thread.name != _HEARTBEAT for sleeper in self._sleepers)
        until = min((sleeper.until for sleeper in self._sleepers), default=math.inf)
        if until <= self.elapsed or (self.auto_jump and worth and until < math.inf):
            self._wake_all(max(self.elapsed, until))

    def _wake_all(self, until: float) -> None:
        self.elapsed = until
        for sleeper in sorted(self._sleepers, key=lambda sleeper: sleeper.until):
            if sleeper.until <= until:
                self._wake(sleeper)

    def _wake(self, sleeper: Sleeper) -> None:
        """Wake a thread. It counts as running from this moment, and not only from when it really runs."""
        self._sleepers.remove(sleeper)
        if sleeper.thread in self._threads:
            self._running.add(sleeper.thread)
        else:
            self._woken[sleeper.thread] = _MOST_LOOKS
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="virtual-clock", daemon=True).start()
        sleeper.wake()

    def _watch(self) -> None:
        """Let time go on without woken threads that have ended, or do something real for too long."""
        while self._is_watched:
            time.sleep(_LOOK_S)
            with self._guard:
                self._woken = {thread: looks - 1 for thread, looks in self._woken.items()}
                self._move()
                self._is_watched = bool(self._woken)

    # Threads of the library

    def runs_thread(self) -> bool:
        """Tell whether the running thread was started by `spawn`, or is one of the application."""
        thread = threading.current_thread()
        return thread in self._threads or not thread.name.startswith(_LIBRARY)

    def spawn(self, target: Callable[[], None], name: str) -> None:
        """Start a daemon thread, in the context of the caller."""
        of_caller = contextvars.copy_context()
        begun = threading.Lock()
        begun.acquire()

        def run() -> None:
            with self._guard:
                thread = threading.current_thread()
                self._threads.add(thread)
                self._running.add(thread)
            begun.release()
            try:
                of_caller.run(target)
            except Closed:
                pass
            finally:
                with self._guard:
                    self._threads.discard(thread)
                    self._running.discard(thread)
                    self._move()

        if self.is_closed:
            return
        self._real.spawn(run, name)
        begun.acquire()  # it counts as running before the caller can wait for it

    def close(self) -> None:
        """Wake all threads, and let those of the library end."""
        with self._guard:
            self.is_closed = True
            for sleeper in tuple(self._sleepers):
                self._wake(sleeper)
            threads = tuple(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=10)  # only one that is stuck in something real needs as long


class Condition:
    """As `threading.Condition`, on a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._mutex = threading.RLock()
        self._depth = 0

    def __enter__(self) -> None:
        self._mutex.acquire()
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        self._mutex.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification or for so many seconds; return whether notified."""
        sleeper = self._timeline.fall_asleep(self, timeout)
        depth, self._depth = self._depth, 0
        for _ in range(depth):
            self._mutex.release()
        try:
            self._timeline.sleep_on(sleeper)
        finally:
            for _ in range(depth):
                self._mutex.acquire()
            self._depth = depth
        return sleeper.was_notified

    def notify(self, n: int = 1) -> None:
        """Wake up to `n` of the threads that wait."""
        self._timeline.tell(self, n)

    def notify_all(self) -> None:
        """Wake all threads that wait."""
        self._timeline.tell(self)


class Mutex:
    """As `threading.RLock`, on a timeline. Its owner may sleep there, and threads that wait do not hold up time."""

    def __init__(self, timeline: Timeline) -> None:
        self._free = Condition(timeline)
        self._owner: threading.Thread | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True) -> bool:  # noqa: FBT001, FBT002 - as threading has it
        """Acquire the mutex; return whether it was acquired."""
        thread = threading.current_thread()
        with self._free:
            while self._owner not in (None, thread):
                if not blocking:
                    return False
                try:
                    self._free.wait()
                except BaseException:
                    self._free.notify()  # it may have been woken: the next one takes the mutex
                    raise
            self._owner = thread
            self._depth += 1
        return True

    def release(self) -> None:
        """Release the mutex, and wake the thread that has waited longest."""
        with self._free:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._free.notify()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class Event(threading.Event):
    """As `threading.Event`, on a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self._timeline = timeline
        self._changed = Condition(timeline)

    def set(self) -> None:
        """Set the event, and wake all threads that wait for it."""
        super().set()
        with self._changed:
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, or for so many seconds; return whether it is set."""
        if self._timeline.is_closed:
            return super().wait(timeout)
        with self._changed:
            if not self.is_set():
                self._changed.wait(timeout)
        return self.is_set()


# The clocks of one process, as a view of the true time. Pure: no threads, nothing that waits.


class TimeSource(Protocol):
    """Two clocks, as a process has them."""

    def monotonic(self) -> float:
        """Return seconds that only go up, from an arbitrary beginning."""
        ...

    def time_ms(self) -> int:
        """Return wall clock time in ms since the epoch."""
        ...


class ClockView:
    """The clocks of a process whose wall clock is set wrongly, or whose monotonic clock runs at another rate.

    The monotonic clock agrees with the source's at the moment at which the view is made.

    Args:
        source: the true time.
        skew_s: seconds by which the wall clock is ahead; negative if it is behind.
        drift: by how much the monotonic clock runs fast: at 0.01 it counts 101 seconds in 100; negative if it runs
            slow. More than -1.

    Raises:
        ConfigurationError: the clock would stand still or run backwards.
    """

    def __init__(self, source: TimeSource, skew_s: float = 0.0, drift: float = 0.0) -> None:
        if not drift > -1:
            raise ConfigurationError(f"drift must be more than -1, not {drift!r}: the clock would not go forward")
        self.skew_s = skew_s
        self.drift = drift
        self._source = source
        self._origin = source.monotonic()

    def monotonic(self) -> float:
        """Return seconds that only go up, at this process's rate."""
        return self._origin + (self._source.monotonic() - self._origin) * (1 + self.drift)

    def time_ms(self) -> int:
        """Return this process's wall clock time in ms since the epoch."""
        return self._source.time_ms() + self.skew_ms

    @property
    def skew_ms(self) -> int:
        """Milliseconds by which the wall clock is ahead."""
        return round(self.skew_s * 1000)

    def true_seconds(self, seconds: float) -> float:
        """Return how many seconds of the source pass while so many pass here.

        Args:
            seconds: a duration on this process's monotonic clock.
        """
        return seconds / (1 + self.drift)


#: The views that the running code has entered, the last one counts. By context: threads it starts inherit it.
_ENTERED: Final[ContextVar[tuple[ClockView, ...]]] = ContextVar("pynamo_locking_clock_views", default=())


def view_here() -> ClockView | None:
    """Return the view that the running code belongs to; None: it has the true time."""
    return _ENTERED.get()[-1] if _ENTERED.get() else None


# Virtual time for tests: leases end and items expire without a real wait.


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class VirtualClock:
    """Time that passes only when no thread has anything to do.

    Inside its ``with`` block everything in this package uses it: waits, leases, heartbeats, pauses between attempts,
    times of expiry. `time.sleep` and `datetime.now` of the application do not.

    Example::

        with MemoryDynamoDB(), VirtualClock() as clock:
            Account.create_table()
            Account("a-1").save()
            # A holder that dies, and a waiter that acquires the lock after its lease.
            with clock.another_process():
                Account.locked("a-1", heartbeat=False, lease=10).acquire()
            with Account.locked("a-1", wait=60):
                assert clock.elapsed >= 10

    With `auto_jump` time moves by itself, to the next moment for which a thread waits. It does so when some thread
    waits and all threads of the package itself (heartbeats, batches) wait. Heartbeats alone do not move it: while the
    test computes, time stands still. A thread of the application that was woken by the clock is given about 0.1 seconds
    of real time to wait again or to end, more on a busy machine. Threads that are new, or busy with something else, do
    not hold time up: if a thread computes while another waits, the waiting thread may time out. Without `auto_jump`
    only `jump` moves time.

    It uses real threads, and is thread-safe. Locks that this process held before are still renewed in real time; what
    is left of their lease is right to a millisecond when the block begins. When the block is left, heartbeats of locks
    acquired inside end, and threads that still wait inside get a `ConfigurationError`.

    Args:
        start: what the wall clock shows at first; now by default.
        auto_jump: whether time moves by itself.

    Raises:
        ConfigurationError: `start` has no time zone.
    """

    def __init__(self, start: datetime | None = None, *, auto_jump: bool = True) -> None:
        if start is not None and start.tzinfo is None:
            raise ConfigurationError("a VirtualClock's start needs a time zone, as timezone.utc")
        self._before = runtime.current
        self._start = start or _EPOCH + timedelta(milliseconds=self._before.time_ms())
        self._start_ms = (self._start - _EPOCH) // timedelta(milliseconds=1)
        # As the real one, for locks from before; in steps of a power of two, so that sums with whole seconds are exact.
        self._origin = math.ceil(self._before.monotonic() * 1024) / 1024
        self._timeline = Timeline(runtime.Runtime(), auto_jump=auto_jump)
        self._world: _VirtualRuntime | None = None
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        if self._world is not None or isinstance(runtime.current, _VirtualRuntime):
            raise ConfigurationError("one VirtualClock at a time, and each once: leave the open block first")
        self._before = runtime.current
        self._world = _VirtualRuntime(self, self._timeline, self._before)
        self._ends.callback(runtime.install, self._before)
        runtime.install(self._world)
        mine = (heartbeat, "heartbeat_thread", _Heartbeats()), (local_queue, "local_queues", _LocalQueues())
        for module, name, of_each_process in mine:
            self._ends.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, of_each_process)
        self._ends.callback(self._timeline.close)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.close()

    @property
    def auto_jump(self) -> bool:
        """Whether time moves by itself; can be changed."""
        return self._timeline.auto_jump

    @auto_jump.setter
    def auto_jump(self, value: bool) -> None:
        self._timeline.auto_jump = value

    @property
    def elapsed(self) -> float:
        """Virtual seconds since the clock was made."""
        return round(self._timeline.elapsed, 9)  # sums of pauses are not exact

    @property
    def now(self) -> datetime:
        """The wall clock time, in UTC."""
        return (self._start + timedelta(seconds=self.elapsed)).astimezone(timezone.utc)

    def time_ms(self) -> int:
        """Return wall clock time in ms since the epoch."""
        return self._start_ms + int(self.elapsed * 1000)

    def monotonic(self) -> float:
        """Return seconds that only go up, from an arbitrary beginning."""
        return self._origin + self._timeline.elapsed

    def sleep(self, seconds: float) -> None:
        """Let time pass step by step, as `time.sleep` would: holders renew and waiters poll meanwhile.

        Args:
            seconds: how long, in virtual seconds.

        Raises:
            ConfigurationError: the block of the clock was left meanwhile.
        """
        self._timeline.wait(None, seconds)

    def jump(self, seconds: float) -> None:
        """Move time in one step, as if this process had been stopped for so long: nothing happens in between.

        Every thread whose moment has come wakes at the new moment, however late that is for it. Returns when the
        threads that it woke have come to rest.

        Args:
            seconds: how far, in virtual seconds; not negative.

        Raises:
            ConfigurationError: time does not go back.
        """
        if not 0 <= seconds < math.inf:
            raise ConfigurationError(f"jump({seconds!r}): time goes forward, by a finite number of seconds")
        self._timeline.jump(seconds)
        self._timeline.wait(None, 0)

    def another_process(self, skew_s: float = 0.0, drift: float = 0.0) -> VirtualProcess:
        """Return another process, with separate clocks, to run code as if in it.

        Example::

            with VirtualClock() as clock, Account.locked("a-1"):
                with clock.another_process(skew_s=-120), pytest.raises(LockTimeout):
                    Account.locked("a-1", wait=0).acquire()

        Args:
            skew_s: seconds by which its wall clock is ahead; negative if it is behind.
            drift: by how much its monotonic clock runs fast, as 0.01 for one percent.

        Raises:
            ConfigurationError: its clock would not go forward.
        """
        return VirtualProcess(self, skew_s, drift)


class VirtualProcess(ClockView):
    """The clocks of one process, made by `VirtualClock.another_process`.

    In its ``with`` block the running thread or task, and what the package starts for it, uses these clocks, has a
    separate heartbeat, and is another lock owner: it holds only the locks that it has acquired in such blocks. Several
    threads can be in it at once. The ids of entries, the owner label, `os.getpid` and models stay those of the real
    process.
    """

    def __enter__(self) -> Self:
        _set_views((*_ENTERED.get(), self))
        return self

    def __exit__(self, *exception: object) -> None:
        _set_views(_ENTERED.get()[:-1])


#: What the running code holds in the processes that it has left, to enter them again.
_HELD: Final[ContextVar[Mapping[ClockView | None, Any]]] = ContextVar("pynamo_locking_held_by_view", default={})  # noqa: B039 - never mutated


def _set_views(views: tuple[ClockView, ...]) -> None:
    """Let the running code be in the last of these, with the locks that it holds there."""
    held = {**_HELD.get(), view_here(): context.held_by_context.get()}
    _HELD.set(held)
    _ENTERED.set(views)
    context.held_by_context.set(held.get(view_here(), {}))


class _LocalQueues(dict[Any, Any]):
    """The lines of callers of each virtual process."""

    def get(self, key: object, default: Any = None) -> Any:
        return super().get((view_here(), key), default)

    def __setitem__(self, key: object, queue: Any) -> None:
        super().__setitem__((view_here(), key), queue)

    def __delitem__(self, key: object) -> None:
        super().__delitem__((view_here(), key))


class _VirtualRuntime(runtime.Runtime):
    """The runtime under a virtual clock; the library's threads from before the clock use the runtime before."""

    has_wakeups = False
    has_real_time = False

    def __init__(self, clock: VirtualClock, timeline: Timeline, before: runtime.Runtime) -> None:
        super().__init__()
        self._clock = clock
        self._timeline = timeline
        self._before = before
        self.monotonic = lambda: self._clocks().monotonic()

    def _is_from_before(self) -> bool:
        return not self._timeline.runs_thread()

    def _clocks(self) -> TimeSource:
        return self._before if self._is_from_before() else view_here() or self._clock

    def time_us(self) -> int:
        return self._clocks().time_ms() * 1000

    def event(self) -> Any:
        return self._before.event() if self._is_from_before() else Event(self._timeline)

    def mutex(self) -> Any:
        return self._before.mutex() if self._is_from_before() else Mutex(self._timeline)

    def condition(self) -> Any:
        return self._before.condition() if self._is_from_before() else Condition(self._timeline)

    def wait(self, condition: Any, timeout: float | None) -> bool:
        if not isinstance(condition, Condition):
            return self._before.wait(condition, timeout)
        return condition.wait(None if timeout is None else _true_seconds(timeout))

    def sleep(self, seconds: float) -> None:
        if self._is_from_before():
            self._before.sleep(seconds)
        else:
            self._clock.sleep(_true_seconds(seconds))

    def spawn(self, target: Callable[[], None], name: str) -> None:
        if self._is_from_before():
            self._before.spawn(target, name)
        else:
            self._timeline.spawn(target, name)


class _Heartbeats:
    """Replaces the heartbeat of this process: by one for each virtual process, so that their clocks do not mix."""

    def __init__(self) -> None:
        self._by_view: dict[ClockView | None, HeartbeatThread] = {}
        self._guard = runtime.Runtime().mutex()

    def add(self, held: HeldEntry) -> None:
        self._thread_of_view().add(held)

    def remove(self, held: HeldEntry) -> None:
        self._thread_of_view().remove(held)

    def _thread_of_view(self) -> HeartbeatThread:
        view = view_here()
        with self._guard:
            if view not in self._by_view:
                self._by_view[view] = HeartbeatThread()
            return self._by_view[view]


def _true_seconds(seconds: float) -> float:
    view = view_here()
    return seconds if view is None else view.true_seconds(seconds)
