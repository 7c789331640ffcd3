"""Bugs in what may be held together: readers, semaphores, ranges, and the way from writer to reader."""

from __future__ import annotations

from typing import Final

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Search, bug
from tests.support.mistakes import Change

_EVICTED_READERS = Plan("readers who stand still", parties=3, faults={Fault.PAUSE_AFTER: 1, Fault.LATE: 1})

_OVERLAPS: Final = "return _is_before(self.lower, other.upper) and _is_before(other.lower, self.upper)"
_CONFLICTS: Final = "return not are_compatible(self.mode, other.mode) and self.overlaps(other)"
_BEFORE: Final = "before = [other for other in self.entries if"
_ONLY_HOLDERS: Final = Change("_core/lock_queue.py", _BEFORE, "before = [other for other in self.holders if")
_SEES: Final = "                image, entry = yield from self._image_with_our_entry(image)\n"
_BEGINS: Final = "            image, attempt = self._take_over_handed_entry(), 0\n"
ITEM_FROM_BEFORE: Final = (
    Change("_locks/acquire.py", _BEGINS, f"{_BEGINS}            seen = []\n"),
    Change("_locks/acquire.py", _SEES, f"{_SEES}                seen.append(image)\n"),
    Change("_locks/acquire.py", "self.held = held\n", "self.held, held.item.image = held, seen[0]\n"),
)

RANGES: Final = (
    bug(
        "closed ranges: The end of a range is a part of it, so ranges that only touch wait for each other.",
        Search(Plan("adjacent ranges"), "Unhindered"),
        Change("_core/lock_modes.py", "order(bound) < order(other)", "order(bound) <= order(other)"),
    ),
    bug(
        "ranges by their beginning: Two ranges conflict only if they begin at the same point.",
        Search(Plan("named ranges"), "OneHolder"),
        Change("_core/lock_modes.py", _OVERLAPS, "return self.lower == other.lower"),
    ),
    bug(
        "open ends are empty: A range with an open end has nothing in common with any other.",
        Search(Plan("named ranges", parties=4), "OneHolder", "Fifo"),
        Change("_core/lock_modes.py", _OVERLAPS, f"{_OVERLAPS} and None not in (*self[2:], *other[2:])"),
    ),
    bug(
        "items outside of ranges: An item in a range that we hold is written as if we did not hold it.",
        Search(Plan("ranges of items", faults={Fault.PAUSE_BEFORE: 1}), "Fence"),
        Change("_models/attributes.py", "context.usable(context.entry_in(row, *extents))", "None"),
    ),
    bug(
        "ranges behind locks of items: An item whose own lock we hold is written beside the range around it.",
        Search(Plan("items in ranges", faults={Fault.PAUSE_BEFORE: 1}), "Fence", limit=200),
        Change("_models/writes.py", "(held, self._range_entry(", "(held or self._range_entry("),
    ),
    bug(
        "writers meet no ranges: A writer without a lock does not check the ranges of others.",
        Search(Plan("enforced ranges"), "Fence"),
        Change("_models/writes.py", "[] if enforced is None else self._foreign_checks(held_entries, extents)", "[]"),
    ),
    bug(
        "ranges looked at before: A writer looks at ranges, and does not ask who has come since.",
        Search(Plan("enforced ranges", parties=3, processes=3), "Fence"),
        Change("_io/protocol.py", " AND #l.#n[0] = :next))", "))"),
    ),
    bug(
        "only holders are met: A writer looks at who holds a range, not at who waits and may hold it by then.",
        Search(Plan("enforced ranges", parties=3, processes=3), "Fence"),
        Change("_writes/send.py", "for entry in state.entries if any(", "for entry in state.holders if any("),
    ),
    bug(
        "small ranges overtake: A range does not wait for a larger one that waits before it.",
        Search(Plan("named ranges", parties=3), "Fifo"),
        _ONLY_HOLDERS,
    ),
)

READERS: Final = (
    bug(
        "readers overtake a writer: A reader waits for a writer who has the lock, and not for one who waits for it.",
        Search(Plan("readers", parties=4, processes=4), "Fifo"),
        _ONLY_HOLDERS,
    ),
    bug(
        "readers beside a writer: Who shares a lock conflicts with no other.",
        Search(Plan("readers"), "OneHolder", "Fence"),
        Change(
            "_core/lock_modes.py", _CONFLICTS, "return SHARED not in (self.mode, other.mode) and self.overlaps(other)"
        ),
    ),
    bug(
        "readers one by one: Readers conflict with each other.",
        Search(Plan("readers", parties=3), "Unhindered"),
        Change("_core/lock_modes.py", _CONFLICTS, "return self.overlaps(other)"),
    ),
    bug(
        "writes of readers: Who shares a lock may write under it.",
        Search(Plan("readers"), "Fence"),
        Change("_locks/held_lock.py", "if not self.entry.lock_mode.may_write:", "if False:"),
    ),
    bug(
        "readers see what was: The item of a shared lock is as it was when we entered the queue.",
        Search(Plan("readers"), "Steady"),
        *ITEM_FROM_BEFORE,
    ),
    bug(
        "only the first eviction traced: Of several readers who are evicted at once only the first one can find out.",
        Search(_EVICTED_READERS, "ToldLoss", limit=200, first_seed=130),
        Change("_core/lock_queue.py", "entries))\n    return {ticket", "entries))[:1]\n    return {ticket"),
    ),
    bug(
        "downgrade forgotten here: A downgrade is stored, and forgotten here: the next write is sent.",
        Search(Plan("downgrade", rounds=2), "Fence"),
        Change("_locks/held_lock.py", "lock_mode._replace(mode=SHARED))", "lock_mode)"),
    ),
)

PERMITS: Final = (
    bug(
        "one permit too many: A semaphore lets in one more than it has permits.",
        Search(Plan("semaphore", parties=3, processes=3), "OneHolder", "Fifo"),
        Change("_core/lock_modes.py", "len(found) >= lock_mode.permits", "len(found) > lock_mode.permits"),
    ),
    bug(
        "permits not compared: Who asks for another number of permits than those before is let in by its own number.",
        Search(Plan("permits that differ"), "OneHolder", "Fifo"),
        Change("_core/lock_modes.py", "if lock_mode.permits != first.permits:", "if False:"),
    ),
    bug(
        "jobs as they were: A worker that has waited for a job sees it as it was when it began to wait.",
        Search(Plan("work queue"), "OnceEach"),
        *ITEM_FROM_BEFORE,
    ),
)

BUGS: Final = (*RANGES, *READERS, *PERMITS)
