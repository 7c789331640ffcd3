"""One run: the processes that a test describes, on a simulated DynamoDB, in the order that choices ask for."""

from __future__ import annotations

import asyncio
import copy
import inspect
import linecache
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError
from pynamodb.exceptions import DoesNotExist, PynamoDBException, TableDoesNotExist

from pynamo_locking.exceptions import ConfigurationError, LockingError
from pynamo_locking_testing._engine.choices import Recorded
from pynamo_locking_testing._engine.network import Network
from pynamo_locking_testing._engine.processes import simulated_processes
from pynamo_locking_testing._engine.runtime import SimulatedRuntime
from pynamo_locking_testing._engine.scheduler import Process, Scheduler, Stuck
from pynamo_locking_testing._few_faults import FewFaults, kinds_of_run
from pynamo_locking_testing._story import Broken, Story
from pynamo_locking_testing._surroundings import SimulationError
from pynamo_locking_testing._world import SimulatedProcess, World
from pynamo_locking_testing.clock import ClockView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pynamo_locking_testing._engine.choices import Choices
    from pynamo_locking_testing._engine.network import Change, Request
    from pynamo_locking_testing._surroundings import Surroundings

#: The longest run: of simulated time, and of steps.
_LONGEST_S: Final = 366 * 24 * 3600.0
_MOST_STEPS: Final = 100_000

#: How a process may end under faults. Any other error is taken for a mistake in the code under test.
_EXPECTED: Final = (PynamoDBException, LockingError, ClientError, BotoCoreError)
#: Those of them that count as mistakes all the same.
_MISTAKES: Final = (ConfigurationError, DoesNotExist, TableDoesNotExist)
_CODES_OF_MISTAKES: Final = {"ResourceNotFoundException", "ValidationException"}


@dataclass(frozen=True)
class Options:
    """How runs are made: the arguments of `simulate`."""

    runs: int
    faults: int
    raises: tuple[type[BaseException], ...]
    pause_s: float
    clock_skew_s: float


