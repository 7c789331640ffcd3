"""What users derive from: models with a version, with expiry, with a lock."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pynamodb.attributes import TTLAttribute
from pynamodb.exceptions import DoesNotExist
from pynamodb.models import Model
from typing_extensions import Self, Unpack, override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import backoff, is_count, seconds
from pynamo_locking._io import concurrency, runtime
from pynamo_locking._items import conditions, keys, versions
from pynamo_locking._locks import inspection
from pynamo_locking._locks.held_lock import refuse_retry_in_blocked_loop
from pynamo_locking._locks.lock import Lock, handle_of
from pynamo_locking._locks.locked_all import first_of
from pynamo_locking._locks.options import check_plain, make_lock_mode, make_options
from pynamo_locking._locks.tokens import Token
from pynamo_locking._models.awaited import awaited_read, awaited_write
from pynamo_locking._models.edit import Edit, may_queue, retry_lock
from pynamo_locking._models.writes import GuardedMixin, check_read_alone, refuse_own
from pynamo_locking._pynamodb import new_item
from pynamo_locking._writes.writer import Writer
from pynamo_locking.exceptions import (
    WAIT_IS_OVER,
    Conflict,
    ItemLocked,
    ItemNotFound,
    LockTimeout,
    StaleVersion,
    TransactionConflict,
    gave_up,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.lease import Duration, LockSettings
    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._locks.locked_all import Block
    from pynamo_locking._locks.options import AttachKeywords, LockKeywords, LockTarget, RangeKeywords
    from pynamo_locking._models.batch_writes import GuardedBatch
    from pynamo_locking._models.unique_audit import UniqueReport


class ExpiringMixin(GuardedMixin):
    """Makes expired items count as absent, although DynamoDB may keep them for days.

    Put it before `Model`, `VersionedMixin` or `LockableModel` in the bases, and declare a `TTLAttribute`. An item
    expires at the second in its attribute. An item without a value, or with NULL, never does. If the value is no
    number, the item does not expire either, as with DynamoDB's TTL, and every read of it raises PynamoDB's
    `AttributeDeserializationError`.

    Example::

        Ticket("t-1", expires=timedelta(seconds=-1)).save()
        assert list(Ticket.scan()) == []
        assert list(Ticket.scan(include_expired=True)) != []

    * `get` and `refresh` raise ``DoesNotExist``; `query`, `scan`, `count` and `batch_get` leave expired items out, with
      an index too. DynamoDB still reads them, and charges for them.
    * A save of a new item replaces an expired one, in the same single request.
    * All other writes ignore the time: a save of a copy that was read before, an update and a delete do to an expired
      item what they do to any other.
    * A lock in an expired item cannot be acquired (`ItemNotFound`): to acquire it reads the item.

    Pass ``include_expired=True`` to see expired items. This process's clock decides what has expired, in seconds, as
    DynamoDB's clock does for TTL.
    """

    _hides_expired: ClassVar[bool] = True

    @override
    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a time of expiry that is a key: DynamoDB could not leave it out of a query."""
        super().__init_subclass__(**options)
        for name, attribute in ((name, value) for base in cls.__mro__ for name, value in vars(base).items()):
            if isinstance(attribute, TTLAttribute) and (attribute.is_hash_key or attribute.is_range_key):
                raise ConfigurationError(
                    f"{cls.__name__}.{name} is a key of the table, and DynamoDB cannot filter by keys: keep the time "
                    f"of expiry in another attribute."
                )


def _refuse_if_last(conflict: Conflict, attempt: int, attempts: int) -> None:
    """Raise what has refused an attempt of `modify` if there is no other one; say so."""
    if attempt == attempts:
        gave_up(conflict, "modify()", f"after attempt {attempt} of {attempts}")
        raise conflict


