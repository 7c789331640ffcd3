"""Operations on a held entry: keep, renew, downgrade, read, leave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pynamo_locking._core.claims import SHARED
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._io import answers, bell, lock_requests, retries, runtime
from pynamo_locking._io.retries import Refused, Unavailable
from pynamo_locking._items import expiry
from pynamo_locking._locks import cohorts, mailboxes
from pynamo_locking._locks.context import OWN_ENTRY
from pynamo_locking.exceptions import ItemNotFound, OutcomeUnknown, also

if TYPE_CHECKING:
    from pynamo_locking._core.claims import Claim
    from pynamo_locking._core.queue import Success
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking._locks.target import LockTarget, M


_NOTE: Final = "request to note a success"
_MAY_BE_NOTED: Final = "the success may or may not be noted. If it is not, the job runs again in this period."


def left(held: HeldEntry, image: Image | None) -> None:
    """Note that a write removed our entry, and wake waiters. A transaction returns no image: then those we know of."""
    cohorts.pass_on(held.caller, image)
    held.end()
    mailboxes.tell_waiters(held.row, image)
    if image is None and held.behind and held.entry.members == 1:  # else the next caller is in this process
        bell.ring(held.behind)


def renew(held: HeldEntry) -> None:
    """Renew the lease.

    Raises:
        LockLost: the entry is gone.
        OutcomeUnknown: no answer.
    """
    try:
        began = runtime.current.monotonic()
        held.renew()
        held.progressed_at = max(began, held.progressed_at)
    except Unavailable as error:
        certain = f"{held.remaining:.1f} s of the lease are certain. Try again."
        raise _unanswered(held, "renewal", error, certain) from error


def succeed(held: HeldEntry, success: Success, kept_s: int) -> None:
    """Leave the queue, and note in the same request that the job has succeeded; see `lock_requests.succeed`.

    Raises:
        LockLost: the entry is gone, and nothing was noted.
        OutcomeUnknown: no answer. The entry is still to be removed.
    """
    with held.writing(), held.going():
        try:
            image: Image | None = retries.patiently(
                lambda: lock_requests.succeed(
                    held.row, held.entry, success, kept_s, want_image=mailboxes.has_waiters(held.row)
                )
            )
        except Refused as refused:
            image = refused.image
            try:
                state = held.row.state(image)
            except LockingError as reason:  # broken, or of a newer release: nothing shows what became of a first copy
                if not refused.repeated:
                    raise
                first = f"no answer to the first {_NOTE} of {held}; {_MAY_BE_NOTED} Since then: {reason}"
                raise OutcomeUnknown(first, write_id=held.entry.id, cause=reason) from reason
            is_noted = state.success is not None and state.success.ticket == held.entry.ticket  # by a first copy
            # Or a later run has noted its own since: only that copy, or an eviction, can have removed our entry.
            if not is_noted and state.was_evicted(held.entry.ticket, held.possession.since) is not False:
                raise held.absent_from(state, is_removal=True) from refused
        except Unavailable as error:
            raise _unanswered(held, _NOTE, error, _MAY_BE_NOTED) from error
    left(held, image or None)


def ensure(held: HeldEntry, wanted: float) -> None:
    """Renew the lease unless so many seconds are left.

    Raises:
        LockLost, OutcomeUnknown, ConfigurationError: as `Lock.ensure`.
    """
    if wanted >= held.entry.lease:
        raise ConfigurationError(
            f"ensure({wanted:g} s) can never hold: the lease is {held.entry.lease:g} s. Use a longer lease."
        )
    if held.possession.reason:
        raise held.loss()
    if held.remaining < wanted:
        renew(held)


def progress(held: HeldEntry) -> None:
    """Note that the work under the lock goes on.

    Raises:
        LockLost: the entry is gone, or was held or silent for too long.
    """
    if not held.is_allowed() and held.possession.reason:
        raise held.loss()
    held.progressed_at = runtime.current.monotonic()


def _unanswered(held: HeldEntry, request: str, error: Unavailable, advice: str) -> OutcomeUnknown:
    said = "no answer to" if answers.is_ambiguous(error.cause) else "DynamoDB has refused for now"
    return OutcomeUnknown(f"{said} the {request} of {held}; {advice}", write_id=held.entry.id, cause=error.cause)


def refuse_expired(held: HeldEntry, target: LockTarget[M]) -> None:
    """Refuse the lock in an item that has expired.

    Raises:
        ItemNotFound: it has.
    """
    if not target.is_elsewhere and expiry.is_expired(target.model, held.image):
        raise also(ItemNotFound, target.model.DoesNotExist)(
            f"{target.row.label} has expired, and counts as absent: there is nothing to lock. Save it anew first."
        )


def must_read(held: HeldEntry, target: LockTarget[M]) -> bool:
    """Tell whether `item_of` makes a request."""
    is_known = held.copies.current is not None and not held.is_item_deleted
    return not is_known and (target.is_elsewhere or held.image is None)


def item_of(held: HeldEntry, target: LockTarget[M]) -> M:
    """Return the current instance of the locked item, shared by all nested blocks; read it if it is not known.

    Raises:
        DoesNotExist: there is no such item.
    """
    if must_read(held, target):
        found = target.read()
    else:
        known: M | None = held.copies.current
        if known is not None:
            return known
        assert held.image is not None  # noqa: S101 - else it must be read
        found = target.model.from_raw_data(held.image)
    vars(expiry.present(found))[OWN_ENTRY] = held
    given: M = held.copies.hand_out(found)
    return given


def downgrade(held: HeldEntry, claim: Claim) -> None:
    """Share a lock, which was acquired with that claim, from now on, unless it is shared already.

    Raises:
        LockLost, OutcomeUnknown, ConfigurationError: as `Lock.downgrade`.
    """
    have = held.entry.claim
    if have.permits > 1:
        raise ConfigurationError(f"{held.row.label} is a semaphore, which has no readers.")
    if claim.mode == SHARED or (have.mode == SHARED and not held.may_be_alone):
        return
    if not replace(claim, mode=have.mode).covers(have):
        raise ConfigurationError(
            f"{held.row.label} is held {have} here, and {claim} is only a part of that: all of it would be shared. "
            f"Downgrade the lock that has all of it, or acquire them one by one."
        )
    try:
        held.downgrade()
    except Unavailable as error:
        raise _unanswered(held, "downgrade", error, "doing it again is safe.") from error
