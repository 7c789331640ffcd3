"""Bugs of locks for asyncio: what becomes of a task that is cancelled, and who a task is."""

from __future__ import annotations

from typing import Any

from pynamo_locking._locks import acquire
from pynamo_locking_simulator._engine.runtime import SimulatedRuntime
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces


@plants(Plan("cancelled tasks"), "KeptPlace", "Quiet")
@replaces(acquire.TaskAcquisition, "abandon")
def abandoned_attempts_stay(_original: Any, self: Any) -> None:
    """A task that is cancelled on its way to a lock leaves its entry, or the lock, behind."""
    self.is_over = True


@plants(Plan("tasks", parties=1, processes=1), "OneHolder")
def tasks_are_one_party() -> Patches:
    """A task that asks for what another one in its loop holds is let in, as if it were the same."""
    return [(SimulatedRuntime, "party", lambda self: (self.scheduler.current,))]