class VersionedMixin(GuardedMixin):
    """Adds optimistic locking to a model: put it right before `Model` in the bases.

    Example::

        class Office(VersionedMixin, Model):
            class Meta:
                table_name = "offices"

            office_id = UnicodeAttribute(hash_key=True)
            name = UnicodeAttribute()
            version = VersionAttribute()

    `LockableModel` includes this class. It adds to what PynamoDB does with a version:

    * a refused write returns the stored item (`StaleVersion.current`), at no cost;
    * a version only goes up, even with ``add_version_condition=False`` or an instance that has only a key;
    * a write whose response was lost is recognised by its id, and an item that was deleted and created again is not
      mistaken for the old one.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset(
        {"modify", "amodify", "touch", "atouch", "guarded_batch"}
        | {"check_unique", "acheck_unique", "repair_unique", "arepair_unique"}
    )

    @classmethod
    def modify(
        cls,
        hash_key: Any,
        range_key: Any = None,
        change: Callable[[Self], object] | None = None,
        *,
        attempts: int = 10,
        condition: Condition | None = None,
        create: bool = False,
        consistent_read: bool = True,
        wait: Duration = 60.0,
    ) -> Self:
        """Read an item, change it, save it; if another writer was faster, do it again (no lost update).

        Example::

            def pay_in(account):
                account.balance += 10

            Account.modify("a-1", change=pay_in)

        If the model has a `LockAttribute`, the second attempt does what `edit` does: it acquires the lock of the item
        and reads under it. So callers of a hot item queue, first come, first served; other writers get ItemLocked
        meanwhile. Only a writer that knows no lock, such as an older release of a program, can refuse it: then later
        attempts acquire none. The lease is short: six times the ``request_timeout`` of the lock's settings. A function
        that acquires a lock itself can wait for one that waits for this item: acquire such locks around the call.

        Else the second attempt changes the item that came with the refusal, and later ones read again. They do so as
        well if the caller holds a lock, since the order could be another one, or blocks an event loop; if the model
        overrides `save` or has intervals; if the item is absent; and after `wait`.

        If the model has no range key, the function may be the second argument.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            change: gets the item and changes it in place. It may be called `attempts` times, each time with a fresh
                item. What it returns is ignored; if it raises, nothing is written.
            attempts: the maximum number of attempts; 10 unless set. Without a lock there is a pause before the third
                and later ones, with full jitter: up to 0.1 s, doubled each time, at most 2 s. So many ItemLocked end
                the call then, before `wait` is over.
            condition: must be true of the stored item; if it is false, there is no retry.
            create: begin with a new instance if there is no item; otherwise that is an error.
            consistent_read: whether the first read is consistent.
            wait: how long to wait for the lock, in seconds or as a timedelta, counted from the call. With 0 no lock is
                acquired. 60 s.

        Returns:
            The item as it was saved.

        Raises:
            DoesNotExist: there is no such item, and `create` is False.
            StaleVersion, ItemLocked, TransactionConflict: the error of the last attempt; its message says why there was
                no other one. ItemLocked ends the call when `wait` is over.
            LockLost: the lock was lost before the item was saved. Nothing was written.
            Conflict: the condition was false.
            OutcomeUnknown: no response tells whether it was saved.
            ConfigurationError: the model has no version; or another task of the event loop of this thread holds the
                item's lock: call `amodify`.

        Cost: 1 read and 1 write; 2 writes for the attempt under the lock. Without a lock 1 write for the first retry,
        and 1 read and 1 write for each later one.
        """
        range_key, change = cls._check_modify(hash_key, range_key, change, attempts)
        key, until = (hash_key, range_key), runtime.current.monotonic() + seconds(wait, "wait")
        modify = partial(cls._modify_unlocked, key, change, condition, until, attempts=attempts, create=create)
        found = modify(consistent_read=consistent_read)
        if not isinstance(found, Conflict):
            return found
        # It was refused, and waits for its turn. What it reads under the lock nobody changes until it is saved.
        with contextlib.ExitStack() as block:
            try:
                item = block.enter_context(cls._edit_in_turn(key, condition, until))
            except LockTimeout as timeout:
                gave_up(found, "modify()", WAIT_IS_OVER)
                raise found from timeout
            except (ItemNotFound, ConfigurationError):  # there is no lock: the item is gone, or has no room for it
                return cast("Self", modify(begun=1))
            change(item)
            try:
                block.close()
            except (StaleVersion, TransactionConflict) as conflict:  # of a writer that does not lock
                _refuse_if_last(conflict, 2, attempts)
                return cast("Self", modify(begun=2))
        return item

    @classmethod
    async def amodify(
        cls,
        hash_key: Any,
        range_key: Any = None,
        change: Callable[[Self], object] | None = None,
        *,
        attempts: int = 10,
        condition: Condition | None = None,
        create: bool = False,
        consistent_read: bool = True,
        wait: Duration = 60.0,
    ) -> Self:
        """Do what `modify` does, awaited; see there. `change` is a plain function, which is called in a thread.

        A task that waits for the lock occupies no thread. If the task is cancelled then, nothing was written. At other
        times the cancellation is raised when the request, or `change`, has ended; the change may have been saved.
        """
        range_key, change = cls._check_modify(hash_key, range_key, change, attempts)
        key, until = (hash_key, range_key), runtime.current.monotonic() + seconds(wait, "wait")
        modify = partial(cls._modify_unlocked, key, change, condition, until, attempts=attempts, create=create)
        found = await concurrency.to_the_end(partial(modify, consistent_read=consistent_read))
        if not isinstance(found, Conflict):
            return found
        async with contextlib.AsyncExitStack() as block:
            try:
                item = await block.enter_async_context(cls._edit_in_turn(key, condition, until))
            except LockTimeout as timeout:
                gave_up(found, "modify()", WAIT_IS_OVER)
                raise found from timeout
            except (ItemNotFound, ConfigurationError):
                return cast("Self", await concurrency.to_the_end(partial(modify, begun=1)))
            await concurrency.to_the_end(partial(change, item))
            try:
                await block.aclose()
            except (StaleVersion, TransactionConflict) as conflict:
                _refuse_if_last(conflict, 2, attempts)
                return cast("Self", await concurrency.to_the_end(partial(modify, begun=2)))
        return item

    @classmethod
    def _modify_unlocked(
        cls,
        key: tuple[Any, Any],
        change: Callable[[Self], object],
        condition: Condition | None,
        until: float,
        *,
        attempts: int,
        create: bool,
        consistent_read: bool = True,
        begun: int = 0,
    ) -> Self | Conflict:
        """Make the attempts that acquire no lock; return the first refusal if the next one is to acquire it."""
        item = cls._read_or_create(*key, create=create, consistent_read=consistent_read)
        for attempt in range(begun + 1, attempts + 1):
            change(item)
            try:
                item.save(condition)
            except (StaleVersion, ItemLocked, TransactionConflict) as conflict:
                is_in_time = runtime.current.monotonic() < until
                _refuse_if_last(conflict, attempt, attempts)
                if isinstance(conflict, ItemLocked) and not is_in_time:
                    gave_up(conflict, "modify()", WAIT_IS_OVER)
                    raise
                refuse_retry_in_blocked_loop(conflict)
                if attempt == 1 and is_in_time and cls._may_queue(item):
                    return conflict
                item = cls._refused_by(conflict, attempt) or cls._read_later(*key, attempt, create)
            else:
                return item
        raise AssertionError("the last attempt returns or raises")

    @classmethod
    def _may_queue(cls, item: Self) -> bool:
        """Tell whether a retry may wait for the lock of its item, and save it with the release."""
        is_plain = getattr(item.save, "__func__", None) is GuardedMixin.save  # which another may not do alone
        can_edit = is_plain and item._lock_attribute() is not None
        return can_edit and may_queue()

    @classmethod
    def _edit_in_turn(cls, key: tuple[Any, Any], condition: Condition | None, until: float) -> Edit[Self]:
        left = max(0.0, until - runtime.current.monotonic())
        return Edit(retry_lock(cls, key, wait=left), condition, "modify()")

    @classmethod
    def _check_modify(
        cls, hash_key: Any, range_key: Any, change: Callable[[Self], object] | None, attempts: int
    ) -> tuple[Any, Callable[[Self], object]]:
        """Return the range key and the function, which may have been given in its place."""
        if change is None and callable(range_key):
            range_key, change = None, range_key
        if versions.shape_of(cls).attribute is None:
            raise ConfigurationError(
                f"{cls.__name__} has no version, so modify() could not detect another writer: declare "
                f"`version = VersionAttribute()`."
            )
        if not callable(change):
            raise ConfigurationError(f"modify() needs a function that changes the item: change={change!r}.")
        if not is_count(attempts):
            raise ConfigurationError(f"modify() needs at least one attempt, not {attempts!r}.")
        check_read_alone(cls, hash_key, range_key)
        return range_key, change

    @classmethod
    def _read_or_create(cls, hash_key: Any, range_key: Any, *, create: bool, consistent_read: bool = True) -> Self:
        try:
            return cls.get(hash_key, range_key, consistent_read=consistent_read)
        except DoesNotExist:
            if not create:
                raise
            return new_item(cls, hash_key, range_key)

    @classmethod
    def _refused_by(cls, conflict: Conflict, attempt: int) -> Self | None:
        """Return the item that came with a first refusal: nothing is fresher. After a pause it would be stale."""
        current = conflict.current if attempt == 1 and isinstance(conflict, StaleVersion) else None
        return current if isinstance(current, cls) else None  # another writer may have stored another class

    @classmethod
    def _read_later(cls, hash_key: Any, range_key: Any, attempt: int, create: bool) -> Self:  # noqa: FBT001
        runtime.current.sleep(backoff(attempt - 1, runtime.current.jitter()))
        return cls._read_or_create(hash_key, range_key, create=create)

    def touch(self, condition: Condition | None = None, *, add_version_condition: bool = True) -> None:
        """Increment the version and change nothing else, so that every process that has read the item must reread it.

        Use it after a change of data that belongs to the item and is stored elsewhere.

        Example::

            line = Line("o-1", 2, price=5)
            line.save()
            line.touch()  # whoever read it before gets StaleVersion

        Args:
            condition: must be true of the stored item.
            add_version_condition: with False it increments any stored version.

        Raises:
            StaleVersion, ItemLocked, LockLost, Conflict, OutcomeUnknown: as `update`, and if there is no item.
            ConfigurationError: the model has no version.

        Cost: 1 write. Source: JPA's ``LockModeType.OPTIMISTIC_FORCE_INCREMENT``.
        """
        if versions.shape_of(type(self)).attribute is None:
            raise ConfigurationError(f"{type(self).__name__} has no version that touch() could increment.")
        writer = self._writer() or Writer(self)
        writer.touch(conditions.both(condition, conditions.exists(self)), checks_version=add_version_condition)

    @awaited_write(touch)
    def atouch(self) -> None:
        """Increment the version, awaited. See `touch`."""

    @classmethod
    def check_unique(cls) -> UniqueReport:
        """Compare the items with the rows of their unique values (``Meta.unique``), and change nothing.

        Safe to run concurrently with other writers: a mismatch is checked again by one transactional read before it is
        reported.

        Returns:
            How many items and rows there are, and what does not fit.

        Raises:
            ConfigurationError: the model has no unique values.
            TransactionConflict: transactions kept an item busy.

        Cost: a scan of the model's table and of that of the rows; 1 transactional read for each suspect.
        """
        from pynamo_locking._models import unique_audit  # noqa: PLC0415 - a tool for people

        return unique_audit.check(cls, repairs=False)

    @classmethod
    def repair_unique(cls) -> UniqueReport:
        """Write missing rows of unique values, and remove rows whose items do not have the value.

        Run it once all writers have the ``Meta.unique``, and after writes without this package. Until then the value of
        an item without a row can be taken by other items. A value that several items have is only reported: give one of
        the items another value, or delete it. It is safe to run concurrently with other writers, and to repeat.

        Returns:
            What was found, and what of that was repaired.

        Raises:
            ConfigurationError, TransactionConflict: as `check_unique`.

        Cost: that of `check_unique`, and 1 transaction for each problem, of the row and a check of each item.
        """
        from pynamo_locking._models import unique_audit  # noqa: PLC0415 - a tool for people

        return unique_audit.check(cls, repairs=True)

    @awaited_read(check_unique)
    def acheck_unique(self) -> None:
        """Compare the items with the rows of their unique values, awaited. See `check_unique`."""

    @awaited_write(repair_unique)
    def arepair_unique(self) -> None:
        """Mend the rows of unique values, awaited. See `repair_unique`."""

    @classmethod
    def guarded_batch(
        cls, *, transactions: bool = False, workers: int = 8, on_progress: Callable[[int, int], object] | None = None
    ) -> GuardedBatch[Self]:
        """Return a context in which to collect any number of saves and deletes, which keep their conditions.

        See `GuardedBatch`. Nothing is sent before the ``with`` block ends, and nothing at all if it raises.

        Example::

            accounts = list(Account.scan())
            with Account.guarded_batch() as batch:
                for account in accounts:
                    account.balance = 0
                    batch.save(account)

        Args:
            transactions: write in native transactions of up to 100, each all or none, at two write units for each KB;
                otherwise by independent statements, 25 in a request.
            workers: how many requests at once.
            on_progress: called after each request with the number of writes done and of all.

        Raises:
            BatchError: some writes have failed; its `results` say which, and why.

        Cost: 1 request for each 25 writes. 1 write more for each that is refused, or that no statement can express.
        """
        from pynamo_locking._models import batch_writes  # noqa: PLC0415 - most programs need none

        return batch_writes.GuardedBatch(transactions=transactions, workers=workers, on_progress=on_progress)


class LockableMixin(VersionedMixin):
    """Adds locks to a model: put it right before `Model` in the bases, or derive from `LockableModel`.

    The lock is kept in the item itself if the model declares a `LockAttribute`, and in a row of the `NamedLock` class
    named by ``Meta.lock_table`` otherwise. ``Meta.lock_settings`` may hold a `LockSettings`. With
    ``Meta.enforce_locks = "ranges"``, or ``"table"``, every write through the model is refused while another owner has
    locked a range around the item, or the table.

    Inside a lock, `save`, `update` and `delete` of the locked item are refused by DynamoDB once the
    lock is lost. With a `LockAttribute`, writes from outside the lock are refused while it is held.

    With a `LockAttribute`, `save` is an UpdateItem that sets the declared attributes and removes those without
    a value. Attributes that the model does not declare therefore survive it.

    What can be locked has a version, so that a copy from before the lock is refused: declare a `VersionAttribute`. This
    class includes `VersionedMixin`.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset(
        {"locked", "locked_range", "locked_table", "locked_first", "try_locked", "edit", "attach"}
        | {"lock_state", "alock_state", "break_lock", "abreak_lock", "lock_settings"}
    )

    @classmethod
    def locked(  # noqa: PLR0913 - each stands alone, and they are named
        cls,
        hash_key: Any,
        range_key: Any = None,
        *,
        wait: Duration | None = None,
        lease: Duration | None = None,
        heartbeat: bool | None = None,
        max_hold: Duration | None = None,
        shared: bool = False,
        permits: int = 1,
        owner: str | None = None,
        on_lost: Callable[[str], object] | None = None,
        settings: LockSettings | None = None,
    ) -> Lock[Self]:
        """Return the lock of one item, to be used in a ``with`` or ``async with`` statement.

        Example::

            with Account.locked("a-1", wait=5) as lock:
                account = lock.item
                account.balance += 10
                account.save()

        First come, first served, in every mode: readers that arrive after a waiting writer wait behind it. Inside,
        `lock.item` is the item as it was when the lock was acquired. For the guarantees under faults see `Lock`.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            wait: how long to wait for the lock, in seconds or as a timedelta; 0 does not wait: it fails if
                a live entry excludes this one. ``math.inf`` waits for ever. 60 s unless set.
            lease: how long the lock survives without a renewal, in seconds or as a timedelta. 60 s unless set.
            heartbeat: renew in the background. With False the caller renews (`Lock.renew`), or chooses a lease that is
                long enough.
            max_hold: how long to hold the lock at most, in seconds or as a timedelta, counted from the grant. Then it
                is lost, and no longer renewed, even if the work hangs. Without end unless set.
            shared: a reader lock: hold it together with other shared holders, but never with an exclusive one. Writes
                of the item are refused then, before any request. A shared holder cannot upgrade; an exclusive holder
                can `Lock.downgrade`.
            permits: a semaphore: how many may hold the lock at once; all concurrent callers must pass the same number.
                Above 1, writes of the item are refused as for `shared`. If the same thread or task asks again, it gets
                the same permit.
            owner: label for people of at most 256 bytes; host, process and thread unless given.
            on_lost: a plain function, called once with the reason, in a separate thread, when the loss is proven. If no
                thread can be started, it runs in the thread that detects the loss.
            settings: instead of ``Meta.lock_settings``.

        Returns:
            The lock, not yet taken.

        Raises:
            ConfigurationError: for arguments that cannot work. No request has been made.

        Cost: none here; 1 write to enter, 1 to leave, no read. A failed attempt with ``wait=0``: 1 refused write;
        shared or with permits 2 writes.
        """
        terms: dict[str, Any] = {"wait": wait, "lease": lease, "owner": owner, "settings": settings}
        terms |= {"heartbeat": heartbeat, "max_hold": max_hold, "on_lost": on_lost}
        lock_mode = make_lock_mode(shared=shared, permits=permits)
        return cls._make_lock(lambda used: cls._lock_target(hash_key, range_key, used), lock_mode, **terms)

    @classmethod
    def attach(cls, token: str, **options: Unpack[AttachKeywords]) -> Lock[Self]:
        """Return the lock that was detached with a token, in this process or another.

        Example::

            with Account.locked("a-1") as lock:
                token = lock.detach(lease=3600)

            with Account.attach(token) as lock:  # later, in another process
                lock.item.update([Account.balance.add(10)])

        From the beginning of the block it is an ordinary `Lock`, with the same ticket, also in ``async with`` and with
        `acquire`. A token can be attached several times, since a step may run twice: each attach fences the process
        that has attached it before, whose next write, renewal or release raises `LockLost`. All have one ticket, so it
        does not tell them apart as a fencing token. `Lock.detach` makes a new token, and after that DynamoDB refuses
        the earlier ones.

        Args:
            token: what `Lock.detach` has returned.
            **options: those of `locked`, without `shared` and `permits`. `wait` is the time for a transaction that has
                the item, or for an answer of DynamoDB. The `lease` replaces that of `detach`, even if the attach fails.

        Returns:
            The lock, not yet attached. Acquiring it makes the request, and raises `LockLost` if the lock was released,
            the next waiter has it since its lease has ended, or it was detached again (also a `ConfigurationError` if
            the token was made in another Region, where it may be attached); `LockTimeout` and `ItemNotFound`
            as for `locked`; `ConfigurationError` if this thread or task holds the lock by another entry. After all but
            `LockLost`, and if a task is cancelled meanwhile, the lock is left to the next `attach` of the token.

        Raises:
            InvalidInput: it is no token.
            ConfigurationError: it is of a table with another name, or for arguments that cannot work. No request has
                been made.

        Cost: none here; 1 write to attach. If the token was attached before, 1 refused write more.
        """
        given = Token.of(token)
        hash_key, range_key = given.key_of(cls)
        target = partial(cls._lock_target, hash_key, range_key)
        return cls._make_lock(target, given.lock_mode, token=given, **options)

    @classmethod
    def _make_lock(
        cls,
        target: Callable[[LockSettings], LockTarget[Self]],
        lock_mode: LockMode,
        *,
        on_lost: Callable[[str], object] | None = None,
        token: Token | None = None,
        **terms: Any,
    ) -> Lock[Self]:
        check_plain("on_lost", on_lost)
        options = make_options(cls, **terms, lock_mode=lock_mode)._replace(token=token)
        return Lock(target(options.settings), options, on_lost)

    @classmethod
    def locked_range(cls, hash_key: Any, lower: Any, upper: Any, **options: Unpack[RangeKeywords]) -> Lock[Self]:
        """Return the lock of all items of a hash key whose range keys lie in ``[lower, upper)``.

        It conflicts with overlapping ranges of that hash key, whether the range has items or not; ranges that only
        touch do not conflict. First come, first served: small ranges that arrive later wait behind a large range.

        With ``Meta.enforce_locks`` all other writes in the range through the model raise `ItemLocked` meanwhile; a row
        with an interval (`IntervalMixin`) is in the range if a part of its interval is. Without it the lock only
        excludes other range locks. Inside, writes of items in the range are refused by DynamoDB once the lock is lost,
        and reads see everything that earlier holders wrote. Locks of single items (`locked`) ignore ranges; so do
        writes of items whose model has a `LockAttribute`.

        The lock is kept in the table named by ``Meta.lock_table``, in one row for each hash key. Of a `NamedLock` it is
        a range of a name, and the bounds are numbers, strings, bytes or aware datetimes; `locked` of that name locks
        the whole name.

        Example::

            with Booking.locked_range("blue", 9, 12):
                print(Booking.intervals.free("blue", 9, 12))

        Args:
            hash_key: the hash key; the name, of a `NamedLock`.
            lower: the first value in the range; None for no lower end.
            upper: the first value behind the range; None for no upper end.
            **options: those of `locked`, without `permits`. Ranges that are `shared` may overlap each other. All ranges
                of a hash key queue in one row: ``settings.max_waiters`` bounds them together, holders included.

        Returns:
            The lock, not yet taken. It has no `item`.

        Raises:
            InvalidInput: the range is empty, its ends do not fit the range key, or a datetime has no time zone.
            ConfigurationError: there is no place for the lock. No request has been made.

        Cost: none here; 1 write to enter, 1 to leave, no read. A failed attempt with ``wait=0``: 2 writes.
        """
        bounds = [keys.free_bound(end) if cls._lock_creates_item else keys.bound_of(cls, end) for end in (lower, upper)]
        lock_mode = make_lock_mode(shared=options.pop("shared", False), lower=bounds[0], upper=bounds[1])
        return cls._make_lock(lambda used: cls._range_target(hash_key, used), lock_mode, **options)

    @classmethod
    def locked_table(cls, **options: Unpack[RangeKeywords]) -> Lock[Self]:
        """Return the lock of all items of the table, against which every write through the model is checked.

        Writes from outside are refused with `ItemLocked`. Inside, writes are refused by DynamoDB once the lock is lost.
        It does not wait for locks of ranges or of single items; writes by their holders are refused like all other
        writes. The arguments are those of `locked`, without `permits`; there is no `item`.

        Raises:
            ConfigurationError: the model has no ``Meta.enforce_locks = "table"``: its writers would ignore the lock.

        Cost: 1 write to enter, 1 to leave.
        """
        if cls._enforces() != "table":
            raise ConfigurationError(f"writers of {cls.__name__} ignore such a lock: set Meta.enforce_locks = 'table'.")
        lock_mode = make_lock_mode(shared=options.pop("shared", False))
        return cls._make_lock(cls._table_target, lock_mode, **options)

    @classmethod
    def try_locked(
        cls, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]
    ) -> Block[Lock[Self] | None]:
        """Acquire the lock if it is free: ``with Job.try_locked("j-1") as lock: if lock is not None: ...``.

        Example::

            with Account.try_locked("a-1") as lock:
                if lock is not None:
                    lock.item.update([Account.balance.add(10)])

        The arguments are those of `locked`; `wait` is 0 unless given.

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
        """Acquire the first of several locks that is free, and skip the others: for work queues.

        Like SQL's ``SKIP LOCKED``: workers that pass the same list take different items. With a `LockAttribute`, items
        that do not exist (any more) are skipped; with ``Meta.lock_table`` their locks are acquired, and `lock.item`
        raises DoesNotExist. Check `lock.item` to see whether the work is still to be done. A lock that this thread or
        task already holds counts as free, and is acquired again.

        Example::

            with Account.locked_first(["a-1", "a-2"]) as lock:
                if lock is not None:
                    print("working on", lock.item.account_id)

        Args:
            keys: hash keys, or pairs of hash and range key, in the order of preference.
            **options: those of `locked`; `wait` is 0 unless given, and counts for each key.

        Returns:
            A context manager, also for ``async with``, that yields the held lock, or None if none was free.

        Raises:
            ConfigurationError, LockLost, OutcomeUnknown: on entering, as `Lock.acquire`; a ConfigurationError, too, if
                this thread or task shares one that it would need exclusively.
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

    @classmethod
    def edit(cls, hash_key: Any, range_key: Any = None, **options: Unpack[LockKeywords]) -> Edit[Self]:
        """Lock an item, change it, save it: ``with Account.edit("a-1") as account: ...``, or ``async with``.

        Example::

            with Account.edit("a-1") as account:
                account.balance += 10

        The request that acquires the lock reads the item, and the request that releases it saves the item. If the block
        raises, nothing is saved; a nested block undoes only its own changes. A task that is cancelled during the save
        receives the cancellation after the item is saved and the lock released. The arguments are those of `locked`,
        without `shared` and `permits`.

        Returns:
            A context manager that yields the item.

        Raises:
            LockTimeout, ItemNotFound, ConfigurationError: on entering, as `Lock.acquire` and `Lock.item`.
            LockLost: on leaving; nothing was saved.
            OutcomeUnknown: on leaving; no response tells whether the item was saved.
            PutError: on leaving, if the model's version changed (a writer that does not lock), or the item was written
                through another instance in the block: `StaleVersion`.

        Cost: 2 writes, no read. With the lock in a separate row: 1 write, 1 read, 1 transaction.
        """
        lock = cls.locked(hash_key, range_key, **options)
        if not handle_of(lock).options.lock_mode.may_write:
            raise ConfigurationError("edit() writes, so its lock is exclusive: leave out shared and permits.")
        refuse_own(cls, "save", "edit()")
        check_read_alone(cls, hash_key, range_key)
        return Edit(lock)

    @classmethod
    def lock_state(cls, hash_key: Any, range_key: Any = None) -> LockState:
        """Return the holders of the lock of an item, and the waiters.

        Example::

            for entry in Account.lock_state("a-1").holders:
                print(entry.owner, "renewed", entry.age, "seconds ago")

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one. Without it: the ranges of that hash key.

        Returns:
            A `LockState`; both tuples are empty when the lock is free, or there is no such item.

        Raises:
            LockingError: no response came.
            InvalidInput: wrong key.
            ConfigurationError: no such table.

        Cost: 1 consistent read.
        """
        return inspection.state(cls._target_of(hash_key, range_key).row)

    @classmethod
    def break_lock(cls, hash_key: Any, range_key: Any = None, *, ticket: int) -> bool:
        """Remove an entry from a queue by hand, whether its owner is running or not.

        The owner's guarded writes are refused from then on; its next request, at the latest its next renewal, sets its
        `Lock.lost`. The ticket ensures that an operator does not break a lock that has changed hands meanwhile. If the
        entry is shared by several callers of one process (`QueueEntry.callers`), all of them lose their tickets: the
        first one is the owner, and the others enter the queue again.

        Example::

            for entry in Account.lock_state("a-1").holders:
                Account.break_lock("a-1", ticket=entry.ticket)

        Args:
            hash_key: the item's hash key.
            range_key: as for `lock_state`; without it: a range of that hash key.
            ticket: of the entry, from `lock_state`.

        Returns:
            Whether the entry was removed.

        Raises:
            CorruptRow: the lock cannot be read.
            OutcomeUnknown: no response came; check the lock's state.

        Cost: 1 read and 1 write.
        """
        return inspection.break_entry(cls._target_of(hash_key, range_key).row, ticket)

    @awaited_read(lock_state)
    def alock_state(self) -> None:
        """Return the holders of the lock of an item, and the waiters, awaited. See `lock_state`."""

    @awaited_write(break_lock)
    def abreak_lock(self) -> None:
        """Remove an entry from a queue by hand, awaited. See `break_lock`."""


class LockableModel(LockableMixin, Model):
    """A PynamoDB `Model` with locks and versions. See `LockableMixin` and `VersionedMixin`."""
