"""The place of an item's lock: in the item, in a row of its own, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pynamodb.attributes import Attribute, TTLAttribute
from pynamodb.exceptions import TransactGetError
from pynamodb.models import Model
from pynamodb.transactions import TransactGet
from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.naming import table_name
from pynamo_locking._core.sending import Policy, Sending
from pynamo_locking._io import answers
from pynamo_locking._io.connections import lock_connection
from pynamo_locking._io.lock_document import LockRow
from pynamo_locking._io.retries import is_sent_again
from pynamo_locking._items import keys
from pynamo_locking._locks import context, held_entry
from pynamo_locking._locks.options import checked_settings
from pynamo_locking._locks.target import LockTarget
from pynamo_locking._models.attributes import LockAttribute

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.claims import Bound
    from pynamo_locking._core.lease import LockSettings
    from pynamo_locking._locks.held_entry import HeldEntry

    _Base = Model
else:
    _Base = object


class PlacedMixin(_Base):
    """Finds the lock of an item, and the entry that this context holds in it."""

    _lock_creates_item: ClassVar[bool] = False
    #: In a tuple: PynamoDB takes every attribute object in a class for one of the model's.
    _found_lock_attribute: ClassVar[tuple[LockAttribute | None]]

    #: Names of methods that an attribute of a model must not hide; each mixin has its own.
    _reserved_names: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse attributes that would hide methods."""
        super().__init_subclass__(**options)
        if Model in cls.__mro__ and cls.__mro__.index(Model) < cls.__mro__.index(PlacedMixin):
            raise ConfigurationError(
                f"{cls.__name__} names Model before the mixins of pynamo_locking, so their methods would not be used: "
                f"write Model last, as in `class {cls.__name__}(VersionedMixin, Model)`."
            )
        # All base classes count, also those whose attribute another class hides.
        attributes = [
            (name, value) for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, Attribute)
        ]
        reserved: set[str] = set().union(*(vars(base).get("_reserved_names", ()) for base in cls.__mro__))
        hidden = sorted(
            name
            for name, value in attributes
            if name in reserved and not (name == "lock" and isinstance(value, LockAttribute))
        )
        if hidden:
            raise ConfigurationError(
                f"{cls.__name__} declares an attribute called {hidden[0]!r}, which would hide the method of that "
                f"name. Rename it in Python and keep the stored name: "
                f"{hidden[0]}_ = ...Attribute(attr_name={hidden[0]!r})."
            )
        locks = sorted({name for name, value in attributes if isinstance(value, LockAttribute)})
        if len(locks) > 1:
            raise ConfigurationError(
                f"{cls.__name__} has more than one LockAttribute: {', '.join(locks)}. An item has one lock: make parts "
                f"that are locked by themselves items of their own, or lock a name for each part (NamedLock)."
            )

    @classmethod
    def lock_settings(cls) -> LockSettings:
        """Return ``Meta.lock_settings``, or the defaults."""
        keys.check_place(cls)
        return checked_settings(getattr(cls.Meta, "lock_settings", None))

    @classmethod
    def _lock_attribute(cls) -> LockAttribute | None:
        if "_found_lock_attribute" not in vars(cls):
            found = (a for a in cls.get_attributes().values() if isinstance(a, LockAttribute))
            cls._found_lock_attribute = (next(found, None),)
        return cls._found_lock_attribute[0]

    @classmethod
    def _lock_target(cls, hash_key: Any, range_key: Any, settings: LockSettings) -> LockTarget[Self]:
        key = keys.key_of(cls, hash_key, range_key)
        attribute = cls._lock_attribute()
        if attribute is not None:
            label = str(hash_key) if cls._lock_creates_item else ""
            row = cls._lock_row(key, attribute, settings, label)
            read = lambda: super(PlacedMixin, cls).get(hash_key, range_key, consistent_read=True)  # noqa: E731
            return LockTarget(cls, row, (cls, hash_key, range_key), read)
        return cls._target_elsewhere(key, settings, lambda: cls._read_committed(hash_key, range_key))

    @classmethod
    def _range_target(cls, hash_key: Any, settings: LockSettings) -> LockTarget[Self]:
        """Return the lock of all items of a hash key; of a `NamedLock`, the lock of the name."""
        if cls._lock_creates_item:
            return cls._lock_target(hash_key, None, settings)
        key = keys.hash_key_of(cls, hash_key)

        def no_item() -> NoReturn:
            raise ConfigurationError(f"{cls.__name__}({hash_key!r}) is locked as a range, which has no item: query it.")

        return cls._target_elsewhere(key, settings, no_item)

    @classmethod
    def _table_target(cls, settings: LockSettings) -> LockTarget[Self]:
        """Return the lock of all items of the table."""

        def no_item() -> NoReturn:
            raise ConfigurationError(f"the table of {cls.__name__} is locked, which has no item: query or scan it.")

        return cls._target_named(table_name(cls.Meta.table_name), settings, no_item)

    @classmethod
    def _enforces(cls) -> str | None:
        """Return ``Meta.enforce``: which locks every write is checked against, also outside of them."""
        what = getattr(getattr(cls, "Meta", None), "enforce", None)
        if what is None:
            return None
        if what not in {"ranges", "table"} or cls._range_keyname is None or cls._lock_attribute() is not None:
            raise ConfigurationError(
                f"Meta.enforce is 'ranges' or 'table', for a model with a range key, a Meta.lock_table and no "
                f"LockAttribute; it is {what!r}, of {cls.__name__}."
            )
        return str(what)

    def _enforced_rows(self) -> list[tuple[LockRow, Bound | None]]:
        """Return the rows of the locks that every write of this item is checked against, and its position in each."""
        (hash_key, range_key), settings, enforced = self._key_values(), self.lock_settings(), self._enforces()
        rows = list[tuple[LockRow, Any]]()
        if enforced is not None:
            rows.append((self._range_target(hash_key, settings).row, keys.position_of(type(self), range_key)))
        if enforced == "table":
            rows.append((self._table_target(settings).row, None))
        return rows

    @classmethod
    def _target_elsewhere(
        cls, key: dict[str, Any], settings: LockSettings, read: Callable[[], Self]
    ) -> LockTarget[Self]:
        longest = keys.own_keys_of(cls._lock_table()).longest_name
        return cls._target_named(keys.name_of(cls, key, longest), settings, read)

    @classmethod
    def _target_named(cls, name: str, settings: LockSettings, read: Callable[[], Self]) -> LockTarget[Self]:
        table = cls._lock_table()
        lock = table._lock_attribute()
        assert lock is not None  # noqa: S101 - every NamedLock has one
        row = table._lock_row(keys.key_of(table, name, None), lock, settings, name)
        join_places(cls, row)
        return LockTarget(cls, row, (table, name, None), read)

    @classmethod
    def _read_committed(cls, hash_key: Any, range_key: Any) -> Self:
        """Read an item whose writes are transactions, since its lock is in another row: see `transactional_reads`."""
        sending = Sending(Policy(repeats=0))
        while True:
            try:
                with TransactGet(connection=cls._get_connection().connection) as transaction:
                    future = transaction.get(cls, hash_key, range_key)
                return future.get()
            except TransactGetError as error:
                if error.cause is None or not is_sent_again(sending, answers.answer_of(error.cause)):
                    raise

    @classmethod
    def _lock_table(cls) -> type[PlacedMixin]:
        table = getattr(cls.Meta, "lock_table", None)
        if not (isinstance(table, type) and issubclass(table, PlacedMixin) and table._lock_creates_item):
            declare = "declare `lock = LockAttribute()`, or name"
            what, how = ("locks of ranges", "name") if cls._lock_attribute() is not None else ("locks", declare)
            raise ConfigurationError(
                f"{cls.__name__} has no place for {what}: {how} a subclass of NamedLock in Meta.lock_table (it is "
                f"{table!r})."
            )
        return table

    @classmethod
    def _lock_row(cls, key: dict[str, Any], attribute: LockAttribute, settings: LockSettings, label: str) -> LockRow:
        connection = cls._get_connection()
        ttl = cls._ttl_attribute() if cls._lock_creates_item else None  # type: ignore[no-untyped-call]
        return LockRow(
            connection=lock_connection(connection.connection, settings.request_timeout),
            table=connection.table_name,
            key=key,
            hash_name=next(iter(key)),
            attribute=attribute.attr_name,
            ttl_attribute=ttl.attr_name if isinstance(ttl, TTLAttribute) else None,
            may_create=cls._lock_creates_item,
            given_name=label,
            model=cls,
        )

    @classmethod
    def _row_of_key(cls, key: dict[str, Any]) -> LockRow | None:
        """Return the row of an item's embedded lock; None if its model has no lock attribute."""
        lock = cls._lock_attribute()
        return None if lock is None else cls._lock_row(key, lock, cls.lock_settings(), "")

    def _lock_row_of_item(self) -> LockRow:
        values, lock = self._key_values(), self._lock_attribute()
        if lock is None or self._lock_creates_item:
            return self._lock_target(*values, self.lock_settings()).row
        key = keys.key_of(type(self), *values)
        own: HeldEntry | None = vars(self).get(context.OWN_ENTRY)
        if own is not None and own.row.model is type(self) and own.row.key == key:
            return own.row
        return self._lock_row(key, lock, self.lock_settings(), "")

    def _key_values(self) -> tuple[Any, Any]:
        hash_name, range_name = str(self._hash_keyname), self._range_keyname
        return getattr(self, hash_name), None if range_name is None else getattr(self, range_name)

    def _own_entry(self, row: LockRow) -> HeldEntry | None:
        """Return the entry under which this item is written, if any. Raises `LockLost` if it is gone."""
        if context.OWN_ENTRY not in self.__dict__ and held_entry.holds_nothing():
            return None
        return context.own_entry_of(self, row)

    def _range_entry(self) -> HeldEntry | None:
        """Return the entry that this context holds in a range around this item, if any."""
        if self._range_keyname is None or self._lock_creates_item or held_entry.holds_nothing():
            return None
        return context.usable(self._held_range(*self._key_values()))

    @classmethod
    def _held_range(cls, hash_key: Any, range_key: Any) -> HeldEntry | None:
        row = cls._range_target(hash_key, cls.lock_settings()).row
        if not held_entry.all_held_in_context(row):
            return None
        return held_entry.held_in_context(row, keys.position_of(cls, range_key))

    def _table_entry(self) -> HeldEntry | None:
        """Return the entry that this context holds in the lock of the table, if any."""
        if self._enforces() != "table" or held_entry.holds_nothing():
            return None
        return context.usable(held_entry.held_in_context(self._table_target(self.lock_settings()).row))

    def _may_be_held_elsewhere(self) -> bool:
        return context.OWN_ENTRY in self.__dict__ or (not held_entry.holds_nothing() and self._has_lock_place())

    @classmethod
    def _has_lock_place(cls) -> bool:
        return cls._lock_attribute() is not None or getattr(cls.Meta, "lock_table", None) is not None

    @classmethod
    def _target_held_here(cls, hash_key: Any, range_key: Any) -> LockTarget[Self] | None:
        """Return the lock of an item if this context holds it."""
        if held_entry.holds_nothing() or not cls._has_lock_place():
            return None
        try:
            target = cls._lock_target(hash_key, range_key, cls.lock_settings())
            if held_entry.held_in_context(target.row) is not None:
                return target
            if cls._range_keyname is None or getattr(cls.Meta, "lock_table", None) is None:
                return None
            is_held = cls._held_range(hash_key, range_key) is not None
        except ConfigurationError:  # an invalid key, which PynamoDB refuses
            return None
        return target if is_held else None


def join_places(model: type[Model], row: LockRow) -> None:
    """Refuse a lock table in another Region or on another host: no transaction could include both."""
    connection = model._get_connection().connection
    if (connection.host, connection.region) != (row.connection.host, row.connection.region):
        raise ConfigurationError(
            f"{model.__name__} is in {connection.region} ({connection.host or 'AWS'}), and its lock table in "
            f"{row.connection.region} ({row.connection.host or 'AWS'}): give both the same Meta.region and Meta.host."
        )
