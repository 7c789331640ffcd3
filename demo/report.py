"""What the demo has shown, in numbers."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING, Final

from rich.table import Table

from demo import bank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from demo.phases import Result
    from demo.teller import Turn

START: Final = bank.START_BALANCE * len(bank.NAMES)


def missing_money(result: Result) -> int:
    """Return what the accounts hold less than at the start; negative if they hold more."""
    return START - sum(result.balances.values())


def lost_changes(result: Result) -> int:
    """Return how many changes of an account were overwritten by another process."""
    return 2 * len(result.done) - sum(result.bookings.values())


def wrong_balances(result: Result) -> dict[str, int]:
    """Return by how much each balance differs from what the transfers add up to, where it does."""
    off = {name: bank.START_BALANCE - result.balances.get(name, 0) for name in bank.NAMES}
    for transfer in result.done:
        off[transfer.source] -= transfer.amount
        off[transfer.target] += transfer.amount
    return {name: amount for name, amount in off.items() if amount}


def turns_in_order(result: Result) -> dict[str, list[Turn]]:
    """Return all turns of each account in the order of their tickets, the victim's among them."""
    turns = [*result.turns, *([] if result.kill is None else [result.kill.turn])]
    return {
        name: sorted((turn for turn in turns if turn.account == name), key=lambda turn: turn.ticket)
        for name in bank.NAMES
    }


def disorder(result: Result) -> list[str]:
    """Return every case in which a turn did not wait for the end of the turn before it."""
    found = []
    for name, turns in turns_in_order(result).items():
        for before, after in itertools.pairwise(turns):
            end = before.released
            if result.kill is not None and before == result.kill.turn:
                end = result.kill.at
            if after.ticket == before.ticket or after.granted < end:
                found.append(
                    f"{name}: {after.worker} (ticket {after.ticket}) was let in {end - after.granted:.3f} s "
                    f"before {before.worker} (ticket {before.ticket}) was through."
                )
    return found


def problems(result: Result) -> list[str]:
    """Return what the phase with locks must not show; empty if all is well."""
    found = [*result.failures, *disorder(result)]
    if len(result.done) != result.planned:
        found.append(f"Only {len(result.done)} of {result.planned} transfers were made.")
    if missing_money(result) or lost_changes(result):
        found.append(f"{missing_money(result):,} are missing, {lost_changes(result)} changes were lost.")
    if wrong_balances(result):
        found.append(f"Wrong balance: {', '.join(wrong_balances(result))}.")
    if result.kill is None or result.kill.next is None:
        found.append("Nobody took over from the killed process; try more transfers.")
    return found


def table(plain: Result, locked: Result) -> Table:
    """Return both phases side by side."""
    both = (plain, locked)
    result = Table("", title="The same transfers, twice", title_style="bold", title_justify="left")
    result.add_column("without protection", justify="right")
    result.add_column("with locks", justify="right", style="bold")
    result.add_row("Money at the start", *(f"{START:,}" for _ in both))
    result.add_row("Money at the end", *(f"{sum(each.balances.values()):,}" for each in both))
    result.add_row("Money lost or made up", *map(_money, both))
    result.add_row("Changes that got lost", *map(_changes, both))
    result.add_row("Wrong balances", *map(_wrong, both), end_section=True)
    result.add_row("Turns in order, one at a time", "-", _order(locked))
    result.add_row("Wait after the kill", "-", _recovery(locked), end_section=True)
    result.add_row("Transfers", *(str(len(each.done)) for each in both))
    result.add_row("Transfers per second", *(f"{_speed(each):.0f}" for each in both))
    result.add_row("Writes per transfer", *(f"{each.writes / max(1, len(each.done)):.1f}" for each in both))
    result.add_row("Reads per transfer", *(f"{each.reads / max(1, len(each.done)):.1f}" for each in both))
    for label, wait in _waits(locked):
        result.add_row(label, "-", f"{wait:.2f} s")
    return result


def _good(text: str) -> str:
    return f"[green]{text}[/green]"


def _bad(text: str) -> str:
    return f"[red]{text}[/red]"


def _money(result: Result) -> str:
    missing = missing_money(result)
    if missing < 0:
        return _bad(f"{-missing:,} made up")
    return _bad(f"{missing:,} lost") if missing else _good("0")


def _changes(result: Result) -> str:
    lost = lost_changes(result)
    text = f"{lost} of {2 * len(result.done)}"
    return _bad(text) if lost else _good(text)


def _wrong(result: Result) -> str:
    off = wrong_balances(result)
    text = f"{len(off)} of {len(bank.NAMES)}"
    return _bad(f"{text}, by {sum(map(abs, off.values())):,}") if off else _good(text)


def _order(locked: Result) -> str:
    turns = sum(map(len, turns_in_order(locked).values()))
    wrong = len(disorder(locked))
    text = f"{turns - wrong} of {turns}"
    return _bad(text) if wrong else _good(text)


def _recovery(locked: Result) -> str:
    recovery = None if locked.kill is None else locked.kill.recovery_s
    return _bad("for ever") if recovery is None else f"{recovery:.1f} s = {recovery / bank.SETTINGS.lease:.2f} leases"


def pause(result: Result) -> float:
    """Return the seconds in which the kill stood in the way."""
    return (result.kill.recovery_s or 0.0) if result.kill is not None else 0.0


def _speed(result: Result) -> float:
    return len(result.done) / (result.seconds - pause(result))


def _waits(locked: Result) -> Iterable[tuple[str, float]]:
    waits = sorted(turn.granted - turn.asked for turn in locked.turns) or [math.nan]
    yield "Wait for a lock, median", statistics.median(waits)
    yield "Wait for a lock, 95 % below", waits[min(len(waits) - 1, math.ceil(len(waits) * 0.95))]
    yield "Wait for a lock, longest", waits[-1]
