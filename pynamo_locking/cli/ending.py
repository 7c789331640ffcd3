"""Signals that end a command: it ends as after Ctrl-C, so that the terminal is as before, and the exit code tells."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Self

from pynamo_locking.cli.problems import Exit, Problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

#: Those by which a session, a container or a person ends a program. Ctrl-C is Python's own.
_ENDING: Final = ("SIGTERM", "SIGHUP")


class Stopped(BaseException):
    """A signal arrived. Passes all handlers of mere errors.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def interrupted(by: BaseException) -> Problem:
    """Return the problem of a command that was ended by Ctrl-C, or by `Stopped`."""
    number = by.number if isinstance(by, Stopped) else signal.SIGINT
    return Problem("interrupted", "interrupted", Exit.SIGNALLED + number)


class Handlers:
    """Handlers of signals, for a block: those from before come back with its end."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def handle(self, number: int, handler: Callable[[int, FrameType | None], object]) -> None:
        """Call that when the signal arrives."""
        self._before[number] = signal.signal(number, handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Ending(Handlers):
    """Raises `Stopped` for signals that would end the process without a word; in the main thread only."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
            for number in numbers:
                if signal.getsignal(number) is signal.SIG_DFL:  # else it is ignored, as `nohup` wants it, or not ours
                    self.handle(number, _stop)
        return self


def _stop(number: int, _frame: FrameType | None) -> None:
    raise Stopped(number)
