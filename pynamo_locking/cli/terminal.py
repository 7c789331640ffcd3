"""What a command prints and how it ends: output, problems, exit codes, signals."""

from __future__ import annotations

import contextlib
import enum
import getpass
import io
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
)
from botocore.exceptions import ConnectionError as NoConnectionError
from pynamodb.exceptions import PynamoDBException
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typing_extensions import Self, override

from pynamo_locking._facade import NO_TABLE, logger, plain
from pynamo_locking.exceptions import ConfigurationError, InvalidInput, LockingError, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from rich.console import ConsoleOptions, JustifyMethod, RenderableType, RenderResult


class Exit(enum.IntEnum):
    """The exit codes of the program's own; those above 64 are the ones of ``sysexits.h``."""

    OK = 0
    NO = 1  # the answer is no: something is wrong with a table, there is no such ticket, ...
    USAGE = 2
    FAILED = 69  # EX_UNAVAILABLE: no answer from DynamoDB, or a refusal
    LOST = 70  # `run`: the lock was lost, and the program was ended for that or ended with 0 by itself
    NOT_WRITTEN = 74  # EX_IOERR: standard output cannot be written
    NOT_OBTAINED = 75  # EX_TEMPFAIL. `run`: not our turn in time; the command was not started
    NOT_PERMITTED = 77  # EX_NOPERM: no credentials, or not the right ones
    CONFIGURATION = 78  # EX_CONFIG: a table is missing or another one than expected
    NOT_EXECUTABLE = 126  # `run`: as a shell says it
    NOT_FOUND = 127  # `run`: as a shell says it
    SIGNALLED = 128  # plus the number of the signal


