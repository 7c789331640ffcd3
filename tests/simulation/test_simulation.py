"""The slice of the simulation that every `make test` makes; `make simulate` goes on where `make test-all` ends.

Two parties in every order under each single fault; three parties with two preemptions at most, up to a number of
runs; and seeds over everything. Another range of seeds: `SIMULATION_SEED=12345`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.campaign import SINGLE_FAULTS, Exhaustive, Seeds, once
from tests.simulation.plans import Plan
from tests.simulation.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_SEED: Final = int(os.environ.get("SIMULATION_SEED", "0"))

#: Seeds of each workload that `make test` makes, and those of `make test-all`.
TESTED: Final = range(2)
LEFT: Final = range(2, 30)

#: Two parties in these workloads have small spaces, which come to their end; but for a few.
TWO_PARTIES: Final = ("embedded", "modify", "break lock")
LARGEST: Final = 400
UNFINISHED: Final = {("embedded", Fault.LATE), ("embedded", Fault.HOT)}
LARGEST_OF_TWO: Final = "embedded"
#: The faults with which `make test` searches; with the others, and the largest space with any, `make test-all` does.
CHOSEN: Final = (None, Fault.LOST_RESPONSE, Fault.LATE, Fault.CRASH_AFTER, Fault.PAUSE_AFTER)

#: Three parties have tens of thousands of runs, of which these are the first; `make simulate` goes on.
THREE_PARTIES: Final = ("embedded", "edit")
PART: Final = 20

#: Two parties in these, without any fault.
MODES: Final = ("readers", "downgrade", "semaphore", "named ranges", "ranges of items")


def _searched() -> Iterator[Any]:
    for workload, kind in WORKLOADS.items():
        part = 2 if kind.halves_seeds else 1
        for seeds, marks in ((TESTED, [pytest.mark.core]), (LEFT, [pytest.mark.slow])):
            yield pytest.param(workload, seeds.start // part, len(seeds) // part, marks=marks)


def _name(fault: Fault | None) -> str:
    return "no fault" if fault is None else fault.value


def _two_parties() -> Iterator[Any]:
    for workload in TWO_PARTIES:
        for fault in SINGLE_FAULTS:
            is_left = fault not in CHOSEN or (workload == LARGEST_OF_TWO and fault is not None)
            marks = [pytest.mark.slow] if is_left else []
            yield pytest.param(workload, fault, marks=marks, id=f"{workload}-{_name(fault)}")


def _faults_of_three() -> Iterator[Any]:
    for fault in SINGLE_FAULTS:
        yield pytest.param(fault, marks=[] if fault in CHOSEN[:3] else [pytest.mark.slow], id=_name(fault))


@pytest.mark.parametrize(("workload", "fault"), [*_two_parties()])
def test_two_parties_in_every_order(workload: str, fault: Fault | None) -> None:
    """Whichever party runs when, and wherever the fault strikes: nothing is violated. The space is complete."""
    plan = Plan(workload, faults=once(fault))
    runs = sum(1 for _ in Exhaustive(plan, LARGEST).results())
    is_complete = runs < LARGEST
    assert is_complete or (workload, fault) in UNFINISHED, "the space has grown: say so, or raise the limit"


@pytest.mark.parametrize("workload", [MODES[0], *(pytest.param(each, marks=pytest.mark.slow) for each in MODES[1:])])
def test_two_parties_in_every_mode(workload: str) -> None:
    """Readers, permits and ranges: two parties in every order, where nothing goes wrong. The space is complete."""
    assert 0 < sum(1 for _ in Exhaustive(Plan(workload), LARGEST).results()) < LARGEST


@pytest.mark.parametrize("fault", list(_faults_of_three()))
@pytest.mark.parametrize("workload", THREE_PARTIES)
def test_three_parties_with_few_preemptions(workload: str, fault: Fault | None) -> None:
    """Three parties, two preemptions, one fault: nothing is violated in the first runs of that space."""
    plan = Plan(workload, 3, 3, faults=once(fault), preemptions=2)
    assert sum(1 for _ in Exhaustive(plan, PART).results()) > 0


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER], ids=_name)
@pytest.mark.parametrize(
    "workload",
    [
        "long, by statements",
        "creations",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("long transactions", "mixed transactions", "unique values, claimed")
        ),
    ],
)
def test_a_coordinator_dies_at_every_request(workload: str, fault: Fault) -> None:
    """Before and after each request of a transaction, and in the middle of each native one: all or nothing of it."""
    plan = Plan(workload, 1, 1, faults=once(fault))
    runs = sum(1 for _ in Exhaustive(plan, LARGEST).results())
    assert runs < LARGEST, "the space has grown: say so, or raise the limit"


@pytest.mark.parametrize(("workload", "first", "count"), [*_searched()])
def test_seeds(workload: str, first: int, count: int) -> None:
    """What follows from a seed, with many faults at once, in any mixture: nothing is violated."""
    print(f"SIMULATION_SEED={FIRST_SEED}")  # noqa: T201 - shown if it fails
    assert sum(1 for _ in Seeds(workload, FIRST_SEED + first, count).results()) == count
