"""Bugs in what guards a write: conditions, and the way in which it is sent."""

from __future__ import annotations

from typing import Any

from pynamodb.exceptions import PutError
from pynamodb.expressions.operand import Path

from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._locks import fencing, held_lock
from pynamo_locking._writes import send, write
from pynamo_locking._writes.send import EmbeddedLockWriter
from pynamo_locking._writes.write import action_of
from tests.simulation.engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants


def _always() -> Any:
    return Path(["pynamo_locking_nothing"]).does_not_exist()


@plants(Plan("embedded", faults={Fault.PAUSE_BEFORE: 1}), "Fence", "Growing")
def embedded_save_without_guard() -> Patches:
    """A save under an embedded lock does not name our entry."""
    guarded = send.send_under_own_lock

    def inside(own: Any, write: Any) -> Any:
        if write.kind is not EntryEffect.KEEP:
            return guarded(own, write)
        with own.writing() as number:
            return send._send(own, write, number, write.kwargs())

    return [(send, "send_under_own_lock", inside)]


def _beside_without_guard(own: Any, number: int, kind: EntryEffect) -> Any:
    keys = {"TableName": own.row.table, "Key": own.row.key}
    names, values = dict[str, str](), dict[str, Any]()
    condition = _always().serialize(names, values)
    names = {placeholder: name for name, placeholder in names.items()}
    return {"ConditionCheck": {**keys, "ConditionExpression": condition, "ExpressionAttributeNames": names}}


@plants(Plan("separate row", faults={Fault.PAUSE_BEFORE: 1}), "Fence", "Growing")
def row_transaction_without_guard() -> Patches:
    """A save beside the lock's row does not check that row."""
    return [(send, "check_of_lock_row", _beside_without_guard)]


@plants(Plan("edit", faults={Fault.LATE: 1, Fault.CRASH_BEFORE: 1}, preemptions=0), "Fence", limit=250, exhaustive=True)
def last_write_of_edit_without_guard() -> Patches:
    """The write that ends an edit removes our entry without asking whether it is there."""
    guarded = send.send_under_own_lock

    def inside(own: Any, write: Any) -> Any:
        if write.kind is not EntryEffect.FINISH:
            return guarded(own, write)
        with own.writing() as number, own.going():
            data = send._send(own, write, number, write.kwargs(None, fencing.remove_own_entry(own)))
        held_lock.note_left(own, None)
        return data

    return [(send, "send_under_own_lock", inside)]


@plants(Plan("lives", faults={Fault.PAUSE_BEFORE: 1}), "Fence", "Growing", limit=150)
def delete_without_guard() -> Patches:
    """A delete under an embedded lock does not name our entry."""
    guarded = send.send_under_own_lock

    def inside(own: Any, write: Any) -> Any:
        if write.kind is not EntryEffect.DELETE:
            return guarded(own, write)
        with own.writing() as number, own.going():
            data = send._send(own, write, number, write.kwargs())
        held_lock.note_left(own, None)
        return data

    return [(send, "send_under_own_lock", inside)]


@plants(Plan("outsiders"), "Fence")
def outsider_without_guard() -> Patches:
    """A write from outside does not ask whether any entry is in the queue."""
    return [(fencing, "queue_is_empty", lambda _: _always())]


@plants(Plan("locked_all", faults={Fault.PAUSE_BEFORE: 1}), "Fence")
def transaction_without_guard() -> Patches:
    """A transaction that saves a locked item does not name our entry."""
    return [(EmbeddedLockWriter, "action", lambda self, write, number=None: action_of(write))]


@plants(
    Plan("no heartbeat", parties=1, processes=1, faults={Fault.LATE: 1}, preemptions=0), "NothingLost", exhaustive=True
)
def writes_not_counted() -> Patches:
    """A guarded write names our entry, but a late copy of it is accepted after a later one."""
    return [(fencing, "held_without_later_write", lambda own, number: fencing.entry_in_queue(own))]


@plants(Plan("embedded", processes=2, parties=3), "SoundQueue")
def put_instead_of_update() -> Patches:
    """A guarded save is a PutItem, which writes an old lock document over those who came meanwhile."""

    def plan_save(self: Any, condition: Any, *, checks_version: bool, error: Any = PutError, **_: Any) -> Any:
        return write.plan_save(self.item, condition, checks_version=checks_version, error=error)

    return [(EmbeddedLockWriter, "plan_save", plan_save)]
