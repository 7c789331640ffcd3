"""Bugs in what callers are told, also later by `OutcomeUnknown.resolve`, in versions, and in the values that are read."""

from __future__ import annotations

from typing import Final

from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.simulation.planted.modes import ITEM_FROM_BEFORE
from tests.support.mistakes import Change

_PAUSED = Plan("embedded", faults={Fault.PAUSE_BEFORE: 1})
_LOST_ONCE = Plan("embedded", faults={Fault.LOST_RESPONSE: 1, Fault.PAUSE_BEFORE: 1}, preemptions=0)
_LOST_TWICE = _LOST_ONCE.but(faults={Fault.LOST_RESPONSE: 2, Fault.PAUSE_BEFORE: 1})
_LATE_APPEND = Plan("append", parties=1, processes=1, rounds=2, faults={Fault.LATE: 1}, preemptions=0)
_UPDATES = Plan("updates beside", parties=1, processes=1, faults={Fault.LOST_RESPONSE: 4})
_EITHER = Plan("either", parties=4, processes=4, faults={Fault.LOST_REQUEST: 2})
_LATE = {Fault.LATE: 2}
_RESOLVED = Search(Plan("resolved transactions", faults=_LATE), "Truth", limit=300, first_seed=30)

_SETTLED: Final = "    refused = work.refused(rows, error, in_doubt=in_doubt)\n"
#: Neither DynamoDB knows a native transaction again, nor is a refusal taken for that of a second copy.
ANOTHER_TOKEN: Final = (
    Change(
        "_writes/send.py",
        "if work.is_transaction and (not work.token or not (work.is_named or sending.in_doubt or how is None)):",
        "if work.is_transaction:",
    ),
    Change(
        "_writes/send.py",
        _SETTLED,
        f"    if in_doubt and work.is_transaction:\n        raise work.failed(error) from error\n{_SETTLED}",
    ),
)
_ANSWERED: Final = "            answer = responses.answer_in(error, is_single=work.policy.is_single)\n"

