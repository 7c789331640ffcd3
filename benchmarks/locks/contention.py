"""Many contenders for one lock: throughput, waits, who overtakes whom, and what it costs.

Two things are measured one after the other, and are not the same:

* **The rush**: all contenders begin at the same moment, and it lasts until each has had its first turn. This is what a
  start of many workers looks like, or a sale that opens. A contender that starves others never gets out of it; then it
  ends after `rush_s`.
* **The steady state**: from then on, everybody wants the lock again as soon as it has had it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contenders import Contender, Place
from benchmarks.contenders.counters import create_counters, plain_counters
from benchmarks.contenders.ours import Edit
from benchmarks.locks.crew import PROCESSES, Round, contend
from benchmarks.locks.tables import markdown, milliseconds, spread
from benchmarks.locks.variants import Variant, variants
from pynamo_locking_simulator._engine.partitions import WRITE_UNITS
from tests.support.crew import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

LEVELS: Final = (1, 2, 8, 32, 128)
_HOT: Final = "hot"
#: The longest that plain updates are measured in each round.
_PLAIN_S: Final = 5.0


@dataclass(frozen=True)
class Race:
    """What one contender did with so many threads. Whatever is not called a rush is of the steady state.

    Attributes:
        contender: its name.
        threads: that wanted the lock all the time, in up to four processes.
        seconds: for how long.
        cycles: how many were done.
        cycles_per_s: the same a second.
        beside_plain: the same beside back-to-back plain updates of one item by one client, the median of all rounds.
        ratio: the same beside `edit()`, the median of all rounds.
        ratios: the range of them.
        wait_p50_ms: of a cycle, from its beginning to its end. Those still under way count with the time they had.
        wait_p95_ms: the same, 95 of 100.
        wait_p99_ms: the same, 99 of 100.
        wait_max_ms: the longest.
        overtaken_mean: how many cycles began after another one and ended before it, on average for each.
        overtaken_max: the most that overtook one.
        out_of_order: changes that were made under a smaller ticket than the change before, the rush included; None for
            those who show no tickets.
        requests: for each cycle done.
        read_units: for each cycle done.
        write_units: for each cycle done, with those that DynamoDB bills for writes which a condition refused.
        cap_per_s: how many such cycles a second one partition allows, at 1,000 write units; None if it needs none.
            Of units in several tables the most count, as those are different partitions.
        rush_s: how long the rush was, the mean of all rounds.
        rush_served: how many contenders had had a turn by then, the least of all rounds.
        rush_cycles_per_s: in the rush.
        rush_write_units: for each cycle done in the rush.
        refused: requests that were refused since a partition had no units left, for each cycle done, the rush included.
        lost: cycles that were done and are not in the item.
        failed: cycles that gave up, by error.
    """

    contender: str
    threads: int
    seconds: float
    cycles: int
    cycles_per_s: float
    beside_plain: float
    ratio: float
    ratios: str
    wait_p50_ms: float
    wait_p95_ms: float
    wait_p99_ms: float
    wait_max_ms: float
    overtaken_mean: float
    overtaken_max: int
    out_of_order: int | None
    requests: float
    read_units: float
    write_units: float
    cap_per_s: float | None
    rush_s: float
    rush_served: int
    rush_cycles_per_s: float
    rush_write_units: float
    refused: float
    lost: int
    failed: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Course:
    """How contenders are measured.

    Attributes:
        seconds: of the steady state.
        rush_s: the longest rush.
        rounds: how often they take turns.
        refusals: tells how many requests the engine has refused so far since a partition had no units left. Without,
            those count that contenders heard of, after their clients' own attempts.
    """

    seconds: float = 20.0
    rush_s: float = 15.0
    rounds: int = 2
    refusals: Callable[[], int] | None = None


def all_variants() -> list[Variant]:
    """Everyone, and those that poll slowly a second time with our interval."""
    return list(variants(lambda _: True, tuned=True))


def compare(
    host: str, ms: float, crew: list[Variant], threads: int, course: Course, tick: Callable[[], None]
) -> list[Race]:
    """Let contenders take turns at one level, each on tables of its own."""
    with contextlib.ExitStack() as stack:
        places = {variant: Place(host, f"contention-{variant.slug}-{threads}-", ms) for variant in crew}
        hot = [f"{_HOT}-{i}" for i in range(course.rounds)]
        built = {variant: _ready(variant, place, hot, stack) for variant, place in places.items()}
        totals = partial(_totals, built, hot)
        rounds: dict[Variant, list[Round]] = {variant: [] for variant in crew}
        plain = _Plain(Place(host, f"contention-plain-{threads}-", ms), min(_PLAIN_S, course.seconds))
        rates = []
        for i in range(course.rounds):
            rates.append(plain.rate())
            for variant in crew:
                # An item of its own: those who were killed in the round before may still hold the lock of theirs.
                rounds[variant].append(_turn(variant, places[variant], f"{_HOT}-{i}", threads, course))
                tick()
        edits = [each.steady.rate for variant in crew if variant.kind is Edit for each in rounds[variant]]
        base = edits or [1.0] * course.rounds
        return [judge(variant, threads, rounds[variant], base, rates, totals(variant)) for variant in crew]


def _turn(variant: Variant, place: Place, key: str, threads: int, course: Course) -> Round:
    before = course.refusals() if course.refusals else 0
    done = contend(variant, place, [key], threads, course.rush_s, max(course.seconds, variant.pace_s))
    return replace(done, refused=course.refusals() - before) if course.refusals else done


class _Plain:
    """One client that updates one item again and again, alone: no chain of changes can be faster.

    Args:
        place: where.
        seconds: for how long.
    """

    def __init__(self, place: Place, seconds: float) -> None:
        self._place = place
        self._seconds = seconds
        create_counters(plain_counters(place), [_HOT])

    def rate(self) -> float:
        """Return how many updates it makes in a second."""
        with process(_update, self._place, self._seconds) as pipe:
            rate: float = pipe.recv()
            return rate


def _update(pipe: Connection, place: Place, seconds: float) -> None:
    model = plain_counters(place)
    counter = model(_HOT)
    counter.update(actions=[model.total.add(1)])
    begin, updates = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        counter.update(actions=[model.total.add(1)])
        updates += 1
    pipe.send(updates / (time.monotonic() - begin))


def _totals(built: dict[Variant, Contender], hot: list[str], variant: Variant) -> int:
    return sum(built[variant].total(key) for key in hot)


def _ready(variant: Variant, place: Place, hot: list[str], stack: contextlib.ExitStack) -> Contender:
    contender = variant.build(place)
    stack.callback(contender.close)
    contender.create([*hot, *(f"warm-{i}" for i in range(PROCESSES))])
    return contender


def judge(
    variant: Variant, threads: int, rounds: list[Round], base: list[float], plain: list[float], total: int
) -> Race:
    """Put the rounds of one contender together.

    Args:
        variant: the contender.
        threads: how many there were.
        rounds: what was done in each.
        base: the cycles a second of `edit()` in each.
        plain: the plain updates a second in each.
        total: what the item says was done.
    """
    shifts, rushes = [each.steady for each in rounds], [each.rush for each in rounds]
    waits = [wait for shift in shifts for wait in shift.waits]
    overtaken = [count for shift in shifts for count in overtakings(shift.done, shift.begun)]
    cycles, seconds = sum(len(shift.done) for shift in shifts), sum(shift.seconds for shift in shifts)
    rushed, rush_s = sum(len(rush.done) for rush in rushes), sum(rush.seconds for rush in rushes)
    parts = statistics.quantiles(waits, n=100, method="inclusive") if len(waits) > 1 else (waits or [0.0]) * 99
    rates = [shift.rate for shift in shifts]
    written = _written(rounds)
    each = max(1, cycles)
    return Race(
        contender=variant.name,
        threads=threads,
        seconds=seconds,
        cycles=cycles,
        cycles_per_s=cycles / seconds,
        beside_plain=statistics.median(_ratios(rates, plain)),
        ratio=statistics.median(_ratios(rates, base)),
        ratios=spread(_ratios(rates, base)),
        wait_p50_ms=1000 * parts[49],
        wait_p95_ms=1000 * parts[94],
        wait_p99_ms=1000 * parts[98],
        wait_max_ms=1000 * max(waits, default=0.0),
        overtaken_mean=statistics.fmean(overtaken) if overtaken else 0.0,
        overtaken_max=max(overtaken, default=0),
        out_of_order=sum(each.out_of_order for each in rounds) if any(each.turns for each in rounds) else None,
        requests=sum(shift.taken.requests.total() for shift in shifts) / each,
        read_units=sum(shift.taken.read_units for shift in shifts) / each,
        write_units=sum(written.values()) / each,
        cap_per_s=WRITE_UNITS * each / max(written.values()) if any(written.values()) else None,
        rush_s=rush_s / len(rounds),
        rush_served=min(each.served for each in rounds),
        rush_cycles_per_s=rushed / rush_s if rush_s else 0.0,
        rush_write_units=sum(sum(rush.taken.written.values()) for rush in rushes) / max(1, rushed),
        refused=sum(each.refused for each in rounds) / max(1, cycles + rushed),
        lost=max(0, cycles + rushed - total),
        failed=dict(sum((shift.failed for shift in shifts), Counter[str]())),
    )


def _ratios(rates: list[float], others: list[float]) -> list[float]:
    return [rate / other if other else 0.0 for rate, other in zip(rates, others, strict=True)]


def _written(rounds: list[Round]) -> dict[str, float]:
    """Return the write units of the steady state, by table."""
    written: dict[str, float] = {}
    for each in rounds:
        for table, units in each.steady.taken.written.items():
            written[table] = written.get(table, 0.0) + units
    return written


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
    """Return a table for the fewest and one for the most contenders, and one of the rush.

    What has no column is among the figures of the run.
    """
    levels = sorted({each.threads for each in races})
    levels = [*dict.fromkeys((levels[0], levels[-1]))]
    steady = [_steady([each for each in races if each.threads == level]) for level in levels]
    return "\n\n".join([*steady, _rush(races, levels)])


def _or_none(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:,.0f}"


#: Columns that are there if they say anything.
_RARE: Final[dict[str, Callable[[Race], float]]] = {
    "tickets out of order": lambda race: race.out_of_order or 0,
    "refused by it": lambda race: race.refused,
}
_COLUMNS: Final[dict[str, Callable[[Race], str]]] = {
    "cycles/s": lambda race: f"{race.cycles_per_s:.1f}",
    "beside plain updates": lambda race: f"{race.beside_plain:.2f}",
    "p50, ms": lambda race: milliseconds(race.wait_p50_ms),
    "longest, ms": lambda race: milliseconds(race.wait_max_ms),
    "overtaken": lambda race: f"{race.overtaken_mean:.1f}",
    "tickets out of order": lambda race: _or_none(race.out_of_order),
    "requests": lambda race: f"{race.requests:.1f}",
    "write units": lambda race: f"{race.write_units:.1f}",
    "refused by it": lambda race: f"{race.refused:.1f}",
    "lost updates": lambda race: str(race.lost),
    "gave up": lambda race: str(sum(race.failed.values())),
}


def _steady(races: list[Race]) -> str:
    n = races[0].threads
    empty = {name for name, figure in _RARE.items() if not any(map(figure, races))}
    columns = {name: column for name, column in _COLUMNS.items() if name not in empty}
    rows = [(each.contender, *(column(each) for column in columns.values())) for each in races]
    return markdown((f"{n} contender{'s' * (n > 1)}, steady state", *columns), rows)


def _rush(races: list[Race], levels: list[int]) -> str:
    """Return how long the rush was at each level, and how many had had a turn by then."""
    head = ("the rush: seconds, and how many had a turn", *(f"{level} contenders" for level in levels))
    told = {(each.contender, each.threads): f"{each.rush_s:.1f} s, {each.rush_served}" for each in races}
    names = dict.fromkeys(each.contender for each in races)
    return markdown(head, [(name, *(told.get((name, level), "-") for level in levels)) for name in names])
