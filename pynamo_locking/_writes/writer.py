"""Writes an item: plans, sends, and tells the instance what became of it; many items in one request.

A save replaces the whole item. A statement can create an item, or change the attributes that it names. So a save is
said as an INSERT of a new item, and as an UPDATE of an item whose attributes are known by its write id. All that cannot
be said, or was not applied, is sent alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import DeleteError, PutError, PynamoDBException, UpdateError
from pynamodb.models import Model

from pynamo_locking._core.dynamodb import Answer, RetryPolicy, RetryState
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._io import batch_requests, client, responses
from pynamo_locking._io.batch_requests import StatementResult
from pynamo_locking._io.client import Unavailable
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._items import conditions, expiry, keys, versions
from pynamo_locking._pynamodb import connection_of
from pynamo_locking._writes import send
from pynamo_locking._writes import write as write_module
from pynamo_locking._writes.send import Check, RowWrite
from pynamo_locking._writes.unique_rows import rows_of_delete, rows_of_save, rows_of_update
from pynamo_locking._writes.write import DELETE, SAVE, UPDATE, Write
from pynamo_locking.exceptions import Conflict, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._writes.send import ForeignLockCheck


class Writer:
    """Writes an item: without a lock held, with its embedded lock, or under held entries in separate rows.

    A save of an item with an embedded lock sets every declared attribute, removes those without a value, and leaves the
    lock alone.

    Args:
        held_entries: in the embedded lock, or of its own lock, of a range, and of the table.
        lock: the attribute of the embedded lock, which is in `row`.
        foreign_checks: of locks that this context does not hold, and that must not be in the way.

    Attributes:
        held: the entry of its own lock; None from outside a lock.
        is_embedded: whether the item carries its lock.
        separate: what a write checks in other rows.
        surviving: stored names of declared attributes that a save leaves alone. If there are any, it is an update.
        token: the caller's name of the transaction that the writes will be part of.
        kept: returns an additional condition of a save that is sent at once.
    """

    token: str | None = None
    kept: Callable[[], Condition] | None = None

    def __init__(
        self,
        item: Model,
        held_entries: Sequence[HeldEntry] = (),
        *,
        lock: Attribute[Any] | None = None,
        row: LockRow | None = None,
        foreign_checks: Sequence[ForeignLockCheck] = (),
    ) -> None:
        self.item: Model = item
        self.lock: Attribute[Any] | None = lock
        self.row: LockRow | None = row
        self.held_entries: Sequence[HeldEntry] = held_entries
        self.foreign_checks: Sequence[ForeignLockCheck] = foreign_checks
        self.held: HeldEntry | None = next(iter(held_entries), None)
        self.is_embedded: bool = row is not None
        self.separate: Sequence[HeldEntry | ForeignLockCheck] = ()
        if not self.is_embedded:
            self.separate = (*held_entries, *foreign_checks)
        self.surviving: tuple[str, ...] = () if row is None else (row.attribute, row.ttl_attribute or row.attribute)

    def plan_save(
        self,
        condition: Condition | None,
        *,
        checks_version: bool,
        error: type[PynamoDBException] = PutError,
        stored: Image | None = None,
        kind: EntryEffect = EntryEffect.KEEP,
    ) -> Write:
        """Return the save without the lock's part: a Put, as in PynamoDB, or an update.

        It is an update if attributes survive, and if it increments an unknown stored version.

        Args:
            condition: the caller's.
            checks_version: whether the stored version must be the one that was read.
            error: what PynamoDB raises when a save of this kind fails.
            stored: see `conditions.save_actions`.
            kind: its effect on the held entry.
        """
        item, kept = self.item, self.surviving
        if checks_version:
            versions.check_current(item, error)
        part = versions.part_of(item, is_checked=checks_version, token=self.token)
        whole = part.shape.or_expired(conditions.both(condition, part.condition()))
        values = item.serialize(null_check=True)
        unique_rows = None
        if part.shape.unique is not None:
            unique_rows = rows_of_save(item, values, error, checks_version=checks_version)
        actions: Sequence[Action] = ()
        attributes: Image | None = None
        return_values: str | None = None
        if kept or (not checks_version and part.shape.attribute is not None):
            actions = conditions.save_actions(item, values, kept, part, stored or {})
            return_values = None if checks_version else "UPDATED_NEW"
        else:
            key = {each.attr_name for each in keys.stored_keys(type(item))}
            attributes = {name: value for name, value in values.items() if name not in key}
            part.complete_put(attributes)
        return Write(
            item,
            SAVE,
            part,
            whole,
            actions,
            attributes,
            values=values,
            kind=kind,
            return_values=return_values,
            unique_rows=unique_rows,
        )

    def check_actions(self, actions: Sequence[Action]) -> None:
        """Refuse a value that is not a list of actions, and actions on the lock itself."""
        if not isinstance(actions, list) or not actions:
            raise TypeError("the value of `actions` is expected to be a non-empty list")
        for action in actions:
            changed = conditions.changed_by(action)
            if self.lock is not None and changed == self.lock.attr_name:
                raise ConfigurationError(
                    f"{action!r} would change the lock of {type(self.item).__name__} behind its back; "
                    f"use locked() or break_lock()."
                )

    def plan_update(self, actions: Sequence[Action], condition: Condition | None, *, checks_version: bool) -> Write:
        """Return the update without the lock's part, whose response is the item after it.

        An update that does not check the version and would change the item again if repeated is sent only once.
        """
        self.check_actions(actions)
        return self._plan_update(actions, condition, checks_version=checks_version)

    def _plan_update(self, actions: Sequence[Action], condition: Condition | None, *, checks_version: bool) -> Write:
        item = self.item
        part = versions.part_of(item, is_checked=checks_version, token=self.token)
        whole = conditions.both(conditions.both(condition, part.condition()), conditions.same_class(item))
        unique_rows = None
        if part.shape.unique is not None:
            unique_rows = rows_of_update(item, actions, UpdateError, checks_version=checks_version)
        return Write(
            item,
            UPDATE,
            part,
            whole,
            [*actions, *part.actions()],
            is_repeatable=part.is_checked or conditions.is_repeatable(actions),
            return_values="ALL_NEW",
            unique_rows=unique_rows,
        )

    def plan_delete(self, condition: Condition | None, *, checks_version: bool) -> Write:
        """Return the delete without the lock's part."""
        part = versions.part_of(self.item, is_checked=checks_version)
        whole = conditions.both(condition, part.condition())
        unique_rows = None
        if part.shape.unique is not None:
            unique_rows = rows_of_delete(self.item, DeleteError, checks_version=checks_version)
        return Write(self.item, DELETE, part, whole, kind=EntryEffect.DELETE, unique_rows=unique_rows)

    def save(self, condition: Condition | None, *, checks_version: bool, kind: EntryEffect = EntryEffect.KEEP) -> Any:
        """Save the item."""
        if self.kept is not None:
            condition = conditions.both(condition, self.kept())
        data = self.send(self.plan_save(condition, checks_version=checks_version, kind=kind))
        self._note_deleted(is_deleted=False)
        return data

    def update(self, actions: Sequence[Action], condition: Condition | None, *, checks_version: bool) -> Any:
        """Apply actions, and load the stored item from the response."""
        return self.send(self.plan_update(actions, condition, checks_version=checks_version))

    def delete(self, condition: Condition | None, *, checks_version: bool) -> Any:
        """Delete the item; a separate lock stays."""
        write = self.plan_delete(condition, checks_version=checks_version)
        if self.held is not None and not self.is_embedded:
            write = write.but(kind=EntryEffect.KEEP)
        data = self.send(write)
        self._note_deleted(is_deleted=True)
        return data

    def _note_deleted(self, *, is_deleted: bool) -> None:
        if self.held is not None and not self.is_embedded:
            self.held.item.is_deleted = is_deleted

    def touch(self, condition: Condition | None, *, checks_version: bool) -> Any:
        return self.send(self._plan_update([], condition, checks_version=checks_version))

    def send(self, write: Write, *, is_unanswered: bool = False) -> dict[str, Any]:
        """Send a write of the item, and tell the instance what became of it. See `ItemWork` for `is_unanswered`."""
        return self.note_applied(write, self.send_only(write, is_unanswered=is_unanswered))

    def send_only(self, write: Write, *, is_unanswered: bool = False) -> dict[str, Any]:
        """Send a write of the item as `send` does, and leave it to `note_applied` to tell the instance."""
        try:
            return send.send_item(write, self.held_entries, self.row, self.foreign_checks, is_unanswered=is_unanswered)
        except (Conflict, OutcomeUnknown) as error:
            write_module.write_failed(write, error)
            raise

    def note_applied(self, write: Write, data: dict[str, Any]) -> dict[str, Any]:
        """Read the item if needed: a transaction returns no attributes."""
        if "Attributes" in data or not (write.operation is UPDATE or write.return_values == "UPDATED_NEW"):
            write.done(data)
            return data
        try:
            client.patiently(self._read_back)
        except (PynamoDBException, Unavailable) as error:  # the write was applied nevertheless
            logger.warning("%s was updated, and could not be read afterwards: %s", write.label, error)
            write.note_stored()
            versions.mark_stale(self.item)
            return {}
        return {"Attributes": self.item.serialize()}

    def _read_back(self) -> None:
        """Load the written item; `Unavailable` if no response came and the lease has not ended."""
        try:
            Model.refresh(self.item, consistent_read=True)
        except PynamoDBException as error:
            may_wait = self.held is None or self.held.remaining
            if may_wait and isinstance(error.cause, Exception) and responses.is_transient(error.cause):
                raise Unavailable(error.cause) from error
            raise

    def row_write(self, write: Write, number: int = 0) -> RowWrite:
        """Return a write to be sent with others; under a held embedded lock with that number, unless renumbered."""
        if self.held is None or not self.is_embedded:
            return RowWrite(None, self.row, write)
        return RowWrite(None, self.row, write, Check(self.held, number))

    def statement(self, write: Write) -> dict[str, Any]:
        """Return a write as the request that a statement says."""
        [kwargs] = self.row_write(write).request.values()
        kwargs.pop("ReturnValues", None)
        return kwargs  # type: ignore[no-any-return]


