"""All requests of a lock: enqueue, poll, renew, release, hand over, downgrade, evict."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._core.dynamodb import INVALID
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lock_modes import SHARED, WHOLE, LockMode
from pynamo_locking._core.lock_queue import LockState, QueueEntry, Success, eviction_traces
from pynamo_locking._io import event_stream, lock_record, responses, runtime
from pynamo_locking._io.client import Refused, Unavailable, ask
from pynamo_locking._io.stored_rows import FORMAT, FORMAT_NAME, Image, known_format_text, number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamo_locking._io.lock_record import LockRow

logger = logging.getLogger("pynamo_locking")


#: For how long a row is kept after a lease, for the sake of the success in it.
_KEPT: Final = {"#success": lock_record.SUCCESS, "#kept": lock_record.KEPT}


class NewEntry(NamedTuple):
    """What a newcomer writes into the queue."""

    id: str
    owner: str
    lease: float
    claim: LockMode = WHOLE
    members: int = 1

    def stored(self, now_ms: int, ticket: int | None = None) -> dict[str, Any]:
        return lock_record.new_entry(self.owner, self.claim, self.lease, now_ms, self.members, ticket)


def enter(row: LockRow, entry: NewEntry, capacity: int) -> Image:
    """Join the queue and take the next ticket, and one for each other member of the entry, in one atomic write.

    Refused if there is no document yet, if we are in it already, or if it has `capacity` entries.
    """
    now_ms = runtime.current.time_ms()
    return _update(
        row,
        set_="#l.#q.#me = list_append(#l.#n, :entry), #l.#n[0] = #l.#n[0] + :members",
        condition="attribute_exists(#l.#n) AND attribute_not_exists(#l.#q.#me) AND size(#l.#q) < :max AND "
        + known_format_text("#l.#tx.#f"),  # or we would stand beside a mark that we cannot resolve
        names={"#n": lock_record.NEXT, "#me": entry.id, "#tx": lock_record.TX},
        values={":entry": entry.stored(now_ms), ":members": number(entry.members), ":max": number(capacity)},
        lease=entry.lease,
    )


def enter_first(row: LockRow, entry: NewEntry) -> Image:
    """Create the document with us in it. Its tickets start at the time in µs; protocol.md says what that promises.

    Refused if another newcomer has created it, if the item has to exist and does not, if a transaction has the item,
    whose mark would be lost, or if another program has it: see `responses.check_not_foreign`.
    """
    now_us = runtime.current.time_us()
    place = "attribute_not_exists(#h)" if row.may_create else "attribute_exists(#h) AND attribute_not_exists(#l)"
    return _update(
        row,
        set_="#l = :map",
        condition=f"{place} OR #l = :empty OR attribute_type(#l, :null)",  # so that there is no newer document
        names={"#h": row.hash_name},
        values={
            ":map": lock_record.new_document(entry.id, entry.stored(now_us // 1000, now_us), now_us, entry.members),
            ":empty": lock_record.EMPTY,
            ":null": {"S": "NULL"},
        },
        lease=entry.lease,
        used=("#l",),
    )


def look(row: LockRow, *, consistent: bool) -> Image | None:
    image: Image | None = _call(row, "GetItem", {"ConsistentRead": consistent}).get("Item")
    return image


def look_at_document(row: LockRow) -> LockState:
    """Read the lock document alone, consistently; it may be broken, see `lock_record.trusted`."""
    names = {"#l": row.attribute}
    arguments = {"ConsistentRead": True, "ProjectionExpression": "#l", "ExpressionAttributeNames": names}
    return lock_record.state_in(_call(row, "GetItem", arguments).get("Item"), row.attribute)


def renew(row: LockRow, entry: QueueEntry, beat: int, *, want_image: bool) -> Image:
    """Renew our lease, and store since when we hold the lock. Beats only grow: a late copy undoes no newer renewal."""
    renewed_ms = runtime.current.time_ms() - entry.entered_ms
    set_ = "#l.#q.#me[1].#b = :beat, #l.#q.#me[1].#r = :renewed"
    names = {"#me": entry.id, "#b": lock_record.BEAT, "#r": lock_record.RENEWED}
    values = {":beat": number(beat), ":renewed": number(renewed_ms), ":ticket": number(entry.ticket)}
    if entry.granted_ms is not None:
        set_ += ", #l.#q.#me[1].#g = :granted"
        names["#g"], values[":granted"] = lock_record.GRANTED, number(entry.granted_ms - entry.entered_ms)
    return _update(
        row,
        set_=set_,
        condition="#l.#q.#me[0] = :ticket AND #l.#q.#me[1].#b < :beat",
        names=names,
        values=values,
        lease=entry.lease,
        want_image=want_image,
    )


def release(row: LockRow, entry_id: str, *, want_image: bool) -> Image:
    """Leave the queue. Names only the entry, so that it also removes an entry whose ticket we never received."""
    return _update(
        row,
        remove="#l.#q.#me",
        condition="attribute_exists(#l.#q.#me)",
        names={"#me": entry_id},
        want_image=want_image,
    )


def succeed(row: LockRow, entry: QueueEntry, success: Success, kept_s: int, *, want_image: bool) -> Image:
    """Leave the queue, and store that the job has succeeded, in a row that is kept for so long.

    Refused if our entry is gone: then another party may have run the job since, or this is a second copy. Also if a
    newer release has stored the document, since a first copy may have been applied before.
    """
    names = {"#me": entry.id, "#success": lock_record.SUCCESS}
    values = {":ticket": number(entry.ticket), ":success": lock_record.stored_success(success, kept_s)}
    set_ = "#l.#success = :success"
    if row.ttl_attribute is not None:  # which the last lease has set for an earlier success, or for none
        names["#expires"] = row.ttl_attribute
        values[":expires"] = number(runtime.current.time_ms() // 1000 + kept_s)
        set_ += ", #expires = :expires"
    return _update(
        row,
        set_=set_,
        remove="#l.#q.#me",
        condition="#l.#q.#me[0] = :ticket",
        names=names,
        values=values,
        want_image=want_image,
        is_judged=False,
    )


def hand_over(row: LockRow, entry: QueueEntry, new: NewEntry, ticket: int | None) -> Image:
    """Leave the queue, and let the next caller of this process have that ticket, or the next one if None.

    Refused if our entry is gone, so only one copy stores the new entry.
    """
    stored = new.stored(runtime.current.time_ms(), ticket)
    names, values = {"#me": entry.id, "#you": new.id}, {":ticket": number(entry.ticket), ":entry": stored}
    set_ = "#l.#q.#you = :entry"
    if ticket is None:
        names["#n"], values[":members"] = lock_record.NEXT, number(new.members)
        set_ = "#l.#q.#you = list_append(#l.#n, :entry), #l.#n[0] = #l.#n[0] + :members"
    return _update(
        row,
        set_=set_,
        remove="#l.#q.#me",
        condition="#l.#q.#me[0] = :ticket",
        names=names,
        values=values,
        lease=new.lease,
    )


def downgrade(row: LockRow, entry: QueueEntry, write: int) -> Image:
    """Share what we held exclusively. Counts as a write, so that no late copy of an earlier write is applied."""
    return _update(
        row,
        set_="#l.#q.#me[1].#mode = :shared, #l.#q.#me[1].#w = :write",
        condition="#l.#q.#me[0] = :ticket AND #l.#q.#me[1].#w < :write",
        names={"#me": entry.id, "#mode": lock_record.MODE, "#w": lock_record.WRITES},
        values={":shared": {"S": SHARED}, ":write": number(write), ":ticket": number(entry.ticket)},
    )


def evict(row: LockRow, entries: tuple[QueueEntry, ...], known: Mapping[int, int]) -> Image:
    """Remove dead entries, in ticket order, if none of them was renewed since we looked.

    The document remembers the possible holders among them, see `traces`. Refused as well if it has come to remember a
    later eviction than `known` in their place.
    """
    names, values = {"#b": lock_record.BEAT}, dict[str, Any]()
    removed, conditions, remembered = list[str](), list[str](), list[str]()
    for i, entry in enumerate(entries):
        names[f"#e{i}"] = entry.id
        values |= {f":b{i}": number(entry.beat), f":t{i}": number(entry.ticket)}
        removed.append(f"#l.#q.#e{i}")
        conditions.append(f"#l.#q.#e{i}[1].#b = :b{i} AND #l.#q.#e{i}[0] = :t{i}")
    for slot, ticket in eviction_traces(entries, known).items():
        names[f"#s{slot}"] = str(slot)
        values[f":s{slot}"] = number(ticket)
        path = f"#l.#evicted.#s{slot}"
        remembered.append(f"{path} = :s{slot}")
        conditions.append(f"(attribute_not_exists({path}) OR {path} < :s{slot})")
    if remembered:
        names["#evicted"] = lock_record.EVICTED
    return _update(
        row,
        set_=", ".join(remembered),
        remove=", ".join(removed),
        condition=" AND ".join(conditions),
        names=names,
        values=values,
    )


def replace(row: LockRow, old: Mapping[str, Any], new: dict[str, Any]) -> Image:
    """Replace a lock document, if it is unchanged."""
    values = {":old": {"M": dict(old)}, ":new": new}
    return _update(row, set_="#l = :new", condition="#l = :old", names={}, values=values, used=("#l",))


def _update(  # noqa: PLR0913 - the parts of one expression
    row: LockRow,
    *,
    condition: str,
    names: Mapping[str, str],
    set_: str = "",
    remove: str = "",
    values: Mapping[str, Any] | None = None,
    lease: float | None = None,
    want_image: bool = True,
    used: tuple[str, ...] = ("#l", "#q"),
    is_judged: bool = True,
) -> Image:
    known = {"#l": row.attribute, "#q": lock_record.QUEUE}
    all_names = {name: known[name] for name in used} | dict(names)
    all_values = dict(values or {})
    if "#q" in used:  # else the request stores or names the whole document
        condition = f"{condition} AND {known_format_text('#l.#f')}"
        set_ += ", #l.#f = if_not_exists(#l.#f, :format)" if set_ else ""
        all_names["#f"], all_values[":format"] = FORMAT_NAME, number(FORMAT)
    if lease is not None and row.ttl_attribute is not None:
        set_ += ", #expires = if_not_exists(#l.#success.#kept, :kept) + :ends, #ends = :shown"
        all_names |= {"#expires": row.ttl_attribute, "#ends": lock_record.LEASE_ENDS, **_KEPT}
        all_values[":kept"] = number(row.kept_s)
        all_values[":ends"], all_values[":shown"] = row.ends(lease)
    arguments = {
        "UpdateExpression": " ".join(part for part in (set_ and f"SET {set_}", remove and f"REMOVE {remove}") if part),
        "ConditionExpression": condition,
        "ExpressionAttributeNames": all_names,
        "ReturnValues": "ALL_NEW" if want_image else "NONE",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if all_values:
        arguments["ExpressionAttributeValues"] = all_values
    try:
        image: Image = _call(row, "UpdateItem", arguments).get("Attributes", {})
    except Refused as refused:
        if is_judged:
            lock_record.refuse_newer(row, (refused.image or {}).get(row.attribute, {}).get("M"))
        raise
    except ConfigurationError as error:
        if error.cause_response_code == INVALID and not responses.is_about_size(
            error.cause
        ):  # perhaps because a part of the document has another type
            with suppress(Unavailable):
                lock_record.trusted(row, look_at_document(row))
        raise
    return image


def _call(row: LockRow, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if event_stream.listeners:
        event_stream.requesting(operation)
    try:
        answer = ask(row.connection, operation, {"TableName": row.table, "Key": row.key, **arguments})
    except responses.BOTOCORE_EXCEPTIONS as error:
        raise responses.final(row, error) from error
    if event_stream.listeners:
        event_stream.answered(answer)
    return answer
