"""How long a test is: short in `make test`, long in `make test-all`, which sets LONG=1 and runs what is marked so."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

IS_LONG: Final = bool(os.environ.get("LONG"))


def short_or_long(short: T, long: T) -> T:
    """Return what a test marked `long` takes here: a number of rounds, seconds, the cases to be tried."""
    return long if IS_LONG else short
