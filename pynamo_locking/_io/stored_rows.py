"""Values in DynamoDB's form, the format of rows, and the errors for a row that cannot be read."""

from __future__ import annotations

import base64
import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction
from pynamodb.expressions.util import PATH_SEGMENT_REGEX, get_value_placeholder
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
#:
#: It rises with what an older release would misread or damage: a field that it must not overlook, another meaning or
#: type of a field, a field that is gone. It does not rise with an optional field that an older release may overlook,
#: and leaves as it is. The growth of a new field of an entry counts in `lock_record.GROWTH`. A minor version that reads
#: a new format comes before the one that stores it.
FORMAT: Final = 1

#: The name of the number: of an attribute of a row of ours, or of an entry in the map of a lock or of an intent.
FORMAT_NAME: Final = "f"


def format_of(stored: Mapping[str, Any]) -> int:
    """Return the number of the format of a stored row, lock document or intent; one of `UNREADABLE` if it is none."""
    return FORMATS.read(stored[FORMAT_NAME]) if FORMAT_NAME in stored else 1


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


#: The steps of a path: names of attributes and places in lists. The first one is a name.
Steps = tuple["str | int", ...]


class Place(Path):
    """A path by its steps, with any characters in names, and without PynamoDB's parsing, which takes long."""

    def __init__(self, *steps: str | int) -> None:
        self.attribute = None  # type: ignore[assignment]
        self.attr_type = None
        self.values = (steps,)

    @override
    def serialize(self, placeholder_names: dict[str, str], expression_attribute_values: dict[str, Any]) -> str:
        text = ""
        for step in self.values[0]:
            if isinstance(step, int):
                text += f"[{step}]"
            else:
                text += "." * bool(text) + placeholder_names.setdefault(step, f"#{len(placeholder_names)}")
        return text

    @override
    def __getitem__(self, item: int | str) -> Place:
        return Place(*self.values[0], item)


class SetStored(SetAction):
    """Sets an attribute to a value in DynamoDB's form. A save has one for each attribute, so it makes no operands."""

    def __init__(self, name: str, stored: Mapping[str, Any]) -> None:
        self._name = name
        self._stored = stored

    @property
    def values(self) -> tuple[Place, Stored]:  # type: ignore[override]
        """The operands, for those who look at an action."""
        return Place(self._name), Stored(self._stored)

    @override
    def serialize(self, placeholder_names: dict[str, str], expression_attribute_values: dict[str, Any]) -> str:
        name = placeholder_names.setdefault(self._name, f"#{len(placeholder_names)}")
        return f"{name} = {get_value_placeholder(self._stored, expression_attribute_values)}"


def steps_of(path: Any) -> Steps:
    """Return the steps of a path: of PynamoDB's ``["a", "b[1]"]`` they are ``("a", "b", 1)``.

    Raises:
        ValueError: PynamoDB does not accept a name in it, such as ``price[EUR]``.
    """
    steps: list[str | int] = []
    if isinstance(path, Place):
        return (*path.values[0],)
    for segment in path.path:
        match = PATH_SEGMENT_REGEX.match(segment)
        if match is None:
            raise ValueError(f"{'.'.join(path.path)} is not a valid document path")
        name, places = match.groups()
        steps += [name, *(int(place) for place in places[1:-1].split("][") if place)]
    return tuple(steps)


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


#: The number of a format.
FORMATS: Final = whole_within(1)


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

#: So much of a stored value is shown.
_SHOWN: Final = 80


def flaw(name: str, stored: Mapping[str, Any]) -> str:
    """Return what is in the place of a part of a stored map that cannot be read: ``next is missing``."""
    return f"{plain(name)} is {plain(stored[name])[:_SHOWN] if name in stored else 'missing'}"


class StoredRow(NamedTuple):
    """A row, or the lock in it, as the errors name it that say why it is not trusted.

    Attributes:
        what: what and where it is.
        table: the table of the row.
        key: of the row, in DynamoDB's form.
        advice: what to do about it if it is broken.
    """

    what: str
    table: str
    key: Mapping[str, Any]
    advice: str = "Restore it, or find out who has written it."

    def read(self, stored: Mapping[str, Any], name: str, parse: Callable[[Any], _T]) -> _T:
        """Return what a function makes of an attribute of the row; `CorruptRow` names the attribute if it cannot."""
        try:
            return parse(stored[name])
        except UNREADABLE as error:
            raise self.corrupt(flaw(name, stored)) from error

    def refuse_newer(self, stored: Mapping[str, Any]) -> None:
        """Refuse the row if a newer release has stored it: `UnknownFormat`."""
        if FORMAT_NAME in stored:
            found = self.read(stored, FORMAT_NAME, FORMATS.read)
            if found > FORMAT:
                raise self.unknown_format(found)

    def unknown_format(self, found: int) -> UnknownFormat:
        error = UnknownFormat(
            f"{self.what} is stored in format {found}, and this release of pynamo_locking knows the formats up to "
            f"{FORMAT}: a newer release has stored it. Nothing was changed. Upgrade pynamo_locking here; a retry does "
            f"not help before."
        )
        error.table, error.key, error.found, error.known = self.table, dict(self.key), found, FORMAT
        return error

    def corrupt(self, flaw: str) -> CorruptRow:
        error = CorruptRow(f"{self.what} is broken: {flaw}. {self.advice}")
        error.table, error.key = self.table, dict(self.key)
        error.field, _, error.found = flaw.partition(" is ")
        return error
