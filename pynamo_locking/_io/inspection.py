"""What people do to a lock from outside: look at its queue, and break it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pynamodb.expressions.operand import Path

from pynamo_locking._io import events, flaws, records, requests, runtime
from pynamo_locking._io.operands import Stored
from pynamo_locking._io.requests import Refused, Unavailable
from pynamo_locking.exceptions import LockingError, OutcomeUnknown

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.queue import LockState
    from pynamo_locking._io.requests import Row

_ATTEMPTS: Final = 4


def has_entries(attribute: str) -> Condition:
    """Return the condition that the lock in an item has a holder or a waiter, or that it has no queue, for scans.

    Args:
        attribute: stored name of the lock attribute.
    """
    queue = Path([attribute, records.QUEUE])
    condition: Condition = (is_made(attribute) | queue.exists()) & ~(queue == Stored(records.EMPTY))
    return condition


def is_made(attribute: str) -> Condition:
    """Return the condition that an item has a lock document, used or not."""
    return Path([attribute, records.NEXT]).exists()


def has_mark(attribute: str) -> Condition:
    """Return the condition that a transaction has an item."""
    return Path([attribute, records.TX]).exists()


def state(row: Row) -> LockState:
    """Read the lock document, which may be broken."""
    try:
        return requests.patiently(lambda: requests.look_at_document(row))
    except Unavailable as error:
        raise LockingError(f"no answer to a look at {row.label}: {error}. Try again.", cause=error.cause) from error


def repair(row: Row) -> bool:
    """Replace a lock document that is broken by a sound one; return whether it was.

    Entries that cannot be read are gone then: their owners find that out as after the deletion of the document.
    """
    was_broken = False
    for _ in range(_ATTEMPTS):
        now = state(row)
        if now.raw is None or not now.unreadable:
            return was_broken
        was_broken = True
        sound = records.mended(now.raw, runtime.current.time_us())
        try:
            requests.patiently(lambda old=now.raw, new=sound: requests.replace(row, old, new))  # type: ignore[misc]
        except Refused:
            continue  # it was changed between the look and the repair, or this was a second copy
        except Unavailable as error:
            raise OutcomeUnknown(
                f"no answer to the repair of {row.label}; look at its state.", cause=error.cause
            ) from error
        return True
    raise OutcomeUnknown(f"the lock document of {row.label} was changed faster than it could be repaired; try again.")


def break_entry(row: Row, ticket: int) -> bool:
    """Remove the entry with that ticket; return whether it was there."""
    since = 0
    for _ in range(_ATTEMPTS):
        now = flaws.trusted(row, state(row))
        found = tuple(entry for entry in now.entries if entry.ticket == ticket)
        if not found:  # not by our first copy, whose answer got lost?
            return now.was_evicted(ticket, since) is True
        since = now.since
        try:
            requests.patiently(lambda found=found, now=now: requests.evict(row, found, now.evicted))  # type: ignore[misc]
        except Refused:
            continue  # it was renewed, or left, between the look and the removal
        except Unavailable as error:
            raise OutcomeUnknown(
                f"no answer to the removal of ticket {ticket} from {row.label}; look at its state.",
                cause=error.cause,
            ) from error
        if events.listeners:
            events.tell.evicted(row, found, is_forced=True)
        return True
    raise OutcomeUnknown(f"ticket {ticket} of {row.label} was renewed faster than it could be removed; try again.")
