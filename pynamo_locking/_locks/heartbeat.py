"""One thread per process renews the entries of all held locks.

Entries wait in a heap by the time of their next renewal. One thread serves them. While it is busy, another thread
watches the heap; while requests are slow, a few more help, and end again. No caller can block the heartbeat: adding and
removing only touch the heap, and every request has the lock's short timeouts.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Final, Protocol

from pynamo_locking._core.lease import next_renewal, retry_delay
from pynamo_locking._io import runtime
from pynamo_locking._io.client import Unavailable
from pynamo_locking._io.runtime import logger
from pynamo_locking._locks.lock_events import HeldFacts
from pynamo_locking.exceptions import LockLost

#: Requests in flight at once; at 20 ms a request that is 400 renewals per second.
MAX_THREADS: Final = 8

#: A thread without work for this long ends.
_IDLE_S: Final = 5.0

#: Released entries are removed from the heap once they are this many and the majority.
_SWEEP_AT: Final = 64


class Renewable(HeldFacts, Protocol):
    """What the heartbeat asks of a held entry."""

    def is_allowed(self) -> bool: ...

    def renew(self) -> None: ...


class HeartbeatThread:
    """The set of entries to renew, and the threads that do it."""

    def __init__(self) -> None:
        self._condition = runtime.current.condition()
        self._due: list[tuple[float, int, Renewable]] = []
        self._order = itertools.count()
        self._threads = 0
        self._idle = 0
        self._released = 0

    def add(self, held: Renewable) -> None:
        """Renew an entry from now on, a third of its lease after its last renewal began."""
        self._push(held, next_renewal(held.clock.started, held.entry.lease))

    def remove(self, held: Renewable) -> None:  # noqa: ARG002 - the entry itself says that it has ended
        """Note that an entry needs no more renewals; the heap is swept from time to time."""
        with self._condition:
            self._released += 1
            if self._released > _SWEEP_AT and self._released * 2 > len(self._due):
                self._due = list(item for item in self._due if not item[2].ownership.is_over)
                heapq.heapify(self._due)
                self._released = 0

    def _push(self, held: Renewable, due: float) -> None:
        with self._condition:
            heapq.heappush(self._due, (min(due, held.clock.ends_at), next(self._order), held))
            if self._idle == 0:
                self._start_thread()
            elif self._due[0][2] is held:
                self._condition.notify()

    def _start_thread(self) -> None:
        """Let another thread watch the heap, unless there are enough."""
        if self._threads < MAX_THREADS:
            try:
                runtime.current.spawn(self._serve, name="pynamo-locking-heartbeat")
            except RuntimeError:
                if self._threads == 0:
                    raise  # no thread would renew
                logger.warning("no thread to help the heartbeat", exc_info=True)
            else:
                self._threads += 1

    def _serve(self) -> None:
        try:
            while (held := self._next()) is not None:
                try:
                    due = self._renew(held)
                except BaseException:
                    self._push(held, self._soon(held))  # even if this thread dies, the entry is renewed
                    raise
                if due is not None:
                    self._push(held, due)
        finally:
            with self._condition:
                self._threads -= 1
                if self._due and self._idle == 0:
                    self._start_thread()

    def _next(self) -> Renewable | None:
        """Wait for the next entry that is due. None: this thread is not needed."""
        with self._condition:
            return self._wait_until_due()

    def _wait_until_due(self) -> Renewable | None:
        while True:
            wait = self._due[0][0] - runtime.current.monotonic() if self._due else _IDLE_S
            if self._due and wait <= 0:
                return self._take()
            self._idle += 1
            try:
                was_notified = runtime.current.wait(self._condition, min(wait, _IDLE_S) if self._idle > 1 else wait)
            finally:
                self._idle -= 1
            is_due = bool(self._due) and self._due[0][0] <= runtime.current.monotonic()
            if not was_notified and not is_due and (self._idle > 0 or not self._due):
                self._condition.notify()  # the thread that stays may not know of the newest entry
                return None

    def _take(self) -> Renewable:
        """Take the first entry, and let another thread watch: this one may be busy for long."""
        held = heapq.heappop(self._due)[2]
        if self._due and self._idle > 0:
            self._condition.notify()
        elif self._due:
            self._start_thread()
        return held

    def _renew(self, held: Renewable) -> float | None:
        """Renew once; return when to renew again, None if that is not needed any more."""
        if not held.is_allowed():
            return None
        lease = held.entry.lease
        started = runtime.current.monotonic()
        try:
            held.renew()
        except LockLost:
            return None
        except Unavailable:
            pass  # `HeldEntry.renew` has reported it
        except Exception as error:  # noqa: BLE001
            # The loss is not proven, so giving up would be wrong.
            held.report.renewal_failed(held, error, is_odd=True)
        else:
            return next_renewal(started, lease)
        return self._soon(held)

    def _soon(self, held: Renewable) -> float:
        return runtime.current.monotonic() + retry_delay(held.entry.lease, runtime.current.jitter())


#: Of this process. Callers name the module, so that a test replaces it in one place.
heartbeat_thread = HeartbeatThread()


def _reset_after_fork() -> None:
    global heartbeat_thread  # noqa: PLW0603 - of a restored process the threads go on, with the one they have
    heartbeat_thread = HeartbeatThread()


runtime.after_fork(_reset_after_fork)
