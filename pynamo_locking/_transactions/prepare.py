"""Prepare: writes the intent of a transaction into each item, next to its committed values.

An intent says what the item will be; its values stay as they are until the decision. All of it is worked out before the
transaction is decided, since after that DynamoDB must not refuse it.

An intent is written on condition that the item is the one that was read (R1), that no other transaction has an intent
there (R2), and that the item's lock is free or ours. A new item gets a placeholder, in a native transaction that also
asks for the pending record (R8). So a late copy cannot create it again after it was finished and deleted.

A copy of an intent may arrive after an abort. `IntentWrite` counts the copies that got no response: only without such a
copy may the record say that nothing of the transaction is left. Rejected: reading all items again before the abort,
which proves nothing of copies that are still on their way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.update import RemoveAction
from typing_extensions import override

from pynamo_locking._core import dynamodb
from pynamo_locking._core.dynamodb import PASSING, Answer, Next, RetryPolicy, problems
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import IDLE_TTL_S, backoff
from pynamo_locking._core.lock_queue import WriteIntent
from pynamo_locking._core.transactions import MOST_BYTES_IN_ITEM, MOST_BYTES_OF_CHANGES, CannotBeStaged
from pynamo_locking._core.values import Refusal as Invalid
from pynamo_locking._core.values import item_size
from pynamo_locking._core.write_outcome import Outcome
from pynamo_locking._io import (
    batch_requests,
    client,
    event_stream,
    lock_record,
    lock_requests,
    protocol,
    responses,
    runtime,
    transaction_record,
)
from pynamo_locking._io.batch_requests import StatementResult
from pynamo_locking._io.batch_requests import StatementWrite as Request
from pynamo_locking._io.model_doors import lock_attribute_of
from pynamo_locking._io.protocol import Clause
from pynamo_locking._io.responses import has_foreign
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._io.write_intents import Resolver
from pynamo_locking._items import conditions, effects, expiry, versions
from pynamo_locking._locks import release
from pynamo_locking._locks.held_lock import next_write
from pynamo_locking._pynamodb import connection_of, serialized_key_of, ttl_attribute_of
from pynamo_locking._transactions.plan import Unread
from pynamo_locking._writes import write
from pynamo_locking._writes.send import Check, Refusal, RowWrite, Work, send
from pynamo_locking._writes.write import DELETE, SAVE, UPDATE, Operation
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._io.transaction_record import RecordLease, RecordTable
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._writes.write import Write


#: How often an intent without a response is sent again before the transaction gives up.
_REPEATS: Final = 7

#: With more changed attributes in an intent, the expression that finishes it could exceed DynamoDB's 4 KB.
_MOST_CHANGES: Final = 240

#: How long a transaction waits for the lock of an item while its holder renews it.
LOCK_GRACE_S: Final = 2.0


@dataclass
class IntentWrite:
    """An item that gets an intent.

    Attributes:
        has_document: whether the item has a lock document, empty or not, as far as is known.
        number: of the write in the held entry, if this transaction holds the item's lock.
        waits_until: when to stop waiting for the lock, by the monotonic clock; 0 before the first holder was found.
        underway: how many copies of the intent may still arrive after an abort; of a placeholder none can.
        may_stand: whether the item may carry the intent, so that an abort has to drop it.
        is_contended: whether others have changed the item, or keep its lock.
    """

    item: TransactionItem
    row: LockRow
    intent: WriteIntent
    has_document: bool
    number: int = 0
    waits_until: float = 0.0
    underway: int = 0
    may_stand: bool = False
    is_contended: bool = False

    @property
    def is_staged(self) -> bool:
        """Whether the item is finished after the decision, instead of being written by it."""
        return self.intent.op != "keep"

    @property
    def held(self) -> HeldEntry | None:
        """The entry that this context holds in the item's lock, if any."""
        writer = self.item.plan.writer
        return writer.held if writer is not None and writer.is_embedded else None

    @property
    def size(self) -> int:
        """The size of the item while it carries the intent, as far as the item is known."""
        item = self.item
        if item.is_absent:
            return item_size(item.key) + _size_of_intent(self)
        base = item.base if isinstance(item.base, dict) else item.instance.serialize(null_check=False)
        return item_size(base) + _size_of_intent(self)

    def request(self) -> dict[str, Any]:
        """Return the UpdateItem that writes the intent, once the item's lock and intent are free."""
        write, held, intent = self.item.final(), self.held, lock_record.stored_intent(self.intent)
        clause = protocol.SET_INTENT if self.has_document else protocol.SET_INTENT_AND_LOCK
        given = {**self.row.names, ":intent": intent, ":map": {"M": {lock_record.TX: intent}}}
        condition = self.item.plan.condition if self.intent.is_placeholder else write.condition
        if self.intent.is_placeholder:
            clause = protocol.ITEM_IS_NEW + clause
        if held is not None:
            self.number = self.number or next_write(held)
            asked, entry = lock_requests.fence(held.row, held.entry, self.number)
            clause, given = clause + asked, given | entry
        elif not self.intent.is_placeholder:
            has_lock = protocol.HAS_LOCK if self.has_document else protocol.HAS_NO_LOCK
            clause = protocol.ITEM_EXISTS + Clause(protocol.not_locked(self.row)[0].if_) + has_lock + clause
        blank = write.but(operation=Operation.INTENT, attributes=None, return_values=None)
        return blank.but(condition=condition, actions=[]).kwargs(clause, given)

    def decided_by(self) -> RowWrite:
        """Return how the decision writes the item, on condition that it carries this transaction's intent."""
        write = self.item.final()
        given = {**self.row.names, ":id": {"S": self.intent.id}}
        return RowWrite(write=write.but(condition=None), filled=(protocol.HAS_INTENT + protocol.REMOVE_INTENT, given))


