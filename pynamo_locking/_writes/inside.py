"""Sends the writes of an item that carries its own lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pynamo_locking._core.errors import LockingError
from pynamo_locking._core.outcome import EntryEffect, Outcome, judge
from pynamo_locking._io import answers, retries
from pynamo_locking._locks import cohorts, guards, mailboxes
from pynamo_locking._locks.holding import left
from pynamo_locking._writes.refusals import refusal

if TYPE_CHECKING:
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking._writes.write import Write


class Check(NamedTuple):
    """The check of a held entry by a write, and the effect of the write on the entry."""

    own: HeldEntry
    number: int
    kind: EntryEffect


def inside(own: HeldEntry, write: Write) -> dict[str, Any]:
    """Write an item that carries the lock that this context holds.

    Raises:
        LockLost: the entry is gone and nothing was written.
        OutcomeUnknown: no response tells whether the item was written.
        PynamoDBException: another condition of the write failed, or DynamoDB refused it.
    """
    with own.writing() as number:
        if write.kind is EntryEffect.KEEP:
            kwargs = write.kwargs(guards.standing(own, number), [guards.counting(own, number)])
            return _send(own, write, number, kwargs)
        finishes = write.kind is EntryEffect.FINISH
        after = cohorts.succession(own.caller, own.entry) if finishes else None
        if after is not None or (finishes and mailboxes.has_waiters(own.row)):
            write.return_values = "ALL_NEW"
        with own.going():
            kwargs = write.kwargs(guards.standing(own, number), [*guards.leaving(own), *guards.following(own, after)])
            data = _send(own, write, number, kwargs)
        left(own, data.get("Attributes") if finishes else None)
        return data


def _send(own: HeldEntry, write: Write, number: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a guarded write, and again after a lost response: the entry refuses a second copy."""

    def settle(error: Exception, in_doubt: bool) -> dict[str, Any]:  # noqa: FBT001
        image = answers.image_of(error)
        settle_inside(Check(own, number, write.kind), write, image, error, in_doubt)
        return {} if image is None else {"Attributes": image}

    return retries.send(
        lambda _: write.dispatch(kwargs), settle, write.failed, lambda error: write.unknown(error, own.write_id(number))
    )


def settle_inside(
    check: Check,
    write: Write,
    image: Image | None,
    error: Exception,
    repeated: bool,  # noqa: FBT001
) -> None:
    """Return if an earlier copy of a refused write was applied; otherwise raise the error."""
    own = check.own
    try:
        outcome = judged(check, image, repeated)
    except LockingError as reason:  # the lock document is broken, so nothing shows the outcome
        if repeated:
            raise write.unknown(error, own.write_id(check.number)) from reason
        raise
    if outcome is Outcome.APPLIED:
        return
    if outcome is Outcome.REJECTED:
        raise refusal(write, write.operation.error, image, error) from error
    state, is_removal = own.row.state(image), check.kind is not EntryEffect.KEEP
    if outcome is Outcome.LOST:
        raise own.absent_from(state, is_removal=is_removal) from error
    if not is_removal:
        own.absent_from(state)
    raise write.unknown(error, own.write_id(check.number)) from error


def judged(check: Check, image: Image | None, repeated: bool) -> Outcome:  # noqa: FBT001
    own, number, kind = check
    return judge(own.row.state(image), own.possession, number, kind=kind, repeated=repeated)
