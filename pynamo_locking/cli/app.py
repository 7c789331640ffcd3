"""The program: its commands."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pynamo_locking.cli import calls, command, locks, tables, transactions, unique
from pynamo_locking.cli import run as run_command
from pynamo_locking.cli.command import PROGRAM, Commands
from pynamo_locking.cli.session import Session  # noqa: TC001 - typer reads the signatures

if TYPE_CHECKING:
    from collections.abc import Sequence

app: Final = Commands(
    "First come, first served locks and transactions for DynamoDB: see who holds what, mend what is stuck, "
    "and run programs under a lock.",
    settings={},
)
app.registered_commands += run_command.app.registered_commands  # the first one in the help
for _module in (tables, locks, transactions, calls, unique):
    app.add_typer(_module.app)


def _show(is_asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if is_asked:
        typer.echo(f"{PROGRAM} {importlib.metadata.version(PROGRAM)}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", callback=_show, is_eager=True, help="Show the version.")]


@app.callback()
def _own_options(*, version: _Version = False) -> None:
    """Nothing is left to do when there is a command."""


@app.add("version", "version --json")
def version(session: Session) -> int:
    """Show the versions of this package and of what it stands on."""
    packages = {"pynamo_locking": PROGRAM, "pynamodb": "pynamodb", "botocore": "botocore"}
    document = {name: importlib.metadata.version(package) for name, package in packages.items()}
    document["python"] = platform.python_version()
    lines = [f"{name.replace('_', '-')} {number}" for name, number in document.items()]
    return session.show(document, *lines)


def main(arguments: Sequence[str]) -> int:
    """Run the program, and return the exit code."""
    return command.run(app, arguments)
