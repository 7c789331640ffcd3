"""Run the demo: ``python -m demo``."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape

from demo import bank, engine, report
from demo.crew import Crew
from demo.phases import VICTIM, Phase, Result, wait_until_ready
from demo.view import View

if TYPE_CHECKING:
    from demo.bank import Transfer

PICTURE: Final = Path("demo-locks.svg")
TRANSFERS: Final = {engine.DYNOXIDE: 240, engine.MOTO: 80}
SEED: Final = 7
INTERRUPTED: Final = 130


def main() -> int:
    """Run the demo and return its exit code: 0 if the locks kept their promise."""
    began = time.monotonic()
    options = _options()
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        plain, locked = _run(console, options)
    except KeyboardInterrupt:
        console.print("Interrupted; all processes are gone.")
        return INTERRUPTED
    found = report.problems(locked)
    console.print("", report.table(plain, locked), _notes(locked), sep="\n", highlight=False)
    _draw(console, locked)
    for problem in found:
        console.print(f"[red]PROBLEM[/red] {escape(problem)}", highlight=False)
    console.print(f"\n{_verdict(plain, found)}  ({time.monotonic() - began:.0f} s)", highlight=False)
    return 1 if found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Worker processes move money between four accounts, first without protection, then with "
        "locks, one of which is held by a process that gets killed.",
    )
    parser.add_argument("--transfers", type=int, help="in each phase; 240 unless set, 80 with moto")
    parser.add_argument("--processes", type=int, default=8, help="that move money; 8 unless set")
    parser.add_argument("--engine", choices=(engine.DYNOXIDE, engine.MOTO), help="dynoxide if it is installed")
    options = parser.parse_args()
    if options.processes < 2:  # noqa: PLR2004 - one alone has nobody to wait for
        parser.error("--processes must be at least 2.")
    if options.transfers is not None and options.transfers < 10 * options.processes:
        parser.error("--transfers must be at least 10 for each process, or nobody waits when the victim dies.")
    return options


def _run(console: Console, options: argparse.Namespace) -> tuple[Result, Result]:
    workers = [f"worker {number}" for number in range(1, options.processes + 1)]
    with View(console, [*workers, VICTIM]) as view, engine.running(options.engine, view.say) as (name, url):
        view.say(f"{len(workers)} processes, 4 accounts with {bank.START_BALANCE:,} each, on {name} at {url}")
        bank.use(url)
        bank.open_accounts()
        number = options.transfers or TRANSFERS[name]
        shares = _shares(workers, number)
        with Crew([*workers, VICTIM], url) as crew:
            wait_until_ready(crew, [*workers, VICTIM], view)
            view.begin("1. Without protection: get, change, save", number)
            plain = Phase(crew, view, shares, locked=False).run()
            view.begin("2. With locks: with Account.edit(first) as a, Account.edit(second) as b", number)
            locked = Phase(crew, view, shares, locked=True).run()
    return plain, locked


def _shares(workers: list[str], number: int) -> dict[str, list[Transfer]]:
    transfers = bank.plan(SEED, number)
    return {worker: transfers[index :: len(workers)] for index, worker in enumerate(workers)}


def _notes(locked: Result) -> str:
    settings = bank.SETTINGS
    return (
        f"Locks here: lease {settings.lease:g} s (60 s is usual), no clocks compared, a poll every "
        f"{settings.poll_interval * 1000:g} ms while waiting, which is what the reads are.\n"
        f"Transfers per second leave out the {report.pause(locked):.1f} s in which all waited for the dead process. "
        f"It died before it saved anything; between its two saves it would have left half a transfer, which only "
        f"a transaction prevents."
    )


def _draw(console: Console, locked: Result) -> None:
    try:
        from demo import picture  # noqa: PLC0415 - matplotlib may be missing
    except ImportError as error:
        console.print(f"No picture: {error}.")
        return
    picture.draw(locked, PICTURE)
    console.print(f"Who held which lock when: {PICTURE}", highlight=False, soft_wrap=True)


def _verdict(plain: Result, found: list[str]) -> str:
    if found:
        return "[bold red]The locks did NOT keep their promise.[/bold red]"
    lost = f"{report.lost_changes(plain)} of {2 * len(plain.done)}"
    return (
        f"[bold]Without protection {lost} changes vanished. With locks: none, and in order, "
        f"although a process was killed while holding one.[/bold]"
    )


if __name__ == "__main__":
    sys.exit(main())