# Sends saves and deletes of many items as statements, 25 in a request, each with the conditions of its single write.


@dataclass
class BatchedWrite:
    """A write, and the statement for it.

    Attributes:
        is_unanswered: whether it may have been applied.
    """

    writer: Writer
    write: Write
    request: batch_requests.StatementWrite
    is_unanswered: bool = False

    def done(self) -> None:
        """Update the instance after the write was applied."""
        self.writer.note_applied(self.write, {})

    def send_alone(self) -> None:
        """Send what is not known to be applied."""
        self.writer.send(self.write, is_unanswered=self.is_unanswered)


def as_statement(writer: Writer, write: Write) -> BatchedWrite | None:
    """Return a write of which a statement does the same; None if there is no such statement.

    Sent alone are writes that change unique values, those whose lock is held or checked in another row, those that
    store what only DynamoDB knows, and those without any condition.
    """
    if writer.held is not None or writer.separate or not write.part.is_checked:
        return None
    if write.operation is DELETE:
        request: Any = "DeleteItem", {**writer.statement(write), "ReturnValues": "ALL_OLD"}
    else:
        request = _saving(writer, write)
    if request is None or (write.unique_rows is not None and write.unique_rows.rows):
        return None
    operation, kwargs = request
    # No hidden retries: a repeated INSERT could create again what was deleted since.
    connection = client.single_attempt(connection_of(write.item).connection)
    return BatchedWrite(writer, write, batch_requests.StatementWrite(connection, operation, kwargs))


