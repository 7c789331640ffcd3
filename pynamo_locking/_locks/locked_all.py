"""Several locks in one block: all of them, in one order, or the first that is free."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._core.lock_modes import spanning
from pynamo_locking._io import runtime
from pynamo_locking._locks.context import entry_held_here
from pynamo_locking._locks.lock import Lock, handle_of, no_decorator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from types import TracebackType

    from pynamodb.models import Model

    from pynamo_locking._locks.options import M


T = TypeVar("T")
M1 = TypeVar("M1", bound="Model")
M2 = TypeVar("M2", bound="Model")
M3 = TypeVar("M3", bound="Model")
M4 = TypeVar("M4", bound="Model")


class Block(Generic[T]):
    """A context manager for ``with`` and for ``async with``, made of one for each.

    No separate coroutines: an interrupt in one would leave the generator that it awaits running for ever.
    """

    def __init__(
        self, block: Callable[[], AbstractContextManager[T]], ablock: Callable[[], AbstractAsyncContextManager[T]]
    ) -> None:
        self._block = block
        self._ablock = ablock

    def __enter__(self) -> T:
        self._entered = self._block()
        return self._entered.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, traceback)

    def __aenter__(self) -> Coroutine[Any, Any, T]:
        self._aentered = self._ablock()
        return self._aentered.__aenter__()

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        return self._aentered.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:  # to a type checker it cannot be called

        def __call__(self, *_: object) -> NoReturn:
            """Refuse to be a decorator."""
            raise no_decorator("These locks")


@overload
def locked_all(*locks: Lock[M], wait: Duration | None = None) -> Block[tuple[Lock[M], ...]]: ...


@overload
def locked_all(
    first: Lock[M1], second: Lock[M2], /, *, wait: Duration | None = None
) -> Block[tuple[Lock[M1], Lock[M2]]]: ...


@overload
def locked_all(
    first: Lock[M1], second: Lock[M2], third: Lock[M3], /, *, wait: Duration | None = None
) -> Block[tuple[Lock[M1], Lock[M2], Lock[M3]]]: ...


@overload
def locked_all(
    first: Lock[M1], second: Lock[M2], third: Lock[M3], fourth: Lock[M4], /, *, wait: Duration | None = None
) -> Block[tuple[Lock[M1], Lock[M2], Lock[M3], Lock[M4]]]: ...


@overload
def locked_all(*locks: Lock[Any], wait: Duration | None = None) -> Block[tuple[Lock[Any], ...]]: ...


def locked_all(*locks: Lock[Any], wait: Duration | None = None) -> Block[Any]:
    """Acquire several locks, all or none, in a ``with`` or ``async with`` statement.

    Example::

        with locked_all(Account.locked("a-1"), Account.locked("a-2"), wait=5) as (a, b):
            a.item.update([Account.balance.add(-10)])
            b.item.update([Account.balance.add(10)])

    They are acquired in one canonical order whatever the order of the arguments, so that two callers never wait for
    each other in a circle. Several ranges of one hash key (or of one name) are acquired as one range that spans them,
    because another caller could enter their queue between the first and the second range.

    If a process dies while it holds several locks, all of them are free after its lease and `max_clock_skew`. With
    ``max_clock_skew=None`` the wait is one lease for each of them: a lock is examined only once those before it are
    held.

    Args:
        *locks: locks made by `Model.locked()` and `Model.locked_range()`; naming the same one twice is fine.
        wait: one deadline for all of them, in seconds or as a timedelta; the longest `wait` of the locks by default.

    Returns:
        A context manager that yields the locks, held, in the order of the arguments.

    Raises:
        LockTimeout: on entering: not all of them in time; none is held.
        LockLost: on leaving, if one of them was lost meanwhile; on entering, if one was lost while it waited for the
            others (by `max_hold`, or after its lease without a heartbeat).
        ItemNotFound, ConfigurationError, OutcomeUnknown: on entering, as `Lock.acquire`.

    Cost: that of each lock; ranges of one hash key cost that of one. 1 write for each lock whose lease has ended while
    the others were waited for.
    """
    for lock in locks:
        if not isinstance(lock, Lock):
            raise ConfigurationError(
                f"locked_all() takes locks one by one, as in locked_all(*locks), not {lock!r:.80}."
            )
    waits = [handle_of(lock).options.wait for lock in locks]
    limit = max(waits, default=0.0) if wait is None else seconds(wait, "wait")
    return Block(lambda: _all(locks, limit), lambda: _aall(locks, limit))


@contextlib.contextmanager
def _all(locks: tuple[Lock[Any], ...], limit: float) -> Iterator[tuple[Lock[Any], ...]]:
    deadline = runtime.current.monotonic() + limit
    with contextlib.ExitStack() as held:
        for lock in in_order(locks):
            _take(lock, held, max(0.0, deadline - runtime.current.monotonic()))
        for lock in locks:
            lock.ensure_remaining(0)  # its lease may have ended while the others were waited for
        yield locks


@contextlib.asynccontextmanager
async def _aall(locks: tuple[Lock[Any], ...], limit: float) -> AsyncIterator[tuple[Lock[Any], ...]]:
    deadline = runtime.current.monotonic() + limit
    async with contextlib.AsyncExitStack() as held:
        for lock in in_order(locks):
            await handle_of(lock).abegin_block(max(0.0, deadline - runtime.current.monotonic()))
            held.push_async_exit(lock)
        for lock in locks:
            if not lock.is_held:  # `ensure_remaining` may pass to another thread
                await lock.aensure_remaining(0)
        yield locks


def in_order(locks: Iterable[Lock[Any]]) -> Iterator[Lock[Any]]:
    """Yield locks by their rows; before several ranges of one row, a lock that covers those not held already."""
    rows: dict[str, list[Lock[Any]]] = {}
    for lock in locks:
        rows.setdefault(repr(handle_of(lock).target.row.identity), []).append(lock)
    for _, together in sorted(rows.items()):
        together.sort(key=lambda lock: handle_of(lock).options.lock_mode.sort_key)
        wanted = [handle_of(lock).options for lock in together if not _is_taken_already(lock)]
        if len(wanted) > 1 and any(each.lock_mode.is_ranged for each in wanted):
            longest = max(wanted, key=lambda each: each.lease)
            spanned = longest._replace(
                lock_mode=spanning([each.lock_mode for each in wanted]),
                heartbeat=any(each.heartbeat for each in wanted),
                max_hold=min(each.max_hold for each in wanted),
            )
            yield Lock(handle_of(together[0]).target, spanned, None)
        yield from together


def _is_taken_already(lock: Lock[Any]) -> bool:
    handle = handle_of(lock)
    held = entry_held_here(handle.target.row, handle.options.lock_mode, handle.entry)
    return held is not None and not held.ownership.reason


def first_of(locks: Iterable[Lock[M]], skipped: tuple[type[Exception], ...]) -> Block[Lock[M] | None]:
    """Hold the first lock that can be acquired, or yield None; `skipped` are the reasons to try the next one."""
    return Block(lambda: _first(locks, skipped), lambda: _afirst(locks, skipped))


@contextlib.contextmanager
def _first(locks: Iterable[Lock[M]], skipped: tuple[type[Exception], ...]) -> Iterator[Lock[M] | None]:
    with contextlib.ExitStack() as held:
        taken: Lock[M] | None = None
        for lock in locks:
            with contextlib.suppress(*skipped):
                _take(lock, held)
                taken = lock
                break
        yield taken


@contextlib.asynccontextmanager
async def _afirst(locks: Iterable[Lock[M]], skipped: tuple[type[Exception], ...]) -> AsyncIterator[Lock[M] | None]:
    async with contextlib.AsyncExitStack() as held:
        taken: Lock[M] | None = None
        for lock in locks:
            with contextlib.suppress(*skipped):
                await handle_of(lock).abegin_block()
                taken = lock
                held.push_async_exit(lock)
                break
        yield taken


def _take(lock: Lock[Any], held: contextlib.ExitStack, wait: Duration | None = None) -> None:
    handle = handle_of(lock)
    depth = handle.depth

    def leave(kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if handle.depth > depth:
            lock.__exit__(kind, error, traceback)

    held.push(leave)  # before: an interrupt may come right after the grant
    handle.begin_block(wait)
