"""Virtual time for real threads: which of them wait, which run, and when time may move."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from typing import TYPE_CHECKING, Final

from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._io.runtime import Runtime

#: For so long time waits for a thread of the application that it has woken, and that does something real.
_PATIENCE_S: Final = 0.1

#: The pause between two checks whether such a thread has ended.
_LOOK_S: Final = 0.005


class Closed(BaseException):
    """Ends a thread of the library that waits in a timeline that has ended."""


class Sleeper:
    """A thread that waits for a moment on the timeline, or to be told at a place (a condition) before."""

    def __init__(self, place: object, until: float) -> None:
        self.place = place
        self.until = until
        self.was_told = False
        self.thread = threading.current_thread()
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        """Wake the thread."""
        self._bell.release()

    def rest(self) -> None:
        """Wait to be woken."""
        self._bell.acquire()


class Timeline:
    """Elapsed virtual seconds, and the threads that wait on them.

    Threads of the library are those that were started by `spawn`. Time moves by itself to the next moment for which a
    thread waits. It does so when no thread of the library runs, and no thread that was just woken. It does not move
    for threads that only keep locks alive; `keeps_alive` recognises them by their names.
    """

    def __init__(self, real: Runtime, *, auto_jump: bool, keeps_alive: Callable[[str], bool]) -> None:
        self.elapsed = 0.0
        self.auto_jump = auto_jump
        self.is_closed = False
        self._real = real
        self._keeps_alive = keeps_alive
        self._guard = threading.RLock()
        self._sleepers: list[Sleeper] = []
        self._threads: set[threading.Thread] = set()
        self._running: set[threading.Thread] = set()  # of the library
        self._woken: dict[threading.Thread, float] = {}  # of the application, and until when time waits for each
        self._is_watched = False

    # For the threads that wait

    def wait(self, place: object, seconds: float | None) -> bool:
        """Wait to be told at a place, or for a time; return whether told.

        If the timeline ends meanwhile, a thread of the library gets `Closed`, all others a `ConfigurationError`.
        """
        sleeper = self.fall_asleep(place, seconds)
        self.sleep_on(sleeper)
        return sleeper.was_told

    def fall_asleep(self, place: object, seconds: float | None) -> Sleeper:
        """Note that the running thread waits from now on; it can be told before it calls `sleep_on`."""
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

    def tell(self, place: object, limit: int | None = None) -> Sleeper | None:
        """Wake the threads that wait at a place, in the order of their arrival; return the last one woken."""
        woken = None
        with self._guard:
            for sleeper in [s for s in self._sleepers if s.place is place][:limit]:
                sleeper.was_told = True
                self._wake(sleeper)
                woken = sleeper
        return woken

    def jump(self, seconds: float) -> None:
        """Move time, and wake every thread whose moment has come by then, all at the new moment."""
        with self._guard:
            self._wake_all(self.elapsed + seconds)

    def _move(self) -> None:
        """Move time if no thread runs that it has to wait for."""
        now = time.monotonic()
        self._woken = {thread: until for thread, until in self._woken.items() if until > now and thread.is_alive()}
        if self._running or self._woken:
            return
        worth = any(not self._keeps_alive(sleeper.thread.name) for sleeper in self._sleepers)
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
            self._woken[sleeper.thread] = time.monotonic() + _PATIENCE_S
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="virtual-clock", daemon=True).start()
        sleeper.ring()

    def _watch(self) -> None:
        """Let time go on without woken threads that have ended, or do something real for too long."""
        while self._is_watched:
            time.sleep(_LOOK_S)
            with self._guard:
                self._move()
                self._is_watched = bool(self._woken)

    # Threads of the library

    def runs_thread(self, prefix: str) -> bool:
        """Tell whether the running thread was started by `spawn`, or has a name that does not begin so."""
        thread = threading.current_thread()
        return thread in self._threads or not thread.name.startswith(prefix)

    def spawn(self, target: Callable[[], None], name: str) -> None:
        """Start a daemon thread, in the context of the caller."""
        context = contextvars.copy_context()
        begun = threading.Lock()
        begun.acquire()

        def run() -> None:
            with self._guard:
                thread = threading.current_thread()
                self._threads.add(thread)
                self._running.add(thread)
            begun.release()
            try:
                context.run(target)
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
        return sleeper.was_told

    def notify(self, n: int = 1) -> None:
        """Wake up to `n` of the threads that wait."""
        self._timeline.tell(self, n)

    def notify_all(self) -> None:
        """Wake all threads that wait."""
        self._timeline.tell(self)


class Mutex:
    """As `threading.RLock`, on a timeline. Its owner may sleep there, and threads that wait do not hold up time."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._inside = threading.RLock()
        self._owner: threading.Thread | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True) -> bool:  # noqa: FBT001, FBT002 - as threading has it
        """Acquire the mutex; return whether it was acquired."""
        thread = threading.current_thread()
        with self._inside:
            if self._owner in (None, thread):
                self._owner = thread
                self._depth += 1
                return True
            if not blocking:
                return False
            sleeper = self._timeline.fall_asleep(self, None)
        try:
            self._timeline.sleep_on(sleeper)
        except BaseException:
            with self._inside:
                if self._owner is thread:
                    self.release()
            raise
        return True  # `release` has made this thread the owner

    def release(self) -> None:
        """Release the mutex; the thread that has waited longest is its next owner."""
        with self._inside:
            self._depth -= 1
            if self._depth:
                return
            heir = self._timeline.tell(self, 1)
            self._owner = None if heir is None else heir.thread
            self._depth = 0 if heir is None else 1

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
