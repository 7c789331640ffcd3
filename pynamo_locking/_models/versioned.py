"""Models whose items carry a version."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.exceptions import DoesNotExist
from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import backoff, is_count
from pynamo_locking._io import loops, runtime
from pynamo_locking._items import clauses, versions
from pynamo_locking._models import uniqueness
from pynamo_locking._models.batches import GuardedBatch
from pynamo_locking._models.combining import Change, acombined, combined
from pynamo_locking._models.writing import GuardedMixin
from pynamo_locking._writes.writers import PlainWriter
from pynamo_locking.exceptions import Conflict, ItemLocked, StaleVersion, TransactionConflict, gave_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._models.uniqueness import UniqueReport


class VersionedMixin(GuardedMixin):
    """Adds optimistic locking to a model: put it right before `Model` in the bases.

    ::

        class Office(VersionedMixin, Model):
            class Meta:
                table_name = "offices"

            office_id = UnicodeAttribute(hash_key=True)
            name = UnicodeAttribute()
            version = VersionAttribute()

    `LockableModel` includes this class. Everything that PynamoDB does with a version stays as it is,
    and in addition:

    * a refused write returns the stored item (`StaleVersion.current`), at no cost;
    * a version only goes up, also with ``add_version_condition=False`` and with instances that have only a key;
    * a write whose response was lost is recognised by its id, and an item that was deleted and created again is not
      mistaken for the old one.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset(
        {"modify", "amodify", "touch", "guarded_batch", "check_unique", "repair_unique"}
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
        combine: bool = False,
    ) -> Self:
        """Read an item, change it, save it; retry with the stored item if another writer was faster.

        ``Account.modify("a-1", change=lambda account: account.add(10))``; with a model that has no range
        key, the function may be the second argument.

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            change: gets the item and changes it in place. It may be called `attempts` times, each time
                with a fresh item. What it returns is ignored; if it raises, nothing is written.
            attempts: the maximum number of attempts; 10 unless set. The first retry is immediate, with the item that
                came with the refusal. Later retries wait with full jitter, up to 0.1 s, doubled each time, at most
                2 s, and read the item again.
            condition: must be true as well; if it is not, there is no retry.
            create: begin with a new instance if there is no item; otherwise that is an error.
            consistent_read: whether the first read is consistent.
            combine: share the read and the write with other callers of this process that change the same item at
                the same time. Their functions are called in the order in which they came, each on an instance of its
                own; one that raises changes nothing, and its caller alone hears of it. It may be called in another
                thread, with the context variables of its caller, and the others wait for it: it must change its
                instance only, and soon. Not together with `condition`, or inside the item's lock.

        Returns:
            The item as it was saved; with `combine` an instance of the caller's own, after the changes of all functions
            of the write.

        Raises:
            DoesNotExist: there is no such item, and `create` is False.
            StaleVersion, ItemLocked, TransactionConflict: the error of the last attempt; its message says so.
            Conflict: the condition was not met.
            OutcomeUnknown: no response tells whether it was saved.
            ConfigurationError: the model has no version.

        Cost: 1 read and 1 write; 1 write for the first retry, and 1 read and 1 write for each later retry. With
        `combine` that is the cost of up to 1,000 changes.
        """
        if change is None and callable(range_key):
            range_key, change = None, range_key
        cls._check_modify(change, attempts)
        assert change is not None  # noqa: S101 - checked
        if combine:
            options: Any = {"attempts": attempts, "create": create, "consistent_read": consistent_read}
            return combined(cls._shared_change(hash_key, range_key, change, condition, options))
        item = cls._read_or_create(hash_key, range_key, create=create, consistent_read=consistent_read)
        for attempt in range(1, attempts + 1):
            change(item)
            try:
                item.save(condition)
            except (StaleVersion, ItemLocked, TransactionConflict) as conflict:
                if attempt == attempts:
                    gave_up(conflict, "modify()", attempts)
                    raise
                item = cls._refused_by(conflict, attempt) or cls._read_later(hash_key, range_key, attempt, create)
            else:
                return item
        raise AssertionError("the last attempt returns or raises")

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
        combine: bool = False,
    ) -> Self:
        """Do what `modify` does, awaited; see there. `change` is a plain function, which is called in a thread.

        With `combine` a task that waits for the write of another task occupies no thread. A task that is cancelled
        meanwhile hears of it when `modify` has ended, with `combine` after the request that is under way; its change
        may have been saved.
        """
        if change is None and callable(range_key):
            range_key, change = None, range_key
        options: Any = {"attempts": attempts, "create": create, "consistent_read": consistent_read}
        if not combine:
            modify = partial(cls.modify, hash_key, range_key, change, condition=condition, **options)
            return await loops.to_the_end(modify)
        cls._check_modify(change, attempts)
        assert change is not None  # noqa: S101 - checked
        return await acombined(cls._shared_change(hash_key, range_key, change, condition, options))

    @classmethod
    def _shared_change(
        cls, hash_key: Any, range_key: Any, change: Callable[[Self], object], condition: object, options: Any
    ) -> Change[Self]:
        if condition is not None:
            raise ConfigurationError(
                "modify(combine=True) shares its write with other callers, so it takes no condition: check it in the "
                "function, and raise if it is not met."
            )
        if cls._target_held_here(hash_key, range_key) is not None:
            raise ConfigurationError(
                f"the lock of this {cls.__name__} is held here, and modify(combine=True) would let other callers write "
                f"under it: call modify() without combine, or change the item under its lock."
            )
        return Change(cls, (hash_key, range_key), change, **options)

    @classmethod
    def _check_modify(cls, change: object, attempts: int) -> None:
        if versions.shape_of(cls).attribute is None:
            raise ConfigurationError(
                f"{cls.__name__} has no version, so modify() could not detect another writer: declare "
                f"`version = VersionAttribute()`."
            )
        if not callable(change):
            raise ConfigurationError(f"modify() needs a function that changes the item: change={change!r}.")
        if not is_count(attempts):
            raise ConfigurationError(f"modify() needs at least one attempt, not {attempts!r}.")

    @classmethod
    def _read_or_create(cls, hash_key: Any, range_key: Any, *, create: bool, consistent_read: bool = True) -> Self:
        try:
            return cls.get(hash_key, range_key, consistent_read=consistent_read)
        except DoesNotExist:
            if not create:
                raise
            return cls(hash_key, range_key)

    @classmethod
    def _refused_by(cls, conflict: Conflict, attempt: int) -> Self | None:
        """Return the item that came with a first refusal: nothing is fresher. After a pause it would be stale."""
        is_first = attempt == 1 and isinstance(conflict, StaleVersion)
        return conflict.current if is_first else None

    @classmethod
    def _read_later(cls, hash_key: Any, range_key: Any, attempt: int, create: bool) -> Self:  # noqa: FBT001
        runtime.current.sleep(backoff(attempt - 1, runtime.current.jitter()))
        return cls._read_or_create(hash_key, range_key, create=create)

    def touch(self, condition: Condition | None = None, *, add_version_condition: bool = True) -> None:
        """Increment the version and change nothing else, so that every process that has read the item must reread it.

        Use it after a change of data that belongs to the item and is stored elsewhere.

        Args:
            condition: must be true as well.
            add_version_condition: with False it increments any stored version.

        Raises:
            StaleVersion, ItemLocked, LockLost, Conflict, OutcomeUnknown: as `update`; also if there is no item.
            ConfigurationError: the model has no version.

        Cost: 1 write. Source: JPA's ``LockModeType.OPTIMISTIC_FORCE_INCREMENT``.
        """
        if versions.shape_of(type(self)).attribute is None:
            raise ConfigurationError(f"{type(self).__name__} has no version that touch() could increment.")
        exists = self.get_attributes()[str(self._hash_keyname)].exists()
        writer = self._writer() or PlainWriter(self)
        writer.touch(clauses.both(condition, exists), checks_version=add_version_condition)

    @classmethod
    def check_unique(cls) -> UniqueReport:
        """Compare the items with the rows of their unique values (``Meta.unique``), and change nothing.

        Other writers may be at work: what does not fit is looked at again, at one moment, before it is reported.

        Returns:
            How many items and rows there are, and what does not fit.

        Raises:
            ConfigurationError: the model has no unique values.
            TransactionConflict: transactions kept an item busy.

        Cost: a scan of the model's table and of that of the rows; 1 transactional read for each suspect.
        """
        return uniqueness.check(cls, repairs=False)

    @classmethod
    def repair_unique(cls) -> UniqueReport:
        """Write missing rows of unique values, and remove rows whose items do not have the value.

        That is what writers leave behind that do not use this package, and the way to begin: run it once all writers
        have the ``Meta.unique``. Until then an item without its row does not keep others from its value. A value that
        several items have is reported, and left to people: give one of the items another value, or delete it. It is
        safe beside other writers, and can be repeated.

        Returns:
            What was found, and what of that was mended.

        Raises:
            ConfigurationError, TransactionConflict: as `check_unique`.

        Cost: that of `check_unique`, and 1 transaction for each problem, of the row and a check of each item.
        """
        return uniqueness.check(cls, repairs=True)

    @classmethod
    def guarded_batch(
        cls, *, transactions: bool = False, workers: int = 8, on_progress: Callable[[int, int], object] | None = None
    ) -> GuardedBatch[Self]:
        """Return a context in which to collect any number of saves and deletes, which keep their conditions.

        See `GuardedBatch`. Nothing is sent before the ``with`` block ends, and nothing at all if it raises.

        Args:
            transactions: write in native transactions of up to 100, each all or none, at two write units
                for each KB; otherwise by statements, 25 in a request, each for itself.
            workers: how many requests at once.
            on_progress: called after each request with the number of writes done and of all.

        Raises:
            BatchError: some writes were not applied; its `results` say which, and why.

        Cost: 1 request for each 25 writes. 1 write more for one that is refused, or that no statement can say.
        """
        return GuardedBatch(transactions=transactions, workers=workers, on_progress=on_progress)
