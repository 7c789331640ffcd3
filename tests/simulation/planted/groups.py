"""Bugs in group commit: what the callers of a group are told, and what they have read of it."""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.support.mistakes import Change

_GROUP: Final = "_transactions/group.py"
_PLAN = Plan("combined", parties=2, processes=1, rounds=2)
_LOST = _PLAN.but(faults={Fault.LOST_REQUEST: 3, Fault.LOST_RESPONSE: 3})
_ERRORS = Plan("combined, raised", parties=3, processes=2, rounds=2)
_OTHERS = Plan("combined", parties=3, processes=2, rounds=2)
_CHECKS = ("Truth", "NothingLost", "OneOrder", "Serializable", "Versions", "RealTime")

BUGS: Final = (
    bug(
        "half a group: Of the writes of an item only the first is sent, and the callers of the others hear of success.",
        Search(_PLAN, *_CHECKS),
        Change(_GROUP, "    if not writing[1:]:\n", "    if chain:\n"),
    ),
    bug(
        "doubt is not shared: No answer comes for a group, and its callers hear that it was committed.",
        Search(_LOST, *_CHECKS, limit=300),
        Change(
            _GROUP,
            "raise copy.copy(error) if writes else _again()",
            "return",
        ),
    ),
    bug(
        "errors are believed: A function that has read what was never committed raises, and its error is passed on.",
        Search(_ERRORS, "PlainReads", limit=300),
        Change(
            "_transactions/begin.py",
            "if misled is not None and (commit is None",
            "if error is None and (commit is None",
        ),
    ),
    bug(
        "refused together, told apart: DynamoDB refuses a group, and its callers hear of success.",
        Search(_OTHERS, *_CHECKS, limit=300),
        Change(
            _GROUP,
            "        if isinstance(error, (StaleVersion, TransactionConflict)) and",
            "        if isinstance(error, StaleVersion) and run is not own:\n            return\n"
            "        if isinstance(error, (StaleVersion, TransactionConflict)) and",
        ),
    ),
    bug(
        "joins with what it has read: It is not compared with what those before it in the group leave.",
        Search(_PLAN, *_CHECKS),
        Change(
            _GROUP,
            "return versions.known_of(item.model, group.content.leaves[item.identity].image or {}) != item.before",
            "return False",
        ),
    ),
)
