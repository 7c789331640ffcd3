"""Bugs in transactions of many items: one for each rule of the protocol, and in what is left for a sweep."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from pynamo_locking._core import transactions
from pynamo_locking._core.transactions import CommitPlan as Paths
from pynamo_locking._core.write_outcome import Known
from pynamo_locking._io import client, protocol, transaction_record, write_intents
from pynamo_locking._io.client import persistently
from pynamo_locking._io.protocol import Clause
from pynamo_locking._io.transaction_record import RecordTable
from pynamo_locking._io.write_intents import Resolver
from pynamo_locking._items.versions import VersionPart
from pynamo_locking._transactions import suspension, validation
from pynamo_locking._transactions.commit import MultiRequestCommit
from pynamo_locking._transactions.prepare import IntentWrite, IntentWriter
from pynamo_locking.exceptions import OutcomeUnknown, TransactionConflict
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces
from tests.simulation.planted.outcomes import another_token_for_each_attempt

_WRITE_CHECKS = ("Truth", "NothingLost", "OneOrder", "Serializable", "Together", "Versions", "RealTime")


@plants(Plan("creations", parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=2000, first_seed=17)
def r1_numbers_instead_of_stamps() -> Patches:
    """An item is known by its version alone: one that was deleted and created again is taken for the old one."""
    checked = VersionPart.condition

    def condition(self: Any) -> Any:
        known, self.before = self.before, Known(self.before.version)
        try:
            return checked(self)
        finally:
            self.before = known

    return [(VersionPart, "condition", condition), (Known, "may_be", lambda self, other: self.version == other.version)]


@plants(Plan("crowd", parties=3, processes=3), *_WRITE_CHECKS, limit=400)
def r2_writers_do_not_look_for_marks() -> Patches:
    """A write does not ask whether a transaction has the item, so what that has decided is written over."""
    asked = "attribute_not_exists(#l.#tx)"
    clauses = {name: clause for name, clause in vars(protocol).items() if isinstance(clause, Clause)}
    return [
        (
            protocol,
            name,
            clause._replace(if_=clause.if_.replace(asked, "attribute_not_exists(#pynamo_locking_nothing)")),
        )
        for name, clause in clauses.items()
        if asked in clause.if_
    ]


@plants(Plan("long transactions"), *_WRITE_CHECKS, limit=400)
def r3_marks_before_the_header() -> Patches:
    """The header is written after the marks: a reader that meets one of them takes it for an orphan."""
    begin, decide = transaction_record.begin, MultiRequestCommit._decide

    def later(self: Any) -> None:
        begin(self._record_table, self._record)
        decide(self)

    return [(transaction_record, "begin", lambda record_table, record: None), (MultiRequestCommit, "_decide", later)]


@plants(Plan("long transactions", faults={Fault.PAUSE_BEFORE: 1}), *_WRITE_CHECKS, limit=600, first_seed=130)
def r4_marks_dropped_while_pending() -> Patches:
    """A mark that is in the way for too long is removed, and the transaction is not aborted."""

    begin = Resolver.begin

    def dropping(self: Any, record: Any, intents: Any) -> Any:
        try:
            return begin(self, record, intents)
        except _Dropped:
            return write_intents.drop(*intents[0])

    def abort(*_: Any, **__: Any) -> Any:
        raise _Dropped

    return [
        (Resolver, "begin", dropping),
        (write_intents, "transaction_record", SimpleNamespace(**{**vars(transaction_record), "abort": abort})),
    ]


class _Dropped(Exception):  # noqa: N818 - a signal
    pass


@plants(Plan("mixed transactions", parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=3000, first_seed=530)
@replaces(validation, "read_together")
def r5_plain_reads_validate(_original: Any, members: Any, intents: Any = ()) -> list[Any]:
    """What was read is checked by plain reads, which show the old value of what is decided and not yet applied."""
    return [*map(_plain_read, members), *(_plain_header(members, intent) for intent in intents)]


def _plain_read(member: Any) -> Any:
    kwargs = {"TableName": member.table, "Key": member.key, "ConsistentRead": True}
    connection = member.item._get_connection().connection
    return persistently(lambda: client.ask(connection, "GetItem", kwargs)).get("Item")


def _plain_header(members: Any, intent: Any) -> Any:
    record_table = RecordTable(members[0].item._get_connection().connection, intent.table)
    kwargs = {"TableName": record_table.table, "Key": record_table.key(intent.id), "ConsistentRead": True}
    return persistently(lambda: client.ask(record_table.connection, "GetItem", kwargs)).get("Item")


@plants(Plan("mixed transactions", parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=2000, first_seed=81)
def r6_validation_before_everything_is_marked() -> Patches:
    """Reads are validated while some items that will be written are not marked yet: write skew."""
    return [(Paths, "with_intents", property(lambda self: self.staged))]


@plants(Plan("either", parties=3, processes=3, rounds=2), "Together", limit=1000)
def r7_absence_is_checked_last() -> Patches:
    """An item that was absent is checked after others: it may have come and gone in between."""
    ordered = validation.in_order
    return [(validation, "in_order", lambda members: ordered(members)[::-1])]


@plants(Plan("resurrection", faults={Fault.LATE: 1, Fault.CRASH_BEFORE: 1}), "Together", "NothingLeft", limit=1000)
@replaces(IntentWriter, "_place")
def r8_placeholders_after_the_decision(_original: Any, self: Any, new: Any) -> None:
    """A placeholder is made by a plain write, whose late copy makes it again after the item was deleted."""
    for one in new:
        self.write_intent(one)


@plants(Plan("long transactions", faults={Fault.CRASH_BEFORE: 1}), *_WRITE_CHECKS, limit=400, first_seed=84)
@replaces(MultiRequestCommit, "_finish")
def r9_finished_before_all_items_are(finish: Any, self: Any) -> None:
    """The header says finished before the items are: a request that meets a mark then drops it."""
    transaction_record.finish(self._record_table, self._record.id)
    finish(self)


@plants(Plan("mixed transactions", faults={Fault.LOST_RESPONSE: 3}), "Truth", limit=1000, first_seed=83)
@replaces(transaction_record, "record_in")
def r10_headers_are_forgotten_at_once(read: Any, image: Any, table: Any = None) -> Any:
    """A final header is gone before everybody who may ask for it has: missing means aborted."""
    record = read(image, table)
    return None if record is not None and record.state is transactions.TransactionStatus.FINISHED else record


@plants(
    Plan("long transactions", faults={Fault.LOST_RESPONSE: 3, Fault.LOST_REQUEST: 1}),
    "Truth",
    limit=600,
    first_seed=128,
)
@replaces(MultiRequestCommit, "_give_up")
def r11_silence_is_taken_for_failure(_original: Any, self: Any, error: Any) -> bool:
    """No answer to the decision is told as a failure, and the header is not asked."""
    if isinstance(error, OutcomeUnknown):
        raise TransactionConflict("no answer")
    return False


@plants(Plan("native transactions", faults={Fault.LOST_RESPONSE: 3}), "Truth", limit=600)
def r11_another_token_for_each_attempt() -> Patches:
    """A native transaction is sent again under another token, so DynamoDB does not know it again."""
    return another_token_for_each_attempt()


@plants(Plan("long transactions", parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=1000, first_seed=314)
@replaces(validation, "read_together")
def snapshots_with_headers_of_another_moment(read: Any, members: Any, intents: Any = ()) -> list[Any]:
    """A snapshot looks past a mark whose transaction was pending a moment ago: it is decided when the item is read."""
    found = [_plain_header(members, intent) for intent in intents]
    return [*read(members), *found]


@plants(Plan("mixed transactions", parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=3000, first_seed=1154)
@replaces(transaction_record, "record_in")
def snapshots_look_past_early_checks(header_in: Any, image: Any, table: Any = None) -> Any:
    """A snapshot looks past the mark of a transaction that has checked its reads, and is over what it has read."""
    record = header_in(image, table)
    return None if record is None else record._replace(is_validated_early=False)


@plants(
    Plan("creations", parties=2, faults={Fault.CRASH_BEFORE: 1}),
    "Together",
    "NothingLeft",
    *_WRITE_CHECKS,
    limit=600,
    first_seed=125,
)
@replaces(write_intents, "_dropping")
def r12_placeholders_are_left_as_items(_original: Any, row: Any, intent: Any) -> Any:
    """A placeholder is treated like an item that was there before: without its mark, an empty item remains."""
    return write_intents._request(row, intent, replace(intent, set={}, remove=()))


_GIVEN_UP = Plan("sweepers", parties=1, processes=1, preemptions=0)


@plants(_GIVEN_UP.but(faults={Fault.LATE: 1}), "NothingLeft", limit=100, exhaustive=True)
def clean_while_a_mark_is_underway() -> Patches:
    """An aborted transaction is noted as clean although one of its marks was not answered, and arrives later."""
    return [(IntentWrite, "underway", property(lambda self: 0, lambda self, value: None))]


@plants(_GIVEN_UP.but(faults={Fault.CRASH_BEFORE: 1}), "NothingLeft", limit=100, exhaustive=True)
@replaces(MultiRequestCommit, "_remove_intents")
def clean_before_the_marks_are_dropped(drop: Any, self: Any) -> None:
    """An aborted transaction is noted as clean first: a process that dies then leaves marks that no sweep sees."""
    transaction_record.clean(self._record_table, self._record.id, is_certain=True)
    drop(self)


@plants(Plan("plain readers"), "PlainReads", limit=100)
@replaces(IntentWriter, "write_intent")
def values_beside_the_mark(intent: Any, self: Any, one: Any) -> None:
    """A mark stores what it intends in the item itself, before the decision: dirty reads."""
    intent(self, one)
    if one.intent.set:
        changes = list(enumerate(one.intent.set.items()))
        kwargs = {
            "TableName": one.row.table,
            "Key": one.row.key,
            "UpdateExpression": "SET " + ", ".join(f"#{i} = :{i}" for i, _ in changes),
            "ExpressionAttributeNames": {f"#{i}": name for i, (name, _) in changes},
            "ExpressionAttributeValues": {f":{i}": value for i, (_, value) in changes},
        }
        client.ask(one.row.connection, "UpdateItem", kwargs)


@plants(Plan("suspended", parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=400)
@replaces(suspension, "_check")
def resumed_without_a_look(_original: Any, member: Any, _: Any) -> None:
    """What a suspended transaction had read counts as unchanged, whatever is stored when it is resumed."""
    member.check()


@plants(Plan("suspended", parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=400)
def only_writes_are_suspended() -> Patches:
    """The row has what is to be written, and forgets what was only read: write skew."""
    is_kept = suspension._is_kept
    return [(suspension, "_is_kept", lambda member: member.write is not None and is_kept(member))]
