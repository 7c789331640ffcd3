"""Who takes locks, and writes under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamo_locking import locked_all
from pynamo_locking.exceptions import LockingError
from tests.simulation.models import BY_PACE, OFTEN, Account, Device, Document
from tests.simulation.workloads.base import Workload, place

if TYPE_CHECKING:
    from pynamo_locking import Lock


class Embedded(Workload):
    """The lock in the item; one save under it."""

    name = "embedded"
    items = ((Account, "a"),)

    def party(self, index: int, turn: int) -> None:
        self.saves(Account.locked("a"), 0)


class SeparateRow(Workload):
    """The lock in a row of its own; one save under it."""

    name = "separate row"
    items = ((Device, "d"),)

    def party(self, index: int, turn: int) -> None:
        self.saves(Device.locked("d"), 0)


class LongWork(Workload):
    """The holder works for longer than a lease: only the heartbeat keeps the lock."""

    name = "long work"
    items = ((Document, "d"),)

    def party(self, index: int, turn: int) -> None:
        self.saves(Document.locked("d"), 7.0, 1.0)


class Polling(Workload):
    """One works for longer than a paused process stands still, and others look more often than they renew."""

    name = "polling"
    items = ((Account, "a"),)
    settings = OFTEN

    def party(self, index: int, turn: int) -> None:
        self.saves(Account.locked("a", settings=self.settings), 1.0 if index + turn else 14.0)


class PollingByPace(Polling):
    """The same, and those who wait look the more often, the faster the queue moves."""

    name = "polling by pace"
    settings = BY_PACE


class NoHeartbeat(Workload):
    """The holder may work for longer than its lease and renews by itself, or too late."""

    name = "no heartbeat"
    items = ((Account, "a"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Take, work, save; some make sure of the rest of their lease, some do not."""
        lock = Account.locked("a", heartbeat=False)
        self.using(lock, lambda: self.work(lock, 3.0 + 4.0 * (index % 2)))

    def work(self, lock: Lock[Any], work_s: float) -> None:
        self.save_locked(lock, work_s)
        with self.history.operation("read", place(Account, "a")) as done:
            lock.ensure_remaining(5)
            done.value = list(Account.get("a", consistent_read=True).log or [])
        self.save_locked(lock)


class Edit(Workload):
    """`edit()`: the last write releases the lock as well. The lock in the item, or in another row."""

    name = "edit"
    items: ClassVar[tuple[tuple[Any, Any], ...]] = ((Document, "d"), (Device, "d"))

    def party(self, index: int, turn: int) -> None:
        model, _ = self.items[turn % 2]
        edit = model.edit("d")
        with self.history.operation("edit", place(model, "d")) as done, edit as item:
            done.ticket = edit.lock.ticket
            self.history.granted(edit.lock, self.row(edit.lock))
            with self.history.held(edit.lock, self.row(edit.lock)):
                self.append(item, done.number)


class Reentry(Workload):
    """A party that takes what it holds already: locked in locked, edit in locked, saved at each level."""

    name = "re-entry"
    items = ((Document, "d"),)

    def party(self, index: int, turn: int) -> None:
        outer = Document.locked("d")
        self.using(outer, lambda: self.work(outer))

    def work(self, outer: Lock[Any]) -> None:
        self.save_locked(outer)
        self.saves(Document.locked("d"), 0)
        self.save_locked(outer)
        edit = Document.edit("d")
        with self.history.operation("edit", place(Document, "d")) as done, edit as item:
            done.ticket = edit.lock.ticket
            self.append(item, done.number)


class Waits(Workload):
    """Some do not wait at all, some for a while, some for as long as it takes."""

    name = "waits"
    items = ((Account, "a"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        lock = Account.locked("a")
        self.using(lock, lambda: self.save_locked(lock, work_s=2.0), wait=(0, 5, 1000)[(index + turn) % 3])


class Both(Workload):
    """Two locks, named in opposite orders, and both items changed in one transaction."""

    name = "locked_all"
    items = ((Account, "a"), (Document, "b"), (Device, "c"))

    def party(self, index: int, turn: int) -> None:
        locks: list[Any] = [Account.locked("a"), (Document, Device)[turn % 2].locked("bc"[turn % 2])]
        if index % 2:
            locks.reverse()
        try:
            with locked_all(*locks):
                self.transact(*locks)
        except LockingError:
            self.history.losses += 1

    def transact(self, *locks: Lock[Any]) -> None:
        """Change all items at once. The operation counts as one under the ticket of the first lock."""
        places = [self.item(lock) for lock in locks]
        tickets = {self.row(lock): lock.ticket for lock in locks}
        with self.history.operation("transaction", *places) as done:
            done.tickets = tickets
            self.save_together(done.number, *[lock.item for lock in locks])
