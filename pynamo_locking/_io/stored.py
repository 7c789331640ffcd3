"""Values in DynamoDB's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.expressions.operand import Value

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
