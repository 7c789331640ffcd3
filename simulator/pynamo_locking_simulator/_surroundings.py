"""Time, randomness, threads and sockets of the code under test.

While a test searches, the functions of the standard library stand for those of the running process of the simulation.
Clocks of the day are the business of time-machine, which reaches `datetime` too. The other functions are replaced
wherever a module has them, since many modules say ``from time import sleep``. A thread that has nothing to do with the
search (of a test runner, for example) goes on with the real ones.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import time_machine
from typing_extensions import Self

from pynamo_locking_simulator._engine.processes import replaced
from pynamo_locking_simulator._engine.scheduler import START_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking_simulator._engine.processes import Replacement
    from pynamo_locking_simulator._engine.runtime import SimulatedRuntime


class SimulationError(Exception):
    """The code under test does what a simulation cannot control, or the test asks for what makes no sense."""


class Surroundings:
    """What the code under test finds around it, for as long as its ``with`` block lasts."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._simulated: SimulatedRuntime | None = None
        self._bytes = random.Random()  # noqa: S311 - repeatable, for tests
        self._until = ExitStack()

    def __enter__(self) -> Self:
        traveller = self._until.enter_context(time_machine.travel(START_S, tick=False))
        traveller.time_ns = self._time_ns  # type: ignore[method-assign]
        self._until.callback(random.setstate, random.getstate())
        self._until.enter_context(replaced(self._replacements()))
        return self

    def __exit__(self, *exception: object) -> None:
        self._until.close()

    @contextmanager
    def of(self, simulated: SimulatedRuntime, seed: str) -> Iterator[None]:
        """Let them be those of one run."""
        random.seed(seed)
        self._bytes.seed(seed)
        self._simulated = simulated
        try:
            yield
        finally:
            self._simulated = None

    def _time_ns(self) -> int:
        return int(START_S) * 10**9 if self._simulated is None else self._simulated.time_us() * 1000

    def _replacements(self) -> list[Replacement]:
        monotonic, sleep = self._for_monotonic, self._here(time.sleep, self._sleep)
        stand_ins: dict[Any, Any] = {
            time.sleep: sleep,
            time.monotonic: monotonic(time.monotonic, lambda now_s: now_s),
            time.perf_counter: monotonic(time.perf_counter, lambda now_s: now_s),
            time.monotonic_ns: monotonic(time.monotonic_ns, lambda now_s: round(now_s * 10**9)),
            time.perf_counter_ns: monotonic(time.perf_counter_ns, lambda now_s: round(now_s * 10**9)),
            os.urandom: self._here(os.urandom, self._bytes.randbytes),
            socket.getaddrinfo: self._here(socket.getaddrinfo, _refuse_socket),
        }
        of_classes: list[Replacement] = [
            (socket.socket, "connect", self._here(socket.socket.connect, _refuse_socket)),
            (socket.socket, "connect_ex", self._here(socket.socket.connect_ex, _refuse_socket)),
            (threading.Thread, "start", self._here(threading.Thread.start, _refuse_thread)),
        ]
        return [*of_classes, *_wherever(stand_ins)]

    def _here(self, real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is simulated in a run, and the real one everywhere else."""

        def stand_in(*arguments: Any, **keywords: Any) -> Any:
            is_run = self._simulated is not None and threading.get_ident() == self._thread
            return (simulated if is_run else real)(*arguments, **keywords)

        return stand_in

    def _for_monotonic(self, real: Callable[[], Any], scale: Callable[[float], Any]) -> Callable[..., Any]:
        def simulated() -> Any:
            assert self._simulated is not None
            return scale(self._simulated.monotonic())

        return self._here(real, simulated)

    def _sleep(self, seconds: float) -> None:
        assert self._simulated is not None
        scheduler = self._simulated.scheduler
        if scheduler.current is None:  # the test itself, which nobody waits for
            scheduler.now += seconds
        else:
            self._simulated.sleep(seconds)


def _wherever(stand_ins: dict[Any, Any]) -> Iterator[Replacement]:
    """Yield what is to be replaced: each global name of a module that is one of these functions."""
    by_id = {id(real): stand_in for real, stand_in in stand_ins.items()}
    for module in tuple(sys.modules.values()):
        for name, value in tuple(getattr(module, "__dict__", {}).items()):
            if id(value) in by_id and module is not sys.modules[__name__]:
                yield module, name, by_id[id(value)]


def _refuse_socket(*_: Any, **__: Any) -> NoReturn:
    raise SimulationError(
        "the code under test opens a socket, and a simulation has no network. Requests of PynamoDB are simulated. Give "
        "the code a stand-in for every other service; a PynamoDB model can be one."
    )


def _refuse_thread(*_: Any, **__: Any) -> NoReturn:
    raise SimulationError(
        "the code under test starts a thread, whose turns a simulation cannot choose. Call world.process() for what "
        "runs at the same time."
    )
