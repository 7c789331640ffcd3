"""Bugs in the locks of what transactions read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pynamo_locking._io import runtime
from pynamo_locking._transactions import items
from pynamo_locking._transactions.items import TransactionItems, lock_of_name
from tests.simulation.engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.planted.machinery import Patches, plants

_locks_for = TransactionItems.locks_for


@plants(Plan("locked reads", parties=3, processes=3), "OneOrder", "Serializable", "Progress", limit=100)
def for_share_takes_no_lock() -> Patches:
    """A reader does not enter the queue, so what it has read changes before its commit."""

    def locks_for(self: Any, model: Any, values: Any, locking: Any) -> Any:
        return () if locking.shared else _locks_for(self, model, values, locking)

    return [(TransactionItems, "locks_for", locks_for)]


_PAUSED = Plan("locked reads", parties=3, processes=3, rounds=2, faults={Fault.PAUSE_BEFORE: 1})


@plants(_PAUSED, "OneOrder", "Serializable", limit=200)
def for_share_is_not_checked() -> Patches:
    """The commit trusts the shared lock, which a reader that stood still has lost."""
    read_all = TransactionItems.read_all

    def trusting(self: Any, *arguments: Any) -> Any:
        found = read_all(self, *arguments)
        for member in found if not self._relies_on_reads else ():
            member.is_read = False
        return found

    return [(TransactionItems, "read_all", trusting)]


@plants(Plan("creators", parties=2, processes=2), "Progress", limit=200)
def each_creator_locks_a_name_of_its_own() -> Patches:
    """The lock of an absent item keeps out no other creator."""

    def own(lock: Any) -> Any:
        found = lock_of_name(lock)
        if found is not None:
            row = replace(found._handle.target.row, key={"name": {"S": runtime.current.token()}})
            found._handle.target = replace(found._handle.target, row=row)
        return found

    return [(items, "lock_of_name", own)]


@plants(Plan("creators", parties=3, processes=3), "Progress", limit=200)
def the_item_is_not_looked_at_again() -> Patches:
    """Who gets the lock of the name takes it for that of the item, which was created meanwhile."""

    def locks_for(self: Any, model: Any, values: Any, locking: Any) -> Any:
        given = list[Any]()
        for lock in _locks_for(self, model, values, locking):
            if lock not in given:
                given.append(lock)
                yield lock

    return [(TransactionItems, "locks_for", locks_for)]
