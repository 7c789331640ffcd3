"""Workloads of other modules, with DynamoDB's own transactions step by step: of two items one is written first.

That is how DynamoDB does it. Where a lock is in a row of its own, others may see the row before they see the item.
"""

from __future__ import annotations

from tests.simulation.models import Crate, Device
from tests.simulation.workloads.living import LivesOfDevice
from tests.simulation.workloads.locking import Both, Edit
from tests.simulation.workloads.mixing import DeletedTogether, LockedBatch, StockTransactions
from tests.simulation.workloads.modes import Downgrades
from tests.simulation.workloads.ranges import RangesOfItems
from tests.simulation.workloads.tasks import TasksBeside

#: As many actions as DynamoDB's transactions have.
_MOST = 100


class EditInSteps(Edit):
    """The lock in a row of its own, with a version and without."""

    name = "edit, in steps"
    items = ((Crate, "d"), (Device, "d"))
    most_actions = _MOST


class BothInSteps(Both):
    name = "locked_all, in steps"
    most_actions = _MOST


class LivesInSteps(LivesOfDevice):
    name = "lives, in steps"
    most_actions = _MOST


class LockedBatchInSteps(LockedBatch):
    name = "locked batch, in steps"
    most_actions = _MOST


class DeletedTogetherInSteps(DeletedTogether):
    name = "transact delete, in steps"
    most_actions = _MOST


class StockTransactionsInSteps(StockTransactions):
    name = "stock transaction, in steps"
    most_actions = _MOST


class DowngradesInSteps(Downgrades):
    name = "downgrade, in steps"
    most_actions = _MOST


class RangesOfItemsInSteps(RangesOfItems):
    name = "ranges of items, in steps"
    most_actions = _MOST


class TasksInSteps(TasksBeside):
    name = "tasks, in steps"
    most_actions = _MOST
