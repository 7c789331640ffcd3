"""A run, for people: who did what, when, and what they were told."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.simulation.explore import written
from tests.simulation.history import Told
from tests.simulation.run import PAUSE_S

if TYPE_CHECKING:
    from pynamo_locking_testing._engine.network import Place
    from tests.simulation.history import Operation
    from tests.simulation.run import Result, Step

#: Processes are told apart by colour, in the order in which they appear.
_COLOURS: Final = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow")

_TOLD: Final = {Told.APPLIED: "green", Told.REFUSED: "yellow", Told.UNKNOWN: "red", Told.NOTHING: "dim"}


def console(*, plain: bool = False) -> Console:
    """Return where a timeline is printed: without colours and in wide lines, unless it is a terminal."""
    if plain or not sys.stdout.isatty():
        return Console(width=180, no_color=True, color_system=None, highlight=False)
    return Console(highlight=False)


def show(result: Result, to: Console) -> None:
    """Print a run: its options, its requests, its operations, and what was wrong."""
    to.print(f"[bold]plan[/]     {escape(result.plan.to_json())}")
    to.print(f"[bold]choices[/]  {written(result.choices)}\n")
    to.print(_requests(result))
    to.print()
    to.print(_operations(result))
    to.print()
    if result.error is None:
        to.print("[bold green]everything as it must be[/]")
    else:
        to.print(f"[bold red]{escape(f'{type(result.error).__name__}: {result.error}')}[/]")


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column == "ms" else "left", no_wrap=column != "error")
    return table


def _requests(result: Result) -> Table:
    table = _table("ms", "actor", "request", "item", "fault", "answer", "lock", "for")
    colours: dict[str, str] = {}
    for step in result.trace:
        colour = colours.setdefault(step.process, _COLOURS[len(colours) % len(_COLOURS)])
        table.add_row(
            f"{step.at_s * 1000:.0f}",
            f"[{colour}]{escape(step.actor)}[/]",
            step.operation,
            escape(step.places),
            f"[bold red]{step.fault}[/]",
            _answer(step),
            step.step,
            escape(step.purpose),
        )
        event = _event(step)
        if event:
            table.add_row("", f"[bold red]{event}[/]")
    return table


def _answer(step: Step) -> str:
    return step.answer if step.answer == "ok" else f"[red]{escape(step.answer)}[/]" if step.answer else ""


def _event(step: Step) -> str:
    """Return what becomes of the process at this request."""
    if step.fault.startswith("crash"):
        return "" if _is_second_half(step) else f"process {step.process} dies"
    if step.fault.startswith("pause"):
        return "" if _is_second_half(step) else f"process {step.process} stands still for {PAUSE_S * 1000:.0f} ms"
    return ""


def _is_second_half(step: Step) -> bool:
    """Tell whether a request that waited out a pause is shown again, with its answer."""
    return step.fault == "pause before" and step.answer != ""


def _operations(result: Result) -> Table:
    table = _table("operation", "actor", "item", "ticket", "told", "read", "error")
    for done in result.operations:
        table.add_row(
            f"{escape(done.kind)} {done.number}",
            escape(repr(done.actor)),
            escape(", ".join(map(str, done.places))),
            _tickets(done),
            f"[{_TOLD[done.told]}]{done.told.value}[/]",
            "" if done.value is None else escape(str(done.value)),
            "" if done.error is None else escape(f"{type(done.error).__name__}: {done.error}"),
        )
    return table


def _tickets(done: Operation) -> str:
    if done.tickets is None:
        return "" if done.ticket is None else str(done.ticket)

    def text(row: Place, ticket: int) -> str:
        return f"{row}: {ticket}"

    return escape(", ".join(text(row, ticket) for row, ticket in done.tickets.items()))
