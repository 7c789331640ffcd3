"""All requests of a lock: enqueue, poll, renew, release, hand over, downgrade, evict."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamo_locking._core.dynamodb import INVALID
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lock_modes import SHARED, WHOLE, LockMode
from pynamo_locking._core.lock_queue import LockState, QueueEntry, RunRecord, eviction_traces
from pynamo_locking._io import event_stream, lock_record, protocol, responses, runtime
from pynamo_locking._io.client import Unavailable, ask
from pynamo_locking._io.stored_rows import Image, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.protocol import Clause, Filled


class NewEntry(NamedTuple):
    """What a newcomer writes into the queue."""

    id: str
    owner: str
    lease: float
    lock_mode: LockMode = WHOLE
    callers: int = 1
    token_id: str = ""

    def standing_for(self, callers: int) -> NewEntry:
        return self if callers == self.callers else self._replace(callers=callers)

    def stored(self, now_ms: int, ticket: int | None = None) -> dict[str, Any]:
        entry = (self.owner, self.lock_mode, self.lease, now_ms, self.callers, ticket)
        return lock_record.new_entry(*entry, token_id=self.token_id)


def enter(row: LockRow, entry: NewEntry, capacity: int) -> Image:
    """Join the queue with the next ticket.

    Refused if there is no document yet, if we are in it already, or if it has `capacity` entries.
    """
    given = {
        "#me": entry.id,
        ":entry": entry.stored(runtime.current.time_ms()),
        ":callers": number(entry.callers),
        ":max": number(capacity),
    }
    return _update(row, "lock", protocol.ENQUEUE, given, lease=entry.lease)


def enter_first(row: LockRow, entry: NewEntry) -> Image:
    """Create the lock document, with us as its first entry.

    Refused if there is a document, or no item and `row.may_create` is not set. Refused as well if a transaction has the
    item, whose intent would be lost, or if another program has it: see `responses.check_not_foreign`.
    """
    now_us = runtime.current.time_us()
    new = lock_record.new_document(entry.id, entry.stored(now_us // 1000, now_us), now_us, entry.callers)
    clause = protocol.ENQUEUE_FIRST_IN_ITS_ROW if row.may_create else protocol.ENQUEUE_FIRST
    return _update(row, "lock", clause, {":map": new}, lease=entry.lease)


def read(row: LockRow, *, consistent: bool) -> Image | None:
    image: Image | None = _call(row, "read the lock of", "GetItem", {"ConsistentRead": consistent}).get("Item")
    return image


def read_document(row: LockRow) -> LockState:
    """Read the lock document alone, consistently; it may be broken, see `lock_record.trusted`."""
    names = {"#l": row.attribute}
    arguments = {"ConsistentRead": True, "ProjectionExpression": "#l", "ExpressionAttributeNames": names}
    return lock_record.state_in(_call(row, "read the lock of", "GetItem", arguments).get("Item"), row.attribute)


def renew(row: LockRow, entry: QueueEntry, heartbeats: int, *, want_image: bool) -> Image:
    """Renew our lease, and store since when we hold the lock."""
    renewed_ms = runtime.current.time_ms() - entry.entered_ms
    clause, given = protocol.RENEW, naming(entry) | {":beat": number(heartbeats), ":renewed": number(renewed_ms)}
    if entry.granted_ms is not None:
        clause, given[":granted"] = clause + protocol.NOTE_GRANT, number(entry.granted_ms - entry.entered_ms)
    return _update(row, "renew the lock of", clause, given, lease=entry.lease, want_image=want_image)


def release(row: LockRow, entry_id: str, *, want_image: bool) -> Image:
    """Leave the queue. Names only the entry, so that it also removes an entry whose ticket we never received."""
    return _update(row, "release the lock of", protocol.RELEASE, {"#me": entry_id}, want_image=want_image)


def succeed(row: LockRow, entry: QueueEntry, success: RunRecord, kept_s: int, *, want_image: bool) -> Image:
    """Leave the queue, and store that the job has succeeded, in a row that is kept for so long.

    Refused if our entry is gone: then another process may have run the job since, or this is a second copy. And if a
    newer release has stored the document, since a first copy may have been applied before.
    """
    clause, given = (
        protocol.RELEASE_WITH_SUCCESS,
        {**naming(entry), ":success": lock_record.stored_success(success, kept_s)},
    )
    if row.ttl_attribute is not None:  # which the last lease has set for an earlier success, or for none
        clause, given[":expires"] = clause + protocol.SET_EXPIRY, number(runtime.current.time_ms() // 1000 + kept_s)
    return _update(row, "note a success, and release the lock of", clause, given, want_image=want_image)


def hand_over(row: LockRow, entry: QueueEntry, new: NewEntry, ticket: int | None) -> Image:
    """Leave the queue, and let the next caller of this process have that ticket, or the next one if None.

    Refused if our entry is gone, so only one copy stores the new entry.
    """
    clause, given = following(row, new, ticket)
    return _update(row, "hand over the lock of", protocol.HAND_OVER + clause, naming(entry) | given)


def move(row: LockRow, entry_id: str, ticket: int, new: NewEntry, token_id: str = "") -> Image:
    """Let a new entry take the place of one in the queue, with its ticket.

    Refused if that entry is gone, or was not stored for the token that is named.
    """
    failed = "detach the lock of"
    clause, given = following(row, new, ticket)
    if token_id:
        failed = "attach the lock of"
        clause, given = clause + protocol.OF_TOKEN, given | {":token": {"S": token_id}}
    return _update(row, failed, protocol.HAND_OVER + clause, {"#me": entry_id, ":ticket": number(ticket)} | given)


def following(row: LockRow, new: NewEntry, ticket: int | None) -> Filled:
    """Return what a write that removes our entry stores for the next caller of this process."""
    clause = protocol.ADD_NEXT_ENTRY_AT_THE_END if ticket is None else protocol.ADD_NEXT_ENTRY
    given = {"#you": new.id, ":entry": new.stored(runtime.current.time_ms(), ticket), ":callers": number(new.callers)}
    return _timed(row, clause, given, new.lease)


def naming(entry: QueueEntry) -> dict[str, Any]:
    """Return how a request names our entry."""
    return {"#me": entry.id, ":ticket": number(entry.ticket)}


def fence(
    row: LockRow,
    entry: QueueEntry,
    write: int,
    after: tuple[NewEntry, int | None] | None = None,
    *,
    is_kept: bool = True,
) -> Filled:
    """Return the fencing condition: what a write asks of our entry, and does to it.

    The write counts itself in the entry, or removes it, for the next one with its ticket if that is given.
    """
    given = {**row.names, **naming(entry), ":write": number(write)}
    if is_kept:
        return protocol.FENCE + protocol.COUNT_WRITE, given
    if after is None:
        return protocol.FENCE + protocol.REMOVE_ENTRY, given
    clause, new = following(row, *after)
    return protocol.FENCE + protocol.REMOVE_ENTRY + clause, given | new


def downgrade(row: LockRow, entry: QueueEntry, write: int) -> Image:
    given = naming(entry) | {":shared": {"S": SHARED}, ":write": number(write)}
    return _update(row, "share the lock of", protocol.DOWNGRADE, given)


def evict(row: LockRow, entries: tuple[QueueEntry, ...], known: Mapping[int, int]) -> Image:
    """Remove dead entries, in ticket order, if none of them was renewed since our last poll.

    The document remembers the possible holders among them, see `eviction_traces`. Refused as well if it remembers a
    later eviction than `known` in their place.
    """
    given, remembered = dict[str, Any](), eviction_traces(entries, known)
    for i, entry in enumerate(entries):
        given |= {f"#e{i}": entry.id, f":b{i}": number(entry.heartbeats), f":t{i}": number(entry.ticket)}
    for i, (slot, ticket) in enumerate(remembered.items()):
        given |= {f"#s{i}": str(slot), f":s{i}": number(ticket)}
    return _update(row, "remove dead entries from the lock of", protocol.evict(len(entries), len(remembered)), given)


def _timed(row: LockRow, clause: Clause, given: dict[str, Any], lease: float) -> Filled:
    if row.ttl_attribute is None:
        return clause, given
    ends, shown = row.ends(lease)
    return clause + protocol.SET_LEASE_END, given | {":kept": number(row.kept_s), ":ends": ends, ":shown": shown}


def _update(
    row: LockRow,
    failed: str,
    clause: Clause,
    given: dict[str, Any],
    *,
    lease: float | None = None,
    want_image: bool = True,
) -> Image:
    if lease is not None:
        clause, given = _timed(row, clause, given, lease)
    arguments = protocol.alone(clause, row.names | given) | {"ReturnValues": "ALL_NEW" if want_image else "NONE"}
    try:
        image: Image = _call(row, failed, "UpdateItem", arguments).get("Attributes", {})
    except ConfigurationError as error:
        if error.cause_response_code == INVALID and not responses.is_about_size(
            error.cause
        ):  # perhaps because a part of the document has another type
            with suppress(Unavailable):
                lock_record.trusted(row, read_document(row))
        raise
    return image


def _call(row: LockRow, failed: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    event_stream.requesting(operation)
    try:
        return ask(row.connection, operation, {"TableName": row.table, "Key": row.key, **arguments})
    except responses.BOTOCORE_EXCEPTIONS as error:
        raise responses.final(row, failed, error) from error
