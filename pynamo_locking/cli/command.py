"""How a function becomes a command: the options that all have, its session, and its exit code."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from pynamo_locking.cli import terminal
from pynamo_locking.cli.session import Session
from pynamo_locking.cli.terminal import TOLD, Ending, Exit, Problem, Stopped, explain, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PROGRAM: Final = "pynamo-locking"

_SIGPIPE: Final = 13
_PANEL: Final = "Where, and how to print"
_JSON: Final = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, and errors as JSON.", rich_help_panel=_PANEL)
]


def _setting(option: str, metavar: str, help_: str) -> Any:
    return Annotated[str | None, typer.Option(option, metavar=metavar, help=help_, rich_help_panel=_PANEL)]


# The options of a command that stand for settings, by the names of these.

#: Of every command that talks to DynamoDB.
REACH: Final[Mapping[str, Any]] = {
    "config": _setting(
        "--config", "FILE", "TOML file with these settings in [tool.pynamo-locking]; none unless named."
    ),
    "region": _setting("--region", "REGION", "AWS Region."),
    "profile": _setting("--profile", "PROFILE", "Profile of the AWS configuration."),
    "endpoint": _setting("--endpoint", "URL", "URL of another DynamoDB, such as an emulator."),
    "log_file": _setting("--log-file", "FILE", "File to which warnings and broken locks are appended."),
}
LOCKS: Final[Mapping[str, Any]] = {
    "table": _setting("--table", "TABLE", "Table of the locks, or MODULE:CLASS."),
    **REACH,
}
_TRANSACTIONS: Final = "Table of transactions, or MODULE:CLASS."
TRANSACTIONS: Final[Mapping[str, Any]] = {
    "transaction_table": _setting("--table", "TABLE", _TRANSACTIONS),
    **REACH,
}
CALLS: Final[Mapping[str, Any]] = {
    "call_table": _setting("--table", "TABLE", "Table of idempotent calls, or MODULE:CLASS."),
    **REACH,
}
BOTH: Final[Mapping[str, Any]] = {
    "table": LOCKS["table"],
    "transaction_table": _setting("--transaction-table", "TABLE", _TRANSACTIONS),
    **REACH,
}


class _Plain:
    """Lets the help show ``--json`` and ``--help``, which take no value, rather than typer's ``--json <bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        parent: Any = super()
        parameters: list[Any] = parent.get_params(ctx)
        for each in parameters:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return parameters


class _Command(_Plain, TyperCommand):
    """A command."""


class _Group(_Plain, TyperGroup):
    """A group of commands."""


class Commands(typer.Typer):
    """A group of commands, all of which have options for these settings.

    The examples of a command are shown after the name of the program, and that of the group if it has one.
    """

    def __init__(
        self,
        help_: str,
        *,
        name: str | None = None,
        settings: Mapping[str, Any] = REACH,
        **options: Any,
    ) -> None:
        super().__init__(name=name, cls=_Group, help=help_, no_args_is_help=True, **options)
        self._settings = settings
        self._words = f"{PROGRAM} {name}" if name else PROGRAM

    def add(self, *examples: str, **options: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
        """Make a function that takes a `Session` first, and returns the exit code, a command.

        Its name is that of the command, its docstring the help, to which the examples are added. Options are typer's.
        """
        epilog = "\n\n".join(["[bold]Examples[/bold]", *(f"{self._words} {example}" for example in examples)])

        def add(function: Callable[..., int]) -> Callable[..., int]:
            name = function.__name__.rstrip("_")
            decorate = self.command(name, cls=_Command, help=_help(function), epilog=epilog, **options)
            decorate(_with_session(function, self._settings))
            return function

        return add


def _help(function: Callable[..., int]) -> str:
    """Return the docstring with one line for each paragraph: the width of the terminal folds them."""
    text = inspect.getdoc(function) or ""
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in text.split("\n\n"))


def _with_session(function: Callable[..., int], settings: Mapping[str, Any]) -> Callable[..., int]:
    """Return the function as typer takes it: with the options for the settings, and without the session."""

    def run_in_session(*, as_json: bool, **given: Any) -> int:
        chosen = {name: given.pop(name) for name in settings}
        try:
            with Session(chosen, as_json=as_json) as session:
                return function(session, **given)
        except TOLD as error:  # typer would end without a word
            return terminal.tell(explain(error), as_json=as_json)

    keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    parameters = [
        *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own),
        *(keyword(name, annotation=hint, default=None) for name, hint in settings.items()),
        keyword("as_json", annotation=_JSON, default=False),
    ]
    described: Any = run_in_session
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {each.name: each.annotation for each in parameters}
    return run_in_session


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run the program, say in one line what went wrong if something did, and return the exit code."""
    _fill_standard_streams()
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments  # not those of a program to be run
    try:
        with terminal.printable(), Ending():
            try:
                code = typer.main.get_command(app)(arguments, prog_name=PROGRAM, standalone_mode=False)
                return int(code or 0)
            except typer.TyperException as error:
                problem = _misused(error)
            except (typer.Abort, KeyboardInterrupt):
                problem = explain(KeyboardInterrupt())
            except Stopped as stopped:
                problem = explain(stopped)
            return terminal.tell(problem, as_json="--json" in own)
    except BrokenPipeError:  # the reader of our output, `head` for example, has ended
        terminal.give_up_stdout()
        return Exit.SIGNALLED + _SIGPIPE


def _fill_standard_streams() -> None:
    """Open those that were closed when the process was started; or a socket would get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends


def _misused(error: Any) -> Problem:
    message = error.format_message()
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else PROGRAM
    if type(error).__name__ == "NoArgsIsHelpError":  # the help was shown; or it is the message, without rich
        message = f"{message}\nName a command".lstrip()
    return usage(f"{message.rstrip('.')}. See {path} --help.")
