"""The searches: which plans, how far, and what was counted on the way. For the tests and the command line alike."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking_testing._engine.choices import NotTheSame
from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.explore import Found, run_all, run_seed
from tests.simulation.plans import Plan, random_plan
from tests.simulation.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.run import Result

#: One kind of fault at a time, and none.
SINGLE_FAULTS: Final[tuple[Fault | None, ...]] = (None, *Fault)

#: Each fourth run is made twice, and each one that fails. The second one must be the same: what the choices do not
#: decide shows as well in a part of the runs. An exhaustive search sees it in any run, as it walks the same choices.
REPEATED: Final = 4

#: Runs after which an exhaustive search is given up, and says so: the largest spaces have millions.
LIMIT: Final = 20_000


@dataclass
class Tally:
    """What was counted in many runs.

    Attributes:
        runs: how many there were, repetitions not counted.
        requests: how many attempts of requests.
        told: what callers were told, by outcome.
        happened: how often each fault happened.
        runs_with: in how many runs each fault happened.
    """

    runs: int = 0
    requests: int = 0
    told: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    runs_with: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.runs += 1
        self.requests += len(result.trace)
        for told, times in result.told.items():
            self.told[told.value] += times
        for fault, times in result.happened.items():
            self.happened[fault.value] += times
            self.runs_with[fault.value] += 1

    def merge(self, other: Tally) -> None:
        """Count all runs of another tally."""
        self.runs += other.runs
        self.requests += other.requests
        self.told += other.told
        self.happened += other.happened
        self.runs_with += other.runs_with


@dataclass(frozen=True)
class Failure:
    """A run that failed, as plain data: it goes from process to process and into files.

    Attributes:
        message: what was wrong and how to repeat it.
        plan: the options of the run; None if it could not even be repeated.
        choices: its choices.
    """

    message: str
    plan: Plan | None = None
    choices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exhaustive:
    """All runs of a plan, up to a limit."""

    plan: Plan
    limit: int = LIMIT

    def __str__(self) -> str:
        faults = ", ".join(fault.value for fault in self.plan.faults) or "no fault"
        bound = "" if self.plan.preemptions is None else f", preemptions <= {self.plan.preemptions}"
        return f"{self.plan.workload}: {self.plan.parties} parties, {faults}{bound}"

    def results(self) -> Iterator[Result]:
        """Make the runs, and stop with `Found` at one that fails."""
        for number, result in enumerate(run_all(self.plan, limit=self.limit, repeated=REPEATED), start=1):
            if result.error is not None:
                raise Found(result, f"run {number} of all runs of {self}")
            yield result


@dataclass(frozen=True)
class Seeds:
    """One run for each seed of a range."""

    workload: str
    first: int
    count: int

    def __str__(self) -> str:
        return f"{self.workload}: seeds {self.first} to {self.first + self.count - 1}"

    def results(self) -> Iterator[Result]:
        """Make the runs, and stop with `Found` at one that fails."""
        for seed in range(self.first, self.first + self.count):
            result = run_seed(self.workload, seed, twice=seed % REPEATED == 0)
            if result.error is not None:
                raise Found(result, str(random_plan(self.workload, seed)))
            yield result


Search = Exhaustive | Seeds


def exhaustive_searches(limit: int = LIMIT) -> Iterator[Exhaustive]:
    """Yield two parties, interrupted anywhere, then three with few preemptions; each single fault; workloads in turn.

    Small spaces come first, so that a short campaign sees all workloads.
    """
    for parties, preemptions in ((2, None), (3, 2)):
        for fault, workload in itertools.product(SINGLE_FAULTS, WORKLOADS):
            yield Exhaustive(Plan(workload, parties, parties, faults=once(fault), preemptions=preemptions), limit)


def rotating_seeds(first: int, chunk: int) -> Iterator[Seeds]:
    """Yield chunks of seeds without end, the workloads in turn."""
    for start in itertools.count(first, chunk):
        for workload in WORKLOADS:
            yield Seeds(workload, start, chunk)


def once(fault: Fault | None) -> dict[Fault, int]:
    """Return the faults of a plan that has this one, once, or none."""
    return {} if fault is None else {fault: 1}


def conduct(
    search: Search, on_run: Callable[[Result], Any] = lambda _: None, stops: Callable[[], bool] = lambda: False
) -> tuple[Tally, Failure | None]:
    """Make all runs of a search, or those until it stops or fails; return the counts, and what failed."""
    tally = Tally()
    try:
        for result in search.results():
            tally.add(result)
            on_run(result)
            if stops():
                break
    except Found as found:
        return tally, Failure(str(found), found.result.plan, tuple(found.result.choices))
    except NotTheSame as error:
        return tally, Failure(f"{error}\n  in {search}")
    return tally, None
