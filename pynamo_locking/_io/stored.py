"""Values in DynamoDB's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.util import get_value_placeholder
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping


def number(value: int) -> dict[str, str]:
    return {"N": str(value)}


Image = dict[str, Any]


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
