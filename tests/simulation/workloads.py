"""Who does what. Every party of a run does the same, in rounds, and all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamo_locking import LockingError, TransactWrite, locked_all
from pynamo_locking._io import runtime
from tests.simulation.engine.network import Place
from tests.simulation.history import Told
from tests.simulation.models import Account, Device, Document, Names, Note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamodb.models import Model

    from pynamo_locking import Lock
    from tests.simulation.history import History, Operation


class Workload:
    """What the parties do.

    Args:
        history: where they report it.

    Attributes:
        items: what exists at the beginning: a model and a key each.
        is_contended: whether an operation may be refused although nothing went wrong.
    """

    name: ClassVar[str]
    items: ClassVar[tuple[tuple[Any, str], ...]]
    is_contended: ClassVar[bool] = False

    def __init__(self, history: History) -> None:
        self.history = history

    def prepare(self) -> None:
        """Make what exists at the beginning."""
        for model, key in self.items:
            if model is not Names:
                model(key).save()

    def party(self, index: int, turn: int) -> None:
        """Do one turn of one party."""
        raise NotImplementedError

    # Where things are

    def rows(self) -> list[Place]:
        """Return the rows that carry locks."""
        rows = (self.row_of(place(model, key)) for model, key in self.items)
        return list(dict.fromkeys(row for row in rows if row is not None))

    def locks(self) -> Iterable[Lock[Any]]:
        """Return one lock for each row."""
        return (model.lock(key) for model, key in self.items if model is not Note)

    @staticmethod
    def row_of(item: Place) -> Place | None:
        """Return which row carries the lock of an item; None if it has no lock."""
        if item.table == "note":
            return None
        return Place("names", (f"device/{item.key[0]}",)) if item.table == "device" else item

    # What a party can do

    def append(self, item: Any, done: int) -> None:
        """Let an item show the number of an operation."""
        item.log = [*(item.log or []), done]

    def save_locked(self, lock: Lock[Any], work_s: float = 0) -> None:
        """Change an item under its lock."""
        with self.history.held(lock, self.row(lock)):
            if work_s:
                runtime.current.sleep(work_s)
            with self.history.operation("save", self.item(lock), ticket=lock.ticket) as done:
                item = lock.item
                self.append(item, done.number)
                item.save()
            self.take_back(lock, done)

    def take_back(self, lock: Lock[Any], done: Operation) -> None:
        """Undo a refused change in memory, or the next save of the same object would write it."""
        item = vars(lock._own or object).get("item")
        if done.told is Told.REFUSED and item is not None and done.number in item.log:
            item.log.remove(done.number)

    def read(self, model: type[Model], key: str) -> None:
        """Read an item."""
        with self.history.operation("read", place(model, key)) as done:
            done.value = list(model.get(key, consistent_read=True).log or [])

    def item(self, lock: Lock[Any]) -> Place:
        """Return the item that a lock protects."""
        return place(lock._target.model, lock._target.carrier[1].rpartition("/")[2])

    def row(self, lock: Lock[Any]) -> Place:
        """Return the row that carries a lock."""
        return place(lock._target.carrier[0], lock._target.carrier[1])

    def taken(self, lock: Lock[Any], **arguments: Any) -> bool:
        """Take a lock; tell whether that went well."""
        try:
            lock.acquire(**arguments)
        except LockingError:
            self.history.timeouts += 1
            return False
        self.history.granted(lock, self.row(lock))
        return True

    def give_back(self, lock: Lock[Any]) -> None:
        """Give a lock back, whatever became of it."""
        try:
            lock.release()
        except LockingError:
            self.history.losses += 1


def place(model: Any, key: str) -> Place:
    """Return where the item of a model is."""
    return Place(model.Meta.table_name, (key,))


class Embedded(Workload):
    """The lock in the item; one save under it."""

    name = "embedded"
    items = ((Account, "a"),)

    def party(self, index: int, turn: int) -> None:
        """Take, save, release."""
        lock = Account.lock("a")
        if self.taken(lock):
            try:
                self.save_locked(lock)
            finally:
                self.give_back(lock)


class SeparateRow(Workload):
    """The lock in a row of its own; one save under it."""

    name = "separate row"
    items = ((Device, "d"),)

    def party(self, index: int, turn: int) -> None:
        """Take, save, release."""
        lock = Device.lock("d")
        if self.taken(lock):
            try:
                self.save_locked(lock)
            finally:
                self.give_back(lock)


class LongWork(Workload):
    """The holder works for longer than a lease: only the heartbeat keeps the lock."""

    name = "long work"
    items = ((Document, "d"),)

    def party(self, index: int, turn: int) -> None:
        """Take, work, save, work, save, release."""
        lock = Document.lock("d")
        if self.taken(lock):
            try:
                self.save_locked(lock, work_s=7.0)
                self.save_locked(lock, work_s=1.0)
            finally:
                self.give_back(lock)


class NoHeartbeat(Workload):
    """The holder may work for longer than its lease and renews by itself, or too late."""

    name = "no heartbeat"
    items = ((Account, "a"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Take, work, save; some make sure of the rest of their lease, some do not."""
        lock = Account.lock("a", heartbeat=False)
        if not self.taken(lock):
            return
        try:
            self.save_locked(lock, work_s=3.0 + 4.0 * (index % 2))
            with self.history.operation("read", place(Account, "a")) as done:
                lock.ensure(5)
                done.value = list(Account.get("a", consistent_read=True).log or [])
            self.save_locked(lock)
        finally:
            self.give_back(lock)


