"""The simulator from the command line: `python -m tests.simulation --help`."""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import track
from rich.table import Table

from pynamo_locking_testing._engine.choices import Listed
from tests.simulation import campaign, marathon, regressions
from tests.simulation.campaign import Exhaustive, Failure, Seeds, Tally
from tests.simulation.explore import parsed, run_seed, shrunk
from tests.simulation.plans import Plan
from tests.simulation.run import Result, run
from tests.simulation.timeline import console, show
from tests.simulation.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return 1 if a run failed."""
    options = _parser().parse_args(arguments)
    return int(options.do(options, console(plain=options.plain)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--plain", action="store_true", help="no colours")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_replay(commands.add_parser("replay", help="repeat one run and show who did what"))
    seeds = commands.add_parser("seeds", help="one run for each seed of a range")
    seeds.add_argument("--workload", choices=WORKLOADS, required=True)
    seeds.add_argument("--count", type=int, default=1000)
    seeds.add_argument("--first", type=int, default=0)
    seeds.set_defaults(do=_seeds)
    exhaust = commands.add_parser("exhaust", help="all runs, under no fault and under each single one")
    exhaust.add_argument("--workload", choices=WORKLOADS, required=True)
    exhaust.add_argument("--parties", type=int, default=2)
    exhaust.add_argument("--preemptions", type=int, help="at most so many; any number unless given")
    exhaust.add_argument("--limit", type=int, default=campaign.LIMIT, help="runs for each fault")
    exhaust.set_defaults(do=_exhaust)
    bugs = commands.add_parser("bugs", help="how many runs it takes to find each planted bug")
    bugs.add_argument("--seeds", type=int, default=20, help="searches for each bug")
    bugs.add_argument("--limit", type=int, default=2000, help="runs for each search")
    bugs.set_defaults(do=_bugs)
    marathon.add_to(commands.add_parser("long", help="exhaustive searches and seeds until the time is up"))
    return parser


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", nargs="?", help="as a failing run prints it")
    parser.add_argument("choices", nargs="?", default="-", help="as 1,0,2; - for none")
    parser.add_argument("--workload", choices=WORKLOADS)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--file", type=Path, help="one of tests/simulation/regressions/*.json")
    parser.add_argument("--shrink", action="store_true", help="look for a duller run that fails in the same way")
    parser.set_defaults(do=_replay)


def _replay(options: argparse.Namespace, to: Console) -> int:
    result = _result(options)
    if options.shrink and result.error is not None:
        result = shrunk(result)
    show(result, to)
    return int(result.error is not None)


def _result(options: argparse.Namespace) -> Result:
    if options.file is not None:
        return regressions.Regression.read(options.file).replay()
    if options.plan is not None:
        return run(Plan.from_json(options.plan), Listed(parsed(options.choices)))
    if options.workload is not None and options.seed is not None:
        return run_seed(options.workload, options.seed)
    sys.exit("replay what? A plan with its choices, --workload and --seed, or --file.")


def _seeds(options: argparse.Namespace, to: Console) -> int:
    search = Seeds(options.workload, options.first, options.count)
    runs = itertools.count(1)
    with marathon.progress(to) as bar:
        task = bar.add_task(options.workload, total=options.count, note="")
        tally, failure = campaign.conduct(search, lambda _: bar.update(task, advance=1, note=f"{next(runs):,} runs"))
    marathon.show_tally(tally, to)
    return _show_failure(failure, to)


def _exhaust(options: argparse.Namespace, to: Console) -> int:
    table = Table("fault", "runs", "", "requests a run", title=f"{options.workload}, {options.parties} parties")
    total = Tally()
    failure = None
    for fault in track(campaign.SINGLE_FAULTS, description=options.workload, console=to, transient=True):
        parties, faults = options.parties, campaign.once(fault)
        plan = Plan(options.workload, parties, parties, faults=faults, preemptions=options.preemptions)
        tally, failure = campaign.conduct(Exhaustive(plan, options.limit))
        end = "failed" if failure else "cut off" if tally.runs == options.limit else "all"
        requests = f"{tally.requests / max(1, tally.runs):.1f}"
        table.add_row("none" if fault is None else fault.value, f"{tally.runs:,}", end, requests)
        total.merge(tally)
        if failure is not None:
            break
    to.print(table)
    to.print(f"{total.runs:,} runs")
    return _show_failure(failure, to)


def _bugs(options: argparse.Namespace, to: Console) -> int:
    from tests.simulation import planted  # it breaks the library: no command but this one needs it

    columns = "bug", "what it breaks", "workload", "median", "worst", "not found"
    table = Table(*columns, title=f"{len(planted.BUGS)} bugs")
    missed = 0
    for bug in track(planted.BUGS, description="bugs", console=to, transient=True):
        runs = [planted.runs_until_found(bug, 1000 * index, options.limit) for index in range(options.seeds)]
        found = [each for each in runs if each is not None]
        missed += len(runs) - len(found)
        median, worst = (f"{statistics.median(found):g}", str(max(found))) if found else ("", "")
        table.add_row(bug.name, bug.breaks, bug.search.plan.workload, median, worst, str(len(runs) - len(found) or ""))
    to.print(table)
    return int(missed > 0)


def _show_failure(failure: Failure | None, to: Console) -> int:
    """Print what failed; return the exit status."""
    if failure is None:
        return 0
    to.print(failure.message, style="bold red", markup=False, soft_wrap=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
