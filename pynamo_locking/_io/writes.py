"""Guarded writes: what is sent, and what became of it.

Inside a lock a write names our entry, counts itself in it, and recognises its own earlier copy.
Outside, a write of an item with an embedded lock is refused while anybody is in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pynamodb.constants import KEY
from pynamodb.exceptions import DeleteError, PutError, PynamoDBException, UpdateError, VerboseClientError
from pynamodb.expressions.update import Update

from pynamo_locking._core.lease import backoff
from pynamo_locking._core.outcome import Kind, Outcome, judge
from pynamo_locking._core.queue import LockState, dead_among
from pynamo_locking._io import guards, local, requests, runtime, transport
from pynamo_locking._io.heartbeat import heart
from pynamo_locking._io.waiting import evict_dead
from pynamo_locking.exceptions import ItemLocked, OutcomeUnknown, also

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Image, Row

#: Where an item that came out of a lock remembers the entry it was read under.
OWN_ENTRY: Final = "_pynamo_locking_own_entry"

#: A transaction that meets another one on the same rows (a heartbeat is enough) is sent again.
CONFLICT_ATTEMPTS: Final = 8


@dataclass(frozen=True)
class Operation:
    """A write as PynamoDB's users know it: its request, its error, and its name in messages."""

    request: str
    error: type[PynamoDBException]
    verb: str


SAVE: Final = Operation("UpdateItem", PutError, "put")
UPDATE: Final = Operation("UpdateItem", UpdateError, "update")
DELETE: Final = Operation("DeleteItem", DeleteError, "delete")


