"""Events of locks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from pynamo_locking._io import event_stream, runtime
from pynamo_locking._io.event_stream import about_lock, emit, harmless
from pynamo_locking.exceptions import LockTimeout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking._core.lock_queue import EntryOwnership, LockState, QueueEntry
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.runtime import Event
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.options import LockOptions


class HeldInfo(Protocol):
    """What events need of a held entry. `held_since_s` is set only while there are listeners."""

    row: LockRow
    entry: QueueEntry
    image: Image | None
    held_since_s: float | None
    deadline: float
    lost: Event
    possession: EntryOwnership
    heartbeats: int
    last_write: int
    has_heartbeat: bool
    is_detached: bool

    @property
    def remaining(self) -> float: ...


def _about(held: HeldInfo) -> dict[str, Any]:
    return about_lock(held.row, held.entry.owner, held.entry.id, held.entry.ticket)


def ms_since(began_s: float) -> float:
    return (runtime.current.monotonic() - began_s) * 1000


@contextlib.contextmanager
def attempt(row: LockRow, options: LockOptions) -> Iterator[None]:
    """Count the requests of an attempt to acquire a lock, and report if it times out."""
    with event_stream.scope(keeps=False) as scope:
        try:
            yield
        except LockTimeout as error:
            if scope is not None:
                _timed_out(row, options, scope, error)
            raise


@harmless
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


@harmless
def _timed_out(row: LockRow, options: LockOptions, scope: event_stream.Scope, error: LockTimeout) -> None:
    emit(
        event_stream.events.TimedOut(
            **about_lock(row, options.owner, "", None),
            **_attempt(scope, error.queue),
            **_first_of(error.queue),
            wait_ms=options.wait * 1000,
        )
    )


@harmless
def acquired(held: HeldInfo) -> None:
    held.held_since_s = runtime.current.monotonic()
    attempt = event_stream.current_scope()
    if attempt is None:  # no listener when we began
        return
    facts = _attempt(attempt, held.row.state(held.image))
    emit(
        event_stream.events.Acquired(
            **_about(held), **facts, lease_ms=held.entry.lease_ms, mode=held.entry.lock_mode.mode
        )
    )


def _held_ms(held: HeldInfo) -> float | None:
    return None if held.held_since_s is None else ms_since(held.held_since_s)


@harmless
def renewed(held: HeldInfo, began_s: float, deadline_s: float, failed_s: float | None) -> None:
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


@harmless
def renewal_failed(held: HeldInfo, error: BaseException, *, failing_s: float, should_log: bool) -> None:
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


@harmless
def lost(held: HeldInfo) -> None:
    emit(event_stream.events.Lost(**_about(held), reason=held.possession.reason, held_ms=_held_ms(held)))


@harmless
def released(held: HeldInfo, *, is_confirmed: bool) -> None:
    emit(
        event_stream.events.Released(
            **_about(held),
            held_ms=_held_ms(held),
            renewals=held.heartbeats,
            writes=held.last_write,
            is_confirmed=is_confirmed,
            is_detached=held.is_detached,
            consumed_units=event_stream.consumed_units(),
        )
    )
