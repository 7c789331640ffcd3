"""Pauses on the way to a lock. A thread sleeps; an event loop goes on with other tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from pynamo_locking._io import runtime

if TYPE_CHECKING:
    from pynamo_locking._io.stored import Image

T = TypeVar("T")


class Bell(Protocol):
    """What ends a pause early: the place where a release in this process leaves the new image of the row."""

    on_ring: Callable[[], None] | None

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the next ring; at once if it has rung already."""

    def wait(self, timeout: float) -> Image | None:
        """Return the image that was left, waiting up to `timeout` seconds for it."""


@dataclass(frozen=True)
class Pause:
    """A time in which there is nothing to do: `seconds` at most, or until `mailbox` ends it early."""

    seconds: float
    mailbox: Bell | None = None

    def sleep(self) -> Image | None:
        """Let the pause pass in this thread; return what was left in the mailbox."""
        if self.mailbox is not None:
            return self.mailbox.wait(self.seconds)
        if self is not TO_THREADS:
            runtime.current.sleep(self.seconds)
        return None


#: The first pause, if there is nothing to wait for. A task makes the steps before it in its loop, the rest in threads.
TO_THREADS: Final = Pause(0.0)


#: Makes requests, yields each pause, is sent what the pause has brought, and returns a T.
Steps = Generator[Pause, "Image | None", T]


def walk(steps: Steps[T]) -> T:
    """Make all steps in this thread, and return their result. An interrupt of a pause closes the steps."""
    told: Image | None = None
    try:
        while True:
            try:
                pause = steps.send(told)
            except StopIteration as done:
                result: T = done.value
                return result
            told = pause.sleep()
    finally:
        steps.close()  # an interrupt could keep `contextlib.closing` from it
