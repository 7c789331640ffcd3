"""What intervals that never overlap cost, in both forms, and whether modes of locks are fair.

    python -m benchmarks.intervals race        # 8 processes x 500 inserts over 5 devices, both forms, both engines
    python -m benchmarks.intervals growth      # requests of an insert beside 10 to 100,000 stored rows
    python -m benchmarks.intervals crowd       # 8 processes that insert into one device as fast as they can
    python -m benchmarks.intervals fairness    # a writer among readers, a large range among small ones
    python -m benchmarks.intervals all

Each prints its tables as Markdown. ``--json FILE`` keeps the figures, ``--plot FILE`` draws the race.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from rich.progress import track

from benchmarks.drawing import new_figure, save
from benchmarks.fairness import as_markdown as fairness_table
from benchmarks.fairness import measure as measure_fairness
from benchmarks.interval_growth import SIZES, grow
from benchmarks.interval_growth import as_markdown as growth_table
from benchmarks.parts import Parts, run, show
from tests.engines.engine import running
from tests.support.schedule import Job, fill

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.servers import Servers
    from tests.support.schedule import Story

ENGINES: Final = ("dynoxide", "dynamodb-local")
#: How many devices there are.
CONTENTION: Final = {"low": 100, "high": 5}
FORMS: Final = {"optimistic": False, "pessimistic": True}


@dataclass(frozen=True)
class Race:
    """What one form did on one engine at one contention; waits in ms, attempts and retries for each insert."""

    engine: str
    contention: str
    form: str
    inserts: int
    stored: int
    refused: int
    gave_up: int
    problems: int
    per_second: float
    retries: float
    most_attempts: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


def race(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Let both forms take turns."""
    wanted = [(engine, level, form) for engine in ENGINES for level in CONTENTION for form in FORMS]
    done = []
    for name, level, form in track(wanted, "race", transient=True):
        with running(name, servers) as engine:
            job = Job(options.processes, options.inserts, CONTENTION[level], pessimistic=FORMS[form], seed=options.seed)
            done.append(_told(name, level, form, fill(engine, job)))
    show("Both forms", _race_table(done))
    if options.plot is not None:
        _plot(done, options.plot)
    return [asdict(each) for each in done]


def _told(engine: str, contention: str, form: str, story: Story) -> Race:
    said = Counter(one.said for one in story.inserts)
    waits = sorted(1000 * (one.ended - one.started) for one in story.inserts)
    tried = [one.attempts for one in story.inserts if one.said == "stored"]
    return Race(
        engine,
        contention,
        form,
        inserts=len(story.inserts),
        stored=said["stored"],
        refused=said["refused"],
        gave_up=said["gave up"],
        problems=len(story.problems()),
        per_second=len(story.inserts) / story.seconds,
        retries=sum(tried) / len(tried) - 1,
        most_attempts=max(tried),
        p50_ms=median(waits),
        p99_ms=waits[int(0.99 * len(waits))],
        longest_ms=waits[-1],
    )


