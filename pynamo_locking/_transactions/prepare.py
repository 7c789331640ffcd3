"""Prepare: writes the intent of a transaction beside each item's committed values.

An intent says what the item will be; its values stay as they are until the decision. All of it is worked out before the
transaction is decided, since after that DynamoDB must not refuse it.

An intent is written on condition that the item is the one that was read (R1), that no other transaction has an intent
there (R2), and that the item's lock is free or ours. A new item gets a placeholder, in a native transaction that also
asks for the pending record (R8). So a late copy cannot create it again after it was finished and deleted.

A copy of an intent may arrive after an abort. `IntentWrite` counts the copies that had no answer: only without such a
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
from pynamo_locking._core.transactions import LARGEST_SPILL_BYTES, SPILL_BYTES, CannotBeStaged
from pynamo_locking._core.write_outcome import Outcome
from pynamo_locking._expressions.values import Refusal as Invalid
from pynamo_locking._expressions.values import item_size
from pynamo_locking._io import batch_requests, lock_record, protocol, responses, runtime, transaction_record
from pynamo_locking._io.batch_requests import StatementResult
from pynamo_locking._io.batch_requests import StatementWrite as Request
from pynamo_locking._io.model_doors import lock_attribute_of
from pynamo_locking._io.protocol import Clause
from pynamo_locking._io.responses import has_foreign
from pynamo_locking._io.write_intents import Resolver
from pynamo_locking._items import conditions, expiry, versions
from pynamo_locking._locks import fencing, release
from pynamo_locking._pynamodb import ttl_attribute_of
from pynamo_locking._transactions.item import Unread
from pynamo_locking._writes import write
from pynamo_locking._writes.send import Check, Refusal, RowWrite, Work, remove_expired, send
from pynamo_locking._writes.write import DELETE, SAVE, UPDATE, Operation
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._core.transactions import TransactionRecord
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._io.transaction_record import RecordTable
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._writes.write import Write


#: How often a mark without a response is sent again before the transaction gives up.
_REPEATS: Final = 7

#: With more changed attributes in a mark, the expression that finishes it could exceed DynamoDB's 4 KB.
_MOST_CHANGES: Final = 240

#: How long a transaction waits for the lock of an item while its holder renews it.
LOCK_GRACE_S: Final = 2.0


@dataclass
class IntentWrite:
    """An item that gets a mark.

    Attributes:
        has_document: whether the item has a lock document, empty or not, as far as is known.
        number: of the write in the held entry, if this transaction holds the item's lock.
        waits_until: when to stop waiting for the lock, by the monotonic clock; 0 before the first holder was met.
        underway: how many copies of the mark may still arrive after an abort; of a placeholder none can.
        may_stand: whether the item may carry the mark, so that an abort has to drop it.
    """

    member: TransactionItem
    row: LockRow
    mark: WriteIntent
    has_document: bool
    number: int = 0
    waits_until: float = 0.0
    underway: int = 0
    may_stand: bool = False

    @property
    def is_staged(self) -> bool:
        """Whether the item is finished after the decision, instead of being written by it."""
        return self.mark.op != "keep"

    @property
    def held(self) -> HeldEntry | None:
        """The entry that this context holds in the item's lock, if any."""
        writer = self.member.writer
        return writer.own if writer is not None and writer.is_embedded else None

    @property
    def document_size(self) -> int:
        """What the lock document takes that the mark leaves behind in an item that had none."""
        return 0 if self.has_document else item_size({self.row.attribute: lock_record.EMPTY})

    @property
    def size(self) -> int:
        """The size of the item while it carries the mark, as far as the item is known."""
        return _size_of_base(self.member) + _size_of_mark(self)

    def request(self) -> dict[str, Any]:
        """Return the UpdateItem that writes the mark, once the item's lock and mark are free."""
        write, held, mark = self.member.final(), self.held, lock_record.stored_mark(self.mark)
        clause = protocol.SET_INTENT if self.has_document else protocol.SET_INTENT_AND_LOCK
        given = {**self.row.names, ":mark": mark, ":map": {"M": {lock_record.TX: mark}}}
        condition = self.member.change.condition if self.mark.is_ghost else write.condition
        if self.mark.is_ghost:
            clause = protocol.ITEM_IS_NEW + clause
        if held is not None:
            self.number = self.number or held.next_write()
            asked, entry = fencing.for_held_entry(held, self.number)
            clause, given = clause + asked, given | entry
        elif not self.mark.is_ghost:
            has_lock = protocol.HAS_LOCK if self.has_document else protocol.HAS_NO_LOCK
            clause = protocol.ITEM_EXISTS + Clause(fencing.lock_is_free(self.row)[0].if_) + has_lock + clause
        blank = write.but(operation=Operation.INTENT, attributes=None, return_values=None)
        return blank.but(condition=condition, actions=[]).kwargs(clause, given)

    def decided_by(self) -> RowWrite:
        """Return how the decision writes the item, on condition that it carries this transaction's mark."""
        write = self.member.final()
        given = {**self.row.names, ":id": {"S": self.mark.id}}
        return RowWrite(write=write.but(condition=None), filled=(protocol.HAS_INTENT + protocol.REMOVE_INTENT, given))