@dataclass
class Write:
    """One write of one item, before the lock's part is added."""

    item: Model
    operation: Operation
    condition: Condition | None
    actions: list[Action] = field(default_factory=list)
    kind: Kind = Kind.KEEP
    return_values: str | None = None

    def kwargs(self, guard: Condition, actions: list[Action]) -> dict[str, Any]:
        """Return the request with that guard and those actions in addition."""
        all_actions = [*self.actions, *actions] if self.operation is not DELETE else []
        hash_key, range_key = self.item._get_hash_range_key_serialized_values()
        kwargs: dict[str, Any] = self.item._get_connection().get_operation_kwargs(
            hash_key,
            range_key=range_key,
            key=KEY,
            actions=all_actions or None,
            condition=guards.both(self.condition, guard),
            return_values=self.return_values,
            return_values_on_condition_failure="ALL_OLD",
        )
        guards.check_size(self.item, kwargs)
        return kwargs

    def dispatch(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Send it over the model's own connection, with the retries and timeouts its Meta asks for."""
        data: dict[str, Any] = self.item._get_connection().connection.dispatch(self.operation.request, kwargs)
        return data

    def failed(self, error: Exception) -> PynamoDBException:
        """Return the error PynamoDB would raise."""
        return self.operation.error(f"Failed to {self.operation.verb} item: {error}", error)

    def unknown(self, label: str, write_id: str | None, error: Exception) -> OutcomeUnknown:
        """Return the error for a write that may have been applied."""
        return also(OutcomeUnknown, self.operation.error)(
            f"the {self.operation.verb} of {label} (write {write_id or 'without a lock'}) may or may not have been "
            f"applied: {error}. Read the item again before you decide what to do.",
            write_id=write_id,
            cause=error,
        )


def own_entry_of(item: Model, row: Row) -> OwnEntry | None:
    """Return the entry under which an item is written: the one it was read under, or the context's.

    Raises:
        LockLost: that entry is known to be gone.
    """
    own: OwnEntry | None = vars(item).get(OWN_ENTRY)
    if own is not None and own.row.identity != row.identity:
        own = None  # the item got another key since it was read
    if own is None or (own.ended and not own.lost.is_set()):
        own = local.held_in_context(row)
    if own is None:
        return None
    if own.lost.is_set():
        raise own.loss()
    return None if own.ended else own


def is_stale_copy(item: Model, own: OwnEntry) -> bool:
    """Tell whether an item was read under an earlier lock than the one it would be saved under."""
    read_under: OwnEntry | None = vars(item).get(OWN_ENTRY)
    return read_under is not None and read_under.row.identity == own.row.identity and read_under is not own


# Embedded locks


def inside(own: OwnEntry, write: Write) -> dict[str, Any]:
    """Write an item that carries the lock we hold.

    Raises:
        LockLost: our entry is gone and nothing was written.
        OutcomeUnknown: nothing tells whether it was written.
        PynamoDBException: another condition of the write failed, or DynamoDB refused it.
    """
    with own.writing() as number:
        if write.kind is Kind.KEEP:
            kwargs = write.kwargs(guards.standing(own, number), [guards.counting(own, number)])
            return _send(own, write, number, kwargs)
        finishes = write.kind is Kind.FINISH
        if finishes and local.has_waiters(own.row):
            write.return_values = "ALL_NEW"
        with own.going():
            kwargs = write.kwargs(guards.standing(own, number), guards.leaving(own))
            data = _send(own, write, number, kwargs)
        left(own, data.get("Attributes") if finishes else None)
        return data


def left(own: OwnEntry, image: Image | None) -> None:
    """Note that a write took our entry away with it, and tell who waits in this process."""
    own.end()
    heart.remove(own)
    local.tell_waiters(own.row, image)


def _send(own: OwnEntry, write: Write, number: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a guarded write; once more if nothing is known of it, since a second copy cannot hurt."""
    repeated = False
    while True:
        try:
            return write.dispatch(kwargs)
        except transport.BOTOCORE_EXCEPTIONS as error:
            if transport.code_of(error) == transport.CONDITION_FAILED:
                image = transport.image_of(error)
                _settle(own, write, number, image, error, repeated or transport.was_repeated(error))
                return {"Attributes": image} if image is not None else {}
            if not (repeated or transport.is_ambiguous(error)):
                raise write.failed(error) from error
            if repeated:
                raise write.unknown(own.row.label, own.write_id(number), error) from error
            repeated = True


def _settle(
    own: OwnEntry,
    write: Write,
    number: int,
    image: Image | None,
    error: Exception,
    repeated: bool,  # noqa: FBT001
) -> None:
    """Return if a refused write was applied by its earlier copy, raise what happened otherwise."""
    state = own.row.state(image)
    ticket = own.entry.ticket
    outcome = judge(state, own.entry.id, ticket, number, kind=write.kind, repeated=repeated)
    if outcome is Outcome.APPLIED:
        return
    if outcome is Outcome.REJECTED:
        raise write.failed(error) from error
    if outcome is Outcome.LOST or write.kind is Kind.KEEP:
        own.lose_to(state)
    raise (
        own.loss() if outcome is Outcome.LOST else write.unknown(own.row.label, own.write_id(number), error)
    ) from error


def outside(row: Row, lock: Any, write: Write) -> dict[str, Any]:
    """Write an item with an embedded lock that we do not hold: only while nobody is in its queue.

    Entries that are dead by their stored end of lease are evicted first, so that a crash does not
    keep everybody out until someone takes the lock.

    Raises:
        ItemLocked: somebody holds the lock.
        PynamoDBException: another condition of the write failed, or DynamoDB refused it.
    """
    kwargs = write.kwargs(guards.unlocked(lock), [])
    for may_evict in (True, False):
        try:
            return write.dispatch(kwargs)
        except transport.BOTOCORE_EXCEPTIONS as error:
            state = row.state(transport.image_of(error))
            refused = transport.code_of(error) == transport.CONDITION_FAILED
            if not refused or not state.entries:
                raise write.failed(error) from error
            if transport.was_repeated(error):  # an earlier copy may have been here before the holder
                raise write.unknown(row.label, None, error) from error
            if not (may_evict and _evict_all(row, state, type(write.item))):
                raise locked_out(row, state, write.operation.error, error) from error
    raise AssertionError("the second round returns or raises")


def _evict_all(row: Row, state: LockState, model: type[Any]) -> bool:
    """Empty a queue in which all are dead; False if anybody may be alive."""
    skew = model.lock_settings().max_clock_skew
    while state.entries:
        dead = dead_among(state.entries, {}, 0.0, runtime.current.time_ms(), skew)
        if len(dead) < len(state.entries):
            return False
        try:
            image = evict_dead(row, dead)
        except requests.Unavailable:
            return False
        if image is None:
            return False
        state = row.state(image)
    return True


def locked_out(
    row: Row, state: LockState, error: type[PynamoDBException], cause: Exception | None = None
) -> ItemLocked:
    """Return the error for a write from outside while somebody holds the lock."""
    holder = state.entries[0]
    return also(ItemLocked, error)(
        f"{row.label} is locked by {holder.owner} (ticket {holder.ticket}); nothing was written. "
        f"Take the lock yourself (locked() or edit()), or try again when it is free.",
        holder=holder.owner,
        ticket=holder.ticket,
        cause=cause,
    )


# Locks in a row of their own


def row_guard(own: OwnEntry, number: int, kind: Kind) -> dict[str, Any]:
    """Return the transaction's action on the lock row: check our entry, and count the write or leave.

    A ConditionCheck costs the same and cannot count, so a late copy could overtake a later write.
    """
    actions = guards.leaving(own) if kind is Kind.FINISH else [guards.counting(own, number)]
    names: dict[str, str] = {}
    values: dict[str, Any] = {}
    kwargs = {
        "TableName": own.row.table,
        "Key": own.row.key,
        "ConditionExpression": guards.standing(own, number).serialize(names, values),
        "UpdateExpression": Update(*actions).serialize(names, values),
        "ExpressionAttributeNames": {placeholder: name for name, placeholder in names.items()},
        "ExpressionAttributeValues": values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    return {"Update": kwargs}


def beside(own: OwnEntry, write: Write, action: dict[str, Any]) -> None:
    """Write an item whose lock is another row: one transaction with the check of that row.

    Args:
        own: our entry in the lock row.
        write: what it is, for errors.
        action: the write as a transaction's action, such as ``{"Put": {...}}``.
    """
    with own.writing() as number:
        items = [action, row_guard(own, number, write.kind)]
        if write.kind is Kind.KEEP:
            _transact(own, write, number, items)
            return
        with own.going():
            _transact(own, write, number, items)
        left(own, None)


def _transact(own: OwnEntry, write: Write, number: int, items: list[dict[str, Any]]) -> None:
    connection = write.item._get_connection().connection
    token, repeated, attempt = runtime.current.token(), False, 0
    while True:
        kwargs = {"TransactItems": items, "ClientRequestToken": token}
        try:
            connection.dispatch("TransactWriteItems", kwargs)
        except transport.BOTOCORE_EXCEPTIONS as error:
            reasons = transport.reasons_of(error)
            if reasons and not transport.is_conflict(reasons):
                _settle_transaction(own, write, number, reasons, error, repeated)
                return
            if transport.is_conflict(reasons) and attempt < CONFLICT_ATTEMPTS:
                attempt += 1
                if not (repeated or transport.was_repeated(error)):
                    token = runtime.current.token()  # else the same, in case an earlier copy was applied
                runtime.current.sleep(backoff(attempt, runtime.current.jitter()))
                continue
            if not (repeated or transport.is_ambiguous(error)):
                raise write.failed(error) from error
            if repeated:
                raise write.unknown(own.row.label, own.write_id(number), error) from error
            repeated = True
        else:
            return


def _settle_transaction(
    own: OwnEntry,
    write: Write,
    number: int,
    reasons: list[dict[str, Any]],
    error: Exception,
    repeated: bool,  # noqa: FBT001
) -> None:
    """Return if the transaction was applied by its earlier copy, raise what happened otherwise."""
    item_reason, row_reason = reasons
    if row_reason.get("Code") == "ConditionalCheckFailed":
        repeated = repeated or transport.was_repeated(error)
        _settle(own, write, number, row_reason.get("Item"), error, repeated)
        return
    _fail(write, item_reason, error)


def _fail(write: Write, reason: dict[str, Any], error: Exception) -> NoReturn:
    """Raise what a single write would have raised: callers look for the code of a failed condition."""
    if reason.get("Code") == "ConditionalCheckFailed":
        stated = {"Code": transport.CONDITION_FAILED, "Message": reason.get("Message", "")}
        cause = VerboseClientError({"Error": stated}, "TransactWriteItems")
        raise write.failed(cause) from error
    raise write.failed(error) from error
