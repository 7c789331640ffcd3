"""The world that the package runs in: ask its clocks, begin threads in it, or put another one in its place."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pynamo_locking._io import runtime
from pynamo_locking._io.runtime import Runtime, process_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

__all__ = [
    "Runtime",
    "changed",
    "event",
    "installed",
    "monotonic",
    "no_thread_starts",
    "process",
    "process_of",
    "sleep",
    "spawn",
    "time_ms",
]

_World = TypeVar("_World", bound=Runtime)


def monotonic() -> float:
    """Return the seconds by which leases are measured."""
    return runtime.current.monotonic()


def time_ms() -> int:
    """Return the wall clock in ms since the epoch."""
    return runtime.current.time_ms()


def sleep(seconds: float) -> None:
    """Let time pass: in a virtual world none of ours does."""
    runtime.current.sleep(seconds)


def event() -> threading.Event:
    """Return an event; time passes in the world while a thread waits for it."""
    return runtime.current.event()


def spawn(target: Callable[[], None], name: str) -> None:
    """Begin a thread of the world."""
    runtime.current.spawn(target, name)


def process() -> Any:
    """Return the simulated process that runs."""
    return runtime.current.process  # type: ignore[attr-defined]


@contextmanager
def installed(world: _World) -> Iterator[_World]:
    """Run the block in another world."""
    before = runtime.current
    runtime.install(world)
    try:
        yield world
    finally:
        runtime.install(before)


@contextmanager
def changed(**methods: Callable[..., Any]) -> Iterator[None]:
    """Let these methods of the world, whichever it is, do something else in the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, method in methods.items():
            patch.setattr(runtime.current, name, method, raising=False)
        yield


@contextmanager
def no_thread_starts(error: BaseException | None = None) -> Iterator[None]:
    """Let no thread be started in the block."""

    def spawn(target: Callable[[], None], name: str) -> None:
        raise error or RuntimeError("can't start new thread")

    with changed(spawn=spawn):
        yield
