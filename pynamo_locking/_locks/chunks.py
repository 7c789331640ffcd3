"""Records in lists, for work that takes long under a lock: the lease is renewed after each list."""

from __future__ import annotations

from collections.abc import AsyncIterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import RENEW_AFTER, is_count, seconds
from pynamo_locking._io import loops

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from pynamo_locking._core.lease import Duration

T = TypeVar("T")


class Kept(Protocol):
    """What chunks need of a `Lock`."""

    @property
    def remaining(self) -> float: ...

    def ensure(self, remaining: Duration) -> None: ...

    async def aensure(self, remaining: Duration) -> None: ...

    def renew(self) -> None: ...

    async def arenew(self) -> None: ...


class Chunks:
    """How records are put into lists.

    Args:
        lock: what is held.
        lease: its lease, in seconds.
        every: the most records of a list.
        remaining: how much of the lease has to be left when a list is handed out; None for two thirds of it.
    """

    def __init__(self, lock: Kept, lease: float, every: int, remaining: Duration | None) -> None:
        if not is_count(every):
            raise ConfigurationError(f"every must be a whole number above 0, got {every!r}.")
        self._lock = lock
        self._every = every
        self._wanted = lease * (1 - RENEW_AFTER) if remaining is None else seconds(remaining, "remaining")
        if not self._wanted < lease:
            raise ConfigurationError(f"remaining ({self._wanted:g} s) must be less than the lease ({lease:g} s).")

    def of(self, records: Iterable[T]) -> Iterator[list[T]]:
        source = iter(records)
        while chunk := _collected(source, self._is_full):
            self._lock.ensure(self._wanted)
            yield chunk
            self._lock.renew()

    async def aof(self, records: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[list[T]]:
        """As `of`. An iterable that is not asynchronous may make requests, so it is read in a thread."""
        if isinstance(records, AsyncIterable):
            collect = partial(_acollected, aiter(records), self._is_full)
        else:
            collect = partial(loops.call, partial(_collected, iter(records), self._is_full))
        while chunk := await collect():
            await self._lock.aensure(self._wanted)
            yield chunk
            await self._lock.arenew()

    def _is_full(self, chunk: list[Any]) -> bool:
        return len(chunk) >= self._every or self._lock.remaining < self._wanted


def _collected(source: Iterator[T], is_full: Callable[[list[T]], bool]) -> list[T]:
    chunk = list[T]()
    for record in source:
        chunk.append(record)
        if is_full(chunk):
            break
    return chunk


async def _acollected(source: AsyncIterator[T], is_full: Callable[[list[T]], bool]) -> list[T]:
    chunk = list[T]()
    async for record in source:
        chunk.append(record)
        if is_full(chunk):
            break
    return chunk
