"""Query and Scan of the in-memory DynamoDB."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.expressions import And, Expressions, Test
from pynamo_locking._expressions.parser import Literal, Operand, Path
from pynamo_locking._expressions.values import Item, comparable, copy_of, invalid, invalid_value, item_size
from pynamo_locking.testing._operations import Bill, read_factor
from pynamo_locking.testing._tables import unfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pynamo_locking._expressions.expressions import BoundCondition, BoundProjection, Condition
    from pynamo_locking._expressions.values import Refusal
    from pynamo_locking.testing._tables import Key, Record, Schema, Store, Table, View


# The condition that a Query finds its items by.


_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_MOST_PARTS: Final = 2
_first: Final = itemgetter(0)


def _unsupported() -> Refusal:
    return invalid("Query key condition not supported")


class KeyCondition:
    """One hash value, and what the range key has to be."""

    def __init__(self, condition: BoundCondition, schema: Schema, types: Mapping[str, str]) -> None:
        self._condition = condition
        self._types = types
        root = condition.root
        parts = root.parts if isinstance(root, And) else (root,)
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
            raise _unsupported()
        self.hash_value: Any = values[0]
        self._range = None if schema.range is None else by_name.pop(schema.range, None)
        if by_name:
            missed = schema.range or next(iter(by_name))
            raise invalid(f"Query condition missed key schema element: {missed}")

    def bounds(self, order: list[Key]) -> tuple[int, int]:
        """Return where the items in question begin and end among all with this hash value."""
        if self._range is None:
            return 0, len(order)
        sign, values = self._range
        low, high = values[0], values[-1]
        if sign == "begins_with":
            length = len(low)
            first = bisect_left(order, low, key=_first)
            return first, bisect_right(order, low, lo=first, key=lambda sort: sort[0][:length])
        below, up_to = bisect_left(order, low, key=_first), bisect_right(order, high, key=_first)
        return {
            "=": (below, up_to),
            "BETWEEN": (below, up_to),
            "<": (0, below),
            "<=": (0, up_to),
            ">": (up_to, len(order)),
            ">=": (below, len(order)),
        }[sign]

    def _read(self, part: Condition) -> tuple[str, tuple[str, list[Any]]]:
        if not isinstance(part, Test) or part.name not in {*_MIRRORED, "BETWEEN", "begins_with"}:
            raise invalid("Invalid operator used in KeyConditionExpression")
        sign, (path, *literals) = part.name, part.operands
        if sign in _MIRRORED and isinstance(literals[0], Path):
            return self._demand(literals[0], _MIRRORED[sign], path)
        return self._demand(path, sign, *literals)

    def _demand(self, path: Operand, sign: str, *literals: Operand) -> tuple[str, tuple[str, list[Any]]]:
        if not isinstance(path, Path) or not all(isinstance(literal, Literal) for literal in literals):
            raise _unsupported()
        first, *nested = path.resolve(self._condition.names)
        if nested:
            raise invalid("KeyConditionExpressions cannot have conditions on nested attributes")
        name = str(first)
        return name, (sign, [self._value(name, literal) for literal in literals])

    def _value(self, name: str, literal: Operand) -> Any:
        value = self._condition.values[literal.name] if isinstance(literal, Literal) else {}
        if name in self._types and self._types[name] not in value:
            raise invalid_value("Condition parameter type does not match schema type")
        return comparable(value)


# Requests about many items: Query and Scan.


_PAGE: Final = 1024 * 1024
_FILTER: Final = "FilterExpression"
_KEY_CONDITION: Final = "KeyConditionExpression"
_PROJECTION: Final = "ProjectionExpression"
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
        after = {} if last is None else {"LastEvaluatedKey": copy_of(self.table.last_key(self.view, last))}
        bill = Bill(self.request)
        bill.add_read(self.table.name, size, read_factor(self.request))
        return {**items, **counts, **after, **bill.of_one()}

    def _shown(self, record: Record, image: Item) -> Item:
        # A local index is beside the table, and gives what it lacks itself.
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
    keys = KeyCondition(condition, reader.view.schema, reader.table.types)
    reader.check_filter()
    start = None
    if "ExclusiveStartKey" in request:
        hash_value, start = reader.table.place_of_start(reader.view, request["ExclusiveStartKey"])
        if hash_value != keys.hash_value:
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
