"""Makes the events, where somebody listens. Nothing in here may fail in place of what it is about."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from typing_extensions import ParamSpec

from pynamo_locking._core import events as kinds
from pynamo_locking._io import events, rows, runtime
from pynamo_locking._io.events import clocks, emit
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    LockTimeout,
    OutcomeUnknown,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pynamo_locking._core.possession import Possession
    from pynamo_locking._core.queue import Entry, LockState
    from pynamo_locking._core.transaction import Header
    from pynamo_locking._io.headers import HeaderTable
    from pynamo_locking._io.requests import Image, Row
    from pynamo_locking._io.runtime import Event
    from pynamo_locking._io.wish import Wish
    from pynamo_locking._io.writes import Write

_P = ParamSpec("_P")
_E = TypeVar("_E", bound="Held")

logger = logging.getLogger("pynamo_locking")

#: The names under which errors are told, the most telling first; their classes are often joined with PynamoDB's.
_CONFLICTS: Final = (StaleVersion, ItemLocked, TransactionConflict, TransactionAborted, Conflict)


def _harmless(tell: Callable[_P, None]) -> Callable[_P, None]:
    @functools.wraps(tell)
    def telling(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            tell(*args, **kwargs)
        except Exception:
            logger.exception("an event could not be told")

    return telling


# Locks


class Held(Protocol):
    """What is told of an entry of ours. `taking` and `held_since_s` are set only while somebody listens."""

    row: Row
    entry: Entry
    image: Image | None
    taking: events.Scope | None
    held_since_s: float | None
    deadline: float
    lost: Event
    possession: Possession
    last_beat: int
    last_write: int
    has_heartbeat: bool

    @property
    def remaining(self) -> float: ...
    def release(self) -> None: ...


def _about(row: Row, owner: str, entry_id: str, ticket: int | None) -> dict[str, Any]:
    return {
        **clocks(),
        "name": row.name,
        "table": row.table,
        "model": row.model,
        "owner": owner,
        "entry_id": entry_id,
        "ticket": ticket,
    }


def _about_own(own: Held) -> dict[str, Any]:
    return _about(own.row, own.entry.owner, own.entry.id, own.entry.ticket)


def _ms_since(began_s: float) -> float:
    return (runtime.current.monotonic() - began_s) * 1000


@contextlib.contextmanager
def attempt(row: Row, wish: Wish) -> Iterator[events.Scope | None]:
    """Count what an attempt to take a lock takes, and tell if it runs out of time."""
    with events.scope(keeps=False) as scope:
        try:
            yield scope
        except LockTimeout as error:
            if scope is not None:
                _timed_out(row, wish, scope, error)
            raise


def taking(row: Row, wish: Wish, take: Callable[[], _E]) -> _E:
    """Take a lock, and note for `acquired` what it took."""
    with attempt(row, wish) as scope:
        own = take()
    own.taking = scope
    return own


def releasing(own: Held) -> None:
    """Give a lock back, and count for `released` what that consumes."""
    with events.scope(keeps=False):
        own.release()


@_harmless
def waiting(row: Row, wish: Wish, entry_id: str, mine: Entry | None, state: LockState, ahead: int) -> None:
    """Tell that a wait begins, once for each attempt."""
    scope = events.current_scope()
    if scope is None or scope.is_waiting or wish.wait == 0:
        return
    scope.is_waiting = True
    first = state.entries[0] if ahead and state.entries else None
    emit(
        kinds.Waiting(
            **_about(row, wish.owner, entry_id, None if mine is None else mine.ticket),
            queue_depth=len(state.entries),
            ahead=ahead,
            holder="" if first is None else first.owner,
            holder_ticket=None if first is None else first.ticket,
        )
    )


def _attempt(scope: events.Scope, state: LockState | None) -> dict[str, Any]:
    return {
        "waited_ms": _ms_since(scope.began_s),
        "queue_depth": 0 if state is None else len(state.entries),
        "requests": scope.requests,
        "looks": scope.looks,
        "consumed_units": scope.units,
    }


@_harmless
def _timed_out(row: Row, wish: Wish, scope: events.Scope, error: LockTimeout) -> None:
    emit(kinds.TimedOut(**_about(row, wish.owner, "", None), **_attempt(scope, error.queue), wait_ms=wish.wait * 1000))


@_harmless
def acquired(own: Held) -> None:
    """Tell that we have a lock."""
    own.held_since_s = runtime.current.monotonic()
    own.taking = own.taking or events.current_scope()  # a task is still in it
    if own.taking is None:  # nobody listened when we began
        return
    state = own.row.state(own.image)
    facts = _attempt(own.taking, state)
    emit(kinds.Acquired(**_about_own(own), **facts, lease_ms=own.entry.lease_ms, mode=own.entry.claim.mode))


def _held_ms(own: Held) -> float | None:
    return None if own.held_since_s is None else _ms_since(own.held_since_s)


def _units() -> float | None:
    scope = events.current_scope()
    return None if scope is None else scope.units


@_harmless
def renewed(own: Held, began_s: float, deadline_s: float, failed_s: float | None) -> None:
    """Tell that a lease was renewed, which would have been over at `deadline_s`; after a failure, for how long."""
    emit(
        kinds.Renewed(
            **_about_own(own),
            lease_ms=own.entry.lease_ms,
            took_ms=_ms_since(began_s),
            margin_ms=-_ms_since(deadline_s),
            consumed_units=_units(),
            failed_ms=None if failed_s is None else failed_s * 1000,
        )
    )


@_harmless
def renewal_failed(own: Held, error: BaseException, *, failing_s: float, is_news: bool) -> None:
    """Tell that a renewal got no usable answer."""
    cause = getattr(error, "cause", None) or error
    emit(
        kinds.RenewalFailed(
            **_about_own(own),
            lease_ms=own.entry.lease_ms,
            remaining_ms=own.remaining * 1000,
            error=type(cause).__name__,
            failing_ms=failing_s * 1000,
            is_news=is_news,
        )
    )


@_harmless
def lost(own: Held) -> None:
    """Tell that a lock was lost."""
    emit(kinds.Lost(**_about_own(own), reason=own.possession.reason, held_ms=_held_ms(own)))


@_harmless
def released(own: Held, *, is_confirmed: bool) -> None:
    """Tell that a lock was given back."""
    emit(
        kinds.Released(
            **_about_own(own),
            held_ms=_held_ms(own),
            renewals=own.last_beat,
            writes=own.last_write,
            is_confirmed=is_confirmed,
            consumed_units=_units(),
        )
    )


@_harmless
def evicted(row: Row, entries: Sequence[Entry], *, is_forced: bool = False) -> None:
    """Tell that we removed entries of others."""
    for entry in entries:
        emit(
            kinds.Evicted(
                **_about(row, entry.owner, entry.id, entry.ticket),
                by=runtime.current.owner(),
                lease_ms=entry.lease_ms,
                is_forced=is_forced,
            )
        )


# Writes


def _name_of_error(error: BaseException) -> str:
    """Return the name of an error's kind: its own class may be made of two."""
    found = next((kind for kind in (*_CONFLICTS, OutcomeUnknown) if isinstance(error, kind)), type(error))
    return found.__name__


