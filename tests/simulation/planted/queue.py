"""Bugs in the requests of the lock: how an entry comes into the queue, and how it leaves."""

from __future__ import annotations

import re
from typing import Any

from pynamo_locking._core.lock_queue import LockState
from pynamo_locking._io import lock_requests, runtime, stored_rows
from pynamo_locking._io.lock_requests import NewEntry
from pynamo_locking._io.protocol import KNOWN_FORMAT, Clause
from pynamo_locking._locks import inspection
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces

# Requests of the lock


def other_condition(pattern: str, replacement: str = "") -> Patches:
    """Change the condition of the lock's requests where it matches."""
    send = lock_requests._call

    def call(row: Any, operation: str, arguments: dict[str, Any]) -> Any:
        if "ConditionExpression" not in arguments:
            return send(row, operation, arguments)
        changed = dict(arguments)
        asked = changed.pop("ConditionExpression").replace(f" AND {KNOWN_FORMAT.if_}", "")
        asked = asked.replace(f"{KNOWN_FORMAT.if_} AND ", "")
        condition = re.sub(pattern, replacement, asked)
        if condition:
            changed["ConditionExpression"] = condition
        used = set(re.findall(r"[#:]\w+", f"{condition} {changed.get('UpdateExpression', '')}"))
        for part in ("ExpressionAttributeNames", "ExpressionAttributeValues"):
            kept = {name: value for name, value in arguments.get(part, {}).items() if name in used}
            if kept:
                changed[part] = kept
            else:
                changed.pop(part, None)
        return send(row, operation, changed)

    return [(lock_requests, "_call", call)]


@plants(Plan("polling", faults={Fault.PAUSE_AFTER: 1}), "NoEarlyEviction")
def eviction_without_beat() -> Patches:
    """An entry is evicted although it was renewed since we looked."""
    return other_condition(r"#l\.#q\.#e\d+\[1\]\.#b = :b\d+ AND ")


@plants(Plan("break lock", faults={Fault.LOST_RESPONSE: 2}, preemptions=0), "NoEarlyEviction", exhaustive=True)
def eviction_without_ticket() -> Patches:
    """An entry is evicted although it came back under another ticket."""
    # The trace of the first eviction would refuse most of them as well.
    trace = r"\(attribute_not_exists\(#l\.#evicted\.#s\d\) OR #l\.#evicted\.#s\d < :s\d\)"
    return other_condition(rf" AND (#l\.#q\.#e\d+\[0\] = :t\d+|{trace})")


@plants(Plan("edit", faults={Fault.LOST_REQUEST: 1, Fault.PAUSE_BEFORE: 1}, preemptions=0), "Truth", exhaustive=True)
def eviction_without_trace() -> Patches:
    """An eviction leaves no trace, so that its victim takes it for its own release."""
    return [(LockState, "was_evicted", lambda self, ticket, since: None if self.since != since else False)]


@plants(Plan("embedded", faults={Fault.PAUSE_BEFORE: 1}), "ToldLoss")
def release_without_condition() -> Patches:
    """A release is accepted although our entry is gone, so the holder does not hear that the lock was lost."""
    return other_condition(r"^attribute_exists\(#l\.#q\.#me\)$")


@plants(Plan("long work", parties=3, processes=3, faults={Fault.PAUSE_BEFORE: 1}), "NoEarlyEviction", "OneHolder")
@replaces(lock_requests, "release")
def release_of_a_stranger(release: Any, row: Any, entry_id: str, *, want_image: bool) -> Any:
    """A release removes the first entry."""
    entries = row.state(lock_requests.read(row, consistent=True)).entries
    return release(row, entries[0].id if entries else entry_id, want_image=want_image)


@plants(Plan("embedded"), "Quiet")
def release_forgotten() -> Patches:
    """A release sends nothing, and leaves the entry to be evicted."""
    return [(HeldEntry, "release", HeldEntry.end)]


@plants(Plan("break lock"), "Breaking")
def nothing_broken() -> Patches:
    """`break_lock` says that it has broken a lock, and has not."""
    return [(inspection, "break_entry", lambda row, ticket: True)]


# Tickets


@plants(Plan("embedded", parties=3), "SoundQueue")
@replaces(lock_requests, "enter")
def ticket_read_then_written(enter: Any, row: Any, entry: NewEntry, capacity: int) -> Any:
    """The next ticket is read with one request and taken with another: two can have the same."""
    seen = row.state(lock_requests.read(row, consistent=True)).next_ticket
    if not seen:
        return enter(row, entry, capacity)
    return lock_requests._update(
        row,
        Clause(
            "attribute_exists(#l.#n) AND attribute_not_exists(#l.#q.#me) AND size(#l.#q) < :max",
            "#l.#q.#me = :entry, #l.#n[0] = :next",
        ),
        {
            "#me": entry.id,
            ":entry": entry.stored(runtime.current.time_ms(), seen),
            ":next": stored_rows.number(seen + 1),
            ":max": stored_rows.number(capacity),
        },
    )


@plants(Plan("embedded", parties=3), "SoundQueue", limit=170)
@replaces(lock_requests, "enter")
def ticket_taken_before_entering(enter: Any, row: Any, entry: NewEntry, capacity: int) -> Any:
    """As in the seed: a counter gives the ticket, another request enters; a later ticket can be in before."""
    if not row.state(lock_requests.read(row, consistent=True)).exists:
        return enter(row, entry, capacity)
    count = Clause("attribute_exists(#l.#n)", "#l.#n[0] = #l.#n[0] + :one")
    counted = lock_requests._update(row, count, {":one": stored_rows.number(1)})
    return lock_requests._update(
        row,
        Clause("attribute_not_exists(#l.#q.#me) AND size(#l.#q) < :max", "#l.#q.#me = :entry"),
        {
            "#me": entry.id,
            ":entry": entry.stored(runtime.current.time_ms(), row.state(counted).next_ticket - 1),
            ":max": stored_rows.number(capacity),
        },
    )


@plants(Plan("embedded", parties=1, processes=1, rounds=2, faults={Fault.LATE: 1}), "NoEarlyEviction", exhaustive=True)
@replaces(Acquisition, "_name_entry")
def id_used_twice(_original: Any, self: Any) -> NewEntry:
    """A party has the same id each time it enters, so that a late release of the last time removes it."""
    return NewEntry("of-" + self._options.owner, self._options.owner, self._options.lease)


@plants(Plan("embedded", processes=1), "Progress", "Fence", "TrueLoss")
@replaces(Acquisition, "_name_entry")
def id_of_the_process(_original: Any, self: Any) -> NewEntry:
    """All attempts of a process enter under one id, so that one party takes the entry of another for its own."""
    return NewEntry("of-" + self._options.owner.partition(".")[0], self._options.owner, self._options.lease)
