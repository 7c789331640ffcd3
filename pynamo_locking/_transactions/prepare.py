"""Prepare: writes the intent of a transaction beside each item's committed values.

What an item will be is worked out before the transaction is decided: after that DynamoDB must not refuse it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.operand import Path
from pynamodb.expressions.update import RemoveAction

from pynamo_locking._core import dynamodb
from pynamo_locking._core.dynamodb import ACTION_FAILED, Answer, RetryPolicy, RetryState, problems
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import IDLE_TTL_S, backoff
from pynamo_locking._core.lock_queue import WriteIntent
from pynamo_locking._core.transactions import LARGEST_SPILL_BYTES, SPILL_BYTES, CannotBeStaged
from pynamo_locking._expressions.values import Refusal, item_size
from pynamo_locking._io import batch_requests, client, lock_record, responses, runtime, transaction_record
from pynamo_locking._io.batch_requests import StatementResult
from pynamo_locking._io.batch_requests import StatementWrite as Request
from pynamo_locking._io.client import Refused, Unavailable, is_sent_again
from pynamo_locking._io.responses import has_foreign
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._io.write_intents import Resolver
from pynamo_locking._items import conditions, expiry, versions
from pynamo_locking._locks import fencing, release
from pynamo_locking._transactions.item import Unread
from pynamo_locking._writes import send, write
from pynamo_locking._writes.native_transaction import TransactAction
from pynamo_locking._writes.send import EmbeddedLockWriter
from pynamo_locking._writes.write import DELETE, SAVE, UPDATE, Operation, action_of
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pynamodb.connection import Connection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lease import Deadline
    from pynamo_locking._core.lock_queue import LockState
    from pynamo_locking._core.transactions import TransactionRecord
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._io.transaction_record import RecordTable
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._writes.write import Write


#: How often a mark without a response is sent again before the transaction gives up.
_REPEATS: Final = 7

#: With more changed attributes in a mark, the expression that finishes it could exceed DynamoDB's 4 KB.
_MOST_CHANGES: Final = 240

#: How long a transaction waits for the lock of an item while its holder renews it.
LOCK_GRACE_S: Final = 2.0
_MARK: Final = Operation("UpdateItem", TransactWriteError, "mark")


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
        return writer.own if isinstance(writer, EmbeddedLockWriter) else None

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
        name, write, held = self.row.attribute, self.member.final(), self.held
        path, value = [name, lock_record.TX], lock_record.stored_mark(self.mark)
        if not self.has_document:
            path, value = [name], {"M": {lock_record.TX: value}}
        actions: list[Action] = [Path(path).set(Stored(value))]
        condition: Condition | None = write.condition
        guard: Condition | None = None
        if self.mark.is_ghost:
            condition = conditions.both(self.member.condition, Place(self.row.hash_name).does_not_exist())
        else:
            has_document = Place(name).exists() if self.has_document else Place(name).does_not_exist()
            guard = Place(self.row.hash_name).exists() & fencing.queue_is_empty(self.row) & has_document
        if held is not None:
            self.number = self.number or held.next_write()
            guard = fencing.held_without_later_write(held, self.number)
            actions.append(fencing.store_write_number(held, self.number))
        blank = replace(write, operation=_MARK, attributes=None, return_values=None)
        return replace(blank, condition=condition, actions=actions).kwargs(guard)

    def decided_by(self) -> TransactAction:
        """Return how the decision writes the item, on condition that it carries this transaction's mark."""
        write, name = self.member.final(), self.row.attribute
        mine = replace(write, condition=fencing.has_intent_of(name, self.mark.id))
        unmark = [] if write.operation is DELETE else [Place(name, lock_record.TX).remove()]
        return TransactAction(action_of(mine, None, unmark), write)


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
    """Tell whether `plan_mark` would read the stored item."""
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
    except Refusal as refusal:
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


def _may_expire(model: type[Any], base: Image | Unread | None) -> bool:
    """Tell whether DynamoDB's TTL may delete the stored item, and with it a mark that is decided but not finished.

    An item of another program is refused elsewhere: it gets no mark.
    """
    ttl: Any = model._ttl_attribute()
    if ttl is None:
        return False
    if not isinstance(base, dict):
        return True
    value = None if has_foreign(model, base) else base.get(ttl.attr_name, {}).get("N")
    return value is not None and float(value) < runtime.current.time_ms() / 1000 + IDLE_TTL_S


def _no_place(member: TransactionItem) -> CannotBeStaged:
    return CannotBeStaged(f"{member.final().label} has no place for a mark")


def stored_size(member: TransactionItem, otherwise: int) -> int:
    """Return the size that an item will have, with version and write id; `otherwise` if that is not known."""
    write = member.final()
    kwargs = {} if write.operation is DELETE else write.kwargs()
    if "Item" in kwargs:
        return conditions.size_of(kwargs["Item"])
    if not kwargs or (isinstance(member.base, Unread) and not member.is_absent):
        return otherwise
    try:
        return conditions.size_of(conditions.updated(member.stored or member.key, kwargs))
    except Refusal:  # the commit tells
        return otherwise


