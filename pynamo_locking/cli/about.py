"""``version``."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING

from pynamo_locking.cli.command import command

if TYPE_CHECKING:
    import typer

    from pynamo_locking.cli.session import Session


def attach(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "version",
        version,
        "pynamo-locking version",
        "pynamo-locking version --json",
        reach=False,
    )


def version(session: Session) -> int:
    """Show the versions of this package and of what it stands on."""
    packages = {"pynamo_locking": "pynamo-locking", "pynamodb": "pynamodb", "botocore": "botocore"}
    document = {name: importlib.metadata.version(package) for name, package in packages.items()}
    document["python"] = platform.python_version()
    lines = [f"{name.replace('_', '-')} {number}" for name, number in document.items()]
    session.show(document, lambda console: console.print("\n".join(lines)))
    return 0
