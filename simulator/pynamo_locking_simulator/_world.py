"""One run: the processes that a test describes, on a simulated DynamoDB, in the order that choices ask for."""

from __future__ import annotations

import inspect
import linecache
import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError
from pynamodb.exceptions import PynamoDBException

from pynamo_locking.exceptions import ConfigurationError, LockingError
from pynamo_locking.testing.clock import ClockView
from pynamo_locking_simulator._engine import loop
from pynamo_locking_simulator._engine.choices import Recorded
from pynamo_locking_simulator._engine.faults import Fault, Faults
from pynamo_locking_simulator._engine.network import Network
from pynamo_locking_simulator._engine.processes import simulated_processes
from pynamo_locking_simulator._engine.runtime import SimulatedRuntime
from pynamo_locking_simulator._engine.scheduler import Process, Scheduler, Stuck
from pynamo_locking_simulator._story import Broken, Story
from pynamo_locking_simulator._surroundings import SimulationError

if TYPE_CHECKING:
    from collections.abc import Callable

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
_MOST_STEPS: Final = 20_000

#: How a process may end under faults. Any other error is taken for a mistake in the code under test.
_EXPECTED: Final = (PynamoDBException, LockingError, ClientError, BotoCoreError)


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
        error: what its function raised.
    """

    name: str
    _process: Process
    has_returned: bool = False
    result: Any = None
    error: BaseException | None = None
    _loops: list[Any] = field(default_factory=list)

    @property
    def is_killed(self) -> bool:
        """Whether it was killed in the middle of its function."""
        return not self._process.is_alive


class World:
    """What a test describes: who runs at the same time, and what must hold.

    What the test itself does with PynamoDB (create tables, save the first items) happens before the processes begin.
    Each run calls the test with an empty DynamoDB.
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
        self.story = Story(self._scheduler, options.pause_s)
        self._network.on_changes.append(self._on_changes)
        self._network.on_request.append(self.story.on_request)
        self._processes: list[SimulatedProcess] = []
        self._always: list[Callable[[], object]] = []
        self._finally: list[Callable[[], object]] = []
        self._is_looking, self._is_running = False, False
        self.error: Exception | None = None

    # What a test says

    def process(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> SimulatedProcess:
        """Add a process that calls a function, once the test has described all of them.

        The function may be a coroutine function, which runs in an event loop of its process. It may end with an error
        of PynamoDB, botocore or pynamo_locking, or with one of ``raises``: under faults that is no mistake. Each other
        error fails the run.

        Args:
            function: the code under test.
            arguments: what it is called with.
            keywords: what else it is called with.

        Returns:
            The process. Once the run is over, it tells what its function returned or raised.
        """
        self._check_describing("process")
        skews_s = (0.0, self._options.clock_skew_s, -self._options.clock_skew_s)
        skew_s = skews_s[self.choices.pick(3, "skew")] if self._options.clock_skew_s else 0.0
        name = f"process {len(self._processes) + 1}"
        added = SimulatedProcess(name, Process(name, ClockView(self._scheduler, skew_s=skew_s)))
        self._processes.append(added)
        call: Callable[[], Any] = partial(function, *arguments, **keywords)
        if inspect.iscoroutinefunction(function):
            call = partial(loop.run, call, added._loops.append)
        self._scheduler.spawn(added._process, "main", partial(self._live, added, call))
        return added

    def always(self, holds: Callable[[], object]) -> None:
        """Require something before the processes begin, and after each write.

        Args:
            holds: returns False or raises an `AssertionError` if it does not hold. Its own reads are no steps of the
                run: they see what DynamoDB has stored at that moment.
        """
        self._check_describing("always")
        self._always.append(holds)

    def finally_(self, holds: Callable[[], object]) -> None:
        """Require something once all processes have ended, and all late requests have arrived.

        Args:
            holds: as for `always`.
        """
        self._check_describing("finally_")
        self._finally.append(holds)

    def _check_describing(self, name: str) -> None:
        if self._is_running or self._is_looking:
            raise SimulationError(f"world.{name}() is for the test, and was called while its processes run")

    # One run

    def run(self, test: Callable[[World], object]) -> None:
        """Let the test describe the run, and make it. What failed is in `error`."""
        with self._surroundings.of(self._runtime, self._seed), self._network, simulated_processes(self._runtime):
            try:
                test(self)
                self._play()
            except Exception as error:  # noqa: BLE001 - the result of the run
                self.error = error
            finally:
                self._scheduler.end()

    def _play(self) -> None:
        if not self._processes:
            raise SimulationError("the test has added no process: call world.process(function, ...)")
        self._look("always", self._always)
        self._is_running = True
        self._scheduler.run()
        self._scheduler.let_land()
        self._is_running = False
        self._look("finally_", self._finally)

    def _live(self, process: SimulatedProcess, call: Callable[[], Any]) -> None:
        try:
            process.result = call()
            process.has_returned = True
        except Exception as error:
            process.error = error
            self.story.ended(process.name, error)
            is_expected = isinstance(error, (*_EXPECTED, *self._options.raises))
            if not is_expected or isinstance(error, ConfigurationError):
                raise

    def _count_step(self) -> None:
        if self._scheduler.steps > _MOST_STEPS:
            raise Stuck(f"the processes have not ended after {_MOST_STEPS:,} steps")

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
    detail = ""
    try:
        told = holds()
    except AssertionError as error:
        told, detail = False, f": {error}".partition("\n")[0].removesuffix(": ")
    if told is not None and not told:
        raise Broken(f"{name} does not hold: {_source(holds)}{detail}")


def _source(holds: Callable[[], object]) -> str:
    """Return how the test has written it, and where."""
    code = getattr(inspect.unwrap(holds), "__code__", None)
    if code is None:
        return repr(holds)
    name = code.co_name
    if name == "<lambda>":
        name = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f"{name}  ({Path(code.co_filename).name}:{code.co_firstlineno})"
