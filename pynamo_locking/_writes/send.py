"""Sends a write: chooses the sender by where the lock is (none held, in the item, in another row); many in one request.

A write of a model with ``Meta.enforce`` is a native transaction with this check. DynamoDB evaluates it with the write:
no entry is in the queue, or none has come since an image in which no entry was in the way. Entries leave and never
grow, so those that are left are not in the way either.

A save replaces the whole item. A statement can create an item, or change the attributes that it names. So a save is
said as an INSERT of a new item, and as an UPDATE of an item whose attributes are known by its write id. All that cannot
be said, or was not applied, is sent alone.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pynamodb.exceptions import PutError, PynamoDBException, TransactWriteError
from pynamodb.expressions.update import Update
from pynamodb.models import Model
from typing_extensions import override

from pynamo_locking._core.dynamodb import ACTION_FAILED, Answer, Next, RetryPolicy, RetryState
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lock_queue import FREE, dead_among
from pynamo_locking._core.write_outcome import EntryEffect, Outcome, judge
from pynamo_locking._io import batch_requests, client, event_stream, lock_record, responses, runtime, wakeups
from pynamo_locking._io.batch_requests import StatementResult
from pynamo_locking._io.client import Unavailable
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._io.write_intents import Resolver, conflicts
from pynamo_locking._items import conditions, expiry, versions
from pynamo_locking._locks import fencing, held_lock, local_queue
from pynamo_locking._locks.held_lock import in_order, note_left
from pynamo_locking._locks.release import evict_all, evict_dead
from pynamo_locking._writes import write as write_module
from pynamo_locking._writes.write import (
    DELETE,
    UPDATE,
    action_of,
    busy_with_locks,
    check_actions,
    error_of_refusal,
    locked_by,
    locked_out,
    plan_delete,
    plan_save,
    plan_update,
)
from pynamo_locking.exceptions import Conflict, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lease import LockSettings
    from pynamo_locking._core.lock_modes import Bound
    from pynamo_locking._core.lock_queue import LockState, QueueEntry
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._writes.write import Write

logger = logging.getLogger("pynamo_locking")


# The check of a lock that a writer does not hold, and that it must not write into: of a range, or of a table.


#: How often a write looks at a queue that changes before each attempt.
_MOST_LOOKS: Final = 8


class ForeignLockCheck:
    """The check that the lock in another row keeps no writer from some items.

    Args:
        row: the row of the lock.
        position: the range key of the written item; None if every entry of the lock is in the way.
        settings: say when a lease is over.
    """

    def __init__(self, row: LockRow, position: Bound | None, settings: LockSettings) -> None:
        self.row = row
        self._settings = settings
        self._positions = {position}
        self._seen = FREE
        self._looks = 0
        self.request: dict[str, Any] = {"ConditionCheck": {}}
        self._ask()

    def join(self, other: ForeignLockCheck) -> None:
        """Check the positions of another barrier in the same row as well."""
        self._positions |= other._positions

    def see(self, image: Image | None, kind: type[PynamoDBException], cause: Exception) -> None:
        """Look at the queue that has refused a write, so that the write may be sent again.

        Dead entries that are in the way, by their stored end of lease, are evicted.

        Raises:
            ItemLocked: an entry is in the way; also a `kind`.
            TransactionConflict: other parties enter the queue all the time; also a `kind`.
        """
        self._looks += 1
        state = self._without_dead(self.row.state(image))
        found = self._in_the_way(state)
        if found:
            advice = "Lock the range yourself (locked_range()), or try again when it is free."
            raise locked_by(self.row, found[0], kind, advice, cause) from cause
        if self._looks > _MOST_LOOKS:
            raise busy_with_locks(self.row, kind, cause) from cause
        self._seen = state
        self._ask()

    def _ask(self) -> None:
        names: dict[str, str] = {}
        values: dict[str, Any] = {}
        condition = fencing.not_entered_since(self.row, self._seen).serialize(names, values)
        self.request["ConditionCheck"] = {
            "TableName": self.row.table,
            "Key": self.row.key,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {placeholder: name for name, placeholder in names.items()},
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def _in_the_way(self, state: LockState) -> list[QueueEntry]:
        return [
            entry
            for entry in state.entries
            if any(position is None or entry.claim.contains(position) for position in self._positions)
        ]

    def _without_dead(self, state: LockState) -> LockState:
        """Evict the entries in the way if all of them are dead, and return the queue as it is then."""
        found, settings = self._in_the_way(state), self._settings
        now_ms = runtime.current.time_ms()
        dead = dead_among(found, {}, 0.0, now_ms, settings.max_clock_skew, settings.max_lease)
        if not dead or len(dead) < len(found):
            return state
        try:
            image = evict_dead(self.row, dead, state)
        except client.Unavailable:
            return state
        return state if image is None else self.row.state(image)


# Sends writes from outside a lock: DynamoDB refuses them while a holder is in the queue.


def send_without_lock(write: Write, row: LockRow | None = None) -> dict[str, Any]:
    """Write an item whose lock this context does not hold; `row` is its embedded lock, if it carries one.

    If the entries in the embedded lock are dead by their stored end of lease, they are evicted first. So a crashed
    holder does not block writers until a waiter evicts it.

    Raises:
        ItemLocked: another owner holds the lock.
        OutcomeUnknown: no response tells whether the item was written.
        PynamoDBException: a condition of the write failed, or DynamoDB refused it.
    """
    return _Sending(write, row).send()


class _Sending:
    def __init__(self, write: Write, row: LockRow | None) -> None:
        self.write = write
        self.row = row
        self.guard = None if row is None else fencing.queue_is_empty(row)
        self.founding = [] if row is None else fencing.create_lock_attribute(row)
        self.kwargs = write.kwargs(self.guard, self.founding)
        self.once = write.is_tried_once
        self.may_evict = True
        self.resolver = Resolver()

    def send(self) -> dict[str, Any]:
        write, once = self.write, self.once
        # This package makes the attempts that botocore must not make; one more than botocore would have made.
        most = write.item._get_connection().connection._max_retry_attempts_exception + 1 if once else 1
        policy = RetryPolicy(most if write.is_repeatable else 0, 0 if once else None, once, looks=write.is_sent_once)
        return client.send(self._attempt, self._settle, write.failed, write.unknown, look=self._look, policy=policy)

    def _attempt(self, how: Next | None) -> dict[str, Any]:
        if self.once and how is Next.REPEAT:
            self.write.part.renew(runtime.current.token())
            self.kwargs = self.write.kwargs(self.guard, self.founding)
        return self.write.dispatch(self.kwargs, once=self.once)

    def _settle(self, error: Exception, in_doubt: bool) -> dict[str, Any] | None:  # noqa: FBT001
        """Return the response if an earlier copy was applied; None if the write may be sent again."""
        image = responses.image_of(error)
        outcome = self.write.judge(image, repeated=in_doubt)
        if outcome is Outcome.APPLIED:
            return {} if image is None else {"Attributes": image}
        if outcome is Outcome.UNKNOWN:
            raise self.write.unknown(error) from error
        may_be_applied = in_doubt and self.write.may_still_be_applied(image)
        kind, told = self.write.operation.error, f"Failed to {self.write.operation.verb} item: "
        with conflicts(kind, error, self.write.unknown if may_be_applied else None, told=told):
            state = FREE if self.row is None else self.row.state(image)
            if self.row is not None and state.mark is not None:
                self.resolver.resolve((self.row, state.mark))
                return None
        if state.entries:
            self._evict(state, image, error, may_be_applied=may_be_applied)
        elif not is_cleared(self.write, image, self.guard):
            raise error_of_refusal(self.write, kind, image, error) from error
        return None

    def _evict(self, state: LockState, image: Image | None, error: Exception, *, may_be_applied: bool) -> None:
        assert self.row is not None  # noqa: S101 - a lock has one
        may_evict, self.may_evict = self.may_evict, False
        if not (may_evict and evict_all(self.row, state, type(self.write.item))):
            if may_be_applied:
                raise self.write.unknown(error) from error
            stored = None if image is None else (type(self.write.item), image)
            raise locked_out(self.row, state, self.write.operation.error, error, stored) from error

    def _look(self, error: Exception) -> dict[str, Any]:
        """Read the item to find the outcome of a write that must not be sent twice."""
        connection = self.write.item._get_connection().connection
        kwargs = {"TableName": self.kwargs["TableName"], "Key": self.kwargs["Key"], "ConsistentRead": True}
        try:
            image = connection.dispatch("GetItem", kwargs).get("Item")
        except responses.BOTOCORE_EXCEPTIONS as failure:
            raise self.write.unknown(error) from failure
        if self.write.judge(image, repeated=True) is Outcome.APPLIED:
            return {"Attributes": image}
        raise self.write.unknown(error) from error  # a later write may have replaced it, or it may still arrive


def is_cleared(write: Write, image: Image | None, guard: Condition | None = None) -> bool:
    """Delete an expired item that has refused an update, once, so that the update finds no item; tell whether it did.

    Raises:
        PynamoDBException: the delete failed.
    """
    if not write.creates or image is None or not expiry.is_expired(type(write.item), image):
        return False
    write.creates = False
    try:
        clear_expired(write.item, image, guard)
    except responses.BOTOCORE_EXCEPTIONS as error:
        raise write.failed(error) from error
    return True


def clear_expired(item: Model, image: Image, guard: Condition | None) -> None:
    """Delete an expired item, if it still has the time of expiry in `image`."""
    hash_key, range_key = item._get_hash_range_key_serialized_values()
    known = versions.shape_of(type(item)).known
    connection, condition = item._get_connection(), conditions.both(expiry.still(type(item), image), guard)
    condition = conditions.both(condition, known)
    kwargs = connection.get_operation_kwargs(hash_key, range_key=range_key, condition=condition)
    try:
        client.ask(connection.connection, "DeleteItem", kwargs)
    except client.Refused:
        pass  # another writer was faster
    except client.Unavailable as error:
        raise error.cause from None


# Sends the writes of an item that carries its own lock.


class Check(NamedTuple):
    """The check of a held entry by a write, and the effect of the write on the entry."""

    own: HeldEntry
    number: int
    kind: EntryEffect


def send_under_own_lock(own: HeldEntry, write: Write) -> dict[str, Any]:
    """Write an item that carries the lock that this context holds.

    Raises:
        LockLost: the entry is gone and nothing was written.
        OutcomeUnknown: no response tells whether the item was written.
        PynamoDBException: another condition of the write failed, or DynamoDB refused it.
    """
    with own.writing() as number:
        if write.kind is EntryEffect.KEEP:
            kwargs = write.kwargs(
                fencing.held_without_later_write(own, number), [fencing.store_write_number(own, number)]
            )
            return _send(own, write, number, kwargs)
        finishes = write.kind is EntryEffect.FINISH
        after = local_queue.handover_to_next(own.caller, own.entry) if finishes else None
        if after is not None or (finishes and wakeups.has_waiters(own.row)):
            write.return_values = "ALL_NEW"
        with own.going():
            kwargs = write.kwargs(
                fencing.held_without_later_write(own, number),
                [*fencing.remove_own_entry(own), *fencing.add_next_entry(own, after)],
            )
            data = _send(own, write, number, kwargs)
        note_left(own, data.get("Attributes") if finishes else None)
        return data


def _send(own: HeldEntry, write: Write, number: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a guarded write, and again after a lost response: the entry refuses a second copy."""

    def settle(error: Exception, in_doubt: bool) -> dict[str, Any]:  # noqa: FBT001
        image = responses.image_of(error)
        settle_inside(Check(own, number, write.kind), write, image, error, in_doubt)
        return {} if image is None else {"Attributes": image}

    return client.send(
        lambda _: write.dispatch(kwargs), settle, write.failed, lambda error: write.unknown(error, own.write_id(number))
    )


