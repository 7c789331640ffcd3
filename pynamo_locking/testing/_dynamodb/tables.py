"""Tables: keys, indexes, and what every write has to fit into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.limits import LARGEST_ITEM, LARGEST_KEYS
from pynamo_locking._expressions.refusals import Refusal, invalid, invalid_value
from pynamo_locking._expressions.values import Item, Value, canonical, comparable, size_of, type_of
from pynamo_locking.testing._dynamodb.refusals import NOT_FOUND, no_such_table
from pynamo_locking.testing._dynamodb.views import Key, Place, Record, Schema, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_EMPTY: Final = {"S": "string", "B": "binary"}


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
            for kind in ("LocalSecondaryIndexes", "GlobalSecondaryIndexes")
            for each in description.get(kind, ())
        }

    def view(self, index: str | None) -> View:
        """Return the table's own order, or an index."""
        if index is None:
            return self.primary
        if index not in self.indexes:
            raise invalid(f"The table does not have the specified index: {index}")
        return self.indexes[index]

    def key_of_request(self, given: Mapping[str, Mapping[str, Any]]) -> Key:
        """Return the key that a request names."""
        return self.read_key(given)[0]

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
        """Return the key of an item that is to be stored."""
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
        """Return an item in the form in which it is stored."""
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
        names = dict.fromkeys((*self.schema.names, *view.schema.names))
        if given.keys() != names.keys():
            raise invalid("The provided starting key is invalid")
        item = {name: canonical(given[name]) for name in names}
        place = None
        if all(self.types[name] in item[name] for name in names):
            place = view.place(Record(tuple([comparable(item[name]) for name in self.schema.names]), item))
        if place is None:
            raise invalid("The provided starting key is invalid")
        return place

    def last_key(self, view: View, record: Record) -> Item:
        """Return the key that the next page begins after."""
        return {name: record.item[name] for name in (*self.schema.names, *view.schema.names)}


def schema_of(keys: Iterable[Mapping[str, str]]) -> Schema:
    """Return the key attributes of a key schema."""
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
        """Return a table."""
        # An ARN ends with the table's name.
        table = self.tables.get(name) or self.tables.get(name.rpartition(":table/")[2])
        if table is None:
            raise no_such_table()
        return table

    def table_itself(self, name: str) -> Table:
        """Return a table that a request is about."""
        if name not in self.tables:
            raise Refusal(NOT_FOUND, f"Requested resource not found: Table: {name} not found")
        return self.tables[name]
