"""Traces and metrics of OpenTelemetry.

Spans: `acquire` (from the call until the lock is acquired, or the wait has timed out), `hold` (from then until the lock
is released or lost, with a link to `acquire`) and `transaction`. Each is a child of the span that is current where it
happens. Renewals are events of the `hold` span. A span is made when its end is known, except for `hold`.

Source: the semantic conventions for database clients, https://opentelemetry.io/docs/specs/semconv/db/
"""

from __future__ import annotations

import collections
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking import events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from pynamo_locking.events import Event, LockEvent, Subscription, WriteEvent


try:
    from opentelemetry import metrics, trace
except ImportError as _error:
    raise ImportError(
        "pynamo_locking.telemetry.opentelemetry needs the API of OpenTelemetry, which the extra `otel` brings: "
        "pip install 'opentelemetry-api>=1.30'"
    ) from _error


#: The name of the instrumentation, and what the names of its own attributes and metrics begin with.
NAME: Final = "pynamo_locking"

#: Limits of the buckets of durations, in seconds: those of the conventions, and more for waits.
BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)

_SYSTEM: Final = {"db.system.name": "aws.dynamodb"}
_NS_PER_MS: Final = 1_000_000


def install(
    *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Subscription:
    """Make spans and metrics from now on. Call it once in each process, after the providers are set.

    Spans have the name of the lock, which contains the key of the locked item; metrics have only its table and model.

    Args:
        tracer_provider: gets the spans; the global one unless given.
        meter_provider: gets the metrics; the global one unless given.

    Returns:
        The subscription. `cancel` makes no more spans and metrics, and ends the spans of locks that are held.
    """
    tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
    telemetry = _Telemetry(tracer, meter_provider or metrics.get_meter_provider())
    subscription = events.subscribe(telemetry.hear)
    subscription.after_fork = telemetry.leave_to_parent
    subscription.on_cancel = telemetry.end
    return subscription


def _duration(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        f"{NAME}.{name}", unit="s", description=description, explicit_bucket_boundaries_advisory=BUCKETS_S
    )


class _Instruments:
    """The metrics."""

    def __init__(self, meter: Meter) -> None:
        def counter(name: str, unit: str, description: str) -> Counter:
            return meter.create_counter(f"{NAME}.{name}", unit=unit, description=description)

        self.wait = _duration(meter, "lock.wait.duration", "How long it took to get a lock, or to give up.")
        self.hold = _duration(meter, "lock.hold.duration", "How long a lock was held.")
        self.transaction = _duration(meter, "transaction.duration", "How long a transaction lasted.")
        self.renewals = counter("lock.renewals", "{renewal}", "Renewals of leases of locks that are held.")
        self.lost = counter("lock.lost", "{lock}", "Locks that were lost while they were held.")
        self.evictions = counter("lock.evictions", "{entry}", "Entries of other owners, removed from a queue here.")
        self.conflicts = counter("conflicts", "{conflict}", "Writes that were refused, and changed nothing.")
        self.in_doubt = counter("writes.in_doubt", "{write}", "Writes that may or may not have been applied.")
        self.throttled = counter("throttled", "{attempt}", "Attempts of requests that DynamoDB throttled.")
        self.recovered = counter(
            "transactions.recovered", "{transaction}", "Transactions of other processes, completed here."
        )
        self.units = counter("lock.consumed_units", "{unit}", "Units of locks, and of saves that release one.")


@dataclass(frozen=True)
class _Hold:
    span: Span
    place: dict[str, Any]
    start_ns: int


class _Telemetry:
    """Makes spans and metrics of events."""

    def __init__(self, tracer: Tracer, meters: MeterProvider) -> None:
        self._tracer = tracer
        self.meters = meters
        meter = metrics.get_meter(NAME, meter_provider=meters)
        self._instruments = _Instruments(meter)
        self.holds: dict[str, _Hold] = {}  # each access is a single step of Python's
        meter.create_observable_gauge(
            f"{NAME}.lock.held", [self._count_held], unit="{lock}", description="Locks that are held by this process."
        )
        _all[self] = None

    def hear(self, event: Event) -> None:
        """Note an event. Called in its own thread, and so in the context of its span."""
        if isinstance(event, (events.Acquired, events.TimedOut)):
            self._end_wait(event)
        elif isinstance(event, (events.Released, events.Lost)):
            self._end_hold(event)
        elif isinstance(event, (events.Renewed, events.RenewalFailed)):
            self._renewed(event)
        elif isinstance(event, events.WriteEvent):
            self._refused(event)
        elif isinstance(event, events.TransactionEnded):
            self._ended(event)
        elif isinstance(event, events.Throttled):
            about = {**_place_of(event), **_facts(event, "index", "reason")}
            self._instruments.throttled.add(1, about)
            _note(event, {**about, **_facts(event, "name", "operation")})
        elif isinstance(event, events.Evicted):
            self._instruments.evictions.add(1, _place_of(event))
            _note(event, _facts_of(event))
        elif isinstance(event, events.TransactionRecovered):
            about = _facts(event, "outcome", "recovered_by")
            self._instruments.recovered.add(1, {**_place_of(event), **about})
            _note(event, {**about, **_facts(event, "transaction_id", "reason")})
        elif isinstance(event, events.Waiting):
            _note(event, {**_facts_of(event), **_facts(event, "queue_depth", "ahead", "holder")})

    def end(self) -> None:
        """End the spans of what is still held."""
        for entry_id in tuple(self.holds):
            hold = self.holds.pop(entry_id, None)
            if hold is not None:
                hold.span.end()

    def leave_to_parent(self) -> None:
        """In a forked child: the parent keeps its locks, and ends their spans."""
        self.holds.clear()

    # Locks

    def _end_wait(self, event: events.Acquired | events.TimedOut) -> None:
        has_it = isinstance(event, events.Acquired)
        about = _place_of(event) if has_it else {**_place_of(event), "error.type": "LockTimeout"}
        self._instruments.wait.record(event.waited_ms / 1000, about)
        self._count_units(event)
        facts = _facts(event, "waited_ms", "queue_depth", "requests", "polls", "consumed_units")
        has_waited = isinstance(event, events.TimedOut) and event.wait_ms > 0  # else no turn is no error
        error = "not our turn in time" if has_waited else ""
        attributes = {**about, **_facts_of(event), **facts}
        span = self._ended_span(f"acquire {event.table}", event, event.waited_ms, attributes, error)
        if isinstance(event, events.Acquired):
            self._begin_hold(event, span)

    def _ended_span(self, name: str, event: Event, lasted_ms: float, attributes: dict[str, Any], error: str) -> Span:
        """Make the span of what has ended with this event."""
        end_ns = event.time_ms * _NS_PER_MS
        start_ns = end_ns - int(lasted_ms * _NS_PER_MS)
        span = self._tracer.start_span(name, start_time=start_ns, attributes=attributes)
        if error:
            span.set_status(trace.StatusCode.ERROR, error)
        span.end(end_ns)
        return span

    def _begin_hold(self, event: events.Acquired, acquired: Span) -> None:
        start_ns = event.time_ms * _NS_PER_MS
        span = self._tracer.start_span(
            f"hold {event.table}",
            start_time=start_ns,
            attributes={**_place_of(event), **_facts_of(event), **_facts(event, "lease_ms", "mode")},
            links=[trace.Link(acquired.get_span_context())],
        )
        self.holds[event.entry_id] = _Hold(span, _place_of(event), start_ns)

    def _end_hold(self, event: events.Released | events.Lost) -> None:
        hold = self.holds.pop(event.entry_id, None)
        if event.held_ms is not None:
            self._instruments.hold.record(event.held_ms / 1000, _place_of(event))
        if isinstance(event, events.Lost):
            self._instruments.lost.add(1, {**_place_of(event), **_facts(event, "reason")})
        else:
            self._count_units(event)
        if hold is None:
            return
        if isinstance(event, events.Lost):
            hold.span.set_attributes({"error.type": "LockLost", **_facts(event, "reason")})
            hold.span.set_status(trace.StatusCode.ERROR, f"lost: {event.reason}")
        else:
            hold.span.set_attributes(_facts(event, "renewals", "writes", "is_confirmed"))
        hold.span.end(hold.start_ns + int((event.held_ms or 0) * _NS_PER_MS))

    def _renewed(self, event: events.Renewed | events.RenewalFailed) -> None:
        if isinstance(event, events.Renewed):
            outcome, facts = "late" if event.is_late else "renewed", _facts(event, "margin_ms")
            self._count_units(event)
        else:
            outcome, facts = "failed", _facts(event, "remaining_ms")
        about = {f"{NAME}.outcome": outcome}
        self._instruments.renewals.add(1, {**_place_of(event), **about})
        hold = self.holds.get(event.entry_id)
        if hold is not None:
            hold.span.add_event(type(event).__name__, {**about, **facts}, event.time_ms * _NS_PER_MS)

    def _count_units(self, event: events.Acquired | events.TimedOut | events.Renewed | events.Released) -> None:
        if event.consumed_units is not None:
            self._instruments.units.add(event.consumed_units, _place_of(event))

    def _count_held(self, _: CallbackOptions) -> Iterable[metrics.Observation]:
        """Count for all installations with this provider: the SDK asks only the first one that has made the gauge."""
        holds: dict[str, _Hold] = {}
        for telemetry in [each() for each in _all.keyrefs()]:  # another thread may install one more
            if telemetry is not None and telemetry.meters is self.meters:
                holds |= telemetry.holds
        held = collections.Counter(tuple(hold.place.items()) for hold in holds.values())
        return [metrics.Observation(count, dict(place)) for place, count in sorted(held.items())]

    # Writes and transactions

    def _refused(self, event: WriteEvent) -> None:
        about = {**_place_of(event), "error.type": event.error, **_facts(event, "operation")}
        is_in_doubt = isinstance(event, events.WriteInDoubt)
        (self._instruments.in_doubt if is_in_doubt else self._instruments.conflicts).add(1, about)
        _note(event, {**about, **_facts(event, "name", "transaction_id")})

    def _ended(self, event: events.TransactionEnded) -> None:
        is_committed = isinstance(event, events.TransactionCommitted)
        error = event.error if isinstance(event, events.TransactionRolledBack) else ""
        about: dict[str, Any] = {
            **_SYSTEM,
            **({"error.type": error} if error else {}),
            f"{NAME}.outcome": "committed" if is_committed else "rolled_back",
            **_facts(event, "path"),
        }
        self._instruments.transaction.record(event.lasted_ms / 1000, about)
        attributes = {**about, **_facts(event, "transaction_id", "owner", "items", "consumed_units")}
        self._ended_span("transaction", event, event.lasted_ms, attributes, error)


def _place_of(event: LockEvent | WriteEvent | events.Throttled | events.TransactionRecovered) -> dict[str, Any]:
    """Return table and model: several kinds of locks may be in one table."""
    model = getattr(event, "model", None)
    place = {**_SYSTEM, "db.collection.name": event.table}
    return place if model is None else {**place, f"{NAME}.model": model.__name__}


def _facts(event: Event, *names: str) -> dict[str, Any]:
    facts = {f"{NAME}.{name}": getattr(event, name) for name in names}
    return {name: value for name, value in facts.items() if value is not None}


def _facts_of(event: LockEvent) -> dict[str, Any]:
    return _facts(event, "name", "owner", "ticket")


def _note(event: Event, attributes: dict[str, Any]) -> None:
    trace.get_current_span().add_event(type(event).__name__, attributes, event.time_ms * _NS_PER_MS)


_all: weakref.WeakKeyDictionary[_Telemetry, None] = weakref.WeakKeyDictionary()
