"""Half-open intervals, and the attributes in which a model has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.lock_modes import extent_of, order
from pynamo_locking._core.row_keys import plain
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._items import keys
from pynamo_locking._pynamodb import hash_attribute_of, key_values_of
from pynamo_locking._recipes.named_lock import NamedLock
from pynamo_locking._transactions.options import check_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._models.writes import GuardedMixin


@dataclass(frozen=True, order=True)
class Edge:
    """Where an interval begins or ends: `value` in the model, and `at`, which sorts as it does in DynamoDB."""

    at: Any
    value: Any = field(compare=False)


@dataclass(frozen=True)
class Span:
    """From `lower`, inclusive, to `upper`, exclusive. None is an open end."""

    lower: Edge | None
    upper: Edge | None

    def __str__(self) -> str:
        return " to ".join("..." if edge is None else plain(f"{edge.value!s:.80}") for edge in (self.lower, self.upper))

    @property
    def values(self) -> tuple[Any, Any]:
        """Begin and end in the model, None for an open one."""
        return self.lower and self.lower.value, self.upper and self.upper.value

    @property
    def is_empty(self) -> bool:
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


#: Set on a model class: its `IntervalAttributes`, worked out once.
_INTERVAL: Final = "_pynamo_locking_interval"

#: An open end, as guards name it. PynamoDB stores no attribute for None, other programs may store this.
_OPEN: Final[dict[str, Any]] = {"NULL": True}


@dataclass(frozen=True)
class IntervalAttributes:
    """The attributes of begin and end of a model's rows: their Python names and their stored names.

    Attributes:
        is_by_begin: whether the begin is the range key; otherwise the end is.
        may_be_open: whether a row may lack the end that is not the range key: the interval is open there.
    """

    model: type[GuardedMixin]
    names: tuple[str, str]
    stored: tuple[str, str]
    is_by_begin: bool
    may_be_open: bool

    @property
    def key_name(self) -> str:
        """The stored name of the end that is the range key."""
        return self.stored[0 if self.is_by_begin else 1]

    @property
    def other(self) -> str:
        """The Python name of the end that is not the range key."""
        return self.names[1 if self.is_by_begin else 0]

    def value(self, value: Any, name: str) -> dict[str, Any]:
        """Return a begin or an end as it is stored; `InvalidInput` if it does not fit the attribute."""
        if value is None and name == self.other and self.may_be_open:
            return _OPEN
        if value is None:
            why = "it is the range key" if name != self.other else "its attribute is not declared with null=True"
            raise InvalidInput(f"{name!r} of a {self.model.__name__} has no value, and must have one: {why}.")
        try:
            bound = keys.bound_of(self.model, value)
        except InvalidInput as error:
            raise InvalidInput(str(error).replace("the range key", repr(name))) from error
        assert bound is not None  # noqa: S101 - there is a value, and a range key
        return {bound[0]: bound[1]}

    def edge(self, value: Any, name: str) -> Edge | None:
        return None if value is None else _edge(self.value(value, name), value)

    def span(self, begin: Any, end: Any) -> Span:
        """Return an interval, whose ends may be open; refuse ends that do not fit the model, or are not in order."""
        span = Span(self.edge(begin, self.names[0]), self.edge(end, self.names[1]))
        if span.is_empty:
            raise InvalidInput(
                f"an interval of {self.model.__name__} has to begin before it ends, unlike {begin!r:.80} to "
                f"{end!r:.80}."
            )
        return span

    def whole(self, begin: Any, end: Any) -> Span:
        """Return an interval of a row, as `span`; refuse an end that is missing, though no row may lack it."""
        for value, name in zip((begin, end), self.names, strict=True):
            self.value(value, name)
        return self.span(begin, end)

    def ends_of(self, row: GuardedMixin) -> tuple[Any, Any]:
        """Return the begin and the end that an instance shows."""
        return getattr(row, self.names[0]), getattr(row, self.names[1])

    def show(self, row: GuardedMixin, ends: tuple[Any, Any]) -> None:
        """Make an instance show a begin and an end."""
        for name, value in zip(self.names, ends, strict=True):
            setattr(row, name, value)

    def key_of(self, row: GuardedMixin, span: Span) -> Image:
        """Return the key of a row in an interval, in DynamoDB's form."""
        return keys.key_of(type(row), key_values_of(row)[0], span.values[0 if self.is_by_begin else 1])

    def ends(self, span: Span) -> tuple[dict[str, Any], ...]:
        """Return the ends of an interval as they are stored."""
        return tuple(self.value(value, name) for value, name in zip(span.values, self.names, strict=True))

    def stored_ends(self, span: Span) -> Image:
        """Return the ends of an interval by the names under which they are stored."""
        return dict(zip(self.stored, self.ends(span), strict=True))

    def extent(self, span: Span) -> LockMode:
        """Return what an interval takes of its hash key, as the locks of ranges see it."""
        lower, upper = (None if end == _OPEN else next(iter(end.items())) for end in self.ends(span))
        return extent_of(lower, upper)

    def is_stored(self) -> Condition:
        stored: Condition = Place(self.key_name).exists()
        return stored

    def has_end(self, value: Any) -> Condition:
        """Return the condition that the stored row has this end; its begin, if the end is the range key."""
        same: Condition = self._other == Stored(self.value(value, self.other))
        is_open: Condition = self.is_stored() & self.is_open()
        return is_open if value is None else same

    def goes_beyond(self, value: Any) -> Condition:
        """Return the condition that a row has a later end; an earlier begin, if the end is the range key.

        It holds without a row as well: the version of the row refuses that.
        """
        edge = Stored(self.value(value, self.other))
        beyond: Condition = self._other > edge if self.is_by_begin else self._other < edge
        either: Condition = self.is_open() | beyond
        return either

    @property
    def _other(self) -> Place:
        return Place(self.stored[1 if self.is_by_begin else 0])

    def is_open(self) -> Condition:
        """Return the condition that a row has no end; no begin, if the end is the range key. It holds without a row."""
        is_open: Condition = self._other.does_not_exist() | self._other.is_type("NULL")
        return is_open

    def key_in(self, image: Image) -> Image:
        hash_key: Any = hash_attribute_of(self.model)
        return {name: image[name] for name in (hash_key.attr_name, self.key_name)}

    def span_in(self, image: Image) -> Span | None:
        """Return the interval of a stored row; None if it has none."""
        stored = {name: image[name] for name in self.stored if image.get(name, _OPEN) != _OPEN}
        if self.key_name not in stored or not (self.may_be_open or len(stored) == 2):  # noqa: PLR2004 - both ends
            return None
        attributes: Any = [self.model.get_attributes()[name] for name in self.names]
        lower, upper = (
            None
            if name not in stored
            else _edge(stored[name], attribute.deserialize(attribute.get_value(stored[name])))
            for name, attribute in zip(self.stored, attributes, strict=True)
        )
        return Span(lower, upper)


