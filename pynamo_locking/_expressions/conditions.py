"""What a condition is made of, and whether it holds."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pynamo_locking._expressions.paths import Literal, Operand, Path, Scope
from pynamo_locking._expressions.values import ELEMENTS, SCALARS, comparable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pynamo_locking._expressions.values import Value

_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
#: Types whose ``size()`` is defined.
SIZED: Final = frozenset({"S", "B", "SS", "NS", "BS", "L", "M"})


class Condition:
    """Something in an expression that is true or false."""

    __slots__ = ()

    def holds(self, scope: Scope) -> bool:
        """Tell whether it is true."""
        raise NotImplementedError


@dataclass(frozen=True)
class Size(Operand):
    """``size(a)``."""

    operand: Operand

    def value(self, scope: Scope) -> Value | None:
        """Return the number of characters, bytes or elements; None where that says nothing."""
        value = self.operand.value(scope)
        if value is None:
            return None
        [(kind, content)] = value.items()
        if kind == "S" and not content.isascii():  # characters as Java counts them
            return {"N": str(len(content.encode("utf-16-le", "surrogatepass")) // 2)}
        return {"N": str(len(content))} if kind in SIZED else None


@dataclass(frozen=True)
class Equal(Condition):
    """``a = b``."""

    left: Operand
    right: Operand

    def holds(self, scope: Scope) -> bool:
        """Tell whether both are there and equal."""
        left = self.left.value(scope)
        return left is not None and left == self.right.value(scope)


@dataclass(frozen=True)
class Different(Condition):
    """``a <> b``."""

    left: Operand
    right: Operand

    def holds(self, scope: Scope) -> bool:
        """Tell whether they are not equal, or one of them is missing."""
        left = self.left.value(scope)
        return left is None or left != self.right.value(scope)


@dataclass(frozen=True)
class Ordered(Condition):
    """``a < b``, and the other three."""

    sign: str
    left: Operand
    right: Operand

    def holds(self, scope: Scope) -> bool:
        """Tell whether both are of one type that has an order, and in this one."""
        return in_order(self.sign, self.left.value(scope), self.right.value(scope))


def in_order(sign: str, left: Value | None, right: Value | None) -> bool:
    """Tell whether two values compare so. False if one is missing, or of another type."""
    if left is None or right is None:
        return False
    kind = next(iter(left))
    if kind not in SCALARS or kind not in right:
        return False
    return _ORDER[sign](comparable(left), comparable(right))


@dataclass(frozen=True)
class Between(Condition):
    """``a BETWEEN b AND c``."""

    operand: Operand
    low: Operand
    high: Operand

    def holds(self, scope: Scope) -> bool:
        """Tell whether it is within the bounds, or one of them."""
        value = self.operand.value(scope)
        return in_order(">=", value, self.low.value(scope)) and in_order("<=", value, self.high.value(scope))


@dataclass(frozen=True)
class In(Condition):
    """``a IN (b, c)``."""

    operand: Operand
    choices: tuple[Operand, ...]

    def holds(self, scope: Scope) -> bool:
        """Tell whether it equals one of them."""
        value = self.operand.value(scope)
        return value is not None and any(value == choice.value(scope) for choice in self.choices)


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


@dataclass(frozen=True)
class Exists(Condition):
    """``attribute_exists(a)``."""

    path: Path

    def holds(self, scope: Scope) -> bool:
        """Tell whether the item has something there, be it NULL."""
        return self.path.value(scope) is not None


@dataclass(frozen=True)
class NotExists(Condition):
    """``attribute_not_exists(a)``."""

    path: Path

    def holds(self, scope: Scope) -> bool:
        """Tell whether the item has nothing there."""
        return self.path.value(scope) is None


@dataclass(frozen=True)
class HasType(Condition):
    """``attribute_type(a, :type)``."""

    path: Path
    type: Literal

    def holds(self, scope: Scope) -> bool:
        """Tell whether the value there is of this type."""
        value = self.path.value(scope)
        return value is not None and scope.values[self.type.name]["S"] in value


@dataclass(frozen=True)
class BeginsWith(Condition):
    """``begins_with(a, b)``."""

    operand: Operand
    prefix: Operand

    def holds(self, scope: Scope) -> bool:
        """Tell whether a text or bytes begin so."""
        value, prefix = self.operand.value(scope), self.prefix.value(scope)
        if value is None or prefix is None:
            return False
        [(kind, content)] = value.items()
        return kind in {"S", "B"} and kind in prefix and content.startswith(prefix[kind])


@dataclass(frozen=True)
class Contains(Condition):
    """``contains(a, b)``."""

    operand: Operand
    element: Operand

    def holds(self, scope: Scope) -> bool:
        """Tell whether a text or bytes have this part, or a set or list this element."""
        value, element = self.operand.value(scope), self.element.value(scope)
        if value is None or element is None:
            return False
        [(kind, content)] = value.items()
        if kind == "L":
            return element in content
        part = ELEMENTS.get(kind, kind if kind in {"S", "B"} else None)
        return part in element and element[part] in content
