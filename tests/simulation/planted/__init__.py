"""Bugs on purpose: small mistakes in the package, each of which the simulator has to find.

What finds none of these finds nothing. Each bug names the workload and the faults under which it shows, and the
checkers that have to notice it, so that no checker is there for decoration. `machinery` says what a bug is; the
other modules of this folder have the bugs themselves.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.planted import (
    groups,
    handing_over,
    locks,
    modes,
    outcomes,
    recipes,
    statements,
    transactions,
    values,
)
from tests.simulation.planted.machinery import Bug, checker_of, choices_of, runs_until_found, search

__all__ = ["BUGS", "THEMES", "Bug", "checker_of", "choices_of", "runs_until_found", "search"]

THEMES: Final = (
    locks.BUGS,
    handing_over.BUGS,
    modes.BUGS,
    outcomes.BUGS,
    transactions.BUGS,
    groups.BUGS,
    statements.BUGS,
    values.BUGS,
    recipes.BUGS,
)
BUGS: Final = tuple(bug for theme in THEMES for bug in theme)