def plan_intent(
    member: TransactionItem, header_id: str, header_table: RecordTable, name: str, *, is_staged: bool
) -> IntentWrite:
    """Work out what the mark of an item says, without writing anything.

    `name` is that of the row for the changes that do not fit into the mark. A mark of an item that is not staged only
    reserves it until the decision writes it.

    Raises:
        CannotBeStaged: the item must not carry a mark.
        StaleVersion, TransactWriteError, ConfigurationError: as `_intent_of`.
    """
    if not member.is_checked:  # without a known version a late copy of the mark would fit any later item
        member.pin()
        if not can_be_marked(member, header_table.place):
            raise _no_place(member)
    op, set_, removed = _intent_of(member) if is_staged else ("keep", {}, [])
    row = member.row
    assert row is not None  # noqa: S101 - checked when the path was chosen
    mark = WriteIntent(header_id, header_table.place, op, member.is_absent, set_, tuple(removed))
    one = IntentWrite(member, row, mark, has_document=_has_document(member))
    if is_staged and one.size > SPILL_BYTES:
        one.mark = replace(one.mark, spill=name)
        size = item_size(lock_record.stored_changes(one.mark))
        if size > LARGEST_SPILL_BYTES:
            raise ConfigurationError(
                f"{row.label} has {size:,} bytes to change, and a row beside it holds {LARGEST_SPILL_BYTES:,}: make it "
                f"smaller, or write it in a transaction of at most 100 items and {dynamodb.MOST_BYTES:,} bytes. "
                f"Nothing was written."
            )
    return one


def needs_read(member: TransactionItem) -> bool:
    """Tell whether `plan_intent` would read the stored item."""
    assert member.write is not None  # noqa: S101 - only writes are marked
    is_update, is_unread = member.write.operation is UPDATE, isinstance(member.base, Unread)
    return (is_unread and is_update) or not (member.is_checked or is_update)


def _intent_of(member: TransactionItem) -> tuple[str, Image, list[str]]:
    """Return what a mark must say so that any process can finish the write: its operation, its sets, its removals.

    Raises:
        TransactWriteError, ConfigurationError: DynamoDB would refuse the write.
        StaleVersion: the stored item had to be read, and is not in the known version.
    """
    assert member.write is not None  # noqa: S101 - only writes are marked
    write = member.final()
    if write.operation is DELETE:
        return "delete", {}, []
    if isinstance(member.base, Unread) and write.operation is not SAVE:
        member.look()
    is_known = not isinstance(member.base, Unread)
    base = member.base if not isinstance(member.base, Unread) else _least_base(member)
    try:
        after = conditions.updated(base, write.kwargs())
    except Invalid as refusal:
        raise TransactWriteError(f"Failed to write {write.label}: {refusal}", refusal) from refusal
    set_, removed = conditions.difference(base, after, keys=member.key)
    if not is_known:
        removed = [conditions.path_of(each)[0] for each in write.actions if isinstance(each, RemoveAction)]
    _check_storable(member, write, after, len(set_) + len(removed))
    return "save", set_, removed


