"""Tables of the in-memory DynamoDB: keys, indexes, the order of items; how operations are refused."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left, bisect_right, insort
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.dynamodb import (
    CANCELLED,
    CONDITION_FAILED,
    LARGEST_ITEM,
    LARGEST_KEYS,
    NO_TABLE,
    TABLE_EXISTS,
)
from pynamo_locking._core.values import (
    Item,
    Refusal,
    Value,
    canonical,
    comparable,
    invalid,
    invalid_value,
    item_size,
    size_of,
    type_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


# The refusals of operations, in DynamoDB's words.


MISMATCH = "IdempotentParameterMismatchException"


def condition_failed(item: Mapping[str, Any] | None) -> Refusal:
    """Return the refusal of a write whose condition is false, with the stored item if it was asked for."""
    details = {} if item is None else {"Item": item}
    return Refusal(CONDITION_FAILED, "The conditional request failed", **details)


def unfit(name: str, constraint: str, value: object = None) -> Refusal:
    """Return the refusal of a value that breaks a constraint of the service's model."""
    shown = "Value" if value is None else f"Value '{value}'"
    return invalid(
        f"1 validation error detected: {shown} at '{name}' failed to satisfy constraint: Member must {constraint}"
    )


def reason(refusal: Refusal | None) -> dict[str, Any]:
    """Return why one action of a transaction was refused; without a refusal, that it was not."""
    if refusal is None:
        return {"Code": "None"}
    code = "ConditionalCheckFailed" if refusal.code == CONDITION_FAILED else "ValidationError"
    return {"Code": code, "Message": refusal.message, **refusal.details}


def cancelled(reasons: Sequence[Mapping[str, Any]]) -> Refusal:
    codes = ", ".join(each["Code"] for each in reasons)
    message = f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]"
    return Refusal(CANCELLED, message, Message=message, CancellationReasons=list(reasons))


# The order in which a table or an index keeps its items.


#: The hash and range value of an item, in a form that sorts; the hash value alone without a range key.
Key = tuple[Any, ...]
#: Where an item stands in a view: its hash value there, scattered and as it is, and what its equals are sorted by.
Place = tuple[int, Any, Key]

_HASHES: Final = 1 << 32


class Record:
    """A stored item, with its size in bytes. Never changed."""

    __slots__ = ("item", "key", "size")

    def __init__(self, key: Key, item: Item) -> None:
        self.key = key
        self.item = item
        self.size = item_size(item)


@dataclass(frozen=True)
class Schema:
    """The names of the hash key and the range key of a table or an index."""

    hash: str
    range: str | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.hash,) if self.range is None else (self.hash, self.range)


