"""What is printed: tables for people, or one JSON document; and what goes into the log."""

from __future__ import annotations

import contextlib
import getpass
import io
import json
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from pynamo_locking._edge import plain
from pynamo_locking.cli.problems import Exit, Problem, usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import ConsoleOptions, JustifyMethod, RenderableType, RenderResult

#: Without a terminal, as in a pipe: so wide that no value is folded or cut.
_WIDTH_OF_A_PIPE: Final = 1_000_000

#: A column of a table may become as narrow as that, but only if its values may be folded.
_NARROWEST: Final = 12

logger: logging.Logger = logging.getLogger("pynamo_locking")


class _Console(Console):
    """Leaves it to the program what to do when the reader of its output has ended."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console; colours only on a terminal (and unless ``NO_COLOR`` is set)."""
    stream = sys.stderr if stderr else sys.stdout
    is_terminal = stream.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = None if is_terminal else int(columns) if columns.isdecimal() and int(columns) else _WIDTH_OF_A_PIPE
    return _Console(stderr=stderr, width=width, highlight=False, force_terminal=is_terminal, emoji=False, markup=False)


def lines_of(text: str) -> str:
    """Return text of several lines; all but the first one are indented, so that none of them looks like a new one."""
    return "\n    ".join(plain(line) for line in text.splitlines())


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], folds: Sequence[str] | None = None
) -> RenderableType:
    """Return a table for people; numbers are set to the right.

    In a narrow window values of the columns in `folds` (all, unless given) are folded. If that is not enough, each row
    becomes a few lines.
    """
    cells = [[each if isinstance(each, Text) else Text(plain(each)) for each in row] for row in rows]
    made = Table(title=Text(plain(title)), title_justify="left", title_style="bold")
    least = 1
    for i, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[i], (int, float)) or row[i] == "" for row in rows)
        justify: JustifyMethod = "right" if is_number else "left"
        may_fold = folds is None or column in folds
        made.add_column(Text(column), justify=justify, overflow="fold", no_wrap=not may_fold)
        width = max(cell_len(each.plain) for each in (Text(column), *(row[i] for row in cells)))
        least += 3 + (min(width, _NARROWEST) if may_fold else width)
    for row in cells:
        made.add_row(*row)
    return _Fitting(made, _as_lines(title, columns, cells), least)


def _as_lines(title: str, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> Text:
    made = Text().append(plain(title), "bold")
    for row in rows:
        made.append("\n")
        for column, cell in zip(columns, row, strict=True):
            if cell.plain:
                made.append(f"\n{column}: " if column else "\n").append_text(cell)
    return made


class _Fitting:
    """A table; as lines if the window is too narrow for it."""

    def __init__(self, made: Table, lines: Text, least: int) -> None:
        self._made = made
        self._lines = lines
        self._least = least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show what fits."""
        yield self._made if options.max_width >= self._least else self._lines


def dump(document: Any, *, lines: bool = False) -> str:
    """Return a JSON document, in one line if it is one of several."""
    return json.dumps(document, indent=None if lines else 2)


def duration(seconds: float) -> str:
    """Return a duration for people."""
    sign, rest = "-" if seconds < 0 else "", abs(seconds)
    if rest < 60:  # noqa: PLR2004 - a minute
        return f"{sign}{rest:.1f} s"
    minutes, rest = divmod(int(rest), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return sign + " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def ago(seconds: float) -> str:
    """Return for people how long ago something was."""
    return f"{duration(seconds)} ago"


def until(left: float) -> str:
    """Return for people when something ends, or how long ago it ended."""
    return f"in {duration(left)}" if left >= 0 else ago(-left)


class _Plain(logging.Formatter):
    """Makes control characters visible, which a terminal would obey."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return lines_of(super().format(record))


class _JsonLines(logging.Formatter):
    """One JSON object for each record, so that stderr can be read by programs as well."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return dump({"log": {"level": record.levelname.lower(), "message": record.getMessage()}}, lines=True)


def operator() -> str:
    """Return who runs the program."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without this user
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def leave_trace(message: str, *values: object) -> None:
    """Log a warning that must not be lost, even if an imported application has disabled the loggers."""
    logger.disabled = False
    logger.handle(logger.makeRecord(logger.name, logging.WARNING, __file__, 0, message, values, None))


@contextlib.contextmanager
def printable() -> Iterator[None]:
    """Let everything be printed: characters that the encoding of stdout does not have are escaped, as on stderr."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # it cannot be written, or is closed
            stream.reconfigure(errors=before)


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Say in one sentence why the answer cannot be written."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise BrokenPipeError from None  # one with a number would be caught by click, which exits with 1
    except OSError as error:
        give_up_stdout()
        raise Problem("not_written", f"the answer cannot be written: {error.strerror}.", Exit.NOT_WRITTEN) from error


def give_up_stdout() -> None:
    """Discard further output; or Python would complain at its end that standard output cannot be written."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


@contextlib.contextmanager
def logging_to(log_file: str | None, *, as_json: bool) -> Iterator[None]:
    """Show the library's warnings on stderr while a command runs, and append them to a file if there is one."""
    shown = logging.StreamHandler()
    shown.setFormatter(_JsonLines() if as_json else _Plain("%(levelname)s %(message)s"))
    handlers: list[logging.Handler] = [shown]
    if log_file is not None:
        try:
            kept = logging.FileHandler(log_file, encoding="utf-8", delay=False)
        except OSError as error:
            raise usage(f"the log file {log_file} cannot be written: {error.strerror}.") from error
        kept.setFormatter(_Plain("%(asctime)s %(process)d %(levelname)s %(message)s"))
        handlers.append(kept)
    for handler in handlers:
        handler.setLevel(logging.WARNING)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
