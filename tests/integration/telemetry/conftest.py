"""Spans and metrics in memory, and a transaction whose process has died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pynamo_locking.telemetry import opentelemetry
from pynamo_locking.transactions import Transaction
from tests.support.deeds import dying_at
from tests.support.transaction_models import Purse, Transactions, make_long_from, survive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking_testing import VirtualClock


class Traced:
    """Spans and metrics in memory, and a transaction whose process has died."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracers.get_tracer("application")
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def span(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.spans if span.name.split()[0] == name]
        return found

    def points(self, name: str) -> list[Any]:
        """What a metric shows now."""
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"pynamo_locking.{name}"
            for point in metric.data.data_points
        ]


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    with opentelemetry.install(tracer_provider=traced.tracers, meter_provider=traced.meters):
        yield traced
    traced.tracers.shutdown()
    traced.meters.shutdown()


def left_open(clock: VirtualClock, monkeypatch: Any, *, is_decided: bool) -> Transaction:
    """A long commit whose process has died at its decision."""
    make_long_from(monkeypatch)
    tx = Transaction(Transactions, owner="dead", workers=1)
    for i in range(8):
        tx.save(Purse(f"p{i}"))
    with dying_at(monkeypatch, "decision", is_answer_lost=is_decided):
        assert not survive(tx.commit)
    clock.sleep(60)
    return tx
