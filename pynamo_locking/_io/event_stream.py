"""The stream of events: who listens, and what is emitted.

Events are made and emitted by functions with `to_listeners`, which do nothing without listeners. So their callers need
not ask. Listeners are called in the emitting thread, while no mutex of this package is held. Events that are emitted
under a mutex wait in the `Scope`.

The classes of events are loaded by the first subscriber: making them would be a fifth of the package's import.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import ParamSpec

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transactions import public_reason
from pynamo_locking._io import runtime
from pynamo_locking._io.runtime import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from pynamo_locking._core import events as events  # noqa: PLC0414, TC004 - subscribe() loads it
    from pynamo_locking._core.events import Event
    from pynamo_locking._core.lock_queue import QueueEntry
    from pynamo_locking._core.transactions import TransactionRecord
    from pynamo_locking._io.lock_record import LockRow


#: All subscriptions. Replaced as a whole, so that it can be read without a mutex.
listeners: tuple[Subscription, ...] = ()
_mutex = runtime.current.mutex()


class Subscription:
    """What `subscribe` returns. Ends with `cancel`, or with the ``with`` block that it is used in."""

    is_log = False  # logs each event, in place of this package's own log lines
    after_fork: Callable[[], object] | None = None  # called in a forked child, where it stays subscribed
    on_cancel: Callable[[], object] | None = None

    def __init__(self, subscriber: Callable[[Any], object], of: tuple[type[Event], ...]) -> None:
        self._subscriber = subscriber
        self._of = of
        self._has_failed = False

    def cancel(self) -> None:
        """Stop calling the subscriber, except for an event that is being delivered. May be called twice."""
        _replace(lambda before: tuple(each for each in before if each is not self))
        if self.on_cancel is not None:
            self.on_cancel()

    def _deliver(self, event: Event) -> None:
        """Call the subscriber, but not for events that it causes itself. Its first error is logged."""
        delivering = _delivering.get()
        if self in delivering or not isinstance(event, self._of):
            return
        reset = _delivering.set((*delivering, self))
        try:
            self._subscriber(event)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                logger.exception(
                    "%r, which subscribed to events, failed on %s. It is called again for the next ones, and further "
                    "failures are not logged.",
                    self._subscriber,
                    type(event).__name__,
                )
        finally:
            _delivering.reset(reset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()


def subscribe(
    subscriber: Callable[[Any], object],
    of: type[Event] | tuple[type[Event], ...] | None = None,
) -> Subscription:
    """Call a function for every event of locks, writes and transactions in this process.

    Example::

        waits = []
        with events.subscribe(waits.append, of=events.Waiting):
            with Account.locked("a-1"):
                pass
        assert waits == []  # the lock was free

    The function is called at once, in the thread and the context that emits the event, which waits for it. So it should
    be quick, and do long work in another thread. Several threads may call it at the same time, among them the
    heartbeat. Its exceptions are suppressed, so that no lock depends on it; the first one of each subscription is
    logged. It is not called for events that it causes itself. In a forked child it stays subscribed.

    Args:
        subscriber: called with each event. An event has no value of an item except its key, as part of the lock's name.
        of: the class, or classes, of the events it is called for; all unless given.

    Returns:
        The subscription, whose `cancel` ends it. As a context manager it ends with the block.

    Raises:
        ConfigurationError: `subscriber` cannot be called, or is a coroutine function; or `of` is not a class of events.

    Cost: no request.
    """
    global events  # noqa: PLW0603 - loaded once for the process
    from pynamo_locking._core import events  # noqa: PLC0415 - most programs need none

    base = events.Event
    classes: tuple[Any, ...] = of if isinstance(of, tuple) else (base if of is None else of,)
    if inspect.iscoroutinefunction(subscriber) or not callable(subscriber):
        raise ConfigurationError(f"a subscriber is a plain function of one argument, not {subscriber!r}.")
    if not all(isinstance(each, type) and issubclass(each, base) for each in classes):
        raise ConfigurationError(f"`of` says which classes of pynamo_locking.events to hear of, not {of!r}.")
    subscription = Subscription(subscriber, classes)
    _replace(lambda before: (*before, subscription))
    return subscription


def _replace(change: Callable[[tuple[Subscription, ...]], tuple[Subscription, ...]]) -> None:
    global listeners  # noqa: PLW0603 - one stream for the process
    with _mutex:
        listeners = change(listeners)


def emit(event: Event) -> None:
    """Call all listeners; after the scope's mutex is released, if one is held."""
    scope = _scope.get()
    keeper = None if scope is None else scope.keeper_here()
    if keeper is not None:
        keeper.kept.append(event)
        return
    reset = _scope.set(None)  # a listener's requests are no part of the reported work
    try:
        for listener in listeners:
            listener._deliver(event)  # noqa: SLF001 - in no subscriber's way
    finally:
        _scope.reset(reset)


def is_logged(kind: str) -> bool:
    """Tell whether `telemetry.logs` logs the events with this name, so that our own line would repeat it."""
    logs = [each for each in listeners if each.is_log]
    return any(issubclass(getattr(events, kind), each._of) for each in logs)  # noqa: SLF001 - the same


