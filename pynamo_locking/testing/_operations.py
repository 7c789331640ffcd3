"""Operations of the in-memory DynamoDB: of one item, batches, transactions, statements; what each costs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.dynamodb import MOST_ACTIONS
from pynamo_locking._expressions.expressions import BoundUpdate, Expressions
from pynamo_locking._expressions.values import Item, Refusal, canonical_item, copy_of, invalid, invalid_value
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.testing._tables import CONDITION_FAILED, MISMATCH, cancelled, condition_failed, reason, unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pynamo_locking._expressions.expressions import BoundCondition, BoundProjection
    from pynamo_locking.testing._tables import Key, Record, Store, Table


# What a request costs.


_READ_UNIT: Final = 4096
_WRITE_UNIT: Final = 1024
#: What a unit costs within a transaction.
TRANSACTIONAL: Final = 2.0
CONSISTENT: Final = 1.0
EVENTUAL: Final = 0.5


def read_factor(request: Mapping[str, Any]) -> float:
    """Return what a unit of this read costs outside of a transaction."""
    return CONSISTENT if request.get("ConsistentRead") else EVENTUAL


def write_units(old: Record | None, new: Record | None, indexes: int = 0, factor: float = 1.0) -> float:
    """Return the cost of a write: that of the larger image, once for the table and each index it changes."""
    size = max(old.size if old else 0, new.size if new else 0)
    return factor * max(1, -(-size // _WRITE_UNIT)) * (1 + indexes)


class Bill:
    """What a request consumed, by table, as far as the request asks for it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._wanted = request.get("ReturnConsumedCapacity", "NONE")
        self._units: dict[str, float] = {}

    def add(self, table: str, units: float) -> None:
        self._units[table] = self._units.get(table, 0.0) + units

    def add_read(self, table: str, size: int, factor: float) -> None:
        """Note the cost of reading so many bytes; an item that does not exist costs as much as one byte."""
        self.add(table, factor * max(1, -(-size // _READ_UNIT)))

    def of_one(self) -> dict[str, Any]:
        """Return the part of a response to a request about one table."""
        capacity = self._each()
        return {"ConsumedCapacity": capacity[0]} if capacity else {}

    def of_all(self) -> dict[str, Any]:
        """Return the part of a response to a request about several tables."""
        capacity = self._each()
        return {"ConsumedCapacity": capacity} if capacity else {}

    def _each(self) -> list[dict[str, Any]]:
        if self._wanted not in {"TOTAL", "INDEXES"}:
            return []
        shown = list[dict[str, Any]]()
        for table, units in self._units.items():
            detail = {"Table": {"CapacityUnits": units}} if self._wanted == "INDEXES" else {}
            shown.append({"TableName": table, "CapacityUnits": units, **detail})
        return shown


# Requests about one item: PutItem, GetItem, UpdateItem, DeleteItem.


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
    item: Item

    def outcome(self, old: Record | None) -> Record | None:  # noqa: ARG002
        return self.table.record(self.key, self.item)


@dataclass
class Update(Write):
    key_item: Item
    update: BoundUpdate | None

    def outcome(self, old: Record | None) -> Record | None:
        """Return the item with the changes; it is created if it did not exist."""
        item = self.key_item if old is None else old.item
        return self.table.record(self.key, item if self.update is None else self.update.apply(item), updated=True)


@dataclass
class Delete(Write):
    def outcome(self, old: Record | None) -> Record | None:  # noqa: ARG002
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


# BatchGetItem and BatchWriteItem.


_MOST_READS: Final = 100
_MOST_WRITES: Final = 25
_MOST_BYTES_OF_BATCH: Final = 16 * 1024 * 1024


def batch_get_item(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a BatchGetItem. What does not fit into 16 MB is left for another request."""
    asked: Mapping[str, Any] = request["RequestItems"]
    _check_number_of_requests("BatchGetItem", sum(len(each["Keys"]) for each in asked.values()), _MOST_READS)
    bill, size = Bill(request), 0
    responses: dict[str, Any] = {}
    unprocessed: dict[str, Any] = {}
    for name, arguments in asked.items():
        projection = read_projection(arguments)
        table = store.table(name)
        keys = [table.key_of_request(key) for key in arguments["Keys"]]
        _check_distinct_keys(keys)
        responses[name] = found = []
        for key, given in zip(keys, arguments["Keys"], strict=True):
            record = table.primary.get(key)
            size += size_of(record)
            if size > _MOST_BYTES_OF_BATCH:
                left = unprocessed.setdefault(name, {**arguments, "Keys": []})
                left["Keys"].append(copy_of(canonical_item(given)))
                continue
            bill.add_read(table.name, size_of(record), read_factor(arguments))
            if record is not None:
                found.append(shown(record, projection))
    return {"Responses": responses, "UnprocessedKeys": unprocessed, **bill.of_all()}


def batch_write_item(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a BatchWriteItem. Every write is done; there are no conditions."""
    asked: Mapping[str, Any] = request["RequestItems"]
    _check_number_of_requests("BatchWriteItem", sum(map(len, asked.values())), _MOST_WRITES)
    writes = list[Put | Delete]()
    for name, actions in asked.items():
        of_table = list[Put | Delete]()
        for action in actions:
            if "PutRequest" in action:
                of_table.append(read_put(store, {"TableName": name, "Item": action["PutRequest"]["Item"]}))
            else:
                of_table.append(read_delete(store, {"TableName": name, "Key": action["DeleteRequest"]["Key"]}))
        _check_distinct_keys([write.key for write in of_table])
        writes += of_table
    bill = Bill(request)
    for change in [write.evaluate() for write in writes]:
        bill.add(change.table.name, change.apply())
    return {"UnprocessedItems": {}, **bill.of_all()}


def _check_number_of_requests(operation: str, number: int, most: int) -> None:
    if number > most:
        raise invalid(f"Too many items requested for the {operation} call")
    if number < 1:
        raise unfit("requestItems", "have length greater than or equal to 1", "{}")


def _check_distinct_keys(keys: list[Any]) -> None:
    if len(set(keys)) < len(keys):
        raise invalid("Provided list of item keys contains duplicates")


# TransactWriteItems and TransactGetItems.


_READ: Final[dict[str, Callable[[Store, Mapping[str, Any]], Write]]] = {
    "Put": read_put,
    "Update": read_update,
    "Delete": read_delete,
    "ConditionCheck": read_check,
}
_MOST_BYTES: Final = 4 * 1024 * 1024
_LONGEST_TOKEN: Final = 36
#: For how long a token is remembered.
_REMEMBERED_MS: Final = 10 * 60 * 1000


def transact_write_items(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a TransactWriteItems. Its token is remembered for some minutes from now."""
    writes, now_ms = read_writes(store, request["TransactItems"]), store.time_ms()
    if is_repeated(store, request, now_ms):
        return bill_of_repetition(writes, request)
    changes = _evaluate(writes)
    bill = Bill(request)
    for change in changes:
        bill.add(change.table.name, change.apply(TRANSACTIONAL))
    remember(store, request, now_ms)
    return bill.of_all()


def read_writes(store: Store, actions: Sequence[Mapping[str, Any]]) -> list[Write]:
    """Return the writes that a TransactWriteItems asks for."""
    _check_number(actions)
    writes = list["Write"]()
    for action in actions:
        if len(action) != 1:
            raise invalid("TransactItems can only contain one of Check, Put, Update or Delete")
        [(kind, arguments)] = action.items()
        writes.append(_READ[kind](store, arguments))
    _check_distinct([(write.table.name, write.key) for write in writes])
    return writes


def _check_distinct(places: list[tuple[str, Any]]) -> None:
    if len(set(places)) < len(places):
        raise invalid("Transaction request cannot include multiple operations on one item")


def _evaluate(writes: list[Write]) -> list[Change]:
    changes, reasons = list["Change"](), list[dict[str, Any]]()
    for write in writes:
        try:
            changes.append(write.evaluate())
            reasons.append(reason(None))
        except Refusal as error:
            reasons.append(reason(error))
    if len(changes) < len(writes):
        raise cancelled(reasons)
    check_size(changes)
    return changes


def check_size(changes: Iterable[Change]) -> None:
    _check_bytes(sum(size_of(change.new) for change in changes))


def _check_bytes(size: int) -> None:
    if size > _MOST_BYTES:
        raise invalid("Transaction size exceeds limit: the items of a transaction may have 4MB together")


def is_repeated(store: Store, request: Mapping[str, Any], now_ms: int) -> bool:
    """Tell whether a TransactWriteItems was served already, by its ClientRequestToken; and forget old tokens."""
    token = request.get("ClientRequestToken")
    if token is None:
        return False
    if not 1 <= len(token) <= _LONGEST_TOKEN:
        raise unfit("clientRequestToken", f"have length less than or equal to {_LONGEST_TOKEN}", token)
    for old, (time_ms, _) in list(store.tokens.items()):  # the oldest first
        if now_ms - time_ms < _REMEMBERED_MS:
            break
        del store.tokens[old]
    if token not in store.tokens:
        return False
    check_same(store.tokens[token][1], request)
    return True


def check_same(known: Any, request: Mapping[str, Any]) -> None:
    """Refuse a TransactWriteItems whose actions differ from the `fingerprint` of an earlier one with its token."""
    if known != fingerprint(request["TransactItems"]):
        raise Refusal(
            MISMATCH,
            "DynamoDB rejected the request because you retried a request with a different payload but with an "
            "idempotent token that was already used.",
        )


def remember(store: Store, request: Mapping[str, Any], now_ms: int) -> None:
    """Note that a TransactWriteItems has succeeded, if it has a token."""
    token = request.get("ClientRequestToken")
    if token is not None:
        store.tokens[token] = (now_ms, fingerprint(request["TransactItems"]))


def fingerprint(value: Any) -> Any:
    """Return a request in a form that compares by content and shares nothing that may change."""
    if isinstance(value, dict):
        return {key: fingerprint(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [fingerprint(inner) for inner in value]
    return bytes(value) if isinstance(value, bytearray) else value


def bill_of_repetition(writes: list[Write], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response to a request that was served already: it costs a read of the items."""
    bill = Bill(request)
    for write in writes:
        bill.add_read(write.table.name, size_of(write.table.primary.get(write.key)), TRANSACTIONAL)
    return bill.of_all()


def transact_get_items(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    _check_number(request["TransactItems"])
    bill, responses, places, size = Bill(request), list[dict[str, Any]](), list[tuple[str, Any]](), 0
    for action in request["TransactItems"]:
        get = action["Get"]
        projection = read_projection(get)
        table = store.table(get["TableName"])
        key = table.key_of_request(get["Key"])
        places.append((table.name, key))
        record = table.primary.get(key)
        bill.add_read(table.name, size_of(record), TRANSACTIONAL)
        size += size_of(record)
        responses.append({} if record is None else {"Item": shown(record, projection)})
    _check_distinct(places)
    _check_bytes(size)
    return {"Responses": responses, **bill.of_all()}


def _check_number(actions: Sequence[Mapping[str, Any]]) -> None:
    relation = "greater than or equal to 1" if not actions else f"less than or equal to {MOST_ACTIONS}"
    if not 1 <= len(actions) <= MOST_ACTIONS:
        raise unfit("transactItems", f"have length {relation}")


# BatchExecuteStatement, as far as this package sends it: writes of single items, each with its own condition.


_MOST: Final = 25
_QUOTED: Final = r'"[^"]*"'
_PATH: Final = rf"{_QUOTED}(?:\.{_QUOTED})*"
_UPDATES: Final = rf"UPDATE (?P<update>{_QUOTED}) (?P<changes>(?:{_QUOTED}|[^\"])+?)"
_DELETE: Final = rf"DELETE FROM (?P<delete>{_QUOTED})"  # noqa: S608 - it is read
_INSERT: Final = re.compile(rf"INSERT INTO (?P<table>{_QUOTED}) VALUE \{{(?P<item>'[^']*': \?(?:, '[^']*': \?)*)\}}")
_STATEMENT: Final = re.compile(
    rf"(?:{_UPDATES}|{_DELETE}) WHERE (?P<key>{_QUOTED} = \?(?: AND {_QUOTED} = \?)?) AND \((?P<condition>.*)\)"
    r"(?P<shown> RETURNING ALL OLD \*)?"
)
_MISSING: Final = re.compile(rf"({_PATH}) IS (NOT )?MISSING")
_NAME_OR_VALUE: Final = re.compile(rf"{_QUOTED}|\?")
_READ_STATEMENT: Final[dict[str, Callable[..., Write]]] = {
    "PutItem": read_put,
    "UpdateItem": read_update,
    "DeleteItem": read_delete,
}


def batch_execute_statement(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a batch: each statement is applied, or not, for itself."""
    statements = request["Statements"]
    if not 1 <= len(statements) <= _MOST:
        raise unfit("statements", f"have length between 1 and {_MOST}")
    writes = [single_write(store, each) for each in statements]
    places = [_place(store, kwargs) for _, kwargs in writes]
    if len(set(places)) < len(places):
        raise invalid("Provided list of item keys contains duplicates")
    bill = Bill(request)
    return {"Responses": [_served(store, bill, *each) for each in writes], **bill.of_all()}


def _place(store: Store, kwargs: dict[str, Any]) -> tuple[str, str]:
    table, named = store.table(kwargs["TableName"]), kwargs.get("Key") or kwargs["Item"]
    return table.name, repr([named.get(name) for name in table.schema.names])


def _served(store: Store, bill: Bill, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        write = _READ_STATEMENT[operation](store, kwargs)
        change = write.evaluate()
        bill.add(write.table.name, change.apply())
    except Refusal as refusal:
        code = refused(operation) if refusal.code == CONDITION_FAILED else "ValidationError"
        return {"Error": {"Code": code, "Message": refusal.message}}
    shown = {} if "ReturnValues" not in kwargs or change.old is None else {"Item": copy_of(change.old.item)}
    return {"TableName": kwargs["TableName"], **shown}


def refused(operation: str) -> str:
    """Return the code of a statement whose single request's condition failed."""
    return "DuplicateItem" if operation == "PutItem" else "ConditionalCheckFailed"


def single_write(store: Store, statement: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the operation and the arguments of the single request that does what a statement says.

    Raises:
        ConfigurationError: this package does not send such statements.
    """
    inserted = _INSERT.fullmatch(statement["Statement"])
    found = inserted or _STATEMENT.fullmatch(statement["Statement"])
    if found is None or statement.keys() - {"Statement", "Parameters"}:
        raise ConfigurationError(
            f"MemoryDynamoDB knows only the statements that this package sends, each with a condition on one item: "
            f"not {statement['Statement']!r}"
        )
    parameters = iter(statement["Parameters"])
    if inserted is not None:
        return _put(store, inserted, parameters)
    kwargs: dict[str, Any] = {"ExpressionAttributeNames": {}, "ExpressionAttributeValues": {}}
    table = (found["update"] or found["delete"])[1:-1]
    if found["changes"]:
        kwargs["UpdateExpression"] = _expression(found["changes"], parameters, kwargs)
    key = {name[1:-1]: next(parameters) for name in re.findall(_QUOTED, found["key"])}
    condition = _expression(found["condition"], parameters, kwargs)
    exists = f"{re.findall(_QUOTED, found['key'])[0]} IS{' NOT' if found['changes'] else ''} MISSING"
    joined = "AND" if found["changes"] else "OR"  # a DELETE of an absent item is applied, and shows none
    condition = f"{_expression(exists, parameters, kwargs)} {joined} {condition}"
    store.table(table)
    kwargs |= {"TableName": table, "Key": key, "ConditionExpression": condition}
    kwargs |= {"ReturnValues": "ALL_OLD"} if found["shown"] else {}
    return "UpdateItem" if found["changes"] else "DeleteItem", _without_nothing(kwargs)


def _put(store: Store, inserted: re.Match[str], parameters: Iterator[Any]) -> tuple[str, dict[str, Any]]:
    kwargs: dict[str, Any] = {"ExpressionAttributeNames": {}, "ExpressionAttributeValues": {}}
    kwargs["TableName"] = inserted["table"][1:-1]
    kwargs["Item"] = {name[1:-1]: next(parameters) for name in re.findall("'[^']*'", inserted["item"])}
    key = store.table(kwargs["TableName"]).schema.names[0]
    kwargs["ConditionExpression"] = _expression(f'"{key}" IS MISSING', parameters, kwargs)
    return "PutItem", _without_nothing(kwargs)


def _without_nothing(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if value != {}}


def _expression(said: str, parameters: Iterator[Any], kwargs: dict[str, Any]) -> str:
    names, values = kwargs["ExpressionAttributeNames"], kwargs["ExpressionAttributeValues"]

    def placeholder(token: re.Match[str]) -> str:
        if token[0] == "?":
            values[f":v{len(values)}"] = next(parameters)
            return f":v{len(values) - 1}"
        names[f"#n{len(names)}"] = token[0][1:-1]
        return f"#n{len(names) - 1}"

    said = _MISSING.sub(lambda each: f"attribute_{'' if each[2] else 'not_'}exists({each[1]})", said)
    return _NAME_OR_VALUE.sub(placeholder, said)
