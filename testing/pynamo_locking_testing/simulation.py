"""Search: many runs of one test, by seed; the first that fails is shrunk, and told."""

from __future__ import annotations

import functools
import inspect
import random
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking_testing._engine.choices import Listed, NotTheSame, Seeded, shrink
from pynamo_locking_testing._engine.strategies import STRATEGIES
from pynamo_locking_testing._run import Options, Run
from pynamo_locking_testing._story import Broken
from pynamo_locking_testing._surroundings import SimulationError, Surroundings
from pynamo_locking_testing._world import SimulatedProcess, World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamo_locking_testing._engine.choices import Choices

__all__ = ["Found", "SimulatedProcess", "SimulationError", "World", "simulate"]

#: How likely a fault is at each request, by run.
_RATES: Final = (0.05, 0.1, 0.2)


class Found(AssertionError):  # noqa: N818 - what it is
    """A run of the simulation that failed.

    Attributes:
        seed: of the run, for ``simulate(seed=...)``.
        story: what happened in it, line by line.
    """

    def __init__(self, message: str, seed: int = 0, story: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.seed = seed
        self.story = story


for _public in (Found, SimulatedProcess, SimulationError, World):
    _public.__module__ = "pynamo_locking_testing"  # as people import them, in the messages of test runners


def simulate(
    *,
    runs: int = 500,
    faults: int = 3,
    seed: int | None = None,
    raises: tuple[type[BaseException], ...] = (),
    pause_s: float = 120.0,
    clock_skew_s: float = 0.0,
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Run a test many times in a simulation, with random orders of requests and random faults.

    The test is called once a run, with a `World` as its argument ``world``; pytest gives it its other arguments. It
    prepares tables and items, adds processes, and says what must hold. A run is repeatable: it follows from its number.
    The first run has no faults, and its processes run one after the other.

    What is simulated: the requests of all PynamoDB connections, time, sleep, `random`, `uuid`, `os.urandom`, and the
    clocks, threads and heartbeats of pynamo_locking. Sockets, threads and other programs are refused. Processes share
    the memory of the test: a module global that one of them sets is seen by the others, and by the next run.

    Args:
        runs: how many runs to make.
        faults: how many faults a run may have, at most. At a request, a process is killed, or paused for ``pause_s``,
            before or after the request is applied. Or the request or its response is lost, or late; DynamoDB answers
            with status 500, throttles, or rejects it because of another transaction; there is no connection; an
            eventually consistent read returns an older item. A fault of the network may last for several attempts.
        seed: make only the run of this number, as the message of a failure says; with the same other arguments.
        raises: errors that the code under test may end with, besides those of PynamoDB, botocore and pynamo_locking.
        pause_s: how many seconds a paused process stands still. It loses locks whose leases are shorter.
        clock_skew_s: in some runs, the wall clock of a process is so many seconds ahead or behind.

    Returns:
        A decorator for a test function.

    Raises:
        Found: when the test is run: a run failed. Its message tells the shortest such run that was found, in sentences.
        SimulationError: the code under test, or the test, does what a simulation does not control.
    """
    options = Options(runs, faults, raises, pause_s, clock_skew_s)
    _check(options)

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        signature = inspect.signature(test)
        if "world" not in signature.parameters:
            raise SimulationError(f"{test.__name__}() has no argument `world`, which says who takes part")

        @functools.wraps(test)
        def searched(*arguments: Any, **keywords: Any) -> None:
            _search(lambda world: test(*arguments, world=world, **keywords), options, seed)

        others = [each for name, each in signature.parameters.items() if name != "world"]
        searched.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return searched

    return decorate


def _check(options: Options) -> None:
    if options.runs < 1:
        raise SimulationError(f"runs={options.runs}: make at least one run")
    if options.faults < 0 or options.pause_s < 0 or options.clock_skew_s < 0:
        raise SimulationError("faults, pause_s and clock_skew_s cannot be negative")


def _search(test: Callable[[World], object], options: Options, seed: int | None) -> None:
    with Surroundings() as surroundings:
        search = _Search(test, options, surroundings)
        never_returned: list[SimulatedProcess] | None = None  # of those of the first run
        for number in range(options.runs) if seed is None else [seed]:
            found = search.run_seed(number)
            if found.error is not None:
                raise search.failure(number, found) from _cause(found.error)
            returned = {process.name for process in found.processes if process.has_returned}
            before = found.processes if never_returned is None else never_returned
            never_returned = [process for process in before if process.name not in returned]
        if seed is None:
            _check_returned(never_returned or [], options)


def _check_returned(never_returned: list[SimulatedProcess], options: Options) -> None:
    """Refuse a search in which a process always ended with an error: what it would have done was never checked."""
    for process in never_returned:
        error = process.error
        if error is not None and not isinstance(error, options.raises):
            raise SimulationError(
                f"{process.name} returned in none of {_count(options.runs, 'run')}: without any fault it ended with "
                f"{type(error).__name__}: {error}. If that is right, name the error in raises=."
            )


class _Search:
    """Makes runs of a test."""

    def __init__(self, test: Callable[[World], object], options: Options, surroundings: Surroundings) -> None:
        self._test = test
        self._options = options
        self._surroundings = surroundings

    def run_seed(self, seed: int) -> Run:
        """Make the run of a number, and the first one twice: it must go the same way."""
        first = self._run(seed, _choices(seed))
        if seed == 0 or first.error is not None:
            self._check_repetition(seed, first)
        return first

    def _check_repetition(self, seed: int, first: Run) -> None:
        if isinstance(first.error, SimulationError):
            return
        try:
            again = self._run(seed, Listed(first.choices.taken))
            is_same = again.choices.taken == first.choices.taken and again.story.lines() == first.story.lines()
        except NotTheSame:
            is_same = False
        if not is_same:
            raise SimulationError(
                f"run {seed} went differently when it was repeated. Something in the code under test is not under "
                f"the control of the simulation: state that one run leaves for the next, for example, or the order "
                f"of a set."
            ) from first.error

    def _run(self, seed: int, choices: Choices) -> Run:
        run = Run(self._options, choices, self._surroundings, f"{seed}")
        run.make(self._test)
        if isinstance(run.error, NotTheSame):
            raise run.error
        return run

    def failure(self, seed: int, found: Run) -> BaseException:
        """Return the error that tells the shortest run found that fails in the same way."""
        assert found.error is not None
        if isinstance(found.error, SimulationError):
            return found.error
        best = self._shrunk(seed, found)
        lines = best.story.lines()
        deviations = _deviations(best.choices.taken)
        faults = best.faults.happened.total()
        size = (
            f"Run {seed}, shortened. It differs from one process after the other in {_count(deviations, 'choice')}, "
            f"with {_count(faults, 'fault')}. To repeat it, add seed={seed} to the arguments of simulate()."
        )
        message = "\n".join([" ".join(best.headline.split()), *(f"  {line}" for line in lines), size])
        return Found(message, seed, tuple(lines))

    def _shrunk(self, seed: int, found: Run) -> Run:
        kind = _kind(found.error)

        def attempt(choices: Sequence[int]) -> Run | None:
            try:
                again = self._run(seed, Listed(choices))
            except NotTheSame:
                return None
            return again if again.error is not None and _kind(again.error) == kind else None

        def fails(choices: Sequence[int]) -> bool:
            return attempt(choices) is not None

        return attempt(_with_fewer(shrink(found.choices.taken, fails), fails)) or found


def _with_fewer(choices: list[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Leave out choices, with those that only they made necessary, until that brings no fewer deviations."""
    best = choices
    for at in range(len(best) - 1, -1, -1):
        if at >= len(best) or not best[at]:
            continue
        shorter = [[*best[:at], *dull, *best[at + length :]] for length in range(1, 5) for dull in ([], [0])]
        fewer = next((each for each in shorter if _deviations(each) < _deviations(best) and fails(each)), None)
        if fewer is not None:
            return _with_fewer(fewer, fails)
    return best


def _deviations(choices: Sequence[int]) -> int:
    return sum(1 for choice in choices if choice)


def _choices(seed: int) -> Choices:
    if seed == 0:
        return Listed([])
    chance = random.Random(f"choices {seed}")  # noqa: S311 - repeatable, for tests
    strategies = tuple(STRATEGIES.values())
    return Seeded(chance, strategies[seed % len(strategies)](chance), {"fault": chance.choice(_RATES)})


def _kind(error: Exception | None) -> str:
    """Return what two runs must have in common to fail in the same way."""
    return str(error).partition("  (")[0] if isinstance(error, Broken) else type(error).__name__


def _cause(error: Exception) -> Exception | None:
    """Return the error of the code under test; a broken promise has none."""
    return None if isinstance(error, Broken) else error


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