class Edit(Workload):
    """`edit()`: the last write releases the lock as well. The lock in the item, or in another row."""

    name = "edit"
    items = ((Document, "d"), (Device, "d"))

    def party(self, index: int, turn: int) -> None:
        """Edit the item, or the one with its lock elsewhere."""
        model: Any = (Document, Device)[turn % 2]
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
        """Take three times, save in between."""
        outer = Document.lock("d")
        if not self.taken(outer):
            return
        try:
            self.save_locked(outer)
            inner = Document.lock("d")
            if self.taken(inner):
                try:
                    self.save_locked(inner)
                finally:
                    self.give_back(inner)
            edit = Document.edit("d")
            with self.history.operation("edit", place(Document, "d")) as done, edit as item:
                done.ticket = edit.lock.ticket
                self.append(item, done.number)
        finally:
            self.give_back(outer)


class Waits(Workload):
    """Some do not wait at all, some for a while, some for as long as it takes."""

    name = "waits"
    items = ((Account, "a"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Take with another patience each time."""
        lock = Account.lock("a")
        if self.taken(lock, wait=(0, 5, 1000)[(index + turn) % 3]):
            try:
                self.save_locked(lock, work_s=2.0)
            finally:
                self.give_back(lock)


class Both(Workload):
    """Two locks, named in opposite orders, and both items changed in one transaction."""

    name = "locked_all"
    items = ((Account, "a"), (Document, "b"), (Device, "c"))

    def party(self, index: int, turn: int) -> None:
        """Take both, write both."""
        locks: list[Any] = [Account.lock("a"), (Document, Device)[turn % 2].lock("bc"[turn % 2])]
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
            with TransactWrite(connection=Note._get_connection().connection) as transaction:
                for lock in locks:
                    item = lock.item
                    self.append(item, done.number)
                    transaction.save(item)


class Transact(Workload):
    """Two versioned items without locks in one transaction; whoever is beaten tries again."""

    name = "transact write"
    items = ((Note, "a"), (Note, "b"))
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Read both, write both."""
        for _ in range(3):
            if self.attempt("ab" if index % 2 else "ba") is not Told.REFUSED:
                return

    def attempt(self, keys: str) -> Told:
        """Try once."""
        with self.history.operation("transaction", *(place(Note, key) for key in keys)) as done:
            notes = [Note.get(key, consistent_read=True) for key in keys]
            with TransactWrite(connection=Note._get_connection().connection) as transaction:
                for note in notes:
                    self.append(note, done.number)
                    transaction.save(note)
        return done.told


class Modify(Workload):
    """Versions alone: read, change, write if unchanged, again and again. And reads in between."""

    name = "modify"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Modify, and look."""
        with self.history.operation("modify", place(Note, "n")) as done:
            Note.modify("n", change=lambda note: self.append(note, done.number), attempts=6)
        self.read(Note, "n")


class Append(Workload):
    """Updates that append, with and without a check of the version: none is done twice."""

    name = "append"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Append in the way of the party."""
        with self.history.operation("append", place(Note, "n")) as done:
            note = Note.get("n", consistent_read=True)
            checks = bool((index + turn) % 2)
            note.update(actions=[Note.log.set(Note.log.append([done.number]))], add_version_condition=checks)
        self.read(Note, "n")


class Outsiders(Workload):
    """Half of the parties do not take the lock: their writes are refused while anyone is in the queue."""

    name = "outsiders"
    items = ((Document, "d"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Save under the lock, or without."""
        if index % 2 == 0:
            lock = Document.lock("d")
            if self.taken(lock):
                try:
                    self.save_locked(lock)
                finally:
                    self.give_back(lock)
            return
        with self.history.operation("save from outside", place(Document, "d")) as done:
            item = Document.get("d", consistent_read=True)
            self.append(item, done.number)
            item.save()


WORKLOADS: Final[dict[str, type[Workload]]] = {
    each.name: each
    for each in (
        Embedded,
        SeparateRow,
        LongWork,
        NoHeartbeat,
        Edit,
        Reentry,
        Waits,
        Both,
        Transact,
        Modify,
        Append,
        Outsiders,
    )
}
