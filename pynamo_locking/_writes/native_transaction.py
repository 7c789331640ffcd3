"""One TransactWriteItems: its actions, and its effects on instances and locks once it is committed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lock_queue import EntryOwnership
from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._io import event_stream, protocol
from pynamo_locking._items import versions
from pynamo_locking._locks import context, held_lock
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking._writes import send
from pynamo_locking._writes.send import Check, RowWrite, Work
from pynamo_locking._writes.unique_rows import merged
from pynamo_locking._writes.write import DELETE, SAVE, UPDATE
from pynamo_locking.exceptions import ItemLocked, OutcomeUnknown, StaleVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._writes.send import ForeignLockCheck
    from pynamo_locking._writes.unique_rows import UniqueRows
    from pynamo_locking._writes.write import Write
    from pynamo_locking._writes.writer import Writer


class TransactionActions(Work):
    """A native transaction: collects its actions, is sent under the held locks, and notes what became of it.

    Attributes:
        by_key: the caller's actions, by the key of their item, in the caller's order.
        entries: the held entries in lock rows that the transaction must also check.
        foreign_checks: of locks that are not held and must not be in the way, by the identity of their row.
        deleted_locks: the held entries in embedded locks of deleted items, which DynamoDB deletes with them.
        removed: the other held entries that the writes which name them also remove.
    """

    def __init__(
        self, connection: Connection, token: str, last_under: Collection[HeldEntry] = (), **options: Any
    ) -> None:
        """Make an empty one; nobody needs the entries of `last_under` after it."""
        super().__init__(connection, token=token, **options)
        self._last_under = last_under
        self.by_key: dict[Any, RowWrite] = {}
        self.entries: list[HeldEntry] = []
        self.foreign_checks: dict[Any, ForeignLockCheck] = {}
        self._writers: dict[Any, Writer] = {}
        self._written_items: dict[HeldEntry, bool] = {}  # items locked in another row; whether they are deleted
        self.deleted_locks: list[HeldEntry] = []
        self.removed: list[HeldEntry] = []

    def add_write(self, key: Any, writer: Writer, write: Write) -> None:
        """Add the write of an item, with the check of its lock if this context holds it."""
        # `_last_under_locks` gives the final number.
        self.by_key[key] = writer.row_write(write, 0 if writer.held is None else writer.held.last_write + 1)
        self._writers[key] = writer
        self.entries += [new for new in self.unguarded(writer) if isinstance(new, HeldEntry)]
        if writer.held is not None and writer.is_embedded and write.operation is DELETE:
            self.deleted_locks.append(writer.held)
        elif writer.held is not None and not writer.is_embedded and write.operation in (SAVE, DELETE):
            self._written_items[writer.held] = write.operation is DELETE
        for foreign_check in writer.foreign_checks:
            self.foreign_checks.setdefault(foreign_check.row.identity, foreign_check).join(foreign_check)

    @property
    def separate(self) -> list[HeldEntry | ForeignLockCheck]:
        """What the transaction checks in other rows than those of its items."""
        return [*self.entries, *self.foreign_checks.values()]

    @property
    def size(self) -> int:
        """How many actions the transaction has, at most."""
        return len(self.by_key) + len(self.separate) + sum(len(each.rows) for each in self.unique_rows)

    def unguarded(self, writer: Writer) -> list[HeldEntry | ForeignLockCheck]:
        """Return what a writer has to check in rows that the transaction does not check yet."""
        if not writer.separate:
            return []
        rows_of_held = {held.row.identity for held in (*self.entries, *writer.held_entries)}
        barred = {*self.foreign_checks, *(foreign_check.row.identity for foreign_check in writer.foreign_checks)}
        if rows_of_held & barred:
            raise ConfigurationError(
                "one transaction cannot write inside and outside of a range that is locked here, if all writes are "
                "checked (Meta.enforce_locks): lock one range that spans both."
            )
        new = [each for each in writer.foreign_checks if each.row.identity not in self.foreign_checks]
        return [*(held for held in writer.held_entries if not self.guards_row_of(held)), *new]

    @contextlib.contextmanager
    def _last_under_locks(self) -> Iterator[list[RowWrite]]:
        """Renumber the writes under held locks, and keep other threads from writing under them until the block ends.

        Other writes may have been numbered since these were added, and DynamoDB refuses a write whose number is not
        the highest. The rows that are checked together with the actions are handed out.
        """
        embedded = [(row, row.check.held) for row in self.by_key.values() if row.check is not None]
        named = {*self.entries, *(held for _, held in embedded)}
        with contextlib.ExitStack() as writing:
            numbers = {held: writing.enter_context(held.writing()) for held in context.in_order(named)}
            self.removed = [held for held in numbers if held in self._last_under and held not in self.deleted_locks]
            for held in self.removed:
                writing.enter_context(held.removing())
            kinds = dict.fromkeys(numbers, EntryEffect.KEEP) | dict.fromkeys(self.removed, EntryEffect.FINISH)
            checks = {held: Check(held, number, kinds[held]) for held, number in numbers.items()}
            held_rows = [RowWrite(None, held.row, check=checks[held]) for held in self.entries]
            values = self._rows_of_values()
            for row, held in embedded:
                row.recheck(checks[held])
            yield [*held_rows, *self.foreign_checks.values(), *values]

    @property
    def unique_rows(self) -> list[UniqueRows]:
        """What the writes do to the rows of unique values."""
        rows = self.by_key.values()
        return [row.write.unique_rows for row in rows if row.write is not None and row.write.unique_rows is not None]

    def _rows_of_values(self) -> list[RowWrite]:
        unique_rows = self.unique_rows
        if not unique_rows:
            return []
        token = next((writer.token for writer in self._writers.values()), None)
        planned = [row.plan(TransactWriteError, token) for row in merged(unique_rows)]
        return [writer.row_write(write) for writer, write in planned]

    def guards_row_of(self, held: HeldEntry) -> bool:
        """Tell whether the transaction checks a lock row already; refuse a check of another range in that row."""
        found = next((each for each in self.entries if each.row.identity == held.row.identity), None)
        if found is not None and found is not held:
            raise ConfigurationError(
                f"one transaction cannot write under two separately locked ranges of {held.row.label}: lock one range "
                f"that spans both."
            )
        return found is not None

    def contended(self) -> list[Any]:
        """Return the keys of the actions that were refused since others had changed or locked their items."""
        why, kinds = self.explained, (StaleVersion, ItemLocked)
        return [key for key, row in self.by_key.items() if isinstance(why.get(id(row)), kinds)]

    def add_check(self, key: Any, write: Write, row: LockRow | None) -> None:
        """Add the check of an item, which must not carry the intent of another transaction."""
        self.by_key[key] = RowWrite(
            None, row, write, filled=None if row is None else protocol.has_no_intent(row.attribute)
        )

    def commit(self, guards: Sequence[RowWrite] = ()) -> dict[str, Any]:
        """Send the transaction, and note what became of it."""
        try:
            data = self.send_under_locks(guards)
        except Exception as error:
            self.note_refusal(error)
            raise
        self.note_commit()
        return data

    def send_under_locks(self, guards: Sequence[RowWrite] = ()) -> dict[str, Any]:
        """Send the transaction, with these additional rows."""
        for held in self.deleted_locks:  # from now on DynamoDB may have deleted them with their items
            held.note(EntryOwnership.deleting, expected=True)
        with self._last_under_locks() as checks:
            self.ask(list(self.by_key.values()), [*guards, *checks])
            return send.send(self)

    def note_refusal(self, error: BaseException) -> None:
        """Note that the locks are not deleted, unless the outcome is unknown."""
        for held in () if isinstance(error, OutcomeUnknown) else self.deleted_locks:
            held.note(EntryOwnership.deleting, expected=False)

    def note_commit(self) -> None:
        """Note the entries that are gone; update the instances, and note deleted items, which `edit` must not save."""
        with event_stream.scope(keeps=False):  # what the commit has consumed is reported with the commit, once
            for held in (*self.deleted_locks, *self.removed):
                held_lock.note_left(held, None)
        for key in self._writers:
            note_applied(self.by_key[key].write)
        for held, is_deleted in self._written_items.items():
            held.item.is_deleted = is_deleted


def note_applied(write: Write | None) -> None:
    """Update an instance after a transaction has applied its write."""
    if write is None or write.operation not in (SAVE, UPDATE):
        return
    is_known = write.operation is SAVE and (write.part.is_checked or write.part.shape.version is None)
    write.note_stored()
    if not write.is_shown and (write.is_strict or not is_known):
        versions.mark_stale(write.item)