class Run:
    """A simulated DynamoDB, its processes, and what became of them.

    Attributes:
        choices: those that were made.
        faults: those that happened.
        story: what happened.
        processes: those that the test has added.
        error: why the run has failed; None if it has not.
        headline: the same for people.
    """

    def __init__(self, options: Options, choices: Choices, surroundings: Surroundings, seed: str) -> None:
        self._options = options
        self._surroundings = surroundings
        self._seed = seed
        self.choices: Recorded = Recorded(choices)
        self._scheduler = Scheduler(self.choices, None, _LONGEST_S, self._count_step, is_fine=False)
        chance = random.Random(f"faults {seed}")  # noqa: S311 - repeatable, for tests
        self.faults: FewFaults = FewFaults(
            self._scheduler, self.choices, kinds_of_run(chance), chance.randint(0, options.faults)
        )
        self._network = Network(self._scheduler, self.faults, options.pause_s)
        self._runtime = SimulatedRuntime(self._scheduler, self.choices, is_fine=False, has_jitter=False)
        self.story: Story = Story(self._scheduler, options.pause_s, self._network.key_names)
        self._network.on_changes.append(self._on_changes)
        self._network.on_request.append(self.story.on_request)
        self.processes: list[SimulatedProcess] = []
        self._required: dict[str, list[Callable[[], object]]] = {"always": [], "finally_": []}
        self._is_looking, self._is_running = False, False
        self.error: Exception | None = None
        self.headline: str = ""

    # What a test says; see `World`

    def add(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> SimulatedProcess:
        """Add a process."""
        self._check_describing("process", function)
        skews_s = (0.0, self._options.clock_skew_s, -self._options.clock_skew_s)
        skew_s = skews_s[self.choices.pick(3, "skew")] if self._options.clock_skew_s else 0.0
        name = f"process {len(self.processes) + 1}"
        added = SimulatedProcess(name, Process(name, ClockView(self._scheduler, skew_s=skew_s)))
        self.processes.append(added)
        self.story.begins(name, skew_s)
        given = {key: _own(value) for key, value in keywords.items()}
        call: Callable[[], Any] = partial(function, *map(_own, arguments), **given)
        self._scheduler.spawn(added._process, "main", partial(self._live, added, call))
        return added

    def require(self, name: str, holds: Callable[[], object]) -> None:
        """Require something, always or at the end."""
        self._check_describing(name, holds)
        self._required[name].append(holds)

    def _check_describing(self, name: str, function: Any) -> None:
        if self._is_running or self._is_looking:
            raise SimulationError(f"world.{name}() is for the test itself, and was called in a process or in a check")
        if not callable(function):
            raise SimulationError(
                f"world.{name}() needs a function, and not {function!r}: name it without calling it, or write lambda:"
            )

    # The run itself

    def make(self, test: Callable[[World], object]) -> None:
        """Let the test describe the run, and make it. What fails is in `error`; what the test raises is raised."""
        with self._surroundings.of(self._runtime, self._seed), self._network, simulated_processes(self._runtime):
            try:
                _check_synchronous("the test", test(World(self)))
                self._play()
            finally:
                self._scheduler.end()
                for loop in self._runtime.loops:
                    loop.forget_tasks()

    def _play(self) -> None:
        if not self.processes:
            raise SimulationError("the test has added no process: call world.process(function, ...)")
        try:
            self._run_processes()
        except Exception as error:  # noqa: BLE001 - the result of the run
            self.error = error
            self.headline = self.headline or str(error)
            if isinstance(error, Broken):
                self.headline = str(error)

    def _run_processes(self) -> None:
        self._check_required("always")
        self._is_running = True
        self._scheduler.run()
        self._scheduler.let_land()
        self._is_running = False
        self._check_required("finally_")

    def _live(self, process: SimulatedProcess, call: Callable[[], Any]) -> None:
        try:
            result = call()
            if inspect.isawaitable(result):
                result = asyncio.run(_wait_for(result))
            process.result, process.has_returned = result, True
        except SystemExit as error:
            process.error, process.has_returned = error, not error.code
            self.story.ended(process.name, error)
        except Exception as error:
            process.error = error
            self.story.ended(process.name, error)
            if not _is_expected(error, self._options.raises):
                self.headline = f"{process.name} ended with {type(error).__name__}: {error}"
                raise

    def _count_step(self) -> None:
        if self._scheduler.steps > _MOST_STEPS:
            raise Stuck(f"the processes have not ended after {_MOST_STEPS:,} steps: does one go on for ever?")

    def _on_changes(self, request: Request, changes: list[Change]) -> None:
        self.story.on_changes(request, changes)
        if changes and self._is_running and not self._is_looking:
            try:
                self._check_required("always")
            except Exception as error:
                self._scheduler.fail(error)  # the client would take it for an answer of DynamoDB's, and go on
                raise

    def _check_required(self, name: str) -> None:
        """Check what is required; reads for that are made by nobody, and take no time."""
        current, self._scheduler.current = self._scheduler.current, None
        now, self._is_looking = self._scheduler.now, True
        try:
            for holds in self._required[name]:
                _require(name, holds)
        finally:
            self._scheduler.current, self._scheduler.now, self._is_looking = current, now, False


def _require(name: str, holds: Callable[[], object]) -> None:
    try:
        answer = holds()
    except AssertionError as error:
        detail = f": {error}".partition("\n")[0].removesuffix(": ")
        raise Broken(f"world.{name} failed: {_source(holds)}{detail}") from None
    except Exception as error:
        raise Broken(f"world.{name} raised {type(error).__name__}: {error}: {_source(holds)}") from error
    _check_synchronous(f"a check of world.{name}", answer)
    if answer is not None and not answer:
        raise Broken(f"world.{name} failed: {_source(holds)}")


def _check_synchronous(what: str, answer: object) -> None:
    if inspect.iscoroutine(answer):
        answer.close()
        raise SimulationError(f"{what} is a coroutine function, which nobody awaits: write it with `def`")


async def _wait_for(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _own(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, (dict, list)) else value


def _is_expected(error: BaseException, raises: tuple[type[BaseException], ...]) -> bool:
    """Tell whether code may end with an error under faults; of a group, all its errors count."""
    of_group = getattr(error, "exceptions", None)
    if isinstance(of_group, tuple):
        return all(_is_expected(each, raises) for each in of_group)
    if isinstance(error, raises):
        return True
    cause = error if isinstance(error, ClientError) else getattr(error, "cause", None)
    response: Any = cause.response if isinstance(cause, ClientError) else {}
    is_mistake = response.get("Error", {}).get("Code") in _CODES_OF_MISTAKES or isinstance(error, _MISTAKES)
    return isinstance(error, _EXPECTED) and not is_mistake


def _source(holds: Callable[[], object]) -> str:
    """Return how the test has written it, and where."""
    code = getattr(inspect.unwrap(holds), "__code__", None)
    if code is None:
        return repr(holds)
    name = code.co_name
    if name == "<lambda>":
        name = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f"{name}  ({Path(code.co_filename).name}:{code.co_firstlineno})"
