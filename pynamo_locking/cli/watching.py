"""``locks watch``: the same look again and again, until somebody has seen enough."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from rich.live import Live
from rich.segment import Segment

from pynamo_locking._edge import plain, text_of_ms
from pynamo_locking.cli import output
from pynamo_locking.cli.problems import EXPECTED, Problem, explain

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Look until Ctrl-C.

    The first look ends with its problem, if it has one. Later ones do not if it may pass: whoever watches wants to see
    how it goes on.

    Args:
        session: says how to print.
        look: what to do each time.
        table: what to show of a look to people.
        every: time between two looks, in seconds.
    """
    console = output.console()
    is_drawn = console.is_terminal and not console.is_dumb_terminal and not session.as_json
    try:
        if is_drawn:
            _draw(console, look, table, every)
        else:
            _print(session, console, look, table, every)
    except KeyboardInterrupt:
        return


def _print(
    session: Session,
    console: Console,
    look: Callable[[], dict[str, Any]],
    table: Callable[[dict[str, Any]], RenderableType],
    every: float,
) -> None:
    """Print each look; and when it begins that there is no answer."""
    document: dict[str, Any] | None = look()
    while True:
        if document is not None and session.as_json:
            print(output.dump(document, lines=True), flush=True)  # noqa: T201 - the answer
        elif document is not None:
            console.print(table(document))
        _sleep(every)
        before = document
        try:
            document = look()
        except EXPECTED as error:
            document = None
            message = _passing(error).message
            if before is not None:
                output.logger.warning("%s. Looking again every %g s.", message.rstrip("."), every)


def _draw(
    console: Console,
    look: Callable[[], dict[str, Any]],
    table: Callable[[dict[str, Any]], RenderableType],
    every: float,
) -> None:
    """Draw each look over the one before, on the second screen of the terminal."""
    shown = _Screen(table(look()), every)
    live = Live(shown, console=console, auto_refresh=False, screen=True)
    try:  # not `with`: a signal while it starts has to give the terminal back as well
        live.start(refresh=True)
        while True:
            _sleep(every)
            try:
                shown = _Screen(table(look()), every)
            except EXPECTED as error:
                shown = shown.without_answer(_passing(error).message)
            live.update(shown, refresh=True)
    finally:
        live.stop()


def _passing(error: Exception) -> Problem:
    problem = explain(error)
    if problem.kind not in _PASSING:
        raise problem from error
    return problem


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
