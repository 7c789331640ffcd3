"""What every contender can do, and where it does it."""

from __future__ import annotations

import abc
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


@dataclass(frozen=True)
class Place:
    """Where a contender keeps its tables.

    Attributes:
        host: endpoint URL of the engine, perhaps through the slowing proxy.
        prefix: of table names; unique to a run.
        rtt_ms: the round trip of that proxy, for contenders that have a server of their own.
    """

    host: str
    prefix: str
    rtt_ms: float = 5.0


class Contender(abc.ABC):
    """One way to count up an item that others count up as well.

    One object per process, used by many threads at once. The first cycle of a process makes clients and
    connections; warm up before you measure.

    Args:
        place: where.
        poll_s: time between two looks of a waiter, in seconds. None: the published default.
        lease_s: of a lock, in seconds; renewals keep their published ratio to it. None: the published default.
    """

    #: Short, for tables.
    name: ClassVar[str]
    #: `hold` works.
    has_lock: ClassVar[bool] = False
    #: Loses no update without faults.
    is_safe: ClassVar[bool] = True
    #: Published default; None if it does not poll.
    poll_s: ClassVar[float | None] = None

    @classmethod
    def unavailable(cls) -> str:
        """Return why it cannot run here, or "" if it can."""
        return ""

    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None:
        self.place = place
        self.poll = poll_s or self.poll_s or 0.0
        self.lease = lease_s

    @abc.abstractmethod
    def create(self, keys: Sequence[str]) -> None:
        """Make the tables, and a counter of about 500 bytes for each key. Once, by the main thread of one process."""

    @abc.abstractmethod
    def add(self, key: str) -> None:
        """Make one whole cycle: take the lock, read the counter, add 1, write it, release."""

    @abc.abstractmethod
    def total(self, key: str) -> int:
        """Return what the counter shows."""

    def hold(self, key: str) -> AbstractContextManager[Any]:
        """Return the lock alone: taken on entering, released on leaving."""
        raise NotImplementedError(f"{self.name} has no lock ({key})")

    @abc.abstractmethod
    def close(self) -> None:
        """Stop threads and servers, close connections. Tables stay."""


class Beats:
    """One thread that renews in a rhythm.

    Args:
        period_s: between two beginnings.
        own: returns what is to be renewed.
        renew: renews one of it; an error of DynamoDB is ignored, as the next time tries again.
    """

    def __init__(self, period_s: float, own: Callable[[], list[Any]], renew: Callable[[Any], None]) -> None:
        self._is_over = threading.Event()
        self._arguments = (period_s, own, renew)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        period_s, own, renew = self._arguments
        due = time.monotonic() + period_s
        while not self._is_over.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + period_s
            for each in own():
                with suppress(ClientError, BotoCoreError):
                    renew(each)

    def close(self) -> None:
        """End it."""
        self._is_over.set()
        self._thread.join()
