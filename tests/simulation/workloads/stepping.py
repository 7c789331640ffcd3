"""Workloads of other modules, with DynamoDB's own transactions step by step: of two items one is written first.

That is how DynamoDB does it. Where a lock is in a row of its own, others may see the row before they see the item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.models import Crate, Device
from tests.simulation.workloads.living import LivesOfDevice
from tests.simulation.workloads.locking import Both, Edit
from tests.simulation.workloads.mixing import DeletedTogether, LockedBatch
from tests.simulation.workloads.modes import Downgrades
from tests.simulation.workloads.ranges import EnforcedRanges, RangesOfItems
from tests.simulation.workloads.tasks import TasksBeside

if TYPE_CHECKING:
    from tests.simulation.workloads.base import Workload

#: As many actions as DynamoDB's transactions have.
_MOST: Final = 100


def _in_steps(workload: type[Workload], name: str, **more: Any) -> type[Workload]:
    members = {"name": f"{name}, in steps", "most_actions": _MOST, **more}
    return type(f"{workload.__name__}InSteps", (workload,), members)


IN_STEPS: Final = (
    _in_steps(Edit, "edit", items=((Crate, "d"), (Device, "d"))),  # two tables
    _in_steps(Both, "locked_all"),
    _in_steps(LivesOfDevice, "lives"),
    _in_steps(LockedBatch, "locked batch"),
    _in_steps(DeletedTogether, "transact delete"),
    _in_steps(Downgrades, "downgrade"),
    _in_steps(RangesOfItems, "ranges of items"),
    _in_steps(EnforcedRanges, "enforced ranges"),
    _in_steps(TasksBeside, "tasks"),
)
