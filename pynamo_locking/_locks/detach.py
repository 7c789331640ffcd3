"""A lock that outlives its process: detached into a token, and attached again by whoever has the token.

Both are one write, which gives the entry another id: it keeps the ticket, and so its place. All that the process before
may still do under the old id is refused by DynamoDB: writes, renewals, the release, late copies of each. The new entry
names the token. So the token can be attached again, for a step that is run twice, and the second process fences the
first. A token of an earlier `detach` is refused. No id is used for two moves: a late copy of one would bring a fenced
entry back.

The way of an attached entry is that of any other: it is granted when no transaction has the item.

Rejected: to keep the id, and to fence by the number of a write. The process before could still renew the lease, and its
release would remove the entry of the next.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.lease import check_lease, seconds
from pynamo_locking._core.lock_queue import EntryOwnership
from pynamo_locking._io import client, concurrency, lock_requests, runtime, wakeups
from pynamo_locking._io.client import Refused, Unavailable
from pynamo_locking._io.lock_requests import NewEntry
from pynamo_locking._locks import release
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking._locks.tokens import Token
from pynamo_locking._pynamodb import region_of
from pynamo_locking.exceptions import LockLost, OutcomeUnknown, also

if TYPE_CHECKING:
    from pynamo_locking._core.lease import Duration, LockSettings
    from pynamo_locking._core.lock_queue import QueueEntry
    from pynamo_locking._io.concurrency import Steps
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._locks.options import LockOptions, LockTarget


def detach(
    held: HeldEntry, target: LockTarget[Any], settings: LockSettings, lease: Duration | None, name: str = ""
) -> str:
    """Give the entry of a held lock to whoever has the token that this returns.

    Args:
        held: the entry.
        target: what is locked.
        settings: what leases are checked by.
        lease: from now on; None for the lease of the entry.
        name: the id of the entry that takes its place.

    Raises:
        LockLost: the entry is gone.
        OutcomeUnknown: no response came.
        ConfigurationError: it has no token, or the lease is too short.
    """
    lease_s = held.entry.lease if lease is None else seconds(lease, "lease")
    check_lease(lease_s, settings)
    held.refuse_if_lost()
    if target.key is None or held.entry.lock_mode.is_ranged:
        raise ConfigurationError(f"{held.row.label} cannot be detached: only a lock of one item, or of a name, can.")
    if held.depth > 1:
        raise ConfigurationError(
            f"{held.row.label} was acquired {held.depth} times here, and each time would have to end: detach it where "
            f"it was acquired first."
        )
    if held.item.edits:
        raise ConfigurationError(f"{held.row.label} cannot be detached inside of `edit()`, which has not saved yet.")
    name = name or runtime.current.entry_id()
    region, entry = region_of(held.row.connection), held.entry
    token = Token(target.model.Meta.table_name, target.key, name, entry.ticket, entry.lock_mode, region)
    try:
        token.key_of(target.model)
    except InvalidInput as error:
        raise ConfigurationError(
            f"the key attributes of {target.model.__name__} do not store again what they have read, so no token can "
            f"name one of its items."
        ) from error
    new = NewEntry(name, held.entry.owner, lease_s, held.entry.lock_mode, token_id=name)
    # The request may have been applied, and nobody has its token.
    with concurrency.undone_by(partial(_give_up, held, name), unless=(LockLost, ConfigurationError)):
        with held.writing(is_last=True), held.removing():
            _move(held, new)
        held.detached()
        return str(token)


async def adetach(held: HeldEntry, target: LockTarget[Any], settings: LockSettings, lease: Duration | None) -> str:
    """As `detach`, in a thread. A task that is gone before it has the token gives the lock up."""
    name = runtime.current.entry_id()
    with concurrency.undone_by(partial(_give_up, held, name), unless=(Exception,)):  # the thread may still be at work
        return await concurrency.to_the_end(partial(detach, held, target, settings, lease, name))


def _move(held: HeldEntry, new: NewEntry) -> None:
    """Let a new entry take the place of ours."""
    try:
        client.patiently(lambda: lock_requests.move(held.row, held.entry.id, held.entry.ticket, new))
    except Refused as refused:
        state = held.row.state(refused.image)
        if state.find(new.id) is None:  # else an earlier copy was applied
            raise held.absent_from(state, is_removal=True) from refused
    except Unavailable as error:
        raise OutcomeUnknown(
            f"DynamoDB has not confirmed the request that detaches {held}. The lock is given up, as nobody has a token "
            f"for it.",
            write_id=held.entry.id,
            cause=error.cause,
        ) from error


def _give_up(held: HeldEntry, name: str) -> None:
    """Let a thread remove the entry: first under its old id, after which no late copy of the request is applied."""
    release.remove_entry_later(held.row, held.entry.id, name)
    held.orphaned()


class Attachment(Acquisition):
    """The way to a lock that was detached. It waits for nobody but a transaction that has the item.

    If it fails, the lock stays, and the token can be attached again.
    """

    def __init__(self, row: LockRow, options: LockOptions, token: Token) -> None:
        self._token = token
        super().__init__(row, options)

    @override
    def _enter(self) -> Steps[Image]:
        token, before, attempt = self._token, self._token.id, 0
        while True:
            move = partial(lock_requests.move, self._row, before, token.ticket, token_id=token.id)
            try:
                image = self._attempt(move)
            except Unavailable as error:
                yield self._back_off(attempt, error)
                attempt += 1
                continue
            self._note_state(self._row.state(image))
            found = self._with_ticket()
            if image is None or found is None or found.token_id != token.id:
                raise self._loss()
            if found.id == self._entry.new.id:
                return image
            before = found.id  # of another process that has attached it
            self._leave_for_now()

    def _with_ticket(self) -> QueueEntry | None:
        return next((entry for entry in self._state.entries if entry.ticket == self._token.ticket), None)

    @override
    def _check_room(self, error: ConfigurationError) -> Image | None:
        """It takes the place of an entry, so no other one could make room for it."""
        raise error

    @override
    def _grant(self, image: Image, entry: QueueEntry) -> Steps[HeldEntry | None]:
        held = yield from super()._grant(image, entry)
        if held is not None:
            held.note(EntryOwnership.kept)  # for whoever attaches the token next, until this caller has the lock
        return held

    @override
    def _start_over(self) -> None:
        """Only a restored process, whose copies wait with the same entry, attaches the token once more."""
        if self._forks == runtime.forks:
            raise self._loss()
        super()._start_over()

    @override
    def _leave(self) -> None:
        """It stays, for whoever attaches the token."""

    @override
    def _give_up(self) -> None:
        """It stays, for whoever attaches the token."""
        wakeups.close_mailbox(self._row, self._mailbox)

    def _loss(self) -> LockLost:
        found, what = self._with_ticket(), f"ticket {self._token.ticket} of {self._row.label}"
        gone = "replaced" if self._state.is_item_without_lock else "deleted"
        facts: dict[str, Any] = {"reason": "evicted" if self._state.exists else gone, "ticket": self._token.ticket}
        here, there = region_of(self._row.connection), self._token.region
        if there is not None and here != there and (found is None or found.token_id != self._token.id):
            # Not before: replicas of a global table with strong consistency have the same entries.
            return also(LockLost, ConfigurationError)(
                f"{what} is not in the queue in {here}, and its token was made in {there}. If these are two tables, "
                f"attach it with a model of {there}. If they are replicas of one, the lock was lost.",
                **facts,
            )
        if found is None or not found.token_id:  # or an entry that was never detached
            why = "is no longer in the queue: it was released, its lease has ended, an operator broke it, or the item "
            why += "was deleted or replaced; or it is of a table of this name at another host or in another account"
        elif found.token_id == self._token.id:
            why = "was attached by another process since"
        else:
            why = "was detached again since, so only the newest token can be attached"
        return LockLost(f"{what} {why}. Acquire the lock, and read again.", **facts)
