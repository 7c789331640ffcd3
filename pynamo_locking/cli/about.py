"""``version``, and ``--version``."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pynamo_locking.cli.command import command

if TYPE_CHECKING:
    from pynamo_locking.cli.session import Session


_OWN: Final = "pynamo-locking"


def _show(is_asked: bool) -> None:  # noqa: FBT001 - typer calls it so
    if is_asked:
        typer.echo(f"{_OWN} {importlib.metadata.version(_OWN)}")
        raise typer.Exit


_Version = Annotated[bool, typer.Option("--version", callback=_show, is_eager=True, help="Show the version.")]


def attach(app: typer.Typer) -> None:
    """Add the command, and the option of the program itself."""

    @app.callback()
    def _own_options(*, version: _Version = False) -> None:
        """Nothing is left to do when there is a command."""

    command(app, version, "version", "version --json", reach=False)


def version(session: Session) -> int:
    """Show the versions of this package and of what it stands on."""
    packages = {"pynamo_locking": _OWN, "pynamodb": "pynamodb", "botocore": "botocore"}
    document = {name: importlib.metadata.version(package) for name, package in packages.items()}
    document["python"] = platform.python_version()
    lines = [f"{name.replace('_', '-')} {number}" for name, number in document.items()]
    session.show(document, lambda console: console.print("\n".join(lines)))
    return 0
