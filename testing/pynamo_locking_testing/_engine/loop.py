"""An event loop of asyncio whose time and whose sleep are those of the scheduler."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from pynamo_locking._io import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Loop(asyncio.BaseEventLoop):
    """Runs tasks in one actor. When none can run, the actor waits, for a time or for a call from another one.

    Everything else is asyncio's own: tasks, futures, cancellation, and the order in which callbacks run.
    """

    _selector: Any

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._wakeup = runtime.current.condition()
        self._was_woken = False
        self.tasks = list[asyncio.Task[Any]]()
        self.set_task_factory(self._remember)
        self.set_exception_handler(lambda *_: None)  # only the dead leave something unheard; see `run`

    def __del__(self, _warn: Any = None) -> None:
        """Say nothing: the loop of a dead process was never closed."""

    def _remember(self, loop: Any, coroutine: Any, **more: Any) -> Any:
        """Keep tasks: those of a dead process must not be collected in the middle of the run."""
        task = asyncio.Task(coroutine, loop=loop, **more)
        self.tasks.append(task)
        return task

    def forget_tasks(self) -> None:
        """Close the coroutines of tasks that have not begun, as their process died before."""
        for task in self.tasks:
            coroutine: Any = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def time(self) -> float:
        return runtime.current.monotonic()

    def select(self, timeout: float | None) -> list[Any]:
        """Wait; nothing ever comes over a socket."""
        with self._wakeup:
            if not self._was_woken and timeout != 0:
                runtime.current.wait(self._wakeup, timeout)
            self._was_woken = False
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        with self._wakeup:
            self._was_woken = True
            self._wakeup.notify_all()


def run(main: Callable[[], Coroutine[Any, Any, None]], keep: Callable[[Loop], None]) -> None:
    """Do what `asyncio.run` does, and raise what any of its tasks has raised.

    Args:
        main: makes the coroutine.
        keep: is given the loop, to keep it until the run of the simulation is over.
    """
    loop = Loop()
    keep(loop)
    try:
        loop.run_until_complete(main())
        left = [task for task in loop.tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
    finally:
        loop.forget_tasks()
    for task in loop.tasks:
        if not task.cancelled():
            task.result()
