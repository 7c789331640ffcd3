"""Tables: their keys, their TTL, whose rows are in them; and the tables of the package's own rows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamodb.attributes import Attribute, TTLAttribute, UnicodeAttribute
from pynamodb.connection import TableConnection
from pynamodb.exceptions import PynamoDBException, TableError
from typing_extensions import override

from pynamo_locking._core.dynamodb import TABLE_EXISTS
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.row_keys import GUARD_PREFIX, OwnKeys
from pynamo_locking._io import client, lock_record, responses, runtime, transaction_record
from pynamo_locking._io.model_doors import also_stored_of, creates_item, lock_attribute_of, own_keys_of
from pynamo_locking._io.responses import has_foreign
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.stored_rows import FORMAT_NAME, Place, Stored
from pynamo_locking._items import conditions, versions
from pynamo_locking._items import keys as keys_module
from pynamo_locking._items.keys import check_place
from pynamo_locking._pynamodb import connection_of, hash_name_of, ttl_attribute_of
from pynamo_locking.exceptions import CorruptRow, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamo_locking._io.stored_rows import Image


#: The pause between two checks whether a table is ready, in seconds; AWS takes about ten.
_POLL_S: Final = 1.0


def describe(model: type[Model]) -> dict[str, Any]:
    """Return DynamoDB's description of a model's table; botocore's error if there is none. 1 DescribeTable."""
    connection = connection_of(model)
    answer = connection.connection.dispatch("DescribeTable", {"TableName": connection.table_name})
    description: dict[str, Any] = answer["Table"]
    return description


def describe_ready(model: type[Model]) -> dict[str, Any]:
    """Wait while a table is being created, and return its description; botocore's error if there is none."""
    while (description := describe(model))["TableStatus"] == "CREATING":
        runtime.current.sleep(_POLL_S)
    return description


def is_created(create_table: Callable[[], object]) -> bool:
    """Call PynamoDB's `create_table`; return False if another process has just created the table."""
    try:
        create_table()
    except TableError as error:
        if responses.code_of(error.cause) != TABLE_EXISTS:
            raise
        return False
    return True


def keys_in(description: Mapping[str, Any]) -> str:
    """Return the keys of a table, for people."""
    types = {each["AttributeName"]: each["AttributeType"] for each in description["AttributeDefinitions"]}
    names = {each["KeyType"]: each["AttributeName"] for each in description["KeySchema"]}
    return ", ".join(f"{names[role]} ({types[names[role]]})" for role in ("HASH", "RANGE") if role in names)


def keys_of(model: type[Model]) -> str:
    return ", ".join(f"{each.attr_name} ({each.attr_type})" for each in keys_module.stored_keys(model))


def check_keys(model: type[Model], *, wait: bool) -> None:
    """Refuse a table with other keys than the model's. 1 DescribeTable.

    With `wait`, wait until the table is ready if another process is creating it. `TableError` without a response.
    """
    try:
        description = describe_ready(model) if wait else describe(model)
    except responses.BOTOCORE_EXCEPTIONS as error:
        raise TableError(f"Unable to describe table: {error}", error) from error
    found, wanted = keys_in(description), keys_of(model)
    if found != wanted:
        raise ConfigurationError(
            f"the table {model.Meta.table_name!r} is not one of {model.__name__}: its keys are {found}, and "
            f"{model.__name__} needs {wanted}. Nothing was changed. Name another table in Meta.table_name, or correct "
            f"the model: the keys of a table cannot be changed."
        )
    if found_in := indexed(model, description):
        raise ConfigurationError(
            f"the table {model.Meta.table_name!r} has an index with the key {', '.join(found_in)}, which rows of "
            f"{model.__name__} have as well: they would appear in that index, or be refused. Nothing was changed. Use "
            f"another table."
        )


def is_shared(model: Any) -> bool:
    """Tell whether the rows of a model are ours, in a table of other items."""
    return hasattr(model, "_own_keys") and own_keys_of(model).is_shared


def place_of(model: Any) -> str:
    """Return the table of a model; of rows of ours in a table of other items with their prefix."""
    name = str(model.Meta.table_name)
    return own_keys_of(model).place(name) if is_shared(model) else name


def is_own(model: Any, image: Image) -> bool:
    """Tell by its key whether a row of a table of locks or transactions belongs to them, not to another program."""
    return own_keys_of(model).name_in(image) is not None


def indexed(model: Any, description: Mapping[str, Any]) -> list[str]:
    """Return the attributes of our rows in a table of others that are keys of its indexes."""
    if not is_shared(model):
        return []
    ours = {each.attr_name for each in model.get_attributes().values()} | also_stored_of(model)
    return sorted(
        {each["AttributeName"] for each in description["AttributeDefinitions"]} & ours - {*own_keys_of(model).begins}
    )