def _race_table(races: list[Race]) -> str:
    head = ("engine", "contention", "form", "stored", "refused", "gave up", "wrong", "inserts/s", "ratio")
    more = ("retries", "most attempts", "p50, ms", "p99, ms", "longest, ms")
    lines = ["| " + " | ".join(head + more) + " |", "|---|---|---|" + "---:|" * 11]
    for each in races:
        base = next(other for other in races if (other.engine, other.contention) == (each.engine, each.contention))
        cells = (
            *(each.engine, each.contention, each.form, each.stored, each.refused, each.gave_up, each.problems),
            *(f"{each.per_second:.0f}", f"{each.per_second / base.per_second:.2f}", f"{each.retries:.2f}"),
            *(each.most_attempts, f"{each.p50_ms:.0f}", f"{each.p99_ms:.0f}", f"{each.longest_ms:.0f}"),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _plot(races: list[Race], file: Path) -> None:
    figures: list[tuple[str, Callable[[Race], float]]] = [
        ("inserts a second", lambda each: each.per_second),
        ("retries for each stored row", lambda each: each.retries),
    ]
    groups = [(engine, level) for engine in ENGINES for level in CONTENTION]
    figure = new_figure(10, 3.6)
    axes = figure.subplots(1, len(figures))
    for axis, (title, value) in zip(axes, figures, strict=True):
        for shift, form in enumerate(FORMS):
            chosen = {(each.engine, each.contention): value(each) for each in races if each.form == form}
            places = [place + 0.4 * shift for place in range(len(groups))]
            axis.bar(places, [chosen[group] for group in groups], width=0.38, label=form)
        labels = [f"{engine}\n{level}" for engine, level in groups]
        axis.set_xticks([place + 0.2 for place in range(len(groups))], labels, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(b=False)
    axes[0].legend(frameon=False)
    save(figure, file)


@dataclass(frozen=True)
class Crowd:
    """What processes did that inserted into one device for some seconds.

    Attributes:
        form: of the inserts.
        per_second: stored rows.
        luckiest: stored rows of the process that stored most.
        unluckiest: stored rows of the process that stored fewest.
        longest_s: the longest insert.
        gave_up: inserts that ended by an error other than an overlap.
        transactions: sent, for each stored row.
    """

    form: str
    per_second: float
    luckiest: int
    unluckiest: int
    longest_s: float
    gave_up: int
    transactions: float


def crowd(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Count whose inserts get through."""
    done = []
    for form, pessimistic in FORMS.items():
        with running("dynoxide", servers) as engine:
            job = Job(options.processes, 10**9, 1, 10**9, pessimistic=pessimistic, wait=10, seconds=options.seconds)
            story = fill(engine, job)
        stored = [one for one in story.inserts if one.said == "stored"]
        by_process = Counter(one.by.split("-")[0] for one in stored)
        shares = [by_process[str(number)] for number in range(options.processes)]
        longest = max(one.ended - one.started for one in story.inserts)
        gave_up = sum(one.said == "gave up" for one in story.inserts)
        tried = sum(one.attempts for one in story.inserts) / len(stored)
        done.append(Crowd(form, len(stored) / story.seconds, max(shares), min(shares), longest, gave_up, tried))
    lines = ["| form | stored/s | luckiest | unluckiest | longest, s | gave up | transactions |", "|---|" + "---:|" * 6]
    lines += [
        f"| {each.form} | {each.per_second:.0f} | {each.luckiest} | {each.unluckiest} | {each.longest_s:.1f} | "
        f"{each.gave_up} | {each.transactions:.1f} |"
        for each in done
    ]
    show("One device", "\n".join(lines))
    return [asdict(each) for each in done]


def growth(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Count the requests of an insert as the table fills."""
    sizes = [size for size in SIZES if size <= options.largest]
    with running("dynoxide", servers) as engine:
        done = list(track(grow(engine, sizes), "growth", total=len(sizes), transient=True))
    show("Requests of an insert", growth_table(done))
    return [asdict(each) for each in done]


def fairness(servers: Servers, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Count who was served before whom."""
    with running("dynoxide", servers) as engine:
        done = [*measure_fairness(engine, options.turns)]
    show("Fairness", fairness_table(done))
    return [asdict(each) for each in done]


PARTS: Final[Parts] = {
    "race": race,
    "growth": growth,
    "crowd": crowd,
    "fairness": fairness,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.intervals")
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--plot", type=Path, help="race: draw it there, as SVG")
    parser.add_argument("--seed", type=int, default=1, help="race: of the bookings")
    parser.add_argument("--processes", type=int, default=8, help="race: how many")
    parser.add_argument("--inserts", type=int, default=500, help="race: of each process")
    parser.add_argument("--seconds", type=float, default=20, help="crowd: of each form")
    parser.add_argument("--largest", type=int, default=100_000, help="growth: rows of the fullest table")
    parser.add_argument("--turns", type=int, default=50, help="fairness: of the one who must not starve")
    return parser.parse_args()


def main() -> None:
    """Measure what was asked for."""
    run(PARTS, _options())


if __name__ == "__main__":
    main()
