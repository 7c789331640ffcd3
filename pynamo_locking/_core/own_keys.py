"""The keys of our rows: in a table of their own, or under a prefix in a table of other items. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.limits import LARGEST_KEYS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: The size limit of a prefix, in bytes: it leaves room for names.
_LONGEST_PREFIX: Final = 512


@dataclass(frozen=True)
class OwnKeys:
    """How a row of ours is named.

    Attributes:
        hash_name: stored name of the hash key.
        range_name: of the range key; empty in a table of our own, which has none.
        prefix: what the hash key begins with, before the name of the row.
        kind: what the range key begins with, before a ``#`` and the name again. The name is in both keys, so that
            neither the table nor an index with the keys exchanged has all locks in one partition, and that a key
            belongs to one prefix, also if another prefix begins with it.
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
        if not (isinstance(prefix, str) and _is_short(prefix)):
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
        """Return the condition that only our rows in a shared table meet, for others behind it; its names and values.

        Empty in a table of our own.
        """
        begins = [*self.begins.items()] if self.is_shared else []
        condition = "".join(f"begins_with(#k{i}, :k{i}) AND " for i in range(len(begins)))
        names = {f"#k{i}": name for i, (name, _) in enumerate(begins)}
        return condition, names, {f":k{i}": {"S": begin} for i, (_, begin) in enumerate(begins)}

    def place(self, table: str) -> str:
        """Return the table, and the prefix in it: what marks name. No name of a table has a ``#``."""
        return f"{table}#{self.prefix}" if self.is_shared else table


def _is_short(prefix: str) -> bool:
    return 0 < len(prefix.encode(errors="surrogatepass")) <= _LONGEST_PREFIX


def _invalid(owner: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{owner} cannot be kept in a table of other items: {what}. Set both Meta.keys and Meta.prefix, or neither for "
        f"a table of its own."
    )
