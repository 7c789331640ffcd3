"""Items that DynamoDB just stores, and items that it just does not, with the table they are for."""

from __future__ import annotations

from typing import Any, Final

from pynamo_locking._core.dynamodb import LARGEST_ITEM, KeyRule

TYPES: Final = {"h": "S", "r": "S", "loc": "S", "gh": "S", "gr": "B", "num": "N"}
#: Key attributes by index; None is the table itself.
INDEXES: Final[dict[str | None, tuple[str, ...]]] = {
    None: ("h", "r"),
    "local": ("h", "loc"),
    "global": ("gh", "gr"),
    "numbers": ("num",),
    "inverted": ("r", "h"),
}
ROLES: Final = ("hash", "range")
RULES: Final = tuple(
    KeyRule(name, TYPES[name], "hash" if place == 0 else "range", index)
    for index, names in INDEXES.items()
    for place, name in enumerate(names)
)


def create_table(client: Any, name: str) -> str:
    """Make the table; return its name."""
    schemas = {
        index: [{"AttributeName": key, "KeyType": role.upper()} for key, role in zip(names, ROLES, strict=False)]
        for index, names in INDEXES.items()
    }
    described = [
        {"IndexName": index, "KeySchema": schema, "Projection": {"ProjectionType": "KEYS_ONLY"}}
        for index, schema in schemas.items()
        if index is not None
    ]
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind} for key, kind in TYPES.items()],
        KeySchema=schemas[None],
        LocalSecondaryIndexes=described[:1],
        GlobalSecondaryIndexes=described[1:],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


def nested(levels: int, inner: dict[str, Any], kind: str = "M") -> dict[str, Any]:
    """That many maps or lists around a value."""
    for _ in range(levels):
        inner = {"M": {"a": inner}} if kind == "M" else {"L": [inner]}
    return inner


def text(size: int) -> dict[str, str]:
    return {"S": "x" * size}


def number(digits: str) -> dict[str, str]:
    return {"N": digits}


KEY: Final = {"h": text(1), "r": text(1)}
#: The bytes left for the value of an attribute "f" besides the key, names included.
_ROOM: Final = LARGEST_ITEM - 5

#: What an item has besides the key, or instead of it.
STORED: Final[dict[str, dict[str, Any]]] = {
    "only the key": {},
    "hash key of 1,024 bytes, range key of another index": {"h": text(1024)},
    "range key of 1,024 bytes": {"r": text(1024)},
    "range key of 1,024 bytes in UTF-8": {"r": {"S": "é" * 512}},
    "index range key of 1,024 bytes, local": {"loc": text(1024)},
    "index hash key of 2,048 bytes": {"gh": text(2048)},
    "index range key of 1,024 bytes": {"gh": text(1), "gr": {"B": b"x" * 1024}},
    "index number key": {"num": number("-1.5")},
    "index hash key alone": {"gh": text(1)},
    "index range key alone": {"gr": {"B": b"x"}},
    "empty string and binary that are no keys": {"s": text(0), "b": {"B": b""}},
    "empty map and list": {"m": {"M": {}}, "l": {"L": []}},
    "31 maps around a string": {"a": nested(31, text(1))},
    "31 lists around a string": {"a": nested(31, text(1), "L")},
    "31 maps around a set": {"a": nested(31, {"SS": ["a"]})},
    "30 lists around an empty map": {"a": nested(30, {"M": {}}, "L")},
    "largest number": {"a": number("9." + "9" * 37 + "E+125")},
    "largest negative number": {"a": number("-9." + "9" * 37 + "E+125")},
    "smallest number": {"a": number("1E-130")},
    "number of 38 digits": {"a": number("1" * 38)},
    "number of 38 digits, and zeros around": {"a": number("00" + "1" * 38 + "0" * 10)},
    "400 KB": {"f": text(_ROOM)},
    "400 KB in UTF-8": {"f": {"S": "é" * (_ROOM // 2) + "x" * (_ROOM % 2)}},
    "400 KB in a list of bytes": {"f": {"L": [{"B": b"x" * (_ROOM - 4)}]}},
    "400 KB in a map": {"f": {"M": {"ab": text(_ROOM - 6)}}},
}
REFUSED: Final[dict[str, dict[str, Any]]] = {
    "hash key of 2,049 bytes": {"h": text(2049)},
    "hash key that is too long for another index": {"h": text(1025)},
    "range key of 1,025 bytes": {"r": text(1025)},
    "range key of 1,026 bytes in UTF-8": {"r": {"S": "é" * 513}},
    "hash key that is empty": {"h": text(0)},
    "range key that is empty": {"r": text(0)},
    "hash key of another type": {"h": number("1")},
    "range key of another type": {"r": {"NULL": True}},
    "index range key of 1,025 bytes, local": {"loc": text(1025)},
    "index range key that is empty, local": {"loc": text(0)},
    "index range key of another type, local": {"loc": {"B": b"x"}},
    "index hash key of 2,049 bytes": {"gh": text(2049)},
    "index hash key that is empty": {"gh": text(0)},
    "index hash key of another type": {"gh": {"SS": ["x"]}},
    "index hash key that is null": {"gh": {"NULL": True}},
    "index range key of 1,025 bytes": {"gh": text(1), "gr": {"B": b"x" * 1025}},
    "index range key of 1,025 bytes, alone": {"gr": {"B": b"x" * 1025}},
    "index range key that is empty": {"gr": {"B": b""}},
    "index number key of another type": {"num": text(1)},
    "empty set of strings": {"a": {"SS": []}},
    "empty set of numbers in a list": {"a": {"L": [{"NS": []}]}},
    "empty set of binaries in a map": {"a": {"M": {"b": {"BS": []}}}},
    "set with an element twice": {"a": {"SS": ["a", "a"]}},
    "set with a number twice": {"a": {"NS": ["1", "1.0"]}},
    "32 maps around a string": {"a": nested(32, text(1))},
    "32 lists around a string": {"a": nested(32, text(1), "L")},
    "31 lists around an empty map": {"a": nested(31, {"M": {}}, "L")},
    "number too large": {"a": number("1E+126")},
    "number too large, negative": {"a": number("-1E+126")},
    "number too small": {"a": number("9E-131")},
    "number of 39 digits": {"a": number("1" * 39)},
    "number of 39 digits behind the point, in a map": {"a": nested(1, number("0." + "1" * 39))},
    "no number": {"a": number("one")},
    "empty name": {"": text(1)},
    "empty name in a map": {"a": {"M": {"": text(1)}}},
    "value of no type": {"a": {}},
    "null that is false": {"a": {"NULL": False}},
    "400 KB and a byte": {"f": text(_ROOM + 1)},
    "400 KB and a byte in UTF-8": {"f": {"S": "é" * (_ROOM // 2) + "x" * (_ROOM % 2 + 1)}},
    "400 KB and a byte in a list": {"f": {"L": [{"B": b"x" * (_ROOM - 3)}]}},
    "400 KB and a byte in a map": {"f": {"M": {"ab": text(_ROOM - 5)}}},
}
ITEMS: Final = {name: {**KEY, **attributes} for name, attributes in {**STORED, **REFUSED}.items()} | {
    "no range key": {"h": text(1)},
    "no hash key": {"r": text(1)},
}
