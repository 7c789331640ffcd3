"""A copy of a write is on its way while another one is refused for a reason that passes: the outcome is unknown."""

from __future__ import annotations

from functools import partial

from pynamo_locking import TransactWrite
from tests.simulation.models import Device, Document, Note
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime


class IdleHolders(Workload):
    """Some hold the lock without writing, others write from outside: refused while it is held means never applied."""

    name = "idle holders"
    items = ((Document, "d"), (Note, "n"))
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Hold, or write from outside: alone, in a transaction, or when it is free."""
        if index % 2 == 0:
            self.holding(Document.locked("d"), lambda _: runtime.sleep(1.5))
        else:
            ways = self.save, self.transact, partial(self.modify, Document, "d", attempts=4)
            ways[(index // 2 * 2 + turn) % 3]()

    def save(self) -> None:
        self.plain_save(Document, "d", "save from outside")

    def transact(self) -> None:
        """Write together with another item."""
        with self.history.operation("transaction", place(Document, "d"), place(Note, "n")) as done:
            items = Document.get("d", consistent_read=True), Note.get("n", consistent_read=True)
            self.save_together(done.number, *items)


class _InDoubt(Workload):
    """One writes in a transaction what the other one is in the way of for a while."""

    is_contended = True

    def party(self, index: int, turn: int) -> None:
        if index % 2 == 0:
            runtime.sleep(1.5)
            self.make_way()
        else:
            self.transact()

    def make_way(self) -> None:
        """Let the condition of the transaction become true."""
        raise NotImplementedError

    def transact(self) -> None:
        """Send the transaction."""
        raise NotImplementedError


class TransactCreate(_InDoubt):
    """A transaction creates an item that is there, and that another party deletes."""

    name = "transact create"
    items = ((Note, "x"), (Note, "n"))

    def make_way(self) -> None:
        self.plain_delete(Note, "x")

    def transact(self) -> None:
        """Create the one, change the other."""
        with self.history.operation("transaction", place(Note, "x"), place(Note, "n")) as done:
            self.save_together(done.number, Note("x"), Note.get("n", consistent_read=True))


class TransactCheck(_InDoubt):
    """A transaction checks a condition on an item of another party, which becomes true later."""

    name = "transact check"
    items = ((Document, "a"), (Note, "n"))

    def make_way(self) -> None:
        """Write what the other one waits for."""
        self.plain_save(Document, "a")

    def transact(self) -> None:
        """Change an item if another one has a log."""
        with self.history.operation("transaction", place(Note, "n")) as done:
            note = Note.get("n", consistent_read=True)
            self.append(note, done.number)
            with TransactWrite(connection=Note._get_connection().connection) as transaction:
                transaction.condition_check(Document, "a", condition=Document.log[0].exists())
                transaction.save(note)


class LockedCreate(Workload):
    """The holder of a lock in a row of its own creates an item that is there; a party without the lock deletes it."""

    name = "locked create"
    items = ((Device, "d"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        if index % 2 == 0:
            runtime.sleep(1.5)
            self.plain_delete(Device, "d")
            return
        lock = Device.locked("d")
        if self.taken(lock):
            with self.history.operation("create", place(Device, "d"), ticket=lock.ticket) as done:
                Device("d", log=[done.number]).save()
            runtime.sleep(3.0)
            self.give_back(lock)
