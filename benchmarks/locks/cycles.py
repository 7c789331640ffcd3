"""One uncontended read-modify-write: requests, units and latency, beside no protection at all."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contenders import Place
from benchmarks.latency import slowed
from benchmarks.locks.tables import markdown, milliseconds, spread
from benchmarks.locks.variants import Variant, variants
from benchmarks.meter import metered

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.contenders import Contender

#: Round trips of the network.
ROUND_TRIPS_MS: Final = (0, 1, 5, 20)
#: What the others are compared with.
FLOOR: Final = "unprotected"
_KEY: Final = "alone"
#: US$ for a million request units, on demand, us-east-1, Standard tables (aws.amazon.com/dynamodb/pricing).
_READ_UNIT: Final = 0.125
_WRITE_UNIT: Final = 0.625


@dataclass(frozen=True)
class Cycles:
    """What the cycles of one contender took at one distance from DynamoDB.

    Attributes:
        contender: its name.
        round_trip_ms: of the network.
        median_ms: of a cycle.
        p95_ms: 95 of 100 were faster.
        p99_ms: 99 of 100 were faster.
        ratio: of the medians, to no protection.
        ratios: of single turns, the middle 80 %.
        requests: of one cycle.
        read_units: of one cycle.
        write_units: of one cycle.
    """

    contender: str
    round_trip_ms: float
    median_ms: float
    p95_ms: float
    p99_ms: float
    ratio: float
    ratios: str
    requests: float
    read_units: float
    write_units: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def measure(host: str, round_trip_ms: float, turns: int, tick: Callable[[], None]) -> list[Cycles]:
    """Let all contenders take turns, one cycle each.

    Args:
        host: the engine.
        round_trip_ms: added by a proxy between here and the engine.
        turns: how many.
        tick: called after each.
    """
    with slowed(host, round_trip_ms) as url:
        crew = {variant: _ready(variant, url, round_trip_ms) for variant in variants(lambda _: True)}
        try:
            times: dict[Variant, list[float]] = {variant: [] for variant in crew}
            for _ in range(turns):
                for variant, contender in crew.items():
                    begin = time.perf_counter()
                    contender.add(_KEY)
                    times[variant].append(1000 * (time.perf_counter() - begin))
                tick()
            return [_sum_up(variant, contender, round_trip_ms, times) for variant, contender in crew.items()]
        finally:
            for contender in crew.values():
                contender.close()


def _ready(variant: Variant, url: str, round_trip_ms: float) -> Contender:
    contender = variant.build(Place(url, f"cycle-{variant.slug}-{round_trip_ms:g}-", round_trip_ms))
    contender.create([_KEY])
    for _ in range(3):
        contender.add(_KEY)
    return contender


_COUNTED: Final = 5


def _sum_up(variant: Variant, contender: Contender, round_trip_ms: float, times: dict[Variant, list[float]]) -> Cycles:
    with metered() as meter:
        for _ in range(_COUNTED):
            contender.add(_KEY)
    own, floor = times[variant], next(times[each] for each in times if each.kind.name == FLOOR)
    parts = statistics.quantiles(own, n=100, method="inclusive")
    return Cycles(
        variant.name,
        round_trip_ms,
        statistics.median(own),
        parts[94],
        parts[98],
        statistics.median(own) / statistics.median(floor),
        spread([mine / theirs for mine, theirs in zip(own, floor, strict=True)]),
        meter.requests / _COUNTED,
        meter.read_units / _COUNTED,
        meter.write_units / _COUNTED,
    )


def costs_as_markdown(done: list[Cycles]) -> str:
    """Return what a cycle takes of DynamoDB, which does not depend on the distance."""
    nearest = min(each.round_trip_ms for each in done)
    head = ("one cycle, alone", "requests", "read units", "write units", "US$ a million")
    rows = [
        (each.contender, f"{each.requests:g}", f"{each.read_units:g}", f"{each.write_units:g}", f"{dollars(each):.2f}")
        for each in done
        if each.round_trip_ms == nearest and each.requests
    ]
    return markdown(head, rows)


def dollars(each: Cycles) -> float:
    """Return the price of a million cycles, on demand, in us-east-1."""
    return _READ_UNIT * each.read_units + _WRITE_UNIT * each.write_units


def times_as_markdown(done: list[Cycles]) -> str:
    """Return the median of each contender at each distance, and beside it the ratio to the floor."""
    trips = dict.fromkeys(each.round_trip_ms for each in done if each.round_trip_ms)
    head = ("median, ms (ratio)", *(f"round trip {trip:g} ms" for trip in trips))
    told = {(each.contender, each.round_trip_ms): f"{milliseconds(each.median_ms)} ({each.ratio:.2f})" for each in done}
    names = dict.fromkeys(each.contender for each in done)
    return markdown(head, [(name, *(told[name, trip] for trip in trips)) for name in names])
