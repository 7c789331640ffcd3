"""Values that are overwritten, money that is moved, and lists that several transactions append to."""

from __future__ import annotations

from typing import Any, ClassVar

from pynamodb.transactions import TransactGet

from pynamo_locking import TransactWrite
from tests.simulation.history import Told
from tests.simulation.models import LockedRegister, Note, Purse, Register
from tests.simulation.workloads.base import Workload, place


class Registers(Workload):
    """One value, overwritten under its version; and reads."""

    name = "register"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ((Register, "r"),)
    registers = items
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Overwrite, and look."""
        with self.history.operation("write", place(Register, "r")) as done:
            Register.modify("r", change=lambda item: self.put(item, done), attempts=4)
        self.look(Register)

    def put(self, item: Any, done: Any) -> None:
        """Overwrite the value, and note what was there."""
        done.seen, item.value = int(item.value), done.number

    def look(self, model: Any) -> None:
        """Read the value."""
        with self.history.operation("look", place(model, "r")) as done:
            done.value = int(model.get("r", consistent_read=True).value)


class LockedRegisters(Registers):
    """One value, overwritten under its lock; and reads from outside."""

    name = "locked register"
    items = ((LockedRegister, "r"),)
    registers = items
    is_contended = False

    def party(self, index: int, turn: int) -> None:
        """Overwrite, and look."""
        lock = LockedRegister.lock("r")
        if self.taken(lock):
            try:
                with (
                    self.history.held(lock, self.row(lock)),
                    self.history.operation("write", place(LockedRegister, "r"), ticket=lock.ticket) as done,
                ):
                    self.put(lock.item, done)
                    lock.item.save()
            finally:
                self.give_back(lock)
        self.look(LockedRegister)


class Bank(Workload):
    """Money moves between three purses, two at a time; the sum is always the same, for readers as well."""

    name = "bank"
    items = ((Purse, "a"), (Purse, "b"), (Purse, "c"))
    purses = items
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Move some, and count all."""
        source, target = ("ab", "bc", "ca", "ba")[(index + turn) % 4]
        for _ in range(2):
            if self.move(source, target, 10 * (index + 1)) is not Told.REFUSED:
                break
        self.count()

    def move(self, source: str, target: str, amount: int) -> Told:
        """Read both, write both."""
        with self.history.operation("transfer", place(Purse, source), place(Purse, target)) as done:
            giver, taker = (Purse.get(key, consistent_read=True) for key in (source, target))
            giver.balance, taker.balance = giver.balance - amount, taker.balance + amount
            with TransactWrite(connection=Purse._get_connection().connection) as transaction:
                for purse in (giver, taker):
                    self.append(purse, done.number)
                    transaction.save(purse)
        return done.told

    def count(self) -> None:
        """Read all purses at once."""
        with self.history.operation("count") as done:
            connection = Purse._get_connection().connection
            with TransactGet(connection=connection) as transaction:
                futures = [transaction.get(Purse, key) for _, key in self.items]
            purses = [future.get() for future in futures]
            done.value = sum(int(purse.balance) for purse in purses)
            done.seen = {place(Purse, purse.key): [int(each) for each in purse.log or []] for purse in purses}


class Lists(Workload):
    """Transactions append to two of three lists, others read one and write another: one order explains all."""

    name = "lists"
    items = ((Note, "a"), (Note, "b"), (Note, "c"))
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Append to two, then to one that depends on another."""
        pair = ("ab", "bc", "ca", "ba")[(index + turn) % 4]
        for _ in range(2):
            if self.append_both(pair) is not Told.REFUSED:
                break
        self.append_by(*pair[::-1])

    def append_both(self, keys: str) -> Told:
        """Read both, append to both."""
        with self.history.operation("transaction", *(place(Note, key) for key in keys)) as done:
            notes = [Note.get(key, consistent_read=True) for key in keys]
            with TransactWrite(connection=Note._get_connection().connection) as transaction:
                for note in notes:
                    self.append(note, done.number)
                    transaction.save(note)
        return done.told

    def append_by(self, read: str, written: str) -> None:
        """Append to one list, if another one is as it was read."""
        with self.history.operation("dependent transaction", place(Note, written)) as done:
            seen, note = (Note.get(key, consistent_read=True) for key in (read, written))
            self.append(note, done.number)
            with TransactWrite(connection=Note._get_connection().connection) as transaction:
                transaction.read(seen)
                transaction.save(note)
            done.seen = {place(Note, read): [int(each) for each in seen.log or []]}
