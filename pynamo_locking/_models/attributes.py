"""Model attributes of the package (lock, version, TTL), and where the lock of an item is kept."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, NoReturn

from pynamodb.attributes import Attribute
from pynamodb.attributes import TTLAttribute as PynamoTTLAttribute
from pynamodb.attributes import VersionAttribute as PynamoVersionAttribute
from pynamodb.constants import MAP
from pynamodb.exceptions import TransactGetError
from pynamodb.models import Model
from pynamodb.transactions import TransactGet
from typing_extensions import Self, overload, override

from pynamo_locking._core.dynamodb import RetryPolicy, RetryState
from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.lease import DEFAULT_SETTINGS, IDLE_TTL_S, LockSettings
from pynamo_locking._core.lock_modes import WHOLE, LockMode, extent_of
from pynamo_locking._core.lock_queue import FREE, LockState
from pynamo_locking._core.row_keys import table_name
from pynamo_locking._io import responses, runtime
from pynamo_locking._io.client import is_sent_again, lock_connection
from pynamo_locking._io.lock_record import LockRow, state_of
from pynamo_locking._io.model_doors import creates_item, lock_row_in, own_keys_of, refuse_apart
from pynamo_locking._items import keys
from pynamo_locking._locks import context
from pynamo_locking._locks.options import LockTarget, checked_settings
from pynamo_locking._pynamodb import (
    META_NAMES,
    connection_of,
    key_values_of,
    range_name_of,
    ttl_attribute_of,
    version_name_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pynamo_locking._locks.held_lock import HeldEntry


#: The last second of the calendar.
_LAST_S: Final = 253402300799


class LockAttribute(Attribute[LockState]):
    """The lock of an item, kept inside the item that it protects.

    Declare one on a model to embed its locks (``lock = LockAttribute()``), and ``version = VersionAttribute()``, too:
    then one request both acquires the lock and reads the item. Only lock operations change the attribute. On an
    instance it reads as the `LockState` at the time the instance was loaded, and it cannot be assigned.

    Args:
        attr_name: name in the stored item, if it differs from the Python name.

    Raises:
        ConfigurationError: on assignment; when a class is made of PynamoDB's `Model` alone; when a model without a
            version is used.
    """

    attr_type = MAP
    null = True

    def __init__(self, attr_name: str | None = None) -> None:
        super().__init__(null=True, attr_name=attr_name)

    @overload
    def __get__(self, instance: None, owner: Any) -> LockAttribute: ...

    @overload
    def __get__(self, instance: object, owner: Any) -> LockState: ...

    @override
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is not None:
            return super().__get__(instance, owner) or FREE
        if issubclass(owner, Model) and not hasattr(owner, "_writer"):
            raise _on_stock_model(owner, self)
        return self

    @override
    def __set__(self, instance: Any, value: LockState | None) -> None:
        if value is not None and not isinstance(value, LockState):
            raise ConfigurationError(
                f"the lock attribute {self.attr_name!r} cannot be assigned; "
                f"use {type(instance).__name__}.locked(...) to acquire the lock."
            )
        super().__set__(instance, value)

    @override
    def serialize(self, value: LockState) -> Mapping[str, Any] | None:
        return value.raw

    @override
    def deserialize(self, value: Mapping[str, Any]) -> LockState:
        return state_of(value)


class VersionAttribute(PynamoVersionAttribute):
    """The number of writes of an item, and the condition of the next one (optimistic locking).

    Used like PynamoDB's attribute of this name, on models that derive from `VersionedMixin` or `LockableModel`. It is 1
    when the item is first saved and goes up by one with each write. On an instance it reads as an int, and as None
    before the item is stored.

    Example::

        account = Account.get("a-1")
        version = account.version
        account.save()
        assert account.version == version + 1

    Assign None to say that no version is stored yet: the next save creates the item, or fails if it has one. Assign
    another number to say which version is expected, for a client that sent it (a form, ``If-Match``).

    The item stores the id of its last write, too, in an attribute of 29 bytes plus its name: the name of the version
    with ``_write_id`` appended, unless ``Meta.write_id`` has another name, or None for no write ids.

    Args:
        attr_name: name in the stored item, if it differs from the Python name.

    Raises:
        ConfigurationError: the model it is on has no `VersionedMixin`, so nothing would be guarded.
        ValueError: on assignment of anything but a whole number, or a string of one.
    """

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: Any) -> Self: ...

        @overload
        def __get__(self, instance: object, owner: Any) -> int: ...

    @override
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        if not hasattr(owner, "_writer"):
            raise _on_stock_model(owner, self)
        return Attribute.__get__(self, instance, owner)

    @override
    def __set__(self, instance: Any, value: Any) -> None:
        if value is not None and type(value) is not int:
            value = _whole(value)
        Attribute.__set__(self, instance, value)

    @override
    def serialize(self, value: Any) -> str:
        return str(int(value))


def _on_stock_model(owner: type[Any], attribute: Attribute[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"{owner.__name__} has a {type(attribute).__name__} of pynamo_locking, but its base class is PynamoDB's, "
        f"whose writes do not check it: derive it from VersionedMixin and Model, or from LockableModel."
    )


def _whole(value: Any) -> int:
    try:
        number = int(value)
    except OverflowError:
        number = None
    if number is None or (number != value and not isinstance(value, str)):
        raise ValueError(f"a version is a whole number, or None for an item that is not stored yet: {value!r}")
    return number


class TTLAttribute(PynamoTTLAttribute):
    """When an item expires, as in PynamoDB: assign an aware datetime, or a timedelta from now on.

    Example::

        class Session(ExpiringMixin, LockableModel):
            class Meta:
                table_name = "sessions"

            token = UnicodeAttribute(hash_key=True)
            expires = TTLAttribute()

        Session.create_table()
        Session("s-1", expires=timedelta(minutes=30)).save()

    "Now" is the clock of the library, which a test can set. DynamoDB deletes an expired item some time later, usually
    within days; `ExpiringMixin` makes it count as absent at once. A model without that mixin gets a warning, since
    reads find its expired items until then. To avoid the warning use PynamoDB's own attribute.

    Args:
        **options: those of PynamoDB's attribute; ``null=True`` for items that may have no end.
    """

    if TYPE_CHECKING:

        @override
        def __set__(self, instance: Any, value: datetime | timedelta | None) -> None: ...

    def __set_name__(self, owner: type[Any], name: str) -> None:
        """Warn of a model whose expired items stay visible."""
        super().__set_name__(owner, name)
        is_visible = issubclass(owner, Model) and not getattr(owner, "_hides_expired", False)
        is_new = not any(name in vars(base) for base in owner.__mro__[1:])
        if is_visible and is_new and not _is_ours(owner.__module__):
            warnings.warn(
                f"{owner.__name__}.{name} hides no expired item, since {owner.__name__} does not derive from "
                f"ExpiringMixin: derive it, or use PynamoDB's TTLAttribute if DynamoDB is only to delete them.",
                stacklevel=3,
            )

    @override
    def deserialize(self, value: Any) -> datetime:
        try:
            end: datetime = super().deserialize(value)  # type: ignore[no-untyped-call]
        except (OverflowError, ValueError, OSError):  # beyond the calendar
            return datetime.fromtimestamp(0 if float(value) < 0 else _LAST_S, tz=timezone.utc)
        return end

    @override
    def _normalize(self, value: Any) -> datetime | None:
        if isinstance(value, timedelta):
            value = datetime.fromtimestamp(runtime.current.time_ms() / 1000, tz=timezone.utc) + value
        keys.refuse_naive(value)
        normal: datetime | None = super()._normalize(value)  # type: ignore[no-untyped-call]
        return normal


if TYPE_CHECKING:
    _Base = Model
else:
    _Base = object


class PlacedMixin(_Base):
    """Finds the lock of an item, and the entry that this context holds in it."""

    _lock_creates_item: ClassVar[bool] = False
    #: In a tuple: PynamoDB takes every attribute object in a class for one of the model's.
    _found_lock_attribute: ClassVar[tuple[LockAttribute | None]]

    #: Names of members that an attribute of a model must not hide; each mixin has its own.
    _reserved_names: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse attributes that would hide members of the mixins."""
        super().__init_subclass__(**options)
        if Model in cls.__mro__ and cls.__mro__.index(Model) < cls.__mro__.index(PlacedMixin):
            raise ConfigurationError(
                f"{cls.__name__} names Model before the mixins of pynamo_locking, so their methods would not be used: "
                f"write Model last, as in `class {cls.__name__}(VersionedMixin, Model)`."
            )
        if _is_ours(cls.__module__):
            _our_writes.update(vars(cls)[name] for name in ("save", "update", "delete") if name in vars(cls))
        replaced = _replaced_internals(cls)
        if replaced:
            raise ConfigurationError(
                f"{cls.__name__} has a member called {replaced[0]!r}, a name that pynamo_locking uses for itself in "
                f"models: rename it."
            )
        # All base classes count, also those whose attribute another class hides.
        attributes = [
            (name, value) for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, Attribute)
        ]
        reserved: set[str] = set().union(*(vars(base).get("_reserved_names", ()) for base in cls.__mro__))
        hidden = sorted(name for name, value in attributes if name in reserved)
        if hidden:
            raise ConfigurationError(
                f"{cls.__name__} declares an attribute called {hidden[0]!r}, which would hide what has that "
                f"name in models. Rename it in Python and keep the stored name: "
                f"{hidden[0]}_ = ...Attribute(attr_name={hidden[0]!r})."
            )
        _refuse_hidden(cls)
        _refuse_unknown_options(cls)
        if getattr(getattr(cls, "Meta", None), "interval", None) is not None and not hasattr(cls, "intervals"):
            raise ConfigurationError(
                f"{cls.__name__} has a Meta.interval, which does nothing without IntervalMixin: put that before "
                f"the other base classes."
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
        given = getattr(cls.Meta, "lock_settings", DEFAULT_SETTINGS)
        return given if isinstance(given, LockSettings) else checked_settings(given)

    @classmethod
    def _lock_attribute(cls) -> LockAttribute | None:
        if "_found_lock_attribute" not in vars(cls):
            found = (a for a in cls.get_attributes().values() if isinstance(a, LockAttribute))
            attribute = next(found, None)
            is_locked = attribute is not None or getattr(cls.Meta, "lock_table", None) is not None
            if is_locked and not cls._lock_creates_item and version_name_of(cls) is None:
                raise ConfigurationError(
                    f"{cls.__name__} can be locked and has no version, by which DynamoDB would refuse a copy that was "
                    f"read before the lock was acquired. Declare `version = VersionAttribute()`: items that are stored "
                    f"without one get it with their next write."
                )
            cls._found_lock_attribute = (attribute,)
        return cls._found_lock_attribute[0]

    @classmethod
    def _lock_target(cls, hash_key: Any, range_key: Any, settings: LockSettings) -> LockTarget[Self]:
        key = keys.key_of(cls, hash_key, range_key)
        attribute = cls._lock_attribute()
        if attribute is not None:
            label = str(hash_key) if cls._lock_creates_item else ""
            row = cls._lock_row(key, attribute, settings, label)
            read = lambda: super(PlacedMixin, cls).get(hash_key, range_key, consistent_read=True)  # noqa: E731
            return LockTarget(cls, row, (cls, hash_key, range_key), read, key)
        target = cls._target_elsewhere(key, settings, lambda: cls._read_committed(hash_key, range_key))
        return replace(target, key=key)

    @classmethod
    def _target_of(cls, hash_key: Any, range_key: Any) -> LockTarget[Self]:
        if range_key is None and range_name_of(cls) is not None:
            return cls._range_target(hash_key, cls.lock_settings())
        return cls._lock_target(hash_key, range_key, cls.lock_settings())

    @classmethod
    def _range_target(cls, hash_key: Any, settings: LockSettings) -> LockTarget[Self]:
        """Return the lock of all items of a hash key; of a `NamedLock`, the lock of the name."""
        if cls._lock_creates_item:
            return cls._lock_target(hash_key, None, settings)
        key = keys.hash_key_of(cls, hash_key)

        def no_item() -> NoReturn:
            raise ConfigurationError(f"{keys.label_of(cls, [hash_key])} is a range, which has no item: query it.")

        return cls._target_elsewhere(key, settings, no_item)

    @classmethod
    def _table_target(cls, settings: LockSettings) -> LockTarget[Self]:
        """Return the lock of all items of the table."""

        def no_item() -> NoReturn:
            raise ConfigurationError(f"the table of {cls.__name__} is locked, which has no item: query or scan it.")

        return cls._target_named(table_name(cls.Meta.table_name), settings, no_item)

    @classmethod
    def _enforces(cls) -> str | None:
        """Return ``Meta.enforce_locks``: which locks every write is checked against, also outside of them."""
        what = getattr(getattr(cls, "Meta", None), "enforce_locks", None)
        if what is None:
            return None
        if what not in {"ranges", "table"} or range_name_of(cls) is None or cls._lock_attribute() is not None:
            raise ConfigurationError(
                f"Meta.enforce_locks is 'ranges' or 'table', for a model with a range key, a Meta.lock_table and no "
                f"LockAttribute; it is {what!r}, of {cls.__name__}."
            )
        return str(what)

    def _enforced_rows(self, extents: Sequence[LockMode]) -> list[tuple[LockRow, Sequence[LockMode]]]:
        """Return the rows of the locks that a write of this item is checked against, and its extents in each."""
        hash_key, settings, enforced = key_values_of(self)[0], self.lock_settings(), self._enforces()
        rows = list[tuple[LockRow, Any]]()
        if enforced is not None:
            rows.append((self._range_target(hash_key, settings).row, extents))
        if enforced == "table":
            rows.append((self._table_target(settings).row, (WHOLE,)))
        return rows

    def _extents(self) -> tuple[LockMode, ...]:
        """Return where this item is among those of its hash key, as the locks of ranges see it."""
        return () if range_name_of(self) is None else (_extent_of_key(type(self), key_values_of(self)[1]),)

    @classmethod
    def _target_elsewhere(
        cls, key: dict[str, Any], settings: LockSettings, read: Callable[[], Self]
    ) -> LockTarget[Self]:
        longest = own_keys_of(cls._lock_table()).longest_name
        return cls._target_named(keys.name_of(cls, key, longest), settings, read)

    @classmethod
    def _target_named(cls, name: str, settings: LockSettings, read: Callable[[], Self]) -> LockTarget[Self]:
        table = cls._lock_table()
        row = lock_row_in(table, keys.key_of(table, name, None), settings, name)
        refuse_apart(cls, table)
        return LockTarget(cls, row, (table, name, None), read)

    @classmethod
    def _read_committed(cls, hash_key: Any, range_key: Any) -> Self:
        """Read an item whose writes are transactions, since its lock is in another row."""
        sending = RetryState(RetryPolicy(repeats=0))
        while True:
            try:
                with TransactGet(connection=connection_of(cls).connection) as transaction:
                    future = transaction.get(cls, hash_key, range_key)
                return future.get()
            except TransactGetError as error:
                if error.cause is None or not is_sent_again(sending, responses.answer_in(error.cause)):
                    raise

    @classmethod
    def _lock_table(cls) -> type[PlacedMixin]:
        table = getattr(cls.Meta, "lock_table", None)
        if not (isinstance(table, type) and issubclass(table, PlacedMixin) and creates_item(table)):
            declare = "declare `lock = LockAttribute()`, or name"
            what, how = ("locks of ranges", "name") if cls._lock_attribute() is not None else ("locks", declare)
            raise ConfigurationError(
                f"{cls.__name__} has no place for {what}: {how} a subclass of NamedLock in Meta.lock_table (it is "
                f"{table!r})."
            )
        return table

    @classmethod
    def _lock_row(cls, key: dict[str, Any], attribute: LockAttribute, settings: LockSettings, label: str) -> LockRow:
        ttl = ttl_attribute_of(cls) if cls._lock_creates_item else None
        return LockRow(
            reach=lambda: lock_connection(connection_of(cls).connection, settings.request_timeout),
            table=cls.Meta.table_name,
            key=key,
            hash_name=next(iter(key)),
            attribute=attribute.attr_name,
            ttl_attribute=ttl.attr_name if isinstance(ttl, PynamoTTLAttribute) else None,
            may_create=cls._lock_creates_item,
            kept_s=max(IDLE_TTL_S, math.ceil(settings.max_lease)),  # longer than the lease of any other entry
            given_name=label,
            model=cls,
        )

    @classmethod
    def _row_of_key(cls, key: dict[str, Any]) -> LockRow | None:
        lock = cls._lock_attribute()
        return None if lock is None else cls._lock_row(key, lock, cls.lock_settings(), "")

    def _lock_row_of_item(self, read_under: HeldEntry | None) -> LockRow:
        """Return the row of the item's own lock: that of the entry it was read under, if the key is still the same."""
        values, lock = key_values_of(self), self._lock_attribute()
        key = None if lock is None else keys.key_of(type(self), *values)
        if read_under is not None and read_under.row.model is type(self) and read_under.row.key == key:
            return read_under.row
        if lock is None or key is None or self._lock_creates_item:
            return self._lock_target(*values, self.lock_settings()).row
        return self._lock_row(key, lock, self.lock_settings(), "")

    def _own_lock(self) -> tuple[LockRow, HeldEntry | None]:
        """Return the row of the item's own lock, and the entry in it under which the item is written, if any.

        Raises:
            LockLost: that entry is gone.
        """
        read_under = context.read_under(self)
        row = self._lock_row_of_item(read_under)
        if read_under is None and context.holds_nothing():
            return row, None
        return row, context.entry_for_write(read_under, row)

    def _range_entry(self, extents: Sequence[LockMode]) -> HeldEntry | None:
        """Return the entry that this context holds in a range around this item, if any."""
        if range_name_of(self) is None or self._lock_creates_item or context.holds_nothing():
            return None
        row = self._range_target(key_values_of(self)[0], self.lock_settings()).row
        return context.usable(context.entry_in(row, *extents))

    def _table_entry(self) -> HeldEntry | None:
        """Return the entry that this context holds in the lock of the table, if any."""
        if self._enforces() != "table" or context.holds_nothing():
            return None
        return context.usable(context.entry_in(self._table_target(self.lock_settings()).row))

    def _may_be_held_elsewhere(self) -> bool:
        was_read_under = context.read_under(self) is not None
        return was_read_under or (not context.holds_nothing() and self._has_lock_place())

    @classmethod
    def _has_lock_place(cls) -> bool:
        return cls._lock_attribute() is not None or getattr(cls.Meta, "lock_table", None) is not None

    @classmethod
    def _target_held_here(cls, hash_key: Any, range_key: Any) -> LockTarget[Self] | None:
        """Return the lock of an item if this context holds it."""
        if context.holds_nothing() or not cls._has_lock_place():
            return None
        try:
            target = cls._lock_target(hash_key, range_key, cls.lock_settings())
            if context.entry_in(target.row) is not None:
                return target
            if range_name_of(cls) is None or getattr(cls.Meta, "lock_table", None) is None:
                return None
            row = cls._range_target(hash_key, cls.lock_settings()).row
            is_held = context.entry_in(row, _extent_of_key(cls, range_key)) is not None
        except (ConfigurationError, InvalidInput):  # an invalid key, which PynamoDB refuses
            return None
        return target if is_held else None


#: The methods with which this package writes an item.
_our_writes: Final[set[Any]] = set()


def has_own(model: PlacedMixin | type[PlacedMixin], name: str) -> bool:
    """Tell whether Python would call a `save`, `update` or `delete` of a user.

    It is looked up, since a decorator of the class or a test sets one after the class was made; and by itself, since
    one that wraps ours claims to be of our module.
    """
    method = getattr(model, name)
    function = getattr(method, "__func__", method)
    return function not in _our_writes


def _extent_of_key(model: type[Model], range_key: Any) -> LockMode:
    position = keys.position_of(model, range_key)
    return extent_of(position, position)


def _replaced_internals(model: type[PlacedMixin]) -> list[str]:
    """Return the names of our private methods that another class replaces in a model."""
    owners: dict[str, str] = {}  # the module of the class whose member counts
    ours = set[str]()
    for base in model.__mro__:
        for name, value in vars(base).items():
            owners.setdefault(name, base.__module__)
            is_method = isinstance(value, (FunctionType, classmethod, staticmethod, property))
            if _is_ours(base.__module__) and is_method and name.startswith("_") and not hasattr(Model, name):
                ours.add(name)
    return sorted(name for name in ours if not _is_ours(owners[name]))


def _is_ours(module: str) -> bool:
    return module.startswith("pynamo_locking.")


_METHODS: Final = (FunctionType, classmethod, staticmethod, property)


def _refuse_hidden(model: type[PlacedMixin]) -> None:
    """Refuse a class of a user behind ours with a method that one of ours hides: no way to write would call it."""
    first: dict[str, tuple[type[Any], Any]] = {}
    for base in model.__mro__:
        for name, value in vars(base).items():
            ahead, method = first.setdefault(name, (base, value))
            is_hidden = _is_ours(ahead.__module__) and isinstance(method, _METHODS) and not name.startswith("_")
            if not is_hidden or _is_ours(base.__module__) or base.__module__.startswith("pynamodb."):
                continue
            if issubclass(base, Model):
                ours = next(each for each in model.__mro__ if _is_ours(each.__module__))
                remedy = f"derive {base.__name__} from {ours.__name__}, and {model.__name__} from {base.__name__} alone"
            else:
                remedy = f"name {base.__name__} first, as in `class {model.__name__}({base.__name__}, ...)`"
            raise ConfigurationError(
                f"{base.__name__} has a member {name!r} that {model.__name__} would never use, since "
                f"{ahead.__name__}.{name} comes before it: {remedy}, or define {name!r} in {model.__name__} itself."
            )


class _MetaOptions(NamedTuple):
    """What this package reads in the `Meta` of one kind of models: docs/reference/meta.md."""

    kind: str
    names: frozenset[str]


#: The frameworks set `lock_settings` of all models.
_OF_OWN_ROWS: Final = frozenset({"keys", "prefix", "ttl_attribute", "transaction_table", "write_id", "lock_settings"})
_OF_LOCKS: Final = _OF_OWN_ROWS | {"guard_queries"}
_OF_MODELS: Final = frozenset(
    {"lock_settings", "lock_table", "enforce_locks", "write_id", "transaction_table", "guard_queries", "interval"}
    | {"unique", "unique_table", "unique_scope"}
)
#: By the `_kind` of the rows; of other models it is empty.
_OPTIONS: Final = {
    "": _MetaOptions("a model of yours", _OF_MODELS),
    "lock": _MetaOptions("a NamedLock", _OF_LOCKS),
    "call": _MetaOptions("an IdempotencyTable", _OF_LOCKS),
    "unique": _MetaOptions("a UniqueTable", _OF_OWN_ROWS),
    "transaction": _MetaOptions("a TransactionTable", _OF_OWN_ROWS | {"keep_finished_s", "keep_keys_s", "keep_rows_s"}),
}


def _refuse_unknown_options(model: type[PlacedMixin]) -> None:
    """Refuse a name in `Meta` that nobody reads: mostly it is another one, misspelt, or for another kind of models."""
    meta, known = getattr(model, "Meta", None), META_NAMES.union(*(options.names for options in _OPTIONS.values()))
    unknown = next((name for name in dir(meta) if not name.startswith("_") and name not in known), None)
    if unknown is not None:
        from difflib import get_close_matches  # noqa: PLC0415 - for an error

        nearest = get_close_matches(unknown, known, n=1)
        meant = f"did you mean {nearest[0]!r}?" if nearest else "see the page on options in Meta."
        raise ConfigurationError(
            f"Meta.{unknown} of {model.__name__} is no option of PynamoDB or pynamo_locking, and would be ignored: "
            f"{meant} The name of an option of your own begins with an underscore."
        )
    kinds_of_ours = (vars(base).get("_kind", "") for base in model.__mro__ if _is_ours(base.__module__))
    its = _OPTIONS[next(filter(None, kinds_of_ours), "")]
    # A Meta from which others are derived may say something for several kinds.
    own = () if meta is None else vars(meta)
    foreign = next((name for name in own if name in known - META_NAMES - its.names), None)
    if foreign is not None:
        kinds = ", ".join(options.kind for options in _OPTIONS.values() if foreign in options.names)
        raise ConfigurationError(
            f"Meta.{foreign} of {model.__name__} would be ignored: {model.__name__} is {its.kind}, and that is an "
            f"option of {kinds}. Leave it out. If several models share it, derive their Meta from one that has it."
        )
