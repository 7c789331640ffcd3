"""What a condition is made of, and whether it holds."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pynamo_locking._expressions.values import ELEMENTS, SCALARS, comparable, type_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pynamo_locking._expressions.paths import Operand, Scope
    from pynamo_locking._expressions.values import Value

#: Types whose ``size()`` is defined.
SIZED: Final = frozenset({"S", "B", "SS", "NS", "BS", "L", "M"})


class Condition:
    """Something in an expression that is true or false."""

    __slots__ = ()

    def holds(self, scope: Scope) -> bool:
        """Tell whether it is true."""
        raise NotImplementedError


@dataclass(frozen=True)
class Test(Condition):
    """An operator or a function that tests values, as ``a < b`` or ``attribute_exists(a)``.

    Attributes:
        name: of the operator or function, as it is written.
        operands: what it tests.
    """

    name: str
    operands: tuple[Operand, ...]

    def holds(self, scope: Scope) -> bool:
        """Tell whether the values pass; a missing one passes ``<>`` and ``attribute_not_exists`` only."""
        return _TESTS[self.name](*[operand.value(scope) for operand in self.operands])


@dataclass(frozen=True)
class And(Condition):
    """``a AND b``, of any number."""

    parts: tuple[Condition, ...]

    def holds(self, scope: Scope) -> bool:
        """Tell whether all are true."""
        return all(part.holds(scope) for part in self.parts)


@dataclass(frozen=True)
class Or(Condition):
    """``a OR b``, of any number."""

    parts: tuple[Condition, ...]

    def holds(self, scope: Scope) -> bool:
        """Tell whether one is true."""
        return any(part.holds(scope) for part in self.parts)


@dataclass(frozen=True)
class Not(Condition):
    """``NOT a``."""

    condition: Condition

    def holds(self, scope: Scope) -> bool:
        """Tell whether it is false."""
        return not self.condition.holds(scope)


def size(value: Value | None) -> Value | None:
    """Return the number of characters, bytes or elements of a value; None where that says nothing."""
    if value is None:
        return None
    [(kind, content)] = value.items()
    if kind == "S" and not content.isascii():  # characters as Java counts them
        return {"N": str(len(content.encode("utf-16-le", "surrogatepass")) // 2)}
    return {"N": str(len(content))} if kind in SIZED else None


def _in_order(compare: Callable[[Any, Any], bool], left: Value | None, right: Value | None) -> bool:
    if left is None or right is None:
        return False
    kind = type_of(left)
    return kind in SCALARS and kind in right and compare(comparable(left), comparable(right))


def _between(value: Value | None, low: Value | None, high: Value | None) -> bool:
    return _in_order(operator.ge, value, low) and _in_order(operator.le, value, high)


def _begins_with(value: Value | None, prefix: Value | None) -> bool:
    if value is None or prefix is None:
        return False
    [(kind, content)] = value.items()
    return kind in {"S", "B"} and kind in prefix and content.startswith(prefix[kind])


def _contains(value: Value | None, element: Value | None) -> bool:
    """Tell whether a text or bytes have this part, or a set or list this element."""
    if value is None or element is None:
        return False
    [(kind, content)] = value.items()
    if kind == "L":
        return element in content
    part = ELEMENTS.get(kind, kind if kind in {"S", "B"} else None)
    return part in element and element[part] in content


_TESTS: Final[dict[str, Callable[..., bool]]] = {
    "=": lambda left, right: left is not None and left == right,
    "<>": lambda left, right: left is None or left != right,
    "<": partial(_in_order, operator.lt),
    "<=": partial(_in_order, operator.le),
    ">": partial(_in_order, operator.gt),
    ">=": partial(_in_order, operator.ge),
    "BETWEEN": _between,
    "IN": lambda value, *choices: value is not None and value in choices,
    "attribute_exists": lambda value: value is not None,
    "attribute_not_exists": lambda value: value is None,
    "attribute_type": lambda value, kind: value is not None and kind["S"] in value,
    "begins_with": _begins_with,
    "contains": _contains,
}
