"""Bugs in what callers are told, also by `OutcomeUnknown.resolve`, in versions, and in the values that are read."""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.simulation.planted.modes import ITEM_FROM_BEFORE
from tests.support.mistakes import Change

_PAUSED = Plan("embedded", faults={Fault.PAUSE_BEFORE: 1})
_LOST_ONCE = Plan("embedded", faults={Fault.LOST_RESPONSE: 1, Fault.PAUSE_BEFORE: 1}, preemptions=0)
_LOST_TWICE = _LOST_ONCE.but(faults={Fault.LOST_RESPONSE: 2, Fault.PAUSE_BEFORE: 1})
_LATE_APPEND = Plan("append", parties=1, processes=1, rounds=2, faults={Fault.LATE: 1}, preemptions=0)
_EITHER = Plan("either", parties=4, processes=4, faults={Fault.LOST_REQUEST: 2})
_LATE = {Fault.LATE: 2}
_RESOLVED = Search(Plan("resolved transactions", faults=_LATE), "Truth", limit=300, first_seed=30)

_SETTLED: Final = "    refused = work.refused(rows, error, in_doubt=in_doubt)\n"
#: Neither DynamoDB knows a native transaction again, nor is a refusal taken for that of a second copy.
ANOTHER_TOKEN: Final = (
    Change("_writes/send.py", "(is_new or not work.token)", "True"),
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
        "own repetition forgotten: A guarded write forgets that it was sent again, unless botocore did so.",
        Search(_LOST_TWICE, "Truth", limit=250, exhaustive=True),
        Change("_writes/send.py", "error, in_doubt=sending.in_doubt", "error, in_doubt=responses.was_repeated(error)"),
    ),
    bug(
        "loss not noted: A write that is told that the lock is lost leaves it to the next heartbeat to note that.",
        Search(_PAUSED, "TrueLoss"),
        Change("_writes/send.py", "held.absent_from(state, is_removal=is_removal)", "pass"),
    ),
    bug(
        "unseen copy of the last write told as lost: It was repeated on the way, and is told as not done.",
        Search(Plan("edit", faults={Fault.DOUBLED: 1}), "TrueLoss", "Truth"),
        Change("_core/write_outcome.py", "why_absent(state, is_removal=True,", "why_absent(state, is_removal=False,"),
        Change("_writes/send.py", "return Outcome.APPLIED if is_stored else outcome", "return outcome"),
    ),
    bug(
        "unseen copy of a release told as lost: It takes its own doing for an eviction.",
        Search(Plan("embedded", faults={Fault.DOUBLED: 1}), "TrueLoss"),
        Change("_core/lock_queue.py", "else trace == ticket", "else trace == ticket or None"),
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
            "raise self.unknown(error) from error  #",
            'return {"Attributes": self.write.item.serialize()}  #',
        ),
    ),
    bug(
        "write known by its version: A repeated write takes the next version for its own, whichever writer made it.",
        Search(Plan("modify", faults={Fault.LOST_REQUEST: 1}), "Truth"),
        Change("_core/write_outcome.py", "1:\n        return Outcome.REJECTED", "1:\n        return Outcome.APPLIED"),
    ),
    bug(
        "append repeated: An update that does something else when done twice is repeated after a lost answer.",
        Search(Plan("append", faults={Fault.LOST_RESPONSE: 1}), "Truth"),
        Change("_items/conditions.py", "    return all(", "    return True or all("),
    ),
    bug(
        "new token for the same transaction: A repeated transaction has another token, and is refused.",
        Search(Plan("transact write", faults={Fault.LOST_RESPONSE: 2}), "Truth", limit=200),
        *ANOTHER_TOKEN,
    ),
    bug(
        "absence told as applied: An item that is absent tells that a transaction has deleted it.",
        Search(_EITHER, "Truth"),
        Change("_writes/send.py", "refusal.image is None and row is not work.item:", "False:"),
    ),
    bug(
        "write that met another region told as applied: A write that is refused for now counts as done.",
        Search(Plan("modify", faults={Fault.REPLICATED: 3}, preemptions=0), "Truth", limit=200),
        Change(
            "_writes/send.py",
            _ANSWERED,
            '            if responses.code_of(error) == "ReplicatedWriteConflictException":\n'
            f'                return {{"Attributes": work.write.item.serialize()}}\n{_ANSWERED}',
        ),
    ),
    bug(
        "write that met another region told as unknown: One that is refused for now seems unanswered.",
        Search(Plan("append", faults={Fault.REPLICATED: 1}, preemptions=0), "Truth", limit=200),
        Change(
            "_core/dynamodb.py",
            'ReplicatedWriteConflictException": Answer.CONFLICT',
            'ReplicatedWriteConflictException": Answer.UNANSWERED',
        ),
    ),
)

RESOLVED: Final = (
    bug(
        "what is not there yet told as never: A write that the item does not show may still come.",
        Search(Plan("resolved writes", parties=4, rounds=2, faults=_LATE), "Truth", limit=400),
        Change("_core/write_outcome.py", "return None\n        kind", "return Outcome.REJECTED\n        kind"),
    ),
    bug(
        "record that is only looked for: A transaction without a record is called not applied.",
        _RESOLVED,
        Change(
            "_io/transaction_record.py",
            "record_in(put_once(record_table, item, PRIORITY), record_table)",
            "read(record_table, record.id)",
        ),
    ),
    bug(
        "key that is only looked for: A transaction without a key is called not applied.",
        _RESOLVED,
        Change("_transactions/commit.py", "abandon(table, row, attempts)", "key_holder(table, row)"),
    ),
)

VERSIONS: Final = (
    bug(
        "version not checked: A write does not ask for the version that was read.",
        Search(Plan("modify"), "NothingLost"),
        Change("_items/versions.py", "if path is None or not self.is_checked:", "if True:"),
    ),
    bug(
        "version set not counted: A write that does not check the version sets it to the one it knows, plus one.",
        Search(Plan("append"), "Versions", limit=150),
        Change(
            "_items/versions.py", "else shape.count\n", "else shape.attribute.set((self.before.version or 0) + 1)\n"
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
        "plain read beside: An item is read past a transaction that is decided and not applied.",
        Search(Plan("edit, in steps"), "NothingLost", "Progress", limit=200),
        Change(
            "_models/attributes.py",
            "sending = RetryState(RetryPolicy(repeats=0))",
            "return Model.get.__func__(cls, hash_key, range_key, consistent_read=True)",
        ),
    ),
    bug(
        "item from before our turn: The item of a lock is as it was when we entered the queue.",
        Search(Plan("locked register"), "Linearizable"),
        *ITEM_FROM_BEFORE,
    ),
    bug(
        "replaced before it expires: A new item replaces one that will only expire within the next minute.",
        Search(Plan("expiring"), "Expiry"),
        Change("_items/expiry.py", "Condition = Place(name) <= _Now()", "Condition = Place(name) <= now_s() + 60"),
    ),
)

BUGS: Final = (*TOLD, *RESOLVED, *VERSIONS, *VALUES)
