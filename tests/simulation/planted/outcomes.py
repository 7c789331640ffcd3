"""Bugs in what callers are told, in versions, in transactions, and in the values that are read."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError
from pynamodb.expressions.operand import Path

from pynamo_locking._core import dynamodb
from pynamo_locking._core.dynamodb import Answer
from pynamo_locking._core.lock_queue import LockState
from pynamo_locking._core.write_outcome import Outcome, judge
from pynamo_locking._io import client, responses, runtime
from pynamo_locking._items import conditions, expiry
from pynamo_locking._items.versions import VersionPart
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking._models import edit
from pynamo_locking._models.attributes import PlacedMixin
from pynamo_locking._models.batch_writes import TransactWrite
from pynamo_locking._models.reads import ReadingMixin
from pynamo_locking._writes import send, write
from pynamo_locking._writes.native_transaction import TransactionActions
from pynamo_locking._writes.send import Check, ItemWork
from pynamo_locking.exceptions import OutcomeUnknown
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.guards import judged_by_the_entry_alone
from tests.simulation.planted.machinery import Patches, plants, replaces

# Outcomes


def another_token_for_each_attempt() -> Patches:
    """Neither DynamoDB knows a native transaction again, nor do we take a refusal for that of a second copy."""
    transact_write, settle = client.transact_write, send._settle

    def renamed(connection: Any, **arguments: Any) -> Any:
        return transact_write(connection, **{**arguments, "client_request_token": runtime.current.token()})

    def believe(work: Any, rows: Any, error: Any, *, in_doubt: bool) -> Any:
        if in_doubt and isinstance(work, TransactionActions):
            raise work.failed(error) from error
        return settle(work, rows, error, in_doubt=in_doubt)

    return [(client, "transact_write", renamed), (send, "_settle", believe)]


@plants(
    Plan("embedded", faults={Fault.LOST_RESPONSE: 1, Fault.PAUSE_BEFORE: 1}, preemptions=0), "Truth", exhaustive=True
)
@replaces(send, "judge")
def unknown_guarded_write_told_as_lost(judge: Any, *arguments: Any, **options: Any) -> Outcome:
    """A guarded write of which nothing is known is reported as not done."""
    outcome = judge(*arguments, **options)
    return Outcome.LOST if outcome is Outcome.UNKNOWN else outcome


@plants(
    Plan("embedded", faults={Fault.LOST_RESPONSE: 2, Fault.PAUSE_BEFORE: 1}, preemptions=0),
    "Truth",
    exhaustive=True,
    limit=250,
)
@replaces(send, "_settle")
def own_repetition_forgotten(settle: Any, work: Any, rows: Any, error: Any, *, in_doubt: bool) -> Any:
    """A guarded write knows that botocore has sent it again, and not that it has done so itself."""
    return settle(work, rows, error, in_doubt=responses.was_repeated(error))


@plants(Plan("embedded", faults={Fault.PAUSE_BEFORE: 1}), "TrueLoss")
@replaces(Check, "judge")
def loss_not_noted(told: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    """A write that is told that the lock is lost leaves it to the next heartbeat to note that."""
    self.own.absent_from = lambda *_, **__: self.own.loss()
    try:
        return told(self, *arguments, **options)
    finally:
        del self.own.absent_from


@plants(Plan("edit", faults={Fault.DOUBLED: 1}), "TrueLoss", "Truth")
def unseen_copy_of_the_last_write_told_as_lost() -> Patches:
    """The last write of an edit that something on the way has repeated is told as not done, whatever its id says."""

    def told(state: Any, *arguments: Any, repeated: bool, **options: Any) -> Outcome:
        outcome = judge(state, *arguments, repeated=repeated, **options)
        is_gone = state.find(arguments[0].id, arguments[0].ticket) is None
        return Outcome.LOST if is_gone and not repeated else outcome

    return [(send, "judge", told), *judged_by_the_entry_alone()]


@plants(Plan("embedded", faults={Fault.DOUBLED: 1}), "TrueLoss")
def unseen_copy_of_a_release_told_as_lost() -> Patches:
    """A release that something on the way has repeated takes its own doing for an eviction."""
    was_evicted = LockState.was_evicted
    return [(LockState, "was_evicted", lambda self, ticket, since: was_evicted(self, ticket, since) or None)]


@plants(Plan("modify", faults={Fault.LOST_RESPONSE: 1}), "Truth")
@replaces(write, "judge_by_id")
def unknown_told_as_refused(judge_by_id: Any, *arguments: Any, **options: Any) -> Outcome:
    """A write of which nothing is known is reported as refused."""
    outcome = judge_by_id(*arguments, **options)
    return Outcome.REJECTED if outcome is Outcome.UNKNOWN else outcome


@plants(
    Plan("append", parties=1, processes=1, rounds=2, faults={Fault.LATE: 1}, preemptions=0), "RealTime", exhaustive=True
)
@replaces(ItemWork, "read_outcome")
def unknown_told_as_applied(look: Any, self: Any, error: Exception) -> Any:
    """A write of which nothing is known is reported as done."""
    try:
        return look(self, error)
    except OutcomeUnknown:
        return {"Attributes": self.write.item.serialize()}


@plants(Plan("modify", faults={Fault.LOST_REQUEST: 1}), "Truth")
@replaces(write, "judge_by_id")
def write_known_by_its_version(
    judge_by_id: Any, seen: Any, before: Any, *rest: Any, repeated: bool, **options: Any
) -> Any:
    """A repeated write takes the next version for its own, whichever writer made it."""
    if repeated and seen is not None and seen.version == (before.version or 0) + 1:
        return Outcome.APPLIED
    return judge_by_id(seen, before, *rest, repeated=repeated, **options)


@plants(Plan("append", faults={Fault.LOST_RESPONSE: 1}), "Truth")
def append_repeated() -> Patches:
    """An update that does something else when done twice is repeated after a lost answer."""
    return [(conditions, "is_repeatable", lambda actions: True)]


@plants(Plan("updates beside", parties=1, processes=1, faults={Fault.LOST_RESPONSE: 4}), "NothingLost", limit=200)
def copy_without_an_update_in_doubt_is_saved() -> Patches:
    """After an update of which nothing is known, the copy that lacks it is saved over it."""
    return [(write.Write, "note_doubt", lambda self: None)]


@plants(Plan("transact write", faults={Fault.LOST_RESPONSE: 2}), "Truth", limit=200)
def new_token_for_the_same_transaction() -> Patches:
    """A transaction of which nothing is known is sent again under another token, and its refusal is believed."""
    return another_token_for_each_attempt()


@plants(Plan("either", parties=4, processes=4, faults={Fault.LOST_REQUEST: 2}), "Truth", limit=100)
@replaces(send, "_outcome_of")
def absence_told_as_applied(_original: Any, work: Any, row: Any, refusal: Any) -> Outcome:
    """A transaction counts as applied if an item that it deletes is absent, though another one has deleted it."""
    told: Outcome = row.judge(refusal.image, in_doubt=refusal.in_doubt)
    return told


# Writes that meet one of another Region

_REPLICATED = "ReplicatedWriteConflictException"


@plants(Plan("modify", faults={Fault.REPLICATED: 3}, preemptions=0), "Truth", limit=200)
@replaces(ItemWork, "dispatch")
def write_that_met_another_region_told_as_applied(dispatch_once: Any, self: Any, rows: Any) -> Any:
    """A write that DynamoDB has refused for now, for the sake of another Region, counts as done."""
    try:
        return dispatch_once(self, rows)
    except ClientError as error:
        if responses.code_of(error) != _REPLICATED:
            raise
        return {"Attributes": self.write.item.serialize()}


@plants(Plan("append", faults={Fault.REPLICATED: 1}, preemptions=0), "Truth", limit=200)
def write_that_met_another_region_told_as_unknown() -> Patches:
    """A write that DynamoDB has refused for now, for the sake of another Region, counts as one without an answer."""
    return [(dynamodb, "_BY_CODE", {**dynamodb._BY_CODE, _REPLICATED: Answer.UNANSWERED})]


# Versions


@plants(Plan("modify"), "NothingLost")
def version_not_checked() -> Patches:
    """A write does not ask for the version that was read."""
    return [(VersionPart, "condition", lambda self: None)]


@plants(Plan("combine", processes=1), "Truth")
def change_of_a_function_that_raises() -> Patches:
    """All functions of a write change the same instance, those that raise included."""
    return [(edit, "copy", SimpleNamespace(copy=copy.copy, deepcopy=lambda item: item))]


@plants(Plan("combine", processes=1), "Truth")
@replaces(edit.QueuedChange, "tell")
def answer_of_another_caller(tell: Any, self: Any, error: Any, saved: Any = None) -> None:
    """Once a function has raised, all callers that line up behind its caller are told what it raised."""
    line: Any = self.line
    line.told = error or getattr(line, "told", None)
    tell(self, line.told, saved)


@plants(Plan("combine", parties=6, faults={Fault.LOST_RESPONSE: 2}), "Truth")
@replaces(edit, "_may_be_of_one")
def changes_of_an_unknown_write_made_again(_original: Any, applied: Any, error: Any) -> bool:
    """After a write whose outcome is unknown, the functions of its callers are applied once more."""
    return len(applied) > 1 and isinstance(error, OutcomeUnknown)


@plants(Plan("append"), "Versions", limit=150)
@replaces(VersionPart, "actions")
def version_set_not_counted(actions: Any, self: Any) -> Any:
    """A write that does not check the version sets it to the one it knows, plus one."""
    count = self.shape.attribute.set((self.before.version or 0) + 1)
    return [count if action is self.shape.count else action for action in actions(self)]


@plants(Plan("lives, no lock", parties=4, processes=4), "NothingLost", limit=220)
@replaces(VersionPart, "condition")
def write_id_not_compared(_original: Any, self: Any) -> Any:
    """An old copy passes for an item that was deleted and made anew with the same version."""
    if not self.is_checked or self.shape.version is None:
        return None
    version = self.before.version
    return self.shape.version.does_not_exist() if version is None else self.shape.version == version


# Transactions and values


@plants(Plan("bank"), "Bank")
@replaces(send, "send")
def transaction_in_parts(send_all: Any, work: Any) -> Any:
    """A transaction is sent one action at a time."""
    if not isinstance(work, TransactionActions):
        return send_all(work)
    data: Any = {}
    for row in work.all:
        work.all, work.token = [row], ""
        data = send_all(work)
    return data


@plants(Plan("lists", parties=3, processes=3), "OneOrder", limit=180)
def read_set_not_checked() -> Patches:
    """A transaction does not check what it has only read."""
    return [(TransactWrite, "check", lambda self, item: None)]


@plants(Plan("edit, in steps"), "NothingLost", limit=200)
def plain_read_beside() -> Patches:
    """An item whose lock is elsewhere is read past the last holder's transaction, which is decided and not applied."""

    def read(cls: Any, hash_key: Any, range_key: Any) -> Any:
        return super(ReadingMixin, cls).get(hash_key, range_key, consistent_read=True)

    return [(PlacedMixin, "_read_committed", classmethod(read))]


@plants(Plan("locked register"), "Linearizable")
def item_from_before_our_turn() -> Patches:
    """The item of a lock is as it was when we entered the queue, not when our turn came."""
    enter, grant = Acquisition._enter, Acquisition._grant

    def enter_and_keep(self: Any) -> Any:
        self.first_image = yield from enter(self)
        return self.first_image

    return [
        (Acquisition, "_enter", enter_and_keep),
        (Acquisition, "_grant", lambda self, image: grant(self, self.first_image)),
    ]


@plants(Plan("expiring"), "Expiry")
@replaces(expiry, "for_save")
def replaced_before_it_expires(for_save: Any, model: Any, condition: Any) -> Any:
    """A new item replaces one that will only expire within the next minute."""
    name = expiry.attribute_name(model)
    if name is None or condition is None or not expiry.holds_without_item(condition):
        return for_save(model, condition)
    return condition | (Path([name]) <= expiry.now_s() + 60)