def _saving(writer: Writer, write: Write) -> tuple[str, dict[str, Any]] | None:
    if writer.row is not None and writer.row.may_create:
        return None
    if write.part.before.version is not None:
        return _updating(writer, write)
    if not expiry.holds_without_item(write.condition):
        return None
    kwargs = write.kwargs()
    key = kwargs.get("Key", {})
    return "PutItem", {"TableName": kwargs["TableName"], "Item": kwargs.get("Item") or {**key, **write.stored()}}


def _updating(writer: Writer, write: Write) -> tuple[str, dict[str, Any]] | None:
    """Return the update that leaves the item as the save would leave it; None if it would remove several attributes."""
    removable = versions.removable(write.item)
    if removable is None or write.part.before.write_id is None:
        return None
    stored, lasting = write.stored(), write.part.shape.lasting
    absent = {each.attr_name for each in write.item.get_attributes().values()} - {*stored, *lasting, *writer.surviving}
    removed = removable - stored.keys() if write.attributes is not None else removable & absent
    if len(removed) > 1:
        return None
    actions: list[Action] = [Place(name).set(Stored(value)) for name, value in stored.items()]
    actions += [Place(name).remove() for name in removed]
    still = (Place(name).does_not_exist() for name in sorted(absent - removed))
    said = write.but(attributes=None, actions=actions, condition=reduce(conditions.both, still, write.condition))
    return "UpdateItem", writer.statement(said)


def send_batch(batch: Sequence[BatchedWrite]) -> list[bool]:
    """Send up to 25 writes of one table, and again while DynamoDB is too busy; tell which are known to be applied."""
    for each in batch:
        each.is_unanswered = True
    results = batch_requests.send([each.request for each in batch])
    sending = RetryState(RetryPolicy(is_single=True))
    while StatementResult.BUSY in results and client.is_sent_again(sending, Answer.BUSY):
        again = [i for i, result in enumerate(results) if result is StatementResult.BUSY]
        for i, result in zip(again, batch_requests.send([batch[i].request for i in again]), strict=True):
            results[i] = result
    for each, result in zip(batch, results, strict=True):
        each.is_unanswered = result is StatementResult.UNKNOWN
    return [result is StatementResult.APPLIED for result in results]
