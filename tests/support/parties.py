"""Other parties: threads that hold a lock, a clock that can be put forward, and back-off without its pauses."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.support import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking import Lock


#: How much longer a lease is watched than it lasts: the clock of its holder may be slower than ours, by 5 % at most.
SLOW_CLOCK: Final = 1.05


class ShiftedRuntime(runtime.Runtime):
    """The real world with clocks that can be put forward, and a record of who was spawned."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = 0.0
        real = self.monotonic
        self.monotonic = lambda: real() + self.shift

    def time_us(self) -> int:
        return super().time_us() + int(self.shift * 1_000_000)


@contextmanager
def shifted_clock() -> Iterator[ShiftedRuntime]:
    """Run the block with clocks that `shift` seconds can be added to."""
    with runtime.installed(ShiftedRuntime()) as world:
        yield world


class _Hasty(runtime.Runtime):
    def jitter(self) -> float:
        return 0.0


@contextmanager
def without_pauses() -> Iterator[None]:
    """Run the block without our pauses between attempts: the order of events stays what it is."""
    with runtime.installed(_Hasty()):
        yield


@contextmanager
def held_elsewhere(lock: Lock[Any]) -> Iterator[Lock[Any]]:
    """Hold a lock in another thread, and so in another context, for the time of the block."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with lock:
                held.set()
                done.wait()
        finally:
            held.set()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        held.wait()
        try:
            yield lock
        finally:
            done.set()
    holding.result()


def abandoned(lock: Lock[Any]) -> Lock[Any]:
    """Take a lock in another thread and walk away from it, as a process does that is killed."""

    def take() -> None:
        lock.acquire()
        held = lock._handle.entry
        assert held is not None, f"acquire() of {lock.name} has returned, and no entry is held"
        held.ownership = held.ownership.ended()  # no heartbeat renews it, no release removes it

    in_thread(take)
    return lock


def in_parallel(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls in threads of their own, all at once; return what they return, or raise the first error."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def in_thread(call: Callable[[], Any]) -> Any:
    """Run a call in another thread, and so in another context, and return what it returns."""
    return in_parallel(call)[0]