class View:
    """The items of a table or of one of its indexes, by hash value and in the order of the range key.

    The table itself has no `name`. An index has only some `attributes` of an item; None stands for all of them.
    """

    def __init__(
        self, schema: Schema, name: str | None, *, is_local: bool = False, attributes: frozenset[str] | None = None
    ) -> None:
        self.schema = schema
        self.name = name
        self.is_local = is_local
        self.attributes = attributes
        self._records: dict[Place, Record] = {}
        self._order: list[Place] = []

    def get(self, key: Key) -> Record | None:
        return self._records.get(_scattered_place(key))

    def image(self, item: Item) -> Item:
        """Return what the view has of an item."""
        if self.attributes is None:
            return item
        return {name: value for name, value in item.items() if name in self.attributes}

    def place(self, record: Record) -> Place | None:
        """Return where an item stands; None if an index leaves it out, for want of a key attribute."""
        is_there = self.name is None or all(name in record.item for name in self.schema.names)
        return self.place_of(record.key, record.item) if is_there else None

    def place_of(self, key: Key, item: Item) -> Place:
        """Return the place of an item with all key attributes."""
        if self.name is None:
            return _scattered_place(key)
        return _scattered_place((*[comparable(item[name]) for name in self.schema.names], *key))

    def replace(self, old: Record | None, new: Record | None) -> bool:
        """Put an item in the place of its predecessor; None for none. Tell whether that changed the view."""
        before = None if old is None else self.place(old)
        after = None if new is None else self.place(new)
        if before is not None and before != after:
            del self._records[before]
            del self._order[bisect_left(self._order, before)]
        if after is not None and new is not None:
            if before != after:
                insort(self._order, after)
            self._records[after] = new
        return before != after or (after is not None and self.name is not None and self._differ(old, new))

    def _differ(self, old: Record | None, new: Record | None) -> bool:
        return old is None or new is None or self.image(old.item) != self.image(new.item)

    def query(
        self,
        hash_value: Any,
        bounds: Callable[[list[Place], int, int], tuple[int, int]],
        start: Place | None,
        *,
        forward: bool,
    ) -> Iterator[Record]:
        """Return the items of one hash value in order, after `start`, where the last page ended.

        `bounds` gives the places in the sorted items at which those in question begin and end.
        """
        here = scattered(hash_value), hash_value
        end = bisect_right(self._order, here, key=lambda place: place[:2])
        first, last = bounds(self._order, bisect_left(self._order, (*here, ())), end)
        if start is not None and forward:
            first = max(first, bisect_right(self._order, start))
        elif start is not None:
            last = min(last, bisect_left(self._order, start))
        places = range(first, last) if forward else range(last - 1, first - 1, -1)
        return (self._records[self._order[place]] for place in places)

    def scan(self, start: Place | None, segment: int, segments: int) -> Iterator[Record]:
        """Return the items of a segment after `start`, where the last page ended. Their order never changes."""
        first, last = (bisect_left(self._order, (-(-each * _HASHES // segments),)) for each in (segment, segment + 1))
        if start is not None:
            first = max(first, bisect_right(self._order, start))
        return (self._records[place] for place in self._order[first:last])

    def __len__(self) -> int:
        return len(self._records)

    def sizes(self) -> int:
        return sum(record.size for record in self._records.values())


def _scattered_place(values: Key) -> Place:
    return scattered(values[0]), values[0], values[1:]


def scattered(hash_value: Any) -> int:
    """Return a number for a hash value that looks random, as DynamoDB's, and is the same in every process."""
    if isinstance(hash_value, Decimal):
        hash_value = str(hash_value.normalize())
    return zlib.crc32(hash_value if isinstance(hash_value, bytes) else hash_value.encode())


# Tables: keys, indexes, and what every write has to fit into.


_EMPTY: Final = {"S": "string", "B": "binary"}
_INDEXES: Final = ("LocalSecondaryIndexes", "GlobalSecondaryIndexes")


class Table:
    """A table, as CreateTable was asked for it: the types of all key attributes, the items, and the indexes."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description
        self.name: str = description["TableName"]
        definitions = description["AttributeDefinitions"]
        self.types: dict[str, str] = {each["AttributeName"]: each["AttributeType"] for each in definitions}
        self.schema = schema_of(description["KeySchema"])
        self.primary = View(self.schema, None)
        self.ttl: str | None = None
        self.indexes = {
            each["IndexName"]: _index(each, self.schema, is_local=kind == "LocalSecondaryIndexes")
            for kind in _INDEXES
            for each in description.get(kind, ())
        }

    def view(self, index: str | None) -> View:
        if index is None:
            return self.primary
        if index not in self.indexes:
            raise invalid(f"The table does not have the specified index: {index}")
        return self.indexes[index]

    def read_key(self, given: Mapping[str, Mapping[str, Any]]) -> tuple[Key, Item]:
        """Return the key that a request names, in the form that sorts and as it is stored."""
        if len(given) != len(self.schema.names):
            raise invalid("The provided key element does not match the schema")
        stored: Item = {}
        for name in self.schema.names:
            value = canonical(given[name]) if name in given else {}
            if self.types[name] not in value:
                raise invalid("The provided key element does not match the schema")
            stored[name] = value
        self._check_key(stored)
        return tuple([comparable(value) for value in stored.values()]), stored

    def key_of_item(self, item: Item) -> Key:
        for name in self.schema.names:
            if name not in item:
                raise invalid_value(f"Missing the key {name} in the item")
            if self.types[name] not in item[name]:
                actual = type_of(item[name])
                raise invalid_value(f"Type mismatch for key {name} expected: {self.types[name]} actual: {actual}")
        self._check_key(item)
        return tuple([comparable(item[name]) for name in self.schema.names])

    def _check_key(self, item: Item) -> None:
        for name in self.schema.names:
            if self.types[name] != "N" and not item[name][self.types[name]]:
                raise invalid(
                    "One or more parameter values are not valid. The AttributeValue for a key attribute "
                    f"cannot contain an empty {_EMPTY[self.types[name]]} value. Key: {name}"
                )
        if size_of(item[self.schema.hash]) > LARGEST_KEYS["hash"]:
            raise invalid_value("Size of hashkey has exceeded the maximum size limit of2048 bytes")
        if self.schema.range is not None and size_of(item[self.schema.range]) > LARGEST_KEYS["range"]:
            raise invalid_value("Aggregated size of all range keys has exceeded the size limit of 1024 bytes")

    def record(self, key: Key, item: Item, *, updated: bool = False) -> Record:
        for index in self.indexes.values():
            for name in index.schema.names:
                if name in item:
                    self._check_index_key(index, name, item[name])
        record = Record(key, item)
        if record.size > LARGEST_ITEM:
            which = "Item size to update" if updated else "Item size"
            raise invalid(f"{which} has exceeded the maximum allowed size")
        return record

    def _check_index_key(self, index: View, name: str, value: Value) -> None:
        expected, actual = self.types[name], type_of(value)
        if expected != actual:
            raise invalid_value(
                f"Type mismatch for Index Key {name} Expected: {expected} Actual: {actual} IndexName: {index.name}"
            )
        if expected != "N" and not value[expected]:
            raise invalid(
                "One or more parameter values are not valid. A value specified for a secondary index key is not "
                f"supported. The AttributeValue for a key attribute cannot contain an empty {_EMPTY[expected]} value. "
                f"IndexName: {index.name}, IndexKey: {name}"
            )
        if size_of(value) > LARGEST_KEYS["hash" if name == index.schema.hash else "range"]:
            raise invalid_value("Size limit exceeded")

    def replace(self, old: Record | None, new: Record | None) -> int:
        """Put an item in the place of its predecessor; None for none. Return how many indexes that changed."""
        self.primary.replace(old, new)
        return sum([index.replace(old, new) for index in self.indexes.values()])

    def place_of_start(self, view: View, given: Mapping[str, Mapping[str, Any]]) -> Place:
        """Return where a page that ended with this key ended."""
        item = {name: canonical(value) for name, value in given.items()}
        names = {*self.schema.names, *view.schema.names}
        if item.keys() != names or not all(self.types[name] in item[name] for name in names):
            raise invalid("The provided starting key is invalid")
        return view.place_of(tuple([comparable(item[name]) for name in self.schema.names]), item)


def schema_of(keys: Iterable[Mapping[str, str]]) -> Schema:
    by_role = {each["KeyType"]: each["AttributeName"] for each in keys}
    return Schema(by_role["HASH"], by_role.get("RANGE"))


def _index(description: Mapping[str, Any], schema: Schema, *, is_local: bool) -> View:
    own = schema_of(description["KeySchema"])
    projection = description.get("Projection") or {}
    attributes: frozenset[str] | None = None
    if projection.get("ProjectionType", "ALL") != "ALL":
        attributes = frozenset({*schema.names, *own.names, *(projection.get("NonKeyAttributes") or ())})
    return View(own, description["IndexName"], is_local=is_local, attributes=attributes)


class Store:
    """All tables by name, and the transactions of the last minutes. `time_ms` is the database's own clock."""

    def __init__(self, time_ms: Callable[[], int]) -> None:
        self.time_ms = time_ms
        self.tables: dict[str, Table] = {}
        #: By ClientRequestToken, the time in ms and the fingerprint of each transaction that succeeded.
        self.tokens: dict[str, tuple[int, Any]] = {}

    def table(self, name: str) -> Table:
        # An ARN ends with the table's name.
        table = self.tables.get(name) or self.tables.get(name.rpartition(":table/")[2])
        if table is None:
            raise Refusal(NO_TABLE, "Requested resource not found")
        return table

    def table_itself(self, name: str) -> Table:
        if name not in self.tables:
            raise Refusal(NO_TABLE, f"Requested resource not found: Table: {name} not found")
        return self.tables[name]


# Requests about tables.


_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_KEPT: Final = (
    "TableName",
    "AttributeDefinitions",
    "KeySchema",
    *_INDEXES,
    "BillingMode",
    "ProvisionedThroughput",
)
_MOST_NAMES: Final = 100


def create_table(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a CreateTable. The table can be used at once."""
    name = request["TableName"]
    if not _NAME.fullmatch(name):
        constraint = "satisfy regular expression pattern: [a-zA-Z0-9_.-]+ and have a length of 3 to 255"
        raise unfit("tableName", constraint, name)
    if name in store.tables:
        raise Refusal(TABLE_EXISTS, f"Table already exists: {name}")
    _check_keys(request)
    description = {key: deepcopy(request[key]) for key in _KEPT if request.get(key)}
    description["CreationDateTime"] = datetime.fromtimestamp(store.time_ms() / 1000, timezone.utc)
    store.tables[name] = Table(description)
    return {"TableDescription": _described(store.tables[name])}


def _check_keys(request: Mapping[str, Any]) -> None:
    defined = [each["AttributeName"] for each in request["AttributeDefinitions"]]
    indexes = [index for kind in _INDEXES for index in request.get(kind) or ()]
    schemas = [request["KeySchema"], *(index["KeySchema"] for index in indexes)]
    used = {key["AttributeName"] for schema in schemas for key in schema}
    for schema in schemas:
        roles = [key["KeyType"] for key in schema]
        if roles not in (["HASH"], ["HASH", "RANGE"]):
            raise invalid_value("The first KeySchemaElement is not a HASH key type, or the second not a RANGE key type")
    if not used <= set(defined):
        raise invalid_value(
            "Some index key attributes are not defined in AttributeDefinitions. "
            f"Keys: {sorted(used)}, AttributeDefinitions: {sorted(defined)}"
        )
    if used != set(defined):
        raise invalid_value(
            "Some AttributeDefinitions are not used. "
            f"AttributeDefinitions: {sorted(defined)}, keys used: {sorted(used)}"
        )
    hash_name = request["KeySchema"][0]["AttributeName"]
    for index in request.get("LocalSecondaryIndexes") or ():
        if index["KeySchema"][0]["AttributeName"] != hash_name:
            raise invalid_value(
                "Index KeySchema does not have the same leading hash key as table KeySchema for index: "
                f"{index['IndexName']}"
            )
    if len({index["IndexName"] for index in indexes}) < len(indexes):
        raise invalid_value("Duplicate index name")


def _described(table: Table, status: str = "ACTIVE") -> dict[str, Any]:
    arn = f"arn:aws:dynamodb:memory:000000000000:table/{table.name}"
    description: dict[str, Any] = {
        **deepcopy(table.description),
        "TableStatus": status,
        "TableArn": arn,
        "ItemCount": len(table.primary),
        "TableSizeBytes": table.primary.sizes(),
    }
    throughput = {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0, "NumberOfDecreasesToday": 0}
    description["ProvisionedThroughput"] = {**throughput, **description.get("ProvisionedThroughput", {})}
    if description.pop("BillingMode", "PROVISIONED") == "PAY_PER_REQUEST":
        description["BillingModeSummary"] = {"BillingMode": "PAY_PER_REQUEST"}
    for kind in _INDEXES:
        for index in description.get(kind, ()):
            index["IndexArn"] = f"{arn}/index/{index['IndexName']}"
            index["ItemCount"] = len(table.indexes[index["IndexName"]])
            if kind == "GlobalSecondaryIndexes":
                index["IndexStatus"] = "ACTIVE"
                index["ProvisionedThroughput"] = {**throughput, **index.get("ProvisionedThroughput", {})}
    return description


def describe_table(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    return {"Table": _described(store.table_itself(request["TableName"]))}


def delete_table(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a DeleteTable. The table is deleted at once."""
    table = store.table_itself(request["TableName"])
    del store.tables[table.name]
    return {"TableDescription": _described(table, "DELETING")}


def list_tables(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    after, limit = request.get("ExclusiveStartTableName", ""), request.get("Limit", _MOST_NAMES)
    names = [name for name in sorted(store.tables) if name > after]
    more = {"LastEvaluatedTableName": names[limit - 1]} if len(names) > limit else {}
    return {"TableNames": names[:limit], **more}


def update_time_to_live(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve an UpdateTimeToLive. Nothing expires by itself: DynamoDB may take days, too."""
    table = store.table_itself(request["TableName"])
    specification = request["TimeToLiveSpecification"]
    name = specification["AttributeName"]
    if specification["Enabled"] is (table.ttl is not None):
        raise invalid(f"TimeToLive is already {'enabled' if table.ttl else 'disabled'}")
    if table.ttl not in {None, name}:
        raise invalid(f"TimeToLive is active on a different AttributeName: current AttributeName is {table.ttl}")
    table.ttl = name if specification["Enabled"] else None
    return {"TimeToLiveSpecification": {"Enabled": specification["Enabled"], "AttributeName": name}}


def describe_time_to_live(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    table = store.table_itself(request["TableName"])
    described = {"TimeToLiveStatus": "DISABLED"}
    if table.ttl is not None:
        described = {"TimeToLiveStatus": "ENABLED", "AttributeName": table.ttl}
    return {"TimeToLiveDescription": described}
