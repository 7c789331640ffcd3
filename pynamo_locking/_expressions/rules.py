"""What has to be true of a request's names and values before an expression is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.values import TYPES, comparable, type_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._expressions.paths import Path
    from pynamo_locking._expressions.values import Value

#: As two of DynamoDB's messages name the types.
_LONG_NAMES: Final = {
    "S": "STRING",
    "N": "NUMBER",
    "B": "BINARY",
    "SS": "STRING_SET",
    "NS": "NUMBER_SET",
    "BS": "BINARY_SET",
    "L": "LIST",
    "M": "MAP",
    "BOOL": "BOOLEAN",
    "NULL": "NULL",
}


class Rule:
    """A demand on the names and values of a request."""

    __slots__ = ()

    def broken(self, names: Mapping[str, str], values: Mapping[str, Value]) -> str | None:
        """Return DynamoDB's message if it is not met."""
        raise NotImplementedError


@dataclass(frozen=True)
class AllowedTypes(Rule):
    """A value is of a type that a function or operator takes."""

    value: str
    types: frozenset[str]
    function: str

    def broken(self, names: Mapping[str, str], values: Mapping[str, Value]) -> str | None:  # noqa: ARG002
        """Return DynamoDB's message if it is of another one."""
        kind = type_of(values[self.value])
        if kind in self.types:
            return None
        what = "Incorrect operand type for operator or function; operator"
        if self.function in {"ADD", "DELETE"}:
            allowed = f"typeSet: ALLOWED_FOR_{self.function}_OPERAND"
            return f"{what}: {self.function}, operand type: {_LONG_NAMES[kind]}, {allowed}"
        return f"{what} or function: {self.function}, operand type: {kind}"


@dataclass(frozen=True)
class TypeName(Rule):
    """A value names a type."""

    value: str

    def broken(self, names: Mapping[str, str], values: Mapping[str, Value]) -> str | None:  # noqa: ARG002
        """Return DynamoDB's message if it does not."""
        name = values[self.value].get("S")
        if name is None or name in TYPES:
            return None  # another rule says that it is a text
        return f"Invalid attribute type name found; type: {name}, valid types: {{{','.join(sorted(TYPES))}}}"


@dataclass(frozen=True)
class BoundsInOrder(Rule):
    """The bounds of BETWEEN are of one type, and in order."""

    low: str
    high: str

    def broken(self, names: Mapping[str, str], values: Mapping[str, Value]) -> str | None:  # noqa: ARG002
        """Return DynamoDB's message if they are not."""
        low, high = values[self.low], values[self.high]
        if type_of(low) != type_of(high):
            demand = "same data type for lower and upper bounds"
        elif comparable(low) > comparable(high):
            demand = "upper bound to be greater than or equal to lower bound"
        else:
            return None
        bounds = f"lower bound operand: {_shown(low)}, upper bound operand: {_shown(high)}"
        return f"The BETWEEN operator requires {demand}; {bounds}"


def _shown(value: Value) -> str:
    [(kind, content)] = value.items()
    shown: Any = content.decode("latin-1") if isinstance(content, bytes) else content
    return f"AttributeValue: {{{kind}:{shown}}}"


@dataclass(frozen=True)
class Distinct(Rule):
    """Two operands are not the same path."""

    one: Path
    two: Path
    function: str

    def broken(self, names: Mapping[str, str], values: Mapping[str, Value]) -> str | None:  # noqa: ARG002
        """Return DynamoDB's message if they are."""
        parts = self.one.resolve(names)
        if parts != self.two.resolve(names):
            return None
        shown = ", ".join(f"[{part}]" if isinstance(part, int) else part for part in parts)
        return (
            "The first operand must be distinct from the remaining operands for this operator or function; "
            f"operator: {self.function}, first operand: [{shown}]"
        )
