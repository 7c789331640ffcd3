"""``locks watch``: the same look again and again, until Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from rich.live import Live
from rich.segment import Segment

from pynamo_locking._edge import plain, text_of_ms
from pynamo_locking.cli import output
from pynamo_locking.cli.problems import EXPECTED, Problem, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from pynamo_locking.cli.session import Session

#: Kinds of problems that pass: the next look may have an answer.
_PASSING: Final = ("unreachable", "failed")

#: Replaced by tests.
_sleep: Callable[[float], None] = time.sleep


def watch(
    session: Session,
    look: Callable[[], dict[str, Any]],
    table: Callable[[dict[str, Any]], RenderableType],
    every: float,
) -> None:
    """Look every so many seconds until Ctrl-C; `table` shows a look to people.

    A problem of the first look ends the command. Later ones that may pass do not.
    """
    console = output.console()
    looks = _looks(look, every)
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal and not console.is_dumb_terminal and not session.as_json:
            _draw(console, looks, table, every)
        elif session.as_json:
            _print(looks, lambda found: print(output.dump(found, lines=True), flush=True), every)  # noqa: T201 - the answer
        else:
            _print(looks, lambda found: console.print(table(found)), every)


def _looks(look: Callable[[], dict[str, Any]], every: float) -> Iterator[dict[str, Any] | Problem]:
    """Yield each look, or the problem that it had if that may pass."""
    yield look()
    while True:
        _sleep(every)
        found: dict[str, Any] | Problem
        try:
            found = look()
        except EXPECTED as error:
            found = explain(error)
            if found.kind not in _PASSING:
                raise found from error
        yield found


def _print(looks: Iterator[dict[str, Any] | Problem], show: Callable[[dict[str, Any]], object], every: float) -> None:
    """Print each look. Of several problems in a row warn of the first one."""
    is_answered = True
    for found in looks:
        if not isinstance(found, Problem):
            show(found)
        elif is_answered:
            output.logger.warning("%s. Looking again every %g s.", found.message.rstrip("."), every)
        is_answered = not isinstance(found, Problem)


def _draw(
    console: Console,
    looks: Iterator[dict[str, Any] | Problem],
    table: Callable[[dict[str, Any]], RenderableType],
    every: float,
) -> None:
    """Draw each look over the one before, on the second screen of the terminal."""
    live, shown = Live(console=console, auto_refresh=False, screen=True), _Screen("", every)
    try:  # not `with`: a signal while it starts has to restore the terminal as well
        for found in looks:
            shown = shown.without_answer(found.message) if isinstance(found, Problem) else _Screen(table(found), every)
            live.start()
            live.update(shown, refresh=True)
    finally:
        live.stop()


class _Screen:
    """A look, as much of it as fits, below a line that says how old it is."""

    def __init__(self, body: RenderableType, every: float, *, at: str | None = None, trouble: str = "") -> None:
        self._body = body
        self._every = every
        self._at = at or text_of_ms(int(time.time() * 1000))
        self._trouble = trouble

    def without_answer(self, why: str) -> _Screen:
        """Return the same look, with the reason why there is no newer one."""
        return _Screen(self._body, self._every, at=self._at, trouble=why)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it."""
        head = f"{self._at}, every {self._every:g} s; Ctrl-C ends"
        if self._trouble:
            head = f"{head}\nnothing newer: {plain(self._trouble)}"
        options = options.update(height=None)
        lines = [*console.render_lines(head, options), *console.render_lines(self._body, options)]
        hidden = len(lines) - console.height
        if hidden > 0:
            del lines[console.height - 1 :]
            more = f"... {hidden + 1} more lines: make the window higher, or name a --prefix"
            lines.append(console.render_lines(more, options)[0])
        for line in lines:
            yield from line
            yield Segment.line()
