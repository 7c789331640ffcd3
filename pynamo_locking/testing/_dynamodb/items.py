"""Requests about one item: PutItem, GetItem, UpdateItem, DeleteItem."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.refusals import invalid, invalid_value
from pynamo_locking._expressions.request import BoundUpdate, Expressions
from pynamo_locking._expressions.values import Item, canonical_item, copy_of
from pynamo_locking.testing._dynamodb.capacity import Bill, read_factor, write_units
from pynamo_locking.testing._dynamodb.refusals import condition_failed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamo_locking._expressions.request import BoundCondition, BoundProjection
    from pynamo_locking.testing._dynamodb.tables import Store, Table
    from pynamo_locking.testing._dynamodb.views import Key, Record

_CONDITION: Final = "ConditionExpression"
_UPDATE: Final = "UpdateExpression"
_PROJECTION: Final = "ProjectionExpression"


@dataclass
class Write:
    """A write that was read from a request and not evaluated yet."""

    table: Table
    key: Key
    condition: BoundCondition | None
    returns_item: bool  # with a refusal

    def evaluate(self) -> Change:
        """Return what the write changes."""
        old = self.table.primary.get(self.key)
        item = {} if old is None else old.item
        if self.condition is not None and not self.condition.holds(item):
            raise condition_failed(copy_of(old.item) if old is not None and self.returns_item else None)
        return Change(self.table, old, self.outcome(old))

    def outcome(self, old: Record | None) -> Record | None:
        """Return the item afterwards; a ConditionCheck does not change it."""
        return old


@dataclass
class Put(Write):
    """A PutItem."""

    item: Item

    def outcome(self, old: Record | None) -> Record | None:  # noqa: ARG002
        """Return the new item."""
        return self.table.record(self.key, self.item)


@dataclass
class Update(Write):
    """An UpdateItem."""

    key_item: Item
    update: BoundUpdate | None

    def outcome(self, old: Record | None) -> Record | None:
        """Return the item with the changes; it is created if it did not exist."""
        item = self.key_item if old is None else old.item
        return self.table.record(self.key, item if self.update is None else self.update.apply(item), updated=True)


@dataclass
class Delete(Write):
    """A DeleteItem."""

    def outcome(self, old: Record | None) -> Record | None:  # noqa: ARG002
        """Return None: the item no longer exists."""
        return None


@dataclass
class Change:
    """A write that was evaluated: the item before and afterwards, if there is one."""

    table: Table
    old: Record | None
    new: Record | None

    def apply(self, factor: float = 1.0) -> float:
        """Make the change; return what it costs."""
        indexes = 0 if self.old is self.new else self.table.replace(self.old, self.new)
        return write_units(self.old, self.new, indexes, factor)


def read_put(store: Store, request: Mapping[str, Any]) -> Put:
    """Return the write that a PutItem or a Put of a transaction asks for."""
    expressions = Expressions(request, _CONDITION)
    condition = expressions.condition()
    expressions.check_all_used()
    item = canonical_item(request["Item"])
    table = store.table(request["TableName"])
    return Put(table, table.key_of_item(item), condition, _returns_item(request), item)


def read_update(store: Store, request: Mapping[str, Any]) -> Update:
    """Return the write that an UpdateItem or an Update of a transaction asks for."""
    expressions = Expressions(request, _UPDATE, _CONDITION)
    update, condition = expressions.update(), expressions.condition()
    expressions.check_all_used()
    table = store.table(request["TableName"])
    key, key_item = table.read_key(request["Key"])
    for path in () if update is None else update.paths:
        if path[0] in table.schema.names:
            raise invalid_value(f"Cannot update attribute {path[0]}. This attribute is part of the key")
    return Update(table, key, condition, _returns_item(request), key_item, update)


def read_delete(store: Store, request: Mapping[str, Any]) -> Delete:
    """Return the write that a DeleteItem or a Delete of a transaction asks for."""
    table, condition = _read_condition(store, request)
    return Delete(table, table.key_of_request(request["Key"]), condition, _returns_item(request))


def read_check(store: Store, request: Mapping[str, Any]) -> Write:
    """Return the "write" that a ConditionCheck of a transaction asks for."""
    table, condition = _read_condition(store, request)
    return Write(table, table.key_of_request(request["Key"]), condition, _returns_item(request))


def _read_condition(store: Store, request: Mapping[str, Any]) -> tuple[Table, BoundCondition | None]:
    expressions = Expressions(request, _CONDITION)
    condition = expressions.condition()
    expressions.check_all_used()
    return store.table(request["TableName"]), condition


def _returns_item(request: Mapping[str, Any]) -> bool:
    return bool(request.get("ReturnValuesOnConditionCheckFailure", "NONE") == "ALL_OLD")


def read_projection(request: Mapping[str, Any]) -> BoundProjection | None:
    """Return the projection of a GetItem, of a Get of a transaction, or of a table in a BatchGetItem."""
    if _PROJECTION not in request and "ExpressionAttributeNames" not in request:
        return None
    expressions = Expressions(request, _PROJECTION)
    projection = expressions.projection()
    expressions.check_all_used()
    return projection


def get_item(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a GetItem."""
    projection = read_projection(request)
    table = store.table(request["TableName"])
    record = table.primary.get(table.key_of_request(request["Key"]))
    bill = Bill(request)
    bill.add_read(table.name, size_of(record), read_factor(request))
    return bill.of_one() if record is None else {"Item": shown(record, projection), **bill.of_one()}


def size_of(record: Record | None) -> int:
    """Return the size of an item in bytes; 0 if there is none."""
    return 0 if record is None else record.size


def shown(record: Record, projection: BoundProjection | None) -> Item:
    """Return what a response has of an item."""
    return copy_of(record.item if projection is None else projection.of(record.item))


def _write(
    read: Callable[[Store, Mapping[str, Any]], Write], allowed: set[str], store: Store, request: Mapping[str, Any]
) -> dict[str, Any]:
    wanted = request.get("ReturnValues", "NONE")
    if wanted not in allowed:
        raise invalid("Return values set to invalid value")
    write = read(store, request)
    change = write.evaluate()
    bill = Bill(request)
    bill.add(write.table.name, change.apply())
    attributes = _returned(write, change, wanted)
    return {"Attributes": copy_of(attributes), **bill.of_one()} if attributes else bill.of_one()


put_item = partial(_write, read_put, {"NONE", "ALL_OLD"})
delete_item = partial(_write, read_delete, {"NONE", "ALL_OLD"})
update_item = partial(_write, read_update, {"NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"})


def _returned(write: Write, change: Change, wanted: str) -> Item:
    if wanted == "NONE":
        return {}
    record = change.old if wanted.endswith("OLD") else change.new
    if record is None:
        return {}
    if wanted.startswith("ALL"):
        return record.item
    update = write.update if isinstance(write, Update) else None
    return {} if update is None else update.updated(record.item)
