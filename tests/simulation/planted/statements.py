"""Bugs in batches of statements: of long transactions, which mark and finish their items by them, and of saves."""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.support.mistakes import Change

_WRITE_CHECKS = ("Truth", "NothingLost", "OneOrder", "Serializable", "Together", "Versions", "RealTime")
_MIXED = Plan("mixed, by statements", parties=3, processes=3, rounds=2)
_BATCH = Plan("batch, by statements", parties=3, processes=3, rounds=2)
_LONG = Plan("long, by statements", rounds=2)
_GIVEN_UP = Plan("sweepers, by statements", parties=1, processes=1, preemptions=0)
_LOST = {Fault.LOST_REQUEST: 3, Fault.FAILED_BEFORE: 3}

_BY_MIXED = Search(_MIXED, *_WRITE_CHECKS, limit=1000)
_BY_BATCH = Search(_BATCH, *_WRITE_CHECKS, limit=1000)
_BY_LOST = Search(_MIXED.but(faults=_LOST), *_WRITE_CHECKS, limit=2000)

_CONDITION: Final = '_in_partiql(kwargs["ConditionExpression"], kwargs, parameters)'
_RESULTS: Final = (
    'return [_result(statement, each) for statement, each in zip(batch, answer["Responses"], strict=True)]'
)
_UNANSWERED: Final = "if responses.is_ambiguous(error):\n        return StatementResult.UNKNOWN"
_BUSY: Final = 'StatementResult.BUSY if error.get("Code") in _BUSY'

_WITHOUT_CONDITION: Final = Change(
    "_io/batch_requests.py", _CONDITION, "f\"{_quoted(next(iter(kwargs['Key'])))} IS NOT MISSING\""
)
_LOST_IS_APPLIED: Final = Change("_io/batch_requests.py", _UNANSWERED, _UNANSWERED.replace("UNKNOWN", "APPLIED"))
_LOST_IS_REFUSED: Final = Change("_io/batch_requests.py", _UNANSWERED, _UNANSWERED.replace("UNKNOWN", "NOT_APPLIED"))

