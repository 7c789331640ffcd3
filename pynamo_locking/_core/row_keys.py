"""Names and keys of the package's own rows, and names and times that are shown to people. Pure."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from pynamo_locking._core.dynamodb import LARGEST_KEYS
from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.values import LARGEST_EXPONENT, MOST_DIGITS, SMALLEST_EXPONENT, Refusal, stored_number

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


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
    try:
        encoded = [canonical_number(value) if kind == "N" else quote(value, safe="") for kind, value in key]
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a key, or a unique value, is no text: {error}.") from error
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
        raise InvalidInput(f"a number key must be a number, not {value!r:.80}.") from None
    if not number.is_finite():
        raise InvalidInput(f"a number key must be finite, not {value!r}.")
    try:
        return stored_number(number)
    except Refusal:
        raise InvalidInput(
            f"a number key must have at most {MOST_DIGITS} digits and lie between 1E{SMALLEST_EXPONENT} and "
            f"1E{LARGEST_EXPONENT + 1}, unlike {value!r:.80}."
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


def cut(text: str) -> str:
    """Return a text of at most the length of an owner's longest label: a key may have 2,048 bytes."""
    return text if len(text) <= LONGEST_OWNER else f"{text[:LONGEST_OWNER]}..."


def spelled(value: str | int) -> str:
    """Return a text or a whole number as DynamoDB gets it.

    An `Enum` that is a text has other words in a format string, and other ones in each release of Python.
    """
    return str.__str__(value) if isinstance(value, str) else int.__repr__(value)


def brief(text: object) -> str:
    """Return a key or a name for logs and messages: `plain`, and cut."""
    return plain(cut(str(text)))


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


#: The size limit of a prefix, in bytes: it leaves room for names.
_LONGEST_PREFIX: Final = 512


class OwnKeys(NamedTuple):
    """How a row of ours is named.

    Attributes:
        hash_name: stored name of the hash key.
        range_name: of the range key; empty in a table of our own, which has none.
        prefix: what the hash key begins with, before the name of the row.
        kind: what the range key begins with, before a ``#`` and the name again. The name is in both keys, so that
            neither the table nor an index with the keys exchanged has all locks in one partition, and that a key
            belongs to one prefix, even if another prefix begins with it.
    """

    hash_name: str
    range_name: str = ""
    prefix: str = ""
    kind: str = ""

    @classmethod
    def declared(cls, meta: Any, kind: str, hash_name: str, taken: Collection[str], owner: str) -> OwnKeys:
        """Return the keys that a class declares by ``Meta.keys`` and ``Meta.prefix``; without them its own hash key.

        Raises:
            ConfigurationError: what it declares cannot work.
        """
        names, prefix = getattr(meta, "keys", None), getattr(meta, "prefix", None)
        if names is None and prefix is None:
            return cls(hash_name)
        if not (isinstance(names, (tuple, list)) and [*map(type, names)] == [str, str] and names[0] != names[1]):
            raise _invalid(
                owner, f"Meta.keys names the hash key and the range key of the table, as in ('pk', 'sk'), not {names!r}"
            )
        if not isinstance(prefix, str) or not 0 < len(prefix.encode(errors="surrogatepass")) <= _LONGEST_PREFIX:
            raise _invalid(owner, f"Meta.prefix is a text of 1 to {_LONGEST_PREFIX} bytes, and not {prefix!r}")
        if used := sorted({*names} & {*taken}):
            raise _invalid(owner, f"its rows have an attribute {used[0]!r} of their own, which is a key in Meta.keys")
        return cls(names[0], names[1], prefix, kind)

    @property
    def is_shared(self) -> bool:
        """Whether the table has items of other programs."""
        return bool(self.range_name)

    @property
    def longest_name(self) -> int:
        """The size limit of the name of a row, in bytes."""
        longest = LARGEST_KEYS["hash"] - len(self.prefix.encode())
        return min(longest, LARGEST_KEYS["range"] - len(self.kind) - 1) if self.is_shared else longest

    def of(self, name: str) -> dict[str, Any]:
        """Return the key of a row in DynamoDB's form."""
        return {key: {"S": begin + name} for key, begin in self.begins.items()}

    @property
    def begins(self) -> dict[str, str]:
        """What the keys of our rows begin with, by their stored names."""
        range_key = {self.range_name: f"{self.kind}#"} if self.is_shared else {}
        return {self.hash_name: self.prefix, **range_key}

    def name_in(self, image: Mapping[str, Any]) -> str | None:
        """Return the name of a stored row; None if its key is none of ours."""
        name = str(image.get(self.hash_name, {}).get("S", "")).removeprefix(self.prefix)
        return name if name and all(image.get(key) == value for key, value in self.of(name).items()) else None

    def alone(self, image: Mapping[str, Any], id_: str, names: Mapping[str, str]) -> dict[str, Any] | None:
        """Return a stored row with its name in the attribute `id_` and others renamed; None if it is none of ours."""
        name = self.name_in(image)
        if name is None:
            return None
        others = {stored: value for stored, value in image.items() if stored not in (*names, *names.values())}
        renamed = {known: image[stored] for stored, known in names.items() if stored in image}
        return {**others, **renamed, id_: {"S": name}}

    def filter(self) -> tuple[str, dict[str, str], dict[str, Any]]:
        """Return the condition that only our rows in a shared table fulfil, to put before others; its names and values.

        Empty in a table of our own.
        """
        begins = [*self.begins.items()] if self.is_shared else []
        condition = "".join(f"begins_with(#k{i}, :k{i}) AND " for i in range(len(begins)))
        names = {f"#k{i}": name for i, (name, _) in enumerate(begins)}
        return condition, names, {f":k{i}": {"S": begin} for i, (_, begin) in enumerate(begins)}

    def place(self, table: str) -> str:
        """Return the table, and the prefix in it: what intents name. No name of a table has a ``#``."""
        return f"{table}#{self.prefix}" if self.is_shared else table


def _invalid(owner: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{owner} cannot be kept in a table of other items: {what}. Set both Meta.keys and Meta.prefix, or neither for "
        f"a separate table."
    )
