"""Models whose items can be locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.models import Model
from typing_extensions import Self, Unpack

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._items import keys as item_keys
from pynamo_locking._locks import inspection
from pynamo_locking._locks.lock import Lock
from pynamo_locking._locks.options import check_plain, make_claim, make_options
from pynamo_locking._locks.several import first_of
from pynamo_locking._models.edit import Edit
from pynamo_locking._models.versioned import VersionedMixin
from pynamo_locking.exceptions import ItemNotFound, LockTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pynamo_locking._core.claims import Claim
    from pynamo_locking._core.lease import Duration, Heartbeat, LockSettings
    from pynamo_locking._core.queue import LockState
    from pynamo_locking._locks.options import LockKeywords, RangeKeywords
    from pynamo_locking._locks.several import Block
    from pynamo_locking._locks.target import LockTarget
    from pynamo_locking._models.attributes import LockAttribute


class LockableMixin(VersionedMixin):
    """Adds locks to a model: put it right before `Model` in the bases, or derive from `LockableModel`.

    The lock is kept in the item itself if the model declares a `LockAttribute`, and in a row of the
    `NamedLock` class named by ``Meta.lock_table`` otherwise. ``Meta.lock_settings`` may hold a
    `LockSettings`. With ``Meta.enforce = "ranges"``, or ``"table"``, every write through the model is refused while
    another party has locked a range around the item, or the table.

    Inside a lock, `save`, `update` and `delete` of the locked item are refused by DynamoDB once the
    lock is lost. With a `LockAttribute`, writes from outside the lock are refused while it is held.

    With a `LockAttribute`, `save` is an UpdateItem that sets the declared attributes and removes those without
    a value. Attributes that the model does not declare therefore survive it.

    A model may also have a version: this class includes `VersionedMixin`.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset(
        {
            "lock",
            "locked",
            "locked_range",
            "locked_table",
            "locked_first",
            "try_locked",
            "edit",
            "lock_state",
            "break_lock",
        }
        | {"lock_settings"}
    )

    @classmethod
    def locked(  # noqa: PLR0913 - each stands alone, and they are named
        cls,
        hash_key: Any,
        range_key: Any = None,
        *,
        wait: Duration | None = None,
        lease: Duration | None = None,
        heartbeat: Heartbeat | None = None,
        max_hold: Duration | None = None,
        shared: bool = False,
        permits: int = 1,
        owner: str | None = None,
        on_lost: Callable[[str], object] | None = None,
        settings: LockSettings | None = None,
    ) -> Lock[Self]:
        """Return the lock of one item, to be used in a ``with`` or ``async with`` statement.

        First come, first served, in every mode: readers that come after a waiting writer wait behind it.
        Inside, `lock.item` is the item as it was when the lock was acquired. For the guarantees under faults see
        `Lock`.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            wait: how long to wait for the lock, in seconds or as a timedelta; 0 fails at once if
                the queue is not empty, ``math.inf`` waits for ever. 60 s unless set.
            lease: how long the lock survives without a renewal, in seconds or as a timedelta. 60 s
                unless set.
            heartbeat: renew in the background. With False the caller renews (`Lock.renew`), or chooses a lease that
                is long enough. With ``"progress"`` the background renews only while the work calls `Lock.progress`.
            max_hold: how long to hold the lock at most, in seconds or as a timedelta, counted from the grant. Then it
                is lost, and no longer renewed, so that work that hangs lets go. Without end unless set.
            shared: hold the lock together with other shared holders, and never beside an exclusive one. Writes of
                the item are refused then, before any request. A shared holder cannot upgrade; an exclusive holder
                can `Lock.downgrade`.
            permits: how many may hold it at once, a semaphore; all who use it at the same time must pass the same
                number. Above 1, writes of the item are refused as for `shared`. If the same thread or task asks
                again, it gets the same permit.
            owner: label for people of at most 256 bytes; host, process and thread unless given.
            on_lost: a plain function, called once with the reason, on a thread of its own, when loss is proven. If no
                thread can be started, it runs on the thread that detects the loss.
            settings: instead of ``Meta.lock_settings``.

        Returns:
            The lock, not yet taken.

        Raises:
            ConfigurationError: for arguments that cannot work. No request has been made.

        Cost: none here; 1 write to enter, 1 to leave, no read. A failed attempt with ``wait=0``: 1 refused
        write; shared or with permits 2 writes.
        """
        claim = make_claim(shared=shared, permits=permits)
        terms: dict[str, Any] = {"wait": wait, "lease": lease, "owner": owner, "settings": settings}
        terms |= {"heartbeat": heartbeat, "max_hold": max_hold}
        return cls._make_lock(lambda used: cls._lock_target(hash_key, range_key, used), claim, on_lost, terms)

    @classmethod
    def _make_lock(
        cls,
        target: Callable[[LockSettings], LockTarget[Self]],
        claim: Claim,
        on_lost: Callable[[str], object] | None,
        terms: dict[str, Any],
    ) -> Lock[Self]:
        check_plain("on_lost", on_lost)
        options = make_options(cls, **terms, claim=claim)
        return Lock(target(options.settings), options, on_lost)

    @classmethod
    def locked_range(  # noqa: PLR0913 - as for `locked`
        cls,
        hash_key: Any,
        lower: Any,
        upper: Any,
        *,
        wait: Duration | None = None,
        lease: Duration | None = None,
        heartbeat: Heartbeat | None = None,
        max_hold: Duration | None = None,
        shared: bool = False,
        owner: str | None = None,
        on_lost: Callable[[str], object] | None = None,
        settings: LockSettings | None = None,
    ) -> Lock[Self]:
        """Return the lock of all items of a hash key whose range keys lie in ``[lower, upper)``.

        It conflicts with overlapping ranges of that hash key, also where no item is yet; ranges that only touch do
        not conflict. First come, first served: small ranges that come later wait behind a large range. With
        ``Meta.enforce`` all writes through the model that are in the range are refused meanwhile (`ItemLocked`), except
        those of the holder; without it only other locks of ranges meet this one. Inside, writes
        of items in the range are refused by DynamoDB once the lock is lost, and reads see everything that earlier
        holders wrote. Locks of single items, which `locked` takes, ignore ranges; so do writes of items that carry a
        `LockAttribute` of their own.

        The lock is kept in the table named by ``Meta.lock_table``, in one row for each hash key. Of a
        `NamedLock` it is a range of a name, and the bounds are numbers, strings, bytes or aware datetimes;
        `locked` of that name is the whole of it.

        Args:
            hash_key: the hash key; the name, of a `NamedLock`.
            lower: the first value in the range; None for no lower end.
            upper: the first value behind the range; None for no upper end.
            wait: as for `locked`.
            lease: as for `locked`.
            heartbeat: as for `locked`.
            max_hold: as for `locked`.
            shared: as for `locked`: shared ranges may overlap each other.
            owner: as for `locked`.
            on_lost: as for `locked`.
            settings: as for `locked`. All ranges of a hash key queue in one row: `max_waiters` bounds them
                together, holders included.

        Returns:
            The lock, not yet taken. It has no `item`.

        Raises:
            ConfigurationError: the range is empty, its ends do not fit the range key, a datetime has no time
                zone, or there is no place for the lock. No request has been made.

        Cost: none here; 1 write to enter, 1 to leave, no read. A failed attempt with ``wait=0``: 2 writes.
        """
        bounds = [
            item_keys.free_bound(end) if cls._lock_creates_item else item_keys.bound_of(cls, end)
            for end in (lower, upper)
        ]
        claim = make_claim(shared=shared, lower=bounds[0], upper=bounds[1])
        terms: dict[str, Any] = {"wait": wait, "lease": lease, "owner": owner, "settings": settings}
        terms |= {"heartbeat": heartbeat, "max_hold": max_hold}
        return cls._make_lock(lambda used: cls._range_target(hash_key, used), claim, on_lost, terms)

    @classmethod
    def locked_table(cls, **options: Unpack[RangeKeywords]) -> Lock[Self]:
        """Return the lock of all items of the table, which every write through the model meets.

        Writes from outside are refused with `ItemLocked`. Inside, writes are refused by DynamoDB once the lock is lost.
        It is a lock of its own, and does not wait for locks of ranges or of single items. Writes by their holders are
        refused like all other writes.

        Args:
            **options: those of `locked_range`.

        Returns:
            The lock, not yet taken. It has no `item`.

        Raises:
            ConfigurationError: the model has no ``Meta.enforce = "table"``: its writers would not meet the lock.

        Cost: 1 write to enter, 1 to leave.
        """
        if cls._enforces() != "table":
            raise ConfigurationError(f"writers of {cls.__name__} do not meet such a lock: set Meta.enforce = 'table'.")
        on_lost, shared = options.pop("on_lost", None), options.pop("shared", False)
        terms: dict[str, Any] = {"wait": None, "lease": None, "owner": None, "settings": None}
        terms |= {"heartbeat": None, "max_hold": None, **options}
        return cls._make_lock(cls._table_target, make_claim(shared=shared), on_lost, terms)

    @classmethod
    def try_locked(
        cls, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]
    ) -> Block[Lock[Self] | None]:
        """Take the lock if it is free: ``with Job.try_locked("j-1") as lock: if lock is not None: ...``.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            **options: those of `locked`; `wait` is 0 unless given.

        Returns:
            A context manager, also for ``async with``, that yields the held lock, or None if it was not acquired in
            time.

        Raises:
            ItemNotFound, ConfigurationError, LockLost, OutcomeUnknown: on entering, as `Lock.acquire`. With
                ``Meta.lock_table`` an absent item has a lock as well, and `lock.item` raises DoesNotExist.
            LockLost: on leaving, as `Lock.release`.

        Cost: that of the lock; 1 refused write if it is held.
        """
        chosen: dict[str, Any] = {"wait": 0, **options}
        return first_of([cls.locked(hash_key, range_key, **chosen)], (LockTimeout,))

    @classmethod
    def locked_first(cls, keys: Iterable[Any], **options: Unpack[LockKeywords]) -> Block[Lock[Self] | None]:
        """Take the first of several locks that is free, skipping those that are not: for work queues.

        Like SQL's ``SKIP LOCKED``: workers that pass the same list take different items. With a
        `LockAttribute`, items that do not exist (any more) are skipped as well; with ``Meta.lock_table`` their locks
        are taken, and `lock.item` raises DoesNotExist. Check `lock.item` to see whether the work is still to be done.
        A lock that this thread or task holds already counts as free, and is taken again.

        Args:
            keys: hash keys, or pairs of hash and range key, in the order of preference.
            **options: those of `locked`; `wait` is 0 unless given, and counts for each key.

        Returns:
            A context manager, also for ``async with``, that yields the held lock, or None if none was free.

        Raises:
            ConfigurationError, LockLost, OutcomeUnknown: on entering, as `Lock.acquire`; ConfigurationError also if
                this thread or task shares one that it would have to take alone.
            LockLost: on leaving, as `Lock.release`.

        Cost: that of the lock, and 1 refused write for each one that was skipped; shared or with permits 2.
        """
        return first_of(cls._locks_of(keys, {"wait": 0, **options}), (LockTimeout, ItemNotFound))

    @classmethod
    def _locks_of(cls, keys: Iterable[Any], options: dict[str, Any]) -> list[Lock[Self]]:
        if isinstance(keys, (str, bytes)):
            raise ConfigurationError(f"locked_first() takes a list of keys, not {keys!r} alone.")
        pairs = [key if isinstance(key, tuple) else (key, None) for key in keys]
        wrong = next((pair for pair in pairs if len(pair) != 2), None)  # noqa: PLR2004 - hash and range key
        if wrong is not None:
            raise ConfigurationError(f"a key is a hash key, or a pair of hash and range key, not {wrong!r}.")
        return [cls.locked(*pair, **options) for pair in pairs]

    if TYPE_CHECKING:
        # Most models call their LockAttribute `lock`; it makes locks as well (see there).
        lock: LockAttribute
    else:

        @classmethod
        def lock(cls, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]) -> Lock[Self]:
            """Return the lock of one item, to be passed on or acquired by hand. The same as `locked`."""
            return cls.locked(hash_key, range_key, **options)

    @classmethod
    def edit(cls, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]) -> Edit[Self]:
        """Lock an item, change it, save it: ``with Account.edit("a-1") as account: ...``, or ``async with``.

        The request that takes the lock reads the item, and the request that releases it saves the item.
        If the block raises, nothing is saved; each of nested blocks undoes its own changes only. A task that is
        cancelled during the save receives the cancellation after the item is saved and the lock released.
        All arguments are those of `locked`.

        Returns:
            A context manager that yields the item.

        Raises:
            LockTimeout, ItemNotFound, ConfigurationError: on entering, as `Lock.acquire`.
            LockLost: on leaving; nothing was saved.
            OutcomeUnknown: on leaving; no response tells whether the item was saved.
            PutError: on leaving, if the model's version changed (a writer that does not lock), or the item was
                written through another instance in the block: `StaleVersion`.

        Cost: 2 writes, no read. With the lock in a row of its own: 1 write, 1 read, 1 transaction.
        """
        lock = cls.locked(hash_key, range_key, **options)
        if not lock._options.claim.may_write:
            raise ConfigurationError("edit() writes, so its lock is exclusive: leave out shared and permits.")
        return Edit(lock)

    @classmethod
    def lock_state(cls, hash_key: Any, range_key: Any = None) -> LockState:
        """Return the holders of the lock of an item, and the waiters.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one. Without it: the ranges of that hash key.

        Returns:
            A `LockState`; both tuples are empty when the lock is free, also if there is no such item.

        Raises:
            LockingError: no response came.
            ConfigurationError: wrong key, or no such table.

        Cost: 1 consistent read.
        """
        return inspection.state(cls._target_of(hash_key, range_key).row)

    @classmethod
    def _target_of(cls, hash_key: Any, range_key: Any) -> LockTarget[Self]:
        if range_key is None and cls._range_keyname is not None:
            return cls._range_target(hash_key, cls.lock_settings())
        return cls._lock_target(hash_key, range_key, cls.lock_settings())

    @classmethod
    def break_lock(
        cls, hash_key: Any, range_key: Any = None, *, ticket: int | None = None, force: bool = False
    ) -> bool:
        """Remove an entry from a queue by hand, whether its owner lives or not; or repair a broken lock document.

        The owner's guarded writes are refused from then on; its next request, at the latest its next renewal, sets
        its `Lock.lost`. The ticket ensures that an operator does not break a lock that has changed hands meanwhile.
        If the entry stands for several callers of one process (`QueueEntry.members`), all of them lose their tickets:
        the first one is the owner, and the others enter the queue anew.

        With `force` a broken document (`LockState.unreadable`) is replaced by a sound one. Its next ticket is above
        every ticket that can be read in the broken one. Holders and waiters stay if their entries can be read; all
        others lose their place, as after a deletion of the document. The values of the item stay, and so does a
        readable mark of a transaction; an unreadable mark is dropped, with the writes that it has not finished yet.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one. Without it: a range of that hash key.
            ticket: of the entry, from `lock_state`.
            force: instead of the ticket: repair the document. A sound document is left as it is.

        Returns:
            Whether the entry was removed; with `force`, whether the document was broken.

        Raises:
            CorruptRow: the document is broken, and a ticket was given.
            OutcomeUnknown: no response came; check the lock's state.
            ConfigurationError: neither a ticket nor `force` was given, or both. No request has been made.

        Cost: 1 read and 1 write.
        """
        row = cls._target_of(hash_key, range_key).row
        if force is (ticket is not None):
            raise ConfigurationError("break_lock() takes the ticket of an entry, or force=True to repair the document.")
        return inspection.repair(row) if ticket is None else inspection.break_entry(row, ticket)


class LockableModel(LockableMixin, Model):
    """A PynamoDB `Model` with locks and versions. See `LockableMixin` and `VersionedMixin`."""
