"""What is on screen while the demo runs: a live picture in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

from demo import bank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

#: Lines of news that stay on screen.
NEWS: Final = 4


@dataclass
class AccountLine:
    """What is known of an account."""

    balance: int = bank.START_BALANCE
    holder: str = ""
    waiting: int = 0


@dataclass
class WorkerLine:
    """What is known of a worker."""

    done: int = 0
    doing: str = "starts"


class View:
    """The state of the demo, and how it is shown."""

    def __init__(self, console: Console, workers: Iterable[str]) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._began = time.monotonic()
        self._news: list[str] = []
        self._title = "Starting"
        self._planned = 0
        self.made = 0
        self.accounts = {name: AccountLine() for name in bank.NAMES}
        self.workers = {name: WorkerLine() for name in workers}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, title: str, planned: int) -> None:
        """Show that a phase begins."""
        self._title, self._planned, self.made = title, planned, 0
        self.accounts = {name: AccountLine() for name in bank.NAMES}
        for line in self.workers.values():
            line.done = 0
        self.say(f"[bold]{title}[/bold]")

    def say(self, news: str) -> None:
        """Show one line of news."""
        line = f"{time.monotonic() - self._began:5.1f} s  {news}"
        self._news = [*self._news, line][-NEWS:]
        if self._live is None:
            self._console.print(line, highlight=False, soft_wrap=True)
        self.refresh()

    def refresh(self) -> None:
        """Show the present state."""
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        tables = Table.grid(padding=(0, 1))
        tables.add_row(self._accounts(), self._workers())
        progress = Table.grid(padding=(0, 1))
        progress.add_row(
            ProgressBar(total=max(1, self._planned), completed=self.made, width=40),
            f"{self.made} of {self._planned} transfers",
        )
        news = Text.from_markup("\n".join(self._news), overflow="ellipsis")
        news.no_wrap = True
        return Panel(Group(progress, "", tables, "", news), title=f"[bold]{self._title}[/bold]", padding=1)

    def _accounts(self) -> Table:
        table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
        table.add_column("account", width=7)
        table.add_column("balance", justify="right", width=7)
        table.add_column("held by", width=9)
        table.add_column("waiting", width=8)
        for name, line in self.accounts.items():
            style = "red" if line.holder and self.workers[line.holder].doing == "killed" else "green"
            queue = Text("●" * line.waiting, "yellow")
            table.add_row(name, f"{line.balance:,}", Text(line.holder, style=style), queue)
        return table

    def _workers(self) -> Table:
        table = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
        table.add_column("process", width=8)
        table.add_column("made", justify="right", width=4)
        table.add_column("now", width=22)
        for name, line in self.workers.items():
            table.add_row(name, str(line.done), Text(line.doing, style=_colour(line.doing)))
        return table


def _colour(doing: str) -> str:
    if doing == "killed":
        return "bold red"
    if "wants" in doing:
        return "yellow"
    return "green" if "has" in doing else "dim"
