"""Values in DynamoDB's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.util import get_value_placeholder
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.expressions.condition import Condition


def number(value: int) -> dict[str, str]:
    return {"N": str(value)}


Image = dict[str, Any]

#: The format of what this release stores, and the newest that it reads. What has no number is of format 1.
FORMAT: Final = 1

#: The name of the number: of an attribute of a row of ours, or of an entry in the map of a lock or of a mark.
FORMAT_NAME: Final = "f"

#: No release will store a larger number: such a one is a mistake, which can be repaired.
_MOST_FORMATS: Final = 1_000_000


def format_of(stored: Mapping[str, Any]) -> int:
    """Return the number of the format of a stored row, lock document or mark; `ValueError` if it is none."""
    if FORMAT_NAME not in stored:
        return 1
    number_ = int(stored[FORMAT_NAME]["N"])
    if not 0 < number_ <= _MOST_FORMATS:
        raise ValueError(number_)
    return number_


class Stored(Value):
    """A value that is in DynamoDB's form already."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self.attr_type = next(iter(stored))
        self.values = (stored,)

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
        for segment in self.path:
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


def known_format_text(path: str) -> str:
    """Return the same condition as text, of a request that has the value ``:format``."""
    return f"(attribute_not_exists({path}) OR {path} <= :format)"
