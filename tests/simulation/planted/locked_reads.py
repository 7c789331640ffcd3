"""Bugs in the locks of what transactions read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pynamo_locking._io import runtime
from pynamo_locking._transactions import items
from pynamo_locking._transactions.items import TransactionItems
from pynamo_locking_simulator._engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import plants, replaces

_locks_for = TransactionItems.locks_for


@plants(Plan("locked reads", parties=3, processes=3), "OneOrder", "Serializable", "Progress", limit=100)
@replaces(TransactionItems, "locks_for")
def for_share_takes_no_lock(_original: Any, self: Any, model: Any, values: Any, locking: Any) -> Any:
    """A reader does not enter the queue, so what it has read changes before its commit."""
    return () if locking.shared else _locks_for(self, model, values, locking)


_PAUSED = Plan("locked reads", parties=3, processes=3, rounds=2, faults={Fault.PAUSE_BEFORE: 1})


@plants(_PAUSED, "OneOrder", "Serializable", limit=200)
@replaces(TransactionItems, "read_all")
def for_share_is_not_checked(read_all: Any, self: Any, *arguments: Any) -> Any:
    """The commit trusts the shared lock, which a reader that stood still has lost."""
    found = read_all(self, *arguments)
    for member in found if not self._relies_on_reads else ():
        member.is_read = False
    return found


@plants(Plan("creators", parties=2, processes=2), "Progress", limit=200)
@replaces(items, "lock_of_name")
def each_creator_locks_a_name_of_its_own(lock_of_name: Any, lock: Any) -> Any:
    """The lock of an absent item keeps out no other creator."""
    found = lock_of_name(lock)
    if found is not None:
        row = replace(found._handle.target.row, key={"name": {"S": runtime.current.token()}})
        found._handle.target = replace(found._handle.target, row=row)
    return found


@plants(Plan("creators", parties=3, processes=3), "Progress", limit=200)
@replaces(TransactionItems, "locks_for")
def the_item_is_not_looked_at_again(_original: Any, self: Any, model: Any, values: Any, locking: Any) -> Any:
    """Who gets the lock of the name takes it for that of the item, which was created meanwhile."""
    given = list[Any]()
    for lock in _locks_for(self, model, values, locking):
        if lock not in given:
            given.append(lock)
            yield lock