def settle_inside(
    check: Check,
    write: Write,
    image: Image | None,
    error: Exception,
    repeated: bool,  # noqa: FBT001
) -> None:
    """Return if an earlier copy of a refused write was applied; otherwise raise the error."""
    own = check.own
    try:
        outcome = judged(check, image, repeated)
    except LockingError as reason:  # the lock document is broken, so nothing shows the outcome
        if repeated:
            raise write.unknown(error, own.write_id(check.number)) from reason
        raise
    if outcome is Outcome.APPLIED:
        return
    if outcome is Outcome.REJECTED:
        raise error_of_refusal(write, write.operation.error, image, error) from error
    state, is_removal = own.row.state(image), check.kind is not EntryEffect.KEEP
    if outcome is Outcome.LOST:
        raise own.absent_from(state, is_removal=is_removal) from error
    if not is_removal:
        own.absent_from(state)
    raise write.unknown(error, own.write_id(check.number)) from error


def judged(check: Check, image: Image | None, repeated: bool) -> Outcome:  # noqa: FBT001
    own, number, kind = check
    return judge(own.row.state(image), own.possession, number, kind=kind, repeated=repeated)


# Sends the writes of an item whose lock is in another row.


_C = TypeVar("_C")


def check_of_lock_row(own: HeldEntry, number: int, kind: EntryEffect) -> dict[str, Any]:
    """Return the transaction's action on the lock row: check the held entry, and store the write's number or leave.

    A ConditionCheck costs the same but cannot store the number, so a late copy could overtake a later write.
    """
    if kind is EntryEffect.FINISH:
        actions = [
            *fencing.remove_own_entry(own),
            *fencing.add_next_entry(own, local_queue.handover_to_next(own.caller, own.entry)),
        ]
    else:
        actions = [fencing.store_write_number(own, number)]
    names: dict[str, str] = {}
    values: dict[str, Any] = {}
    kwargs = {
        "TableName": own.row.table,
        "Key": own.row.key,
        "ConditionExpression": fencing.held_without_later_write(own, number).serialize(names, values),
        "UpdateExpression": Update(*actions).serialize(names, values),
        "ExpressionAttributeNames": {placeholder: name for name, placeholder in names.items()},
        "ExpressionAttributeValues": values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    return {"Update": kwargs}


def send_under_separate_lock(
    owns: Sequence[HeldEntry], write: Write, action: dict[str, Any], barriers: Sequence[ForeignLockCheck] = ()
) -> None:
    """Write an item whose lock is in another row: one transaction that also checks that row.

    Args:
        owns: the entries that the writer holds: of the item's own lock, then of a range, then of the table. The last
            write of an `edit` removes the first one.
        write: for errors.
        action: the write as a transaction's action, such as ``{"Put": {...}}``.
        barriers: of locks that the writer does not hold, and that must not be in the way.
    """
    with contextlib.ExitStack() as held:
        numbers = {own: held.enter_context(own.writing()) for own in in_order(owns)}
        checks = [Check(own, numbers[own], write.kind if own is owns[0] else EntryEffect.KEEP) for own in owns]
        items = [action, *(check_of_lock_row(*check) for check in checks)]
        if write.kind is EntryEffect.KEEP or not owns:
            _transact(write, checks, items, barriers)
            return
        with owns[0].going():
            _transact(write, checks, items, barriers)
        note_left(owns[0], None)


def _transact(
    write: Write, checks: Sequence[Check], items: list[dict[str, Any]], barriers: Sequence[ForeignLockCheck]
) -> None:
    connection, token = write.item._get_connection().connection, ""
    write_id = checks[0].own.write_id(checks[0].number) if checks else None

    def attempt(how: Next | None) -> dict[str, Any]:
        nonlocal token
        token = token if how is Next.REPEAT else runtime.current.token()
        rows = [] if write.claims is None else write.claims.actions()
        actions = [*items, *(barrier.request for barrier in barriers), *rows]
        kwargs = {"TransactItems": actions, "ClientRequestToken": token}
        return client.dispatch(connection, "TransactWriteItems", kwargs)

    def settle(error: Exception, in_doubt: bool) -> dict[str, Any] | None:  # noqa: FBT001
        """Return {} if an earlier copy of the transaction was applied, None if it may be sent again; or raise."""
        item_reason, *row_reasons = responses.reasons_of(error)
        failed = _failed(checks, row_reasons[: len(checks)])
        if any(judged(check, image, in_doubt) is Outcome.APPLIED for check, image in failed):
            return {}
        for check, image in failed:
            settle_inside(check, write, image, error, in_doubt)
        if not checks and _was_applied(write, item_reason, error, in_doubt=in_doubt):
            return {}
        others = row_reasons[len(checks) :]
        if in_doubt and (_failed(others, others) or write.may_still_be_applied(item_reason.get("Item"))):
            raise write.unknown(error, write_id) from error
        if _is_let_through(write, barriers, others, error) and item_reason.get("Code") != ACTION_FAILED:
            return None
        if write.expects_other_values(item_reason.get("Item")):
            items[0] = action_of(write)
            return None
        if not checks and is_cleared(write, item_reason.get("Item")):
            return None
        # Raise what a single write would have raised: callers look for the code of a failed condition.
        message, table = item_reason.get("Message", ""), write.item.Meta.table_name
        cause = responses.condition_failed(write.operation.error, message, table, request=error)
        raise error_of_refusal(write, write.operation.error, item_reason.get("Item"), cause) from error

    client.send(attempt, settle, write.failed, lambda error: write.unknown(error, write_id))


def _is_let_through(
    write: Write, barriers: Sequence[ForeignLockCheck], reasons: Sequence[Mapping[str, Any]], error: Exception
) -> bool:
    """Tell whether what was met in other rows is not in the way of another attempt; raise if it is."""
    met = _failed(barriers, reasons[: len(barriers)])
    for barrier, image in met:
        barrier.see(image, write.operation.error, error)
    rows = reasons[len(barriers) :]
    return bool(met) or (write.claims is not None and write.claims.see(rows, error))


def _failed(checked: Sequence[_C], reasons: Sequence[Mapping[str, Any]]) -> list[tuple[_C, Image | None]]:
    """Return which checks were not met, each with the image of its row."""
    pairs = zip(checked, reasons, strict=True)
    return [(each, reason.get("Item")) for each, reason in pairs if reason.get("Code") == ACTION_FAILED]


def _was_applied(write: Write, reason: Mapping[str, Any], error: Exception, *, in_doubt: bool) -> bool:
    """Tell whether an earlier copy of a refused write, which names no held entry, was applied; or raise."""
    if reason.get("Code") != ACTION_FAILED:
        return False
    outcome = write.judge(reason.get("Item"), repeated=in_doubt)
    if outcome is Outcome.UNKNOWN:
        raise write.unknown(error) from error
    return outcome is Outcome.APPLIED


# The three writers of an item: without a lock held, with its embedded lock, under a lock in another row.


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
        """Return the save without the lock's part; for `stored` see `conditions.save_actions`."""
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
        write = self.plan_save(conditions.both(condition, kept), checks_version=checks_version)
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
                write_module.write_failed(write, error)
            raise
        return self._done(write, data)

    def _send(self, write: Write) -> dict[str, Any]:
        return send_without_lock(write)

    def _done(self, write: Write, data: dict[str, Any]) -> dict[str, Any]:
        """Read the item if needed: a transaction returns no attributes."""
        if "Attributes" in data or not (write.operation is UPDATE or write.return_values == "UPDATED_NEW"):
            write.done(data)
            return data
        try:
            client.patiently(self._read_back)
        except (PynamoDBException, Unavailable) as error:  # the write was applied nevertheless
            logger.warning("%s was updated, and could not be read afterwards: %s", write.label, error)
            versions.expect(self.item, write.part)
            self.item.update_local_version_attribute()
            versions.mark_old(self.item)
            return {}
        return {"Attributes": self.item.serialize()}

    def _read_back(self) -> None:
        """Load the written item; `Unavailable` if no response came and the lease has not ended."""
        try:
            Model.refresh(self.item, consistent_read=True)
        except PynamoDBException as error:
            may_wait = self.own is None or self.own.remaining
            if may_wait and isinstance(error.cause, Exception) and responses.is_transient(error.cause):
                raise Unavailable(error.cause) from error
            raise

    def action(self, write: Write, number: int | None = None) -> dict[str, Any]:  # noqa: ARG002 - of a lock in the item
        """Return a write as an action of a transaction, with the lock's part, under that number or the next."""
        return action_of(write)

    def put(self, condition: Condition | None) -> tuple[Write, dict[str, Any]]:
        """Return the save of PynamoDB's own TransactWrite, which is always a Put, and its request."""
        write = plan_save(self.item, condition, checks_version=True, error=TransactWriteError)
        return write, write.kwargs()


class EmbeddedLockWriter(PlainWriter):
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
            return send_without_lock(write, self.row)
        return send_under_own_lock(self.own, write)

    @override
    def action(self, write: Write, number: int | None = None) -> dict[str, Any]:
        if self.own is None:
            return action_of(write, fencing.queue_is_empty(self.row), fencing.create_lock_attribute(self.row))
        number = self.own.next_write() if number is None else number
        return action_of(
            write, fencing.held_without_later_write(self.own, number), [fencing.store_write_number(self.own, number)]
        )

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
            write.attributes[self.lock.attr_name] = lock_record.EMPTY
        return write, write.kwargs(fencing.lock_record_unchanged(self.row, state.raw))

    def _next_document(self, state: LockState) -> dict[str, Any] | None:
        """Return the lock document with this write's number in it; None outside the lock."""
        lock_record.trusted(self.row, state)
        if state.mark is not None:
            raise ConfigurationError(
                f"this copy of {self.row.label} was read while a transaction had marked the item: refresh() it first."
            )
        if self.own is None:
            if state.entries:
                raise write_module.locked_out(self.row, state, TransactWriteError)
            return None
        if state.raw is None or state.find(self.own.entry.id, self.own.entry.ticket) is None:
            if state.next_ticket > self.own.entry.ticket:  # the copy was read after the entry had joined and left
                raise self.own.absent_from(state)
            raise ConfigurationError(
                f"this copy of {self.row.label} was loaded before the lock was acquired. Use lock.item, or refresh() "
                f"it."
            )
        return lock_record.with_write_counted(state.raw, self.own.entry.id, self.own.next_write())


def put_document(item: Model) -> LockState | None:
    """Return and forget the lock document that a committed Put has stored."""
    document = vars(item).pop(_PUT_DOCUMENT, None)
    return None if document is None else lock_record.state_of(document)


class SeparateLockWriter(PlainWriter):
    """Writes an item under held entries in other rows (its own lock, a range, the table): one transaction each.

    The `barriers` are of locks that this context does not hold, and that must not be in the way.
    """

    def __init__(self, item: Model, owns: Sequence[HeldEntry], barriers: Sequence[ForeignLockCheck] = ()) -> None:
        super().__init__(item)
        self.owns = owns
        self.barriers = barriers
        self.own = next(iter(owns), None)

    @property
    def checked(self) -> tuple[HeldEntry | ForeignLockCheck, ...]:
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
        send_under_separate_lock(self.owns, write, action_of(write), self.barriers)
        return {}


def check_copy(item: Model, own: HeldEntry | None) -> None:
    """Refuse to save a whole item that was read under an earlier lock: another holder may have changed it since."""
    before: HeldEntry | None = vars(item).get(held_lock.OWN_ENTRY)
    if own is None or before is None or before is own:
        return
    if before.row.identity == own.row.identity:
        raise ConfigurationError(
            f"this copy of {own.row.label} was read under an earlier lock; saving it could undo writes of other "
            f"holders. Use lock.item, or refresh() it."
        )


# Sends saves and deletes of many items as statements, 25 in a request, each with the conditions of its single write.


class BatchedWrite(NamedTuple):
    """A write, and the statement for it."""

    writer: PlainWriter
    write: Write
    request: batch_requests.StatementWrite

    def done(self) -> None:
        """Update the instance after the write was applied."""
        self.writer._done(self.write, {})

    def send_alone(self) -> None:
        """Send what is not known to be applied."""
        self.writer._write(self.write)


def as_statement(writer: PlainWriter, write: Write) -> BatchedWrite | None:
    """Return a write of which a statement does the same; None if there is no such statement.

    Sent alone are writes that change unique values, those whose lock is held or checked in another row, those that
    store what only DynamoDB knows, and those without any condition.
    """
    if writer.own is not None or isinstance(writer, SeparateLockWriter) or not write.part.is_checked:
        return None
    request = _deleting(writer, write) if write.operation is DELETE else _saving(writer, write)
    if request is None or (write.claims is not None and write.claims.rows):
        return None
    operation, kwargs = request
    # No hidden retries: a repeated INSERT could create again what was deleted since.
    connection = client.single_attempt(write.item._get_connection().connection)
    return BatchedWrite(writer, write, batch_requests.StatementWrite(connection, operation, kwargs))


def _deleting(writer: PlainWriter, write: Write) -> tuple[str, dict[str, Any]]:
    return "DeleteItem", {**writer.action(write)["Delete"], "ReturnValues": "ALL_OLD"}


def _saving(writer: PlainWriter, write: Write) -> tuple[str, dict[str, Any]] | None:
    if isinstance(writer, EmbeddedLockWriter) and writer.row.may_create:
        return None
    if write.part.before.version is not None:
        return _updating(writer, write)
    if not expiry.holds_without_item(write.condition):
        return None
    kwargs = write.kwargs()
    key = kwargs.get("Key", {})
    return "PutItem", {"TableName": kwargs["TableName"], "Item": kwargs.get("Item") or {**key, **write.stored()}}


def _updating(writer: PlainWriter, write: Write) -> tuple[str, dict[str, Any]] | None:
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
    said = replace(write, attributes=None, actions=actions, condition=reduce(conditions.both, still, write.condition))
    kwargs = writer.action(said)["Update"]
    write.second = said.second
    return "UpdateItem", kwargs


def send_batch(batch: Sequence[BatchedWrite]) -> list[bool]:
    """Send up to 25 writes of one table, and again while DynamoDB is too busy; tell which are known to be applied."""
    for each in batch:
        each.write.is_unanswered = True
    results = batch_requests.send([each.request for each in batch])
    sending = RetryState(RetryPolicy(is_single=True))
    while StatementResult.BUSY in results and client.is_sent_again(sending, Answer.BUSY):
        again = [i for i, result in enumerate(results) if result is StatementResult.BUSY]
        for i, result in zip(again, batch_requests.send([batch[i].request for i in again]), strict=True):
            results[i] = result
    for each, result in zip(batch, results, strict=True):
        each.write.is_unanswered = result is StatementResult.UNKNOWN
    return [result is StatementResult.APPLIED for result in results]