def ttl_of(model: type[Model]) -> str | None:
    """Return the TTL attribute of a table; None if its TTL is off. 1 DescribeTimeToLive."""
    connection = connection_of(model)
    client: Any = connection.connection.client  # PynamoDB's dispatch adds arguments that this request refuses
    found: dict[str, Any] = client.describe_time_to_live(TableName=connection.table_name).get(
        "TimeToLiveDescription", {}
    )
    is_on = found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    return found.get("AttributeName") if is_on else None


def is_empty(model: type[Model]) -> bool:
    """Tell whether a table is known to have no item. 1 Scan of a single item."""
    connection = connection_of(model)
    kwargs = {"TableName": connection.table_name, "Limit": 1, "ConsistentRead": True}
    try:
        return not connection.connection.dispatch("Scan", kwargs)["Items"]
    except responses.BOTOCORE_EXCEPTIONS:
        return False


def absent(kind: str) -> dict[str, Any]:
    """Return a stored key of that type that no item has: for requests that only test the connection."""
    return {kind: {"S": "pynamo-locking check", "N": "-1", "B": b"pynamo-locking check"}[kind]}


def probe(model: type[Model], patience_s: float) -> PynamoDBException | None:
    """Read an absent item; return the error if no response comes in that time. Half a read unit."""
    connection = client.lock_connection(connection_of(model).connection, patience_s)
    keys = [absent(key.attr_type)[key.attr_type] for key in keys_module.stored_keys(model)]
    try:
        with responses.readable_errors():
            connection.get_item(model.Meta.table_name, *keys)
    except PynamoDBException as error:
        return error
    return None


def flaw_of(model: Any, image: Image) -> str | None:
    """Return what is wrong with a row of locks or transactions; None if it is sound."""
    try:
        if not creates_item(model):
            table = transaction_record.record_table_of(model)
            transaction_record.record_in(table.row(image), table)
            return None
        flaw = lock_record.state_in(image, lock_attribute_of(model).attr_name).unreadable
    except (CorruptRow, UnknownFormat) as error:
        return str(error)
    return f"{_name(model, image)!r}: {flaw}" if flaw else None


def is_strange(model: Any, image: Image) -> bool:
    """Tell whether a row belongs to another program, or has undeclared attributes."""
    is_guard = _name(model, image).startswith(GUARD_PREFIX) and "version" in image
    if not creates_item(model):
        return not (is_guard or {transaction_record.PRIORITY, transaction_record.CONTENT} & image.keys())
    if has_foreign(model, image):
        return not is_guard
    ours = versions.shape_of(model).write_id_name, lock_record.LEASE_ENDS, FORMAT_NAME
    return not image.keys() <= {*ours, *(each.attr_name for each in model.get_attributes().values())}


def has_lock(model: Any, image: Image) -> bool:
    return creates_item(model) and not has_foreign(model, image)


def _name(model: Any, image: Image) -> str:
    return own_keys_of(model).name_in(image) or ""


if TYPE_CHECKING:
    _Base = Model
else:
    _Base = object

#: The attribute for the range key of a shared table.
_RANGE_KEY: Final = "_range_key_beside"


class RawAttribute(Attribute[Any]):
    """A value that stays in DynamoDB's form, of that type."""

    def __init__(self, attr_type: str, **options: Any) -> None:
        super().__init__(**options)
        self.attr_type = attr_type

    @override
    def serialize(self, value: Any) -> Any:
        return value

    @override
    def deserialize(self, value: Any) -> Any:
        return value


class _Part(UnicodeAttribute):
    """A key whose stored value begins with a fixed prefix, before the name."""

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
        return self if instance is None else getattr(instance, hash_name_of(instance))

    @override
    def __set__(self, instance: Any, value: Any) -> None:
        """Leave it: the name says it."""


class _Own(TableConnection):
    """The connection to a table of others: it finds the rows under our prefix alone."""

    own_keys: OwnKeys

    @override
    def scan(self, filter_condition: Condition | None = None, *arguments: Any, **options: Any) -> dict[str, Any]:
        for name, begin in self.own_keys.begins.items():
            filter_condition = conditions.both(filter_condition, Place(name).startswith(begin))
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

    if not TYPE_CHECKING:  # the types are those of the other bases

        @classmethod
        def _see_connection(cls, connection: TableConnection) -> None:
            super()._see_connection(connection)
            if cls._own_keys.is_shared:
                connection.__class__ = _Own
                vars(connection)["own_keys"] = cls._own_keys

        @classmethod
        def batch_get(cls, items: Iterable[Any], *arguments: Any, **options: Any) -> Any:
            """Get the items of some names, as PynamoDB does."""
            keys = [(each, each) for each in items] if cls._own_keys.is_shared else items
            return super().batch_get(keys, *arguments, **options)


