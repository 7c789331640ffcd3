"""The condition that a Query finds its items by."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.conditions import And, Test
from pynamo_locking._expressions.paths import Literal, Operand, Path
from pynamo_locking._expressions.refusals import invalid, invalid_value
from pynamo_locking._expressions.values import comparable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._expressions.conditions import Condition
    from pynamo_locking._expressions.refusals import Refusal
    from pynamo_locking._expressions.request import BoundCondition
    from pynamo_locking.testing._dynamodb.views import Key, Schema

_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_MOST_PARTS: Final = 2
_first: Final = itemgetter(0)


def _unsupported() -> Refusal:
    return invalid("Query key condition not supported")


class KeyCondition:
    """One hash value, and what the range key has to be."""

    def __init__(self, condition: BoundCondition, schema: Schema, types: Mapping[str, str]) -> None:
        self._condition = condition
        self._types = types
        root = condition.root
        parts = root.parts if isinstance(root, And) else (root,)
        by_name = dict[str, tuple[str, list[Any]]]()
        for part in parts:
            name, demand = self._read(part)
            if name in by_name:
                raise invalid("KeyConditionExpressions must only contain one condition per key")
            by_name[name] = demand
        if len(parts) > _MOST_PARTS:
            raise invalid("Conditions can be of length 1 or 2 only")
        sign, values = by_name.pop(schema.hash, ("", []))
        if not sign:
            raise invalid(f"Query condition missed key schema element: {schema.hash}")
        if sign != "=":
            raise _unsupported()
        self.hash_value: Any = values[0]
        self._range = None if schema.range is None else by_name.pop(schema.range, None)
        if by_name:
            missed = schema.range or next(iter(by_name))
            raise invalid(f"Query condition missed key schema element: {missed}")

    def bounds(self, order: list[Key]) -> tuple[int, int]:
        """Return where the items in question begin and end among all with this hash value."""
        if self._range is None:
            return 0, len(order)
        sign, values = self._range
        low, high = values[0], values[-1]
        if sign == "begins_with":
            length = len(low)
            first = bisect_left(order, low, key=_first)
            return first, bisect_right(order, low, lo=first, key=lambda sort: sort[0][:length])
        below, up_to = bisect_left(order, low, key=_first), bisect_right(order, high, key=_first)
        return {
            "=": (below, up_to),
            "BETWEEN": (below, up_to),
            "<": (0, below),
            "<=": (0, up_to),
            ">": (up_to, len(order)),
            ">=": (below, len(order)),
        }[sign]

    def _read(self, part: Condition) -> tuple[str, tuple[str, list[Any]]]:
        if not isinstance(part, Test) or part.name not in {*_MIRRORED, "BETWEEN", "begins_with"}:
            raise invalid("Invalid operator used in KeyConditionExpression")
        sign, (path, *literals) = part.name, part.operands
        if sign in _MIRRORED and isinstance(literals[0], Path):
            return self._demand(literals[0], _MIRRORED[sign], path)
        return self._demand(path, sign, *literals)

    def _demand(self, path: Operand, sign: str, *literals: Operand) -> tuple[str, tuple[str, list[Any]]]:
        if not isinstance(path, Path) or not all(isinstance(literal, Literal) for literal in literals):
            raise _unsupported()
        first, *nested = path.resolve(self._condition.names)
        if nested:
            raise invalid("KeyConditionExpressions cannot have conditions on nested attributes")
        name = str(first)
        return name, (sign, [self._value(name, literal) for literal in literals])

    def _value(self, name: str, literal: Operand) -> Any:
        value = self._condition.values[literal.name] if isinstance(literal, Literal) else {}
        if name in self._types and self._types[name] not in value:
            raise invalid_value("Condition parameter type does not match schema type")
        return comparable(value)
