"""The actions of one native transaction, and its effects on instances and locks once it is committed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.outcome import EntryEffect
from pynamo_locking._items import knowledge
from pynamo_locking._locks import context, guards, held_entry, holding
from pynamo_locking._locks.held_entry import HeldEntry
from pynamo_locking._writes import beside
from pynamo_locking._writes.claims import merged
from pynamo_locking._writes.native import TransactAction
from pynamo_locking._writes.write import DELETE, SAVE, UPDATE, action_of
from pynamo_locking._writes.writers import BesideWriter, InsideWriter
from pynamo_locking.exceptions import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._writes.barrier import Barrier
    from pynamo_locking._writes.claims import Claims
    from pynamo_locking._writes.write import Write
    from pynamo_locking._writes.writers import PlainWriter


class Assembly:
    """Collects the actions of a native transaction.

    Attributes:
        actions: the caller's, by the key of their item, in the caller's order.
        rows: the held entries in lock rows that the transaction must also check.
        barriers: of locks that are not held and must not be in the way, by the identity of their row.
        guards: the checks of those rows, under `last_under_locks`.
        deleted_locks: the held entries in embedded locks of deleted items, which DynamoDB deletes with them.
    """

    def __init__(self) -> None:
        self.actions: dict[Any, TransactAction] = {}
        self.rows: list[HeldEntry] = []
        self.barriers: dict[Any, Barrier] = {}
        self.guards: list[TransactAction] = []
        self._writers: dict[Any, PlainWriter] = {}
        self._written_items: dict[HeldEntry, bool] = {}  # items locked in another row; whether they are deleted
        self.deleted_locks: list[HeldEntry] = []

    def add_write(self, key: Any, writer: PlainWriter, write: Write) -> None:
        """Add the write of an item, with the check of its lock if this context holds it."""
        self.actions[key] = _action(writer, write, {})
        self._writers[key] = writer
        if isinstance(writer, InsideWriter):
            if writer.own is not None and write.operation is DELETE:
                self.deleted_locks.append(writer.own)
        elif isinstance(writer, BesideWriter):
            self._check_beside(writer)
            if writer.own is not None and write.operation in (SAVE, DELETE):
                self._written_items[writer.own] = write.operation is DELETE

    def _check_beside(self, writer: BesideWriter) -> None:
        for new in self.unguarded(writer):
            if isinstance(new, HeldEntry):
                self.rows.append(new)
        for barrier in writer.barriers:
            self.barriers.setdefault(barrier.row.identity, barrier).join(barrier)

    @property
    def beside(self) -> list[HeldEntry | Barrier]:
        """What the transaction checks in other rows than those of its items."""
        return [*self.rows, *self.barriers.values()]

    @property
    def size(self) -> int:
        """How many actions the transaction has, at most."""
        return len(self.actions) + len(self.beside) + sum(len(claims.rows) for claims in self.claims)

    def unguarded(self, writer: BesideWriter) -> list[HeldEntry | Barrier]:
        """Return what a writer has to check in rows that the transaction does not check yet."""
        held = {own.row.identity for own in (*self.rows, *writer.owns)}
        barred = {*self.barriers, *(barrier.row.identity for barrier in writer.barriers)}
        if held & barred:
            raise ConfigurationError(
                "one transaction cannot write inside and outside of a range that is locked here, if all writes are "
                "checked (Meta.enforce): lock one range that spans both."
            )
        owns = [own for own in writer.owns if not self.guards_row_of(own)]
        return [*owns, *(barrier for barrier in writer.barriers if barrier.row.identity not in self.barriers)]

    @contextlib.contextmanager
    def last_under_locks(self) -> Iterator[None]:
        """Renumber the writes under held locks, and keep other threads from writing under them until the block ends.

        Other writes may have been numbered since these were added, and DynamoDB refuses a write whose number is not
        the highest.
        """
        embedded = {key: action for key, action in self.actions.items() if action.own is not None}
        named = {*self.rows, *(action.own for action in embedded.values() if action.own is not None)}
        with contextlib.ExitStack() as held:
            numbers = {own: held.enter_context(own.writing()) for own in held_entry.in_order(named)}
            row_guards = [(own, beside.row_guard(own, numbers[own], EntryEffect.KEEP)) for own in self.rows]
            self.guards = [TransactAction(guard, None, own.row, own, numbers[own]) for own, guard in row_guards]
            self.guards += [TransactAction(each.request, barrier=each) for each in self.barriers.values()]
            self.guards += self._rows_of_values()
            for key, before in embedded.items():
                assert before.write is not None  # noqa: S101 - only writes name an entry
                self.actions[key] = _with_key_of(before, _action(self._writers[key], before.write, numbers))
            yield

    @property
    def claims(self) -> list[Claims]:
        """What the writes do to the rows of unique values."""
        writes = [action.write for action in self.actions.values()]
        return [write.claims for write in writes if write is not None and write.claims is not None]

    def _rows_of_values(self) -> list[TransactAction]:
        token = next((writer.token for writer in self._writers.values()), None)
        planned = [row.plan(TransactWriteError, token) for row in merged(self.claims)]
        return [TransactAction(writer.action(write), write, writer.row) for writer, write in planned]

    def guards_row_of(self, own: HeldEntry) -> bool:
        """Tell whether the transaction checks a lock row already; refuse a check of another range in that row."""
        found = next((each for each in self.rows if each.row.identity == own.row.identity), None)
        if found is not None and found is not own:
            raise ConfigurationError(
                f"one transaction cannot write under two separately locked ranges of {own.row.label}: lock one range "
                f"that spans both."
            )
        return found is not None

    def add_check(self, key: Any, write: Write, row: LockRow | None) -> None:
        """Add the check of an item, which must not carry the mark of another transaction."""
        guard = None if row is None else guards.unmarked(row.attribute)
        self.actions[key] = TransactAction(action_of(write, guard), write, row)

    def before_commit(self) -> None:
        """Note that from now on DynamoDB may have deleted held locks with their items."""
        for own in self.deleted_locks:
            own.expect_delete(expected=True)

    def note_refusal(self, error: BaseException) -> None:
        """Note that the locks are not deleted, or, after an unknown outcome, that updated instances may be stale."""
        if isinstance(error, OutcomeUnknown):
            for key, writer in self._writers.items():
                write = self.actions[key].write
                if writer.is_locked and write is not None:
                    write.note_doubt()
            return
        for own in self.deleted_locks:
            own.expect_delete(expected=False)

    def note_commit(self) -> None:
        """Update the instances, and note deleted items, which `edit` must not save again."""
        for action in self.actions.values():
            if action.write is not None:
                note_applied(action.write)
        for own, is_deleted in self._written_items.items():
            own.is_item_deleted = is_deleted
        for own in self.deleted_locks:
            holding.left(own, None)


def _action(writer: PlainWriter, write: Write, numbers: Mapping[HeldEntry, int]) -> TransactAction:
    if not isinstance(writer, InsideWriter):
        return TransactAction(writer.action(write), write)
    own = writer.own  # `last_under_locks` gives the final number
    number = 0 if own is None else numbers.get(own, own.last_write + 1)
    return TransactAction(writer.action(write, number), write, writer.row, writer.own, number)


def _with_key_of(before: TransactAction, action: TransactAction) -> TransactAction:
    """Keep the key that the action had when it was added: the caller may have changed the instance's key since."""
    for verb, kwargs in action.request.items():
        kwargs.update({part: before.request[verb][part] for part in ("Key", "Item") if part in kwargs})
    return action


def note_applied(write: Write) -> None:
    """Update an instance after a transaction has applied its write."""
    if write.operation not in (SAVE, UPDATE):
        return
    is_known = write.operation is SAVE and (write.part.is_checked or write.part.shape.version is None)
    write.note_stored()
    if not write.is_shown and (write.is_strict or not is_known):
        knowledge.mark_old(write.item, is_locked=context.OWN_ENTRY in vars(write.item))