class Problem(Exception):  # noqa: N818 - what the person is told; mostly not an error of the program
    """Something to tell the person, after which the program ends.

    `kind` is a stable word for scripts, and `facts` are for them as well. The message says in a sentence or two what
    happened, and what to do about it.
    """

    def __init__(self, kind: str, message: str, exit_code: int, **facts: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.exit_code: int = int(exit_code)
        self.facts = facts

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` shows."""
        return {"error": {"kind": self.kind, "message": self.message, "exit_code": self.exit_code, **self.facts}}


def usage(message: str) -> Problem:
    """Return the problem of a command that was used wrongly."""
    return Problem("usage", message, Exit.USAGE)


#: Errors that have a meaning here. Any other error is a bug, and keeps its traceback.
EXPECTED: Final[tuple[type[Exception], ...]] = (LockingError, PynamoDBException, BotoCoreError, ClientError)

_CREDENTIALS: Final = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, SSOError)
_NO_ACCESS: Final = {
    "AccessDeniedException": "access_denied",
    "AccessDenied": "access_denied",
    "ExpiredTokenException": "bad_credentials",
    "ExpiredToken": "bad_credentials",
    "IncompleteSignature": "bad_credentials",
    "InvalidClientTokenId": "bad_credentials",
    "InvalidSignatureException": "bad_credentials",
    "MissingAuthenticationToken": "bad_credentials",
    "UnrecognizedClientException": "bad_credentials",
}
_UNREACHABLE: Final = (HTTPClientError, NoConnectionError)


def explain(error: BaseException) -> Problem:
    """Return what to tell of an error of the library, of PynamoDB or of botocore, and of a signal."""
    if isinstance(error, Problem):
        return error
    if not isinstance(error, Exception):  # Ctrl-C, or another signal
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        return Problem("interrupted", "interrupted", Exit.SIGNALLED + number)
    for each in _chain(error):
        if problem := _of_settings(each) or _of_answer(each):
            return problem
    if isinstance(error, OutcomeUnknown):
        return Problem("outcome_unknown", str(error), Exit.FAILED)
    if isinstance(error, (ConfigurationError, InvalidInput)):
        return Problem("configuration", str(error), Exit.CONFIGURATION)
    return Problem("failed", str(error), Exit.FAILED)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what is behind it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__


def _of_settings(error: BaseException) -> Problem | None:
    """Return the problem of a request that was never sent."""
    if isinstance(error, _CREDENTIALS):
        return Problem(
            "no_credentials",
            f"there are no usable AWS credentials ({_first_line(error)}). Name a profile with --profile or "
            f"PYNAMO_LOCKING_PROFILE, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for an emulator of "
            f"DynamoDB any values do.",
            Exit.NOT_PERMITTED,
        )
    if isinstance(error, ProfileNotFound):
        return Problem(
            "no_credentials", f"{_first_line(error)}. See `aws configure list-profiles`.", Exit.NOT_PERMITTED
        )
    if isinstance(error, (NoRegionError, InvalidRegionError)):
        return usage(f"no usable AWS Region ({_first_line(error)}). Name one with --region or PYNAMO_LOCKING_REGION.")
    return None


def _of_answer(error: BaseException) -> Problem | None:
    """Return the problem of a request that was refused, or got no response."""
    code, message = _code_and_message(error)
    if code == NO_TABLE:
        said = str(error) if isinstance(error, LockingError) else message
        return Problem(
            "table_missing",
            f"there is no such table here ({said}). Check its name, --region and --endpoint, or create it: "
            f"pynamo-locking tables create.",
            Exit.CONFIGURATION,
        )
    if code in _NO_ACCESS:
        return Problem(_NO_ACCESS[code], f"DynamoDB said {code}: {message}", Exit.NOT_PERMITTED)
    if isinstance(error, _UNREACHABLE):
        return Problem("unreachable", f"no answer from DynamoDB: {_first_line(error)}", Exit.FAILED)
    return None


def answer_behind(error: BaseException) -> tuple[str, str]:
    """Return the code and the message of the answer behind an error; no code, and its text, where there was none."""
    return next((found for found in map(_code_and_message, _chain(error)) if found[0]), ("", str(error)))


def _code_and_message(error: BaseException) -> tuple[str, str]:
    response = getattr(error, "response", None) or {}
    found = response.get("Error", {}) if isinstance(response, dict) else {}
    return str(found.get("Code", "")), str(found.get("Message", "")) or str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


#: Without a terminal, as in a pipe: so wide that no value is folded or cut.
_WIDTH_OF_A_PIPE: Final = 1_000_000

#: A column of a table may become as narrow as that, but only if its values may be folded.
_NARROWEST: Final = 12


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


def tell(problem: Problem, *, as_json: bool) -> int:
    """Print on standard error what the person is told; return the exit code."""
    if as_json:
        report(problem.document())
    else:
        say(problem.message)
    return problem.exit_code


def report(document: Mapping[str, Any]) -> None:
    """Print a JSON document on standard error, in one line."""
    sys.stderr.write(f"{dump(document, lines=True)}\n")


def say(message: str) -> None:
    """Print a message on standard error, after the name of the program."""
    console(stderr=True).print(f"pynamo-locking: {lines_of(message)}", soft_wrap=True)


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


@dataclass(frozen=True)
class _Fitting:
    """A table; as lines if the window is too narrow for it."""

    table: Table
    lines: Text
    least: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table if options.max_width >= self.least else self.lines


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


#: What a duration may end with.
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds_of(text: str, option: str) -> int:
    """Return the seconds of a text such as ``15m`` or ``1d``."""
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None:
        raise usage(f"{option} takes a whole number and one of s, m, h, d and w, as in 10m or 1d; not {text!r}.")
    return int(found[1]) * _UNITS[found[2]]


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


def leave_trace(message: str) -> None:
    """Log a warning that must not be lost, even if an imported application has disabled the loggers."""
    logger.disabled = False
    logger.handle(logger.makeRecord(logger.name, logging.WARNING, __file__, 0, message, (), None))


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


# Signals that end a command: it ends as after Ctrl-C, restores the terminal, and its exit code names the signal.


#: A session, a container or a person ends a program by them. Ctrl-C is Python's own.
_ENDING: Final = ("SIGTERM", "SIGHUP")


class Stopped(BaseException):
    """The signal of this number arrived. Not an `Exception`, so that no handler of errors stops it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


#: What ends a command with a word to the person.
TOLD: Final[tuple[type[BaseException], ...]] = (Problem, *EXPECTED, KeyboardInterrupt, Stopped)

_is_stopping = False


def stop(number: int) -> None:
    """Raise `Stopped` for the first signal of a block. Later ones are dropped: nothing disturbs the way out."""
    global _is_stopping  # noqa: PLW0603 - as signals are
    if not _is_stopping:
        _is_stopping = True
        raise Stopped(number)


class Handlers:
    """Handlers of signals for a block; its end restores those from before."""

    def __init__(self) -> None:
        global _is_stopping  # noqa: PLW0603
        self._before: dict[int, Any] = {}
        _is_stopping = False

    def handle(self, number: int, handler: Callable[[int, FrameType | None], object]) -> None:
        """Call the handler when the signal arrives."""
        self._before[number] = signal.signal(number, handler)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Ending(Handlers):
    """Raises `Stopped` for signals that would end the process at once; in the main thread only."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in _ENDING:
                number = getattr(signal, name, None)
                if (
                    number is not None and signal.getsignal(number) is signal.SIG_DFL
                ):  # else another handler's, or ignored, as by `nohup`
                    self.handle(number, lambda number, _: stop(number))
        return self