def _refusal(about: dict[str, Any], error: BaseException) -> None:
    about = {**clocks(), **about, "error": _name_of_error(error)}
    if isinstance(error, OutcomeUnknown):
        emit(kinds.WriteInDoubt(**about, write_id=error.write_id))
    elif isinstance(error, StaleVersion):
        emit(kinds.WriteRefused(**about, expected=error.expected, actual=error.actual))
    elif isinstance(error, ItemLocked):
        emit(kinds.WriteRefused(**about, holder=error.holder, holder_ticket=error.ticket))
    elif isinstance(error, TransactionAborted):
        emit(kinds.WriteRefused(**about, by=error.by))
    elif isinstance(error, Conflict):
        emit(kinds.WriteRefused(**about))


@_harmless
def write_failed(write: Write, error: Exception) -> None:
    """Tell that a single write met a conflict, or that nobody knows what became of it."""
    model, item = type(write.item), write.item
    values = [None if name is None else getattr(item, name) for name in (item._hash_keyname, item._range_keyname)]
    about = {
        "table": item._get_connection().table_name,
        "model": model,
        "name": rows.name_of(model, rows.key_of(model, *values)),
        "operation": write.operation.verb,
    }
    _refusal(about, error)


@_harmless
def commit_failed(transaction_id: str, table: str, error: Exception) -> None:
    """Tell the same of a transaction, given the table of its first item."""
    _refusal({"table": table, "model": None, "name": transaction_id, "operation": "transaction"}, error)


# Transactions


@_harmless
def transaction_ended(
    transaction_id: str,
    owner: str,
    *,
    began_s: float,
    items: int,
    path: str,
    is_committed: bool,
    is_repeated: bool,
    error: BaseException | None,
) -> None:
    """Tell that a transaction of ours has ended."""
    about = {
        **clocks(),
        "transaction_id": transaction_id,
        "owner": owner,
        "lasted_ms": _ms_since(began_s),
        "items": items,
        "path": path,
    }
    if is_committed:
        emit(kinds.TransactionCommitted(**about, is_repeated=is_repeated))
    else:
        emit(kinds.TransactionRolledBack(**about, error="" if error is None else _name_of_error(error)))


@_harmless
def recovered(
    header_table: HeaderTable, header: Header | None, transaction_id: str, *, outcome: str, by: str, reason: str = ""
) -> None:
    """Tell that we did something about a transaction of somebody else."""
    owner = "" if header is None else header.owner
    emit(
        kinds.TransactionRecovered(
            **clocks(),
            transaction_id=transaction_id,
            owner=owner,
            table=header_table.table,
            outcome=outcome,
            by=by,
            reason=reason,
        )
    )
