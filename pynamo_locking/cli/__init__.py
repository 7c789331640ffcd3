"""The command line, ``pynamo-locking``: for operators, for scripts, and for a first look.

It needs the extra ``cli``. The library does not need it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

#: As for a command that was used wrongly.
_USAGE: Final = 2

#: What the extra brings.
_EXTRA: Final = ("typer", "rich", *(() if sys.version_info >= (3, 11) else ("tomli",)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``pynamo-locking`` with these arguments, or with those of the process.

    Args:
        arguments: without the name of the program.

    Returns:
        The exit code; each is explained in the reference of the command line.
    """
    try:
        app = importlib.import_module("pynamo_locking.cli.app")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        sys.stderr.write(
            f"pynamo-locking: the command line needs {missing}, which is not installed. "
            f"Install what the extra `cli` brings: pip install {' '.join(_EXTRA)}\n"
        )
        return _USAGE
    code: int = app.main(sys.argv[1:] if arguments is None else list(arguments))
    return code
