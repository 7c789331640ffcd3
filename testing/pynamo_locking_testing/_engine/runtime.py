"""The library's seam to clocks, threads and randomness, played by the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, cast

from pynamo_locking._io import runtime
from pynamo_locking_testing._engine.scheduler import Process
from pynamo_locking_testing._engine.sync import Condition, Event, Mutex
from pynamo_locking_testing.clock import ClockView

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from pynamo_locking_testing._engine.choices import Recorded
    from pynamo_locking_testing._engine.loop import Loop
    from pynamo_locking_testing._engine.scheduler import Scheduler


def _digits(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


class SimulatedRuntime(runtime.Runtime):
    """What the library sees of the simulation.

    Args:
        scheduler: decides who runs.
        choices: of jitter.
        is_fine: hand over at mutexes, events and notifications as well, not only at requests and sleeps.
        has_jitter: choose jitter; always one half otherwise.
    """

    has_wakeups = False

    def __init__(self, scheduler: Scheduler, choices: Recorded, *, is_fine: bool, has_jitter: bool) -> None:
        self.scheduler = scheduler
        self._choices = choices
        self._is_fine = is_fine
        self._has_jitter = has_jitter
        self._tokens = 0
        self._seen_by: Process | None = None
        self.loops: list[Loop] = []  # those of dead processes must not be collected in the middle of the run
        self._outside = Process("outside", ClockView(scheduler))

    @property
    def process(self) -> Process:
        """The process that runs, or whose view is taken."""
        if self._seen_by is not None:
            return self._seen_by
        actor = self.scheduler.current
        return self._outside if actor is None else actor.process

    @contextlib.contextmanager
    def seen_by(self, process: Process) -> Iterator[None]:
        """Let clocks be those of another process, for a checker."""
        before, self._seen_by = self._seen_by, process
        try:
            yield
        finally:
            self._seen_by = before

    def monotonic(self) -> float:
        return self.process.clock.monotonic()

    def time_us(self) -> int:
        return self.process.clock.time_ms() * 1000

    def jitter(self) -> float:
        """Return a chosen number below 1."""
        return (0.5, 0.0, 0.25, 0.999)[self._choices.pick(4, "jitter")] if self._has_jitter else 0.5

    def token(self) -> str:
        """Return the next name: the same one at the same place of each repetition."""
        self._tokens += 1
        return _digits(str(self._tokens), 20)

    def process_part(self) -> str:
        return _digits(self.process.name, 4)

    def entry_id(self) -> str:
        return self.process_part() + self.token()[:10]

    def exclusive(self) -> threading.Lock:
        return cast("threading.Lock", Mutex(self, is_reentrant=False))

    def mutex(self) -> threading.RLock:
        return cast("threading.RLock", Mutex(self, is_reentrant=True))

    def event(self) -> threading.Event:
        return cast("threading.Event", Event(self))

    def condition(self) -> threading.Condition:
        return cast("threading.Condition", Condition(self))

    def wait(self, condition: threading.Condition, timeout: float | None) -> bool:
        return condition.wait(timeout)

    def sleep(self, seconds: float) -> None:
        self.scheduler.block(self.true(seconds), "sleeps")

    def spawn(self, target: Callable[[], None], name: str) -> None:
        self._tokens += 1
        self.scheduler.spawn(self.process, f"{name.removeprefix('pynamo-locking-')}-{self._tokens}", target)

    def thread_or_task(self) -> tuple[object, ...]:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return self.scheduler.current, task

    def owner(self) -> str:
        return repr(self.scheduler.current)

    def true(self, seconds: float | None) -> float | None:
        """Return how much true time passes while so much does on the clock of the running process."""
        return None if seconds is None else seconds / (1 + self.process.clock.drift)

    def fine_point(self, doing: str) -> None:
        """Hand over, if that is done everywhere."""
        if self._is_fine and self.scheduler.current is not None:
            self.scheduler.hand_over(doing)
