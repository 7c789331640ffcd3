"""Bugs of leaders: who leads for too long, or in the term of another one."""

from __future__ import annotations

import math
from typing import Any

from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking._recipes.leader_election import LeaderTerm
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces


@plants(Plan("leaders", rounds=2), "Terms")
def work_that_hangs_is_renewed() -> Patches:
    """The heartbeat of a leader goes on while its work shows no progress."""
    return [(HeldEntry, "needs_progress", property(lambda self: False, lambda self, value: None))]


@plants(Plan("leaders"), "Terms")
def the_longest_term_is_forgotten() -> Patches:
    """A leader leads for as long as its work goes on, whatever `max_hold` says."""
    return [(HeldEntry, "ends_at", property(lambda self: math.inf, lambda self, value: None))]


@plants(Plan("leaders", parties=3, processes=3, faults={Fault.PAUSE_AFTER: 2}), "OneHolder", "NoEarlyEviction")
def a_leader_beyond_its_lease() -> Patches:
    """Who was not told of a loss believes to lead, also after its lease."""
    return [(LeaderTerm, "is_leader", property(lambda self: not self._wish and not self.reason))]


@plants(Plan("leaders", parties=3, processes=3, faults={Fault.PAUSE_AFTER: 2}, is_fine=True), "Terms")
def work_that_goes_on_by_habit() -> Patches:
    """A sign of the work passes until the process has heard that the term is over, also after a pause."""
    return [(LeaderTerm, "progress", lambda self: None if not self.reason else self._lasting())]


@plants(Plan("leaders", parties=3, processes=3), "Terms")
@replaces(LeaderTerm, "__init__")
def one_term_for_all(init: Any, self: Any, lock: Any, tell: Any) -> None:
    """Each leader names its term after the first ticket there was."""
    init(self, lock, tell)
    self.ticket = lock._handle.entry.possession.since


@plants(Plan("leaders", parties=3, processes=3), "Terms")
def writes_that_name_no_term() -> Patches:
    """A leader's transaction does not check that its term lasts."""
    return [(LeaderTerm, "add_check_to", lambda self, transaction: None)]
