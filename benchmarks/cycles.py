"""One uncontended read-modify-write: latency, requests and units, beside no protection at all."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.contenders import Place, variants
from benchmarks.meter import metered

if TYPE_CHECKING:
    from benchmarks.contenders import Contender
    from benchmarks.harness import Bench

#: Round trips of the network: inside a Region, and to another one.
ROUND_TRIPS_MS: Final = (1, 5, 20)
_KEY: Final = "alone"
#: US$ for a million request units, on demand, us-east-1, Standard tables (aws.amazon.com/dynamodb/pricing).
_READ_UNIT: Final = 0.125
_WRITE_UNIT: Final = 0.625


def measure(bench: Bench) -> None:
    """Let all contenders take turns at each distance."""
    crew = bench.wanted(variants())
    for trip in bench.size(ROUND_TRIPS_MS, ROUND_TRIPS_MS[:1]):
        with bench.url(trip) as url, ExitStack() as stack:
            turns = {}
            for variant in crew:
                contender = variant.build(Place(url, f"cycle-{variant.slug}-{trip}-", trip))
                stack.callback(contender.close)
                contender.create([_KEY])
                turns[variant.name] = partial(_turn, contender, bench.size(10, 1))
            bench.in_turns(f"{trip} ms", turns, warm_up=1)


def _turn(contender: Contender, cycles: int) -> dict[str, float]:
    times = []
    with metered() as meter:
        for _ in range(cycles):
            begin = time.perf_counter()
            contender.add(_KEY)
            times.append(1000 * (time.perf_counter() - begin))
    read, written = meter.read_units / cycles, meter.write_units / cycles
    return {
        "ms": statistics.median(times),
        "requests": meter.requests / cycles,
        "read units": read,
        "write units": written,
        "US$ a million": _READ_UNIT * read + _WRITE_UNIT * written,
    }
