"""Who writes by versions, or around locks that others have."""

from __future__ import annotations

from pynamodb.exceptions import DoesNotExist

from pynamo_locking import BatchError, Conflict, TransactWrite
from tests.simulation.history import Told
from tests.simulation.models import Document, Note, StockNote
from tests.simulation.workloads.base import Workload, place


class Transact(Workload):
    """Two versioned items without locks in one transaction; the one that is beaten tries again."""

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


class Combine(Workload):
    """Callers of a process share writes. A function that raises leaves no trace, and its caller alone hears of it."""

    name = "combine"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Modify, modify and raise, and look."""
        with self.history.operation("modify", place(Note, "n")) as done:
            changed = Note.modify("n", lambda note: self.append(note, done.number), attempts=6, combine=True)
            assert done.number in changed.log, "another caller's result"
        with self.history.operation("forbidden modify", place(Note, "n")) as done:
            Note.modify("n", lambda note: self.append_and_raise(note, done.number), combine=True)
        self.read(Note, "n")

    def append_and_raise(self, note: Note, number: int) -> None:
        """Leave a change in the instance that must not be saved."""
        self.append(note, number)
        raise Conflict("the function does not want it")


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
            self.saves(Document.lock("d"), 0)
            return
        with self.history.operation("save from outside", place(Document, "d")) as done:
            item = Document.get("d", consistent_read=True)
            self.append(item, done.number)
            item.save()


class Unchecked(Workload):
    """Some save without a look at the version, and undo what others wrote; but no version ever goes back."""

    name = "unchecked"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Save with the check, without it, or touch."""
        way = (index + turn) % 3
        with self.history.operation("save" if way == 0 else "unchecked save", place(Note, "n")) as done:
            note = Note.get("n", consistent_read=True)
            self.append(note, done.number)
            note.save(add_version_condition=way == 0)
        if way == 2:
            with self.history.operation("touch"):
                Note("n").touch(add_version_condition=False)
        with self.history.operation("save", place(Note, "n")) as done:
            note = Note.get("n", consistent_read=True)
            self.append(note, done.number)
            note.save()


class Batch(Workload):
    """Saves and deletes in a batch: one by one in parallel, or in native transactions."""

    name = "batch"
    items = ((Note, "a"), (Note, "b"), (Note, "c"))
    is_contended = True
    has_transactions = True

    def party(self, index: int, turn: int) -> None:
        """Write three items at once, and delete one of them sometimes."""
        kinds = {"a": "save", "b": "save", "c": "delete" if (index + turn) % 2 else "save"}
        with self.history.several("batch", {place(Note, key): kind for key, kind in kinds.items()}) as parts:
            notes = {key: self.note(key) for key in kinds}
            batch = Note.guarded_batch(transactions=self.has_transactions and bool(turn % 2), workers=2)
            try:
                with batch:
                    for key, kind in kinds.items():
                        if kind == "save":
                            self.append(notes[key], parts[place(Note, key)].number)
                        getattr(batch, kind)(notes[key])
            except BatchError:
                pass
            for result in batch.results:
                self.history.tell(parts[place(Note, result.item.key)], result.error)

    @staticmethod
    def note(key: str) -> Note:
        """Return an item, or a new one."""
        try:
            return Note.get(key, consistent_read=True)
        except DoesNotExist:
            return Note(key)


class BatchByStatements(Batch):
    """The same, by statements: new items, known ones and deletes in one request."""

    name = "batch, by statements"
    has_transactions = False
    most_statements = 25


class MixedFleet(Workload):
    """One process has PynamoDB alone. What it is told may be wrong, what we are told is not."""

    name = "mixed fleet"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Append, by PynamoDB or by us."""
        if index % 2:
            with self.history.operation("stock save", place(Note, "n")) as done:
                item = StockNote.get("n", consistent_read=True)
                self.append(item, done.number)
                item.save()
            return
        with self.history.operation("modify", place(Note, "n")) as done:
            Note.modify("n", change=lambda note: self.append(note, done.number), attempts=4)
        with self.history.operation("append", place(Note, "n")) as done:
            note = Note.get("n", consistent_read=True)
            note.update(actions=[Note.log.set(Note.log.append([done.number]))])
        self.read(Note, "n")
