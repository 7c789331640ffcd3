"""The three writers of an item: without a lock held, with its embedded lock, under a lock in another row."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PutError, PynamoDBException, TransactWriteError
from pynamodb.models import Model
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.outcome import EntryEffect
from pynamo_locking._io import answers, event_stream, lock_document, retries
from pynamo_locking._io.retries import Unavailable
from pynamo_locking._items import clauses, knowledge
from pynamo_locking._locks import context, guards
from pynamo_locking._writes import beside, inside, outside, refusals, reports
from pynamo_locking._writes.plans import check_actions, plan_delete, plan_save, plan_update
from pynamo_locking._writes.write import DELETE, UPDATE, action_of
from pynamo_locking.exceptions import Conflict, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.queue import LockState
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking._writes.barrier import Barrier
    from pynamo_locking._writes.write import Write

logger = logging.getLogger("pynamo_locking")

#: Where an instance keeps the lock document that PynamoDB's own TransactWrite will store.
_PUT_DOCUMENT = "_pynamo_locking_put_document"


class PlainWriter:
    """Writes an item that carries no lock, and whose lock in another row, if any, this context does not hold."""

    #: The held entry under which the item is written; None from outside a lock.
    own: HeldEntry | None = None
    #: Stored name of an attribute that no action may change.
    protected: str | None = None
    #: Stored names of declared attributes that a save leaves alone. If there are any, a save is an update.
    surviving: Collection[str] = ()
    #: The caller's name of the transaction that the writes will be part of.
    token: str | None = None
    #: Returns an additional condition of a save that is sent at once.
    kept: Callable[[], Condition] | None = None

    def __init__(self, item: Model) -> None:
        self.item = item

    @property
    def is_locked(self) -> bool:
        """Whether this context holds the lock of the item."""
        return self.own is not None

    def plan_save(
        self,
        condition: Condition | None,
        *,
        checks_version: bool,
        error: type[PynamoDBException] = PutError,
        stored: Image | None = None,
    ) -> Write:
        """Return the save without the lock's part; for `stored` see `clauses.save_actions`."""
        check_copy(self.item, self.own)
        options: Any = {"kept": self.surviving, "error": error, "token": self.token, "stored": stored}
        return plan_save(self.item, condition, checks_version=checks_version, **options)

    def plan_update(self, actions: Sequence[Action], condition: Condition | None, *, checks_version: bool) -> Write:
        """Return the update without the lock's part."""
        check_actions(self.item, self.protected, actions)
        return plan_update(self.item, actions, condition, checks_version=checks_version, token=self.token)

    def plan_delete(self, condition: Condition | None, *, checks_version: bool) -> Write:
        """Return the delete without the lock's part."""
        return plan_delete(self.item, condition, checks_version=checks_version)

    def save(self, condition: Condition | None, *, checks_version: bool, kind: EntryEffect = EntryEffect.KEEP) -> Any:
        """Save the item."""
        kept = None if self.kept is None else self.kept()
        write = self.plan_save(clauses.both(condition, kept), checks_version=checks_version)
        write.kind = kind
        return self._write(write)

    def update(self, actions: Sequence[Action], condition: Condition | None, *, checks_version: bool) -> Any:
        """Apply actions, and load the stored item from the response."""
        return self._write(self.plan_update(actions, condition, checks_version=checks_version))

    def delete(self, condition: Condition | None, *, checks_version: bool) -> Any:
        """Delete the item."""
        return self._write(self.plan_delete(condition, checks_version=checks_version))

    def touch(self, condition: Condition | None, *, checks_version: bool) -> Any:
        """Increment the version."""
        return self._write(plan_update(self.item, [], condition, checks_version=checks_version))

    def _write(self, write: Write) -> dict[str, Any]:
        try:
            data = self._send(write)
        except (Conflict, OutcomeUnknown) as error:
            if self.is_locked and isinstance(error, OutcomeUnknown):
                write.note_doubt()
            if event_stream.listeners:
                reports.write_failed(write, error)
            raise
        return self._done(write, data)

    def _send(self, write: Write) -> dict[str, Any]:
        return outside.send(write)

    def _done(self, write: Write, data: dict[str, Any]) -> dict[str, Any]:
        """Read the item if needed: a transaction returns no attributes."""
        if "Attributes" in data or not (write.operation is UPDATE or write.return_values == "UPDATED_NEW"):
            write.done(data)
            return data
        try:
            retries.patiently(self._read_back)
        except (PynamoDBException, Unavailable) as error:  # the write was applied nevertheless
            logger.warning("%s was updated, and could not be read afterwards: %s", write.label, error)
            knowledge.expect(self.item, write.part)
            self.item.update_local_version_attribute()
            knowledge.mark_old(self.item)
            return {}
        return {"Attributes": self.item.serialize()}

    def _read_back(self) -> None:
        """Load the written item; `Unavailable` if no response came and the lease has not ended."""
        try:
            Model.refresh(self.item, consistent_read=True)
        except PynamoDBException as error:
            may_wait = self.own is None or self.own.remaining
            if may_wait and isinstance(error.cause, Exception) and answers.is_transient(error.cause):
                raise Unavailable(error.cause) from error
            raise

    def action(self, write: Write, number: int | None = None) -> dict[str, Any]:  # noqa: ARG002 - of a lock in the item
        """Return a write as an action of a transaction, with the lock's part, under that number or the next."""
        return action_of(write)

    def put(self, condition: Condition | None) -> tuple[Write, dict[str, Any]]:
        """Return the save of PynamoDB's own TransactWrite, which is always a Put, and its request."""
        write = plan_save(self.item, condition, checks_version=True, error=TransactWriteError)
        return write, write.kwargs()


