"""Values in DynamoDB's form, the format of rows, and what is wrong with a row that cannot be read."""

from __future__ import annotations

import base64
import math
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.util import get_value_placeholder
from typing_extensions import override

from pynamo_locking._core.row_keys import plain
from pynamo_locking.exceptions import CorruptRow, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.expressions.condition import Condition


def number(value: int) -> dict[str, str]:
    return {"N": str(value)}


Image = dict[str, Any]

#: The format of what this release stores, and the newest that it reads. What has no number is of format 1.
FORMAT: Final = 1

#: The name of the number: of an attribute of a row of ours, or of an entry in the map of a lock or of an intent.
FORMAT_NAME: Final = "f"

#: No release will store a larger number: such a one is a mistake, which can be repaired.
_MOST_FORMATS: Final = 1_000_000


def format_of(stored: Mapping[str, Any]) -> int:
    """Return the number of the format of a stored row, lock document or intent; `ValueError` if it is none."""
    if FORMAT_NAME not in stored:
        return 1
    number_ = int(stored[FORMAT_NAME]["N"])
    if not 0 < number_ <= _MOST_FORMATS:
        raise ValueError(number_)
    return number_


def decoded(stored: Any, text: bytes) -> Any:
    """Return items that were read from a text in JSON, with their binary values as bytes."""
    return _decoded(stored) if b'"B"' in text or b'"BS"' in text else stored


def _decoded(stored: Any) -> Any:
    """No value of another type has a text where a binary value has it."""
    if isinstance(stored, list):
        return [_decoded(each) for each in stored]
    if not isinstance(stored, dict):
        return stored
    match [*stored.items()]:
        case [("B", str(text))]:
            return {"B": base64.b64decode(text)}
        case [("BS", [str(), *_] as texts)]:
            return {"BS": [base64.b64decode(text) for text in texts]}
    return {name: _decoded(value) for name, value in stored.items()}


def encoded(value: bytes) -> str:
    """Return a binary value as it stands in JSON."""
    return base64.b64encode(value).decode()


