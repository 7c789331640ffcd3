"""The fencing condition: what a write says of the lock, whether it is held or must not be."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pynamo_locking._io import lock_record, runtime
from pynamo_locking._io.stored_rows import Place, Stored, known_format, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._locks.local_queue import Handover


def entry_in_queue(held: HeldEntry) -> Condition:
    """Our entry is in the queue.

    The condition names the ticket: a late copy of the request to enter could bring the id back after we left, under
    another ticket, and a late copy of a write must not find it.
    """
    mine: Condition = _entered(held) & known_format(held.row.attribute)
    return mine


def _entered(held: HeldEntry) -> Condition:
    entered: Condition = _entry(held)[lock_record.TICKET] == Stored(number(held.entry.ticket))
    return entered


def held_without_later_write(held: HeldEntry, number: int) -> Condition:
    """Our entry is in the queue, no later write of ours was applied, and no transaction has the item."""
    standing: Condition = (
        _entered(held) & (_writes(held) < Stored({"N": str(number)})) & has_no_intent(held.row.attribute)
    )
    return standing


def store_write_number(held: HeldEntry, number: int) -> Action:
    """Store the number of the write in our entry."""
    return _writes(held).set(Stored({"N": str(number)}))


def remove_own_entry(held: HeldEntry) -> list[Action]:
    return [_entry(held).remove()]


def add_next_entry(held: HeldEntry, after: Handover | None) -> list[Action]:
    """Store the entry of the next caller of this process, in the write that removes ours."""
    if after is None:
        return []
    lock, new = Place(held.row.attribute), after.new
    place, upcoming = lock[lock_record.QUEUE][new.id], lock[lock_record.NEXT]
    stored = Stored(new.stored(runtime.current.time_ms(), after.ticket))
    actions: list[Action] = [place.set(stored)]
    if after.ticket is None:
        actions = [place.set(upcoming.append(stored)), upcoming[0].set(upcoming[0] + Stored(number(new.members)))]
    return actions + _times(held.row, new.lease)


def _times(row: LockRow, lease: float) -> list[Action]:
    """Store when a lease ends that is taken now, beside the lock; as `lock_requests` do."""
    if row.ttl_attribute is None:
        return []
    ends, shown = row.ends(lease)
    kept = Place(row.attribute, lock_record.SUCCESS, lock_record.KEPT) | Stored(number(row.kept_s))
    return [
        Place(row.ttl_attribute).set(kept + Stored(ends)),
        Place(lock_record.LEASE_ENDS).set(Stored(shown)),
    ]


def queue_is_empty(row: LockRow) -> Condition:
    """The queue is empty or there is none, and neither a transaction nor another program has the item."""
    return _queue_is_empty(row.attribute, row.hash_name if row.may_create else None)


@functools.cache
def _queue_is_empty(attribute: str, hash_name: str | None) -> Condition:
    queue = Place(attribute, lock_record.QUEUE)
    free: Condition = (queue.does_not_exist() | (queue == Stored(lock_record.EMPTY))) & has_no_intent(attribute)
    if hash_name is not None:
        free &= Place(hash_name).does_not_exist() | Place(attribute).is_type("M")
    return free


def not_entered_since(row: LockRow, seen: LockState) -> Condition:
    """The queue is empty or there is none, or no entry has come since this document was seen."""
    lock = Place(row.attribute)
    free: Condition = lock[lock_record.QUEUE].does_not_exist() | (lock[lock_record.QUEUE] == Stored(lock_record.EMPTY))
    if seen.exists:
        is_same = lock[lock_record.SINCE] == Stored(number(seen.since))
        free |= is_same & (lock[lock_record.NEXT][0] == Stored(number(seen.next_ticket)))
    free &= known_format(row.attribute)
    return free


def create_lock_attribute(row: LockRow) -> list[Action]:
    """Create the lock attribute of a row that is there for locks alone, before the lock is ever acquired."""
    path = Place(row.attribute)
    return [path.set(path | Stored(lock_record.EMPTY))] if row.may_create else []


def has_no_intent(lock_name: str) -> Condition:
    """No transaction of many items has the item, whose decision the write could overwrite; nor has a newer release."""
    condition: Condition = Place(lock_name, lock_record.TX).does_not_exist() & known_format(lock_name)
    return condition


def has_intent_of(lock_name: str, transaction_id: str) -> Condition:
    condition: Condition = Place(lock_name, lock_record.TX, lock_record.TX_ID) == transaction_id
    condition &= known_format(lock_name)
    return condition


def lock_record_unchanged(row: LockRow, raw: Mapping[str, Any] | None) -> Condition:
    """The whole lock document is as it was loaded: for a Put, which overwrites it."""
    path = Place(row.attribute)
    if row.may_create and not raw:
        free: Condition = Place(row.hash_name).does_not_exist() | (path == Stored(lock_record.EMPTY))
        return free
    return path.does_not_exist() if raw is None else path == Stored({"M": raw})


def _entry(held: HeldEntry) -> Place:
    return Place(held.row.attribute, lock_record.QUEUE, held.entry.id)


def _writes(held: HeldEntry) -> Place:
    return _entry(held)[lock_record.FACTS][lock_record.WRITES]
