"""Who does what. Every party of a run does the same, in rounds, and all of them at once."""

from __future__ import annotations

from typing import Final

from tests.simulation.workloads import (
    calls,
    doubt,
    intervals,
    jobs,
    leading,
    living,
    locked_reads,
    locking,
    mixing,
    modes,
    permits,
    querying,
    queues,
    ranges,
    resolving,
    sharing,
    stepping,
    tasks,
    transacting,
    unique,
    values,
    writing,
)
from tests.simulation.workloads.base import Workload, place

__all__ = ["WORKLOADS", "Workload", "place"]

_MODULES: Final = (
    locking,
    writing,
    sharing,
    living,
    values,
    mixing,
    doubt,
    transacting,
    modes,
    permits,
    ranges,
    resolving,
    queues,
    intervals,
    querying,
    locked_reads,
    tasks,
    leading,
    jobs,
    calls,
    unique,
)

WORKLOADS: Final[dict[str, type[Workload]]] = {
    each.name: each
    for module in _MODULES
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, Workload) and "name" in vars(each)
} | {each.name: each for each in stepping.IN_STEPS}
