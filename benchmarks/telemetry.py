"""What events cost a lock: a locked cycle on the in-memory engine, without and with somebody who listens.

    python -m benchmarks.telemetry [--turns 400] [--each 50]

The contenders take turns in one process, and each turn is measured in CPU time of its thread; the table has the
median of the turns, and the median of the ratios to the turn of "nobody" beside it. With `--only NAME` one contender
makes all the turns and nothing is measured: for counting instructions from outside, such as with
``valgrind --tool=cachegrind --cache-sim=no`` or ``perf stat``.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute, VersionAttribute, events
from pynamo_locking.telemetry import logs, opentelemetry, signals
from pynamo_locking.testing import MemoryDynamoDB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager


class Thing(LockableModel):
    """An item with a lock."""

    class Meta:
        table_name = "things"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    lock = LockAttribute()


def log_to_nowhere() -> AbstractContextManager[Any]:
    """Make every record, and write none."""
    logger = logging.getLogger("benchmark")
    logger.propagate, logger.handlers = False, [logging.NullHandler()]
    logger.setLevel(logging.INFO)
    return logs.install(logger)


def trace() -> AbstractContextManager[Any]:
    """Make all spans and metrics with the SDK, and export none."""
    return opentelemetry.install(
        tracer_provider=TracerProvider(shutdown_on_exit=False),
        meter_provider=MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False),
    )


LISTENERS: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = {
    "nobody": contextlib.nullcontext,
    "nobody, again": contextlib.nullcontext,
    "a function that does nothing": lambda: events.subscribe(lambda _: None),
    "signals without receivers": signals.install,
    "logs": log_to_nowhere,
    "OpenTelemetry": trace,
}


def cycles(count: int) -> None:
    """Take a lock and give it back."""
    for _ in range(count):
        with Thing.locked("a", heartbeat=False):
            pass


def turn(listens: Callable[[], AbstractContextManager[Any]], each: int) -> float:
    """Return CPU microseconds for each cycle of a turn."""
    with listens():
        cycles(2)
        start = time.thread_time_ns()
        cycles(each)
        return (time.thread_time_ns() - start) / each / 1000


def measure(turns: int, each: int) -> None:
    """Print the table."""
    times: dict[str, list[float]] = {name: [] for name in LISTENERS}
    for _ in range(turns):
        for name, listens in LISTENERS.items():
            times[name].append(turn(listens, each))
    base = times["nobody"]
    sys.stdout.write("| who listens | CPU µs a cycle | ratio |\n|---|---|---|\n")
    for name, found in times.items():
        ratio = statistics.median(one / other for one, other in zip(found, base, strict=True))
        sys.stdout.write(f"| {name} | {statistics.median(found):.0f} | {ratio:.3f} |\n")


def main() -> None:
    """Measure, or only do the work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--only", choices=list(LISTENERS))
    options = parser.parse_args()
    with MemoryDynamoDB():
        Thing.create_table(wait=True)
        Thing("a").save()
        cycles(100)
        if options.only is None:
            measure(options.turns, options.each)
        else:
            with LISTENERS[options.only]():
                cycles(options.turns * options.each)


if __name__ == "__main__":
    main()
