"""Bugs on purpose: small mutations of the library, each of which the simulator has to find.

What finds none of these finds nothing. Each bug names the workload and the faults under which it shows, and the
checkers that have to notice it, so that no checker is there for decoration. `machinery` says what a bug is; the
other modules of this folder have the bugs themselves.
"""

from __future__ import annotations

import importlib
import pkgutil

from tests.simulation.planted.machinery import BUGS, Bug, checker_of, choices_of, runs_until_found, search

__all__ = ["BUGS", "Bug", "checker_of", "choices_of", "runs_until_found", "search"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")  # adds its bugs