def plan_intent(
    item: TransactionItem, transaction_id: str, record_table: RecordTable, name: str, *, is_staged: bool
) -> IntentWrite:
    """Work out what the intent of an item says, without writing anything.

    `name` is that of the row for the changes that do not fit into the intent. An intent of an item that is not staged
    only reserves it until the decision writes it.

    Raises:
        CannotBeStaged: the item must not carry an intent.
        StaleVersion, TransactWriteError, ConfigurationError: as `_intent_of`.
    """
    if not item.plan.is_checked:  # without a known version a late copy of the intent would fit any later item
        item.pin()
        if not can_have_intent(item, record_table.place):
            raise _no_place(item)
    op, set_, removed = _intent_of(item) if is_staged else ("keep", {}, [])
    row = item.row
    assert row is not None  # noqa: S101 - checked when the path was chosen
    intent = WriteIntent(transaction_id, record_table.place, op, item.is_absent, set_, tuple(removed))
    one = IntentWrite(item, row, intent, has_document=_has_document(item))
    if is_staged and one.size > MOST_BYTES_IN_ITEM:
        one.intent = replace(one.intent, changes_row=name)
        size = item_size(lock_record.stored_changes(one.intent))
        if size > MOST_BYTES_OF_CHANGES:
            raise ConfigurationError(
                f"{row.label} has {size:,} bytes to change, and a row beside it holds {MOST_BYTES_OF_CHANGES:,}: make "
                f"it smaller, or write it in a transaction of at most 100 items and {dynamodb.MOST_BYTES:,} bytes. "
                f"Nothing was written."
            )
    return one


def needs_read(item: TransactionItem) -> bool:
    """Tell whether `plan_intent` would read the stored item."""
    write, is_unread = item.plan.write, isinstance(item.base, Unread)
    is_update = write is not None and write.operation is UPDATE
    return (is_unread and is_update) or not (item.plan.is_checked or is_update)


def read_together(items: Iterable[TransactionItem]) -> None:
    """Read the stored items of those for which `plan_intent` would read them, a hundred of a model by each request."""
    of_models: dict[type[GuardedMixin], list[TransactionItem]] = {}
    for item in items:
        if needs_read(item):
            of_models.setdefault(item.model, []).append(item)
    for model, unread in of_models.items():
        images = unread[0].reader.read_all(model, [item.key for item in unread])
        for item, image in zip(unread, images, strict=True):
            item.read_before = image


