"""Mutexes, condition variables and events whose waiting is a step of the scheduler.

In a dead process releasing does nothing and waiting ends the actor: its code is on the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import Self

if TYPE_CHECKING:
    from pynamo_locking_testing._engine.runtime import SimulatedRuntime
    from pynamo_locking_testing._engine.scheduler import Actor


class Mutex:
    """A mutex.

    Args:
        world: says who runs.
        is_reentrant: whether its owner may take it again.
    """

    def __init__(self, world: SimulatedRuntime, *, is_reentrant: bool) -> None:
        self._world = world
        self._is_reentrant = is_reentrant
        self._owner: Actor | None = None
        self._depth = 0
        self._waiting: list[Actor] = []

    def acquire(self, blocking: bool = True) -> bool:
        self._world.fine_point("takes a mutex")
        scheduler = self._world.scheduler
        me = scheduler.current
        while self._depth and not (self._is_reentrant and self._owner is me):
            if not blocking:
                return False
            assert me is not None, "no actor can wait outside of a run"
            self._waiting.append(me)
            scheduler.block(None, "waits for a mutex")
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        if self._owner is not self._world.scheduler.current:
            return  # a dead actor that was in Condition.wait
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            waiting, self._waiting = self._waiting, []
            for actor in waiting:
                self._world.scheduler.wake(actor)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def give_up(self) -> int:
        """Release it however often it was taken; return how often that was."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_back(self, depth: int) -> None:
        self.acquire()
        self._depth = depth


class Condition:
    """A condition variable."""

    def __init__(self, world: SimulatedRuntime) -> None:
        self._world = world
        self._mutex = Mutex(world, is_reentrant=True)
        self._waiting: list[Actor] = []

    def __enter__(self) -> Self:
        self._mutex.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._mutex.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification, or until so much has passed on the clock of the running process."""
        scheduler = self._world.scheduler
        me = scheduler.current
        assert me is not None, "no actor can wait outside of a run"
        depth = self._mutex.give_up()
        self._waiting.append(me)
        was_woken = scheduler.block(self._world.true(timeout), "waits")
        if not was_woken:
            self._waiting.remove(me)
        self._mutex.take_back(depth)
        return was_woken

    def notify(self, n: int = 1) -> None:
        """Wake the first of those who wait."""
        woken, self._waiting = self._waiting[:n], self._waiting[n:]
        for actor in woken:
            self._world.scheduler.wake(actor)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """An event."""

    def __init__(self, world: SimulatedRuntime) -> None:
        self._condition = Condition(world)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._condition:
            self._is_set = True
            self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has happened; no longer than that, if a timeout is given."""
        with self._condition:
            if not self._is_set:
                self._condition.wait(timeout)
            return self._is_set