def _size_of_base(member: TransactionItem) -> int:
    if member.is_absent:
        return item_size(member.key)
    return item_size(member.base if isinstance(member.base, dict) else member.item.serialize(null_check=False))


def _size_of_mark(one: IntentWrite) -> int:
    """Return by how much the mark makes its item larger."""
    with_mark = {one.row.attribute: {"M": {lock_record.TX: lock_record.stored_mark(one.mark)}}}
    return item_size(with_mark) + one.document_size - item_size({one.row.attribute: lock_record.EMPTY})


def _has_document(member: TransactionItem) -> bool:
    lock = member.model._lock_attribute()
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
        resolver, sending = self.resolver(), RetryState(RetryPolicy(_REPEATS, first_pause=1))
        while not self._is_over():
            self._pulse()
            one.underway, one.may_stand = one.underway + 1, True
            try:
                _ask(one.row.connection, "UpdateItem", one.request())
            except Refused as refused:
                one.underway -= 1
                one.may_stand = one.underway > 0
                if self._is_mine_or_settle(one, refused.image, resolver):
                    return
            except Unavailable as error:
                one.underway -= not responses.is_ambiguous(error.cause)
                _pause(sending, error, one)
            except TransactWriteError:  # refused for good
                one.underway -= 1
                raise
            else:
                one.underway -= 1
                return

    def _place(self, left: list[IntentWrite]) -> None:
        """Create placeholders for new items in one native transaction, again without those that are in its way."""
        resolver, sending, in_doubt = self.resolver(), RetryState(RetryPolicy(_REPEATS, first_pause=1)), False
        while left and not self._is_over():
            self._pulse()
            try:
                self._create(left)
            except Refused as refused:
                for one in left:
                    one.may_stand = in_doubt
                left = self._still_absent(left, responses.reasons_of(refused.__cause__), resolver)
            except Unavailable as error:
                in_doubt = in_doubt or responses.is_ambiguous(error.cause)
                _pause(sending, error, left[0])
            else:
                return

    def _create(self, new: Sequence[IntentWrite]) -> None:
        """Create placeholders while the header is pending.

        A late copy, also of a request that was refused, must not create them again after the items were finished and
        deleted. By then the header is decided. Two such requests at once would conflict in the header.
        """
        pending = transaction_record.still_pending(self._header_table, self._header.id)
        actions = [pending, *({"Update": one.request()} for one in new)]
        token = hashlib.sha256(repr(actions).encode()).hexdigest()[:32]
        kwargs = {"TransactItems": actions, "ClientRequestToken": token}
        with self._one_at_a_time:
            if self._is_over():
                return
            for one in new:
                one.may_stand = True
            _ask(self._header_table.connection, "TransactWriteItems", kwargs)

    def _still_absent(
        self, new: Sequence[IntentWrite], reasons: responses.Reasons, resolver: Resolver
    ) -> list[IntentWrite]:
        """Remove the obstacles of refused placeholders, or raise; return those that are to be created again."""
        of_header, *of_items = reasons
        if of_header.get("Code") == ACTION_FAILED:
            raise also(TransactionConflict, TransactWriteError)(
                f"the transaction {self._header.id} is no longer pending; nothing was written."
            )
        left = list[IntentWrite]()
        for one, reason in zip(new, of_items, strict=True):
            is_refused = reason.get("Code") == ACTION_FAILED
            if is_refused and self._is_mine_or_settle(one, reason.get("Item"), resolver):
                continue
            if one.mark.is_ghost:
                left.append(one)
            else:
                self.mark(one)
        return left

    def _is_mine_or_settle(self, one: IntentWrite, image: Image | None, resolver: Resolver) -> bool:
        """Tell whether a refused mark is stored already; otherwise remove the obstacle for a retry, or raise."""
        state, member = one.row.state(image), one.member
        if state.mark is not None and state.mark.id == self._header.id:
            one.underway -= not one.mark.is_ghost  # the copy whose response was lost was applied
            one.may_stand = True
            return True
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
            raise TransactAction({}, member.final(), one.row, one.held, one.number).explain(image, cause)
        return False

    def _clear_expired(self, one: IntentWrite, image: Image) -> None:
        """Delete an expired item, which counts as absent: TTL could delete it, and the mark with it, at any moment."""
        try:
            send.clear_expired(one.member.item, image, fencing.queue_is_empty(one.row))
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


def _ask(connection: Connection, operation: str, kwargs: dict[str, Any]) -> None:
    try:
        client.ask(connection, operation, kwargs)
    except responses.BOTOCORE_EXCEPTIONS as error:
        raise TransactWriteError("Failed to mark an item", responses.readable(error)) from error


def _pause(sending: RetryState, error: Unavailable, one: IntentWrite) -> None:
    """Wait before a request is sent again; raise if it was sent often enough."""
    if not is_sent_again(sending, Answer.UNANSWERED):
        raise also(TransactionConflict, TransactWriteError)(
            f"no response came for {one.row.label}: {error}; nothing was written.", cause=error.cause
        ) from error