def _least_base(member: TransactionItem) -> Image | None:
    """Return the part of the stored item that the expression of a save needs: its version."""
    if member.before.version is None:
        return None
    attribute = versions.shape_of(member.model).attribute
    assert attribute is not None  # noqa: S101 - it has a version
    return {**member.key, attribute.attr_name: {"N": str(member.before.version)}}


def _check_storable(member: TransactionItem, write: Write, after: Image, changes: int) -> None:
    """Refuse an item that DynamoDB would refuse only after the decision."""
    found = problems(after, conditions.key_rules(member.model))
    if changes > _MOST_CHANGES:
        found = [*found, f"it changes {changes} attributes, and {_MOST_CHANGES} fit into a mark"]
    if found:
        raise ConfigurationError(f"{write.label} cannot be stored: {'; '.join(found)}. Nothing was written.")


def can_be_marked(member: TransactionItem, table: str | None) -> bool:
    """Tell whether an item can carry a mark of that table: its readers trust the table, and TTL leaves it in place."""
    row = member.row
    if row is None or row.transactions != table:
        return False
    return member.is_absent or not _may_expire(member.model, member.base)


def _may_expire(model: type[GuardedMixin], base: Image | Unread | None) -> bool:
    """Tell whether DynamoDB's TTL may delete the stored item, and with it a mark that is decided but not finished.

    An item of another program is refused elsewhere: it gets no mark.
    """
    ttl: Any = ttl_attribute_of(model)
    if ttl is None:
        return False
    if not isinstance(base, dict):
        return True
    value = None if has_foreign(model, base) else base.get(ttl.attr_name, {}).get("N")
    return value is not None and float(value) < runtime.current.time_ms() / 1000 + IDLE_TTL_S


def _no_place(member: TransactionItem) -> CannotBeStaged:
    return CannotBeStaged(f"{member.final().label} has no place for a mark")


def _size_of_base(member: TransactionItem) -> int:
    if member.is_absent:
        return item_size(member.key)
    return item_size(member.base if isinstance(member.base, dict) else member.item.serialize(null_check=False))


def _size_of_mark(one: IntentWrite) -> int:
    """Return by how much the mark makes its item larger."""
    with_mark = {one.row.attribute: {"M": {lock_record.TX: lock_record.stored_mark(one.mark)}}}
    return item_size(with_mark) + one.document_size - item_size({one.row.attribute: lock_record.EMPTY})


def _has_document(member: TransactionItem) -> bool:
    lock = lock_attribute_of(member.model)
    assert lock is not None  # noqa: S101 - checked when the path was chosen
    if member.is_absent:
        return False
    if isinstance(member.base, dict):
        return lock.attr_name in member.base
    return lock.__get__(member.item, member.model).raw is not None


def _mutex() -> AbstractContextManager[object]:
    return runtime.current.mutex()


