"""How a function becomes a command: the options that all have, its session, and its exit code."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from pynamo_locking.cli.session import NAMES, Session
from pynamo_locking.cli.terminal import EXPECTED, Problem, Stopped, explain, interrupted

if TYPE_CHECKING:
    from collections.abc import Callable


_PANEL: Final = "Where, and how to print"


def _plain(parameters: list[Any]) -> list[Any]:
    """Let the help show ``--json`` and ``--help``, which take no value, rather than typer's ``--json <bool>``."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def option(flag: str, metavar: str, help_: str, **more: Any) -> Any:
    """Return what a parameter needs to become an option that takes a value."""
    return typer.Option(flag, metavar=metavar, help=help_, **more)


def flag(names: str, help_: str) -> Any:
    """Return what a parameter needs to become an option without a value; names are separated by blanks."""
    return typer.Option(*names.split(), help=help_)


def argument(metavar: str, help_: str) -> Any:
    """Return what a parameter needs to become an argument."""
    return typer.Argument(metavar=metavar, help=help_)


def _option(flag: str, help_: str, metavar: str) -> Any:
    return Annotated[str | None, option(flag, metavar, help_, rich_help_panel=_PANEL)]


_JSON: Final = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, and errors as JSON.", rich_help_panel=_PANEL)
]
_REACH: Final[dict[str, Any]] = {
    "region": _option("--region", "AWS Region.", "REGION"),
    "profile": _option("--profile", "Profile of the AWS configuration.", "PROFILE"),
    "endpoint": _option("--endpoint", "URL of another DynamoDB, such as an emulator.", "URL"),
    "log_file": _option("--log-file", "File to which warnings and broken locks are appended.", "FILE"),
}
#: By the setting that it stands for.
_TABLES: Final[dict[str, Any]] = {
    "table": _option("--table", "Table of the locks, or MODULE:CLASS.", "TABLE"),
    "transaction_table": _option("--table", "Table of transactions, or MODULE:CLASS.", "TABLE"),
    "both": _option("--transaction-table", "Table of transactions, or MODULE:CLASS.", "TABLE"),
}


def group(help_: str, of: typer.Typer | None = None, name: str = "") -> typer.Typer:
    """Return a group of commands, of another group if one is given, else the program, which shells can complete."""
    made = typer.Typer(cls=_Group, help=help_, no_args_is_help=True, rich_markup_mode="rich", add_completion=of is None)
    if of is not None:
        of.add_typer(made, name=name)
    return made


def command(
    app: typer.Typer,
    function: Callable[..., int],
    *examples: str,
    tables: tuple[str, ...] = (),
    reach: bool = True,
    program: str = "pynamo-locking",
    **options: Any,
) -> None:
    """Make a function that takes a `Session` first, and returns the exit code, a command of a group.

    Its name is that of the command. Its docstring is the help, to which the examples are added, after the name of the
    program. `tables` has the settings that ``--table`` and ``--transaction-table`` stand for, and `reach` says
    whether the command talks to DynamoDB. Other options are typer's.
    """
    added: dict[str, Any] = {}
    for setting in tables:
        is_second = setting == "transaction_table" and "table" in tables
        added[setting] = _TABLES["both" if is_second else setting]
    if reach:
        added |= _REACH
    lines = [f"{program} {example}".replace("[", "\\[") for example in examples]
    name, epilog = function.__name__.rstrip("_"), "\n\n".join(["[bold]Examples[/bold]", *lines])
    app.command(name, cls=_Command, help=_help(function), epilog=epilog, **options)(_with_session(function, added))


def _help(function: Callable[..., int]) -> str:
    """Return the docstring with one line for each paragraph: the width of the terminal folds them."""
    paragraphs = _docstring(function).split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ").replace("[", "\\[") for paragraph in paragraphs)


def _docstring(function: Callable[..., int]) -> str:
    """Return the docstring, also where Python has dropped it (``-OO``)."""
    if function.__doc__ is not None:
        return inspect.cleandoc(function.__doc__)
    with contextlib.suppress(OSError):  # the source is not there
        [definition] = ast.parse(inspect.getsource(function)).body
        return ast.get_docstring(definition) or "" if isinstance(definition, ast.FunctionDef) else ""
    return ""


def _with_session(function: Callable[..., int], added: dict[str, Any]) -> Callable[..., int]:
    first, *names = inspect.signature(function).parameters
    written = types.SimpleNamespace(__annotations__={name: function.__annotations__[name] for name in names})
    hints = typing.get_type_hints(written, globalns=function.__globals__, include_extras=True)

    @functools.wraps(function)
    def wrapper(**given: Any) -> int:
        as_json = given.pop("as_json")
        chosen = {name: given.pop(name) for name in added}
        options = {name: chosen.get(name) for name in NAMES}
        try:
            with Session(options, as_json=as_json) as session:
                return function(session, **given)
        except EXPECTED as error:
            raise explain(error).told(as_json=as_json) from error
        except Problem as problem:
            problem.told(as_json=as_json)
            raise
        except (KeyboardInterrupt, Stopped) as stopped:  # typer would end without a word
            raise interrupted(stopped).told(as_json=as_json) from None

    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name != first
    ]
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=None)
        for name, hint in added.items()
    ]
    json_option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=_JSON, default=False)
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + [*extra, json_option]
    described: Any = wrapper
    del described.__wrapped__  # typer would look at what it wraps
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapper
