"""Which locks this context holds, and under which entry an item is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import runtime
from pynamo_locking._locks import held_entry

if TYPE_CHECKING:
    from pynamodb.models import Model

    from pynamo_locking._core.claims import Claim
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._locks.held_entry import HeldEntry

#: Where an item that came out of a lock remembers the entry it was read under.
OWN_ENTRY: Final = "_pynamo_locking_own_entry"


def own_entry_of(item: Model, row: LockRow) -> HeldEntry | None:
    """Return the entry under which an item is written: the one it was read under, or the context's.

    Raises:
        LockLost: that entry is known to be lost.
    """
    held: HeldEntry | None = vars(item).get(OWN_ENTRY)
    if held is not None and held.row is not row and held.row.identity != row.identity:
        held = None  # the item got another key since it was read
    if held is None or (held.possession.is_over and not held.possession.reason):
        held = held_entry.held_in_context(row)
    return usable(held)


def taken_here(row: LockRow, claim: Claim, last: HeldEntry | None) -> HeldEntry | None:
    """Return the entry of this thread or task that covers a claim; `last` if that does.

    Raises:
        ConfigurationError: an entry of this thread or task conflicts, behind which it would wait for ever.
    """
    if held_entry.holds_nothing():
        return None
    party = runtime.current.party()
    mine = [held for held in held_entry.all_held_in_context(row) if held.party == party]
    covering = [held for held in mine if held.entry.claim.covers(claim)]
    found = last if last in covering else next(iter(covering), None)
    in_the_way = next((held for held in mine if held.entry.claim.conflicts(claim)), None)
    if found is None and in_the_way is not None and not in_the_way.possession.is_copied:
        raise ConfigurationError(
            f"{row.label} is held {in_the_way.entry.claim} here, and {claim} was asked for: a lock is not upgraded, "
            f"since two holders that tried would wait for each other for ever. Acquire the whole lock from the start, "
            f"or release it, acquire it again, and read again."
        )
    return found


def usable(held: HeldEntry | None) -> HeldEntry | None:
    """Return an entry that a write may name, None if it has been released.

    Raises:
        LockLost: it is known to be lost.
        ConfigurationError: other parties may hold the lock as well, so it does not protect writes.
    """
    if held is None:
        return None
    if held.possession.reason:
        raise held.loss()
    if held.possession.is_over:
        return None
    held.check_alone()
    return held
