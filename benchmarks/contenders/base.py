"""What every contender can do, and where it does it."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager


@dataclass(frozen=True)
class Place:
    """Where a contender keeps its tables.

    Attributes:
        host: endpoint URL of the engine, perhaps through the slowing proxy.
        prefix: of table names; unique to a run.
        rtt_ms: the round trip of that proxy. Only for contenders that have a server of their own, which they put
            behind a proxy of their own; those that use `host` are slowed already.
    """

    host: str
    prefix: str
    rtt_ms: float = 0.0


class Turn(NamedTuple):
    """One change that was made under a ticket.

    Attributes:
        total: what the counter showed after it: the order in which the changes were made.
        ticket: of the lock that it was made under.
    """

    total: int
    ticket: int


class Contender(abc.ABC):
    """One way to count up an item that others count up as well.

    One object per process, used by many threads at once. The first cycle of a process makes clients and
    connections; warm up before you measure.

    Args:
        place: where.
        poll_s: time between two looks of a waiter, in seconds. None: the published default.
        lease_s: how long a lock lives without a renewal, in seconds; the time between two renewals keeps its
            published ratio to it. None: the published default.
    """

    #: Short, for tables.
    name: ClassVar[str]
    #: Where the algorithm was taken from.
    source: ClassVar[str]
    #: `hold` works.
    has_lock: ClassVar[bool]
    #: Loses no update without faults.
    is_safe: ClassVar[bool]
    is_ours: ClassVar[bool] = False
    #: Published default; None if it does not poll.
    poll_s: ClassVar[float | None] = None

    @classmethod
    def unavailable(cls) -> str:
        """Return why it cannot run here, or "" if it can."""
        return ""

    @abc.abstractmethod
    def __init__(self, place: Place, *, poll_s: float | None = None, lease_s: float | None = None) -> None: ...

    @abc.abstractmethod
    def create(self, keys: Sequence[str]) -> None:
        """Make the tables, and a counter of about 500 bytes for each key. Once, by the main thread of one process."""

    @abc.abstractmethod
    def add(self, key: str) -> Turn | None:
        """Make one whole cycle: take the lock, read the counter, add 1, write it, release.

        Returns:
            Under which ticket, for those who have tickets to show.
        """

    @abc.abstractmethod
    def total(self, key: str) -> int:
        """Return what the counter shows."""

    def hold(self, key: str) -> AbstractContextManager[Any]:
        """Return the lock alone: taken on entering, released on leaving."""
        raise NotImplementedError(f"{self.name} has no lock ({key})")

    @abc.abstractmethod
    def close(self) -> None:
        """Stop threads and servers, close connections. Tables stay."""
