"""Bugs in transactions: one for each rule of the protocol, in sweeps, in suspension, and in locks of what is read."""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.simulation.planted.outcomes import ANOTHER_TOKEN
from tests.support.mistakes import Change

_WRITE_CHECKS = ("Truth", "NothingLost", "OneOrder", "Serializable", "Together", "Versions", "RealTime")
_CROWD = Plan("crowd", parties=3, processes=3)
_CREATIONS = Plan("creations", parties=3, processes=3, rounds=2)
_MIXED = Plan("mixed transactions", parties=3, processes=3, rounds=2)
_MIXED_BY_TWO = Plan("mixed transactions")
_CRASHED_CREATIONS = Plan("creations", faults={Fault.CRASH_BEFORE: 1})
_EITHER = Plan("either", parties=3, processes=3, rounds=2)
_LONG = Plan("long transactions")
_RESURRECTION = Plan("resurrection", faults={Fault.LATE: 1, Fault.CRASH_BEFORE: 1})
_GIVEN_UP = Plan("sweepers", parties=1, processes=1, preemptions=0)
_SUSPENDED = Search(Plan("suspended", parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=400)
_READS = Plan("locked reads", parties=3, processes=3)
_WRITES = Plan("locked writes", parties=3, processes=3)
_PAUSED_READS = _READS.but(rounds=2, faults={Fault.PAUSE_BEFORE: 1})

_BEGIN: Final = "            self._lease.begin()\n"
_DECIDE: Final = "            self._decide()\n"
_END: Final = "            self._end_after(error)\n"
_GIVE_UP: Final = """            if isinstance(error, OutcomeUnknown):
                raise self._given_up(error) from error
"""
_ABORT: Final = """transaction_record.abort(
                record_table, record.id, reason, heartbeats=record.heartbeats if reason == "expired" else None
            )"""
_FINISH: Final = "            self._run_in_batches(staged, self._finish_all, self._batches_of(staged))\n"
_REFUSED: Final = "self._assembly.note_refusal(aborted)  # unlike `error`, it leaves no doubt"
_DROP: Final = "            begun = [one for one in self._intent_writes if one.may_stand]\n"
_READ_TOGETHER: Final = "return transact_get(connection, gets)"

RULES: Final = (
    bug(
        "r1 numbers instead of stamps: An item that was created again passes for the old one.",
        Search(_CREATIONS, *_WRITE_CHECKS, limit=2000, first_seed=17),
        Change("_items/versions.py", "if self.shape.write_id is None or self.before.write_id is None:", "if True:"),
        Change("_core/write_outcome.py", "and self.write_id in (None, stored.write_id)", ""),
    ),
    bug(
        "r2 writers do not look for marks: A write does not ask whether a transaction has the item.",
        Search(_CROWD, *_WRITE_CHECKS, limit=400),
        Change("_io/protocol.py", 'Clause(if_="attribute_not_exists(#l.#tx)") + KNOWN_FORMAT', "KNOWN_FORMAT"),
    ),
    bug(
        "r3 marks before the header: A reader of a mark without a header takes it for an orphan.",
        Search(_LONG, *_WRITE_CHECKS, limit=400),
        Change("_transactions/commit.py", _BEGIN, ""),
        Change("_transactions/commit.py", _DECIDE, _BEGIN + _DECIDE),
    ),
    bug(
        "r4 marks dropped while pending: A mark is removed, and its transaction is not aborted.",
        Search(_LONG.but(faults={Fault.PAUSE_BEFORE: 1}), *_WRITE_CHECKS, limit=600, first_seed=130),
        Change("_io/write_intents.py", _ABORT, "record"),
        Change("_io/write_intents.py", "self._try_again(intents[:1], what) if", "drop(*intents[0]) if"),
    ),
    bug(
        "r5 plain reads validate: Plain reads show the old value of what is decided.",
        Search(_MIXED, *_WRITE_CHECKS, limit=3000, first_seed=530),
        Change(
            "_transactions/validation.py",
            _READ_TOGETHER,
            'plain = ({**each["Get"], "ConsistentRead": True} for each in gets)\n'
            '    return [transaction_record.client.ask(connection, "GetItem", each).get("Item") for each in plain]',
        ),
    ),
    bug(
        "r6 validation before everything is marked: Write skew.",
        Search(_MIXED, *_WRITE_CHECKS, limit=2000, first_seed=81),
        Change("_core/transactions.py", "tuple(sorted((*self.staged, *self.direct)))", "self.staged"),
    ),
    bug(
        "r7 absence is checked last: An item that was absent may have come and gone in between.",
        Search(_EITHER, "Together", limit=1000),
        Change("_transactions/validation.py", "item: not item.is_absent", "item: item.is_absent"),
    ),
    bug(
        "r8 placeholders after the decision: A late copy of a plain write makes one once more.",
        Search(_RESURRECTION, "Together", "NothingLeft", limit=1000),
        Change(
            "_transactions/prepare.py",
            "        send(_IntentWork(self, new, _PendingRecordRow(self.lease.table, self.lease.record.id)))\n",
            "        for one in new:\n            send(_IntentWork(self, [one]))\n",
        ),
    ),
    bug(
        "r9 finished before all items are: What meets a mark then drops it.",
        Search(_LONG.but(faults={Fault.CRASH_BEFORE: 1}), *_WRITE_CHECKS, limit=400, first_seed=84),
        Change(
            "_transactions/commit.py",
            _FINISH,
            f"            transaction_record.finish(self._table, self._id)\n{_FINISH}",
        ),
    ),
    bug(
        "r10 headers are forgotten at once: Missing means aborted.",
        Search(_MIXED_BY_TWO.but(faults={Fault.LOST_RESPONSE: 3}), "Truth", limit=1000, first_seed=83),
        Change(
            "_io/transaction_record.py",
            "image is None or (STATE",
            'image is None or image.get(STATE) == {"S": "finished"} or (STATE',
        ),
    ),
    bug(
        "r11 silence is taken for failure: No answer to the decision is told as a failure.",
        Search(_LONG.but(faults={Fault.LOST_RESPONSE: 3, Fault.LOST_REQUEST: 1}), "Truth", limit=600, first_seed=128),
        Change("_transactions/commit.py", _END, _GIVE_UP + _END),
    ),
    bug(
        "r11 another token for each attempt: A native transaction is not known again.",
        Search(Plan("native transactions", faults={Fault.LOST_RESPONSE: 3}), "Truth", limit=600),
        *ANOTHER_TOKEN,
    ),
    bug(
        "snapshots with headers of another moment: A mark that was pending is decided by now.",
        Search(_LONG.but(parties=3, processes=3, rounds=2), *_WRITE_CHECKS, limit=1000, first_seed=314),
        Change(
            "_transactions/validation.py",
            _READ_TOGETHER,
            "headers = [transaction_record.image_of(*record) for record in records]\n"
            "    return [*transact_get(connection, gets[: len(items)]), *headers]",
        ),
    ),
    bug(
        "snapshots look past early checks: It looks past a transaction that has checked its reads.",
        Search(_MIXED, *_WRITE_CHECKS, limit=3000, first_seed=1154),
        Change("_core/transactions.py", "PENDING and not record.is_validated_early", "PENDING"),
    ),
    bug(
        "r12 placeholders are left as items: An empty item remains of an aborted transaction.",
        Search(_CRASHED_CREATIONS, "Together", "NothingLeft", *_WRITE_CHECKS, limit=600, first_seed=125),
        Change("_io/write_intents.py", "    if intent.is_placeholder:\n", "    if False:\n"),
        Change("_io/write_intents.py", "remove=()), protocol.INTENT_OF_ITEM)", "remove=()))"),
    ),
)

LEFT: Final = (
    bug(
        "clean while a mark is underway: A mark of an aborted transaction may still arrive.",
        Search(_GIVEN_UP.but(faults={Fault.LATE: 1}), "NothingLeft", exhaustive=True),
        Change("_transactions/commit.py", "if any(one.underway for one in self._intent_writes):", "if False:"),
    ),
    bug(
        "clean before the marks are dropped: A process that dies in between leaves marks.",
        Search(_GIVEN_UP.but(faults={Fault.CRASH_BEFORE: 1}), "NothingLeft", exhaustive=True),
        Change(
            "_transactions/commit.py",
            _DROP,
            f"            transaction_record.clean(self._table, self._id, is_certain=True)\n{_DROP}",
        ),
    ),
    bug(
        "values beside the mark: A mark stores what it intends in the item itself, before the decision: dirty reads.",
        Search(Plan("plain readers"), "PlainReads"),
        Change("_transactions/prepare.py", "actions=[])", "actions=write.actions)"),
    ),
    bug(
        "resumed without a look: What a suspended transaction had read counts as unchanged.",
        _SUSPENDED,
        Change(
            "_transactions/suspension.py",
            "    item.before = known or Known()\n    item.check()\n    if not is_same:",
            "    item.check()\n    if False:",
        ),
    ),
    bug(
        "only writes are suspended: The row has what is to be written, and forgets what was only read: write skew.",
        _SUSPENDED,
        Change("_transactions/suspension.py", "return item.is_read or (", "return ("),
    ),
)

LOCKED_READS: Final = (
    bug(
        "for share takes no lock: A reader does not enter the queue, so what it has read changes before its commit.",
        Search(_READS, "OneOrder", "Serializable", "Progress"),
        Change("_transactions/items.py", "locking is not None:\n", "locking is not None and not locking.shared:\n"),
    ),
    bug(
        "for share is not checked: The commit trusts the shared lock, which a reader that stood still has lost.",
        Search(_PAUSED_READS, "OneOrder", "Serializable", limit=200),
        Change("_transactions/items.py", "or item.identity in self._checked:", "or False:"),
    ),
    bug(
        "each creator locks a name of its own: The lock of an absent item keeps out no other creator.",
        Search(Plan("creators", parties=2, processes=2), "Progress", limit=200),
        Change(
            "_transactions/items.py",
            "(model, target.row.key,",
            '(model, dict.fromkeys(target.row.key, {"S": runtime.current.token()}),',
        ),
    ),
    bug(
        "the item is not looked at again: Who gets the lock of the name takes it for that of the item.",
        Search(Plan("creators", parties=3, processes=3), "Progress", limit=200),
        Change("_transactions/items.py", "yield name\n                yield lock\n", "yield name\n"),
    ),
)

LOCKED_WRITES: Final = (
    bug(
        "the commit gives back an outer lock: A block that goes on to write loses its entry to a transaction inside.",
        Search(_WRITES, "Fence", "NothingLost"),
        Change("_transactions/items.py", "if held.depth == times:", "if held.depth:"),
    ),
    bug(
        "a refused commit has given back: Nothing was written, and the entries that it names stay in the queues.",
        Search(_WRITES, "KeptPlace", "Quiet"),
        Change(
            "_writes/native_transaction.py",
            "        for held in () if isinstance(error, OutcomeUnknown) else self.deleted_locks:",
            "        for held in self.removed:\n            held.ended()\n"
            "        for held in () if isinstance(error, OutcomeUnknown) else self.deleted_locks:",
        ),
    ),
    bug(
        "a refused decision has given back: The long transaction is aborted, and entries stay in the queues.",
        Search(_WRITES.but(workload="locked writes, long"), "KeptPlace", "Quiet"),
        Change(
            "_transactions/commit.py", _REFUSED, "for held in self._assembly.removed:\n                held.ended()"
        ),
    ),
)

_QUEUES = Plan("callers that queue", parties=3, processes=3, rounds=2)

QUEUES: Final = (
    bug(
        "a lock counts as a conflict: The last attempt of a call is refused by a lock, long before `wait` is over.",
        Search(_QUEUES, "Served", limit=200),
        Change(
            "_transactions/begin.py",
            "is_locked = self._most > 1 and isinstance(error, ItemLocked)",
            "is_locked = False",
        ),
    ),
    bug(
        "modify changes what it has read before: Of the refusal, and not of the grant.",
        Search(_QUEUES, "Served", limit=200),
        Change(
            "_models/mixins.py",
            "            change(item)\n            try:\n                block.close()",
            '            item.attribute_values = (getattr(found, "current", None) or item).attribute_values\n'
            "            change(item)\n            try:\n                block.close()",
        ),
    ),
    bug(
        "a refused attempt keeps its locks: They are not released.",
        Search(_QUEUES, "KeptPlace", "Stuck"),
        Change(
            "_transactions/items.py",
            "            for lock in self.held:\n                last_first",
            "            for lock in self.held[1:]:\n                last_first",
        ),
    ),
)

BUGS: Final = (*RULES, *LEFT, *LOCKED_READS, *LOCKED_WRITES, *QUEUES)
