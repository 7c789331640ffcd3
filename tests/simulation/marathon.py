"""The long search of `make simulate`: everything exhaustive, and fresh seeds, over several processes."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.simulation import campaign, regressions
from tests.simulation.campaign import Exhaustive, Failure, Search, Tally

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import TaskID

#: Seeds of one workload that a process tries in a row.
CHUNK: Final = 100

#: What was counted, what failed, and whether the search was in time.
_Outcome = tuple[Tally, Failure | None, bool]

_worker: dict[str, Any] = {}


@dataclass
class Report:
    """What a marathon has found.

    Attributes:
        total: all counts.
        spaces: the runs of each exhaustive search, and whether it came to its end.
        seeds: the runs of each workload from seeds.
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
        failure = None if self.failure is None else self.failure.message
        fields = vars(self.total) | {"spaces": self.spaces, "seeds": dict(self.seeds), "failure": failure}
        return json.dumps({**fields, "seconds": round(self.seconds, 1)}, indent=2)


# A worker


def _begin(counter: Any, deadline: Any) -> None:
    """Prepare a worker process."""
    _worker.update(counter=counter, deadline=deadline)


def _conduct(search: Search) -> _Outcome:
    """Make the runs of a search in a worker; tell whether it was in time."""

    def count(_: object) -> None:
        with _worker["counter"].get_lock():
            _worker["counter"].value += 1

    def is_late() -> bool:
        return bool(time.time() > _worker["deadline"].value)

    tally, failure = campaign.conduct(search, count, is_late)
    return tally, failure, not is_late()


# The one who distributes


class Marathon:
    """Searches over several processes, until the time is up or a run fails.

    Args:
        minutes: how long.
        workers: in how many processes.
        first_seed: where the seeds begin.
        limit: the longest exhaustive search, in runs.
    """

    def __init__(self, minutes: float, workers: int, first_seed: int, limit: int) -> None:
        self.report = Report()
        self._seconds = minutes * 60
        self._workers = workers
        self._spaces = campaign.exhaustive_searches(limit)
        self._seeds = campaign.rotating_seeds(first_seed, CHUNK)
        self._spawn = multiprocessing.get_context("spawn")
        self._counter = self._spawn.Value("q", 0)
        self._began = time.time()
        self._deadline = self._spawn.Value("d", self._began + self._seconds)

    def run(self, to: Console) -> Report:
        """Search; show a bar meanwhile."""
        shared = (self._counter, self._deadline)
        pool = ProcessPoolExecutor(self._workers, self._spawn, _begin, shared)
        with pool, progress(to) as bar:
            task = bar.add_task("simulate", total=self._seconds, note="")
            waiting: dict[Future[_Outcome], Search] = {}
            while True:
                while time.time() < self._deadline.value and len(waiting) < 2 * self._workers:
                    search = self._next()
                    waiting[pool.submit(_conduct, search)] = search
                if not waiting:
                    break
                for future in wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED).done:
                    self._end(waiting.pop(future), future.result())
                self._show(bar, task, next(iter(waiting.values()), None))
        self.report.seconds = time.time() - self._began
        return self.report

    def _next(self) -> Search:
        """Return what is searched next: exhaustive searches and seeds make as many runs as each other."""
        if sum(self.report.seeds.values()) >= sum(runs for runs, _ in self.report.spaces.values()):
            space = next(self._spaces, None)
            if space is not None:
                return space
        return next(self._seeds)

    def _end(self, search: Search, outcome: _Outcome) -> None:
        tally, failure, was_in_time = outcome
        self.report.add(search, tally, failure, in_time=was_in_time)
        if failure is not None:
            self._deadline.value = 0.0  # for everyone

    def _show(self, bar: Progress, task: TaskID, search: Search | None) -> None:
        elapsed = time.time() - self._began
        note = f"{self._counter.value:,} runs, {self._counter.value / elapsed:.0f}/s"
        bar.update(task, completed=min(elapsed, self._seconds), note=note, description=str(search or "simulate"))


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
    report = Marathon(options.minutes, options.workers, first, options.limit).run(to)
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
    to.print(f"{report.total.runs / max(1.0, report.seconds):.0f} runs a second")
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
