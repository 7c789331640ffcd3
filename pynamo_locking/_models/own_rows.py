"""Rows of ours as PynamoDB's models see them, also where they are in a table of other items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamodb.attributes import Attribute, TTLAttribute, UnicodeAttribute
from pynamodb.connection import TableConnection
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.own_keys import OwnKeys
from pynamo_locking._io.stored import FORMAT_NAME, Place, Stored
from pynamo_locking._items import clauses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    _Base = Model
else:
    _Base = object

#: The attribute for the range key of a shared table.
_RANGE_KEY: Final = "_range_key_beside"


class _Part(UnicodeAttribute):
    """A key whose stored value begins with a text of its own, before the name."""

    def __init__(self, begin: str, **options: Any) -> None:
        super().__init__(**options)
        self.begin = begin

    @override
    def serialize(self, value: Any) -> Any:
        name = super().serialize(value)
        return self.begin + name if isinstance(name, str) else name

    @override
    def deserialize(self, value: Any) -> Any:
        return super().deserialize(value).removeprefix(self.begin)


class _NameAgain(_Part):
    """The range key: the name again, so an instance has no value for it."""

    is_implied = True

    @override
    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else getattr(instance, instance._hash_keyname)

    @override
    def __set__(self, instance: Any, value: Any) -> None:
        """Leave it: the name says it."""


class _Own(TableConnection):
    """The connection to a table of others: it finds the rows under our prefix alone."""

    own_keys: OwnKeys

    @override
    def scan(self, filter_condition: Condition | None = None, *arguments: Any, **options: Any) -> dict[str, Any]:
        for name, begin in self.own_keys.begins.items():
            filter_condition = clauses.both(filter_condition, Place(name).startswith(begin))
        if options.get("attributes_to_get") is not None:
            options["attributes_to_get"] = [*{*options["attributes_to_get"], *self.own_keys.begins}]
        answer = super().scan(filter_condition, *arguments, **options)
        found = [image for image in answer["Items"] if self.own_keys.name_in(image) is not None]
        return {**answer, "Items": found, "Count": len(found)}

    @override
    def query(
        self, hash_key: str, range_key_condition: Condition | None = None, *arguments: Any, **options: Any
    ) -> dict[str, Any]:
        if options.get("index_name") is None and range_key_condition is None:
            key = self.own_keys.of(hash_key.removeprefix(self.own_keys.prefix))
            range_key_condition = Place(self.own_keys.range_name) == Stored(key[self.own_keys.range_name])
        return super().query(hash_key, range_key_condition, *arguments, **options)

    @override
    def delete_table(self) -> dict[str, Any]:
        raise ConfigurationError(f"the table {self.table_name!r} has items of other programs: it is not deleted.")


class OwnRows(_Base):
    """Puts the rows of a class under a prefix, if its Meta has `keys` and `prefix`. PynamoDB's methods see no others.

    A class with such rows says in `_kind` what they are, and in `_also_stored` which attributes they have besides
    those that it declares.
    """

    _kind: ClassVar[str] = ""
    _also_stored: ClassVar[frozenset[str]] = frozenset()
    _own_keys: ClassVar[OwnKeys]

    def __init_subclass__(cls, **options: Any) -> None:
        """Give the class the keys, and the attribute for DynamoDB's TTL, that its Meta declares."""
        super().__init_subclass__(**options)
        meta, declared = getattr(cls, "Meta", None), cls._declared()
        name = next((name for name, each in declared.items() if each.is_hash_key), None)
        if name is None:  # a class for others to derive from
            return
        ttl = next((each for each, value in declared.items() if isinstance(value, TTLAttribute)), None)
        expires = getattr(meta, "ttl_attribute", None)
        if ttl is not None and expires is not None:
            declared[ttl] = cls._put(ttl, type(declared[ttl])(null=True, attr_name=expires))
        taken = [each.attr_name for each in declared.values() if not (each.is_hash_key or each.is_range_key)]
        taken += (cls._also_stored | {FORMAT_NAME}) - {*taken}
        if expires is not None and (not (isinstance(expires, str) and expires) or taken.count(expires) > 1):
            raise ConfigurationError(
                f"{cls.__name__}: Meta.ttl_attribute is the stored name of the attribute for DynamoDB's TTL, which no "
                f"other attribute of its rows has, and not {expires!r}."
            )
        hash_key = declared[name]
        cls._own_keys = OwnKeys.declared(meta, cls._kind, hash_key.attr_name, taken, cls.__name__)
        if cls._own_keys.is_shared:
            (stored, begin), (range_name, range_begin) = cls._own_keys.begins.items()
            if type(hash_key) not in (UnicodeAttribute, _Part):
                raise ConfigurationError(f"{cls.__name__}.{name} is in a table of other items: use a UnicodeAttribute.")
            cls._put(name, _Part(begin, attr_name=stored, hash_key=True))
            cls._put(_RANGE_KEY, _NameAgain(range_begin, attr_name=range_name, range_key=True))
        elif isinstance(hash_key, _Part):
            raise ConfigurationError(
                f"{cls.__name__} is derived from a class in a table of other items: repeat keys and prefix in its "
                f"Meta, or derive its Meta as well."
            )

    @classmethod
    def _declared(cls) -> dict[str, Attribute[Any]]:
        """Return the attributes of the class, by their names in Python."""
        found: dict[str, Attribute[Any]] = {}
        for base in cls.__mro__:
            found = {name: value for name, value in vars(base).items() if isinstance(value, Attribute)} | found
        return found

    @classmethod
    def _put(cls, name: str, attribute: Attribute[Any]) -> Attribute[Any]:
        attribute.__set_name__(cls, name)
        setattr(cls, name, attribute)
        return attribute

    @override
    @classmethod
    def _serialize_keys(cls, hash_key: Any, range_key: Any = None) -> tuple[Any, Any]:
        return super()._serialize_keys(hash_key, hash_key if cls._own_keys.is_shared else range_key)

    @override
    @classmethod
    def _get_connection(cls) -> TableConnection:
        connection = super()._get_connection()
        if cls._own_keys.is_shared and not isinstance(connection, _Own):
            connection.__class__ = _Own
            vars(connection)["own_keys"] = cls._own_keys
        return connection

    if not TYPE_CHECKING:  # the types are those of the other bases

        @classmethod
        def batch_get(cls, items: Iterable[Any], *arguments: Any, **options: Any) -> Any:
            """Get the items of some names, as PynamoDB does."""
            keys = [(each, each) for each in items] if cls._own_keys.is_shared else items
            return super().batch_get(keys, *arguments, **options)
