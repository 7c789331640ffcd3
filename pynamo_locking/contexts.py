"""What can be done with locks in one ``with`` statement: edit an item, take several locks."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import TypeVar, override

from pynamo_locking._core.claims import spanning
from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._core.outcome import Kind
from pynamo_locking._io import runtime
from pynamo_locking._io.copies import Before
from pynamo_locking._io.locked import taken_here
from pynamo_locking.exceptions import LockLost
from pynamo_locking.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pynamo_locking._io.target import M
    from pynamo_locking.guarded import GuardedMixin

G = TypeVar("G", bound="GuardedMixin")


class Edit(contextlib.AbstractContextManager[G], Generic[G]):
    """The context manager of `LockableModel.edit`."""

    def __init__(self, lock: Lock[G]) -> None:
        self.lock = lock
        self._before: Before | None = None

    @override
    def __enter__(self) -> G:
        takes = self.lock._takes
        try:
            self.lock._enter()
            item = self.lock.item
            self._note(item)
        except BaseException as error:
            if self.lock._takes > takes:
                self.lock._leave(error)
            raise
        return item

    def _note(self, item: G) -> None:
        """Note what the item is, if an outer block goes on with it should this one fail."""
        is_inner, copies = not self.lock._is_last_take, self.lock._must_have_taken().copies
        self._before = Before(item, copies) if is_inner else None
        self._copies = copies
        copies.edits += 1

    def _take_back(self, error: BaseException) -> None:
        """Take back the changes of this block, which were not saved: an outer block must not save them either."""
        if self._before is None:
            self.lock._forget_item()
        else:
            self._before.restore(error)

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._copies.edits -= 1
        try:
            if error is None:
                self._save()
            else:
                self._take_back(error)
        except BaseException as failure:
            self._take_back(failure)
            self.lock.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self.lock.__exit__(kind, error, traceback)

    def _save(self) -> None:
        if self.lock._is_item_deleted:  # in the block, and perhaps the lock with it
            return
        kind = Kind.FINISH if self.lock._is_last_take else Kind.KEEP
        written = self.lock.item._writer()
        assert written is not None  # noqa: S101 - the lock is held
        try:
            written.save(None, checks_version=True, kind=kind)
        except LockLost:
            if not self.lock._is_item_deleted:
                raise


@overload
def locked_all(*locks: Lock[M], wait: Duration | None = None) -> AbstractContextManager[tuple[Lock[M], ...]]: ...
@overload
def locked_all(*locks: Lock[Any], wait: Duration | None = None) -> AbstractContextManager[tuple[Lock[Any], ...]]: ...
@contextlib.contextmanager
def locked_all(*locks: Lock[Any], wait: Duration | None = None) -> Iterator[tuple[Lock[Any], ...]]:
    """Take several locks, all or none.

    They are taken in one canonical order whatever the order of the arguments, so that two callers
    never wait for each other in a circle. Several ranges of one hash key (or of one name) are taken as one range
    that spans them, since in their queue somebody could stand between the first and the second one.

    Args:
        *locks: locks made by `Model.lock()`, `Model.locked_range()` and `NamedLock.lock()`; naming the same one
            twice is fine.
        wait: one deadline for all of them, in seconds or as a timedelta; the longest `wait` of the
            locks by default.

    Yields:
        The locks, held, in the order of the arguments.

    Raises:
        LockTimeout: not all of them in time; none is held.
        LockLost: on leaving, if one of them was lost meanwhile.
        ItemNotFound, ConfigurationError, OutcomeUnknown: as `Lock.acquire`.

    Cost: that of each lock; ranges of one hash key cost that of one.
    """
    limit = max((lock._wish.wait for lock in locks), default=0.0) if wait is None else seconds(wait, "wait")
    deadline = runtime.current.monotonic() + limit
    with contextlib.ExitStack() as held:
        for lock in in_order(locks):
            _take(lock, max(0.0, deadline - runtime.current.monotonic()), held)
        yield locks


def in_order(locks: Iterable[Lock[Any]]) -> Iterator[Lock[Any]]:
    """Yield locks by their rows, and before several ranges of one row a lock that covers those not held already."""
    rows: dict[str, list[Lock[Any]]] = {}
    for lock in locks:
        rows.setdefault(repr(lock._target.row.identity), []).append(lock)
    for _, together in sorted(rows.items()):
        together.sort(key=lambda lock: lock._wish.claim.place)
        wishes = [lock._wish for lock in together if not _is_taken_already(lock)]
        if len(wishes) > 1 and any(wish.claim.is_ranged for wish in wishes):
            longest = max(wishes, key=lambda wish: wish.lease)
            has_heartbeat = any(wish.heartbeat for wish in wishes)
            wish = replace(longest, claim=spanning([wish.claim for wish in wishes]), heartbeat=has_heartbeat)
            yield Lock(together[0]._target, wish, None)
        yield from together


def _is_taken_already(lock: Lock[Any]) -> bool:
    own = taken_here(lock._target.row, lock._wish.claim, lock._own)
    return own is not None and not own.possession.reason


@contextlib.contextmanager
def first_of(locks: Iterable[Lock[M]], skipped: tuple[type[Exception], ...]) -> Iterator[Lock[M] | None]:
    """Hold the first lock that can be had, or yield None; `skipped` are the reasons to go on to the next one."""
    with contextlib.ExitStack() as held:
        yield next((lock for lock in locks if _is_taken(lock, skipped, held)), None)


def _is_taken(lock: Lock[Any], skipped: tuple[type[Exception], ...], held: contextlib.ExitStack) -> bool:
    try:
        _take(lock, None, held)
    except skipped:
        return False
    return True


def _take(lock: Lock[Any], wait: Duration | None, held: contextlib.ExitStack) -> None:
    takes = lock._takes

    def leave(kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if lock._takes > takes:
            lock.__exit__(kind, error, traceback)

    held.push(leave)  # before: an interrupt may come right after the grant
    lock._enter(wait)