def _intent_of(item: TransactionItem) -> tuple[str, Image, list[str]]:
    """Return what an intent must say so that any process can finish the write: its operation, its sets, its removals.

    Raises:
        TransactWriteError, ConfigurationError: DynamoDB would refuse the write.
        StaleVersion: the stored item had to be read, and is not in the known version.
    """
    write = item.final()
    if write.operation is DELETE:
        return "delete", {}, []
    if isinstance(item.base, Unread) and write.operation is not SAVE:
        item.shown_image()
    is_known = not isinstance(item.base, Unread)
    base = item.base if not isinstance(item.base, Unread) else _least_base(item)
    try:
        after = effects.updated(base, item.key, write.actions)
    except Invalid as refusal:
        raise TransactWriteError(f"Failed to write {write.label}: {refusal}", refusal) from refusal
    set_, removed = effects.difference(base, after, keys=item.key)
    if not is_known:
        removed = [conditions.changed_by(each) for each in write.actions if isinstance(each, RemoveAction)]
    _check_storable(item, write, after, len(set_) + len(removed))
    return "save", set_, removed


def _least_base(item: TransactionItem) -> Image | None:
    """Return the part of the stored item that the expression of a save needs: its version."""
    attribute = versions.shape_of(item.model).attribute
    if attribute is None or item.before.version is None:
        return None
    return {**item.key, attribute.attr_name: {"N": str(item.before.version)}}


def _check_storable(item: TransactionItem, write: Write, after: Image, changes: int) -> None:
    """Refuse an item that DynamoDB would refuse only after the decision."""
    found = problems(after, effects.key_rules(item.model))
    if changes > _MOST_CHANGES:
        found = [*found, f"it changes {changes} attributes, and {_MOST_CHANGES} fit into an intent"]
    if found:
        raise ConfigurationError(f"{write.label} cannot be stored: {'; '.join(found)}. Nothing was written.")


def can_have_intent(item: TransactionItem, table: str | None) -> bool:
    """Tell whether an item can carry an intent of that table: its readers trust the table, and TTL leaves it there."""
    row = item.row
    if row is None or row.transactions != table:
        return False
    return item.is_absent or not _may_expire(item.model, item.base)


def _may_expire(model: type[GuardedMixin], base: Image | Unread | None) -> bool:
    """Tell whether DynamoDB's TTL may delete the stored item, and with it an intent that is decided but not finished.

    An item of another program is refused elsewhere: it gets no intent.
    """
    ttl: Any = ttl_attribute_of(model)
    if ttl is None:
        return False
    if not isinstance(base, dict):
        return True
    time = None if has_foreign(model, base) else expiry.time_in(base, ttl.attr_name)
    return time is not None and float(time["N"]) < runtime.current.time_ms() / 1000 + IDLE_TTL_S


def _no_place(item: TransactionItem) -> CannotBeStaged:
    return CannotBeStaged(f"{item.final().label} has no place for an intent")


def _size_of_intent(one: IntentWrite) -> int:
    """Return by how much the intent makes its item larger."""
    with_intent = {one.row.attribute: {"M": {lock_record.TX: lock_record.stored_intent(one.intent)}}}
    # The document stays, in an item that had none.
    return item_size(with_intent) - (item_size({one.row.attribute: lock_record.EMPTY}) if one.has_document else 0)


def _has_document(item: TransactionItem) -> bool:
    lock = lock_attribute_of(item.model)
    if item.is_absent:
        return False
    if isinstance(item.base, dict):
        return lock.attr_name in item.base
    return lock.__get__(item.instance, item.model).raw is not None


def _mutex() -> AbstractContextManager[object]:
    return runtime.current.mutex()


