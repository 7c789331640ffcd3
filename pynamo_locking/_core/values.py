"""Attribute values: read from a request, measured, compared; and how DynamoDB refuses them.

A value is stored as boto3 sends it (``{"N": "1"}``), but canonical: numbers in one spelling, sets sorted,
bytes as bytes. So two values are equal if and only if their stored forms are. A stored value is never
changed: an update makes new ones and shares what stays.
"""

from __future__ import annotations

import marshal
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


INVALID = "ValidationException"
SERIALIZATION = "SerializationException"


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """DynamoDB refuses a request. `details` are what else the error carries, as ``Item`` or ``CancellationReasons``."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = details


def invalid(message: str) -> Refusal:
    return Refusal(INVALID, message)


def invalid_value(message: str) -> Refusal:
    return invalid(f"One or more parameter values were invalid: {message}")


#: One attribute value in DynamoDB's form: its type and its content.
Value = dict[str, Any]
#: An item: attribute values by name.
Item = dict[str, Value]

#: Types that have an order.
SCALARS: Final = frozenset({"S", "N", "B"})
#: What the elements of a set are.
ELEMENTS: Final = {"SS": "S", "NS": "N", "BS": "B"}

_SET_NAMES: Final = {"SS": "string", "NS": "number", "BS": "binary"}
#: Lists and maps within each other; the item around them is the 32nd level.
_LEVELS: Final = 31
#: In bytes.
_LONGEST_NAME: Final = 65_535
MOST_DIGITS: Final = 38
LARGEST_EXPONENT: Final = 125
SMALLEST_EXPONENT: Final = -130
_SAFE_DIGITS: Final = 18
#: Exact for every sum that can be stored, and large enough to see that one cannot.
_EXACT: Final = Context(prec=300, rounding=ROUND_HALF_EVEN)

_T = TypeVar("_T")


def copy_of(value: _T) -> _T:
    """Return a copy that shares nothing with a stored item or value (in C, ten times as fast as copy.deepcopy)."""
    copied: _T = marshal.loads(marshal.dumps(value, 2))  # type: ignore[arg-type]  # noqa: S302 - of our own making
    return copied


def canonical_item(item: Mapping[str, Mapping[str, Any]]) -> Item:
    return {_name(name): canonical(value) for name, value in item.items()}


def canonical(value: Mapping[str, Any], depth: int = 0) -> Value:
    """Return a value of a request as it is stored; `depth` is the number of lists and maps around it."""
    kind = next(iter(value), "")
    read = _READ.get(kind)
    if read is None or len(value) != 1:
        what = "has more than one datatypes set" if len(value) > 1 else "is empty"
        raise invalid(f"Supplied AttributeValue {what}, must contain exactly one of the supported datatypes")
    return {kind: read(value[kind], depth)}


def _wrong_python_type(expected: str, content: object) -> Refusal:
    return Refusal(SERIALIZATION, f"{type(content).__name__} cannot be converted to {expected}")


def _text(content: Any, _depth: int = 0) -> str:
    if type(content) is str:
        return content
    if isinstance(content, str):  # an enum's member, say
        return str.__str__(content)
    raise _wrong_python_type("String", content)


def _name(content: Any) -> str:
    name = _text(content)
    if not name:
        raise invalid("Empty attribute name")
    if len(name) > _LONGEST_NAME // 4 and _text_size(name) > _LONGEST_NAME:  # no character has more than 4 bytes
        raise invalid(f"Attribute name is too large, must be less than {_LONGEST_NAME + 1} bytes")
    return name


def _number(content: Any, _depth: int = 0) -> str:
    return canonical_number(content if type(content) is str else _text(content))


def _binary(content: Any, _depth: int = 0) -> bytes:
    if isinstance(content, str):  # as botocore does
        return content.encode()
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    raise _wrong_python_type("Binary", content)


def _null(content: Any, _depth: int = 0) -> bool:
    if content is not True:
        raise invalid_value("Null attribute value types must have the value of true")
    return True


def _list(content: Any, depth: int) -> list[Value]:
    _check_depth(depth)
    return [canonical(value, depth + 1) for value in content]


def _map(content: Any, depth: int) -> Item:
    _check_depth(depth)
    return {_name(name): canonical(value, depth + 1) for name, value in content.items()}


def _check_depth(depth: int) -> None:
    if depth >= _LEVELS:
        raise invalid("Nesting Levels have exceeded supported limits")


def check_levels(value: Value, depth: int) -> None:
    """Refuse a stored value that is nested too deeply where it is to be put, with so many lists and maps around it."""
    [(kind, content)] = value.items()
    if kind in {"L", "M"}:
        _check_depth(depth)
        for inner in content if kind == "L" else content.values():
            check_levels(inner, depth + 1)


def _set(kind: str) -> Callable[[Any, int], list[Any]]:
    read = {"SS": _text, "NS": _number, "BS": _binary}[kind]

    def read_set(content: Any, _depth: int = 0) -> list[Any]:
        elements = [read(element) for element in content]
        if not elements:
            raise invalid_value(f"An {_SET_NAMES[kind]} set  may not be empty")
        if len(set(elements)) < len(elements):
            if kind == "NS":
                raise invalid("Input collection contains duplicates")
            raise invalid_value(f"Input collection [{', '.join(map(str, content))}] contains duplicates.")
        return ordered(kind, elements)

    return read_set


_READ: Final[dict[str, Callable[[Any, int], Any]]] = {
    "S": _text,
    "N": _number,
    "B": _binary,
    "BOOL": lambda content, _depth: bool(content),
    "NULL": _null,
    "L": _list,
    "M": _map,
    "SS": _set("SS"),
    "NS": _set("NS"),
    "BS": _set("BS"),
}


def ordered(kind: str, elements: Any) -> list[Any]:
    """Return the elements of a set in the order in which they are stored."""
    return sorted(elements, key=decimal) if kind == "NS" else sorted(elements)


@lru_cache(maxsize=1 << 15)
def decimal(text: str) -> Decimal:
    return Decimal(text)


@lru_cache(maxsize=1 << 15)
def canonical_number(text: str) -> str:
    """Return the one spelling under which a number is stored."""
    if len(text) <= _SAFE_DIGITS and text.isascii() and text.isdigit() and text[0] != "0":
        return text
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or "_" in text:
        raise invalid(f"The parameter cannot be converted to a numeric value: {text}")
    return stored_number(number)


def stored_number(number: Decimal) -> str:
    if not number:
        return "0"
    range_error = "Number {}. Attempting to store a number with magnitude {} than supported range"
    if number.adjusted() > LARGEST_EXPONENT:
        raise invalid(range_error.format("overflow", "larger"))
    if number.adjusted() < SMALLEST_EXPONENT:
        raise invalid(range_error.format("underflow", "smaller"))
    number = number.normalize(_EXACT)
    if len(number.as_tuple().digits) > MOST_DIGITS:
        raise invalid("Attempting to store more than 38 significant digits in a Number")
    return format(number, "f")


def add_numbers(left: str, right: str, sign: int = 1) -> str:
    """Return the stored form of a sum or difference of stored numbers."""
    if sign > 0 and len(left) <= _SAFE_DIGITS >= len(right) and left.isdigit() and right.isdigit():
        return str(int(left) + int(right))
    calculate = _EXACT.add if sign > 0 else _EXACT.subtract
    return stored_number(calculate(decimal(left), decimal(right)))


def comparable(value: Value) -> Any:
    """Return something that sorts as DynamoDB sorts text, numbers or bytes.

    UTF-8 has the order of its code points, which is Python's order of texts.
    """
    [(kind, content)] = value.items()
    return decimal(content) if kind == "N" else content


def type_of(value: Value) -> str:
    return next(iter(value))


def item_size(item: Item) -> int:
    """Return the size of an item in bytes, as DynamoDB counts it."""
    size = 0
    for name, value in item.items():
        size += len(name) if name.isascii() else _text_size(name)
        for kind, content in value.items():  # the one
            if kind == "N":
                size += _number_size(content)
            elif kind == "M":
                size += 3 + len(content) + item_size(content)
            else:
                size += _SIZES[kind](content)
    return size


def size_of(value: Value) -> int:
    """Return the size of a value in bytes."""
    [(kind, content)] = value.items()
    return _SIZES[kind](content)


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=1 << 15)
def _number_size(text: str) -> int:
    digits = len(text.replace(".", "").strip("-0"))
    return (digits + 1) // 2 + 1 + (text[0] == "-")


_SIZES: Final[dict[str, Callable[[Any], int]]] = {
    "S": _text_size,
    "N": _number_size,
    "B": len,
    "BOOL": lambda _content: 1,
    "NULL": lambda _content: 1,
    "L": lambda content: 3 + len(content) + sum([size_of(value) for value in content]),
    "M": lambda content: 3 + len(content) + item_size(content),
    "SS": lambda content: sum(map(_text_size, content)),
    "NS": lambda content: sum(map(_number_size, content)),
    "BS": lambda content: sum(map(len, content)),
}
