"""Models whose rows must not overlap, a sweep that says whether they do, and rows that are not in their place yet."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pynamodb.attributes import NumberAttribute, UnicodeAttribute, UTCDateTimeAttribute
from pynamodb.models import Model

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    NamedLock,
    TransactionTable,
    TTLAttribute,
    VersionAttribute,
)
from pynamo_locking.intervals import IntervalMixin
from tests.support.models import declare, meta
from tests.support.transaction_models import rows_of
from tests.support.wire import on

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Guards and range locks.
SlotLocks = declare("SlotLocks", NamedLock, table_name="slot-locks")
#: For what does not fit into a native transaction.
SlotTransactions = declare("SlotTransactions", TransactionTable, table_name="slot-transactions")


class Slot(IntervalMixin, LockableModel):
    """Numbers, the begin is the range key; locks in rows of their own; renamed attributes."""

    Meta = meta("slots", lock_table=SlotLocks, interval=("begin", "end"))

    device = UnicodeAttribute(hash_key=True, attr_name="pk")
    begin = NumberAttribute(range_key=True, attr_name="sk")
    end = NumberAttribute(attr_name="e")
    note = UnicodeAttribute(null=True)
    version = VersionAttribute()


class Booking(IntervalMixin, Model):
    """Times, the end is the range key; no locks; a number as hash key."""

    Meta = meta("bookings", lock_table=SlotLocks, interval=("begin", "end"))

    room = NumberAttribute(hash_key=True)
    end = UTCDateTimeAttribute(range_key=True)
    begin = UTCDateTimeAttribute()
    note = UnicodeAttribute(null=True)
    version = VersionAttribute()


class Lease(IntervalMixin, ExpiringMixin, LockableModel):
    """Strings; the lock in the row, so that any number of rows can be written at once; rows that expire."""

    Meta = meta("leases", lock_table=SlotLocks, transaction_table=SlotTransactions, interval=("first", "after"))

    owner = UnicodeAttribute(hash_key=True)
    first = UnicodeAttribute(range_key=True)
    after = UnicodeAttribute()
    note = UnicodeAttribute(null=True)
    expires = TTLAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


def slots(*ends: tuple[int, int], device: str = "d", **values: Any) -> list[Slot]:
    """New rows."""
    return [Slot(device, begin, end=end, **values) for begin, end in ends]


def stored_slots(device: str = "d") -> list[tuple[int, int]]:
    """Begin and end of all stored rows, in order."""
    return sorted((int(row.begin), int(row.end)) for row in Slot.query(device, consistent_read=True))


def overlaps_in(model: type[Model], hash_name: str, begin: str, end: str) -> list[Any]:
    """The sweep: neighbours of one hash key that overlap, in what DynamoDB has stored. Knows nothing of the package."""
    found, before = list[Any](), None
    rows = [(str(row[hash_name]), *(next(iter(row[name].items())) for name in (begin, end))) for row in rows_of(model)]
    for row in sorted(rows, key=lambda row: (row[0], float(row[1][1]) if row[1][0] == "N" else row[1][1])):
        of, (kind, first), (_, last) = row
        ends = (float(first), float(last)) if kind == "N" else (first, last)
        if before is not None and before[0] == of and ends[0] < before[1][1]:
            found.append((of, before[1], ends))
        before = (of, ends)
    return found


@contextmanager
def unapplied(model: type[Model], refusals: int = 1) -> Iterator[None]:
    """Leave the rows of the first native transaction out of their table, as DynamoDB may for a moment.

    Transactional reads of these rows are refused so many times; then the rows are in their place. What else is sent,
    above all the guard, is applied at once.
    """
    send, table = model._get_connection().connection.dispatch, model._get_connection().table_name
    names = [each["AttributeName"] for each in model._get_schema()["key_schema"]]
    hidden: list[tuple[dict[str, Any], dict[str, Any]]] = []  # key and item

    def hide() -> None:
        [body] = written.bodies
        for action in [each.get("Put") or each.get("Update") or {} for each in body["TransactItems"]]:
            if action.get("TableName") == table:
                key = action.get("Key") or {name: action["Item"][name] for name in names}
                hidden.append((key, send("GetItem", {"TableName": table, "Key": key})["Item"]))
                send("DeleteItem", {"TableName": table, "Key": key})

    def show() -> None:
        while hidden:
            send("PutItem", {"TableName": table, "Item": hidden.pop()[1]})

    def is_asked_for(body: dict[str, Any]) -> bool:
        asked = [each["Get"]["Key"] for each in body["TransactItems"]]
        return any(key in asked for key, _ in hidden)

    refusal = ("TransactionCanceledException", "TransactionConflict")
    reads = on("TransactGetItems", where=is_asked_for, nth=refusals + 1)
    with (
        on("TransactWriteItems").after(hide) as written,
        reads.before(show),
        on("TransactGetItems", where=is_asked_for, times=refusals).answer(*[refusal] * refusals),
    ):
        yield