INTENTS: Final = (
    bug(
        "a statement without its condition: A statement names its item and checks nothing else of it.",
        _BY_MIXED,
        _WITHOUT_CONDITION,
    ),
    bug(
        "a refused statement counts as applied: Whatever came back for a statement, its write is taken for done.",
        _BY_MIXED,
        Change("_io/batch_requests.py", _RESULTS, "return [StatementResult.APPLIED] * len(batch)"),
    ),
    bug(
        "one success is taken for all: If one statement of a batch was applied, all are taken for applied.",
        _BY_MIXED,
        Change(
            "_io/batch_requests.py",
            _RESULTS,
            _RESULTS.replace("return", "results =")
            + "\n    return [StatementResult.APPLIED] * len(batch) if StatementResult.APPLIED in results else results",
        ),
    ),
    bug(
        "a lost batch counts as applied: A batch whose answer was lost is taken for applied, also if it never arrived.",
        _BY_LOST,
        _LOST_IS_APPLIED,
    ),
    bug(
        "a batch is repeated without looking: What is refused the second time counts as applied.",
        _BY_LOST,
        Change(
            "_io/batch_requests.py",
            "        return [_result_of_all(error)] * len(batch)\n",
            "        again = _result_of_all(error) is StatementResult.UNKNOWN and _send_together(first, batch)\n"
            "        return [StatementResult.APPLIED if again else _result_of_all(error)] * len(batch)\n",
        ),
    ),
    bug(
        "a throttled statement counts as applied: A statement that DynamoDB was too busy for is not sent again.",
        Search(_MIXED.but(faults={Fault.THROTTLED: 3, Fault.HOT: 2}), *_WRITE_CHECKS, limit=2000),
        Change("_io/batch_requests.py", _BUSY, 'StatementResult.APPLIED if error.get("Code") in dynamodb.THROTTLING'),
    ),
    bug(
        "a conflict of a statement counts as applied: One that another transaction has refused is not sent again.",
        Search(_MIXED.but(faults={Fault.CONFLICT: 3}), *_WRITE_CHECKS, limit=2000),
        Change("_io/batch_requests.py", _BUSY, 'StatementResult.APPLIED if error.get("Code") == "TransactionConflict"'),
    ),
    bug(
        "answers are matched to the wrong statements: The answers of a batch are read from its end.",
        _BY_MIXED,
        Change("_io/batch_requests.py", _RESULTS, _RESULTS.replace('"Responses"]', '"Responses"][::-1]')),
    ),
    bug(
        "only the first refusal of a batch is seen: After a refused statement the others are taken for applied.",
        Search(_MIXED.but(faults={Fault.THROTTLED: 3}), *_WRITE_CHECKS, limit=1000),
        Change(
            "_transactions/prepare.py",
            "                self.write_intent(one)\n\n    def write_intent",
            "                self.write_intent(one)\n                break\n\n    def write_intent",
        ),
    ),
    bug(
        "half of a batch is dropped: The second half of a batch is never sent, and is taken for applied.",
        _BY_MIXED,
        Change("_io/batch_requests.py", '{"Statements": batch}', '{"Statements": batch[: (len(batch) + 1) // 2]}'),
        Change(
            "_io/batch_requests.py",
            _RESULTS,
            f"{_RESULTS.replace('strict=True', 'strict=False')} + [StatementResult.APPLIED] * (len(batch) // 2)",
        ),
    ),
    bug(
        "a finish in a batch does not name its transaction: A finish is applied to whatever mark the item has.",
        Search(_LONG.but(faults={Fault.PAUSE_BEFORE: 2}), *_WRITE_CHECKS, limit=600, first_seed=3000),
        Change("_io/protocol.py", 'if_="#l.#tx.#id = :id"', 'if_="attribute_exists(#l.#tx.#id)"'),
    ),
    bug(
        "a lost batch counts as not applied: Marks of a batch without an answer arrive after a sweep.",
        Search(_GIVEN_UP.but(faults={Fault.LATE: 1}), "NothingLeft", exhaustive=True),
        _LOST_IS_REFUSED,
    ),
    bug(
        "a refused finish counts as applied: No mark of a batch is removed alone, whatever came back.",
        Search(_MIXED.but(faults=_LOST), *_WRITE_CHECKS, "NothingLeft", limit=2000, first_seed=85),
        Change("_io/write_intents.py", "if result is not StatementResult.APPLIED]", "if False]"),
    ),
    bug(
        "one header is taken for all marks: A header decides about the marks of other transactions.",
        Search(_MIXED, *_WRITE_CHECKS, limit=1000, first_seed=10),
        Change(
            "_io/write_intents.py",
            "if known in self._decided:\n            return self._decided[known]",
            "if self._decided:\n            return next(iter(self._decided.values()))",
        ),
    ),
)

SAVES: Final = (
    bug(
        "a save in a batch without its version: An UPDATE names its item and checks nothing else of it.",
        _BY_BATCH,
        _WITHOUT_CONDITION,
    ),
    bug(
        "one save of a batch stands for all: If one write of a batch was applied, all are told as applied.",
        _BY_BATCH,
        Change("_writes/writer.py", "result is StatementResult.APPLIED for", "StatementResult.APPLIED in results for"),
    ),
    bug(
        "one refusal in a batch stands for all: If one write was refused, all count as refused, and begin anew.",
        _BY_BATCH,
        Change(
            "_writes/writer.py",
            "    return [result is StatementResult.APPLIED for result in results]",
            "    if StatementResult.NOT_APPLIED in results:\n"
            "        for each in batch:\n"
            '            each.write.part.write_ids[:] = ["anew"]\n'
            "    return [all(result is StatementResult.APPLIED for result in results)] * len(results)",
        ),
    ),
    bug(
        "saves of a lost batch count as applied: A batch whose answer was lost is taken for applied.",
        Search(_BATCH.but(faults=_LOST), *_WRITE_CHECKS, limit=1000),
        _LOST_IS_APPLIED,
    ),
    bug(
        "saves of a lost batch count as refused: A batch whose answer was lost is taken for lost on its way.",
        Search(_BATCH.but(faults={Fault.LOST_RESPONSE: 3, Fault.FAILED_AFTER: 3}), *_WRITE_CHECKS, limit=2000),
        _LOST_IS_REFUSED,
    ),
)

BUGS: Final = (*INTENTS, *SAVES)
