"""Several locks at once, in one order."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from pynamo_locking._core.claims import spanning
from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._io import runtime
from pynamo_locking._locks.context import taken_here
from pynamo_locking._locks.lock import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pynamo_locking._locks.target import M


@overload
def locked_all(*locks: Lock[M], wait: Duration | None = None) -> AbstractContextManager[tuple[Lock[M], ...]]: ...


@overload
def locked_all(*locks: Lock[Any], wait: Duration | None = None) -> AbstractContextManager[tuple[Lock[Any], ...]]: ...


@contextlib.contextmanager
def locked_all(*locks: Lock[Any], wait: Duration | None = None) -> Iterator[tuple[Lock[Any], ...]]:
    """Acquire several locks, all or none.

    They are acquired in one canonical order whatever the order of the arguments, so that two callers never wait for
    each other in a circle. Several ranges of one hash key (or of one name) are acquired as one range that spans them,
    because another party could enter their queue between the first and the second range.

    Args:
        *locks: locks made by `Model.lock()`, `Model.locked_range()` and `NamedLock.lock()`; naming the same one twice
            is fine.
        wait: one deadline for all of them, in seconds or as a timedelta; the longest `wait` of the locks by default.

    Yields:
        The locks, held, in the order of the arguments.

    Raises:
        LockTimeout: not all of them in time; none is held.
        LockLost: on leaving, if one of them was lost meanwhile.
        ItemNotFound, ConfigurationError, OutcomeUnknown: as `Lock.acquire`.

    Cost: that of each lock; ranges of one hash key cost that of one.
    """
    limit = max((lock._options.wait for lock in locks), default=0.0) if wait is None else seconds(wait, "wait")
    deadline = runtime.current.monotonic() + limit
    with contextlib.ExitStack() as held:
        for lock in in_order(locks):
            _take(lock, max(0.0, deadline - runtime.current.monotonic()), held)
        yield locks


def in_order(locks: Iterable[Lock[Any]]) -> Iterator[Lock[Any]]:
    """Yield locks by their rows; before several ranges of one row, a lock that covers those not held already."""
    rows: dict[str, list[Lock[Any]]] = {}
    for lock in locks:
        rows.setdefault(repr(lock._target.row.identity), []).append(lock)
    for _, together in sorted(rows.items()):
        together.sort(key=lambda lock: lock._options.claim.place)
        wanted = [lock._options for lock in together if not _is_taken_already(lock)]
        if len(wanted) > 1 and any(each.claim.is_ranged for each in wanted):
            longest = max(wanted, key=lambda each: each.lease)
            has_heartbeat = any(each.heartbeat for each in wanted)
            spanned = replace(longest, claim=spanning([each.claim for each in wanted]), heartbeat=has_heartbeat)
            yield Lock(together[0]._target, spanned, None)
        yield from together


def _is_taken_already(lock: Lock[Any]) -> bool:
    own = taken_here(lock._target.row, lock._options.claim, lock._own)
    return own is not None and not own.possession.reason


@contextlib.contextmanager
def first_of(locks: Iterable[Lock[M]], skipped: tuple[type[Exception], ...]) -> Iterator[Lock[M] | None]:
    """Hold the first lock that can be acquired, or yield None; `skipped` are the reasons to try the next one."""
    with contextlib.ExitStack() as held:
        taken: Lock[M] | None = None
        for lock in locks:
            with contextlib.suppress(*skipped):
                _take(lock, None, held)
                taken = lock
                break
        yield taken


def _take(lock: Lock[Any], wait: Duration | None, held: contextlib.ExitStack) -> None:
    takes = lock._takes

    def leave(kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if lock._takes > takes:
            lock.__exit__(kind, error, traceback)

    held.push(leave)  # before: an interrupt may come right after the grant
    lock._enter(wait)
