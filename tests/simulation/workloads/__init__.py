"""Who does what. Every party of a run does the same, in rounds, and all of them at once."""

from __future__ import annotations

from typing import Final

from tests.simulation.workloads import doubt, living, locking, mixing, sharing, transacting, values, writing
from tests.simulation.workloads.base import Workload, place

__all__ = ["WORKLOADS", "Workload", "place"]

WORKLOADS: Final[dict[str, type[Workload]]] = {
    each.name: each
    for module in (locking, writing, sharing, living, values, mixing, doubt, transacting)
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, Workload) and "name" in vars(each)
}
