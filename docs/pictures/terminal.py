"""A program in a terminal, and what stands on its screen, as SVG."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pexpect
import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: pyte's names of colours that are not those of rich.
_COLOURS: Final = {"default": "default", "brown": "yellow", "brightbrown": "bright_yellow"}
_PATIENCE_S: Final = 120
#: Rich's picture asks a server elsewhere for its font.
_FONT_FACE: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, command: Sequence[str], rows: int, columns: int, environment: dict[str, str]) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)
        first, *arguments = command
        self._child: pexpect.spawn[str] = pexpect.spawn(
            first, arguments, dimensions=(rows, columns), env=environment, encoding="utf-8", timeout=_PATIENCE_S
        )

    def wait_for(self, text: str) -> None:
        """Return when the text is on the screen.

        Raises:
            RuntimeError: the program ended first, or nothing came for two minutes.
        """
        while text not in "\n".join(self._screen.display):
            try:
                self._stream.feed(self._child.read_nonblocking(65536, timeout=_PATIENCE_S))
            except (pexpect.EOF, pexpect.TIMEOUT) as error:
                shown = "\n".join(self._screen.display)
                raise RuntimeError(f"{text!r} did not come. On the screen was:\n{shown}") from error

    def draw(self, path: Path, title: str) -> None:
        """Write what is on the screen, as far down as there is anything."""
        lines = [self._line(row) for row in range(self._screen.lines)]
        while lines and not lines[-1].plain.strip():
            lines.pop()
        console = Console(record=True, width=self._screen.columns, file=io.StringIO(), color_system="truecolor")
        for line in lines:
            console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False)
        picture = console.export_svg(title=title, unique_id=path.stem)
        path.write_text(_FONT_FACE.sub("", picture))

    def _line(self, row: int) -> Text:
        cells = [self._screen.buffer[row][column] for column in range(self._screen.columns)]
        line = Text()
        for style, alike in groupby(cells, key=_style):
            line.append("".join(cell.data for cell in alike), style)
        line.rstrip()
        return line

    def close(self) -> None:
        """End the program."""
        self._child.close(force=True)


def _style(cell: pyte.screens.Char) -> Style:
    return Style(color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, reverse=cell.reverse)


def _colour(name: str) -> str:
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return _COLOURS.get(name, re.sub(r"^bright(?=[a-z])", "bright_", name))


@contextmanager
def running(command: Sequence[str], rows: int, columns: int, environment: dict[str, str]) -> Iterator[Terminal]:
    """A program in a terminal of so many rows and columns; it is ended with the block."""
    terminal = Terminal(command, rows, columns, environment)
    try:
        yield terminal
    finally:
        terminal.close()
