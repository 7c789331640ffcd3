"""The checkers of items that must be right together accept what is right and refuse what is wrong, in runs by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pynamo_locking_testing._engine.network import Place
from tests.simulation.checkers.by_hand import judged, judging, refused
from tests.simulation.checkers.intervals import LIMITS


def booking(begin: int, *, key: str = "d") -> Place:
    """Return where the item with that begin is."""
    return Place("booking", (key, begin))


def span(begin: int, end: int) -> dict[str, Any]:
    """Return an item."""
    return {"key": {"S": "d"}, "begin": {"N": str(begin)}, "end": {"N": str(end)}}


def decide(checker: Any, *actions: tuple[Place, str, dict[str, Any]]) -> None:
    """Have DynamoDB decide on a transaction of these actions, and apply nothing of it yet."""
    items = [{kind: {"Item" if kind == "Put" else "Key": image}} for _, kind, image in actions]
    places = tuple(place for place, _, _ in actions)
    checker.on_decided(SimpleNamespace(places=places, kwargs={"TransactItems": items}))


@pytest.mark.parametrize(
    ("stored", "is_right"),
    [
        ({10: 20}, True),
        ({10: 20, 20: 30}, True),
        ({20: 30, 10: 20}, True),
        ({10: 20, 19: 30}, False),
        ({19: 30, 10: 20}, False),
        ({10: 40, 20: 30}, False),
    ],
)
def test_disjoint(stored: dict[int, int], is_right: bool) -> None:
    """Items may touch, and not overlap, in whatever order they come; those of another hash key are apart."""
    history, checker = judging("Disjoint")
    history.wrote(checker, None, after={booking(15, key="other"): span(15, 25)})
    for begin, end in stored.items():
        history.wrote(checker, None, after={booking(begin): span(begin, end)})
    with judged("Disjoint", is_right):
        checker.on_step()


def test_disjoint_from_the_decision_on() -> None:
    """What is decided counts before it is applied, all at once; and what is deleted makes room."""
    history, checker = judging("Disjoint")
    history.wrote(checker, None, after={booking(10): span(10, 20)})
    decide(checker, (booking(15), "Put", span(15, 25)), (booking(10), "Delete", {}))
    checker.on_step()
    history.wrote(checker, None, after={booking(15): None})
    decide(checker, (booking(10), "Put", span(10, 20)), (booking(30), "ConditionCheck", {}))
    checker.at_end()
    decide(checker, (booking(12), "Put", span(12, 14)))
    with refused("Disjoint"):
        checker.at_end()


def test_an_overlap_is_told_though_it_is_gone() -> None:
    """What was wrong for a moment, between two steps, was wrong."""
    history, checker = judging("Disjoint")
    history.wrote(checker, None, after={booking(10): span(10, 20), booking(15): span(15, 25)})
    history.wrote(checker, None, after={booking(10): None})
    with refused("Disjoint"):
        checker.on_step()


@pytest.mark.parametrize("kind", LIMITS)
def test_limited(kind: str) -> None:
    """As many of a kind as are allowed, for each hash key."""
    history, checker = judging("Limited")
    for key, more in (("other", 0), ("d", 0), ("d", 1)):
        with judged("Limited", not more):
            for at in range(LIMITS[kind] + more):
                history.wrote(checker, None, after={Place("seat", (key, at)): {"kind": {"S": kind}}})
            checker.on_step()
