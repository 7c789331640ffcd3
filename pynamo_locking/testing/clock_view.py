"""The clocks of one process, as a view of the true time. Pure: no threads, nothing that waits."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol

from pynamo_locking.exceptions import ConfigurationError


class TimeSource(Protocol):
    """Two clocks, as a process has them."""

    def monotonic(self) -> float:
        """Return seconds that only go up, from an arbitrary beginning."""
        ...

    def time_ms(self) -> int:
        """Return wall clock time in ms since the epoch."""
        ...


class ClockView:
    """The clocks of a process whose wall clock is set wrongly, or whose monotonic clock runs at another rate.

    The monotonic clock agrees with the source's at the moment at which the view is made.

    Args:
        source: the true time.
        skew_s: seconds by which the wall clock is ahead; negative if it is behind.
        drift: by how much the monotonic clock runs fast: at 0.01 it counts 101 seconds in 100; negative if it runs
            slow. More than -1.

    Raises:
        ConfigurationError: the clock would stand still or run backwards.
    """

    def __init__(self, source: TimeSource, skew_s: float = 0.0, drift: float = 0.0) -> None:
        if not drift > -1:
            raise ConfigurationError(f"drift must be more than -1, not {drift!r}: the clock would not go forward")
        self.skew_s = skew_s
        self.drift = drift
        self._source = source
        self._origin = source.monotonic()

    def monotonic(self) -> float:
        """Return seconds that only go up, at this process's rate."""
        return self._origin + (self._source.monotonic() - self._origin) * (1 + self.drift)

    def time_ms(self) -> int:
        """Return this process's wall clock time in ms since the epoch."""
        return self._source.time_ms() + self.skew_ms

    @property
    def skew_ms(self) -> int:
        """Milliseconds by which the wall clock is ahead."""
        return round(self.skew_s * 1000)

    def true_seconds(self, seconds: float) -> float:
        """Return how many seconds of the source pass while so many pass here.

        Args:
            seconds: a duration on this process's monotonic clock.
        """
        return seconds / (1 + self.drift)


#: The views that the running code has entered, the last one counts. By context: threads it starts inherit it.
_ENTERED: Final[ContextVar[tuple[ClockView, ...]]] = ContextVar("pynamo_locking_clock_views", default=())


def view_here() -> ClockView | None:
    """Return the view that the running code belongs to; None: it has the true time."""
    return _ENTERED.get()[-1] if _ENTERED.get() else None


def enter(view: ClockView) -> None:
    """Make a view that of the running code."""
    _ENTERED.set((*_ENTERED.get(), view))


def leave() -> None:
    """Go back to the view before."""
    _ENTERED.set(_ENTERED.get()[:-1])
