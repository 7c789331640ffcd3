"""Operations of the in-memory DynamoDB: of one item, batches, transactions, statements, Query and Scan; their costs."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.dynamodb import CONDITION_FAILED, MOST_ACTIONS
from pynamo_locking._core.values import (
    Item,
    Refusal,
    canonical_item,
    comparable,
    copy_of,
    invalid,
    invalid_value,
    item_size,
)
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing._expression_parser import Literal, Operand, Path
from pynamo_locking_testing._expressions import Expressions, Test
from pynamo_locking_testing._tables import MISMATCH, cancelled, condition_failed, reason, unfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pynamo_locking_testing._expressions import BoundCondition, BoundProjection, BoundUpdate
    from pynamo_locking_testing._tables import Key, Place, Record, Schema, Store, Table, View


_READ_UNIT: Final = 4096
_WRITE_UNIT: Final = 1024
#: What a unit costs within a transaction.
TRANSACTIONAL: Final = 2.0
CONSISTENT: Final = 1.0
EVENTUAL: Final = 0.5


def read_factor(request: Mapping[str, Any]) -> float:
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
        return {name: capacity for name, [capacity] in self.of_all().items()}

    def of_all(self) -> dict[str, Any]:
        if self._wanted not in {"TOTAL", "INDEXES"}:
            return {}
        shown = list[dict[str, Any]]()
        for table, units in self._units.items():
            detail = {"Table": {"CapacityUnits": units}} if self._wanted == "INDEXES" else {}
            shown.append({"TableName": table, "CapacityUnits": units, **detail})
        return {"ConsumedCapacity": shown} if shown else {}


# Requests about one item: PutItem, GetItem, UpdateItem, DeleteItem.


_CONDITION: Final = "ConditionExpression"
_UPDATE: Final = "UpdateExpression"
_PROJECTION: Final = "ProjectionExpression"


@dataclass
class Write:
    """A write that was read from a request and not evaluated yet."""

    kind: str  # Put, Update, Delete or ConditionCheck
    table: Table
    key: Key
    item: Item  # what a Put stores; else the key alone
    condition: BoundCondition | None
    update: BoundUpdate | None
    returns_item: bool  # with a refusal

    def evaluate(self) -> Change:
        old = self.table.primary.get(self.key)
        item = {} if old is None else old.item
        if self.condition is not None and not self.condition.holds(item):
            raise condition_failed(copy_of(old.item) if old is not None and self.returns_item else None)
        return Change(self.table, old, self._outcome(old))

    def _outcome(self, old: Record | None) -> Record | None:
        if self.kind == "Put":
            return self.table.record(self.key, self.item)
        if self.kind == "Update":
            item = self.item if old is None else old.item
            return self.table.record(self.key, self.update.apply(item) if self.update else item, updated=True)
        return old if self.kind == "ConditionCheck" else None


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


def read_write(store: Store, kind: str, request: Mapping[str, Any]) -> Write:
    expressions = Expressions(request, *([_UPDATE] if kind == "Update" else []), _CONDITION)
    update = expressions.update() if kind == "Update" else None
    condition = expressions.condition()
    expressions.check_all_used()
    item = canonical_item(request["Item"]) if kind == "Put" else {}
    table = store.table(request["TableName"])
    if kind == "Put":
        key = table.key_of_item(item)
    else:
        key, item = table.read_key(request["Key"])
    for path in () if update is None else update.paths:
        if path[0] in table.schema.names:
            raise invalid_value(f"Cannot update attribute {path[0]}. This attribute is part of the key")
    returns_item = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
    return Write(kind, table, key, item, condition, update, returns_item)


def read_projection(request: Mapping[str, Any]) -> BoundProjection | None:
    expressions = Expressions(request, _PROJECTION)
    projection = expressions.projection()
    expressions.check_all_used()
    return projection


def get_item(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    projection = read_projection(request)
    table = store.table(request["TableName"])
    record = table.primary.get(table.read_key(request["Key"])[0])
    bill = Bill(request)
    bill.add_read(table.name, size_of(record), read_factor(request))
    return bill.of_one() if record is None else {"Item": shown(record, projection), **bill.of_one()}


def size_of(record: Record | None) -> int:
    return 0 if record is None else record.size


def shown(record: Record, projection: BoundProjection | None) -> Item:
    return copy_of(record.item if projection is None else projection.of(record.item))


def _write(kind: str, allowed: set[str], store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    wanted = request.get("ReturnValues", "NONE")
    if wanted not in allowed:
        raise invalid("Return values set to invalid value")
    write = read_write(store, kind, request)
    change = write.evaluate()
    bill = Bill(request)
    bill.add(write.table.name, change.apply())
    attributes = _returned(write, change, wanted)
    return {"Attributes": copy_of(attributes), **bill.of_one()} if attributes else bill.of_one()


put_item = partial(_write, "Put", {"NONE", "ALL_OLD"})
delete_item = partial(_write, "Delete", {"NONE", "ALL_OLD"})
update_item = partial(_write, "Update", {"NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"})


def _returned(write: Write, change: Change, wanted: str) -> Item:
    if wanted == "NONE":
        return {}
    record = change.old if wanted.endswith("OLD") else change.new
    if record is None:
        return {}
    if wanted.startswith("ALL"):
        return record.item
    return {} if write.update is None else write.update.updated(record.item)


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
        keys = [table.read_key(key)[0] for key in arguments["Keys"]]
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
    writes = list[Write]()
    for name, actions in asked.items():
        of_table = list[Write]()
        for action in actions:
            [(kind, arguments)] = action.items()
            of_table.append(read_write(store, kind.removesuffix("Request"), {"TableName": name, **arguments}))
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


_ACTIONS: Final = frozenset({"Put", "Update", "Delete", "ConditionCheck"})
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
    writes = list[Write]()
    for action in actions:
        if len(action) != 1 or not action.keys() <= _ACTIONS:
            raise invalid("TransactItems can only contain one of Check, Put, Update or Delete")
        [(kind, arguments)] = action.items()
        writes.append(read_write(store, kind, arguments))
    _check_distinct([(write.table.name, write.key) for write in writes])
    return writes


def _check_distinct(places: list[tuple[str, Any]]) -> None:
    if len(set(places)) < len(places):
        raise invalid("Transaction request cannot include multiple operations on one item")


def _evaluate(writes: list[Write]) -> list[Change]:
    changes, reasons = list[Change](), list[dict[str, Any]]()
    for write in writes:
        try:
            changes.append(write.evaluate())
            reasons.append(reason(None))
        except Refusal as error:
            reasons.append(reason(error))
    if len(changes) < len(writes):
        raise cancelled(reasons)
    check_size(change.new for change in changes)
    return changes


def check_size(records: Iterable[Record | None]) -> None:
    if sum(map(size_of, records)) > _MOST_BYTES:
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
    bill, responses, places = Bill(request), list[dict[str, Any]](), list[tuple[str, Any]]()
    records = list["Record | None"]()
    for action in request["TransactItems"]:
        get = action["Get"]
        projection = read_projection(get)
        table = store.table(get["TableName"])
        key = table.read_key(get["Key"])[0]
        places.append((table.name, key))
        record = table.primary.get(key)
        records.append(record)
        bill.add_read(table.name, size_of(record), TRANSACTIONAL)
        responses.append({} if record is None else {"Item": shown(record, projection)})
    _check_distinct(places)
    check_size(records)
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


def batch_execute_statement(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    """Serve a batch: each statement is applied, or not, for itself."""
    statements = request["Statements"]
    if not 1 <= len(statements) <= _MOST:
        raise unfit("statements", f"have length between 1 and {_MOST}")
    writes = [single_write(store, each) for each in statements]
    _check_distinct_keys([_place(store, kwargs) for _, kwargs in writes])
    bill = Bill(request)
    return {"Responses": [_served(store, bill, *each) for each in writes], **bill.of_all()}


def _place(store: Store, kwargs: dict[str, Any]) -> tuple[str, str]:
    table, named = store.table(kwargs["TableName"]), kwargs.get("Key") or kwargs["Item"]
    return table.name, repr([named.get(name) for name in table.schema.names])


def _served(store: Store, bill: Bill, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        write = read_write(store, operation.removesuffix("Item"), kwargs)
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
    """Return the operation and the arguments of the single request that does what a statement says."""
    inserted = _INSERT.fullmatch(statement["Statement"])
    found = inserted or _STATEMENT.fullmatch(statement["Statement"])
    if found is None or statement.keys() - {"Statement", "Parameters"}:
        raise ConfigurationError(
            f"MemoryDynamoDB knows only the statements that this package sends, each with a condition on one item: "
            f"not {statement['Statement']!r}"
        )
    parameters = iter(statement["Parameters"])
    kwargs: dict[str, Any] = {"ExpressionAttributeNames": {}, "ExpressionAttributeValues": {}}
    if inserted is not None:
        operation, table = "PutItem", inserted["table"][1:-1]
        kwargs["Item"] = {name[1:-1]: next(parameters) for name in re.findall("'[^']*'", inserted["item"])}
        key = store.table(table).schema.hash
        kwargs["ConditionExpression"] = _expression(f'"{key}" IS MISSING', parameters, kwargs)
    else:
        operation, table = "DeleteItem", (found["update"] or found["delete"])[1:-1]
        if found["changes"]:
            operation = "UpdateItem"
            kwargs["UpdateExpression"] = _expression(found["changes"], parameters, kwargs)
        kwargs["Key"] = {name[1:-1]: next(parameters) for name in re.findall(_QUOTED, found["key"])}
        condition = _expression(found["condition"], parameters, kwargs)
        exists = f"{re.findall(_QUOTED, found['key'])[0]} IS{' NOT' if found['changes'] else ''} MISSING"
        joined = "AND" if found["changes"] else "OR"  # a DELETE of an absent item is applied, and shows none
        kwargs["ConditionExpression"] = f"{_expression(exists, parameters, kwargs)} {joined} {condition}"
        kwargs |= {"ReturnValues": "ALL_OLD"} if found["shown"] else {}
        store.table(table)
    kwargs["TableName"] = table
    return operation, {name: value for name, value in kwargs.items() if value != {}}


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


# The condition that a Query finds its items by.


_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_MOST_PARTS: Final = 2
_UNSUPPORTED: Final = "Query key condition not supported"


def _range_value(place: Place) -> Any:
    return place[2][0]


class _KeyCondition:
    """One hash value, and what the range key has to be."""

    def __init__(self, condition: BoundCondition, schema: Schema, types: Mapping[str, str]) -> None:
        self._condition = condition
        self._types = types
        root = condition.root
        parts = root.operands if isinstance(root, Test) and root.name == "AND" else (root,)
        by_name = dict[str, tuple[str, list[Any]]]()
        for part in parts:
            name, demand = self._read(part)
            if name in by_name:
                raise invalid("KeyConditionExpressions must only contain one condition per key")
            by_name[name] = demand
        if len(parts) > _MOST_PARTS:
            raise invalid("Conditions can be of length 1 or 2 only")
        sign, values = by_name.pop(schema.hash, ("", []))
        if not sign:
            raise invalid(f"Query condition missed key schema element: {schema.hash}")
        if sign != "=":
            raise invalid(_UNSUPPORTED)
        self.hash_value: Any = values[0]
        self._range = None if schema.range is None else by_name.pop(schema.range, None)
        if by_name:
            missed = schema.range or next(iter(by_name))
            raise invalid(f"Query condition missed key schema element: {missed}")

    def bounds(self, order: list[Place], first: int, last: int) -> tuple[int, int]:
        """Return where the items in question begin and end among those with this hash value, from `first` to `last`."""
        if self._range is None:
            return first, last
        sign, values = self._range
        low, high = values[0], values[-1]
        below = bisect_left(order, low, first, last, key=_range_value)
        if sign == "begins_with":
            length = len(low)
            return below, bisect_right(order, low, below, last, key=lambda place: _range_value(place)[:length])
        up_to = bisect_right(order, high, first, last, key=_range_value)
        return {
            "=": (below, up_to),
            "BETWEEN": (below, up_to),
            "<": (first, below),
            "<=": (first, up_to),
            ">": (up_to, last),
            ">=": (below, last),
        }[sign]

    def _read(self, part: Operand) -> tuple[str, tuple[str, list[Any]]]:
        if not isinstance(part, Test) or part.name not in {*_MIRRORED, "BETWEEN", "begins_with"}:
            raise invalid("Invalid operator used in KeyConditionExpression")
        sign, (path, *literals) = part.name, part.operands
        if sign in _MIRRORED and isinstance(literals[0], Path):
            sign, path, literals = _MIRRORED[sign], literals[0], [path]
        if not isinstance(path, Path):
            raise invalid(_UNSUPPORTED)
        values = [self._condition.values[literal.name] for literal in literals if isinstance(literal, Literal)]
        if len(values) < len(literals):
            raise invalid(_UNSUPPORTED)
        first, *nested = path.resolve(self._condition.names)
        if nested:
            raise invalid("KeyConditionExpressions cannot have conditions on nested attributes")
        name = str(first)
        if name in self._types and not all(self._types[name] in value for value in values):
            raise invalid_value("Condition parameter type does not match schema type")
        return name, (sign, [comparable(value) for value in values])


# Requests about many items: Query and Scan.


_PAGE: Final = 1024 * 1024
_FILTER: Final = "FilterExpression"
_KEY_CONDITION: Final = "KeyConditionExpression"
_MOST_SEGMENTS: Final = 1_000_000


class _Reader:
    """Reads one page for a request, which may have these kinds of expressions."""

    def __init__(self, store: Store, request: Mapping[str, Any], *kinds: str) -> None:
        self.request = request
        self.expressions = Expressions(request, *kinds)
        self.filter: BoundCondition | None = self.expressions.condition(_FILTER)
        self.projection: BoundProjection | None = self.expressions.projection()
        self.table: Table = store.table(request["TableName"])
        self.view: View = self.table.view(request.get("IndexName"))
        self._limit: int | None = request.get("Limit")
        self._check()

    def _check(self) -> None:
        if self._limit is not None and self._limit < 1:
            raise unfit("limit", "have value greater than or equal to 1", self._limit)
        is_global = self.view.name is not None and not self.view.is_local
        if is_global and self.request.get("ConsistentRead"):
            raise invalid("Consistent reads are not supported on global secondary indexes")
        select = self.request.get("Select")
        if self.projection is not None and select not in {None, "SPECIFIC_ATTRIBUTES"}:
            raise invalid(f"Cannot specify the ProjectionExpression when choosing to get {select}")
        if is_global and self.view.attributes is not None:
            self._check_projected(select, self.view.attributes)

    def check_filter(self) -> None:
        """Refuse a filter that a Query cannot have: about key attributes, or what the index has not."""
        wanted = self.filter.attributes() if self.filter is not None else set[str]()
        for name in wanted & set(self.view.schema.names):
            raise invalid(
                f"Filter Expression can only contain non-primary key attributes: Primary key attribute: {name}"
            )
        missing = sorted(wanted - (wanted if self.view.attributes is None else self.view.attributes))
        if missing:
            raise invalid_value(
                f"Secondary index {self.view.name} does not project one or more filter attributes: "
                f"[{', '.join(missing)}]"
            )

    def _check_projected(self, select: str | None, projected: frozenset[str]) -> None:
        wanted = {str(path[0]) for path in self.projection.paths} if self.projection is not None else set[str]()
        missing = sorted(wanted - projected)
        if missing:
            raise invalid_value(f"Global secondary index {self.view.name} does not project [{', '.join(missing)}]")
        if select == "ALL_ATTRIBUTES":
            raise invalid_value(
                f"Select type ALL_ATTRIBUTES is not supported for global secondary index {self.view.name} "
                "because its projection type is not ALL"
            )

    def page(self, records: Iterable[Record]) -> dict[str, Any]:
        """Return the response: what the filter leaves of the first records, up to the limit or 1 MB."""
        found, scanned, size = list[Item](), 0, 0
        last: Record | None = None
        for record in records:
            image = self.view.image(record.item)
            scanned += 1
            size += record.size if image is record.item else item_size(image)
            if self.filter is None or self.filter.holds(image):
                found.append(self._shown(record, image))
            if scanned == self._limit or size > _PAGE:
                last = record
                break
        counts = {"Count": len(found), "ScannedCount": scanned}
        items = {} if self.request.get("Select") == "COUNT" else {"Items": copy_of(found)}
        names = (*self.table.schema.names, *self.view.schema.names)
        after = {} if last is None else {"LastEvaluatedKey": copy_of({name: last.item[name] for name in names})}
        bill = Bill(self.request)
        bill.add_read(self.table.name, size, read_factor(self.request))
        return {**items, **counts, **after, **bill.of_one()}

    def _shown(self, record: Record, image: Item) -> Item:
        # A local index is in the partition of the table, and gives what it lacks itself.
        reachable = record.item if self.view.is_local else image
        if self.projection is not None:
            return self.projection.of(reachable)
        return reachable if self.request.get("Select") == "ALL_ATTRIBUTES" else image


def query(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    reader = _Reader(store, request, _FILTER, _PROJECTION, _KEY_CONDITION)
    condition = reader.expressions.condition(_KEY_CONDITION)
    reader.expressions.check_all_used()
    if condition is None:
        raise invalid("Either the KeyConditions or KeyConditionExpression parameter must be specified in the request.")
    keys = _KeyCondition(condition, reader.view.schema, reader.table.types)
    reader.check_filter()
    start = None
    if "ExclusiveStartKey" in request:
        start = reader.table.place_of_start(reader.view, request["ExclusiveStartKey"])
        if start[1] != keys.hash_value:
            raise invalid("The provided starting key is outside query boundaries based on provided conditions")
    forward = request.get("ScanIndexForward") is not False
    return reader.page(reader.view.query(keys.hash_value, keys.bounds, start, forward=forward))


def scan(store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
    reader = _Reader(store, request, _FILTER, _PROJECTION)
    reader.expressions.check_all_used()
    segment, segments = _segments(request)
    start = None
    if "ExclusiveStartKey" in request:
        start = reader.table.place_of_start(reader.view, request["ExclusiveStartKey"])
    return reader.page(reader.view.scan(start, segment, segments))


def _segments(request: Mapping[str, Any]) -> tuple[int, int]:
    segment, segments = request.get("Segment"), request.get("TotalSegments")
    if segment is None and segments is None:
        return 0, 1
    if segment is None or segments is None:
        missing, given = ("TotalSegments", "Segment") if segments is None else ("Segment", "TotalSegments")
        raise invalid(
            f"The {missing} parameter is required but was not present in the request when {given} parameter is present"
        )
    if not 1 <= segments <= _MOST_SEGMENTS:
        raise unfit("totalSegments", f"have value between 1 and {_MOST_SEGMENTS}", segments)
    if not 0 <= segment < segments:
        raise invalid(
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: "
            f"Segment: {segment} is not less than TotalSegments: {segments}"
        )
    return segment, segments
