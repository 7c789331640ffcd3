"""Operations on a held entry: keep, renew, downgrade, read, leave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pynamo_locking._core.claims import SHARED
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io.retries import Unavailable
from pynamo_locking._items import expiry
from pynamo_locking._locks import cohorts, mailboxes
from pynamo_locking._locks.context import OWN_ENTRY
from pynamo_locking.exceptions import ItemNotFound, OutcomeUnknown, also

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.claims import Claim
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking._locks.target import LockTarget, M


def left(own: HeldEntry, image: Image | None) -> None:
    """Note that a write removed our entry, and wake waiters in this process."""
    cohorts.pass_on(own.caller, image)
    own.end()
    mailboxes.tell_waiters(own.row, image)


def keep(own: HeldEntry, begin_heartbeat: Callable[[HeldEntry], None]) -> None:
    """Make sure of an entry that was acquired again: its lease may have ended, and perhaps nothing renews it.

    Raises:
        LockLost: it is gone. This acquisition does not count.
        OutcomeUnknown: no answer. This acquisition does not count.
    """
    try:
        if not own.remaining:
            renew(own)
        begin_heartbeat(own)
    except BaseException:
        own.give_back()
        raise


def renew(own: HeldEntry) -> None:
    """Renew the lease.

    Raises:
        LockLost: the entry is gone.
        OutcomeUnknown: no answer.
    """
    try:
        own.renew()
    except Unavailable as error:
        certain = f"{own.remaining:.1f} s of the lease are certain. Try again."
        raise _unanswered(own, "renewal", error, certain) from error


def _unanswered(own: HeldEntry, request: str, error: Unavailable, advice: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"no answer to the {request} of {own}; {advice}", write_id=own.entry.id, cause=error.cause)


def refuse_expired(own: HeldEntry, target: LockTarget[M]) -> None:
    """Refuse the lock in an item that has expired.

    Raises:
        ItemNotFound: it has.
    """
    if not target.is_elsewhere and expiry.is_expired(target.model, own.image):
        raise also(ItemNotFound, target.model.DoesNotExist)(
            f"{target.row.label} has expired, and counts as absent: there is nothing to lock. Save it anew first."
        )


def must_read(own: HeldEntry, target: LockTarget[M]) -> bool:
    """Tell whether `item_of` makes a request."""
    is_known = own.copies.current is not None and not own.is_item_deleted
    return not is_known and (target.is_elsewhere or own.image is None)


def item_of(own: HeldEntry, target: LockTarget[M]) -> M:
    """Return the current instance of the locked item, shared by all nested blocks; read it if it is not known.

    Raises:
        DoesNotExist: there is no such item.
    """
    if must_read(own, target):
        found = target.read()
    else:
        known: M | None = own.copies.current
        if known is not None:
            return known
        assert own.image is not None  # noqa: S101 - else it must be read
        found = target.model.from_raw_data(own.image)
    vars(expiry.present(found))[OWN_ENTRY] = own
    given: M = own.copies.hand_out(found)
    return given


def downgrade(own: HeldEntry, claim: Claim) -> None:
    """Share a lock, which was acquired with that claim, from now on, unless it is shared already.

    Raises:
        LockLost, OutcomeUnknown, ConfigurationError: as `Lock.downgrade`.
    """
    held = own.entry.claim
    if held.permits > 1:
        raise ConfigurationError(f"{own.row.label} is a semaphore, which has no readers.")
    if claim.mode == SHARED or (held.mode == SHARED and not own.may_be_alone):
        return
    if not replace(claim, mode=held.mode).covers(held):
        raise ConfigurationError(
            f"{own.row.label} is held {held} here, and {claim} is only a part of that: all of it would be shared. "
            f"Downgrade the lock that has all of it, or take them one by one."
        )
    try:
        own.downgrade()
    except Unavailable as error:
        raise _unanswered(own, "downgrade", error, "doing it again is safe.") from error
