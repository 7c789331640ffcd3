"""Models whose items can be locked, and the lock that needs no item."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from pynamodb.attributes import Attribute, TTLAttribute, UnicodeAttribute
from pynamodb.exceptions import TableError
from pynamodb.models import BatchWrite, Model
from pynamodb.transactions import TransactGet
from typing_extensions import Self, TypeVar, override

from pynamo_locking._core.lease import Duration, LockSettings
from pynamo_locking._core.outcome import Kind
from pynamo_locking._core.queue import LockState
from pynamo_locking._io import guards, inspection, local, rows, writes
from pynamo_locking._io.items import EmbeddedItem, GuardedItem, check_actions, put_document
from pynamo_locking._io.transport import code_of
from pynamo_locking.attributes import LockAttribute
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.locks import Lock, Target, make_wish

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Row

    _Base = Model
else:
    _Base = object

M = TypeVar("M", bound="LockableMixin")

#: Names of the mixin that an attribute of a model must not hide.
_RESERVED = frozenset({"locked", "edit", "lock_state", "break_lock", "lock_settings"})


class LockableMixin(_Base):
    """Adds locks to a model: put it before `Model` in the bases, or derive from `LockableModel`.

    The lock is kept in the item itself if the model declares a `LockAttribute`, and in a row of the
    `NamedLock` class named by ``Meta.lock_table`` otherwise. ``Meta.lock_settings`` may hold a
    `LockSettings`.

    Inside a lock, `save`, `update` and `delete` of the locked item are refused by DynamoDB once the
    lock is lost. With a `LockAttribute`, writes from outside are refused while somebody holds it.

    Such a model's `save` is an UpdateItem that sets the declared attributes and removes those without
    a value. Attributes that the model does not declare therefore survive it.
    """

    _lock_creates_item: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse attributes that would hide the lock methods, before anybody relies on them."""
        super().__init_subclass__(**options)
        declared = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        attributes = {name: value for name, value in declared.items() if isinstance(value, Attribute)}
        hidden = sorted(_RESERVED & attributes.keys())
        if isinstance(attributes.get("lock", None), Attribute) and not isinstance(
            attributes["lock"], LockAttribute
        ):
            hidden.append("lock")
        if hidden:
            raise ConfigurationError(
                f"{cls.__name__} declares an attribute called {hidden[0]!r}, which would hide the method of that "
                f"name. Rename it in Python and keep the stored name: "
                f"{hidden[0]}_ = ...Attribute(attr_name={hidden[0]!r})."
            )
        locks = sorted(name for name, value in attributes.items() if isinstance(value, LockAttribute))
        if len(locks) > 1:
            raise ConfigurationError(f"{cls.__name__} has more than one LockAttribute: {', '.join(locks)}.")

    # Locks

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
        wish = make_wish(
            cls, wait=wait, lease=lease, heartbeat=heartbeat, owner=owner, settings=settings
        )
        return Lock(cls._lock_target(hash_key, range_key, wish.settings), wish, on_lost)

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
        """Return who holds the lock of an item and who waits. 1 consistent read.

        Returns:
            A `LockState`; both tuples are empty when the lock is free, also if there is no such item.
        """
        return inspection.state(cls._lock_target(hash_key, range_key, cls.lock_settings()).row)

    @classmethod
    def break_lock(cls, hash_key: Any, range_key: Any = None, *, ticket: int) -> bool:
        """Remove an entry from a queue by hand, whether its owner lives or not.

        The owner's guarded writes are refused from then on, and its `Lock.lost` is set by its next
        renewal. The ticket is needed so that nobody breaks a lock that changed hands since he looked.

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

    @classmethod
    def lock_settings(cls) -> LockSettings:
        """Return ``Meta.lock_settings``, or the defaults."""
        settings: LockSettings = getattr(cls.Meta, "lock_settings", None) or LockSettings()
        return settings

    # Where the lock is

    @classmethod
    def _lock_attribute(cls) -> LockAttribute | None:
        return next((a for a in cls.get_attributes().values() if isinstance(a, LockAttribute)), None)

    @classmethod
    def _lock_target(cls, hash_key: Any, range_key: Any, settings: LockSettings) -> Target[Self]:
        key = rows.key_of(cls, hash_key, range_key)
        attribute = cls._lock_attribute()
        if attribute is not None:
            label = str(hash_key) if cls._lock_creates_item else ""
            row = cls._lock_row(key, attribute, settings, label)
            return Target(cls, row, (cls, hash_key, range_key), None)
        table, name = cls._lock_table(), rows.name_of(cls, key)
        row = table._lock_row({"name": {"S": name}}, table._own_lock(), settings, name)

        def read() -> Self:
            # A plain read can show the state before a transaction that is decided but not yet applied.
            with TransactGet(connection=cls._get_connection().connection) as transaction:
                future = transaction.get(cls, hash_key, range_key)
            return future.get()

        return Target(cls, row, (table, name, None), read)

    @classmethod
    def _lock_table(cls) -> type[NamedLock]:
        table = getattr(cls.Meta, "lock_table", None)
        if not (isinstance(table, type) and issubclass(table, NamedLock)):
            raise ConfigurationError(
                f"{cls.__name__} has no place for locks: declare `lock = LockAttribute()`, or name a "
                f"subclass of NamedLock in Meta.lock_table (it is {table!r})."
            )
        return table

    @classmethod
    def _lock_row(
        cls, key: dict[str, Any], attribute: LockAttribute, settings: LockSettings, label: str
    ) -> Row:
        return rows.row_of(
            cls,
            key,
            attribute,
            may_create=cls._lock_creates_item,
            request_timeout=settings.request_timeout,
            label=label,
        )

    def _lock_row_of_item(self) -> Row:
        keys = [getattr(self, name) for name in (self._hash_keyname, self._range_keyname) if name]
        return self._lock_target(keys[0], keys[1] if len(keys) > 1 else None, self.lock_settings()).row

    def _own_entry(self, row: Row | None) -> OwnEntry | None:
        """Return the entry under which this item is written, if any. Raises `LockLost` if it is gone."""
        if writes.OWN_ENTRY not in self.__dict__ and local.holds_nothing():
            return None
        has_place = row is not None or getattr(self.Meta, "lock_table", None) is not None
        return writes.own_entry_of(self, row or (self._lock_row_of_item() if has_place else None))

    def _as_locked_item(self) -> EmbeddedItem | GuardedItem | None:
        """Return how this item is written; None: as PynamoDB does, its lock is elsewhere and not ours."""
        attribute = self._lock_attribute()
        if attribute is not None:
            row = self._lock_row_of_item()
            return EmbeddedItem(self, attribute, row, self._own_entry(row))
        own = self._own_entry(None)
        return None if own is None else GuardedItem(self, own)

    def _as_embedded_item(self) -> EmbeddedItem | None:
        """Return how PynamoDB's own TransactWrite may write this item."""
        written = self._as_locked_item()
        if isinstance(written, GuardedItem):
            raise ConfigurationError(
                f"{written.own.row.label} is locked in a row of its own, and PynamoDB's TransactWrite cannot check "
                f"that row. Use pynamo_locking.TransactWrite."
            )
        return written

    # Guarded writes

    @override
    def save(self, condition: Condition | None = None, *, add_version_condition: bool = True) -> dict[str, Any]:
        """Save the item, guarded by its lock. See PynamoDB's `Model.save`.

        Raises:
            ItemLocked: somebody else holds the item's embedded lock; also a `PutError`.
            LockLost: we held the lock and lost it; nothing was written.
            OutcomeUnknown: no answer tells whether it was written; also a `PutError`.
            PutError: the version or the caller's condition failed.

        Cost: 1 write. With the lock in a row of its own: 1 transaction of two writes inside the lock.
        """
        written = self._as_locked_item()
        if written is None:
            return super().save(condition, add_version_condition=add_version_condition)
        data: dict[str, Any] = written.save(condition, checks_version=add_version_condition)
        return data

    @override
    def update(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
    ) -> Any:
        """Update the item, guarded by its lock. See PynamoDB's `Model.update`.

        The list of actions is not changed. Errors are those of `save`, as `UpdateError`.

        Cost: 1 write. With the lock in a row of its own: 1 transaction and 1 read inside the lock.
        """
        written = self._as_locked_item()
        if written is None:
            return super().update([*actions], condition, add_version_condition=add_version_condition)
        return written.update(actions, condition, checks_version=add_version_condition)

    @override
    def delete(self, condition: Condition | None = None, *, add_version_condition: bool = True) -> Any:
        """Delete the item, guarded by its lock. See PynamoDB's `Model.delete`.

        An embedded lock goes with its item: everybody who waits for it gets `ItemNotFound`. Errors are
        those of `save`, as `DeleteError`.

        Cost: 1 write. With the lock in a row of its own: 1 transaction inside the lock.
        """
        written = self._as_locked_item()
        if written is None:
            return super().delete(condition, add_version_condition=add_version_condition)
        return written.delete(condition, checks_version=add_version_condition)

    @override
    @classmethod
    def get(
        cls,
        hash_key: Any,
        range_key: Any = None,
        consistent_read: bool = False,  # noqa: FBT001, FBT002 - PynamoDB's signature
        attributes_to_get: Any = None,
    ) -> Self:
        """Get an item; consistently if this context holds its lock. See PynamoDB's `Model.get`."""
        if not consistent_read and not local.holds_nothing():
            row = cls._lock_target(hash_key, range_key, cls.lock_settings()).row
            consistent_read = local.held_in_context(row) is not None
        return super().get(hash_key, range_key, consistent_read, attributes_to_get)

    @override
    def refresh(self, consistent_read: bool = False) -> None:  # noqa: FBT001, FBT002 - PynamoDB's signature
        """Load the item again; consistently inside its lock. See PynamoDB's `Model.refresh`.

        A copy that was read under a lock since lost or released starts afresh.
        """
        own: OwnEntry | None = self.__dict__.get(writes.OWN_ENTRY)
        if own is not None and (own.ended or own.lost.is_set()):
            del self.__dict__[writes.OWN_ENTRY]
        row = None if self._lock_attribute() is None else self._lock_row_of_item()
        super().refresh(consistent_read or self._own_entry(row) is not None)

    @override
    @classmethod
    def batch_write(cls, auto_commit: bool = True, *, unguarded: bool = False) -> BatchWrite[Self]:  # noqa: FBT001, FBT002
        """Write many items without any condition, which has to be asked for by name.

        Args:
            auto_commit: see PynamoDB's `Model.batch_write`.
            unguarded: must be True: a BatchWriteItem has no conditions, so it overwrites locks and the
                items that others hold.

        Raises:
            ConfigurationError: without ``unguarded=True``.
        """
        if not unguarded:
            raise ConfigurationError(
                f"batch_write() of {cls.__name__} would overwrite locks: a BatchWriteItem has no conditions. "
                f"Save the items one by one or in a TransactWrite, or pass unguarded=True."
            )
        return super().batch_write(auto_commit)

    # Stock TransactWrite asks for these

    @override
    def get_save_kwargs_from_instance(
        self, condition: Condition | None = None, return_values_on_condition_failure: str | None = None
    ) -> dict[str, Any]:
        """Build the Put of PynamoDB's own TransactWrite: the lock document must be as it was loaded."""
        written = self._as_embedded_item()
        if written is not None:
            state = next(getattr(self, name) for name, a in self.get_attributes().items() if a is written.lock)
            condition = guards.both(condition, written.guard_of_put(state))
        kwargs = super().get_save_kwargs_from_instance(condition, return_values_on_condition_failure)
        return kwargs if written is None else written.complete_put(kwargs)

    @override
    def get_update_kwargs_from_instance(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> dict[str, Any]:
        """Build the Update of a TransactWrite, with the guard of the lock."""
        written = self._as_embedded_item()
        added: list[Action] = []
        if written is not None:
            check_actions(self, written.lock, actions)
            guard, added = written.guard()
            condition = guards.both(condition, guard)
        return super().get_update_kwargs_from_instance(
            [*actions, *added],
            condition,
            return_values_on_condition_failure,
            add_version_condition=add_version_condition,
        )

    @override
    def get_delete_kwargs_from_instance(
        self,
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> dict[str, Any]:
        """Build the Delete of a TransactWrite, with the guard of the lock."""
        written = self._as_embedded_item()
        if written is not None:
            condition = guards.both(condition, written.guard_of_delete())
        return super().get_delete_kwargs_from_instance(
            condition, return_values_on_condition_failure, add_version_condition=add_version_condition
        )

    @override
    def update_local_version_attribute(self) -> None:
        """Note that a save succeeded. PynamoDB calls this after a commit."""
        super().update_local_version_attribute()
        state = put_document(self)
        if state is not None:
            name = next(name for name, a in self.get_attributes().items() if isinstance(a, LockAttribute))
            self.attribute_values[name] = state


class LockableModel(LockableMixin, Model):
    """A PynamoDB `Model` with locks. See `LockableMixin`."""


class NamedLock(LockableModel):
    """A lock on a name, for whatever is not an item: a nightly job, a file, a call to a partner.

    Subclass it with a table of its own; the rows in it are created and removed by themselves::

        class Locks(NamedLock):
            class Meta:
                table_name = "locks"
                region = "eu-west-1"

        with Locks.locked("nightly-report", wait=0):
            ...

    The class can carry the locks of other models as well: name it in their ``Meta.lock_table``.
    A subclass may declare attributes of its own; they are read and saved under the lock like those of
    any lockable model.

    A row that nobody has used for a day after its last lease is removed by DynamoDB's TTL. Nothing
    depends on when that happens.
    """

    _lock_creates_item: ClassVar[bool] = True

    name = UnicodeAttribute(hash_key=True)
    lock = LockAttribute()
    expires = TTLAttribute(null=True, attr_name="expires_s")

    @classmethod
    def _own_lock(cls) -> LockAttribute:
        attribute = cls._lock_attribute()
        assert attribute is not None  # noqa: S101 - declared above
        return attribute

    @override
    @classmethod
    def create_table(
        cls,
        wait: bool = True,  # noqa: FBT001, FBT002 - PynamoDB's signature
        read_capacity_units: int | None = None,
        write_capacity_units: int | None = None,
        billing_mode: str | None = None,
        ignore_update_ttl_errors: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Create the table, billed on demand, with TTL enabled. Does nothing if that is so already.

        Safe to call twice, and from several processes at once. The arguments are those of PynamoDB's
        `Model.create_table`; `wait` is True here, since TTL cannot be enabled before the table is active.
        """
        if billing_mode is None and not hasattr(cls.Meta, "billing_mode") and read_capacity_units is None:
            billing_mode = "PAY_PER_REQUEST"
        arguments = (wait, read_capacity_units, write_capacity_units, billing_mode, ignore_update_ttl_errors)
        try:
            return super().create_table(*arguments)
        except TableError as error:
            if code_of(error.cause) != "ResourceInUseException":
                raise
            return super().create_table(*arguments)  # another process was faster; the table exists now

    @override
    @classmethod
    def update_ttl(cls, ignore_update_ttl_errors: bool) -> None:  # noqa: FBT001 - PynamoDB's signature
        """Enable TTL, unless it is enabled."""
        try:
            super().update_ttl(ignore_update_ttl_errors)
        except TableError as error:
            if "already enabled" not in str(error):
                raise


class Edit(AbstractContextManager[M], Generic[M]):
    """The context manager of `LockableMixin.edit`."""

    def __init__(self, lock: Lock[M]) -> None:
        self.lock = lock

    @override
    def __enter__(self) -> M:
        self.lock.acquire()
        try:
            return self.lock.item
        except BaseException:
            self.lock.release()
            raise

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._save()
        except BaseException as failure:
            self.lock.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self.lock.__exit__(kind, error, traceback)

    def _save(self) -> None:
        if not self.lock.is_in_queue:  # the block deleted the item, and the lock with it
            return
        kind = Kind.FINISH if self.lock.is_last_take else Kind.KEEP
        written = self.lock.item._as_locked_item()
        assert written is not None  # noqa: S101 - the lock is held
        written.save(None, checks_version=True, kind=kind)
