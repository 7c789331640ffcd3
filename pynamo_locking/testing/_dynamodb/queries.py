"""Requests about many items: Query and Scan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.refusals import invalid, invalid_value
from pynamo_locking._expressions.request import Expressions
from pynamo_locking._expressions.values import Item, copy_of, item_size
from pynamo_locking.testing._dynamodb.capacity import Bill, read_factor
from pynamo_locking.testing._dynamodb.key_conditions import KeyCondition
from pynamo_locking.testing._dynamodb.refusals import unfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pynamo_locking._expressions.request import BoundCondition, BoundProjection
    from pynamo_locking.testing._dynamodb.tables import Store, Table
    from pynamo_locking.testing._dynamodb.views import Record, View

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
    """Serve a Query."""
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
    """Serve a Scan."""
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
