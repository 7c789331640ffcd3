"""A world in which time stands still until a test moves it, for code with real threads.

Every thread of the code under test is either running, asleep in `World.wait`, or held at a `Gate`. `settle` returns
once none is running, so what a test sees after it does not depend on the scheduler.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking._io import runtime
from pynamo_locking._locks.heartbeat import heartbeat_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Only a broken test waits as long.
PATIENCE_S = 10


class Sleeper:
    """A thread that waits for a notification or for a time."""

    def __init__(self, condition: Condition, until: float) -> None:
        self.condition = condition
        self.until = until
        self.was_told = False
        self.awake = threading.Event()


class Condition:
    """As `threading.Condition`; whom it wakes is decided by the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.mutex = threading.Lock()

    def __enter__(self) -> None:
        self.mutex.acquire()

    def __exit__(self, *exception: object) -> None:
        self.mutex.release()

    def notify(self) -> None:
        self._world.tell(self, 1)

    def notify_all(self) -> None:
        self._world.tell(self, None)


class Gate:
    """Holds the threads that come to it until it is opened."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._opened = threading.Event()
        self.held = 0

    def pass_through(self) -> None:
        with self._world.changed:
            if not self._opened.is_set():
                self.held += 1
                self._world.one_less_runs()
        assert self._opened.wait(PATIENCE_S), "the gate was not opened"

    def open(self) -> None:
        with self._world.changed:
            self._opened.set()
            self._world.running += self.held
            self.held = 0


class World(runtime.Runtime):
    """Virtual time; `advance` wakes sleepers one at a time, in the order of their deadlines."""

    has_wakeups = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.monotonic = lambda: self.now
        self.changed = threading.Condition()
        self.running = 0
        self.threads = 0
        self.killed_by: list[BaseException] = []
        self.gates: list[Gate] = []
        #: Among sleepers with the same deadline, whether the last to fall asleep wakes first.
        self.last_wakes_first = False
        self._sleepers: list[Sleeper] = []

    # For the code under test

    def time_us(self) -> int:
        return int(self.now * 1_000_000)

    def jitter(self) -> float:
        return 0.5

    def condition(self) -> Any:
        return Condition(self)

    def wait(self, condition: Any, timeout: float | None) -> bool:
        if not isinstance(condition, Condition):  # a thread that an earlier test left in the real world
            return super().wait(condition, timeout)
        assert timeout is not None
        sleeper = Sleeper(condition, self.now + timeout)
        with self.changed:
            self._sleepers.append(sleeper)
            self.one_less_runs()
        condition.mutex.release()
        sleeper.awake.wait(PATIENCE_S)
        condition.mutex.acquire()
        return sleeper.was_told

    def spawn(self, target: Callable[[], None], name: str) -> None:
        def run() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.killed_by.append(error)
            finally:
                with self.changed:
                    self.threads -= 1
                    self.one_less_runs()

        with self.changed:
            self.threads += 1
            self.running += 1
        super().spawn(run, name)

    # For the world's own parts

    def one_less_runs(self) -> None:
        self.running -= 1
        self.changed.notify_all()

    def tell(self, condition: Condition, limit: int | None) -> None:
        with self.changed:
            for sleeper in [s for s in self._sleepers if s.condition is condition][:limit]:
                self._wake(sleeper, was_told=True)

    def _wake(self, sleeper: Sleeper, *, was_told: bool) -> None:
        self._sleepers.remove(sleeper)
        sleeper.was_told = was_told
        self.running += 1
        sleeper.awake.set()

    # For tests

    def gate(self) -> Gate:
        self.gates.append(Gate(self))
        return self.gates[-1]

    def settle(self) -> None:
        """Return when no thread can go on."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.running == 0, PATIENCE_S), "a thread never comes to rest"

    def advance(self, seconds: float) -> None:
        """Let that much time pass."""
        end = self.now + seconds
        while True:
            self.settle()
            with self.changed:
                order = reversed(self._sleepers) if self.last_wakes_first else self._sleepers
                sleeper = min(order, key=lambda s: s.until, default=None)
                if sleeper is None or sleeper.until > end:
                    self.now = end
                    return
                self.now = max(self.now, sleeper.until)
                self._wake(sleeper, was_told=False)

    @contextmanager
    def installed(self) -> Iterator[World]:
        before = runtime.current
        runtime.install(self)
        try:
            yield self
        finally:
            for gate in self.gates:
                gate.open()
            runtime.install(before)
            with heartbeat_thread._condition:  # the real one may have looked at our clock meanwhile
                heartbeat_thread._condition.notify_all()


@pytest.fixture
def world() -> Iterator[World]:
    """A virtual world in place of the real one."""
    with World().installed() as world:
        yield world
