"""What the log says while the renewals of a held lock fail: see `RenewalFailed.is_news`.

The heartbeat tries about once a second. Subscribers hear of each attempt; the log would be full of one outage.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pynamo_locking._core.naming import plain
from pynamo_locking._io import event_stream, runtime
from pynamo_locking._locks import reports

if TYPE_CHECKING:
    from pynamo_locking._locks.reports import Held

logger = logging.getLogger("pynamo_locking")

#: Between two lines about one outage: the first pause, doubled each time, and the longest.
_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 3600.0


class Outage:
    """The failed renewals of one lock, from the last one that succeeded to the next."""

    def __init__(self) -> None:
        self._renewed_s: float | None = None  # when it last was; None while all is well
        self._next_s = 0.0
        self._pause_s = 0.0
        self._is_over = False  # the lease, and the log has said so

    def failed(self, held: Held, error: BaseException, *, is_odd: bool = False) -> None:
        """Report that a renewal got no usable answer; `is_odd` logs the trace of an error that is not expected."""
        now = runtime.current.monotonic()
        if self._renewed_s is None:
            self._renewed_s = held.deadline - held.entry.lease
            self._next_s, self._pause_s, self._is_over = now, _FIRST_PAUSE_S, False
        has_ended = not held.remaining and not self._is_over
        is_news = held.possession.is_held and (has_ended or now >= self._next_s)  # else there is nothing to renew
        failing_s = now - self._renewed_s
        if is_news:
            self._next_s, self._pause_s = now + self._pause_s, min(self._pause_s * 2, _LONGEST_PAUSE_S)
            self._is_over = self._is_over or has_ended
            if not event_stream.is_logged("RenewalFailed"):
                logger.warning("%s", self._words(held, error, failing_s), exc_info=error if is_odd else None)
        if event_stream.listeners:
            reports.renewal_failed(held, error, failing_s=failing_s, is_news=is_news)

    def _words(self, held: Held, error: BaseException, failing_s: float) -> str:
        if held.remaining:
            left = f"{held.remaining:.1f} s of its lease of {held.entry.lease:g} s are left"
        else:
            left = "its lease has ended, so another party may take it, and its guarded writes are refused then"
        further = "The heartbeat goes on trying. " if held.has_heartbeat else ""
        return (
            f"{held} (holder {plain(held.entry.owner)}) could not be renewed for {failing_s:.1f} s: {left}. {further}"
            f"Last error: {str(error) or repr(error)}"
        )

    def ended(self, held: Held) -> float | None:
        """Note a renewal that succeeded; return for how many seconds there had been none, if any had failed."""
        if self._renewed_s is None:
            return None
        failing_s, self._renewed_s = runtime.current.monotonic() - self._renewed_s, None
        if not event_stream.is_logged("Renewed"):
            kept = "; its lease had ended, and no other party took it" if self._is_over else ""
            logger.warning(
                "%s (holder %s) is renewed again after %.1f s%s", held, plain(held.entry.owner), failing_s, kept
            )
        return failing_s
