"""Actors, of which one runs at a time, and a clock that moves only when no actor can run.

An actor is a greenlet: the library's code, which is not asynchronous, can stop in the middle of a request there. Real
threads were tried first. To pass the turn from thread to thread took half of the time of a run.

An actor that comes to a point of handing over chooses its successor itself and switches to it; one that ends goes back
to the thread of the run, which chooses the next. Processes are groups of actors that share a clock and a fate: in a
dead process nothing runs any more, not even `finally` blocks get anything done, since every call into the world raises
again.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from greenlet import greenlet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking_testing._engine.choices import Recorded
    from pynamo_locking_testing.clock import ClockView

#: The wall clock at the beginning of each run: 2026-01-01.
START_S: Final = 1_767_225_600.0

#: How long a request takes, in seconds.
LATENCY_S: Final = 0.001


class Dead(BaseException):
    """The process of the actor was killed."""


class Stuck(Exception):  # noqa: N818 - what it is
    """No actor can run, and no time will change that."""


@dataclass(eq=False)
class Process:
    """Actors that share a clock and a fate, and what a process of the library has once."""

    name: str
    clock: ClockView
    is_alive: bool = True
    paused_until: float = 0.0
    own: dict[str, Any] = field(default_factory=dict)


class Actor:
    """A thread of the simulation. Its context is empty, as a new thread's is."""

    def __init__(self, name: str, process: Process, stack: greenlet) -> None:
        self.name = name
        self.process = process
        self.stack = stack
        self.is_done = False
        self.done_at: float | None = None
        self.is_blocked = False
        self.was_woken = False
        self.wakes_at: float | None = None
        self.is_at_request = False
        self.doing: object = "begins"

    def __repr__(self) -> str:
        return f"{self.process.name}.{self.name}"


@dataclass(eq=False)
class Landing:
    """A request that is still on its way, although no caller waits for it any more."""

    name: str
    land: Callable[[], None]

    def __repr__(self) -> str:
        return self.name


@contextmanager
def _no_running_loop() -> Iterator[None]:
    """Leave the event loop that the running actor is in, if it is in one: another actor may run its own meanwhile."""
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(loop)
    if task is not None:
        asyncio.tasks._enter_task(loop, task)