class InsideWriter(PlainWriter):
    """Writes an item that carries its own lock, under the held entry `own` or, if that is None, from outside.

    A save sets every declared attribute, removes those without a value, and leaves the lock alone.
    """

    def __init__(self, item: Model, lock: Attribute[Any], row: LockRow, own: HeldEntry | None) -> None:
        super().__init__(item)
        self.lock = lock
        self.protected = lock.attr_name
        self.surviving = {row.attribute, row.ttl_attribute or row.attribute}
        self.row = row
        self.own = own

    @override
    def _send(self, write: Write) -> dict[str, Any]:
        if self.own is None:
            return outside.send(write, self.row)
        return inside.inside(self.own, write)

    @override
    def action(self, write: Write, number: int | None = None) -> dict[str, Any]:
        if self.own is None:
            return action_of(write, guards.unlocked(self.row), guards.founding(self.row))
        number = self.own.next_write() if number is None else number
        return action_of(write, guards.standing(self.own, number), [guards.counting(self.own, number)])

    @override
    def put(self, condition: Condition | None) -> tuple[Write, dict[str, Any]]:
        """A Put writes the whole lock document, so the stored document must be the loaded one.

        Raises:
            ItemLocked: the loaded document shows another holder in the queue.
            ConfigurationError: the item was loaded before the lock was acquired.
        """
        state: LockState = self.lock.__get__(self.item, type(self.item))
        document = self._next_document(state)
        write = plan_save(self.item, condition, checks_version=True, error=TransactWriteError)
        vars(self.item).pop(_PUT_DOCUMENT, None)
        assert write.attributes is not None  # noqa: S101 - it is a Put
        if document is not None:
            vars(self.item)[_PUT_DOCUMENT] = document
            write.attributes[self.lock.attr_name] = {"M": document}
        elif self.row.may_create and not state.raw:
            write.attributes[self.lock.attr_name] = lock_document.EMPTY
        return write, write.kwargs(guards.unchanged(self.row, state.raw))

    def _next_document(self, state: LockState) -> dict[str, Any] | None:
        """Return the lock document with this write's number in it; None outside the lock."""
        lock_document.trusted(self.row, state)
        if state.mark is not None:
            raise ConfigurationError(
                f"this copy of {self.row.label} was read while a transaction had marked the item: refresh() it first."
            )
        if self.own is None:
            if state.entries:
                raise refusals.locked_out(self.row, state, TransactWriteError)
            return None
        if state.raw is None or state.find(self.own.entry.id, self.own.entry.ticket) is None:
            if state.next_ticket > self.own.entry.ticket:  # the copy was read after the entry had joined and left
                raise self.own.absent_from(state)
            raise ConfigurationError(
                f"this copy of {self.row.label} was loaded before the lock was acquired. Use lock.item, or refresh() "
                f"it."
            )
        return lock_document.with_write_counted(state.raw, self.own.entry.id, self.own.next_write())


def put_document(item: Model) -> LockState | None:
    """Return and forget the lock document that a committed Put has stored."""
    document = vars(item).pop(_PUT_DOCUMENT, None)
    return None if document is None else lock_document.state_of(document)


class BesideWriter(PlainWriter):
    """Writes an item under held entries in other rows (its own lock, a range, the table): one transaction each.

    The `barriers` are of locks that this context does not hold, and that must not be in the way.
    """

    def __init__(self, item: Model, owns: Sequence[HeldEntry], barriers: Sequence[Barrier] = ()) -> None:
        super().__init__(item)
        self.owns = owns
        self.barriers = barriers
        self.own = next(iter(owns), None)

    @property
    def checked(self) -> tuple[HeldEntry | Barrier, ...]:
        """What the transaction checks in other rows."""
        return *self.owns, *self.barriers

    @override
    def save(self, condition: Condition | None, *, checks_version: bool, kind: EntryEffect = EntryEffect.KEEP) -> Any:
        data = super().save(condition, checks_version=checks_version, kind=kind)
        self._note_deleted(is_deleted=False)
        return data

    def _note_deleted(self, *, is_deleted: bool) -> None:
        if self.own is not None:
            self.own.is_item_deleted = is_deleted

    @override
    def delete(self, condition: Condition | None, *, checks_version: bool) -> Any:
        """Delete the item; its lock stays."""
        data = super().delete(condition, checks_version=checks_version)
        self._note_deleted(is_deleted=True)
        return data

    @override
    def _send(self, write: Write) -> dict[str, Any]:
        if write.operation is DELETE and self.is_locked:
            write.kind = EntryEffect.KEEP
        beside.beside(self.owns, write, action_of(write), self.barriers)
        return {}


def check_copy(item: Model, own: HeldEntry | None) -> None:
    """Refuse to save a whole item that was read under an earlier lock: another holder may have changed it since."""
    before: HeldEntry | None = vars(item).get(context.OWN_ENTRY)
    if own is None or before is None or before is own:
        return
    if before.row.identity == own.row.identity:
        raise ConfigurationError(
            f"this copy of {own.row.label} was read under an earlier lock; saving it could undo writes of other "
            f"holders. Use lock.item, or refresh() it."
        )