@dataclass(frozen=True)
class IntentWriter:
    """Writes the intents of one transaction; used by several threads.

    It waits for other transactions and holders until `_deadline`, by the monotonic clock, and renews the lease of the
    record meanwhile. `is_over` tells whether another intent has failed.
    """

    lease: RecordLease
    _deadline: Deadline
    is_over: Callable[[], bool]
    one_at_a_time: AbstractContextManager[object] = field(default_factory=_mutex)

    def resolver(self) -> Resolver:
        return Resolver(deadline=self._deadline, priority=self.lease.record.priority, pulse=self.lease.renew_if_due)

    def write_intents(self, batch: Sequence[IntentWrite]) -> None:
        """Write the intents of up to 25 items of one table, or create placeholders in one native transaction.

        See `write_intent`, which finds out why a statement was not applied, and recognises an intent that was stored
        although no response came.
        """
        if batch[0].intent.is_placeholder:
            self._place(list(batch))
            return
        if len(batch) == 1:
            self.write_intent(batch[0])
            return
        self.lease.renew_if_due()
        for one in batch:
            one.underway, one.may_stand = one.underway + 1, True
        results = batch_requests.send([Request(one.row.connection, "UpdateItem", one.request()) for one in batch])
        for one, result in zip(batch, results, strict=True):
            one.underway -= result is not StatementResult.UNKNOWN
            one.may_stand = result is not StatementResult.NOT_APPLIED
        for one, result in zip(batch, results, strict=True):
            if result is not StatementResult.APPLIED:
                self.write_intent(one)

    def write_intent(self, one: IntentWrite) -> None:
        """Write the intent into an item that is still the one that was read, once its lock and intent are free.

        Raises:
            Conflict: in one of its kinds, if that is not possible.
            CannotBeStaged: the item must not carry an intent.
            StillPending, Unavailable: another transaction has an intent on the item, and that intent stays in the way.
        """
        send(_IntentWork(self, [one]))

    def _place(self, new: Sequence[IntentWrite]) -> None:
        """Create placeholders for new items in one native transaction, again without those that are in its way.

        A late copy, also of a request that was refused, must not create them again after the items were finished and
        deleted. By then the record is decided. Two such requests at once would conflict in the record.
        """
        send(_IntentWork(self, new, _PendingRecordRow(self.lease.table, self.lease.record.id)))
        for one in new:
            if not one.intent.is_placeholder:
                self.write_intent(one)

    def clear(self, one: IntentWrite, image: Image | None, resolver: Resolver) -> None:
        """Remove what is in the way of an intent, or change what the intent asks; or raise."""
        state, item = one.row.state(image), one.item
        if state.intent is not None:
            resolver.resolve((one.row, state.intent))
        elif one.intent.is_placeholder and versions.shape_of(item.model).is_expired(image):
            self._clear_expired(one, image or {})
        elif one.intent.is_placeholder and isinstance(item.base, Unread) and image is not None and item.holds(image):
            # The item exists without a version: the instance has none either, and was not read by this transaction.
            if _may_expire(item.model, image):
                raise _no_place(item)
            one.intent, one.has_document = replace(one.intent, is_placeholder=False), state.raw is not None
        elif not one.intent.is_placeholder and (state.raw is not None) != one.has_document and item.holds(image):
            one.has_document = state.raw is not None
        elif state.entries and one.held is None and item.holds(image):
            self._wait_for_lock(one, state)
        else:
            one.is_contended = True
            cause = responses.condition_failed(TransactWriteError, "the item is not the one that was read", item.table)
            if one.held is not None and Check(one.held, one.number).is_gone(image):
                raise one.held.absent_from(state)
            lock = None if one.held is not None else one.row
            raise write.why_refused(item.final(), TransactWriteError, image, cause, lock)

    def _clear_expired(self, one: IntentWrite, image: Image) -> None:
        """Delete an expired item, which counts as absent: TTL could delete it at any moment, and the intent with it."""
        name = expiry.attribute_name(one.item.model)
        assert name is not None  # noqa: S101 - the item has expired
        is_same = conditions.both(Place(name) == Stored(image[name]), versions.shape_of(one.item.model).known)
        connection = connection_of(one.item.instance)
        hash_key, range_key = serialized_key_of(one.item.instance)
        kwargs = connection.get_operation_kwargs(hash_key, range_key=range_key, condition=is_same)
        protocol.merge(kwargs, *protocol.not_locked(one.row))
        try:
            client.ask(connection.connection, "DeleteItem", kwargs)
        except client.Refused:
            pass  # another writer was faster
        except (client.Unavailable, *responses.BOTOCORE_EXCEPTIONS) as error:
            cause = error.cause if isinstance(error, client.Unavailable) else error
            raise TransactWriteError("Failed to remove an expired item", responses.readable(cause)) from cause

    def _wait_for_lock(self, one: IntentWrite, state: LockState) -> None:
        """Evict dead entries of the item's lock, or wait for it: briefly, since its holder may wait for our intents."""
        if release.evict_all(one.row, state, one.item.model):
            return
        now = runtime.current.monotonic()
        one.waits_until = one.waits_until or min(self._deadline.at, now + LOCK_GRACE_S)
        left = one.waits_until - now
        if left <= 0:
            one.is_contended = True
            raise write.locked_by(one.row, state.entries[0], TransactWriteError, advice=write.READ_FOR_UPDATE)
        self.lease.renew_if_due()
        runtime.current.sleep(min(left, backoff(3, runtime.current.jitter())))