def _edge(stored: dict[str, Any], value: Any) -> Edge:
    return Edge(order(next(iter(stored.items()))), value)


def interval_attributes_of(model: type[GuardedMixin]) -> IntervalAttributes:
    """Return a model's `IntervalAttributes`; refuse a model that cannot keep its rows from overlapping."""
    interval: IntervalAttributes | None = vars(model).get(_INTERVAL)
    if interval is None:
        interval = _find_interval(model)
        setattr(model, _INTERVAL, interval)
    check_model(model)
    table = getattr(model.Meta, "lock_table", None)
    if not (isinstance(table, type) and issubclass(table, NamedLock)):
        raise ConfigurationError(
            f"{model.__name__} has no place for the guards of its intervals: name a subclass of NamedLock in "
            f"Meta.lock_table (it is {table!r})."
        )
    return interval


def _find_interval(model: type[GuardedMixin]) -> IntervalAttributes:
    attributes = model.get_attributes()
    names = getattr(model.Meta, "interval", None)
    if not (isinstance(names, (tuple, list)) and len(names) == 2 and all(name in attributes for name in names)):  # noqa: PLR2004 - begin and end
        raise ConfigurationError(
            f"{model.__name__} does not say which attributes are begin and end of its intervals: set Meta.interval, "
            f"as in `interval = ('begin', 'end')` (it is {names!r})."
        )
    begin, end = (attributes[name] for name in names)
    if begin.is_range_key == end.is_range_key or begin.is_hash_key or end.is_hash_key:
        raise ConfigurationError(
            f"one of Meta.interval of {model.__name__} has to be its range key: either {names[0]!r} or {names[1]!r}."
        )
    _check_kind(model, (names[0], names[1]), begin, end)
    may_be_open = bool((end if begin.is_range_key else begin).null)
    return IntervalAttributes(
        model, (names[0], names[1]), (begin.attr_name, end.attr_name), begin.is_range_key, may_be_open
    )


def _check_kind(model: type[GuardedMixin], names: tuple[str, str], begin: Attribute[Any], end: Attribute[Any]) -> None:
    if type(begin) is not type(end) or begin.attr_type not in ("S", "N", "B"):
        raise ConfigurationError(
            f"{names[0]!r} and {names[1]!r} of {model.__name__} have to be attributes of the same class, of numbers, "
            f"strings, bytes or times: they are {type(begin).__name__} and {type(end).__name__}."
        )
    if keys.is_base_64(begin) or keys.is_base_64(end):
        raise ConfigurationError(
            f"{names[0]!r} and {names[1]!r} of {model.__name__} are stored in a form that sorts unlike their values: "
            f"use BinaryAttribute(legacy_encoding=False)."
        )
