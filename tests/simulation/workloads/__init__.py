"""Who does what. Every party of a run does the same, in rounds, and all of them at once."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from tests.simulation.workloads import stepping
from tests.simulation.workloads.base import Workload, place

__all__ = ["WORKLOADS", "Workload", "place"]

#: All classes with a name, in whatever module of this folder.
WORKLOADS: Final[dict[str, type[Workload]]] = {
    each.name: each
    for module in pkgutil.iter_modules(__path__)
    for each in vars(importlib.import_module(f"{__name__}.{module.name}")).values()
    if isinstance(each, type) and issubclass(each, Workload) and "name" in vars(each)
} | {each.name: each for each in stepping.IN_STEPS}
