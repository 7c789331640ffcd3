"""Renewals for the algorithms of the seeds, whose language has ``setInterval`` and needs no thread for it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

#: Renewals under way at once. Node.js would have no limit.
_WORKERS: Final = 32


class Renewals(Generic[T]):
    """Calls back for each thing that is kept alive, each in a rhythm of its own: one thread waits, a few others send.

    Args:
        period_s: between two calls for the same thing.
        renew: what to call; errors of DynamoDB are ignored, as the next call tries again.
    """

    def __init__(self, period_s: float, renew: Callable[[T], None]) -> None:
        self._period_s = period_s
        self._renew = renew
        self._due: dict[T, float] = {}  # in the order of their times, since all periods are alike
        self._changed = threading.Condition()
        self._is_over = False
        self._workers = ThreadPoolExecutor(_WORKERS)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, what: T) -> None:
        """Keep it alive from now on."""
        with self._changed:
            self._due[what] = time.monotonic() + self._period_s
            if len(self._due) == 1:
                self._changed.notify()

    def end(self, what: T) -> None:
        """Let it go. A call may be under way."""
        with self._changed:
            self._due.pop(what, None)

    def close(self) -> None:
        """End the threads."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()
        self._workers.shutdown()

    def _run(self) -> None:
        with self._changed:
            while not self._is_over:
                first = next(iter(self._due.items()), None)
                left = None if first is None else first[1] - time.monotonic()
                if first is None or left is None or left > 0:
                    self._changed.wait(left)
                    continue
                what, due = first
                del self._due[what]
                self._due[what] = due + self._period_s
                self._workers.submit(self._send, what)

    def _send(self, what: T) -> None:
        with suppress(ClientError, BotoCoreError):
            self._renew(what)
