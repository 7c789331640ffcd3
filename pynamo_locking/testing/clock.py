"""Virtual time for tests: leases end and items expire without a real wait."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import Self

from pynamo_locking._io import runtime
from pynamo_locking._locks import heartbeat
from pynamo_locking._locks.heartbeat import Heart
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.testing import clock_view
from pynamo_locking.testing._timeline import Condition, Event, Mutex, Timeline
from pynamo_locking.testing.clock_view import ClockView, view_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking.testing.clock_view import TimeSource

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

#: Threads of the library have names that begin so.
_LIBRARY: Final = "pynamo-locking-"


class VirtualClock:
    """Time that passes only when no thread has anything to do.

    Inside its ``with`` block everything in this package uses it: waits, leases, heartbeats, pauses between
    attempts, times of expiry. `time.sleep` and `datetime.now` of the application do not::

        with MemoryDynamoDB(), VirtualClock() as clock:
            Account.create_table()
            Account("a-1").save()
            Account.locked("a-1", heartbeat=False, lease=10).acquire()  # a holder that dies
            with Account.locked("a-1", wait=60):                        # acquires it after a lease
                assert clock.elapsed >= 10

    With `auto_jump` time moves by itself, to the next moment for which a thread waits. It does so when some thread
    waits and all threads of the package itself (heartbeats, batches) wait. Heartbeats alone do not move it: while the
    test computes, time stands still. A thread of the application that was woken by the clock is given up to
    0.1 seconds of real time to wait again or to end. Threads that are new, or busy with something else, do not hold
    time up: if a thread computes while another waits, the waiting thread may time out. Without `auto_jump` only
    `jump` moves time.

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
        self._timeline = Timeline(runtime.Runtime(), auto_jump=auto_jump, keeps_alive=_is_heartbeat)
        self._world: _VirtualRuntime | None = None
        self._hearts = _Hearts()

    def __enter__(self) -> Self:
        if self._world is not None or isinstance(runtime.current, _VirtualRuntime):
            raise ConfigurationError("one VirtualClock at a time, and each once: leave the open block first")
        self._before = runtime.current
        self._world = _VirtualRuntime(self, self._timeline, self._before)
        runtime.install(self._world)
        self._hearts.take_over()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._timeline.close()
        finally:
            self._hearts.give_back()
            runtime.install(self._before)

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
        return self._timeline.elapsed

    @property
    def now(self) -> datetime:
        """The wall clock time, in UTC."""
        return (self._start + timedelta(seconds=self.elapsed)).astimezone(timezone.utc)

    def time_ms(self) -> int:
        """Return wall clock time in ms since the epoch."""
        return self._start_ms + int(self.elapsed * 1000)

    def monotonic(self) -> float:
        """Return seconds that only go up, from an arbitrary beginning."""
        return self._origin + self.elapsed

    def sleep(self, seconds: float) -> None:
        """Let time pass step by step, as `time.sleep` would: heartbeats beat and waiters look meanwhile.

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

    def process(self, skew_s: float = 0.0, drift: float = 0.0) -> VirtualProcess:
        """Return the clocks of another process, to run code as if in it.

        For example::

            with clock.process(skew_s=-120):
                Account.locked("a-1").acquire()

        Args:
            skew_s: seconds by which its wall clock is ahead; negative if it is behind.
            drift: by how much its monotonic clock runs fast, as 0.01 for one percent.

        Raises:
            ConfigurationError: its clock would not go forward.
        """
        return VirtualProcess(self, skew_s, drift)


class VirtualProcess(ClockView):
    """The clocks of one process, made by `VirtualClock.process`.

    In its ``with`` block the running thread or task, and what the package starts for it, uses these clocks, and has a
    heartbeat of its own. Several threads can be in it at once.
    """

    def __enter__(self) -> Self:
        clock_view.enter(self)
        return self

    def __exit__(self, *exception: object) -> None:
        clock_view.leave()


class _VirtualRuntime(runtime.Runtime):
    """The runtime under a virtual clock; the library's threads from before the clock use the runtime before."""

    has_bells = False

    def __init__(self, clock: VirtualClock, timeline: Timeline, before: runtime.Runtime) -> None:
        super().__init__()
        self._clock = clock
        self._timeline = timeline
        self._before = before
        self.monotonic = self._virtual_monotonic

    def _is_from_before(self) -> bool:
        return not self._timeline.runs_thread(_LIBRARY)

    def _clocks(self) -> TimeSource:
        return self._before if self._is_from_before() else view_here() or self._clock

    def _virtual_monotonic(self) -> float:
        return self._clocks().monotonic()

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


class _Hearts:
    """Replaces the heart of this process: by one for each virtual process, so that their clocks do not mix."""

    _former = heartbeat.heart

    def __init__(self) -> None:
        self._by_view: dict[ClockView | None, Heart] = {}
        self._guard = runtime.Runtime().mutex()

    def take_over(self) -> None:
        self._former, heartbeat.heart = heartbeat.heart, cast("Heart", self)

    def give_back(self) -> None:
        heartbeat.heart = self._former

    def add(self, own: HeldEntry) -> None:
        self._mine().add(own)

    def remove(self, own: HeldEntry) -> None:
        self._mine().remove(own)

    def _mine(self) -> Heart:
        view = view_here()
        with self._guard:
            if view not in self._by_view:
                self._by_view[view] = Heart()
            return self._by_view[view]


def _is_heartbeat(name: str) -> bool:
    return name == f"{_LIBRARY}heartbeat"


def _true_seconds(seconds: float) -> float:
    view = view_here()
    return seconds if view is None else view.true_seconds(seconds)
