"""Bugs in what may be held together: readers, semaphores, ranges, and the way from writer to reader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pynamodb.exceptions import PutError

from pynamo_locking._core import lock_modes, lock_queue
from pynamo_locking._core.lock_modes import SHARED, LockMode
from pynamo_locking._core.lock_queue import LockState
from pynamo_locking._io import lock_requests, protocol
from pynamo_locking._io.protocol import Clause
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking._models.attributes import PlacedMixin
from pynamo_locking._models.writes import GuardedMixin
from pynamo_locking._writes.send import ForeignLockCheck, Refusal
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants, replaces
from tests.simulation.planted.outcomes import item_from_before_our_turn

# Ranges


def _only_holders_ahead() -> Patches:
    ahead_of = LockState.ahead_of

    def held_ahead_of(self: Any, entry: Any) -> Any:
        holders = self.holders
        return tuple(other for other in ahead_of(self, entry) if other in holders)

    return [(LockState, "ahead_of", held_ahead_of)]


@plants(Plan("adjacent ranges"), "Unhindered")
@replaces(LockMode, "overlaps")
def closed_ranges(_original: Any, self: LockMode, other: LockMode) -> bool:
    """The end of a range is taken for a part of it, so that ranges which only touch wait for each other."""
    ends = ((self.lower, other.upper), (other.lower, self.upper))
    return all(lock_modes._is_before(lower, upper) or lower == upper for lower, upper in ends)


@plants(Plan("named ranges"), "OneHolder")
def ranges_by_their_beginning() -> Patches:
    """Two ranges conflict only if they begin at the same point."""
    return [(LockMode, "overlaps", lambda self, other: self.lower == other.lower)]


@plants(Plan("named ranges", parties=4), "OneHolder", "Fifo")
@replaces(LockMode, "overlaps")
def open_ends_are_empty(overlaps: Any, self: LockMode, other: LockMode) -> bool:
    """A range with an open end has nothing in common with any other."""
    return None not in (self.lower, self.upper, other.lower, other.upper) and overlaps(self, other)


@plants(Plan("ranges of items", faults={Fault.PAUSE_BEFORE: 1}), "Fence")
def items_outside_of_ranges() -> Patches:
    """An item in a range that we hold is written as if we did not hold it."""
    return [(PlacedMixin, "_range_entry", lambda self, extents: None)]


@plants(Plan("items in ranges", faults={Fault.PAUSE_BEFORE: 1}), "Fence", limit=200)
def ranges_behind_locks_of_items() -> Patches:
    """An item whose own lock we hold, too, is written as if we did not hold the range around it."""
    entries = GuardedMixin._own_entries_elsewhere
    return [(GuardedMixin, "_own_entries_elsewhere", lambda self, extents: entries(self, extents)[:1])]


@plants(Plan("enforced ranges"), "Fence")
def writers_meet_no_ranges() -> Patches:
    """A writer without a lock does not check the ranges of others."""
    return [(GuardedMixin, "_foreign_checks", lambda self, held_entries, extents: [])]


@plants(Plan("enforced ranges", parties=3, processes=3), "Fence")
@replaces(GuardedMixin, "_foreign_checks")
def ranges_looked_at_before(foreign_checks: Any, self: Any, held_entries: Any, extents: Any) -> list[Any]:
    """A writer looks at the ranges of others, then writes without the check, as if no holder could come meanwhile."""
    for foreign_check in foreign_checks(self, held_entries, extents):
        work: Any = SimpleNamespace(kind=PutError, is_named=False)
        foreign_check.clear(Refusal(work, lock_requests.read(foreign_check.row, consistent=True), ValueError()))
    return []


@plants(Plan("enforced ranges", parties=3, processes=3), "Fence")
@replaces(ForeignLockCheck, "_in_the_way")
def only_holders_are_met(in_the_way: Any, self: Any, state: LockState) -> Any:
    """A writer looks only at who holds a range, and not at who waits for it and may hold it by then."""
    return [entry for entry in in_the_way(self, state) if entry in state.holders]


@plants(Plan("named ranges", parties=3), "Fifo")
def small_ranges_overtake() -> Patches:
    """A range waits for those who hold what it wants, and not for a larger one that waits before it."""
    return _only_holders_ahead()


# Readers


@plants(Plan("readers", parties=4, processes=4), "Fifo")
def readers_overtake_a_writer() -> Patches:
    """A reader waits for a writer who has the lock, and not for one who waits for it."""
    return _only_holders_ahead()


@plants(Plan("readers"), "OneHolder", "Fence")
@replaces(LockMode, "conflicts")
def readers_beside_a_writer(_original: Any, self: LockMode, other: LockMode) -> bool:
    """Who shares a lock conflicts with no other."""
    return SHARED not in (self.mode, other.mode) and self.overlaps(other)


@plants(Plan("readers", parties=3), "Unhindered")
def readers_one_by_one() -> Patches:
    """Readers conflict with each other."""
    return [(LockMode, "conflicts", LockMode.overlaps)]


@plants(Plan("readers"), "Fence")
def writes_of_readers() -> Patches:
    """Who shares a lock may write under it."""
    return [(HeldEntry, "check_alone", lambda self: None)]


@plants(Plan("readers"), "Steady")
def readers_see_what_was() -> Patches:
    """The item of a shared lock is as it was when we entered the queue, not when our turn came."""
    return item_from_before_our_turn()


@plants(
    Plan("readers who stand still", parties=3, faults={Fault.PAUSE_AFTER: 1, Fault.LATE: 1}),
    "ToldLoss",
    limit=200,
    first_seed=130,
)
def only_the_first_eviction_traced() -> Patches:
    """Of several readers who are evicted at once only the first one can find out."""
    traces = lock_queue.eviction_traces
    return [(lock_requests, "eviction_traces", lambda entries, known: dict(list(traces(entries, known).items())[:1]))]


# From writer to reader


@plants(Plan("downgrade"), "Fence")
@replaces(lock_requests, "downgrade")
def downgrade_not_counted(_original: Any, row: Any, entry: Any, write: int) -> Any:
    """A downgrade does not count as a write, so that one from before it is accepted when it comes after it."""
    share = protocol.OWN_ENTRY + Clause(set_="#l.#q.#me[1].#mode = :shared")
    return lock_requests._update(row, share, lock_requests.mine(entry) | {":shared": {"S": SHARED}})


@plants(Plan("downgrade", rounds=2), "Fence")
def downgrade_forgotten_here() -> Patches:
    """A downgrade is stored, and forgotten here: the next write is sent."""
    return [(HeldEntry, "check_alone", lambda self: None)]


# Semaphores and work queues


@plants(Plan("semaphore", parties=3, processes=3), "OneHolder", "Fifo")
def one_permit_too_many() -> Patches:
    """A semaphore lets in one more than it has permits."""
    blockers = lock_modes.blockers

    def too_few(lock_mode: LockMode, ahead: Any) -> Any:
        found = blockers(lock_mode, ahead)
        return [] if 1 < lock_mode.permits == len(found) else found

    return [(lock_queue, "blockers", too_few), (lock_modes, "blockers", too_few)]


@plants(Plan("permits that differ"), "OneHolder", "Fifo")
def permits_not_compared() -> Patches:
    """Who asks for another number of permits than those before is let in by its own number."""
    return [(lock_modes, "disagreement", lambda lock_mode, first: None)]


@plants(Plan("work queue"), "OnceEach")
def jobs_as_they_were() -> Patches:
    """A worker that has waited for a job sees it as it was when it began to wait."""
    return item_from_before_our_turn()
