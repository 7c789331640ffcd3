"""Items that DynamoDB deletes by itself once their time is over: its TTL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pynamo_locking_testing._engine.wire import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking_testing._tables import Record, Store


@dataclass
class Expiry:
    """The rule of one table. An item goes at any moment after its time, or never.

    Attributes:
        table: the name of the table.
        attribute: where an item has its time, in s since the epoch.
        left: how many items may still be deleted; None for all.
        underway: those that are expired and are going to be looked at.
    """

    table: str
    attribute: str
    left: int | None = None
    underway: set[Place] = field(default_factory=set)

    def found(self, store: Store, now_ms: int) -> Iterator[Place]:
        """Yield the items that are expired and not underway yet."""
        if self.table not in store.tables or self.left == 0:
            return
        for record in store.tables[self.table].primary.scan(None, 0, 1):
            place = Place(self.table, record.key)
            if place not in self.underway and self.is_over(record, now_ms):
                self.underway.add(place)
                yield place

    def is_over(self, record: Record | None, now_ms: int) -> bool:
        expires = {} if record is None else record.item.get(self.attribute, {})
        return "N" in expires and int(expires["N"]) * 1000 < now_ms

    def takes(self, place: Place, record: Record | None, now_ms: int) -> bool:
        """Tell whether an item that was found goes now, and count it. It may be gone, or live longer by now."""
        self.underway.discard(place)
        if self.left == 0 or not self.is_over(record, now_ms):
            return False
        self.left = None if self.left is None else self.left - 1
        return True