class Scope:
    """One piece of work, inside a ``with`` statement: counts its requests.

    Args:
        keeps: whether events inside wait for its end.
        on_error: called with the error that ends it, still inside of it.

    Attributes:
        began_s: when, by the monotonic clock.
        requests: how many requests of locks were sent.
        polls: how many of them were reads.
        is_waiting: whether `Waiting` was emitted.
        kept: the events that wait for its end.
        thread: the thread or task whose events wait; None if none do.
        is_over: whether it has ended.
    """

    def __init__(self, *, keeps: bool, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._on_error = on_error
        self.began_s = runtime.current.monotonic()
        self.requests = 0
        self.polls = 0
        self._consumed: dict[object, float] = {}  # by thread: each thread of a commit adds to its own
        self.is_waiting = False
        self.kept: list[Event] = []
        self.thread = runtime.current.thread_or_task()[0] if keeps else None
        self.is_over = False

    def __enter__(self) -> Self:
        outer = self._outer = _scope.get()
        around = None if outer is None else outer.keeper_here()
        self._keeper = self if around is None and self.thread is not None else around
        self._reset = _scope.set(self)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and self._on_error is not None:
            self._on_error(error)
        with contextlib.suppress(ValueError):  # a task that is garbage collected ends in another context
            _scope.reset(self._reset)
        self.is_over = True
        if self._outer is not None:
            self._outer.consume(self.units)
        for event in self.kept:
            emit(event)

    @property
    def units(self) -> float | None:
        """What all requests consumed, None if DynamoDB did not say."""
        return sum(self._consumed.values()) if self._consumed else None

    def consume(self, units: float | None) -> None:
        """Count what a request, or a piece of work inside of this one, has consumed."""
        if units is not None:
            thread = runtime.current.thread_or_task()[0]
            self._consumed[thread] = self._consumed.get(thread, 0.0) + units

    def keeper_here(self) -> Scope | None:
        """Return the outermost scope around that keeps events.

        None where its mutex is not held: in a copy of the context that outlives it, or in another thread.
        """
        keeper = self._keeper
        is_here = keeper is not None and not keeper.is_over and keeper.thread == runtime.current.thread_or_task()[0]
        return keeper if is_here else None


#: Without listeners.
_NO_SCOPE: Final = contextlib.nullcontext()
_scope: ContextVar[Scope | None] = ContextVar("pynamo_locking_scope", default=None)
_delivering: ContextVar[tuple[Subscription, ...]] = ContextVar("pynamo_locking_delivering", default=())


def scope(
    *, keeps: bool = True, on_error: Callable[[BaseException], None] | None = None
) -> AbstractContextManager[Scope | None]:
    """Return the scope of a piece of work, if there are listeners; `keeps` if a mutex is held inside."""
    return Scope(keeps=keeps, on_error=on_error) if listeners else _NO_SCOPE


def current_scope() -> Scope | None:
    return _scope.get()


_P = ParamSpec("_P")


def to_listeners(report: Callable[_P, None]) -> Callable[_P, None]:
    """Let a function do nothing without listeners. Its errors are logged, and never replace that of the work."""

    @functools.wraps(report)
    def reporting(*args: _P.args, **kwargs: _P.kwargs) -> None:
        if not listeners:
            return
        try:
            report(*args, **kwargs)
        except Exception:
            logger.exception("an event could not be reported")

    return reporting


@to_listeners
def requesting(operation: str) -> None:
    """Count a request of a lock."""
    scope = _scope.get()
    if scope is not None:
        scope.requests += 1
        scope.polls += operation == "GetItem"


def consumed_units() -> float | None:
    """Return what the requests of the current scope have consumed; None if no response has said."""
    scope = _scope.get()
    return None if scope is None else scope.units


def clocks() -> dict[str, Any]:
    """Return the time fields of an event."""
    return {"time_ms": runtime.current.time_ms(), "monotonic_s": runtime.current.monotonic()}


def _reset_after_fork() -> None:
    global _mutex  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _mutex = runtime.current.mutex()
    for each in listeners:
        if each.after_fork is not None:
            each.after_fork()


runtime.after_fork(_reset_after_fork)


# Events of evictions and of recovered transactions.


@to_listeners
def answered(answer: dict[str, Any]) -> None:
    """Count what a request has consumed: PynamoDB asks for it with every request."""
    scope, consumed = _scope.get(), answer.get("ConsumedCapacity")
    if scope is None or consumed is None:
        return
    for each in [consumed] if isinstance(consumed, dict) else consumed:  # of several tables
        scope.consume(float(each.get("CapacityUnits", 0.0)))


def about_lock(row: LockRow, owner: str, entry_id: str, ticket: int | None) -> dict[str, Any]:
    return {
        **clocks(),
        "name": row.name,
        "table": row.table,
        "model": row.model,
        "owner": owner,
        "entry_id": entry_id,
        "ticket": ticket,
    }


@to_listeners
def evicted(row: LockRow, entries: Sequence[QueueEntry], *, is_forced: bool = False) -> None:
    for entry in entries:
        emit(
            events.Evicted(
                **about_lock(row, entry.owner, entry.id, entry.ticket),
                by=runtime.current.owner(),
                lease_ms=entry.lease_ms,
                is_forced=is_forced,
                queued_ms=entry.queued_for * 1000,
            )
        )


@to_listeners
def recovered(
    table: str,
    record: TransactionRecord | None,
    transaction_id: str,
    *,
    outcome: str,
    recovered_by: str,
    reason: str = "",
) -> None:
    """Report what we did about another process's transaction."""
    emit(
        events.TransactionRecovered(
            **clocks(),
            transaction_id=transaction_id,
            owner="" if record is None else record.owner,
            table=table,
            outcome=outcome,
            recovered_by=recovered_by,
            reason=public_reason(reason) if reason else "",
        )
    )
