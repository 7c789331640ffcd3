"""One heart per process: renews the entries of all held locks in the background.

Entries wait in a heap by the time of their next renewal. One thread serves them; while requests are
slow and others are due, a few more threads help and leave again. Nothing that a caller does blocks
the heart: adding and removing only touch the heap, and every request has the lock's short timeouts.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from typing import TYPE_CHECKING, Final

from pynamo_locking._core.lease import next_renewal, retry_delay
from pynamo_locking._io import runtime
from pynamo_locking._io.requests import Unavailable
from pynamo_locking.exceptions import LockLost

if TYPE_CHECKING:
    from pynamo_locking._io.own import OwnEntry

logger = logging.getLogger("pynamo_locking")

#: Requests in flight at once; at 20 ms a request that is 400 renewals per second.
MAX_THREADS: Final = 8

#: A thread without work for this long leaves.
_IDLE_S: Final = 5.0

#: Released entries are swept out of the heap once they are this many and the majority.
_SWEEP_AT: Final = 64


class Heart:
    """The set of entries to renew, and the threads that do it."""

    def __init__(self) -> None:
        self._condition = runtime.current.condition()
        self._due: list[tuple[float, int, OwnEntry]] = []
        self._order = itertools.count()
        self._threads = 0
        self._idle = 0
        self._released = 0

    def add(self, own: OwnEntry) -> None:
        """Renew an entry from now on, a third of its lease after its last renewal began."""
        self._push(own, next_renewal(own.deadline - own.entry.lease, own.entry.lease))

    def remove(self, own: OwnEntry) -> None:  # noqa: ARG002 - the entry itself says that it has ended
        """Note that an entry needs no more renewals; the heap is swept from time to time."""
        with self._condition:
            self._released += 1
            if self._released > _SWEEP_AT and self._released * 2 > len(self._due):
                self._due = [item for item in self._due if not item[2].ended]
                heapq.heapify(self._due)
                self._released = 0

    def _push(self, own: OwnEntry, due: float) -> None:
        with self._condition:
            heapq.heappush(self._due, (due, next(self._order), own))
            if self._threads == 0:
                self._start_thread()
            elif self._due[0][2] is own:
                self._condition.notify()

    def _start_thread(self) -> None:
        self._threads += 1
        runtime.current.spawn(self._serve, name="pynamo-locking-heartbeat")

    def _serve(self) -> None:
        try:
            while (own := self._next()) is not None:
                due = self._renew(own)
                if due is not None:
                    self._push(own, due)
        finally:
            with self._condition:
                self._threads -= 1
                if self._due and self._threads == 0:  # whatever killed this thread, the entries go on
                    self._start_thread()

    def _next(self) -> OwnEntry | None:
        """Wait for the next entry that is due. None: there is no work for this thread."""
        with self._condition:
            while True:
                wait = self._due[0][0] - runtime.current.monotonic() if self._due else _IDLE_S
                if self._due and wait <= 0:
                    return self._take()
                if self._idle > 0 or not self._due:
                    wait = min(wait, _IDLE_S)
                self._idle += 1
                was_told = runtime.current.wait(self._condition, wait)
                self._idle -= 1
                if not was_told and (not self._due or self._idle > 0):
                    return None

    def _take(self) -> OwnEntry:
        own = heapq.heappop(self._due)[2]
        is_more_due = self._due and self._due[0][0] <= runtime.current.monotonic()
        if is_more_due and self._idle > 0:
            self._condition.notify()
        elif is_more_due and self._threads < MAX_THREADS:
            self._start_thread()
        return own

    def _renew(self, own: OwnEntry) -> float | None:
        """Renew once and return when to do it again; None when there is nothing left to renew."""
        if own.ended or own.lost.is_set():
            return None
        lease = own.entry.lease
        started = runtime.current.monotonic()
        try:
            own.renew()
        except LockLost:
            return None
        except Unavailable as error:
            logger.warning("renewal of %s not answered, %.1f s left: %s", own, own.remaining, error)
        except Exception:
            # Loss is not proven, whatever this was; giving up silently would be the one wrong answer.
            logger.exception("renewal of %s failed, %.1f s left", own, own.remaining)
        else:
            return next_renewal(started, lease)
        return runtime.current.monotonic() + retry_delay(lease, runtime.current.jitter())


heart = Heart()


def _start_anew_after_fork() -> None:
    heart.__init__()  # type: ignore[misc]


runtime.after_fork(_start_anew_after_fork)
