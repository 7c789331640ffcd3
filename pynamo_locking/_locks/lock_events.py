"""What is told of locks: by events, by the log, and to the holder of a lock that is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from pynamo_locking._core.lock_queue import HoldState
from pynamo_locking._core.row_keys import plain
from pynamo_locking._io import event_stream, runtime
from pynamo_locking._io.event_stream import about_lock, emit, to_listeners
from pynamo_locking._io.runtime import logger
from pynamo_locking._locks import local_queue
from pynamo_locking.exceptions import LockTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.lease import LeaseClock
    from pynamo_locking._core.lock_queue import EntryOwnership, LockState, QueueEntry
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.runtime import Event
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.local_queue import LocalWaiter
    from pynamo_locking._locks.options import LockOptions


class HeldFacts(Protocol):
    """What is told of a held entry."""

    row: LockRow
    entry: QueueEntry
    ownership: EntryOwnership
    clock: LeaseClock
    report: HoldReport
    last_write: int

    @property
    def remaining(self) -> float: ...


def _about(held: HeldFacts) -> dict[str, Any]:
    return about_lock(held.row, held.entry.owner, held.entry.id, held.entry.ticket)


def ms_since(began_s: float) -> float:
    return (runtime.current.monotonic() - began_s) * 1000


@to_listeners
def waiting(
    row: LockRow, options: LockOptions, entry_id: str, mine: QueueEntry | None, state: LockState, ahead: int
) -> None:
    """Report that a wait begins, once for each attempt."""
    scope = event_stream.current_scope()
    if scope is None or scope.is_waiting or options.wait == 0:
        return
    scope.is_waiting = True
    emit(
        event_stream.events.Waiting(
            **about_lock(row, options.owner, entry_id, None if mine is None else mine.ticket),
            queue_depth=len(state.entries),
            ahead=ahead,
            **_first_of(state if ahead else None),
        )
    )


@to_listeners
def waiting_in_line(row: LockRow, options: LockOptions, entry_id: str, caller: LocalWaiter) -> None:
    """Report that a wait begins behind the other callers of this process."""
    state, callers = local_queue.seen_ahead(caller)
    waiting(row, options, entry_id, None, state, max(1, len(state.entries)) + callers)


def _first_of(state: LockState | None) -> dict[str, Any]:
    first = state.entries[0] if state is not None and state.entries else None
    return {
        "holder": "" if first is None else first.owner,
        "holder_ticket": None if first is None else first.ticket,
        "holder_held_ms": None if first is None else first.held_for * 1000,
    }


def _attempt(scope: event_stream.Scope, state: LockState | None) -> dict[str, Any]:
    return {
        "waited_ms": ms_since(scope.began_s),
        "queue_depth": 0 if state is None else len(state.entries),
        "requests": scope.requests,
        "polls": scope.polls,
        "consumed_units": scope.units,
    }


@to_listeners
def timed_out(row: LockRow, options: LockOptions, error: BaseException) -> None:
    """Report the end of an attempt to acquire a lock, if it has timed out."""
    scope = event_stream.current_scope()
    if scope is None or not isinstance(error, LockTimeout):
        return
    emit(
        event_stream.events.TimedOut(
            **about_lock(row, options.owner, "", None),
            **_attempt(scope, error.queue),
            **_first_of(error.queue),
            wait_ms=options.wait * 1000,
        )
    )


@to_listeners
def acquired(held: HeldFacts, image: Image | None) -> None:
    held.report.held_since_s = runtime.current.monotonic()
    attempt = event_stream.current_scope()
    if attempt is None:  # no listener when we began
        return
    facts = _attempt(attempt, held.row.state(image))
    emit(
        event_stream.events.Acquired(
            **_about(held), **facts, lease_ms=held.entry.lease_ms, mode=held.entry.lock_mode.mode
        )
    )


def _held_ms(held: HeldFacts) -> float | None:
    since_s = held.report.held_since_s
    return None if since_s is None else ms_since(since_s)


#: Between two lines about one outage: the first pause, doubled each time, and the longest.
_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 3600.0


class HoldReport:
    """What is told of one hold: whom a loss is told to, and how long its renewals have failed.

    The heartbeat tries about once a second. Subscribers get each attempt; the log would be full of one outage.

    Attributes:
        lost: is set once it is proven that the lock is lost.
        on_lost: is called then, with the reason.
        held_since_s: since when it is held; None without listeners.
    """

    def __init__(self) -> None:
        self.lost: Event = runtime.current.event()
        self.on_lost: list[Callable[[str], object]] = []
        self.held_since_s: float | None = None
        self._renewed_s: float | None = None  # when it last was; None while all is well
        self._next_s = 0.0
        self._pause_s = 0.0
        self._is_over = False  # the lease, and the log has said so

    def renewal_failed(self, held: HeldFacts, error: BaseException, *, is_odd: bool = False) -> None:
        """Report that a renewal got no usable answer; `is_odd` logs the trace of an error that is not expected."""
        now = runtime.current.monotonic()
        if self._renewed_s is None:
            self._renewed_s = held.clock.started
            self._next_s, self._pause_s, self._is_over = now, _FIRST_PAUSE_S, False
        has_ended = not held.remaining and not self._is_over
        should_log = held.ownership.is_held and (has_ended or now >= self._next_s)  # else there is nothing to renew
        failing_s = now - self._renewed_s
        if should_log:
            self._next_s, self._pause_s = now + self._pause_s, min(self._pause_s * 2, _LONGEST_PAUSE_S)
            self._is_over = self._is_over or has_ended
            if not event_stream.is_logged("RenewalFailed"):
                logger.warning("%s", self._words(held, error, failing_s), exc_info=error if is_odd else None)
        _renewal_failed(held, error, failing_s=failing_s, should_log=should_log)

    def _words(self, held: HeldFacts, error: BaseException, failing_s: float) -> str:
        if held.remaining:
            left = f"{held.remaining:.1f} s of its lease of {held.entry.lease:g} s are left"
        else:
            left = "its lease has ended, so another owner may acquire it, and its guarded writes are refused then"
        further = "The heartbeat goes on trying. " if held.clock.has_heartbeat else ""
        return (
            f"{held} (holder {plain(held.entry.owner)}) could not be renewed for {failing_s:.1f} s: {left}. {further}"
            f"Last error: {str(error) or repr(error)}"
        )

    def renewed(self, held: HeldFacts, began_s: float, deadline_s: float) -> None:
        """Report a renewal, begun then, of a lease that would have ended at `deadline_s`."""
        failed_s = None
        if self._renewed_s is not None:
            failed_s, self._renewed_s = runtime.current.monotonic() - self._renewed_s, None
            if not event_stream.is_logged("Renewed"):
                kept = "; its lease had ended, and no other owner acquired it" if self._is_over else ""
                logger.warning(
                    "%s (holder %s) is renewed again after %.1f s%s", held, plain(held.entry.owner), failed_s, kept
                )
        _renewed(held, began_s, deadline_s, failed_s)


@to_listeners
def _renewed(held: HeldFacts, began_s: float, deadline_s: float, failed_s: float | None) -> None:
    """Report a renewal of a lease that would have ended at `deadline_s`; after a failure, for how long it failed."""
    emit(
        event_stream.events.Renewed(
            **_about(held),
            lease_ms=held.entry.lease_ms,
            took_ms=ms_since(began_s),
            margin_ms=-ms_since(deadline_s),
            consumed_units=event_stream.consumed_units(),
            failed_ms=None if failed_s is None else failed_s * 1000,
        )
    )


@to_listeners
def _renewal_failed(held: HeldFacts, error: BaseException, *, failing_s: float, should_log: bool) -> None:
    cause = getattr(error, "cause", None) or error
    emit(
        event_stream.events.RenewalFailed(
            **_about(held),
            lease_ms=held.entry.lease_ms,
            remaining_ms=held.remaining * 1000,
            error=type(cause).__name__,
            failing_ms=failing_s * 1000,
            should_log=should_log,
        )
    )


def lost(held: HeldFacts) -> None:
    """Tell of a loss, once: the log, `on_lost`, and the listeners."""
    reason = held.ownership.reason
    if not event_stream.is_logged("Lost"):
        logger.warning("lost %s (holder %s): %s", held, plain(held.entry.owner), reason)
    for on_lost in held.report.on_lost:
        _call_in_thread(on_lost, reason)
    _lost(held)


def _call_in_thread(on_lost: Callable[[str], object], reason: str) -> None:
    try:
        runtime.current.spawn(lambda: on_lost(reason), name="pynamo-locking-on-lost")  # type: ignore[arg-type]
    except RuntimeError:  # no thread: better here than never; what it raises must not reach our caller
        try:
            on_lost(reason)
        except Exception:
            logger.exception("on_lost failed")


@to_listeners
def _lost(held: HeldFacts) -> None:
    emit(event_stream.events.Lost(**_about(held), reason=held.ownership.reason, held_ms=_held_ms(held)))


@to_listeners
def released(held: HeldFacts) -> None:
    state = held.ownership.state
    emit(
        event_stream.events.Released(
            **_about(held),
            held_ms=_held_ms(held),
            renewals=held.clock.heartbeats,
            writes=held.last_write,
            is_confirmed=state in (HoldState.ENDED, HoldState.DETACHED),
            is_detached=state is HoldState.DETACHED,
            consumed_units=event_stream.consumed_units(),
        )
    )
