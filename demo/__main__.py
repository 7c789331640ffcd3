"""Run the demo: ``python -m demo``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo import bank, engine
from demo.bank import IN_TRANSACTIONS, UNDER_LOCKS, UNPROTECTED
from demo.phases import VICTIM, Crew, Phase, Result
from demo.view import View

WORKERS: Final = 8
SEED: Final = 7
INTERRUPTED: Final = 130
#: What each phase does.
PHASES: Final = {
    UNPROTECTED: "get, change, save",
    IN_TRANSACTIONS: "@transactional() around tx.get, change, tx.save",
    UNDER_LOCKS: "with Account.edit(first) as a, Account.edit(second) as b",
}


def main() -> int:
    """Run the demo and return its exit code: 0 if the package kept its promises."""
    began = time.monotonic()
    options = _options()
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["NO_PROXY"] = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))
    try:
        results = _run(console, options)
    except KeyboardInterrupt:
        console.print("Interrupted; all processes are gone.")
        return INTERRUPTED
    found = [problem for result in results[1:] for problem in result.problems()]
    console.print("", _table(results), _notes(results[-1]), sep="\n", highlight=False)
    for problem in found:
        console.print(f"[red]PROBLEM[/red] {escape(problem)}", highlight=False)
    console.print(f"\n{_verdict(results[0], found)}  ({time.monotonic() - began:.0f} s)", highlight=False)
    return 1 if found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Worker processes move money between six accounts: without protection, in transactions, and "
        "under locks, one of which is held by a process that gets killed.",
    )
    parser.add_argument("--transfers", type=int, default=96, help="in each phase; 96 unless set")
    parser.add_argument("--engine", choices=(engine.DYNOXIDE, engine.MEMORY), help="dynoxide if npm has brought it")
    options = parser.parse_args()
    if options.transfers < 10 * WORKERS:
        parser.error("--transfers must be at least 10 for each process, or nobody waits when the victim dies.")
    return options


def _run(console: Console, options: argparse.Namespace) -> list[Result]:
    workers = [f"worker {number}" for number in range(1, WORKERS + 1)]
    transfers = bank.plan(SEED, options.transfers)
    shares = {worker: transfers[index :: len(workers)] for index, worker in enumerate(workers)}
    results = []
    with View(console, [*workers, VICTIM]) as view, engine.running(options.engine) as (name, url):
        view.say(
            f"{len(workers)} processes, {len(bank.NAMES)} accounts with {bank.START_BALANCE:,} each, on {name} at {url}"
        )
        bank.use(url)
        with contextlib.closing(Crew(workers, url)) as crew:
            for number, (way, code) in enumerate(PHASES.items(), 1):
                view.begin(f"{number}. {way.capitalize()}: {code}", len(transfers))
                results.append(Phase(crew, view, way, shares).run())
    return results


# What it has shown


def _table(results: list[Result]) -> Table:
    start = bank.START_BALANCE * len(bank.NAMES)
    table = Table("", title="The same transfers, three times", title_style="bold", title_justify="left")
    for result in results:
        table.add_column(result.way, justify="right")
    table.add_row("Money at the start", *(f"{start:,}" for _ in results))
    table.add_row("Money at the end", *(f"{sum(each.balances.values()):,}" for each in results))
    table.add_row("Changes that got lost", *map(_changes, results))
    table.add_row("Wrong balances", *map(_wrong, results), end_section=True)
    table.add_row("Wait after the kill", *(f"{each.pause_s:.1f} s" if each.killed else "-" for each in results))
    table.add_row("Transfers per second", *map(_speed, results))
    return table


def _coloured(text: str, *, bad: object) -> str:
    return f"[red]{text}[/red]" if bad else f"[green]{text}[/green]"


def _changes(result: Result) -> str:
    return _coloured(f"{result.lost_changes()} of {2 * len(result.done)}", bad=result.lost_changes())


def _wrong(result: Result) -> str:
    off = result.wrong_balances()
    by = f", by {sum(map(abs, off.values())):,}" if off else ""
    return _coloured(f"{len(off)} of {len(bank.NAMES)}{by}", bad=off)


def _speed(result: Result) -> str:
    return f"{len(result.done) / (result.ended - result.began - result.pause_s):.0f}"


def _notes(locked: Result) -> str:
    return (
        f"All want the same few accounts. The lease is {bank.SETTINGS.lease:g} s here (60 s is usual). Transfers per "
        f"second leave out the {locked.pause_s:.1f} s in which all waited for the dead process. It died before it "
        f"saved anything; between its two saves it would have left half a transfer, which only a transaction prevents."
    )


def _verdict(plain: Result, found: list[str]) -> str:
    if found:
        return "[bold red]The promises were NOT kept.[/bold red]"
    lost = f"{plain.lost_changes()} of {2 * len(plain.done)}"
    return (
        f"[bold]Without protection {lost} changes vanished. In transactions and under locks: none, "
        f"although a process was killed while holding one.[/bold]"
    )


if __name__ == "__main__":
    sys.exit(main())
