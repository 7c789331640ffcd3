"""The actions of one native transaction, and what becomes of instances and locks once it is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._core.outcome import Kind
from pynamo_locking._io import guards, locked, versions
from pynamo_locking._io.commit import Action
from pynamo_locking._io.items import EmbeddedItem, GuardedItem, action_of
from pynamo_locking._io.writes import DELETE, SAVE, UPDATE
from pynamo_locking.exceptions import ConfigurationError, OutcomeUnknown

if TYPE_CHECKING:
    from pynamo_locking._io.items import FreeItem
    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Row
    from pynamo_locking._io.writes import Write


class Assembly:
    """Collects the actions of a native transaction.

    Attributes:
        actions: those of the caller, by the key of their item, in the caller's order.
        guards: what has to be checked or written besides.
    """

    def __init__(self) -> None:
        self.actions: dict[Any, Action] = {}
        self.guards: list[Action] = []
        self._written_items: dict[OwnEntry, bool] = {}  # locked in a row of its own; whether it is deleted
        self._deleted_locks: list[OwnEntry] = []  # the lock goes with its item

    def add_write(self, key: Any, writer: FreeItem, write: Write) -> None:
        """Add the write of an item, with the check of its lock if we hold that."""
        request = writer.action(write)
        self.actions[key] = Action(request, write)
        if isinstance(writer, EmbeddedItem):
            number = 0 if writer.own is None else writer.own.last_write
            self.actions[key] = Action(request, write, writer.row, writer.own, number)
            if writer.own is not None and write.operation is DELETE:
                self._deleted_locks.append(writer.own)
        elif isinstance(writer, GuardedItem):
            self._guard_row(writer.own)
            if write.operation in (SAVE, DELETE):
                self._written_items[writer.own] = write.operation is DELETE

    def _guard_row(self, own: OwnEntry) -> None:
        """Add the check of the lock row, once."""
        if self.guards_row_of(own):
            return
        number = own.next_write()
        self.guards.append(Action(locked.row_guard(own, number, Kind.KEEP), None, own.row, own, number))

    def guards_row_of(self, own: OwnEntry) -> bool:
        """Tell whether the check of a lock row is there already.

        Raises:
            ConfigurationError: it is that of another part of the same lock, and one action cannot be both.
        """
        found = [
            action.own for action in self.guards if action.row is not None and action.row.identity == own.row.identity
        ]
        if found and found[0] is not own:
            raise ConfigurationError(
                f"one transaction cannot write under two ranges of {own.row.label}, which are locked apart: take one "
                f"range that spans both."
            )
        return bool(found)

    def add_check(self, key: Any, write: Write, row: Row | None) -> None:
        """Add the check of an item, which no other transaction may have either."""
        guard = None if row is None else guards.unmarked(row.attribute)
        self.actions[key] = Action(action_of(write, guard), write, row)

    def before_commit(self) -> None:
        """Note that locks may be gone from now on, with the items that carry them."""
        for own in self._deleted_locks:
            own.may_delete = True

    def note_refusal(self, error: BaseException) -> None:
        """After a definite refusal the locks are not deleted, whatever becomes of their entries."""
        if isinstance(error, OutcomeUnknown):
            for action in self.actions.values():
                if action.write is not None and locked.OWN_ENTRY in vars(action.write.item):
                    action.write.note_doubt()
            return
        for own in self._deleted_locks:
            own.may_delete = False

    def note_commit(self) -> None:
        """Make the instances what they are now; `edit` must not save deleted items again."""
        for action in self.actions.values():
            if action.write is not None:
                note_applied(action.write)
        for own, is_deleted in self._written_items.items():
            own.is_item_deleted = is_deleted
        for own in self._deleted_locks:
            locked.left(own, None)


def note_applied(write: Write) -> None:
    """Make an instance what it is after a transaction has applied a write."""
    if write.operation not in (SAVE, UPDATE):
        return
    is_known = write.operation is SAVE and (write.part.is_checked or write.part.shape.version is None)
    if write.is_strict and write.part.is_checked:  # of a transaction, perhaps from another instance
        versions.assume(write.item, write.part.before)
    versions.promise(write.item, write.part)
    write.item.update_local_version_attribute()
    if not (is_known or write.is_shown):
        versions.outdate(write.item, is_locked=locked.OWN_ENTRY in vars(write.item))
