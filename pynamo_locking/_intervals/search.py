"""Finds the rows that overlap an interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._io.stored import Place, Stored
from pynamo_locking._items.expiry import is_expired
from pynamo_locking._items.pages import stored_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.intervals import Span
    from pynamo_locking._intervals.axis import Axis
    from pynamo_locking._io.stored import Image
    from pynamo_locking._models.isolation import Reader


#: The size of the first page, in rows; later pages grow.
_PAGE: Final = 16


def overlapping(
    axis: Axis,
    hash_key: Any,
    span: Span,
    reader: Reader,
    *,
    page_size: int = _PAGE,
    expired: list[Image] | None = None,
) -> Iterator[tuple[Image, Span]]:
    """Yield the stored rows of a hash key that overlap an interval, in the order of their ends or in reverse.

    Stored rows do not overlap each other. So the query reads backwards from the end of the interval, and stops at the
    first row that ends before the interval begins; with the end as the range key it reads forwards. Expired and
    uncommitted rows may lie anywhere and do not stop it. `expired` receives the expired rows that overlap the interval,
    as far as the query meets them.
    """
    resolver = reader.resolver()
    for page in _towards(axis, hash_key, span, page_size):
        for current in reader.committed(axis.model, [(axis.key_in(image), image) for image in page], resolver):
            its = None if current is None else axis.span_in(current)
            if current is None or its is None or its.is_empty:
                continue
            if is_expired(axis.model, current):
                if expired is not None and its.overlaps(span):
                    expired.append(current)
            elif its.overlaps(span):
                yield current, its
            else:
                return


def _towards(axis: Axis, hash_key: Any, span: Span, page_size: int) -> Iterator[list[Image]]:
    """Query the rows of a hash key from one end of the interval towards the other end."""
    bound = span.upper if axis.is_by_begin else span.lower
    condition: Condition | None = None
    if bound is not None:
        path = Place(axis.key_name)
        name = axis.names[0 if axis.is_by_begin else 1]
        edge = Stored(axis.value(bound.value, name))
        condition = path < edge if axis.is_by_begin else path > edge
    forward = not axis.is_by_begin
    how: dict[str, Any] = {"range_key_condition": condition, "scan_index_forward": forward, "limit": page_size}
    return stored_pages(axis.model, hash_key, grows=True, **how)
