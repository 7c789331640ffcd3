"""What DynamoDB can store: an item is checked here before it is too late to refuse it.

A change that waits inside the mark of its item is no attribute yet, so DynamoDB does not check it. If DynamoDB refused
it after the decision, the transaction could not be completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pynamo_locking._expressions.refusals import Refusal
from pynamo_locking._expressions.values import canonical_item, item_size, size_of, type_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The largest values of key attributes, in bytes.
LARGEST_KEYS: Final = {"hash": 2048, "range": 1024}

#: The largest item, in bytes, names included.
LARGEST_ITEM: Final = 400 * 1024

#: The longest expression, in bytes: it updates 315 attributes inside a lock, 329 outside.
LONGEST_EXPRESSION: Final = 4096

#: Actions of a native transaction.
MOST_ACTIONS: Final = 100

#: Keys of a BatchGetItem.
MOST_KEYS: Final = 100

#: Statements of a BatchExecuteStatement; with 1, none is sent.
MOST_STATEMENTS: Final = 25

#: The most item bytes of a native transaction: DynamoDB's 4 MB, less what names and expressions take.
MOST_BYTES: Final = 3_800_000

#: The largest entry of a queue, in bytes, with its ticket and the longest label, but without the ends of a range.
LARGEST_ENTRY: Final = 512

#: So many entries may be in one queue: the largest ones take half of an item.
MOST_WAITERS: Final = LARGEST_ITEM // 2 // LARGEST_ENTRY

_TYPE_NAMES: Final = {
    "S": "a string",
    "N": "a number",
    "B": "binary",
    "SS": "a set of strings",
    "NS": "a set of numbers",
    "BS": "a set of binaries",
    "M": "a map",
    "L": "a list",
    "BOOL": "a boolean",
    "NULL": "null",
}


@dataclass(frozen=True)
class KeyRule:
    """A key attribute of a table or an index.

    Attributes:
        name: the attribute, as it is stored.
        type: its type: ``S``, ``N`` or ``B``.
        role: which part of the key it is.
        index: whose key; None for the table's own, which every item must have.
    """

    name: str
    type: str
    role: Literal["hash", "range"]
    index: str | None = None

    @property
    def label(self) -> str:
        of_index = "" if self.index is None else f" of the index {self.index!r}"
        return f"the {self.role} key {self.name!r}{of_index}"


def problems(image: Mapping[str, Mapping[str, Any]], keys: Iterable[KeyRule]) -> list[str]:
    """Return why DynamoDB would not store an item; an empty list if it would.

    Not checked, because the item alone does not show it: a local secondary index has at most 10 GB for one hash key,
    and 400 KB for an item together with its entries in all local secondary indexes.

    Args:
        image: the item in DynamoDB's JSON form, with binary values as bytes.
        keys: the key attributes of its table and of all indexes. Only the first of several equal rules is reported.

    Returns:
        One text for each problem: attributes in their order, then keys in theirs, then the size of the item.
    """
    found, stored = list[str](), dict[str, dict[str, Any]]()
    for name, value in image.items():
        try:
            stored |= canonical_item({name: value})
        except Refusal as refusal:
            found.append(f"the attribute {name[:40]!r} cannot be stored: {refusal.message}")
    for key in _distinct(keys):
        if key.name in stored:
            found += _wrong_key(key, stored[key.name])
        elif key.name not in image and key.index is None:
            found.append(f"{key.label} is missing")
    size = item_size(stored)
    if size > LARGEST_ITEM:
        found.append(f"the item has {size:,} bytes, and DynamoDB stores at most {LARGEST_ITEM:,}")
    return found


def _distinct(keys: Iterable[KeyRule]) -> list[KeyRule]:
    first = dict[tuple[str, str, str], KeyRule]()
    for key in keys:
        first.setdefault((key.name, key.type, key.role), key)
    return list(first.values())


def _wrong_key(key: KeyRule, value: dict[str, Any]) -> list[str]:
    actual = type_of(value)
    if actual != key.type:
        return [f"{key.label} is {_TYPE_NAMES[actual]}, and must be {_TYPE_NAMES[key.type]}"]
    if not value[actual]:
        return [f"{key.label} is empty"]
    size, largest = size_of(value), LARGEST_KEYS[key.role]
    return [f"{key.label} has {size:,} bytes, and may have {largest:,}"] if size > largest else []
