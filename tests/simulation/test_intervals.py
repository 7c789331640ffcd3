"""Rows that must not overlap, under the simulator; and bugs in how they are kept apart, each of which it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking._core import intervals as core
from pynamo_locking._intervals import disjoint
from pynamo_locking._intervals.disjoint import Disjoint
from pynamo_locking._io.unit import Entry
from tests.simulation.engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import choices_of
from tests.simulation.run import Run
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.intervals import Intervals, Slot, Sweep

if TYPE_CHECKING:
    from collections.abc import Callable

CALM = Plan("intervals", parties=3, processes=3)
PLANS = [
    CALM,
    CALM.but(rounds=2),
    CALM.but(faults={Fault.LOST_RESPONSE: 1, Fault.LATE: 1}),
    CALM.but(faults={Fault.CRASH_AFTER: 1, Fault.PAUSE_BEFORE: 1}),
]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "intervals", Intervals)


def error_of(plan: Plan, seed: int) -> BaseException | None:
    """What a run ends with."""
    run = Run(plan, choices_of(plan, seed))
    sweep = Sweep(run.network)
    result = run.execute()
    sweep.check_stored(run.network.images(Slot.Meta.table_name))
    return sweep.violation or result.error


@pytest.mark.parametrize("plan", PLANS, ids=["calm", "rounds", "lost answers", "crashes"])
def test_no_two_rows_overlap(plan: Plan) -> None:
    """At any moment, among what is committed; and in the table, in the end."""
    for seed in range(12):
        error = error_of(plan, seed)
        assert error is None, f"seed {seed}: {error!r}"


def _not_bumped(patch: pytest.MonkeyPatch) -> None:
    """The guard is checked, and not counted."""
    save = Entry.save

    def save_rows(self: Entry, *arguments: Any, **options: Any) -> None:
        if self.table == Slot.Meta.table_name:
            save(self, *arguments, **options)

    patch.setattr(Entry, "save", save_rows)


def _not_checked(patch: pytest.MonkeyPatch) -> None:
    """The guard is written whatever it has become."""
    rely, save = Entry.rely, Entry.save

    def save_blindly(self: Entry, condition: Any, *, checks: bool) -> None:
        if self.table != Slot.Meta.table_name:
            self.is_read, checks = False, False
        save(self, condition, checks=checks)

    patch.setattr(Entry, "rely", lambda self: rely(self) if self.table == Slot.Meta.table_name else None)
    patch.setattr(Entry, "save", save_blindly)


def _not_settled(patch: pytest.MonkeyPatch) -> None:
    """What the guard names is taken to be in its place."""
    patch.setattr(Disjoint, "_settle", lambda self, touched: [])
    patch.setattr(disjoint, "MOST_TOUCHED", 0)


def _forgotten(patch: pytest.MonkeyPatch) -> None:
    """The guard names nothing."""
    patch.setattr(disjoint, "note_touched", lambda guard, touched: None)


def _closed(patch: pytest.MonkeyPatch) -> None:
    """Not half-open but open at both ends by one: rows that overlap by the last part of one do not count."""
    patch.setattr(core, "_is_below", lambda lower, upper: lower is None or upper is None or lower.at < upper.at - 1)


@pytest.mark.parametrize("plant", [_not_bumped, _not_checked, _not_settled, _forgotten, _closed])
def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    """What finds none of these finds nothing."""
    plant(monkeypatch)
    found = next((error for seed in range(300) if (error := error_of(CALM, seed)) is not None), None)
    assert str(found).startswith("Disjoint:"), found
