"""Who writes by versions, or around locks that others have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb.exceptions import DoesNotExist

from pynamo_locking.exceptions import BatchError
from tests.simulation.models import Document, Note, StockNote
from tests.simulation.workloads.base import Workload, place

if TYPE_CHECKING:
    from tests.simulation.history import Told


class Transact(Workload):
    """Two versioned items without locks in one transaction; the one that is beaten tries again."""

    name = "transact write"
    items = ((Note, "a"), (Note, "b"))
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        self.until_not_refused(lambda: self.attempt("ab" if index % 2 else "ba"), attempts=3)

    def attempt(self, keys: str) -> Told:
        with self.history.operation("transaction", *(place(Note, key) for key in keys)) as done:
            self.save_together(done.number, *[Note.get(key, consistent_read=True) for key in keys])
        return done.told


class Modify(Workload):
    """Versions alone: read, change, write if unchanged, again and again. And reads in between."""

    name = "modify"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        with self.history.operation("modify", place(Note, "n")) as done:
            Note.modify("n", change=lambda note: self.append(note, done.number), attempts=6)
        self.read(Note, "n")


class Append(Workload):
    """Updates that append, with and without a check of the version: none is done twice."""

    name = "append"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        with self.history.operation("append", place(Note, "n")) as done:
            note = Note.get("n", consistent_read=True)
            checks = bool((index + turn) % 2)
            note.update(actions=[self.appended(Note, done.number)], add_version_condition=checks)
        self.read(Note, "n")


class Outsiders(Workload):
    """Half of the parties do not take the lock: their writes are refused while anyone is in the queue."""

    name = "outsiders"
    items = ((Document, "d"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        if index % 2 == 0:
            self.saves(Document.locked("d"), 0)
        else:
            self.plain_save(Document, "d", "save from outside")


class Unchecked(Workload):
    """Some save without a look at the version, and undo what others wrote; but no version ever goes back."""

    name = "unchecked"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        way = (index + turn) % 3
        with self.history.operation("save" if way == 0 else "unchecked save", place(Note, "n")) as done:
            note = Note.get("n", consistent_read=True)
            self.append(note, done.number)
            note.save(add_version_condition=way == 0)
        if way == 2:
            with self.history.operation("touch"):
                Note("n").touch(add_version_condition=False)
        self.plain_save(Note, "n")


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
    halves_seeds = True
    has_transactions = False
    most_statements = 25


class MixedFleet(Workload):
    """One process has PynamoDB alone. What it is told may be wrong, what we are told is not."""

    name = "mixed fleet"
    items = ((Note, "n"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        if index % 2:
            self.plain_save(StockNote, "n", "stock save")
            return
        with self.history.operation("modify", place(Note, "n")) as done:
            Note.modify("n", change=lambda note: self.append(note, done.number), attempts=4)
        with self.history.operation("append", place(Note, "n")) as done:
            note = Note.get("n", consistent_read=True)
            note.update(actions=[self.appended(Note, done.number)])
        self.read(Note, "n")