class OwnTable(OwnRows):
    """Creates a table with its billing mode and TTL."""

    @override
    @classmethod
    def create_table(
        cls,
        wait: bool = True,
        read_capacity_units: int | None = None,
        write_capacity_units: int | None = None,
        billing_mode: str | None = None,
        ignore_update_ttl_errors: bool = False,
        *,
        enable_ttl: bool = False,
    ) -> None:
        """Create the table, billed on demand, with TTL enabled. Does nothing if such a table exists.

        Safe to call twice, and from several processes at once. An existing table is checked before anything is
        changed, and its TTL is enabled only if it has no item: otherwise TTL would delete items of other programs
        that have an attribute of that name. If TTL is left off, a warning is logged.

        A table of other items (`Meta.keys`) is never created, and its TTL is enabled with `enable_ttl` alone.

        Args:
            wait: until the table can be used. True here, since TTL cannot be enabled before.
            read_capacity_units: as for PynamoDB's `Model.create_table`.
            write_capacity_units: as there.
            billing_mode: as there; ``"PAY_PER_REQUEST"`` unless `Meta` or an argument says otherwise.
            ignore_update_ttl_errors: as there, and if TTL is enabled for another attribute.
            enable_ttl: enable TTL for an existing table, whatever is in it.

        Raises:
            ConfigurationError: the table has other keys, or its TTL is enabled for another attribute; or the class has
                no ``Meta.table_name``; or the table is one of other items, and is missing, or has an index whose key is
                an attribute of our rows. Nothing was changed.
            TableError: DynamoDB refused a request.

        Cost: 1 DescribeTable to find the table missing, a CreateTable, and the requests that enable TTL. 1
        DescribeTable more and 1 DescribeTimeToLive for an existing table; if its TTL is off, 1 scan of a single item.
        """
        check_place(cls)
        if billing_mode is None and not hasattr(cls.Meta, "billing_mode") and read_capacity_units is None:
            billing_mode = "PAY_PER_REQUEST"
        is_new, is_shared = not cls.exists(), cls._own_keys.is_shared
        if is_new and is_shared:
            raise ConfigurationError(
                f"{cls.__name__} keeps its rows in the table {cls.Meta.table_name!r} of other items, and there is no "
                f"such table. Create that table first, as the program does to which it belongs."
            )
        arguments = wait, read_capacity_units, write_capacity_units, billing_mode, ignore_update_ttl_errors
        if is_new and is_created(functools.partial(super().create_table, *arguments)):
            return  # else the table is as new, but another process has created it
        check_keys(cls, wait=wait)
        try:
            is_enabled = cls._has_ttl()
        except (TableError, ConfigurationError):
            if not ignore_update_ttl_errors:
                raise
            return
        if is_enabled:
            return
        if is_new or enable_ttl or (not is_shared and is_empty(cls)):
            cls.update_ttl(ignore_update_ttl_errors)
            return
        logger.warning(
            "TTL of the table %s is off, and was left off, since the table has items%s: what expires there is kept for "
            "ever. If no item of others has an attribute %r, call create_table(enable_ttl=True).",
            cls.Meta.table_name,
            " of others" if is_shared else "",
            ttl_attribute_of(cls).attr_name,
        )

    @override
    @classmethod
    def update_ttl(cls, ignore_update_ttl_errors: bool) -> None:
        """Enable TTL, unless it is enabled, whatever is in the table.

        Raises:
            ConfigurationError: the table has other keys, or its TTL is enabled for another attribute.
            TableError: DynamoDB refused a request. Not with `ignore_update_ttl_errors`, and then not the latter.
        """
        check_keys(cls, wait=False)
        try:
            if not cls._has_ttl():
                super().update_ttl(ignore_update_ttl_errors=False)
        except (TableError, ConfigurationError) as error:
            if not (ignore_update_ttl_errors or "already enabled" in str(error)):  # another process has enabled it
                raise

    @classmethod
    def _has_ttl(cls) -> bool:
        attribute = ttl_attribute_of(cls)
        try:
            found = ttl_of(cls)
        except responses.BOTOCORE_EXCEPTIONS as error:
            raise TableError(f"Failed to describe TTL on table: {error}", error) from error
        if attribute is not None and found not in (None, attribute.attr_name):
            raise ConfigurationError(
                f"TTL of the table {cls.Meta.table_name!r} is enabled for the attribute {found!r}, and {cls.__name__} "
                f"needs it for {attribute.attr_name!r}; a table has one. Nothing was changed. Write the same attribute "
                f"(Meta.ttl_attribute = {found!r}), name another table in Meta.table_name, or switch TTL of this one "
                f"off first."
            )
        return attribute is None or found is not None