class Scheduler:
    """Decides who runs, and what time it is.

    Args:
        choices: decide.
        preemptions: how often an actor that could go on may be interrupted; None for any number.
        is_fine: choose who runs at every step. Otherwise only among those who are about to send a request: what
            an actor does before that concerns no other actor, so it is done at once.
        horizon: the longest run, in seconds of its own time.
        on_step: called before each hand-over.
    """

    def __init__(
        self, choices: Recorded, preemptions: int | None, horizon: float, on_step: Callable[[], None], *, is_fine: bool
    ) -> None:
        self.now: float = 0.0
        self.steps: int = 0
        self._moments = 0
        self.actors: list[Actor] = []
        self.landings: list[Landing] = []
        self.current: Actor | None = None
        self._on_turn: Actor | None = None  # who was chosen last; others only went as far as their next request
        self.failure: BaseException | None = None
        self._thread = greenlet.getcurrent()
        self._choices = choices
        self._preemptions = preemptions
        self._horizon = horizon
        self._on_step = on_step
        self._is_fine = is_fine
        self._is_over = False

    def monotonic(self) -> float:
        """Return the true time in seconds since the beginning of the run."""
        return self.now

    def moment(self) -> int:
        """Return a number that only grows, and is never the same twice."""
        self._moments += 1
        return self._moments

    def time_ms(self) -> int:
        """Return the true wall clock."""
        return int((START_S + self.now) * 1000)

    # The life of actors

    def spawn(self, process: Process, name: str, target: Callable[[], object]) -> Actor:
        """Add an actor; it runs when it is chosen."""
        actor: Actor = Actor(name, process, greenlet(lambda: self._live(actor, target), self._thread))
        self.actors.append(actor)
        return actor

    def _live(self, actor: Actor, target: Callable[[], object]) -> None:
        try:
            self._check_alive(actor)
            target()
        except Dead:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run has failed by it
            self.fail(error)
        actor.is_done, actor.done_at = True, self.now
        self.actors.remove(actor)

    def kill(self, process: Process) -> None:
        """Kill a process: each of its actors ends at its next call into the world."""
        process.is_alive = False

    def fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._end()

    def run(self) -> None:
        """Run until all actors have ended, and raise what failed."""
        self._is_over = False
        self._run_actors()
        if self.failure is not None:
            raise self.failure

    def _end(self) -> None:
        self._is_over = True
        for actor in self.actors:
            actor.process.is_alive = False
        self.landings.clear()

    def let_land(self) -> None:
        while self.landings:
            self.landings.pop(0).land()

    def end(self) -> None:
        """Kill all actors that are left, and wait until they are gone."""
        self._end()
        self._run_actors()

    def _run_actors(self) -> None:
        """Run actors in turns until none is left: the one that ends comes back here."""
        while (actor := self._choose_next()) is not None:
            self._switch_to(actor)
        self.current = None

    # Handing over

    def hand_over(self, doing: object) -> None:
        """Let anyone run, ourselves too, before we do something."""
        me = self._running_actor()
        me.doing, me.is_at_request = doing, True
        self._switch(me)

    def block(self, seconds: float | None, doing: str) -> bool:
        """Stop until we are woken, or until so much true time has passed. Tell whether we were woken."""
        me = self._running_actor()
        me.doing, me.is_blocked, me.was_woken = doing, True, False
        me.wakes_at = None if seconds is None else self.now + max(0.0, seconds)
        self._switch(me)
        return me.was_woken

    def wake(self, actor: Actor) -> None:
        if actor.is_blocked:
            actor.is_blocked, actor.was_woken, actor.wakes_at = False, True, None

    def pause(self, seconds: float) -> None:
        """Stop the process of the running actor for a while; time passes for the others."""
        me = self._running_actor()
        me.process.paused_until = self.now + seconds
        self._switch(me)

    def _check_alive(self, actor: Actor) -> None:
        if not actor.process.is_alive:
            raise Dead

    def _running_actor(self) -> Actor:
        assert self.current is not None
        self._check_alive(self.current)
        return self.current

    def _switch(self, me: Actor) -> None:
        successor = self._choose_next()
        assert successor is not None  # one is left: me
        if successor is not me:
            if asyncio._get_running_loop() is None:
                self._switch_to(successor)
            else:
                with _no_running_loop():
                    self._switch_to(successor)
        self._check_alive(me)

    def _switch_to(self, actor: Actor) -> None:
        self.current = actor
        actor.stack.switch()

    def _choose_next(self) -> Actor | None:
        """Return who runs next. None: no actor is left."""
        try:
            if not self._is_over:
                self._on_step()
            while self.actors:
                for actor in self.actors:
                    if not actor.process.is_alive:
                        return actor  # to its end, in order; what it does has no effect
                chosen = self._choose()
                if isinstance(chosen, Actor):
                    return chosen
        except Exception as error:  # noqa: BLE001 - of a checker, or no actor can run
            self.fail(error)
            return self._choose_next()
        return None

    def _choose(self) -> Actor | None:
        """Choose an actor; or let something land, or time pass, and return None."""
        self.steps += 1
        ready = [actor for actor in self.actors if self._is_ready(actor)]
        if not self._is_fine:
            underway = next((actor for actor in ready if not actor.is_at_request), None)
            if underway is not None:
                return self._resume(underway)
        if self._on_turn in ready:
            ready.remove(self._on_turn)
            ready.insert(0, self._on_turn)
            if self._preemptions == 0:
                del ready[1:]
        options: list[Any] = [*ready, *self.landings]
        wakes_at = self._next_time() if not ready else None
        if wakes_at is not None:
            options.append(wakes_at)
        if not options:
            raise Stuck(f"no process can go on: {', '.join(f'{actor} {actor.doing}' for actor in self.actors)}")
        chosen = options[self._choices.pick(len(options), "next", options)]
        return self._do(chosen, ready)

    def _do(self, chosen: Any, ready: list[Actor]) -> Actor | None:
        if isinstance(chosen, Landing):
            self.landings.remove(chosen)
            chosen.land()
            return None
        if isinstance(chosen, float):
            self._pass_time(chosen)
            return None
        actor: Actor = chosen
        if self._preemptions is not None and self._on_turn in ready and actor is not self._on_turn:
            self._preemptions -= 1
        self._on_turn = actor
        return self._resume(actor)

    def _resume(self, actor: Actor) -> Actor:
        actor.is_blocked, actor.wakes_at, actor.is_at_request = False, None, False
        return actor

    # Time

    def _is_ready(self, actor: Actor) -> bool:
        if actor.process.paused_until > self.now:
            return False
        return not actor.is_blocked or (actor.wakes_at is not None and actor.wakes_at <= self.now)

    def _next_time(self) -> float | None:
        """Return when an actor can run."""
        times = [
            max(actor.process.paused_until, self.now if actor.wakes_at is None else actor.wakes_at)
            for actor in self.actors
            if not actor.is_blocked or actor.wakes_at is not None
        ]
        return min(times, default=None)

    def _pass_time(self, until: float) -> None:
        self.now = max(self.now, until)
        if self.now > self._horizon:
            late = ", ".join(f"{actor} {actor.doing}" for actor in self.actors)
            raise Stuck(f"the processes have not ended after {self._horizon:g} simulated seconds: {late}")
