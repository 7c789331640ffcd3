"""What PynamoDB's expressions are made of, and it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.expressions.operand import Value

if TYPE_CHECKING:
    from collections.abc import Mapping


class Stored(Value):
    """A value that is in DynamoDB's form already."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self.attr_type = next(iter(stored))
        self.values = (stored,)
