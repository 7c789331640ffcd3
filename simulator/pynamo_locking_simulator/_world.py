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
from pynamo_locking.testing.clock import ClockView
from pynamo_locking_simulator._engine.choices import Recorded
from pynamo_locking_simulator._engine.faults import Fault, Faults
from pynamo_locking_simulator._engine.network import Network
from pynamo_locking_simulator._engine.processes import simulated_processes
from pynamo_locking_simulator._engine.runtime import SimulatedRuntime
from pynamo_locking_simulator._engine.scheduler import Process, Scheduler, Stuck
from pynamo_locking_simulator._story import Broken, Story
from pynamo_locking_simulator._surroundings import SimulationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pynamo_locking_simulator._engine.choices import Choices
    from pynamo_locking_simulator._engine.network import Change, Request
    from pynamo_locking_simulator._surroundings import Surroundings

#: What can happen at a request of anybody's code. Left out is what only concerns the package itself.
_KINDS: Final = tuple(fault for fault in Fault if fault not in {Fault.DOUBLED, Fault.HOT, Fault.REPLICATED})

#: What hits a process, whatever it asks for.
_OF_PROCESSES: Final = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER)

#: What hits requests, and may hit all attempts of one.
_OF_NETWORK: Final = (
    *(Fault.THROTTLED, Fault.NO_CONNECTION, Fault.FAILED_BEFORE, Fault.FAILED_AFTER),
    *(Fault.LOST_REQUEST, Fault.LOST_RESPONSE),
)
#: So many more attempts fail then, at most: more than PynamoDB makes unless it is told to.
_MOST_ATTEMPTS: Final = 5

#: The longest run: of simulated time, and of steps.
_LONGEST_S: Final = 366 * 24 * 3600.0
_MOST_STEPS: Final = 100_000

#: How a process may end under faults. Any other error is taken for a mistake in the code under test.
_EXPECTED: Final = (PynamoDBException, LockingError, ClientError, BotoCoreError)
#: Those of them that no fault causes.
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


@dataclass(eq=False)
class SimulatedProcess:
    """A process of a run.

    Attributes:
        name: as the story of a run calls it.
        has_returned: whether its function returned.
        result: what its function returned.
        error: what its function raised, also `SystemExit`.
    """

    name: str
    _process: Process
    has_returned: bool = False
    result: Any = None
    error: BaseException | None = None

    @property
    def is_killed(self) -> bool:
        """Whether it was killed in the middle of its function."""
        return not self._process.is_alive


