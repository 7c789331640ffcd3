"""What must be true of calls that may be made twice."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamo_locking.exceptions import PayloadMismatch
from tests.simulation.checkers.base import Checker
from tests.simulation.history import Told
from tests.simulation.models import Called, Coin
from tests.simulation.plans import SKEWS_S
from tests.simulation.workloads.base import place

if TYPE_CHECKING:
    from pynamo_locking_testing._engine.network import Change, Image, Request
    from tests.simulation.run import Run


class Stored(NamedTuple):
    """A result in the row of its key, and until when it counts."""

    result: dict[str, Any]
    until_ms: int


def _stored_in(image: Image | None) -> Stored | None:
    if image is None or "result" not in image:
        return None
    return Stored(json.loads(image["result"]["S"]), int(image["kept_until_ms"]["N"]))


class OneResult(Checker):
    """A key has one result as long as it is kept, and that of a commit is stored with its effect.

    Every caller gets a result that was stored, of the payload that it has passed, and that counted when it asked.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._stored: list[Stored] = []

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        for change in changes:
            if change.place.table != Called.Meta.table_name:
                continue
            before, after = _stored_in(change.before), _stored_in(change.after)
            if after is None or before == after:
                continue
            self._stored.append(after)
            skew_ms = int(max(SKEWS_S[self.run.plan.skew]) * 1000)
            over = before is None or before.until_ms <= self.run.scheduler.time_ms() + skew_ms
            self.require(over, f"{after} was stored over {before}")

    def at_end(self) -> None:
        """Compare the results with the effects, and with what the callers were told."""
        done = Counter(self.run.lives.shown(place(Coin, "a")))
        calls = {each.number: each for each in self.run.history.operations if each.kind == "call"}
        effects = {number: times for number, times in done.items() if number in calls}
        stored = {each.result["by"]: 1 for each in self._stored if each.result["way"] != "lock"}
        self.require(effects == stored, f"the effects were {effects}, and the results {self._stored}")
        for number, call in calls.items():
            asked_ms, payload, is_repeated, result = call.value
            if isinstance(call.error, PayloadMismatch):
                self.require({each.result["payload"] for each in self._stored} != {payload}, f"{call} was refused")
            if call.told is not Told.APPLIED:
                continue
            found = [each for each in self._stored if each.result == result]
            self.require(found, f"{call} returned {result}, which was not stored")
            self.require(result["payload"] == payload, f"{call} of {payload} returned {result}")
            self.require(is_repeated == (result["by"] != number), f"{call} returned {result}")
            self.require(not is_repeated or found[0].until_ms > asked_ms, f"{call} returned {found[0]}, at {asked_ms}")