TOLD: Final = (
    bug(
        "unknown guarded write told as lost: A guarded write of which nothing is known is reported as not done.",
        Search(_LOST_ONCE, "Truth", exhaustive=True),
        Change("_writes/send.py", "kind=self.kind, repeated=in_doubt)", "kind=self.kind, repeated=False)"),
    ),
    bug(
        "own repetition forgotten: A guarded write knows that botocore has sent it again, and not that it has done so itself.",
        Search(_LOST_TWICE, "Truth", limit=250, exhaustive=True),
        Change(
            "_writes/send.py",
            "in_doubt=sending.in_doubt)\n                if",
            "in_doubt=responses.was_repeated(error))\n                if",
        ),
    ),
    bug(
        "loss not noted: A write that is told that the lock is lost leaves it to the next heartbeat to note that.",
        Search(_PAUSED, "TrueLoss"),
        Change("_writes/send.py", "own.absent_from(state, is_removal=is_removal)", "pass"),
    ),
    bug(
        "unseen copy of the last write told as lost: The last write of an edit that was repeated on the way is told as not done.",
        Search(Plan("edit", faults={Fault.DOUBLED: 1}), "TrueLoss", "Truth"),
        Change("_core/write_outcome.py", "why_absent(state, is_removal=True,", "why_absent(state, is_removal=False,"),
        Change("_writes/send.py", "return Outcome.APPLIED if is_stored else outcome", "return outcome"),
    ),
    bug(
        "unseen copy of a release told as lost: A release that was repeated on the way takes its own doing for an eviction.",
        Search(Plan("embedded", faults={Fault.DOUBLED: 1}), "TrueLoss"),
        Change(
            "_core/lock_queue.py",
            "None if trace > ticket else trace == ticket",
            "None if trace > ticket else trace == ticket or None",
        ),
    ),
    bug(
        "unknown told as refused: A write of which nothing is known is reported as refused.",
        Search(Plan("modify", faults={Fault.LOST_RESPONSE: 1}), "Truth"),
        Change("_writes/write.py", "kind=self.kind, repeated=repeated)", "kind=self.kind, repeated=False)"),
    ),
    bug(
        "unknown told as applied: A write of which nothing is known is reported as done.",
        Search(_LATE_APPEND, "RealTime", exhaustive=True),
        Change(
            "_writes/send.py",
            "raise self.unknown(error) from error  # a later",
            'return {"Attributes": self.write.item.serialize()}  # a later',
        ),
    ),
    bug(
        "write known by its version: A repeated write takes the next version for its own, whichever writer made it.",
        Search(Plan("modify", faults={Fault.LOST_REQUEST: 1}), "Truth"),
        Change(
            "_core/write_outcome.py",
            "if before.is_same_life(seen) and before.version is not None and seen.version == before.version + 1:\n        return Outcome.REJECTED",
            "if seen.version == (before.version or 0) + 1:\n        return Outcome.APPLIED",
        ),
    ),
    bug(
        "append repeated: An update that does something else when done twice is repeated after a lost answer.",
        Search(Plan("append", faults={Fault.LOST_RESPONSE: 1}), "Truth"),
        Change("_items/conditions.py", "    return all(", "    return True or all("),
    ),
    bug(
        "copy without an update in doubt is saved: After an update of which nothing is known, the copy that lacks it is saved.",
        Search(_UPDATES, "NothingLost", limit=200),
        Change("_writes/write.py", "if self.operation is UPDATE and not self.is_shown:", "if False:"),
    ),
    bug(
        "new token for the same transaction: A transaction of which nothing is known is sent under another token, and refused.",
        Search(Plan("transact write", faults={Fault.LOST_RESPONSE: 2}), "Truth", limit=200),
        *ANOTHER_TOKEN,
    ),
    bug(
        "absence told as applied: A transaction counts as applied if an item that it deletes is absent, whoever deleted it.",
        Search(_EITHER, "Truth"),
        Change(
            "_writes/send.py",
            "if outcome is Outcome.APPLIED and refusal.image is None and row is not work.item:",
            "if False:",
        ),
    ),
    bug(
        "write that met another region told as applied: A write that is refused for now, for another Region, counts as done.",
        Search(Plan("modify", faults={Fault.REPLICATED: 3}, preemptions=0), "Truth", limit=200),
        Change(
            "_writes/send.py",
            _ANSWERED,
            '            if responses.code_of(error) == "ReplicatedWriteConflictException":\n'
            f'                return {{"Attributes": work.write.item.serialize()}}\n{_ANSWERED}',
        ),
    ),
    bug(
        "write that met another region told as unknown: A write that is refused for now counts as one without an answer.",
        Search(Plan("append", faults={Fault.REPLICATED: 1}, preemptions=0), "Truth", limit=200),
        Change(
            "_core/dynamodb.py",
            '"ReplicatedWriteConflictException": Answer.CONFLICT',
            '"ReplicatedWriteConflictException": Answer.UNANSWERED',
        ),
    ),
)

RESOLVED: Final = (
    bug(
        "what is not there yet told as never: A write that an item does not show is called not applied, and may still come.",
        Search(Plan("resolved writes", parties=4, rounds=2, faults=_LATE), "Truth", limit=400, first_seed=188),
        Change("_core/write_outcome.py", "return None\n        kind", "return Outcome.REJECTED\n        kind"),
    ),
    bug(
        "record that is only looked for: A transaction without a record is called not applied, and nothing takes its place.",
        _RESOLVED,
        Change(
            "_io/transaction_record.py",
            "record_in(put_once(record_table, item, PRIORITY), record_table) or record",
            "read(record_table, record.id) or record",
        ),
    ),
    bug(
        "key that is only looked for: A transaction without a key is called not applied, and its late copy finds the key free.",
        _RESOLVED,
        Change(
            "_transactions/commit.py",
            "transaction_record.abandon(table, row, attempts)",
            "transaction_record.key_holder(table, row)",
        ),
    ),
)