@dataclass(frozen=True)
class IntentWriter:
    """Writes the marks of one transaction; used by several threads.

    It waits for other transactions and holders until `_deadline`, by the monotonic clock. `_pulse` renews the lease of
    the header if a renewal is due, and raises if the transaction is no longer pending. `_is_over` tells whether another
    mark has failed.
    """

    _header_table: RecordTable
    _header: TransactionRecord
    _deadline: Deadline
    _pulse: Callable[[], None]
    _is_over: Callable[[], bool]
    _one_at_a_time: AbstractContextManager[object] = field(default_factory=_mutex)

    def resolver(self) -> Resolver:
        """Return what resolves marks of other transactions."""
        return Resolver(deadline=self._deadline, priority=self._header.priority, pulse=self._pulse)

    def mark_all(self, batch: Sequence[IntentWrite]) -> None:
        """Mark up to 25 existing items of one table, or create placeholders that fit into one native transaction.

        See `mark`, which finds out why a statement was not applied, and recognises a mark that was stored although no
        answer came.
        """
        if batch[0].mark.is_ghost:
            self._place(list(batch))
            return
        if len(batch) == 1:
            self.mark(batch[0])
            return
        self._pulse()
        for one in batch:
            one.underway, one.may_stand = one.underway + 1, True
        results = batch_requests.send([Request(one.row.connection, "UpdateItem", one.request()) for one in batch])
        for one, result in zip(batch, results, strict=True):
            one.underway -= result is not StatementResult.UNKNOWN
            one.may_stand = result is not StatementResult.NOT_APPLIED
        for one, result in zip(batch, results, strict=True):
            if result is not StatementResult.APPLIED:
                self.mark(one)

    def mark(self, one: IntentWrite) -> None:
        """Write the mark into an item that is still the one that was read, once its lock and mark are free.

        Raises:
            Conflict: in one of its kinds, if that is not possible.
            CannotBeStaged: the item must not carry a mark.
            StillPending, Unavailable: another transaction has marked the item, and that mark stays in the way.
        """
        send(_IntentWork(self, [one]))

    def _place(self, new: Sequence[IntentWrite]) -> None:
        """Create placeholders for new items in one native transaction, again without those that are in its way.

        A late copy, also of a request that was refused, must not create them again after the items were finished and
        deleted. By then the header is decided. Two such requests at once would conflict in the header.
        """
        send(_IntentWork(self, new, _PendingRecordRow(self._header_table, self._header.id)))
        for one in new:
            if not one.mark.is_ghost:
                self.mark(one)

    def clear(self, one: IntentWrite, image: Image | None, resolver: Resolver) -> None:
        """Remove what is in the way of a mark, or change what the mark asks; or raise."""
        state, member = one.row.state(image), one.member
        if state.mark is not None:
            resolver.resolve((one.row, state.mark))
        elif one.mark.is_ghost and expiry.is_expired(member.model, image):
            self._clear_expired(one, image or {})
        elif one.mark.is_ghost and isinstance(member.base, Unread) and image is not None and member.holds(image):
            # The item exists without a version: the instance has none either, and was not read by this transaction.
            if _may_expire(member.model, image):
                raise _no_place(member)
            one.mark, one.has_document = replace(one.mark, is_ghost=False), state.raw is not None
        elif not one.mark.is_ghost and (state.raw is not None) != one.has_document and member.holds(image):
            one.has_document = state.raw is not None
        elif state.entries and one.held is None and member.holds(image):
            self._wait_for_lock(one, state)
        else:
            cause = responses.condition_failed(
                TransactWriteError, "the item is not the one that was read", member.table
            )
            if one.held is not None and Check(one.held, one.number).is_gone(image):
                raise one.held.absent_from(state)
            lock = None if one.held is not None else one.row
            raise write.why_refused(member.final(), TransactWriteError, image, cause, lock)

    def _clear_expired(self, one: IntentWrite, image: Image) -> None:
        """Delete an expired item, which counts as absent: TTL could delete it, and the mark with it, at any moment."""
        try:
            remove_expired(one.member.item, image, fencing.lock_is_free(one.row))
        except responses.BOTOCORE_EXCEPTIONS as error:
            raise TransactWriteError("Failed to remove an expired item", responses.readable(error)) from error

    def _wait_for_lock(self, one: IntentWrite, state: LockState) -> None:
        """Evict dead entries of the item's lock, or wait for it: briefly, since its holder may wait for our marks."""
        if release.evict_all(one.row, state, one.member.model):
            return
        now = runtime.current.monotonic()
        one.waits_until = one.waits_until or min(self._deadline.at, now + LOCK_GRACE_S)
        left = one.waits_until - now
        if left <= 0:
            raise write.locked_out(one.row, state, TransactWriteError)
        self._pulse()
        runtime.current.sleep(min(left, backoff(3, runtime.current.jitter())))


