"""What a write of this package never does to a lock, a version or a transaction record: for an auditor. Pure.

A release and the removal of an intent leave no trace. So a foreign write that removes a single entry looks like a
release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pynamo_locking._core.lock_queue import eviction_traces
from pynamo_locking._core.transactions import TransactionStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking._core.lock_queue import LockState, QueueEntry
    from pynamo_locking._core.write_outcome import Known


class Breach(NamedTuple):
    """What a write has done that this package does not: a stable word, a sentence, and what was and is stored."""

    kind: str
    text: str
    before: str = ""
    after: str = ""


#: The states that follow a state.
_NEXT: Final = {
    TransactionStatus.PENDING: {
        TransactionStatus.PENDING,
        TransactionStatus.COMMITTED,
        TransactionStatus.FINISHED,
        TransactionStatus.ABORTED,
    },
    TransactionStatus.COMMITTED: {TransactionStatus.COMMITTED, TransactionStatus.FINISHED},
    TransactionStatus.FINISHED: {TransactionStatus.FINISHED},
    TransactionStatus.ABORTED: {TransactionStatus.ABORTED},
}


def of_versions(before: Known, after: Known, *, has_ids: bool, is_changed: bool) -> Iterator[Breach]:
    """Yield what is wrong with the version and the write id of an item that still exists.

    `has_ids` if its model has write ids, `is_changed` if any of its values has changed.
    """
    old, new = before.version, after.version
    told = {"before": f"version {old}, id {before.write_id}", "after": f"version {new}, id {after.write_id}"}
    if old is None:
        return
    if new is None:
        yield Breach("version_lost", "the version was removed", **told)
    elif new < old:
        yield Breach("version_back", "the version was set back", **told)
    elif new > old + 1:
        yield Breach("version_jumped", "the version grew by more than one", **told)
    elif new == old and is_changed:
        yield Breach("version_unchanged", "values were changed and the version was not", **told)
    elif new == old and before.write_id != after.write_id:
        yield Breach("write_id_changed", "the write id was changed and the version was not", **told)
    elif new > old and has_ids and before.write_id is not None and after.write_id in {None, before.write_id}:
        yield Breach("write_id_lost", "the version grew, and the write has left no id of its own", **told)


def of_lock(before: LockState, after: LockState) -> Iterator[Breach]:
    """Yield what is wrong with the lock document of an item that still exists."""
    if before.unreadable:  # a person may have mended it
        return
    if after.unreadable:
        yield Breach("lock_broken", f"the lock document can no longer be read: {after.unreadable}")
        return
    if before.intent is not None and after.intent is not None and before.intent.id != after.intent.id:
        yield Breach("intent_lost", "the intent of a transaction was replaced", before.intent.id, after.intent.id)
    if not before.exists:
        return
    if not after.exists:
        yield Breach("lock_lost", "the lock document was removed", _queue_of(before), _queue_of(after))
    elif before.since != after.since:
        told = str(before.since), str(after.since)
        yield Breach("lock_lost", "the lock document was replaced by another one", *told)
    else:
        yield from _of_counters(before, after)
        yield from _of_queue(before, after)


def _of_counters(before: LockState, after: LockState) -> Iterator[Breach]:
    if after.next_ticket < before.next_ticket:
        told = str(before.next_ticket), str(after.next_ticket)
        yield Breach("tickets_back", "tickets were set back: some are given out twice", *told)
    if any(after.evicted.get(slot, 0) < ticket for slot, ticket in before.evicted.items()):
        told = str(dict(before.evicted)), str(dict(after.evicted))
        yield Breach("evictions_lost", "the trace of an eviction was removed", *told)
    ran, runs = before.success, after.success
    if ran is not None and (runs is None or runs.ticket < ran.ticket):
        told = f"ticket {ran.ticket}", "" if runs is None else f"ticket {runs.ticket}"
        yield Breach("success_lost", "the note of a successful run was removed or set back", *told)


def _of_queue(before: LockState, after: LockState) -> Iterator[Breach]:
    told = _queue_of(before), _queue_of(after)
    for entry in before.entries:
        found = after.find(entry.id)
        if found is not None and _is_changed(entry, found):
            yield Breach("entry_changed", f"the entry with ticket {entry.ticket} was changed or set back", *told)
    gone = [entry for entry in before.entries if after.find(entry.id) is None]
    come = [entry for entry in after.entries if before.find(entry.id) is None]
    drawn = sum(entry.members for entry in come if entry.ticket == before.next_ticket)
    is_sound = not come or (len(come) == 1 and (drawn > 0 or _takes_its_place(gone, come[0])))
    if not is_sound or after.next_ticket > before.next_ticket + drawn:
        yield Breach("queue_changed", "entries or tickets were put into the queue by another program", *told)
    expected = eviction_traces(gone, before.evicted) if len(gone) > 1 else {}
    if any(after.evicted.get(slot) != ticket for slot, ticket in expected.items()):
        yield Breach("queue_changed", "several entries were removed without the trace of an eviction", *told)


def _is_changed(before: QueueEntry, after: QueueEntry) -> bool:
    fixed = ("ticket", "owner", "lease_ms", "members", "entered_ms")
    lock_mode, now = before.lock_mode, after.lock_mode
    is_same_mode = (lock_mode.permits, lock_mode.lower, lock_mode.upper) == (now.permits, now.lower, now.upper)
    return (
        any(getattr(before, name) != getattr(after, name) for name in fixed)
        or after.heartbeats < before.heartbeats
        or after.writes < before.writes
        or not is_same_mode
        or (before.mode != after.mode and before.mode == "shared")
    )


def _takes_its_place(gone: list[QueueEntry], new: QueueEntry) -> bool:
    """Tell whether an entry stands where another one stood, by a hand-over, or by a detach or an attach."""
    if len(gone) != 1:
        return False
    return new.ticket == gone[0].ticket if new.token_id else gone[0].ticket < new.ticket <= gone[0].last_ticket


def is_written_past(before: LockState, after: LockState) -> bool:
    """Tell whether values were written although the lock had an entry that did not write them.

    A write under a lock is counted in its entry, or removes it. What finishes a transaction removes its intent.
    """
    if before.unreadable or after.unreadable or not before.entries or before.intent is not None:
        return False
    found = [(entry, after.find(entry.id)) for entry in before.entries]
    return not any(now is None or now.writes > entry.writes for entry, now in found)


def of_record(before: TransactionStatus, after: TransactionStatus, beats: tuple[int, int]) -> Iterator[Breach]:
    """Yield what is wrong with the record of a transaction that was changed; `heartbeats`: before and after."""
    if after not in _NEXT[before]:
        yield Breach("record_changed", "a decided transaction was decided otherwise", before.value, after.value)
    elif beats[1] < beats[0]:
        yield Breach("record_changed", "the renewals of a transaction were set back", *map(str, beats))


def _queue_of(state: LockState) -> str:
    tickets = ", ".join(str(entry.ticket) for entry in state.entries)
    return f"tickets [{tickets}], next {state.next_ticket or None}"
