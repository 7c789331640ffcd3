"""Sends writes from outside a lock: DynamoDB refuses them while a holder is in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._core.outcome import Outcome
from pynamo_locking._core.queue import FREE
from pynamo_locking._core.sending import Next, Policy
from pynamo_locking._io import answers, retries, runtime
from pynamo_locking._io.resolver import Resolver, conflicts
from pynamo_locking._items import clauses, expiry, versions
from pynamo_locking._locks import guards
from pynamo_locking._locks.evictions import evict_all
from pynamo_locking._writes.refusals import locked_out, refusal

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamo_locking._core.queue import LockState
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image
    from pynamo_locking._writes.write import Write


def send(write: Write, row: LockRow | None = None) -> dict[str, Any]:
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
        self.guard = None if row is None else guards.unlocked(row)
        self.founding = [] if row is None else guards.founding(row)
        self.kwargs = write.kwargs(self.guard, self.founding)
        self.once = write.is_tried_once
        self.may_evict = True
        self.resolver = Resolver()

    def send(self) -> dict[str, Any]:
        write, once = self.write, self.once
        # This package makes the attempts that botocore must not make; one more than botocore would have made.
        most = write.item._get_connection().connection._max_retry_attempts_exception + 1 if once else 1
        policy = Policy(most if write.is_repeatable else 0, 0 if once else None, once, looks=write.is_sent_once)
        return retries.send(self._attempt, self._settle, write.failed, write.unknown, look=self._look, policy=policy)

    def _attempt(self, how: Next | None) -> dict[str, Any]:
        if self.once and how is Next.REPEAT:
            self.write.part.renew(runtime.current.token())
            self.kwargs = self.write.kwargs(self.guard, self.founding)
        return self.write.dispatch(self.kwargs, once=self.once)

    def _settle(self, error: Exception, in_doubt: bool) -> dict[str, Any] | None:  # noqa: FBT001
        """Return the response if an earlier copy was applied; None if the write may be sent again."""
        image = answers.image_of(error)
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
            raise refusal(self.write, kind, image, error) from error
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
        except answers.BOTOCORE_EXCEPTIONS as failure:
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
    except answers.BOTOCORE_EXCEPTIONS as error:
        raise write.failed(error) from error
    return True


def clear_expired(item: Model, image: Image, guard: Condition | None) -> None:
    """Delete an expired item, if it still has the time of expiry in `image`."""
    hash_key, range_key = item._get_hash_range_key_serialized_values()
    known = versions.shape_of(type(item)).known
    connection, condition = item._get_connection(), clauses.both(expiry.still(type(item), image), guard)
    condition = clauses.both(condition, known)
    kwargs = connection.get_operation_kwargs(hash_key, range_key=range_key, condition=condition)
    try:
        retries.ask(connection.connection, "DeleteItem", kwargs)
    except retries.Refused:
        pass  # another writer was faster
    except retries.Unavailable as error:
        raise error.cause from None
