"""The order in which a table or an index keeps its items."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.values import Item, comparable, item_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The hash and range value of an item, in a form that sorts; the hash value alone without a range key.
Key = tuple[Any, ...]
#: Where an item stands in a view: its hash value there, and what it is sorted by among its equals.
Place = tuple[Any, Key]

_HASHES: Final = 1 << 32


class Record:
    """A stored item, with its size in bytes. Never changed."""

    __slots__ = ("item", "key", "size")

    def __init__(self, key: Key, item: Item) -> None:
        self.key = key
        self.item = item
        self.size = item_size(item)


@dataclass(frozen=True)
class Schema:
    """The names of the hash key and the range key of a table or an index."""

    hash: str
    range: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Both names, or the one."""
        return (self.hash,) if self.range is None else (self.hash, self.range)


@dataclass
class _Partition:
    """The items of one hash value: by what they are sorted by, and this in order."""

    records: dict[Key, Record]
    order: list[Key]


class View:
    """The items of a table or of one of its indexes, by hash value and in the order of the range key.

    The table itself has no `name`. An index has only some `attributes` of an item; None stands for all of them.
    """

    def __init__(
        self, schema: Schema, name: str | None, *, is_local: bool = False, attributes: frozenset[str] | None = None
    ) -> None:
        self.schema = schema
        self.name = name
        self.is_local = is_local
        self.attributes = attributes
        self._partitions: dict[Any, _Partition] = {}
        self._hashes: list[tuple[int, Any]] = []  # the partitions, scattered as DynamoDB does

    def get(self, key: Key) -> Record | None:
        """Return an item of the table by its key."""
        partition = self._partitions.get(key[0])
        return None if partition is None else partition.records.get(key[1:])

    def image(self, item: Item) -> Item:
        """Return what the view has of an item."""
        if self.attributes is None:
            return item
        return {name: value for name, value in item.items() if name in self.attributes}

    def place(self, record: Record) -> Place | None:
        """Return where an item stands; None if an index leaves it out, for want of a key attribute."""
        if self.name is None:
            return record.key[0], record.key[1:]
        values = [record.item.get(name) for name in self.schema.names]
        if None in values:
            return None
        hash_value, *range_value = [comparable(value) for value in values if value is not None]
        return hash_value, (*range_value, *record.key)

    def replace(self, old: Record | None, new: Record | None) -> bool:
        """Put an item in the place of its predecessor; None for none. Tell whether that changed the view."""
        before = None if old is None else self.place(old)
        after = None if new is None else self.place(new)
        if before is not None and before != after:
            self._remove(before)
        if after is not None and new is not None:
            self._insert(after, new, is_new=before != after)
        return before != after or (after is not None and self.name is not None and self._differ(old, new))

    def _differ(self, old: Record | None, new: Record | None) -> bool:
        return old is None or new is None or self.image(old.item) != self.image(new.item)

    def _insert(self, place: Place, record: Record, *, is_new: bool) -> None:
        hash_value, sort = place
        partition = self._partitions.get(hash_value)
        if partition is None:
            partition = self._partitions[hash_value] = _Partition({}, [])
            insort(self._hashes, (scattered(hash_value), hash_value))
        if is_new:
            insort(partition.order, sort)
        partition.records[sort] = record

    def _remove(self, place: Place) -> None:
        hash_value, sort = place
        partition = self._partitions[hash_value]
        del partition.records[sort]
        del partition.order[bisect_left(partition.order, sort)]
        if not partition.order:
            del self._partitions[hash_value]
            del self._hashes[bisect_left(self._hashes, (scattered(hash_value), hash_value))]

    def query(
        self, hash_value: Any, bounds: Callable[[list[Key]], tuple[int, int]], start: Key | None, *, forward: bool
    ) -> Iterator[Record]:
        """Return the items of one hash value in order, after `start`, where the last page ended.

        `bounds` gives the places in the sorted items at which those in question begin and end.
        """
        partition = self._partitions.get(hash_value, _Partition({}, []))
        first, last = bounds(partition.order)
        if start is not None and forward:
            first = max(first, bisect_right(partition.order, start))
        elif start is not None:
            last = min(last, bisect_left(partition.order, start))
        places = range(first, last) if forward else range(last - 1, first - 1, -1)
        return (partition.records[partition.order[place]] for place in places)

    def scan(self, start: Place | None, segment: int, segments: int) -> Iterator[Record]:
        """Return the items of a segment after `start`, where the last page ended. Their order never changes."""
        begin = 0 if start is None else bisect_left(self._hashes, (scattered(start[0]), start[0]))
        for hashed, hash_value in self._hashes[begin:]:
            if hashed * segments // _HASHES != segment:
                continue
            partition = self._partitions[hash_value]
            is_first = start is not None and hash_value == start[0]
            first = bisect_right(partition.order, start[1]) if is_first and start is not None else 0
            for sort in partition.order[first:]:
                yield partition.records[sort]

    def __len__(self) -> int:
        return sum(len(partition.order) for partition in self._partitions.values())

    def sizes(self) -> int:
        """Return the size of all items."""
        return sum(record.size for partition in self._partitions.values() for record in partition.records.values())


def scattered(hash_value: Any) -> int:
    """Return a number for a hash value that looks random and is the same in every process."""
    if isinstance(hash_value, Decimal):
        hash_value = str(hash_value.normalize())
    return zlib.crc32(hash_value if isinstance(hash_value, bytes) else hash_value.encode())
