"""The fencing condition: what a write says of the lock, whether it is held or must not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamo_locking._io import lock_record, lock_requests, protocol
from pynamo_locking._io.stored_rows import Place, Stored, known_format, number

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.protocol import Filled
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._locks.local_queue import Handover


def entry_in_queue(held: HeldEntry) -> Condition:
    """Our entry is in the queue: a condition for callers."""
    ticket = Place(held.row.attribute, lock_record.QUEUE, held.entry.id)[lock_record.TICKET]
    mine: Condition = (ticket == Stored(number(held.entry.ticket))) & known_format(held.row.attribute)
    return mine


def for_held_entry(held: HeldEntry, write: int, after: Handover | None = None, *, is_kept: bool = True) -> Filled:
    """Return what a write asks of our entry, and does to it: counts itself, or removes it for the next one."""
    given = {**held.row.names, **lock_requests.naming(held.entry), ":write": number(write)}
    if is_kept:
        return protocol.FENCE + protocol.COUNT_WRITE, given
    if after is None:
        return protocol.FENCE + protocol.REMOVE_ENTRY, given
    clause, new = lock_requests.following(held.row, after.new, after.ticket)
    return protocol.FENCE + protocol.REMOVE_ENTRY + clause, given | new


def lock_is_free(row: LockRow) -> Filled:
    """Return what a write asks of an embedded lock that is not held here; it creates the lock of a row for locks."""
    return protocol.NOT_LOCKED_IN_ITS_ROW if row.may_create else protocol.NOT_LOCKED, row.names


def not_entered_since(row: LockRow, seen: LockState) -> Filled:
    """The queue is empty or there is none, or no entry has come since this document was seen."""
    if not seen.exists:
        return protocol.NO_ENTRY, row.names
    return protocol.NO_NEW_ENTRY, {**row.names, ":since": number(seen.since), ":next": number(seen.next_ticket)}


def has_no_intent(lock_name: str) -> Filled:
    """No transaction of many items has the item, whose decision the write could overwrite; nor has a newer release."""
    return protocol.NO_INTENT, {"#l": lock_name}
