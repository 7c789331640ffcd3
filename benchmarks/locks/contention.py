"""Many contenders for one lock: throughput, waits, who overtakes whom, and what it costs."""

from __future__ import annotations

import contextlib
import statistics
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contenders import Contender, Place
from benchmarks.contenders.ours import Edit
from benchmarks.locks.crew import PROCESSES, Shift, contend
from benchmarks.locks.tables import markdown, milliseconds, spread
from benchmarks.locks.variants import Variant, variants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEVELS: Final = (1, 2, 8, 32, 128)
_HOT: Final = "hot"
#: All of them have to enter first, on two cores.
_PER_THREAD_S: Final = 0.025


@dataclass(frozen=True)
class Race:
    """What one contender did with so many threads.

    Attributes:
        contender: its name.
        threads: that wanted the lock all the time, in up to four processes.
        seconds: for how long.
        cycles: how many were done.
        cycles_per_s: the same a second.
        ratio: of that to `edit()`, the median of all rounds.
        ratios: the range of them.
        wait_p50_ms: of a cycle, from its beginning to its end. Those still under way count with the time they had.
        wait_p95_ms: the same, 95 of 100.
        wait_p99_ms: the same, 99 of 100.
        wait_max_ms: the longest.
        overtaken_mean: how many cycles began after another one and ended before it, on average for each.
        overtaken_max: the most that overtook one.
        requests: for each cycle done.
        read_units: for each cycle done.
        write_units: for each cycle done.
        lost: cycles that were done and are not in the item.
        failed: cycles that gave up, by error.
    """

    contender: str
    threads: int
    seconds: float
    cycles: int
    cycles_per_s: float
    ratio: float
    ratios: str
    wait_p50_ms: float
    wait_p95_ms: float
    wait_p99_ms: float
    wait_max_ms: float
    overtaken_mean: float
    overtaken_max: int
    requests: float
    read_units: float
    write_units: float
    lost: int
    failed: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def all_variants() -> list[Variant]:
    """Everyone, and those that poll slowly a second time with our interval."""
    return list(variants(lambda _: True, tuned=True))


def compare(
    host: str, ms: float, crew: list[Variant], threads: int, seconds: float, rounds: int, tick: Callable[[], None]
) -> list[Race]:
    """Let contenders take turns at one level, each on tables of its own."""
    with contextlib.ExitStack() as stack:
        places = {variant: Place(host, f"contention-{variant.slug}-{threads}-", ms) for variant in crew}
        hot = [f"{_HOT}-{i}" for i in range(rounds)]
        built = {variant: _ready(variant, place, hot, stack) for variant, place in places.items()}
        totals = partial(_totals, built, hot)
        shifts: dict[Variant, list[Shift]] = {variant: [] for variant in crew}
        for i in range(rounds):
            for variant in crew:
                window = max(seconds, variant.pace_s, threads * _PER_THREAD_S)
                # An item of its own: those who were killed in the round before may still hold the lock of theirs.
                shifts[variant].append(contend(variant, places[variant], [f"{_HOT}-{i}"], threads, window))
                tick()
        base = [shift.rate for variant in crew for shift in shifts[variant] if variant.kind is Edit] or [1.0] * rounds
        return [judge(variant, threads, shifts[variant], base, totals(variant)) for variant in crew]


def _totals(built: dict[Variant, Contender], hot: list[str], variant: Variant) -> int:
    return sum(built[variant].total(key) for key in hot)


def _ready(variant: Variant, place: Place, hot: list[str], stack: contextlib.ExitStack) -> Contender:
    contender = variant.build(place)
    stack.callback(contender.close)
    contender.create([*hot, *(f"warm-{i}" for i in range(PROCESSES))])
    return contender


def judge(variant: Variant, threads: int, rounds: list[Shift], base: list[float], total: int) -> Race:
    """Put the rounds of one contender together.

    Args:
        variant: the contender.
        threads: how many there were.
        rounds: what was done in each.
        base: the cycles a second of `edit()` in each.
        total: what the item says was done.
    """
    waits = [wait for shift in rounds for wait in shift.waits]
    overtaken = [count for shift in rounds for count in overtakings(shift.done, shift.begun)]
    cycles, seconds = sum(len(shift.done) for shift in rounds), sum(shift.seconds for shift in rounds)
    parts = statistics.quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else (waits or [0.0]) * 99
    ratios = [shift.rate / edits if edits else 0.0 for shift, edits in zip(rounds, base, strict=True)]
    each = max(1, cycles)
    return Race(
        variant.name,
        threads,
        seconds,
        cycles,
        cycles / seconds,
        statistics.median(ratios),
        spread(ratios),
        1000 * parts[49],
        1000 * parts[94],
        1000 * parts[98],
        1000 * max(waits, default=0.0),
        statistics.fmean(overtaken) if overtaken else 0.0,
        max(overtaken, default=0),
        sum(shift.requests.total() for shift in rounds) / each,
        sum(shift.read_units for shift in rounds) / each,
        sum(shift.write_units for shift in rounds) / each,
        max(0, cycles - total),
        dict(sum((shift.failed for shift in rounds), Counter[str]())),
    )


def overtakings(done: list[tuple[float, float]], begun: list[float]) -> Iterator[int]:
    """For each cycle, yield how many others began after it and ended before it.

    Args:
        done: beginning and end.
        begun: beginnings of cycles that have not ended.
    """
    cycles = sorted([*done, *((begin, float("inf")) for begin in begun)])
    for i, (_, end) in enumerate(cycles):
        count = 0
        for later_begin, later_end in cycles[i + 1 :]:
            if later_begin > end:
                break
            count += later_end < end
        yield count


def as_markdown(races: list[Race]) -> str:
    """Return one table for each level."""
    levels = dict.fromkeys(each.threads for each in races)
    return "\n\n".join(_level([each for each in races if each.threads == level]) for level in levels)


def _level(races: list[Race]) -> str:
    n = races[0].threads
    head = (
        f"{n} contender{'s' * (n > 1)}",
        "cycles/s",
        "beside edit()",
        "range",
        "p50, ms",
        "p95, ms",
        "p99, ms",
        "longest, ms",
        "overtaken, mean",
        "most",
        "requests",
        "read units",
        "write units",
        "lost updates",
        "gave up",
    )
    rows = [
        (
            each.contender,
            f"{each.cycles_per_s:.1f}",
            f"{each.ratio:.2f}",
            each.ratios,
            *map(milliseconds, (each.wait_p50_ms, each.wait_p95_ms, each.wait_p99_ms, each.wait_max_ms)),
            f"{each.overtaken_mean:.1f}",
            str(each.overtaken_max),
            *(f"{figure:.1f}" for figure in (each.requests, each.read_units, each.write_units)),
            str(each.lost),
            str(sum(each.failed.values())),
        )
        for each in races
    ]
    return markdown(head, rows)
