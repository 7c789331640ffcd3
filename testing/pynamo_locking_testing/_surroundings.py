"""Time, randomness, threads and sockets of the code under test.

While a test searches, functions of the standard library stand for those of the running process of the simulation.
The clocks of the day are the business of time-machine, which reaches `datetime` too. The other functions are replaced
wherever a module has them, since many modules say ``from time import sleep``. Other threads of the process, as those of
a test runner, go on with the real ones.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import time_machine
from typing_extensions import Self

from pynamo_locking_testing._engine.loop import Loop
from pynamo_locking_testing._engine.processes import replaced
from pynamo_locking_testing._engine.scheduler import START_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pynamo_locking_testing._engine.processes import Replacement
    from pynamo_locking_testing._engine.runtime import SimulatedRuntime

_SOCKET: Final = (
    "the code under test uses a socket, and a simulation has no network. Requests of PynamoDB are simulated. Give the "
    "code a stand-in for every other service; a PynamoDB model can be one."
)
_THREAD: Final = (
    "the code under test starts a thread, whose turns a simulation cannot choose: by itself, by asyncio.to_thread, or "
    "where asyncio looks up a host name. Call world.process() for what runs at the same time."
)
_PROGRAM: Final = "the code under test starts a program, which a simulation cannot control. Give the code a stand-in."

_NS: Final = 10**9


class SimulationError(Exception):
    """The code under test does what a simulation cannot control, or the test asks for what makes no sense."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Surroundings:
    """What the code under test finds around it, for as long as its ``with`` block lasts."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._simulated: SimulatedRuntime | None = None
        self._bytes = random.Random()  # noqa: S311 - repeatable, for tests
        self._until = ExitStack()

    def __enter__(self) -> Self:
        uuid.getnode()  # asks a program, once
        functions = self._functions()
        self._traveller = self._until.enter_context(time_machine.travel(START_S, tick=False))
        self._traveller.time_ns = self._time_ns  # type: ignore[method-assign]
        self._until.callback(random.setstate, random.getstate())
        self._until.enter_context(replaced(self._methods()))
        # Modules that are imported meanwhile have the stand-ins, so the way back is a second look.
        self._until.callback(_replace_wherever, {stand_in: real for real, stand_in in functions.items()})
        _replace_wherever(functions)
        return self

    def __exit__(self, *exception: object) -> None:
        self._until.close()

    @contextmanager
    def of(self, simulated: SimulatedRuntime, seed: str) -> Iterator[None]:
        """Let them be those of one run."""
        self._traveller.move_to(START_S)  # for `uuid`, which remembers the last time
        random.seed(seed)
        self._bytes.seed(seed)
        self._simulated = simulated
        try:
            yield
        finally:
            self._simulated = None

    @property
    def _is_here(self) -> bool:
        return self._simulated is not None and threading.get_ident() == self._thread

    @property
    def _now(self) -> SimulatedRuntime:
        assert self._simulated is not None
        return self._simulated

    def _time_ns(self) -> int:
        return self._now.time_us() * 1000 if self._is_here else time_machine.escape_hatch.time.time_ns()

    def _functions(self) -> dict[Any, Any]:
        """Return stand-ins for functions of modules."""
        simulated: dict[Any, Callable[..., Any]] = {
            time.sleep: self._sleep,
            time.monotonic: self._monotonic,
            time.perf_counter: self._monotonic,
            time.monotonic_ns: self._monotonic_ns,
            time.perf_counter_ns: self._monotonic_ns,
            time.clock_gettime: lambda clock: self._clock_ns(clock) / _NS,
            time.clock_gettime_ns: self._clock_ns,
            os.urandom: self._bytes.randbytes,
            asyncio.new_event_loop: self._new_event_loop,
            **dict.fromkeys(
                (socket.getaddrinfo, socket.gethostbyname, socket.gethostbyname_ex, socket.gethostbyaddr),
                partial(self._refuse, _SOCKET),
            ),
        }
        return {real: self._in_runs(real, stand_in) for real, stand_in in simulated.items()}

    def _methods(self) -> list[Replacement]:
        """Return stand-ins for methods."""
        sockets = [(socket.socket, name, _SOCKET) for name in ("connect", "connect_ex", "sendto", "sendmsg")]
        refused = [
            *sockets,
            (threading.Thread, "start", _THREAD),
            (ThreadPoolExecutor, "submit", _THREAD),
            (subprocess.Popen, "__init__", _PROGRAM),
        ]
        return [
            *((of, name, self._in_runs(getattr(of, name), partial(self._refuse, why))) for of, name, why in refused),
            (random.Random, "seed", self._seed_of(random.Random.seed)),
        ]

    def _in_runs(self, real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is simulated in a run, and the real one everywhere else."""

        def stand_in(*arguments: Any, **keywords: Any) -> Any:
            return (simulated if self._is_here else real)(*arguments, **keywords)

        return stand_in

    def _seed_of(self, real: Callable[..., None]) -> Callable[..., None]:
        """Return what seeds a `random.Random()`: from the run, if nothing else is given."""

        def seed(this: random.Random, a: Any = None, version: int = 2) -> None:
            is_ours = a is None and self._is_here
            real(this, int.from_bytes(self._bytes.randbytes(16), "big") if is_ours else a, version)

        return seed

    def _monotonic(self) -> float:
        return self._now.monotonic()

    def _monotonic_ns(self) -> int:
        return round(self._now.monotonic() * _NS)

    def _clock_ns(self, clock: int) -> int:
        return self._time_ns() if clock == time.CLOCK_REALTIME else self._monotonic_ns()

    def _sleep(self, seconds: float) -> None:
        scheduler = self._now.scheduler
        if scheduler.current is None:  # the test itself, which nobody waits for
            scheduler.now += seconds
        else:
            self._now.sleep(seconds)

    def _new_event_loop(self) -> Loop:
        loop = Loop()
        self._now.loops.append(loop)
        return loop

    def _refuse(self, why: str, *_: Any, **__: Any) -> NoReturn:
        """Fail the run, as the code under test may take the error for one of the network, and go on."""
        error = SimulationError(why)
        self._now.scheduler.fail(error)
        raise error


def _replace_wherever(functions: Mapping[Any, Any]) -> None:
    """Replace functions under each global name that a module has for them."""
    by_id = {id(function): other for function, other in functions.items()}
    for module in tuple(sys.modules.values()):
        for name, value in tuple(getattr(module, "__dict__", {}).items()):
            if id(value) in by_id:
                setattr(module, name, by_id[id(value)])
