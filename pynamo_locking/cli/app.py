"""The program: its commands, and how errors end it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pynamo_locking.cli import command, locks, tables, terminal, transactions, unique
from pynamo_locking.cli import run as run_command
from pynamo_locking.cli.terminal import EXPECTED, Ending, Exit, Problem, Stopped, explain, interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamo_locking.cli.session import Session


#: Of click, whichever copy of it this typer has.
_CLICK_ERROR: Final[Any] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_SIGPIPE: Final = 13

_OWN: Final = "pynamo-locking"

#: In the order of the help.
_COMMANDS: Final = (tables, locks, transactions, unique, run_command)


def _show(is_asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if is_asked:
        typer.echo(f"{_OWN} {importlib.metadata.version(_OWN)}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", callback=_show, is_eager=True, help="Show the version.")]


def make_app(commands: Sequence[Any] = _COMMANDS) -> typer.Typer:
    """Return the program, with the commands of these modules."""
    app = command.group(
        "First come, first served locks and transactions for DynamoDB: see who holds what, mend what is stuck, "
        "and run programs under a lock."
    )
    for module in commands:
        module.attach(app)

    @app.callback()
    def _own_options(*, version: _Version = False) -> None:
        """Nothing is left to do when there is a command."""

    command.command(app, version, "version", "version --json", reach=False)
    return app


def version(session: Session) -> int:
    """Show the versions of this package and of what it stands on."""
    packages = {"pynamo_locking": _OWN, "pynamodb": "pynamodb", "botocore": "botocore"}
    document = {name: importlib.metadata.version(package) for name, package in packages.items()}
    document["python"] = platform.python_version()
    lines = [f"{name.replace('_', '-')} {number}" for name, number in document.items()]
    session.show(document, lambda console: console.print("\n".join(lines)))
    return 0


def run(arguments: Sequence[str], *, program: str = _OWN, commands: Sequence[Any] = _COMMANDS) -> int:
    """Run the program, say in one line what went wrong if something did, and return the exit code."""
    _fill_standard_streams()
    try:
        with terminal.printable(), Ending():
            return _run(arguments, program, commands)
    except BrokenPipeError:  # the reader of our output, `head` for example, has ended
        terminal.give_up_stdout()
        return Exit.SIGNALLED + _SIGPIPE


def _fill_standard_streams() -> None:
    """Open those that were closed when the process was started; or a socket would get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the process ends


def _run(arguments: Sequence[str], program: str, commands: Sequence[Any]) -> int:
    as_json = "--json" in _own(arguments)
    try:
        result: Any = typer.main.get_command(make_app(commands)).main(
            args=list(arguments), prog_name=program, standalone_mode=False
        )
        return int(result or 0)
    except Problem as problem:
        return _tell(problem, as_json=as_json if problem.as_json is None else problem.as_json)
    except EXPECTED as error:
        return _tell(explain(error), as_json=as_json)
    except _CLICK_ERROR as error:
        return _tell(_misused(error), as_json=as_json)
    except (KeyboardInterrupt, typer.Abort, Stopped) as stopped:
        return _tell(interrupted(stopped), as_json=as_json)


def _own(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments before those of a program to be run."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _misused(error: Any) -> Problem:
    message = error.format_message()
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else _OWN
    if type(error).__name__ == "NoArgsIsHelpError":  # the help was shown; or it is the message, in an older click
        message = f"{message}\nName a command".lstrip()
    return Problem("usage", f"{message.rstrip('.')}. See {path} --help.", Exit.USAGE)


def _tell(problem: Problem, *, as_json: bool) -> int:
    if as_json:
        sys.stderr.write(terminal.dump(problem.document(), lines=True) + "\n")
    else:
        message = f"{_OWN}: {terminal.lines_of(problem.message)}"
        terminal.console(stderr=True).print(message, soft_wrap=True)
    return problem.exit_code
