"""What a planted bug is, and how it is searched for."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pynamo_locking_testing._engine.choices import Choices, Seeded, every_branch
from pynamo_locking_testing._engine.strategies import STRATEGIES
from tests.simulation.checkers import Violation
from tests.simulation.run import Result, Run
from tests.support import mistakes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.simulation.plans import Plan
    from tests.support.mistakes import Change

#: How likely a fault is at each request that it can hit: plans for bugs have few kinds, and few of each.
_RATE: Final = 0.25


class Search:
    """Where a bug is to be found.

    Args:
        plan: workload and options of the runs in which it shows.
        found_by: the checkers of which one has to notice it first.
        limit: after so many runs it must have been found.
        first_seed: where the tests begin to search, for a bug that takes long to find from elsewhere.
        exhaustive: whether all runs of the plan are made, one after the other, instead of random ones.
    """

    def __init__(
        self, plan: Plan, *found_by: str, limit: int = 100, first_seed: int = 0, exhaustive: bool = False
    ) -> None:
        self.plan = plan
        self.found_by = found_by
        self.limit = limit
        self.first_seed = first_seed
        self.is_exhaustive = exhaustive


@dataclass(frozen=True, eq=False)
class Bug:
    """A mistake in the package by its name, one sentence on what it breaks, and where it is to be found."""

    name: str
    breaks: str
    search: Search
    changes: tuple[Change, ...]

    def planted(self) -> AbstractContextManager[list[str]]:
        """Have the bug in the package for a while; the list gets the errors of code that cannot work."""
        return mistakes.planted(self.name, self.changes)


def bug(said: str, search: Search, *changes: Change) -> Bug:
    """Return a bug that is said as ``name: what it breaks``."""
    name, _, breaks = said.partition(": ")
    return Bug(name, breaks, search, changes)


# Searching


def choices_of(plan: Plan, seed: int) -> Choices:
    """Return the choices that follow from a plan and a seed; the strategies take turns."""
    chance = random.Random(f"planned {plan.workload} {seed}")
    strategy = tuple(STRATEGIES.values())[seed % len(STRATEGIES)](chance)
    return Seeded(chance, strategy, {"fault": _RATE})


def search(bug: Bug, first_seed: int, limit: int) -> tuple[int, Result | None]:
    """Make the runs in which a bug is to be found, until one fails; return how many there were, and that one.

    With one seed after the other, or all there are if the bug is to be found exhaustively.
    """
    plan = bug.search.plan
    seeds = range(first_seed, first_seed + limit)
    all_choices = every_branch() if bug.search.is_exhaustive else (choices_of(plan, seed) for seed in seeds)
    made = 0
    for choices in itertools.islice(all_choices, limit):
        made += 1
        result = Run(plan, choices).execute()
        if result.error is not None:
            return made, result
    return made, None


def runs_until_found(bug: Bug, first_seed: int, limit: int) -> int | None:
    """Return how many runs it takes to find a bug; None if it is not found within the limit, or cannot work."""
    with bug.planted() as broken:
        runs, found = search(bug, first_seed, limit)
    return None if found is None or broken else runs


def checker_of(error: BaseException) -> str:
    """Return which checker raised an error: the first word of a violation; else the name of its class."""
    return str(error).partition(":")[0] if isinstance(error, Violation) else type(error).__name__