class World:
    """What a test describes: who runs at the same time, and what must hold.

    What the test itself does with PynamoDB (create tables, save the first items) happens before the processes begin.
    Each run calls the test with an empty DynamoDB.

    Attributes:
        processes: those that were added.
    """

    def __init__(self, options: Options, choices: Choices, surroundings: Surroundings, seed: str) -> None:
        self._options = options
        self._surroundings = surroundings
        self._seed = seed
        self.choices = Recorded(choices)
        self._scheduler = Scheduler(self.choices, None, _LONGEST_S, self._count_step, is_fine=False)
        chance = random.Random(f"faults {seed}")  # noqa: S311 - repeatable, for tests
        self.faults = _Faults(self._scheduler, self.choices, _kinds(chance), chance.randint(0, options.faults))
        self._network = Network(self._scheduler, self.faults, options.pause_s)
        self._runtime = SimulatedRuntime(self._scheduler, self.choices, is_fine=False, has_jitter=False)
        self.story = Story(self._scheduler, options.pause_s, self._network.key_names)
        self._network.on_changes.append(self._on_changes)
        self._network.on_request.append(self.story.on_request)
        self.processes: list[SimulatedProcess] = []
        self._always: list[Callable[[], object]] = []
        self._finally: list[Callable[[], object]] = []
        self._is_looking, self._is_running = False, False
        self.error: Exception | None = None
        self.headline = ""

    # What a test says

    def process(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> SimulatedProcess:
        """Add a process that calls a function, once the test has described all of them.

        The function may be a coroutine function, which runs in an event loop of its process. It may end with an error
        of PynamoDB, botocore or pynamo_locking, or with one of ``raises``: under faults that is no mistake. Each other
        error fails the run. So do `DoesNotExist`, and errors that no fault causes, as of a table that is not there.

        Args:
            function: the code under test.
            arguments: what it is called with; dicts and lists are copied, as each delivery of a message is decoded.
            keywords: what else it is called with.

        Returns:
            The process. Once the run is over, it tells what its function returned or raised.
        """
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

    def always(self, holds: Callable[[], object]) -> None:
        """Require something before the processes begin, and after each write.

        Args:
            holds: returns False or raises an `AssertionError` if it does not hold. Its own reads are no steps of the
                run: they see what DynamoDB has stored at that moment.
        """
        self._check_describing("always", holds)
        self._always.append(holds)

    def finally_(self, holds: Callable[[], object]) -> None:
        """Require something once all processes have ended, and all late requests have arrived.

        Args:
            holds: as for `always`.
        """
        self._check_describing("finally_", holds)
        self._finally.append(holds)

    def _check_describing(self, name: str, function: Any) -> None:
        if self._is_running or self._is_looking:
            raise SimulationError(f"world.{name}() is for the test, and was called while its processes run")
        if not callable(function):
            raise SimulationError(
                f"world.{name}() needs a function, and not {function!r}: name it without calling it, or write lambda:"
            )

    # One run

    def run(self, test: Callable[[World], object]) -> None:
        """Let the test describe the run, and make it. What fails is in `error`; what the test raises is raised."""
        with self._surroundings.of(self._runtime, self._seed), self._network, simulated_processes(self._runtime):
            try:
                _check_synchronous("the test", test(self))
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
            self.headline = self.headline or f"no process can go on: {error}"
            if isinstance(error, Broken):
                self.headline = str(error)

    def _run_processes(self) -> None:
        self._look("always", self._always)
        self._is_running = True
        self._scheduler.run()
        self._scheduler.let_land()
        self._is_running = False
        self._look("finally_", self._finally)

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
            raise Stuck(f"they have not ended after {_MOST_STEPS:,} steps")

    def _on_changes(self, request: Request, changes: list[Change]) -> None:
        self.story.on_changes(request, changes)
        if changes and self._is_running and not self._is_looking:
            try:
                self._look("always", self._always)
            except Exception as error:
                self._scheduler.fail(error)  # the client would take it for an answer of DynamoDB's, and go on
                raise

    def _look(self, name: str, promises: list[Callable[[], object]]) -> None:
        """Check promises; reads for that are made by nobody, and take no time."""
        current, self._scheduler.current = self._scheduler.current, None
        now, self._is_looking = self._scheduler.now, True
        try:
            for holds in promises:
                _require(name, holds)
        finally:
            self._scheduler.current, self._scheduler.now, self._is_looking = current, now, False


class _Faults(Faults):
    """Faults as an application has them: few, but one of the network may last for all attempts of a request.

    A request that repeats one without a fault, as in a long wait, has none either: the wait would use them up.

    Args:
        scheduler: knows whose request it is, and which.
        choices: decide at each request.
        kinds: what may happen.
        most: how many faults may happen altogether.
    """

    def __init__(self, scheduler: Scheduler, choices: Recorded, kinds: list[Fault], most: int) -> None:
        super().__init__(choices, dict.fromkeys(kinds, most), most)
        self._scheduler = scheduler
        self._last: dict[Any, _Asked] = {}

    def at(self, operation: str, **more: Any) -> Fault | None:
        """Choose what happens to a request; None: nothing."""
        actor: Any = self._scheduler.current
        request = (operation, getattr(actor.doing, "kwargs", None))
        last = self._last.get(actor)
        if last is not None and last.request == request:
            return last.again(self._choices)
        fault = super().at(operation, **more)
        self._last[actor] = _Asked(request, fault)
        return fault


@dataclass
class _Asked:
    """The last request of an actor, its fault, and how many more attempts have the same."""

    request: object
    fault: Fault | None
    left: int | None = None

    def again(self, choices: Recorded) -> Fault | None:
        """Return the fault of the next attempt."""
        if self.fault not in _OF_NETWORK:
            return None
        if self.left is None:
            self.left = _MOST_ATTEMPTS * choices.pick(2, "outage")
        self.left -= 1
        return self.fault if self.left >= 0 else None


def _kinds(chance: random.Random) -> list[Fault]:
    """Return the kinds of faults that a run may have: some, so that all combinations come up, and none is rare."""
    if chance.random() < 1 / 2:
        return list(_OF_PROCESSES)
    return [kind for kind in _KINDS if chance.random() < 1 / 3]


def _require(name: str, holds: Callable[[], object]) -> None:
    try:
        told = holds()
    except AssertionError as error:
        detail = f": {error}".partition("\n")[0].removesuffix(": ")
        raise Broken(f"{name} does not hold: {_source(holds)}{detail}") from None
    except Exception as error:
        raise Broken(f"{name} raised {type(error).__name__}: {error}: {_source(holds)}") from error
    _check_synchronous(f"a check of {name}", told)
    if told is not None and not told:
        raise Broken(f"{name} does not hold: {_source(holds)}")


def _check_synchronous(what: str, told: object) -> None:
    if inspect.iscoroutine(told):
        told.close()
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
