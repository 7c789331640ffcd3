"""Intervals that must not overlap: half-open, with ends that sort as DynamoDB sorts them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, order=True)
class Edge:
    """Where an interval begins or ends.

    Attributes:
        at: sorts as DynamoDB sorts the stored value.
        value: the value in the model.
    """

    at: Any
    value: Any = field(compare=False)


@dataclass(frozen=True)
class Span:
    """From `lower`, inclusive, to `upper`, exclusive. None is an open end."""

    lower: Edge | None
    upper: Edge | None

    @property
    def is_empty(self) -> bool:
        """Whether it contains nothing."""
        return self.lower is not None and self.upper is not None and self.lower >= self.upper

    def overlaps(self, other: Span) -> bool:
        """Tell whether both intersect; a span that ends where the other begins does not."""
        return _is_below(self.lower, other.upper) and _is_below(other.lower, self.upper)


def _is_below(lower: Edge | None, upper: Edge | None) -> bool:
    return lower is None or upper is None or lower < upper


def begin_of(span: Span) -> tuple[bool, Any]:
    """Return what sorts spans by where they begin; an open beginning is first."""
    return span.lower is not None, span.lower and span.lower.at


def colliding(spans: Sequence[Span]) -> tuple[int, int] | None:
    """Return the indexes of two overlapping spans, None if there are none.

    Comparing neighbours in the order of their beginnings is enough: up to the first collision, each span ends before
    the next one begins.
    """
    order = sorted(range(len(spans)), key=lambda place: begin_of(spans[place]))
    for place in range(1, len(order)):
        first, second = order[place - 1 : place + 1]
        if spans[first].overlaps(spans[second]):
            return min(first, second), max(first, second)
    return None


def enclosing(spans: Sequence[Span]) -> Span:
    """Return the smallest span that contains all of these."""
    uppers = [span.upper for span in spans if span.upper is not None]
    return Span(min(spans, key=begin_of).lower, max(uppers) if len(uppers) == len(spans) else None)


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, with adjacent ones merged. They do not overlap."""
    result: list[Span] = []
    for span in sorted(spans, key=begin_of):
        if result and span.lower is not None and result[-1].upper == span.lower:
            result[-1] = Span(result[-1].lower, span.upper)
        else:
            result.append(span)
    return result


def gaps(taken: Iterable[Span], window: Span) -> list[Span]:
    """Return the parts of a window that no span takes, in order. The spans are in order."""
    result, begin = list[Span](), window.lower
    for span in taken:
        if not span.overlaps(window):
            continue
        gap = Span(begin, span.lower)
        if span.lower is not None and not gap.is_empty:
            result.append(gap)
        if span.upper is None:
            return result
        begin = span.upper if begin is None else max(begin, span.upper)
    last = Span(begin, window.upper)
    return result if last.is_empty else [*result, last]
