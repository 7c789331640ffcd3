"""Where an item's lock is, and the writes that DynamoDB refuses once that lock is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.attributes import Attribute
from pynamodb.transactions import TransactGet
from typing_extensions import Self, override

from pynamo_locking._io import guards, local, rows, writes
from pynamo_locking._io.items import EmbeddedItem, GuardedItem, check_actions, put_document
from pynamo_locking._io.wish import checked_settings
from pynamo_locking.attributes import LockAttribute
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.locks import Target

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import BatchWrite, Model

    from pynamo_locking._core.lease import LockSettings
    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Row

    _Base = Model
else:
    _Base = object

#: Names of the mixins that an attribute of a model must not hide.
_RESERVED = frozenset({"locked", "edit", "lock_state", "break_lock", "lock_settings"})


class GuardedMixin(_Base):
    """The half of `LockableMixin` that reads and writes items."""

    _lock_creates_item: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse attributes that would hide the lock methods, before anybody relies on them."""
        super().__init_subclass__(**options)
        # All classes, also those whose attribute is hidden or hides: Python would not say which one wins.
        attributes = [
            (name, value) for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, Attribute)
        ]
        hidden = sorted(
            name
            for name, value in attributes
            if name in _RESERVED or (name == "lock" and not isinstance(value, LockAttribute))
        )
        if hidden:
            raise ConfigurationError(
                f"{cls.__name__} declares an attribute called {hidden[0]!r}, which would hide the method of that "
                f"name. Rename it in Python and keep the stored name: "
                f"{hidden[0]}_ = ...Attribute(attr_name={hidden[0]!r})."
            )
        locks = sorted({name for name, value in attributes if isinstance(value, LockAttribute)})
        if len(locks) > 1:
            raise ConfigurationError(f"{cls.__name__} has more than one LockAttribute: {', '.join(locks)}.")

    @classmethod
    def lock_settings(cls) -> LockSettings:
        """Return ``Meta.lock_settings``, or the defaults."""
        return checked_settings(getattr(cls.Meta, "lock_settings", None))

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
            read = lambda: super(GuardedMixin, cls).get(hash_key, range_key, consistent_read=True)  # noqa: E731
            return Target(cls, row, (cls, hash_key, range_key), read)
        table, name = cls._lock_table(), rows.name_of(cls, key)
        lock = table._lock_attribute()
        assert lock is not None  # noqa: S101 - every NamedLock has one
        row = table._lock_row({"name": {"S": name}}, lock, settings, name)
        rows.join_places(cls, row)
        return Target(cls, row, (table, name, None), lambda: cls._read_committed(hash_key, range_key))

    @classmethod
    def _read_committed(cls, hash_key: Any, range_key: Any) -> Self:
        """Read an item whose lock is elsewhere.

        A plain read can show the state before a transaction that is decided but not yet applied.
        """
        with TransactGet(connection=cls._get_connection().connection) as transaction:
            future = transaction.get(cls, hash_key, range_key)
        return future.get()

    @classmethod
    def _lock_table(cls) -> type[GuardedMixin]:
        table = getattr(cls.Meta, "lock_table", None)
        if not (isinstance(table, type) and issubclass(table, GuardedMixin) and table._lock_creates_item):
            raise ConfigurationError(
                f"{cls.__name__} has no place for locks: declare `lock = LockAttribute()`, or name a "
                f"subclass of NamedLock in Meta.lock_table (it is {table!r})."
            )
        return table

    @classmethod
    def _lock_row(cls, key: dict[str, Any], attribute: LockAttribute, settings: LockSettings, label: str) -> Row:
        return rows.row_of(
            cls,
            key,
            attribute,
            may_create=cls._lock_creates_item,
            request_timeout=settings.request_timeout,
            label=label,
        )

    def _lock_row_of_item(self) -> Row:
        return self._lock_target(*self._key_values(), self.lock_settings()).row

    def _key_values(self) -> tuple[Any, Any]:
        hash_name, range_name = str(self._hash_keyname), self._range_keyname
        return getattr(self, hash_name), None if range_name is None else getattr(self, range_name)

    def _own_entry(self, row: Row) -> OwnEntry | None:
        """Return the entry under which this item is written, if any. Raises `LockLost` if it is gone."""
        if writes.OWN_ENTRY not in self.__dict__ and local.holds_nothing():
            return None
        return writes.own_entry_of(self, row)

    def _as_locked_item(self) -> EmbeddedItem | GuardedItem | None:
        """Return how this item is written; None: as PynamoDB does, its lock is elsewhere and not ours."""
        attribute = self._lock_attribute()
        if attribute is not None:
            row = self._lock_row_of_item()
            return EmbeddedItem(self, attribute, row, self._own_entry(row))
        if writes.OWN_ENTRY not in self.__dict__ and (local.holds_nothing() or not self._has_lock_place()):
            return None
        own = self._own_entry(self._lock_row_of_item())
        return None if own is None else GuardedItem(self, own)

    @classmethod
    def _has_lock_place(cls) -> bool:
        return cls._lock_attribute() is not None or getattr(cls.Meta, "lock_table", None) is not None

    @classmethod
    def _target_held_here(cls, hash_key: Any, range_key: Any) -> Target[Self] | None:
        """Return the lock of an item if this context holds it."""
        if local.holds_nothing() or not cls._has_lock_place():
            return None
        try:
            target = cls._lock_target(hash_key, range_key, cls.lock_settings())
        except ConfigurationError:  # a key that cannot be; let PynamoDB say so
            return None
        return None if local.held_in_context(target.row) is None else target

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
        consistent_read: bool = False,
        attributes_to_get: Any = None,
    ) -> Self:
        """Get an item; consistently if this context holds its lock. See PynamoDB's `Model.get`."""
        target = cls._target_held_here(hash_key, range_key)
        if target is None:
            return super().get(hash_key, range_key, consistent_read, attributes_to_get)
        if target.is_elsewhere and attributes_to_get is None:
            return target.read()
        return super().get(hash_key, range_key, consistent_read=True, attributes_to_get=attributes_to_get)

    @override
    def refresh(self, consistent_read: bool = False) -> None:
        """Load the item again; consistently inside its lock. See PynamoDB's `Model.refresh`.

        A copy that was read under a lock since lost or released starts afresh.
        """
        own: OwnEntry | None = vars(self).get(writes.OWN_ENTRY)
        if own is not None and (own.ended or own.lost.is_set()):
            del vars(self)[writes.OWN_ENTRY]
        target = self._target_held_here(*self._key_values())
        if target is None or not target.is_elsewhere:
            super().refresh(consistent_read or target is not None)
            return
        fresh = target.read()
        if type(fresh) is not type(self):
            raise ValueError(f"Cannot refresh this item from the returned class: {type(fresh).__name__}")
        self.attribute_values = fresh.attribute_values

    @override
    @classmethod
    def batch_write(cls, auto_commit: bool = True, *, unguarded: bool = False) -> BatchWrite[Self]:
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
        super().update_local_version_attribute()  # type: ignore[no-untyped-call]
        state = put_document(self)
        if state is not None:
            name = next(name for name, a in self.get_attributes().items() if isinstance(a, LockAttribute))
            self.attribute_values[name] = state
