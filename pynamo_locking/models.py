"""Models whose items can be locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.models import Model
from typing_extensions import Self

from pynamo_locking._io import inspection
from pynamo_locking._io.wish import make_wish
from pynamo_locking.contexts import Edit
from pynamo_locking.locks import Lock
from pynamo_locking.versioned import VersionedMixin

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.lease import Duration, LockSettings
    from pynamo_locking._core.queue import LockState
    from pynamo_locking.attributes import LockAttribute


class LockableMixin(VersionedMixin):
    """Adds locks to a model: put it right before `Model` in the bases, or derive from `LockableModel`.

    The lock is kept in the item itself if the model declares a `LockAttribute`, and in a row of the
    `NamedLock` class named by ``Meta.lock_table`` otherwise. ``Meta.lock_settings`` may hold a
    `LockSettings`.

    Inside a lock, `save`, `update` and `delete` of the locked item are refused by DynamoDB once the
    lock is lost. With a `LockAttribute`, writes from outside are refused while somebody holds it.

    With a `LockAttribute`, `save` is an UpdateItem that sets the declared attributes and removes those without
    a value. Attributes that the model does not declare therefore survive it.

    A model may have a version besides: everything of `VersionedMixin` is here as well.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset(
        {"lock", "locked", "edit", "lock_state", "break_lock", "lock_settings"}
    )

    @classmethod
    def locked(
        cls,
        hash_key: Any,
        range_key: Any = None,
        *,
        wait: Duration | None = None,
        lease: Duration | None = None,
        heartbeat: bool | None = None,
        owner: str | None = None,
        on_lost: Callable[[str], object] | None = None,
        settings: LockSettings | None = None,
    ) -> Lock[Self]:
        """Return the lock of one item, to be used in a ``with`` statement.

        First come, first served. Inside, `lock.item` is the item as it was when the lock was taken.
        What is guaranteed under which fault stands at `Lock`.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            wait: how long to wait for our turn, in seconds or as a timedelta; 0 fails at once if
                anybody is in the queue, ``math.inf`` waits for ever. 60 s unless set.
            lease: how long the lock survives without a renewal, in seconds or as a timedelta. 60 s
                unless set.
            heartbeat: renew in the background. With False the caller renews (`Lock.renew`), or takes
                one lease that is long enough.
            owner: label for people; host, process and thread unless given.
            on_lost: called once with the reason, on a thread of its own, when loss is proven.
            settings: instead of ``Meta.lock_settings``.

        Returns:
            The lock, not yet taken.

        Raises:
            ConfigurationError: for arguments that cannot work. No request has been made.

        Cost: none here; 1 write to enter, 1 to leave, no read.
        """
        wish = make_wish(cls, wait=wait, lease=lease, heartbeat=heartbeat, owner=owner, settings=settings)
        return Lock(cls._lock_target(hash_key, range_key, wish.settings), wish, on_lost)

    if TYPE_CHECKING:
        # Most models call their LockAttribute `lock`; it makes locks as well (see there).
        lock: LockAttribute
    else:

        @classmethod
        def lock(cls, hash_key: Any, range_key: Any = None, **options: Any) -> Lock[Self]:
            """Return the lock of one item, to be passed on or acquired by hand. The same as `locked`."""
            return cls.locked(hash_key, range_key, **options)

    @classmethod
    def edit(cls, hash_key: Any, range_key: Any = None, **options: Any) -> Edit[Self]:
        """Lock an item, change it, save it: ``with Account.edit("a-1") as account: ...``.

        The item is read by the request that takes the lock, and saved by the one that gives it back.
        If the block raises, nothing is saved. All arguments are those of `locked`.

        Returns:
            A context manager that yields the item.

        Raises:
            LockTimeout, ItemNotFound, ConfigurationError: on entering, as `Lock.acquire`.
            LockLost: on leaving; nothing was saved.
            OutcomeUnknown: on leaving; no answer tells whether it was saved.
            PutError: on leaving, if the model's version changed (a writer that does not lock).

        Cost: 2 writes, no read. With the lock in a row of its own: 1 write, 1 read, 1 transaction.
        """
        return Edit(cls.locked(hash_key, range_key, **options))

    @classmethod
    def lock_state(cls, hash_key: Any, range_key: Any = None) -> LockState:
        """Return who holds the lock of an item and who waits.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.

        Returns:
            A `LockState`; both tuples are empty when the lock is free, also if there is no such item.

        Raises:
            LockingError: no answer came.
            ConfigurationError: wrong key, or no such table.

        Cost: 1 consistent read.
        """
        return inspection.state(cls._lock_target(hash_key, range_key, cls.lock_settings()).row)

    @classmethod
    def break_lock(cls, hash_key: Any, range_key: Any = None, *, ticket: int) -> bool:
        """Remove an entry from a queue by hand, whether its owner lives or not.

        The owner's guarded writes are refused from then on; the next of its requests, at the latest its
        next renewal, sets its `Lock.lost`. The ticket is needed so that nobody breaks a lock that has
        changed hands since he looked.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            ticket: of the entry, from `lock_state`.

        Returns:
            Whether the entry was there and is gone now.

        Raises:
            OutcomeUnknown: no answer came; look at the lock's state.

        Cost: 1 read and 1 write.
        """
        return inspection.break_entry(cls._lock_target(hash_key, range_key, cls.lock_settings()).row, ticket)


class LockableModel(LockableMixin, Model):
    """A PynamoDB `Model` with locks and versions. See `LockableMixin` and `VersionedMixin`."""
