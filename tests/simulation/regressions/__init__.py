"""Runs that went wrong once, each in a file: its plan, its choices, and one sentence on what was wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pynamo_locking_testing._engine.choices import Listed
from tests.simulation.plans import Plan
from tests.simulation.run import run

if TYPE_CHECKING:
    from tests.simulation.campaign import Failure
    from tests.simulation.run import Result

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Regression:
    """A run that went wrong once.

    Attributes:
        why: what was wrong.
        plan: its options.
        choices: its choices.
        then: what happens after the first fault, now that it is right: the actors and what they want; for what
            no checker sees.
    """

    why: str
    plan: Plan
    choices: tuple[int, ...]
    then: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Regression:
        """Return the run that a file holds."""
        given = json.loads(path.read_text(encoding="utf-8"))
        plan = Plan.from_json(json.dumps(given["plan"]))
        return cls(given["why"], plan, tuple(given["choices"]), tuple(given.get("then", ())))

    def replay(self) -> Result:
        """Make the run once more, twice."""
        return run(self.plan, Listed(self.choices))


def write(failure: Failure, path: Path) -> None:
    """Write a run that failed to a file; a developer who mends it adds what was wrong, and moves it to this folder."""
    assert failure.plan is not None
    fields = {"why": failure.message.partition("\n")[0], "plan": json.loads(failure.plan.to_json())}
    text = json.dumps({**fields, "choices": list(failure.choices)}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


def after_first_fault(result: Result) -> list[str]:
    """Return what happened after the first fault: who asked, and for what."""
    first = next(index for index, step in enumerate(result.trace) if step.fault)
    return [f"{step.actor} {step.step or step.purpose}" for step in result.trace[first + 1 :]]
