"""``python -m certify``: ask a DynamoDB for what the package promises."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from certify.command import PROGRAM, app
from pynamo_locking.cli import command

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run it with these arguments, and return the exit code."""
    return command.run(app, arguments, PROGRAM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
