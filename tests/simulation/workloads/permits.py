"""Semaphores: as many as there are permits, and all who use one at the same time must agree on how many."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

from pynamo_locking.exceptions import ConfigurationError
from tests.simulation.models import Account, Names, Note
from tests.simulation.workloads.base import place
from tests.simulation.workloads.modes import Sharing
from tests.support import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking import Lock
    from pynamo_locking_testing._engine.network import Place
    from tests.simulation.history import Grant


class Semaphores(Sharing):
    """Two of them at once; of a name, with writes beside it, or of an item, which no party may write then."""

    name = "semaphore"
    items = ((Account, "a"), (Note, "n"), (Names, "pool"))
    is_contended = True

    def locks(self) -> Iterator[Lock[Any]]:
        """Return them while we have the other permit: the dead may stay in the queue until one is missing."""
        for model, key in ((Names, "pool"), (Account, "a")):
            first: Lock[Any] = model.locked(key, permits=2)
            contextvars.Context().run(first.acquire)  # or else the second one would be the same permit
            yield model.locked(key, permits=2)
            first.release()

    def party(self, index: int, turn: int) -> None:
        """Take a permit, work, write beside it or try to write under it."""
        model: Any = (Names, Account)[turn % 2]
        lock = model.locked("pool" if model is Names else "a", permits=2, wait=(1000, 1000, 8, 0)[index % 4])

        def work(_: Grant) -> None:
            runtime.sleep(1.0)
            (self.try_to_save if model is Account else self.write_beside)(lock)

        self.holding(lock, work)

    @staticmethod
    def row_of(item: Place) -> Place | None:
        """Return the row of the semaphore that is asked for when an item is written."""
        return item if item.table == "account" else place(Names, "pool")


class Disagreements(Sharing):
    """Some take one and the same lock alone, some as a semaphore: one that comes later hears of it, or waits."""

    name = "permits that differ"
    items = ((Note, "n"), (Names, "pool"))
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        lock = Names.locked("pool", permits=1 + (index + turn) % 2)
        try:
            if not self.taken(lock):
                return
        except ConfigurationError:
            return  # another party is there, which takes it in the other way
        with self.history.held(lock, self.row(lock)):
            runtime.sleep(1.0)
        self.give_back(lock)

    def locks(self) -> Iterator[Lock[Any]]:
        """Return the lock; the dead who took it in the other way are evicted by hand, or their lease is waited for."""
        for entry in Names.lock_state("pool").entries:
            self.history.broken.add((place(Names, "pool"), entry.ticket))
            Names.break_lock("pool", ticket=entry.ticket)
        yield Names.locked("pool")
