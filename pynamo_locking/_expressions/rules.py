"""What has to be true of a request's names and values before an expression is evaluated.

Each function returns a rule. The rule returns DynamoDB's message if it is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.paths import described
from pynamo_locking._expressions.values import TYPES, Value, comparable, type_of

if TYPE_CHECKING:
    from pynamo_locking._expressions.paths import Path

Names = Mapping[str, str]
Values = Mapping[str, Value]
Rule = Callable[[Names, Values], "str | None"]

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


def allowed_types(value: str, types: frozenset[str], function: str) -> Rule:
    """A value is of a type that a function or operator takes."""

    def broken(_names: Names, values: Values) -> str | None:
        kind = type_of(values[value])
        if kind in types:
            return None
        what = "Incorrect operand type for operator or function; operator"
        if function in {"ADD", "DELETE"}:
            allowed = f"typeSet: ALLOWED_FOR_{function}_OPERAND"
            return f"{what}: {function}, operand type: {_LONG_NAMES[kind]}, {allowed}"
        return f"{what} or function: {function}, operand type: {kind}"

    return broken


def type_name(value: str) -> Rule:
    """A value names a type."""

    def broken(_names: Names, values: Values) -> str | None:
        name = values[value].get("S")
        if name is None or name in TYPES:
            return None  # another rule says that it is a text
        return f"Invalid attribute type name found; type: {name}, valid types: {{{','.join(sorted(TYPES))}}}"

    return broken


def bounds_in_order(lower: str, upper: str) -> Rule:
    """The bounds of BETWEEN are of one type, and in order."""

    def broken(_names: Names, values: Values) -> str | None:
        low, high = values[lower], values[upper]
        if type_of(low) != type_of(high):
            demand = "same data type for lower and upper bounds"
        elif comparable(low) > comparable(high):
            demand = "upper bound to be greater than or equal to lower bound"
        else:
            return None
        bounds = f"lower bound operand: {_shown(low)}, upper bound operand: {_shown(high)}"
        return f"The BETWEEN operator requires {demand}; {bounds}"

    return broken


def _shown(value: Value) -> str:
    [(kind, content)] = value.items()
    shown: Any = content.decode("latin-1") if isinstance(content, bytes) else content
    return f"AttributeValue: {{{kind}:{shown}}}"


def distinct(one: Path, two: Path, function: str) -> Rule:
    """Two operands are not the same path."""

    def broken(names: Names, _values: Values) -> str | None:
        parts = one.resolve(names)
        if parts != two.resolve(names):
            return None
        return (
            "The first operand must be distinct from the remaining operands for this operator or function; "
            f"operator: {function}, first operand: {described(parts)}"
        )

    return broken