class _IntentRow(RowWrite):
    """The item that gets a mark. What is asked may change with what stands in its way."""

    def __init__(self, marker: IntentWriter, one: IntentWrite) -> None:
        self.marker, self.one, self.is_ghost = marker, one, one.mark.is_ghost
        super().__init__({"Update": one.request()})

    @override
    def judge(self, image: Image | None, *, in_doubt: bool) -> Outcome:
        mark = self.one.row.state(image).mark
        if mark is None or mark.id != self.one.mark.id:
            return Outcome.REJECTED
        self.one.underway -= not self.is_ghost  # the copy whose response was lost was applied
        self.one.may_stand = True
        return Outcome.APPLIED

    @override
    def clear(self, refusal: Refusal) -> bool:
        self.marker.clear(self.one, refusal.image, refusal.work.resolver)
        self.is_dropped = self.is_ghost is not self.one.mark.is_ghost
        self.request = {"Update": self.one.request()}
        return True


class _PendingRecordRow(RowWrite):
    """The header, which must be pending while placeholders are created."""

    def __init__(self, header_table: RecordTable, header_id: str) -> None:
        super().__init__(transaction_record.still_pending(header_table, header_id))
        self.connection, self.header_id = header_table.connection, header_id

    @override
    def clear(self, refusal: Refusal) -> bool:
        raise also(TransactionConflict, TransactWriteError)(
            f"the transaction {self.header_id} is no longer pending; nothing was written."
        )


class _IntentWork(Work):
    """The mark of one item; or placeholders, in one native transaction with the check of the header."""

    policy = RetryPolicy(_REPEATS, first_pause=1, is_patient=True)

    def __init__(
        self, marker: IntentWriter, marked: Sequence[IntentWrite], pending: _PendingRecordRow | None = None
    ) -> None:
        connection = marked[0].row.connection if pending is None else pending.connection
        super().__init__(connection, resolver=marker.resolver())
        self.marker, self.pending, self.is_transaction = marker, pending, pending is not None
        self.marks, self.label, self.in_doubt = [_IntentRow(marker, one) for one in marked], marked[0].row.label, False

    @override
    def rows(self, how: Next | None) -> Sequence[RowWrite]:
        self.marks = [row for row in self.marks if not row.is_dropped]
        if not self.marks or self.marker._is_over():
            return []
        self.marker._pulse()
        rows = self.marks if self.pending is None else [self.pending, *self.marks]
        self.token = hashlib.sha256(repr([row.request for row in rows]).encode()).hexdigest()[:32]
        return rows

    @override
    def renew_token(self) -> None:
        """Keep the token: another request has another one, and a copy has the same."""

    @override
    def dispatch(self, rows: Sequence[RowWrite]) -> dict[str, Any]:
        if self.pending is None:
            return self._dispatch(rows)
        with self.marker._one_at_a_time:
            return {} if self.marker._is_over() else self._dispatch(rows)

    def _dispatch(self, rows: Sequence[RowWrite]) -> dict[str, Any]:
        """Note which copies may still arrive after an abort."""
        for row in self.marks:
            row.one.underway, row.one.may_stand = row.one.underway + (not row.is_ghost), True
        is_answered = False
        try:
            data = super().dispatch(rows)
            is_answered = True
        except responses.BOTOCORE_EXCEPTIONS as error:
            is_refused = responses.answer_in(error) is Answer.REFUSED
            is_answered = is_refused or not responses.is_ambiguous(error)
            self.in_doubt = self.in_doubt or not is_answered
            for row in self.marks if is_refused else ():
                row.one.may_stand = self.in_doubt if row.is_ghost else row.one.underway > 1
            raise
        finally:
            for row in self.marks:
                row.one.underway -= is_answered and not row.is_ghost
        return data

    @override
    def failed(self, error: Exception) -> Exception:
        if responses.answer_in(error) in PASSING:
            return self.unknown(error)
        return TransactWriteError("Failed to mark an item", responses.readable(error))

    @override
    def unknown(self, error: Exception) -> Exception:
        if responses.answer_in(error) is Answer.DENIED:
            return self.failed(error)
        return also(TransactionConflict, TransactWriteError)(
            f"no response came for {self.label}: {error}; nothing was written.", cause=error
        )