class Stored(Value):
    """A value that is in DynamoDB's form already."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self.attr_type: str = next(iter(stored))
        self.values: tuple[Mapping[str, Any]] = (stored,)

    @override
    def serialize(self, placeholder_names: dict[str, str], expression_attribute_values: dict[str, Any]) -> str:
        return str(get_value_placeholder(self.values[0], expression_attribute_values))


class Place(Path):
    """A path, written without the parsing by PynamoDB, which is a large part of the work of a write."""

    def __init__(self, *names: str) -> None:
        self.attribute = None  # type: ignore[assignment]
        self.attr_type = None
        self.values = (list(names),)

    @override
    def serialize(self, placeholder_names: dict[str, str], expression_attribute_values: dict[str, Any]) -> str:
        segments = []
        for segment in self.values[0]:
            name, bracket, index = segment.partition("[")
            segments.append(placeholder_names.setdefault(name, f"#{len(placeholder_names)}") + bracket + index)
        return ".".join(segments)

    @override
    def __getitem__(self, item: int | str) -> Place:
        if isinstance(item, str):
            return Place(*self.path, item)
        return Place(*self.path[:-1], f"{self.path[-1]}[{item}]")


def known_format(*names: str) -> Condition:
    """Return the condition that the number in the map of that path, or in the row, is of no newer format."""
    number_ = Place(*names, FORMAT_NAME)
    known: Condition = number_.does_not_exist() | (number_ <= Stored(number(FORMAT)))
    return known


_T = TypeVar("_T")


class Kind(NamedTuple):
    """How a value is stored, and how it is read; reading what is broken raises one of `UNREADABLE`."""

    stored: Callable[[Any], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], Any]


TEXT: Final = Kind(lambda text: {"S": text}, lambda stored: stored["S"])
INTEGER: Final = Kind(number, lambda stored: int(stored["N"]))
MAP: Final = Kind(lambda values: {"M": dict(values)}, lambda stored: stored["M"])
TEXTS: Final = Kind(
    lambda texts: {"L": [{"S": text} for text in texts]}, lambda stored: tuple(text["S"] for text in stored["L"])
)


def whole_within(least: int, most: float = math.inf) -> Kind:
    def read(stored: Mapping[str, Any]) -> int:
        found = int(stored["N"])
        if not least <= found <= most:
            raise ValueError(found)
        return found

    return Kind(number, read)


def one_of(*texts: str) -> Kind:
    def read(stored: Mapping[str, Any]) -> Any:
        if stored["S"] not in texts:
            raise ValueError(stored["S"])
        return stored["S"]

    return Kind(TEXT.stored, read)


#: Of a field that is always stored.
_NOTHING: Final = object()


class Field(NamedTuple):
    """The name and the kind of a value in a stored map, and the value that is not stored."""

    name: str
    kind: Kind
    unless: Any = _NOTHING


class Codec(Generic[_T]):
    """Stores the attributes of an object as a map, by a table of its fields, and makes an object of a stored map."""

    def __init__(self, make: Callable[..., _T], **fields: Field) -> None:
        self._make = make
        self._values = attrgetter(*fields)
        self._to_store = [(field.name, field.kind.stored, field.unless) for field in fields.values()]
        self._to_read = [(attribute, each.name, each.kind.read, each.unless) for attribute, each in fields.items()]

    def encode(self, row: object) -> dict[str, Any]:
        values = zip(self._to_store, self._values(row), strict=True)
        return {name: store(value) for (name, store, unless), value in values if value != unless}

    def decode(self, stored: Mapping[str, Any]) -> _T:
        values = {
            attribute: read(stored[name]) if name in stored or unless is _NOTHING else unless
            for attribute, name, read, unless in self._to_read
        }
        return self._make(**values)


#: What reading a row that this package has not written can raise.
UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError)

#: What to do about a broken lock document.
ADVICE: Final = (
    "The lock cannot be used, nor what it guards be written, until that is mended. Remove that attribute of the item "
    "when no process uses the lock, or let break_lock(..., force=True) or `pynamo-locking locks repair` make a new one."
)

#: So much of a stored value is shown.
_SHOWN: Final = 80


def read(
    parse: Callable[[Mapping[str, Any]], _T],
    stored: Mapping[str, Any],
    what: str,
    *,
    table: str,
    key: Mapping[str, Any],
    advice: str,
) -> _T:
    """Return what a function makes of a stored map; it may only look up parts of the map, and of the maps in it.

    Raises:
        UnknownFormat: a newer release has stored the map.
        CorruptRow: it cannot. `what` names the content and its place, `advice` says what to do.
    """
    refuse_newer(stored, what, table=table, key=key)

    def read_all(stored: Mapping[str, Any]) -> _T:
        format_of(stored)
        return parse(stored)

    try:
        return read_all(stored)
    except UNREADABLE as error:
        raise corrupt(what, flaw_in(read_all, stored), table=table, key=key, advice=advice) from error


def refuse_newer(stored: Mapping[str, Any] | None, what: str, *, table: str, key: Mapping[str, Any]) -> None:
    """Refuse a stored map of a newer format: `UnknownFormat`."""
    with suppress(*UNREADABLE):
        found = format_of(stored or {})
        if found > FORMAT:
            raise unknown_format(what, found, table=table, key=key)


def unknown_format(what: str, found: int, *, table: str, key: Mapping[str, Any]) -> UnknownFormat:
    error = UnknownFormat(
        f"{what} is stored in format {found}, and this release of pynamo_locking knows the formats up to {FORMAT}: a "
        f"newer release has stored it. Nothing was changed. Upgrade pynamo_locking here; a retry does not help before."
    )
    error.table, error.key, error.found, error.known = table, dict(key), found, FORMAT
    return error


def corrupt(what: str, flaw: str, *, table: str, key: Mapping[str, Any], advice: str) -> CorruptRow:
    error = CorruptRow(f"{what} is broken: {flaw}. {advice}")
    error.table, error.key = table, dict(key)
    error.field, _, error.found = flaw.partition(" is ")
    return error


def flaw_in(parse: Callable[[Mapping[str, Any]], object], stored: Mapping[str, Any]) -> str:
    """Return which part of a stored map a function cannot read, and what is there: ``next is missing``."""
    asked = list[tuple[str, ...]]()
    with suppress(*UNREADABLE):
        parse(_Traced(stored, (), asked))
    path = asked[-1] if asked else ()
    names = path[: len(path) - (len(path) + 1) % 2]  # without DynamoDB's type at the end
    found: Any = stored
    for name in names:
        found = found[int(name)] if isinstance(found, list) else found.get(name)
    return f"{plain('.'.join(names[::2]))} is {'missing' if found is None else plain(found)[:_SHOWN]}"


class _Traced(dict[str, Any]):
    """A stored map that notes which parts are looked up."""

    def __init__(self, stored: Mapping[str, Any], path: tuple[str, ...], asked: list[tuple[str, ...]]) -> None:
        super().__init__({name: _traced(value, (*path, name), asked) for name, value in stored.items()})
        self._path, self._asked = path, asked

    @override
    def __getitem__(self, name: str) -> Any:
        self._asked.append((*self._path, name))
        return super().__getitem__(name)

    @override
    def get(self, name: str, default: Any = None) -> Any:
        self._asked.append((*self._path, name))
        return super().get(name, default)

    @override
    def items(self) -> Any:
        return ((name, self[name]) for name in self)


def _traced(value: Any, path: tuple[str, ...], asked: list[tuple[str, ...]]) -> Any:
    if isinstance(value, dict):
        return _Traced(value, path, asked)
    if isinstance(value, list):
        return [_traced(each, (*path, str(i)), asked) for i, each in enumerate(value)]
    return value
