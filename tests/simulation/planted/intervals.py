"""Bugs in what keeps intervals apart, and in what guards queries."""

from __future__ import annotations

from typing import Any

from pynamodb.expressions.update import SetAction

from pynamo_locking._intervals import disjoint_writes, interval_mixin, intervals
from pynamo_locking._intervals.disjoint_writes import ConflictRow, StagedInserts
from pynamo_locking._intervals.intervals import IntervalAttributes
from pynamo_locking._models.mixins import VersionedMixin
from pynamo_locking._transactions.item import TransactionItem
from pynamo_locking._transactions.items import TransactionItems
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.models import Booking
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces

_INTERVALS = Plan("intervals", parties=3, processes=3)
_QUERIES = Plan("guarded queries", parties=3, processes=3)


def _is_guard(member: Any) -> bool:
    return bool(member.table != Booking.Meta.table_name)


# Intervals


@plants(_INTERVALS, "Disjoint")
@replaces(TransactionItem, "save")
def guard_not_counted(save: Any, self: Any, *arguments: Any, **options: Any) -> None:
    """The guard of a hash key is checked, and not counted."""
    if not _is_guard(self):
        save(self, *arguments, **options)


@plants(_INTERVALS, "Disjoint")
def guard_not_checked() -> Patches:
    """The guard is written whatever it has become."""
    rely, save = TransactionItem.rely, TransactionItem.save

    def save_blindly(self: Any, condition: Any, *, checks: bool) -> None:
        if _is_guard(self):
            self.is_read, checks = False, False
        save(self, condition, checks=checks)

    return [
        (TransactionItem, "rely", lambda self: None if _is_guard(self) else rely(self)),
        (TransactionItem, "save", save_blindly),
    ]


@plants(_INTERVALS, "Disjoint")
def touched_items_not_settled() -> Patches:
    """What the guard names is taken to be in its place."""
    return [(StagedInserts, "_settle", lambda self, touched: []), (disjoint_writes, "MOST_TOUCHED", 0)]


@plants(_INTERVALS, "Disjoint")
def touched_items_not_named() -> Patches:
    """The guard names nothing."""
    return [(disjoint_writes, "note_touched", lambda guard, touched: None)]


@plants(_INTERVALS.but(workload="open intervals"), "Disjoint", first_seed=31)
@replaces(IntervalAttributes, "span_in")
def open_ends_not_seen(span_in: Any, self: Any, image: Any) -> Any:
    """A stored item without an end counts as one without an interval."""
    return span_in(self, image) if all(name in image for name in self.stored) else None


@plants(_INTERVALS.but(workload="open intervals"), "Disjoint")
def open_ends_written_unseen() -> Patches:
    """An item that loses its end is written without a look at what comes after it."""
    ends_in = disjoint_writes.ends_in

    def ends_set_in(axis: Any, actions: Any) -> Any:
        return [action for action in ends_in(axis, actions) if isinstance(action, SetAction)]

    return [(interval_mixin, "ends_in", ends_set_in)]


@plants(_INTERVALS, "Disjoint")
@replaces(intervals, "_is_below")
def last_part_not_looked_at(_original: Any, lower: Any, upper: Any) -> bool:
    """Items that overlap by the last part of one do not count."""
    return lower is None or upper is None or lower.at < upper.at - 1


def _none_is_done(is_done: Any) -> Any:
    def forgetful(self: Any, place: Any, found: Any) -> Any:
        disjoint_writes.forget_unsure(place.row)
        return is_done(self, place, found)

    return forgetful


@plants(_INTERVALS.but(faults={Fault.FAILED_AFTER: 6}), "Truth")
def own_items_in_the_way() -> Patches:
    """Who inserts again what may be stored already is refused by that."""
    return [(StagedInserts, "_is_done", _none_is_done(StagedInserts._is_done))]


class _Never(Exception):  # noqa: N818 - a stand-in
    pass


@plants(Plan("intervals under locks", parties=3, processes=3, faults={Fault.PAUSE_AFTER: 1}), "Truth")
def done_under_a_lost_lock() -> Patches:
    """That the lock is lost is told as a refusal, though the items are stored: the guards decide, and not the lock."""
    return [(disjoint_writes, "LockLost", _Never)]


@plants(_INTERVALS.but(workload="intervals in turns"), "Disjoint", limit=300, first_seed=230)
@replaces(VersionedMixin, "update")
def names_forgotten_in_turn(update: Any, self: Any, actions: Any, *arguments: Any, **options: Any) -> Any:
    """Who increments the guard in its turn removes the names of items that are perhaps not in their places."""
    if isinstance(self, ConflictRow):
        actions = [type(self).touched.set([])]
    return update(self, actions, *arguments, **options)


@plants(_INTERVALS.but(workload="intervals in transactions"), "Disjoint")
def staged_items_not_seen() -> Patches:
    """A transaction does not see the items that it has inserted itself."""
    return [(StagedInserts, "_written", lambda self: [])]


@plants(_INTERVALS.but(workload="intervals in transactions"), "Disjoint", limit=300, first_seed=14)
@replaces(StagedInserts, "check_room")
def earlier_calls_not_named(look: Any, self: Any) -> None:
    """The guard names the items of the last call of a transaction alone."""
    look(self)
    self._touched = [each for each in self._touched if not self._is_ours(each.key(self._axis))]


# Queries


@plants(_QUERIES, "Limited")
def queries_without_guard() -> Patches:
    """A query does not check that nothing has appeared."""
    return [(TransactionItems, "rely_on_guard", lambda self, model, hash_key: None)]


@plants(_QUERIES, "Limited")
def creations_not_counted() -> Patches:
    """Who creates or deletes an item does not count the guard of its hash key."""
    return [(TransactionItems, "count_in_guard", lambda self, member: None)]


@plants(_QUERIES, "Limited")
def named_items_not_settled() -> Patches:
    """What the guard of a query names is taken to be in its place."""
    return [(TransactionItems, "_settle", lambda self, model, hash_key, guard: None)]
