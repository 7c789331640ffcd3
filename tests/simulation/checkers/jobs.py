"""What must be true of a job that is to succeed once in a period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.checkers.base import Checker, queue_of
from tests.simulation.history import Told
from tests.simulation.workloads.jobs import Periods

if TYPE_CHECKING:
    from pynamo_locking.recipes import RunRecord
    from pynamo_locking_testing._engine.network import Change, Request
    from tests.simulation.run import Run

#: By how much a wall clock may be behind in a plan, and something to spare.
_BEHIND_S = 7300


class OneSuccess(Checker):
    """A success is noted once for each period, in the order of periods, by the holder, after its work has ended well.

    It stays for as long as it counts, and runs begin as far apart as was asked for.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._noted: list[RunRecord] = []

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Look at each success that is noted, and at what becomes of the row."""
        workload = self.run.workload
        if not isinstance(workload, Periods):
            return
        for change in changes:
            before, after = queue_of(change.before), queue_of(change.after)
            if after.success != before.success:
                self.require(after.success is not None, f"{request.actor} has removed the success of {change.place}")
                assert after.success is not None
                holders = {entry.ticket for entry in before.holders}
                self._require_right(after.success, holders, workload, f"{request.actor} has noted {after.success}")
            if after.success is not None:
                image: Any = change.after
                kept_s = int(image["lock"]["M"]["success"]["M"]["kept_s"]["N"])
                expires_s = image.get("expires_s", {}).get("N")
                self.require(expires_s, f"{request.actor} has noted {after.success} in a row without a time of expiry")
                self.require(
                    int(expires_s) - after.success.ended_ms / 1000 > kept_s - _BEHIND_S,
                    f"{request.actor} lets {change.place} expire before the end of its period",
                )

    def _require_right(self, success: RunRecord, holders: set[int], workload: Periods, what: str) -> None:
        self.require(success.ticket in holders, f"{what}, and does not hold the lock: {holders}")
        self.require(success.ticket in workload.ended, f"{what}, and its work has not ended well")
        for other in self._noted:
            self.require(other.period_ms < success.period_ms, f"{what} after {other}")
            apart_s = (success.began_ms - other.began_ms) / 1000
            self.require(not workload.at_least_s or apart_s >= workload.at_least_s, f"{what} too soon after {other}")
        self._noted.append(success)

    def at_end(self) -> None:
        """Compare what the callers were told: a success is noted if they were told so, and not if it was refused."""
        noted = {success.ticket for success in self._noted}
        for done in self.run.history.takings if isinstance(self.run.workload, Periods) else ():
            if done.kind == "release" and done.value and done.told is not Told.UNKNOWN and done.ticket is not None:
                self.require(
                    (done.ticket in noted) is (done.told is Told.APPLIED) or done.told is Told.NOTHING,
                    f"{done.actor} was told {done.told} of the success of its run {done.ticket}",
                )
