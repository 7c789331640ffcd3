"""Threads that are used again: a run needs half a dozen, and to start one takes as long as three requests."""

from __future__ import annotations

import contextvars
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_idle: list[_Thread] = []
_of_thread = threading.local()


class _Thread:
    """Runs one target after another, each in an empty context, as a new thread would."""

    def __init__(self) -> None:
        self._target: Callable[[], object] | None = None
        self._work = threading.Lock()
        self._work.acquire()
        threading.Thread(target=self._serve, name="simulation", daemon=True).start()

    def start(self, target: Callable[[], object]) -> None:
        self._target = target
        self._work.release()

    def _serve(self) -> None:
        _of_thread.mine = self
        while True:
            self._work.acquire()
            target, self._target = self._target, None
            assert target is not None
            contextvars.Context().run(target)
            del target  # or the run would live on until this thread is used again


def start(target: Callable[[], object]) -> None:
    """Run the target in a thread of its own; it calls `give_back` when it is about to end."""
    thread = _idle.pop() if _idle else _Thread()
    thread.start(target)


def give_back() -> None:
    """Let the running thread be used again, as soon as its target has returned."""
    _idle.append(_of_thread.mine)


@contextmanager
def on_one_core(number: int = 0) -> Iterator[None]:
    """Keep this thread and those that it starts on one core: passing the baton takes half the time there."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[number % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