class _IntentRow(RowWrite):
    """The item that gets an intent. The request may change with what blocks it."""

    def __init__(self, writer: IntentWriter, one: IntentWrite) -> None:
        self.writer, self.one, self.is_placeholder = writer, one, one.intent.is_placeholder
        super().__init__({"Update": one.request()})

    @override
    def judge(self, image: Image | None, *, in_doubt: bool) -> Outcome:
        intent = self.one.row.state(image).intent
        if intent is None or intent.id != self.one.intent.id:
            return Outcome.REJECTED
        self.one.underway -= not self.is_placeholder  # the copy whose response was lost was applied
        self.one.may_stand = True
        return Outcome.APPLIED

    @override
    def clear(self, refusal: Refusal) -> bool:
        self.writer.clear(self.one, refusal.image, refusal.work.resolver)
        self.is_dropped = self.is_placeholder is not self.one.intent.is_placeholder
        self.request = {"Update": self.one.request()}
        return True


class _PendingRecordRow(RowWrite):
    """The record, which must be pending while placeholders are created."""

    def __init__(self, record_table: RecordTable, transaction_id: str) -> None:
        super().__init__(transaction_record.still_pending(record_table, transaction_id))
        self.connection, self.transaction_id = record_table.connection, transaction_id

    @override
    def clear(self, refusal: Refusal) -> bool:
        raise also(TransactionConflict, TransactWriteError)(
            f"the transaction {self.transaction_id} is no longer pending; nothing was written."
        )


class _IntentWork(Work):
    """The intent of one item; or placeholders, in one native transaction with the check of the record."""

    policy = RetryPolicy(_REPEATS, first_pause=1, is_patient=True)

    def __init__(
        self, writer: IntentWriter, intents: Sequence[IntentWrite], pending: _PendingRecordRow | None = None
    ) -> None:
        connection = intents[0].row.connection if pending is None else pending.connection
        super().__init__(connection, resolver=writer.resolver)
        self.writer, self.pending, self.is_transaction = writer, pending, pending is not None
        self.intents = [_IntentRow(writer, one) for one in intents]
        self.label, self.in_doubt = intents[0].row.label, False

    @override
    def rows(self, how: Next | None) -> Sequence[RowWrite]:
        self.intents = [row for row in self.intents if not row.is_dropped]
        if not self.intents or self.writer.is_over():
            return []
        self.writer.lease.renew_if_due()
        rows = self.intents if self.pending is None else [self.pending, *self.intents]
        self.token = hashlib.sha256(repr([row.request for row in rows]).encode()).hexdigest()[:32]
        return rows

    @override
    def renew_token(self) -> None:
        """Keep the token: another request has another one, and a copy has the same."""

    @override
    def dispatch(self, rows: Sequence[RowWrite]) -> dict[str, Any]:
        if self.pending is None:
            return self._dispatch(rows)
        with event_stream.scope(), self.writer.one_at_a_time:
            return {} if self.writer.is_over() else self._dispatch(rows)

    def _dispatch(self, rows: Sequence[RowWrite]) -> dict[str, Any]:
        """Note which copies may still arrive after an abort."""
        for row in self.intents:
            row.one.underway, row.one.may_stand = row.one.underway + (not row.is_placeholder), True
        is_answered = False
        try:
            data = super().dispatch(rows)
            is_answered = True
        except responses.BOTOCORE_EXCEPTIONS as error:
            is_refused = responses.answer_in(error) is Answer.REFUSED
            is_answered = is_refused or not responses.is_ambiguous(error)
            self.in_doubt = self.in_doubt or not is_answered
            for row in self.intents if is_refused else ():
                row.one.may_stand = self.in_doubt if row.is_placeholder else row.one.underway > 1
            raise
        finally:
            for row in self.intents:
                row.one.underway -= is_answered and not row.is_placeholder
        return data

    @override
    def failed(self, error: Exception) -> Exception:
        if responses.answer_in(error) in PASSING:
            return self.unknown(error)
        return TransactWriteError(f"Failed to write the intent of an item: {error}", responses.readable(error))

    @override
    def unknown(self, error: Exception) -> Exception:
        if responses.answer_in(error) is Answer.DENIED:
            return self.failed(error)
        return also(TransactionConflict, TransactWriteError)(
            f"no response came for {self.label}: {error}; nothing was written.", cause=error
        )
