"""A lock that outlives its process: detached into a token, and attached again by whoever has the token.

Both are one write, which gives the entry another id: it keeps the ticket, and so its place. All that the process before
may still do under the old id is refused by DynamoDB: writes, renewals, the release, late copies of each. The new entry
names the token. So the token can be attached again, for a step that is run twice, and the second process fences the
first. A token of an earlier `detach` is refused.

Rejected: to keep the id, and to fence by the number of a write. The process before could still renew the lease, and its
release would remove the entry of the next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lock_modes import front
from pynamo_locking._io import client, lock_record, lock_requests, runtime
from pynamo_locking._io.client import Refused, Unavailable
from pynamo_locking._io.concurrency import TO_THREADS, run_steps
from pynamo_locking._io.lock_requests import NewEntry
from pynamo_locking._locks import held_lock, release
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking._locks.tokens import Token
from pynamo_locking.exceptions import LockLost, OutcomeUnknown

if TYPE_CHECKING:
    from pynamo_locking._io.concurrency import Steps
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.options import LockOptions, LockTarget

#: So often an attach names the entry anew, if others attach the same token all the time.
_ATTEMPTS: Final = 4


def detach(held: HeldEntry, target: LockTarget[Any], lease_s: float) -> str:
    """Give the entry of a held lock to whoever has the token that this returns.

    Raises:
        LockLost: the entry is gone.
        OutcomeUnknown: no response came.
        ConfigurationError: it has no token.
    """
    if target.key is None or held.entry.lock_mode.is_ranged:
        raise ConfigurationError(f"{held.row.label} cannot be detached: only a lock of one item, or of a name, can.")
    if held.depth > 1:
        raise ConfigurationError(
            f"{held.row.label} was acquired {held.depth} times here, and each time would have to end: detach it where "
            f"it was acquired first."
        )
    if held.copies.edits:
        raise ConfigurationError(f"{held.row.label} cannot be detached inside of `edit()`, which has not saved yet.")
    name = runtime.current.entry_id()
    try:
        with held.writing(is_last=True) as number, held.going():
            new = _moved(held, name, number, lease_s)
        held.end(is_detached=True)
        lock_mode = lock_record.stored_lock_mode(new.lock_mode)
        table, ticket = target.model.Meta.table_name, held.entry.ticket
        return str(Token(table, target.key, name, ticket, new.heartbeats, new.writes, lock_mode))
    except LockingError:
        raise
    except BaseException:  # an interrupt, perhaps after the answer
        give_up(held, name)
        raise


def _moved(held: HeldEntry, name: str, number: int, lease_s: float) -> NewEntry:
    """Let an entry of that name take the place of ours, and return it."""
    entry, heartbeats = held.entry, held.heartbeats + 1
    new = NewEntry(name, entry.owner, lease_s, entry.lock_mode, heartbeats=heartbeats, writes=number, token_id=name)
    try:
        client.patiently(lambda: lock_requests.move(held.row, entry.id, entry.ticket, new))
    except Refused as refused:
        state = held.row.state(refused.image)
        if state.find(name) is None:  # else an earlier copy was applied
            raise held.absent_from(state, is_removal=True) from refused
    except Unavailable as error:
        give_up(held, name)
        raise OutcomeUnknown(
            f"no answer to the request that detaches {held}. The lock is given up, as nobody has a token for it.",
            write_id=entry.id,
            cause=error.cause,
        ) from error
    return new


def give_up(held: HeldEntry, name: str) -> None:
    """Let a thread remove the entry: first under its old id, after which no late copy of the request is applied."""
    release.remove_entry_later(held.row, held.entry.id, name)
    held.end(is_confirmed=False)


class Attachment:
    """The attempt to hold a lock again that was detached, in the form of an `Acquisition`.

    If its caller does not get it, because of an interrupt, the lock stays: the token can be attached again.
    """

    def __init__(self, row: LockRow, options: LockOptions, token: Token) -> None:
        self._row = row
        self._options = options
        self._token = token
        self.held: HeldEntry | None = None

    def run(self) -> HeldEntry:
        """Attach it.

        Raises:
            LockLost: the lock was released or lost since, or detached again.
            OutcomeUnknown: no response came; the token can be attached again.
        """
        return run_steps(self.steps())

    def steps(self) -> Steps[HeldEntry]:
        yield TO_THREADS
        self.held = self._attach()
        return self.held

    def cut_short(self) -> None:
        """It does not wait."""

    def _attach(self) -> HeldEntry:
        token, options = self._token, self._options
        new = NewEntry(
            runtime.current.entry_id(),
            options.owner,
            options.lease,
            options.lock_mode,
            heartbeats=token.heartbeats + 1,
            writes=token.writes,
            token_id=token.id,
        )
        before, started = token.id, runtime.current.monotonic()
        for _ in range(_ATTEMPTS):
            try:
                image = client.patiently(lambda: lock_requests.move(self._row, before, token.ticket, new, token.id))  # noqa: B023
            except Refused as refused:
                state = self._row.state(refused.image)
                found = next((entry for entry in state.entries if entry.ticket == token.ticket), None)
                if found is None or found.token_id != token.id:
                    raise self._loss(refused.image, is_detached_again=found is not None) from refused
                if found.id != new.id:  # another process has attached it
                    before = found.id
                    new = new._replace(heartbeats=found.heartbeats + 1, writes=found.writes)
                    continue
                image = refused.image or {}  # an earlier copy was applied
            except Unavailable as error:
                raise self._unknown(error.cause) from error
            return self._granted(image, new, started)
        raise self._unknown(None)

    def _granted(self, image: Image, new: NewEntry, started: float) -> HeldEntry:
        state = self._row.state(image)
        entry = state.find(new.id)
        assert entry is not None  # noqa: S101 - the image is that of the write that has stored it
        granted = replace(entry, granted_ms=runtime.current.time_ms())
        held = HeldEntry(self._row, granted, started, new.heartbeats, state.since, image)
        behind = [each for each in state.entries if each is not entry]
        held.behind = tuple(behind[i].id for i in front(each.lock_mode for each in behind))
        held.ends_at = runtime.current.monotonic() + self._options.max_hold
        held.was_received = False
        if not held.remaining:  # the requests have taken too long
            held_lock.renew(held)
        return held

    def _loss(self, image: Image | None, *, is_detached_again: bool) -> LockLost:
        what = f"ticket {self._token.ticket} of {self._row.label}"
        if is_detached_again:
            why = "was detached again since, so only the newest token can be attached"
        else:
            why = "is no longer in the queue: it was released, its lease has ended, or an operator broke it"
        reason = "evicted" if self._row.state(image).exists else "deleted"
        return LockLost(f"{what} {why}. Acquire the lock, and read again.", reason=reason, ticket=self._token.ticket)

    def _unknown(self, cause: Exception | None) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"no answer to the request that attaches ticket {self._token.ticket} of {self._row.label}; it may be "
            f"attached. Attach the same token again.",
            write_id=self._token.id,
            cause=cause,
        )
