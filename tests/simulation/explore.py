"""Which runs are made: by seed, or all of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pynamo_locking_testing._engine.choices import Choices, Listed, Seeded, every_branch, shrink
from pynamo_locking_testing._engine.strategies import STRATEGIES
from tests.simulation.plans import RandomPlan, random_plan
from tests.simulation.run import Result, Run, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulation.plans import Plan


class Found(AssertionError):  # noqa: N818 - what it is
    """A run that failed, with everything that is needed to repeat it."""

    def __init__(self, result: Result, origin: str) -> None:
        self.result = result
        self.origin = origin
        super().__init__(
            f"{type(result.error).__name__}: {result.error}\n  from {origin}\n  replay: python -m tests.simulation "
            f"replay '{result.plan.to_json()}' {written(result.choices)}"
        )


def written(choices: Sequence[int]) -> str:
    """Return choices as the command line takes them."""
    return ",".join(map(str, choices)) or "-"


def parsed(text: str) -> list[int]:
    """Return the choices that were written as text."""
    return [] if text == "-" else [int(part) for part in text.split(",")]


def random_choices(of: RandomPlan) -> Choices:
    """Return the choices that follow from a seed."""
    chance = random.Random(f"choices {of.plan.workload} {of.seed}")
    return Seeded(chance, STRATEGIES[of.strategy](chance), {"fault": of.rate})


def run_seed(workload: str, seed: int, *, twice: bool = True) -> Result:
    """Run what follows from a seed."""
    derived = random_plan(workload, seed)
    return run(derived.plan, random_choices(derived), twice=twice)


def run_all(plan: Plan, *, repeated: int = 1, limit: int | None = None) -> Iterator[Result]:
    """Run a plan once for each list of choices; at most so many of them. Repeat each so-many-th run."""
    for number, choices in enumerate(every_branch()):
        if limit is not None and number >= limit:
            return
        yield run(plan, choices, twice=number % repeated == 0)


def shrunk(result: Result) -> Result:
    """Return a duller run that fails in the same way."""
    kind = str(result.error).partition(":")[0]

    def attempt(choices: list[int]) -> Result | None:
        try:
            again = Run(result.plan, Listed(choices)).execute()
        except Exception:  # noqa: BLE001 - these choices fit no run
            return None
        return again if again.error is not None and str(again.error).partition(":")[0] == kind else None

    best = shrink(result.choices, lambda choices: attempt(choices) is not None)
    return attempt(best) or result
