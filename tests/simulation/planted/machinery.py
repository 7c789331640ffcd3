"""What a planted bug is, and how it is searched for."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking_simulator._engine.choices import Choices, Seeded, every_branch
from pynamo_locking_simulator._engine.strategies import STRATEGIES
from tests.simulation.checkers import Violation
from tests.simulation.run import Result, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.plans import Plan


#: What is replaced: an attribute of a module or a class, by what.
Patches = list[tuple[Any, str, Any]]

#: How likely a fault is at each request that it can hit: plans for bugs have few kinds, and few of each.
_RATE: Final = 0.25


@dataclass(frozen=True, eq=False)
class Bug:
    """A mutation of the library, and where it is to be found.

    Attributes:
        name: what it is called.
        breaks: one sentence on what it breaks.
        plan: workload and options of the runs in which it shows.
        found_by: the checkers of which one has to notice it first.
        limit: after so many runs it must have been found.
        is_exhaustive: whether all runs of the plan are made, one after the other, instead of random ones.
        patches: what is replaced in the library.
        first_seed: where `make test` begins to search, for a bug that takes long to find from elsewhere.
        module: that plants it.
    """

    name: str
    breaks: str
    plan: Plan
    found_by: tuple[str, ...]
    limit: int
    is_exhaustive: bool
    patches: Patches
    first_seed: int
    module: str

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug in the library for a while."""
        with contextlib.ExitStack() as undo:
            for target, name, value in self.patches:
                assert hasattr(target, name) or name == "token", (
                    f"{target!r} has no {name!r}: the bug would not be there"
                )
                if name in vars(target):
                    undo.callback(setattr, target, name, vars(target)[name])
                else:
                    undo.callback(delattr, target, name)
                setattr(target, name, value)
            yield


BUGS: Final[list[Bug]] = []


def plants(
    plan: Plan, *found_by: str, limit: int = 100, exhaustive: bool = False, first_seed: int = 0
) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Make a bug of a function: it returns the patches, its name is the bug's, its docstring says what breaks.

    With `replaces` below it, the function is the one that has the bug.
    """

    def add(function: Callable[[], Patches]) -> Callable[[], Patches]:
        name = function.__name__.replace("_", " ").strip()
        bug = Bug(
            name, function.__doc__ or "", plan, found_by, limit, exhaustive, function(), first_seed, function.__module__
        )
        BUGS.append(bug)
        return function

    return add


def replaces(target: Any, name: str) -> Callable[[Callable[..., Any]], Callable[[], Patches]]:
    """Make the patches of a function that is called instead of this one, which it gets as its first argument."""
    original = getattr(target, name)

    def patches_of(function: Callable[..., Any]) -> Callable[[], Patches]:
        def planted(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        return functools.update_wrapper(lambda: [(target, name, planted)], function)

    return patches_of


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
    seeds = range(first_seed, first_seed + limit)
    all_choices = every_branch() if bug.is_exhaustive else (choices_of(bug.plan, seed) for seed in seeds)
    made = 0
    for choices in itertools.islice(all_choices, limit):
        made += 1
        result = Run(bug.plan, choices).execute()
        if result.error is not None:
            return made, result
    return made, None


def runs_until_found(bug: Bug, first_seed: int, limit: int) -> int | None:
    """Return how many runs it takes to find a bug; None if it is not found within the limit."""
    return _runs_until_found(bug, 0 if bug.is_exhaustive else first_seed, limit)


@functools.cache
def _runs_until_found(bug: Bug, first_seed: int, limit: int) -> int | None:
    with bug.planted():
        runs, found = search(bug, first_seed, limit)
    return None if found is None else runs


def checker_of(error: BaseException) -> str:
    """Return which checker raised an error: the first word of a violation; else the name of its class."""
    return str(error).partition(":")[0] if isinstance(error, Violation) else type(error).__name__
