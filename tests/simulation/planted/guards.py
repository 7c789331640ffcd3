"""Bugs in what guards a write: conditions, and the way in which it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PutError

from pynamo_locking._core.write_outcome import EntryEffect, Outcome
from pynamo_locking._io import protocol
from pynamo_locking._io.protocol import Clause
from pynamo_locking._locks import fencing
from pynamo_locking._writes.send import Check, RowWrite
from pynamo_locking._writes.writer import Writer
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._io.protocol import Filled


#: A condition that every row fulfils.
_ANYTHING = Clause("attribute_not_exists(#pynamo_locking_nothing)")


def without_the_lock(kind: EntryEffect) -> Patches:
    """Say nothing of the lock in the item, in writes that have this effect on the held entry."""
    made = RowWrite.made

    def unguarded(self: Any) -> Any:
        if self.write is None or self.check is None or self.check.kind is not kind:
            return made(self)
        return {self.write.request.removesuffix("Item"): self.write.kwargs()}

    return [(RowWrite, "made", unguarded)]


def judged_by_the_entry_alone() -> Patches:
    """Ask the held entry what became of a write, and never the write id in the item."""
    judge = RowWrite.judge

    def by_the_entry(self: Any, image: Any, *, in_doubt: bool) -> Outcome:
        return (judge if self.check is None else Check.judge)(self.check or self, image, in_doubt=in_doubt)

    return [(RowWrite, "judge", by_the_entry)]


def clause_of(kind: EntryEffect, change: Callable[[Filled], Filled]) -> Patches:
    """Ask something else of the held entry in writes that have this effect on it."""
    clause = Check.clause
    return [(Check, "clause", lambda self: change(clause(self)) if self.kind is kind else clause(self))]


def unconditional(filled: Filled) -> Filled:
    """Return the changes of a clause without its condition."""
    clause, given = filled
    return clause._replace(if_=""), given


@plants(Plan("embedded", faults={Fault.PAUSE_BEFORE: 1}), "Fence", "Growing")
def embedded_save_without_guard() -> Patches:
    """A save under an embedded lock does not name our entry; the number in the entry, which it leaves, tells of it."""
    return [*without_the_lock(EntryEffect.KEEP), *judged_by_the_entry_alone()]


@plants(Plan("separate row", faults={Fault.PAUSE_BEFORE: 1}), "Fence", "Growing")
@replaces(RowWrite, "made")
def row_transaction_without_guard(made: Any, self: Any) -> Any:
    """A save beside the lock's row does not check that row."""
    if self.write is not None:
        return made(self)
    row = self.check.own.row
    return {"ConditionCheck": {"TableName": row.table, "Key": row.key, **protocol.alone(_ANYTHING, {})}}


@plants(Plan("edit", faults={Fault.LATE: 1, Fault.CRASH_BEFORE: 1}, preemptions=0), "Fence", limit=250, exhaustive=True)
def last_write_of_edit_without_guard() -> Patches:
    """The write that ends an edit removes our entry without asking whether it is there."""
    return clause_of(EntryEffect.FINISH, unconditional)


@plants(Plan("lives", faults={Fault.PAUSE_BEFORE: 1}), "Fence", "Growing", limit=150)
def delete_without_guard() -> Patches:
    """A delete under an embedded lock does not name our entry."""
    return without_the_lock(EntryEffect.DELETE)


@plants(Plan("outsiders"), "Fence")
def outsider_without_guard() -> Patches:
    """A write from outside does not ask whether any entry is in the queue."""
    return [(fencing, "lock_is_free", lambda row: (_ANYTHING, row.names))]


@plants(Plan("locked_all", faults={Fault.PAUSE_BEFORE: 1}), "Fence")
def transaction_without_guard() -> Patches:
    """A transaction that saves a locked item does not name our entry."""
    return [(Writer, "row_write", lambda self, write, number=None: RowWrite(write=write))]


@plants(
    Plan("no heartbeat", parties=1, processes=1, faults={Fault.LATE: 1}, preemptions=0), "NothingLost", exhaustive=True
)
def writes_not_counted() -> Patches:
    """A guarded write names our entry, but a late copy of it is accepted after a later one."""
    return [(protocol, "FENCE", protocol.OWN_ENTRY + protocol.NO_INTENT)]


@plants(Plan("embedded", processes=2, parties=3), "SoundQueue")
@replaces(Writer, "plan_save")
def put_instead_of_update(
    original: Any, self: Any, condition: Any, *, checks_version: bool, error: Any = PutError, **_: Any
) -> Any:
    """A guarded save is a PutItem, which writes an old lock document over those who came meanwhile."""
    return original(Writer(self.item), condition, checks_version=checks_version, error=error)
