"""Acquiring a lock in a task of asyncio, and cleaning up if the task is cancelled."""

from __future__ import annotations

import contextlib
import inspect
import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._io import runtime
from pynamo_locking._io.loops import TO_THREADS, call, cancelled, spend, start, to_the_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._io.loops import Pause, Steps
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.held_entry import HeldEntry

logger = logging.getLogger("pynamo_locking")

#: The class of what `aclose` of an async generator returns; Python has no public name for it.
_CLOSING: Final = "async_generator_athrow"

#: Attempts that have not ended. Kept here, or the garbage collector would close them at any moment.
_underway: set[Taking] = set()


class Taking:
    """An attempt to acquire a lock, made step by step in threads, one at a time.

    Args:
        steps: the attempt.
        hold: called with the entry once it is granted, and returns it; releases it if it raises.
    """

    def __init__(self, steps: Steps[HeldEntry], hold: Callable[[HeldEntry], HeldEntry]) -> None:
        self._steps = steps
        self._hold = hold
        self._stepping = runtime.current.exclusive()
        self._forks = runtime.forks
        self.held: HeldEntry | None = None
        self.is_over = False
        _underway.add(self)

    def advance(self, told: Image | None) -> Pause | None:
        """Go on to the next pause; None: we hold the lock."""
        with self._stepping:
            if self.is_over:
                return None
            try:
                return self._steps.send(told)
            except StopIteration as done:
                _underway.discard(self)
                self.held = self._hold(done.value)
                return None
            except BaseException:
                # An interrupt between two steps leaves them open: `abandon` closes them.
                self.is_over = inspect.getgeneratorstate(self._steps) == inspect.GEN_CLOSED
                if self.is_over:
                    _underway.discard(self)
                raise

    def abandon(self) -> None:
        """Leave nothing behind, after the step that is under way."""
        with self._stepping:
            self.is_over = True
            self._steps.close()
            _underway.discard(self)
            held, self.held = self.held, None
            if held is None:
                return
            try:
                held.release()
            except Exception as error:  # noqa: BLE001 - the cancellation is the error to raise
                logger.warning("%s (after its task was cancelled)", error)

    def leave_behind(self) -> None:
        """Abandon it in a thread, because no task can wait for it; in a forked child it is the parent's."""
        if self._forks == runtime.forks:
            leave_behind(self.abandon, self.held)


def leave_behind(work: Callable[[], object], held: HeldEntry | None) -> None:
    """Release a lock in a thread, for a task that cannot wait; without a thread its lease ends by itself."""
    try:
        start(work)
    except RuntimeError:
        if held is not None:
            held.end(is_confirmed=False)  # or the heartbeat would renew it for ever


def current() -> Any:
    """Return the task that calls this, or None."""
    place = runtime.current.party()[-1]
    return place() if isinstance(place, weakref.ref) else None


def can_wait(held: HeldEntry) -> bool:
    """Tell whether the task that is being closed can wait while it releases a lock.

    An async generator can, if it is closed by the task that acquired the lock, or by a task that the loop starts only
    for that. If the garbage collector closes it, it cannot: its loop is closed, and a task that runs is another one.
    """
    task = current()
    return task is not None and (held.party == runtime.current.party() or type(task.get_coro()).__name__ == _CLOSING)


async def _step(taking: Taking, pause: Pause) -> Pause | None:
    """Let a pause pass, and go on to the next: in a thread, but for a caller in line, which makes no request."""
    if pause.leave is None:
        told = None if pause is TO_THREADS else await spend(pause)
        return await call(partial(taking.advance, told), is_urgent=False)
    try:
        told = await spend(pause)
    except cancelled():
        if pause.leave():
            taking.abandon()
        raise
    return taking.advance(told)


async def take(steps: Steps[HeldEntry], hold: Callable[[HeldEntry], HeldEntry]) -> HeldEntry:
    """Acquire a lock, or leave nothing behind, also if the task is cancelled or its loop is closed."""
    taking = Taking(steps, hold)
    try:
        pause = taking.advance(None)  # makes no request
        while pause is not None:
            pause = await _step(taking, pause)
    except BaseException as error:
        try:
            if isinstance(error, GeneratorExit):
                taking.leave_behind()
            elif not taking.is_over:
                with contextlib.suppress(cancelled()):  # cancelled once more
                    await to_the_end(taking.abandon)
        except BaseException:  # another interrupt, perhaps before a thread has begun
            taking.leave_behind()
            raise
        raise
    assert taking.held is not None  # noqa: S101 - `advance` has returned None
    return taking.held
