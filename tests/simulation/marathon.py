"""The long search of `make simulate`: everything exhaustive, then fresh seeds, over several processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import time
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.simulation import campaign, regressions
from tests.simulation.campaign import Exhaustive, Failure, Search, Tally
from tests.simulation.engine import threads

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rich.console import Console

#: Seeds of one workload that a process tries in a row.
CHUNK: Final = 100

_worker: dict[str, Any] = {}


@dataclass
class Report:
    """What a marathon has found.

    Attributes:
        total: all counts.
        spaces: the counts of each exhaustive search, and whether it came to its end.
        failure: the run that failed, if one did.
        seconds: how long it took.
    """

    total: Tally = field(default_factory=Tally)
    spaces: dict[str, tuple[int, bool]] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failure: Failure | None = None
    seconds: float = 0.0

    def add(self, search: Search, tally: Tally, failure: Failure | None, *, in_time: bool) -> None:
        """Count a search that has ended."""
        self.total.merge(tally)
        self.failure = self.failure or failure
        if isinstance(search, Exhaustive):
            self.spaces[str(search)] = (tally.runs, in_time and failure is None and tally.runs < search.limit)
        else:
            self.seeds[search.workload] += tally.runs

    def to_json(self) -> str:
        """Return it as text."""
        failure = None if self.failure is None else self.failure.message
        fields = vars(self.total) | {"spaces": self.spaces, "seeds": dict(self.seeds), "failure": failure}
        return json.dumps({**fields, "seconds": round(self.seconds, 1)}, indent=2)


# A worker


def _begin(counter: Any, number: Any, deadline: float) -> None:
    """Prepare a worker process: it stays on a core of its own."""
    with number.get_lock():
        core, number.value = number.value, number.value + 1
    _worker.update(counter=counter, deadline=deadline, core=core)


def _conduct(search: Search) -> tuple[Tally, Failure | None, bool]:
    """Make the runs of a search in a worker; tell whether it was in time."""

    def count(_: object) -> None:
        with _worker["counter"].get_lock():
            _worker["counter"].value += 1

    def is_late() -> bool:
        return bool(time.time() > _worker["deadline"])

    with threads.on_one_core(_worker["core"]):
        tally, failure = campaign.conduct(search, count, is_late)
    return tally, failure, not is_late()


# The one who distributes


def run_long(minutes: float, workers: int, first_seed: int, limit: int, to: Console) -> Report:
    """Search until the time is up, or a run fails."""
    spawn = multiprocessing.get_context("spawn")
    counter, number = spawn.Value("q", 0), spawn.Value("i", 0)
    began = time.time()
    deadline = began + minutes * 60
    report = Report()
    searches: Iterator[Search] = chain(campaign.exhaustive_searches(limit), campaign.rotating_seeds(first_seed, CHUNK))
    pool = ProcessPoolExecutor(workers, spawn, _begin, (counter, number, deadline))
    with pool, progress(to) as bar:
        task = bar.add_task("simulate", total=minutes * 60, note="")
        waiting: dict[Future[tuple[Tally, Failure | None, bool]], Search] = {}
        in_time = takewhile(lambda _: time.time() < deadline and report.failure is None, searches)
        while True:
            while len(waiting) < 2 * workers and (search := next(in_time, None)) is not None:
                waiting[pool.submit(_conduct, search)] = search
            if not waiting:
                break
            done, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                search = waiting.pop(future)
                tally, failure, was_in_time = future.result()
                report.add(search, tally, failure, in_time=was_in_time)
                bar.update(task, description=str(search))
            elapsed = time.time() - began
            note = f"{counter.value:,} runs, {counter.value / elapsed:.0f}/s"
            bar.update(task, completed=min(elapsed, minutes * 60), note=note)
    report.seconds = time.time() - began
    return report


@contextmanager
def progress(to: Console) -> Iterator[Progress]:
    """Show a bar, and how many runs are made in a second."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=to) as bar:
        yield bar


# The command


def add_to(parser: argparse.ArgumentParser) -> None:
    """Describe the command's options."""
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, help="the first seed; a random one unless given")
    parser.add_argument("--limit", type=int, default=campaign.LIMIT, help="runs of one exhaustive search")
    parser.add_argument("--json", type=Path, help="write all counts to this file")
    parser.add_argument("--failure", type=Path, default=Path("simulation-failure.json"), help="where a failure goes")
    parser.set_defaults(do=_long)


def _long(options: argparse.Namespace, to: Console) -> int:
    first = secrets.randbelow(10**9) if options.first is None else options.first
    to.print(f"seeds from {first}, {options.workers} processes, {options.minutes:g} minutes")
    report = run_long(options.minutes, options.workers, first, options.limit, to)
    show_report(report, to)
    if options.json is not None:
        options.json.write_text(report.to_json() + "\n", encoding="utf-8")
    if report.failure is None:
        return 0
    if report.failure.plan is not None:
        regressions.write(report.failure, options.failure)
        to.print(f"replay: python -m tests.simulation replay --file {options.failure}")
    return 1


def show_report(report: Report, to: Console) -> None:
    """Print what was searched and counted."""
    spaces = Table("exhaustive search", "runs", "", box=None)
    for name, (runs, is_complete) in report.spaces.items():
        spaces.add_row(name, f"{runs:,}", "all" if is_complete else "cut off")
    to.print(spaces)
    seeds = Table("workload", "seeds", box=None)
    for workload, count in report.seeds.items():
        seeds.add_row(workload, f"{count:,}")
    to.print(seeds)
    show_tally(report.total, to)
    to.print(f"{report.total.runs / max(1.0, report.seconds):.0f} runs a second, each made twice")
    if report.failure is not None:
        to.print(report.failure.message, style="bold red", markup=False, soft_wrap=True)


def show_tally(tally: Tally, to: Console) -> None:
    """Print how often each fault happened, and what callers were told."""
    faults = Table("fault", "times", "in runs", box=None)
    for fault, times in tally.happened.most_common():
        faults.add_row(fault, f"{times:,}", f"{tally.runs_with[fault]:,}")
    to.print(faults)
    told = ", ".join(f"{times:,} {kind}" for kind, times in tally.told.most_common())
    to.print(f"{tally.runs:,} runs, {tally.requests:,} requests; operations: {told}")