VERSIONS: Final = (
    bug(
        "version not checked: A write does not ask for the version that was read.",
        Search(Plan("modify"), "NothingLost"),
        Change("_items/versions.py", "if path is None or not self.is_checked:", "if True:"),
    ),
    bug(
        "change of a function that raises: All functions of a write change the same instance, those that raise included.",
        Search(Plan("combine", processes=1), "Truth"),
        Change("_models/edit.py", "mine = copy.deepcopy(item)", "mine = item"),
    ),
    bug(
        "answer of another caller: Once a function has raised, all callers that line up with it are told what it raised.",
        Search(Plan("combine", processes=1), "Truth"),
        Change(
            "_models/edit.py",
            "        self._error, self._saved, self.is_told = error,",
            '        self.line._told = error = error or getattr(self.line, "_told", None)\n        self._error, self._saved, self.is_told = error,',
        ),
    ),
    bug(
        "changes of an unknown write made again: After a write whose outcome is unknown its functions are applied once more.",
        Search(Plan("combine", parties=6, faults={Fault.LOST_RESPONSE: 2}), "Truth"),
        Change(
            "_models/edit.py",
            "isinstance(error, NotUnique) or not (is_of_dynamodb or isinstance(error, OutcomeUnknown))",
            "isinstance(error, OutcomeUnknown)",
        ),
    ),
    bug(
        "version set not counted: A write that does not check the version sets it to the one it knows, plus one.",
        Search(Plan("append"), "Versions", limit=150),
        Change(
            "_items/versions.py",
            "shape.begin if creates else shape.count,",
            "shape.attribute.set((self.before.version or 0) + 1),",
        ),
    ),
    bug(
        "write id not compared: An old copy passes for an item that was deleted and made anew with the same version.",
        Search(Plan("lives, no lock", parties=4, processes=4), "NothingLost", limit=220),
        Change("_items/versions.py", "if self.shape.write_id is None or self.before.write_id is None:", "if True:"),
    ),
)

VALUES: Final = (
    bug(
        "transaction in parts: A transaction is sent one action at a time.",
        Search(Plan("bank"), "Bank"),
        Change(
            "_writes/native_transaction.py",
            "            return send.send(self)",
            "            for row in self.all:\n"
            '                self.all, self.token = [row], ""\n'
            "                data = send.send(self)\n"
            "            return data",
        ),
    ),
    bug(
        "read set not checked: A transaction does not check what it has only read.",
        Search(Plan("lists", parties=3, processes=3), "OneOrder", limit=180),
        Change("_models/batch_writes.py", "self._assembly.add_check(key, write, None if", "(key, write, None if"),
    ),
    bug(
        "plain read beside: An item whose lock is elsewhere is read past a transaction that is decided and not applied.",
        Search(Plan("edit, in steps"), "NothingLost", limit=200),
        Change(
            "_models/attributes.py",
            '"""Read an item whose writes are transactions, since its lock is in another row."""',
            "return Model.get.__func__(cls, hash_key, range_key, consistent_read=True)",
        ),
    ),
    bug(
        "item from before our turn: The item of a lock is as it was when we entered the queue, not when our turn came.",
        Search(Plan("locked register"), "Linearizable"),
        ITEM_FROM_BEFORE,
    ),
    bug(
        "replaced before it expires: A new item replaces one that will only expire within the next minute.",
        Search(Plan("expiring"), "Expiry"),
        Change("_items/expiry.py", "condition | (Place(name) <= _Now())", "condition | (Place(name) <= now_s() + 60)"),
    ),
)

BUGS: Final = (*TOLD, *RESOLVED, *VERSIONS, *VALUES)
