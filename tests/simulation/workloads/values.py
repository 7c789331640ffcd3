"""Values that are overwritten, money that is moved, and lists that several transactions append to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.transactions import TransactGet

from pynamo_locking import TransactWrite
from tests.simulation.models import LockedRegister, Note, Purse, Register
from tests.simulation.workloads.base import Workload, place

if TYPE_CHECKING:
    from pynamo_locking import Lock
    from tests.simulation.history import Told


class Registers(Workload):
    """One value, overwritten under its version; and reads."""

    name = "register"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ((Register, "r"),)
    registers = items
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        with self.history.operation("write", place(Register, "r")) as done:
            Register.modify("r", change=lambda item: self.put(item, done), attempts=4)
        self.look(Register)

    def put(self, item: Any, done: Any) -> None:
        """Overwrite the value, and note what was there."""
        done.seen, item.value = int(item.value), done.number

    def look(self, model: Any) -> None:
        with self.history.operation("look", place(model, "r")) as done:
            done.value = int(model.get("r", consistent_read=True).value)


class LockedRegisters(Registers):
    """One value, overwritten under its lock; and reads from outside."""

    name = "locked register"
    items = ((LockedRegister, "r"),)
    registers = items
    is_contended = False

    def party(self, index: int, turn: int) -> None:
        lock = LockedRegister.locked("r")
        self.holding(lock, lambda _: self.write(lock))
        self.look(LockedRegister)

    def write(self, lock: Lock[Any]) -> None:
        with self.history.operation("write", place(LockedRegister, "r"), ticket=lock.ticket) as done:
            self.put(lock.item, done)
            lock.item.save(add_version_condition=False)


class Bank(Workload):
    """Money moves between three purses, two at a time; the sum is always the same, for readers as well."""

    name = "bank"
    items = ((Purse, "a"), (Purse, "b"), (Purse, "c"))
    purses = items
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        source, target = ("ab", "bc", "ca", "ba")[(index + turn) % 4]
        self.until_not_refused(lambda: self.move(source, target, 10 * (index + 1)), attempts=2)
        self.count()

    def move(self, source: str, target: str, amount: int) -> Told:
        with self.history.operation("transfer", place(Purse, source), place(Purse, target)) as done:
            giver, taker = (Purse.get(key, consistent_read=True) for key in (source, target))
            giver.balance, taker.balance = giver.balance - amount, taker.balance + amount
            self.save_together(done.number, giver, taker)
        return done.told

    def count(self) -> None:
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
        self.until_not_refused(lambda: self.append_both(pair), attempts=2)
        self.append_by(*pair[::-1])

    def append_both(self, keys: str) -> Told:
        with self.history.operation("transaction", *(place(Note, key) for key in keys)) as done:
            self.save_together(done.number, *[Note.get(key, consistent_read=True) for key in keys])
        return done.told

    def append_by(self, read: str, written: str) -> None:
        """Append to one list, if another one is as it was read."""
        with self.history.operation("dependent transaction", place(Note, written)) as done:
            seen, note = (Note.get(key, consistent_read=True) for key in (read, written))
            self.append(note, done.number)
            with TransactWrite(connection=Note._get_connection().connection) as transaction:
                transaction.check(seen)
                transaction.save(note)
            done.seen = {place(Note, read): [int(each) for each in seen.log or []]}
