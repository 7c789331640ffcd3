"""Names of lock rows, unique for each key of a table, and names and times that are shown to people. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from urllib.parse import quote

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.limits import LARGEST_KEYS
from pynamo_locking._expressions.refusals import Refusal
from pynamo_locking._expressions.values import LARGEST_EXPONENT, MOST_DIGITS, SMALLEST_EXPONENT, stored_number

#: No name of `row_name` begins like this: it encodes ``#`` as %23.
GUARD_PREFIX: Final = "guard#"

#: The longest label of an owner, in bytes of UTF-8. One item has all labels of a queue.
LONGEST_OWNER: Final = 256


def row_name(table: str, key: tuple[tuple[str, Any], ...], longest: int = LARGEST_KEYS["hash"]) -> str:
    """Return the name of the lock row of one item: ``table/hash`` or ``table/hash/range``.

    Parts are percent-encoded, so that a slash inside a key is no separator. Numbers are written in one form, since 1,
    1.0 and 1e0 are the same key for DynamoDB. A name too long for a key ends in a digest after ``#``, a character that
    no encoded part contains.

    Args:
        table: the name of the table.
        key: type and serialized value of the hash key, then of the range key if there is one.
        longest: the size limit of a name in that table of locks, in bytes; see `OwnKeys`.
    """
    encoded = (canonical_number(value) if kind == "N" else quote(value, safe="") for kind, value in key)
    parts = [quote(table, safe=""), *encoded]
    name = "/".join(parts)
    if len(name) <= longest:
        return name
    return f"{parts[0]}/#{hashlib.sha256(name.encode()).hexdigest()}"


def guard_name(table: str, *hash_key: tuple[str, Any], longest: int = LARGEST_KEYS["hash"]) -> str:
    """Return the name of the row that guards a hash key, or a table. It is never the name of an item's lock row."""
    name = row_name(table, hash_key, longest)
    if len(GUARD_PREFIX) + len(name) <= longest:
        return GUARD_PREFIX + name
    return f"{GUARD_PREFIX}#{hashlib.sha256(name.encode()).hexdigest()}"


def table_name(table: str) -> str:
    """Return the name of the lock of all items of a table."""
    return f"table#{quote(table, safe='')}"


def turn_name(guard: str) -> str:
    """Return the name of the lock in whose queue the writers of a guard take their turns."""
    return f"turn#{guard.removeprefix(GUARD_PREFIX)}"


def canonical_number(value: str) -> str:
    """Return the one spelling of a number key."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ConfigurationError(f"a number key must be a number, not {value!r}.") from None
    if not number.is_finite():
        raise ConfigurationError(f"a number key must be finite, not {value!r}.")
    try:
        return stored_number(number)
    except Refusal:
        raise ConfigurationError(
            f"a number key must have at most {MOST_DIGITS} digits and lie between 1E{SMALLEST_EXPONENT} and "
            f"1E{LARGEST_EXPONENT + 1}, unlike {value!r}."
        ) from None


def checked_owner(owner: object) -> str:
    """Return the label of an owner if it is a string, and short enough for the shared item."""
    if not isinstance(owner, str):
        raise ConfigurationError(f"owner must be a string, the label for people, not {owner!r:.80}.")
    try:
        size = len(owner.encode())
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"owner is no text: {error}.") from None
    if size > LONGEST_OWNER:
        raise ConfigurationError(
            f"owner must have at most {LONGEST_OWNER} bytes in UTF-8, not {size:,}: {owner[:40]!r}..."
        )
    return owner


def shown_owner(stored: str) -> str:
    """Return a stored label of an owner, cut to the longest label that is allowed."""
    return stored if len(stored) <= LONGEST_OWNER else f"{stored[:LONGEST_OWNER]}..."


def plain(text: object) -> str:
    """Return text from a table for logs, messages and terminals: one line, without control characters."""
    return "".join(each if each.isprintable() else _escaped(ord(each)) for each in str(text))


def _escaped(number: int) -> str:
    width, letter = (2, "x") if number <= 0xFF else (4, "u") if number <= 0xFFFF else (8, "U")  # noqa: PLR2004 - as in Python
    return f"\\{letter}{number:0{width}x}"


def text_of_ms(epoch_ms: int) -> str | None:
    """Return a time as ISO 8601 in UTC; None if no calendar has it: a table may contain any number."""
    try:
        moment = datetime.fromtimestamp(epoch_ms / 1000, timezone.utc)
    except (OSError, OverflowError, ValueError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
