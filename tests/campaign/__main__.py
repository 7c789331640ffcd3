"""``python -m tests.campaign run --minutes 20``, ``python -m tests.campaign check FILE``."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.campaign.check import check_file, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.campaign.run import Result

#: Which part of the time each engine gets. The one in memory answers in microseconds, so it does most of the work.
SHARES: Final = {"memory": 0.7, "dynoxide": 0.18, "dynamodb-local": 0.12}
#: Of one campaign; then its history is checked, and another one begins with empty tables.
ROUND_S: Final = 90.0


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says; return 1 if there was an anomaly."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="check histories, .edn or .jsonl, from the files alone")
    check.add_argument("files", nargs="+", type=Path)
    check.add_argument("--serializable", action="store_true", help="do not ask for an order that agrees with time")
    check.set_defaults(do=lambda options: _check(options.files, strict=not options.serializable))
    run = commands.add_parser("run", help="make histories under faults, and check them")
    run.add_argument("--minutes", type=float, default=20.0)
    run.add_argument("--engines", nargs="+", default=list(SHARES), choices=list(SHARES))
    run.add_argument("--at-once", type=int, default=3, help="campaigns: their processes wait more than they compute")
    run.add_argument("--processes", type=int, default=6, help="of each campaign")
    run.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    run.add_argument("--folder", type=Path, default=Path("campaign-histories"), help="for the histories")
    run.add_argument("--keep", action="store_true", help="keep histories in which nothing is wrong, too")
    run.set_defaults(do=_run)
    options = parser.parse_args(arguments)
    result: int = options.do(options)
    return result


def _check(files: list[Path], *, strict: bool) -> int:
    found = [check_file(path, strict=strict) for path in files]
    for each in found:
        _say(describe(each))
    return int(any(each.report.anomalies for each in found))


def _run(options: argparse.Namespace) -> int:
    from tests.campaign.run import campaign_on

    results: list[Result] = []
    rounds = _rounds(options.minutes * 60, options.at_once, options.engines)
    with ProcessPoolExecutor(options.at_once, multiprocessing.get_context("spawn")) as pool:
        begun = {}
        for number, (engine, seconds) in enumerate(rounds):
            folder = options.folder / f"{options.seed}-{number}-{engine}"
            done = pool.submit(campaign_on, engine, folder, seconds, options.seed + number, options.processes)
            begun[done] = folder
        try:
            for done in as_completed(begun):
                results.append(done.result())
                _tell(results[-1], begun[done], keep=options.keep)
        except KeyboardInterrupt:
            _say("interrupted")
            pool.shutdown(cancel_futures=True)
    _say(table(results))
    return int(any(result.kinds or result.errors for result in results))


def _rounds(seconds: float, at_once: int, engines: list[str]) -> Iterator[tuple[str, float]]:
    """Yield engines, and for how long; in turns, so that none has to wait for its first one."""
    longest = min(ROUND_S, seconds)
    whole = sum(SHARES[engine] for engine in engines)
    rounds = []
    for engine in engines:
        mine = seconds * at_once * SHARES[engine] / whole
        count = math.ceil(mine / longest)
        rounds += [((number + 1) / count, engine, mine / count) for number in range(count)]
    yield from ((engine, mine) for _, engine, mine in sorted(rounds))


def _tell(result: Result, folder: Path, *, keep: bool) -> None:
    is_wrong = bool(result.kinds or result.errors)
    _say(f"{time.strftime('%H:%M:%S')} {result.engine}: {result.operations:,} operations in {result.seconds:.0f} s")
    if is_wrong:
        for each in result.checked:
            _say(describe(each))
        _say(*result.errors, f"seed and histories: {folder}")
    elif not keep:
        shutil.rmtree(folder)


def table(results: list[Result]) -> str:
    """Return the figures of all campaigns, by engine."""
    text = ""
    for engine in dict.fromkeys(result.engine for result in results):
        mine = [result for result in results if result.engine == engine]
        reports = [each.report for result in mine for each in result.checked]
        operations = sum((report.operations for report in reports), Counter[str]())
        micro = sum((report.micro for report in reports), Counter[str]())
        faults = sum((result.faults for result in mine), Counter[str]())
        seconds, checking = (
            sum(result.seconds for result in mine),
            sum(each.seconds for r in mine for each in r.checked),
        )
        text += (
            f"\n{engine}\n"
            f"  operations (transactions)  {operations.total():,}: {_counts(operations)}\n"
            f"  micro-operations done      {micro.total():,}: {_counts(micro)}\n"
            f"  requests                   {sum(result.requests for result in mine):,}\n"
            f"  faults                     {faults.total():,}: {_counts(faults)}\n"
            f"  at work                    {seconds:,.0f} s, {operations.total() / (seconds or 1):,.0f} a second\n"
            f"  checked in                 {checking:,.1f} s, {operations.total() / (checking or 1):,.0f} a second\n"
            f"  anomalies                  {sum(len(report.anomalies) for report in reports)}\n"
            f"  campaigns that broke       {sum(bool(result.errors) for result in mine)}\n"
        )
    return text


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name.lower().replace('_', ' ')}" for name, count in sorted(counter.items()))


def _say(*lines: object) -> None:
    for line in lines:
        print(line, flush=True)  # noqa: T201 - what this program is for


if __name__ == "__main__":
    sys.exit(main())
