"""Signals that end a command: it ends as after Ctrl-C, restores the terminal, and its exit code names the signal."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from pynamo_locking.cli.problems import Exit, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: A session, a container or a person ends a program by them. Ctrl-C is Python's own.
_ENDING: Final = ("SIGTERM", "SIGHUP")


class Stopped(BaseException):
    """The signal of this number arrived. Not an `Exception`, so that no handler of errors stops it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_is_stopping = False


def stop(number: int) -> None:
    """Raise `Stopped` for the first signal of a block. Later ones are dropped: nothing disturbs the way out."""
    global _is_stopping  # noqa: PLW0603 - as signals are
    if not _is_stopping:
        _is_stopping = True
        raise Stopped(number)


def interrupted(by: BaseException) -> Problem:
    """Return the problem of a command that was ended by Ctrl-C, or by `Stopped`."""
    number = by.number if isinstance(by, Stopped) else signal.SIGINT
    return Problem("interrupted", "interrupted", Exit.SIGNALLED + number)


class Handlers:
    """Handlers of signals for a block; its end restores those from before."""

    def __init__(self) -> None:
        global _is_stopping  # noqa: PLW0603
        self._before: dict[int, Any] = {}
        _is_stopping = False

    def handle(self, number: int, handler: Callable[[int, FrameType | None], object]) -> None:
        """Call the handler when the signal arrives."""
        self._before[number] = signal.signal(number, handler)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Ending(Handlers):
    """Raises `Stopped` for signals that would end the process at once; in the main thread only."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
            for number in numbers:
                if (
                    signal.getsignal(number) is signal.SIG_DFL
                ):  # else it is ignored, as by `nohup`, or another handler's
                    self.handle(number, lambda number, _: stop(number))
        return self
