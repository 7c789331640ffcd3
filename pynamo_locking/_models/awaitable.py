"""The methods of a lockable model for tasks of asyncio."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Unpack

from pynamo_locking._models.versioned import VersionedMixin
from pynamo_locking.exceptions import ItemNotFound, LockTimeout

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import Self

    from pynamo_locking._locks.async_lock import AsyncLock
    from pynamo_locking._locks.options import LockKeywords, RangeKeywords
    from pynamo_locking._models.async_edit import AsyncEdit


def _late(module: str) -> Any:
    """Return a module that needs asyncio, which takes 25 ms to import: most users of PynamoDB do without."""
    return importlib.import_module(f"pynamo_locking.{module}")


class AwaitableMixin(VersionedMixin):
    """Adds the methods for ``async with`` to `LockableMixin`."""

    _reserved_names: ClassVar[frozenset[str]] = frozenset(
        {"alocked", "alocked_range", "alocked_first", "atry_locked", "aedit"}
    )

    if TYPE_CHECKING:
        # Those of LockableMixin, which has their documentation.
        @classmethod
        def locked(cls, *args: Any, **options: Any) -> Any: ...

        @classmethod
        def locked_range(cls, *args: Any, **options: Any) -> Any: ...

        @classmethod
        def edit(cls, *args: Any, **options: Any) -> Any: ...

        @classmethod
        def _locks_of(cls, keys: Iterable[Any], options: dict[str, Any]) -> Any: ...

    @classmethod
    def alocked(cls, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]) -> AsyncLock[Self]:
        """Return the lock of one item for tasks of asyncio: ``async with Account.alocked("a-1") as lock: ...``.

        The same lock as that of `locked`, in the same queue. For cancellation see `AsyncLock`.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            **options: those of `locked`. `on_lost` is called on a thread of its own, as there: a coroutine function
                is refused.

        Returns:
            The lock, not yet taken.

        Raises:
            ConfigurationError: for arguments that cannot work. No request has been made.

        Cost: that of `locked`.
        """
        lock: AsyncLock[Self] = _late("_locks.async_lock").AsyncLock(cls.locked(hash_key, range_key, **options))
        return lock

    @classmethod
    def alocked_range(cls, hash_key: Any, lower: Any, upper: Any, **options: Unpack[RangeKeywords]) -> AsyncLock[Self]:
        """Return the lock of a range for tasks of asyncio, the same as that of `locked_range`.

        Args:
            hash_key: the hash key; the name, of a `NamedLock`.
            lower: the first value in the range; None for no lower end.
            upper: the first value behind the range; None for no upper end.
            **options: those of `locked_range`.

        Returns:
            The lock, not yet taken. It has no `item`.

        Raises:
            ConfigurationError: as `locked_range`.

        Cost: that of `locked_range`.
        """
        lock: AsyncLock[Self] = _late("_locks.async_lock").AsyncLock(
            cls.locked_range(hash_key, lower, upper, **options)
        )
        return lock

    @classmethod
    def atry_locked(
        cls, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]
    ) -> AbstractAsyncContextManager[AsyncLock[Self] | None]:
        """Take the lock if it is free: ``async with Job.atry_locked("j-1") as lock: if lock is not None: ...``.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            **options: those of `locked`; `wait` is 0 unless given.

        Returns:
            An asynchronous context manager that yields the held lock, or None if it was not acquired in time.

        Raises:
            ItemNotFound, ConfigurationError, LockLost, OutcomeUnknown: as `try_locked`.

        Cost: that of `try_locked`.
        """
        chosen: dict[str, Any] = {"wait": 0, **options}
        lock = _late("_locks.async_lock").AsyncLock(cls.locked(hash_key, range_key, **chosen))
        taking: AbstractAsyncContextManager[AsyncLock[Self] | None] = _late("_locks.async_lock").first_of(
            [lock], (LockTimeout,)
        )
        return taking

    @classmethod
    def alocked_first(
        cls, keys: Iterable[Any], **options: Unpack[LockKeywords]
    ) -> AbstractAsyncContextManager[AsyncLock[Self] | None]:
        """Take the first of several locks that is free, skipping those that are not, as `locked_first`.

        Args:
            keys: hash keys, or pairs of hash and range key, in the order of preference.
            **options: those of `locked`; `wait` is 0 unless given, and counts for each key.

        Returns:
            An asynchronous context manager that yields the held lock, or None if none was free.

        Raises:
            ConfigurationError, LockLost, OutcomeUnknown: as `locked_first`.

        Cost: that of `locked_first`.
        """
        locks = [_late("_locks.async_lock").AsyncLock(lock) for lock in cls._locks_of(keys, {"wait": 0, **options})]
        taking: AbstractAsyncContextManager[AsyncLock[Self] | None]
        taking = _late("_locks.async_lock").first_of(locks, (LockTimeout, ItemNotFound))
        return taking

    @classmethod
    def aedit(cls, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]) -> AsyncEdit[Self]:
        """Lock an item, change it, save it: ``async with Account.aedit("a-1") as account: ...``.

        As with `edit`, nothing is saved if the block raises, or if the task is cancelled in the block. If the task is
        cancelled during the save, it receives the cancellation after the item is saved and the lock released.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            **options: those of `locked`.

        Returns:
            An asynchronous context manager that yields the item.

        Raises:
            LockTimeout, ItemNotFound, ConfigurationError, LockLost, OutcomeUnknown, PutError: as `edit`.

        Cost: that of `edit`.
        """
        edit: AsyncEdit[Self] = _late("_models.async_edit").AsyncEdit(cls.edit(hash_key, range_key, **options))
        return edit
