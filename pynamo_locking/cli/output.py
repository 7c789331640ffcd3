"""What is printed: tables for people, or one JSON document; and what goes into the log."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from pynamo_locking.cli.problems import usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Where the width of a terminal is not known, as in a pipe: wide enough that nothing is folded.
_WIDTH_OF_A_PIPE: Final = 200

logger: logging.Logger = logging.getLogger("pynamo_locking")


class _Console(Console):
    """Leaves it to the program what to do where nobody reads on."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console; colours only on a terminal (and unless ``NO_COLOR`` is set)."""
    stream = sys.stderr if stderr else sys.stdout
    is_terminal = stream.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = None if is_terminal else int(columns) if columns.isdecimal() else _WIDTH_OF_A_PIPE
    return _Console(stderr=stderr, width=width, highlight=False, force_terminal=is_terminal, emoji=False, markup=False)


def plain(text: object) -> str:
    """Return text from a table without characters that a terminal obeys."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in str(text))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table for people; numbers are set to the right."""
    made = Table(title=Text(title), title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        is_number = bool(rows) and all(isinstance(row[i], (int, float)) or row[i] == "" for row in rows)
        made.add_column(Text(column), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        made.add_row(*(each if isinstance(each, Text) else Text(plain(each)) for each in row))
    return made


def dump(document: Any, *, lines: bool = False) -> str:
    """Return a JSON document, in one line if it is one of several."""
    return json.dumps(document, indent=None if lines else 2)


def text_of_ms(epoch_ms: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(epoch_ms / 1000, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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


class _Plain(logging.Formatter):
    """Shows what a terminal would obey."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(plain(line) for line in super().format(record).splitlines())


class _JsonLines(logging.Formatter):
    """One JSON object for each record, so that stderr can be read by programs as well."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return dump({"log": {"level": record.levelname.lower(), "message": record.getMessage()}}, lines=True)


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
