"""One guarded write: what it asks, its conditions, its outcome, and the error for its caller.

A copy of the request may still be on its way. So "not applied" is said only once no copy can be applied any more.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.constants import ITEM, KEY
from pynamodb.exceptions import DeleteError, GetError, PutError, PynamoDBException, TransactWriteError, UpdateError
from pynamodb.expressions.update import SetAction
from typing_extensions import assert_never

from pynamo_locking._core.dynamodb import Answer
from pynamo_locking._core.lock_queue import FREE
from pynamo_locking._core.row_keys import plain
from pynamo_locking._core.write_outcome import EntryEffect, Outcome, judge_by_id, resolve_by_id
from pynamo_locking._io import client, concurrency, event_stream, protocol, responses
from pynamo_locking._io.client import Unavailable
from pynamo_locking._io.event_stream import clocks, emit, to_listeners
from pynamo_locking._io.model_doors import why_misplaced, writer_of
from pynamo_locking._io.responses import foreign_row_error, has_foreign
from pynamo_locking._items import conditions, keys, versions
from pynamo_locking._pynamodb import (
    class_of,
    connection_of,
    key_values_of,
    serialized_key_of,
)
from pynamo_locking._writes.unique_rows import UniqueRows, not_unique
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    LockLost,
    OutcomeUnknown,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
    also,
    as_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._core.lock_queue import QueueEntry
    from pynamo_locking._core.write_outcome import Resolution
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.protocol import Clause
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._items.versions import VersionPart


#: So often an item is read whose other writers are faster.
_MOST_LOOKUPS: Final = 3

_TEXTS: Final[dict[Outcome, Resolution]] = {Outcome.APPLIED: "applied", Outcome.REJECTED: "not applied"}


class OutcomeQuery:
    """What became of a write; `ask` sends the requests. A definite answer is kept."""

    def __init__(self, ask: Callable[[], Resolution]) -> None:
        self._ask = ask
        self._answer: Resolution = "unknown"

    def answer(self) -> Resolution:
        """Return the answer; "unknown" if no response came, or DynamoDB is busy."""
        if self._answer == "unknown":
            try:
                self._answer = self._ask()
            except Unavailable:
                pass
            except PynamoDBException as error:
                if error.cause is None or not responses.is_transient(error.cause):
                    raise
        return self._answer

    async def awaited(self) -> Resolution:
        return await concurrency.to_the_end(self.answer)


class Sent(NamedTuple):
    """One write of one item, as it was sent; `is_delete` if the item's absence is all that was asked for."""

    model: type[Model]
    table: str
    key: Image
    part: VersionPart
    is_delete: bool

    @classmethod
    def of(cls, model: type[Model], request: Mapping[str, Any], part: VersionPart, *, is_delete: bool) -> Sent:
        """Return the write that a request makes: the caller may change the instance later."""
        named = request.get("Key") or request["Item"]
        key = {each.attr_name: named[each.attr_name] for each in keys.stored_keys(model)}
        return cls(model, request["TableName"], key, part, is_delete)

    def read(self) -> Image | None:
        """Return the stored item."""
        connection = connection_of(self.model).connection
        request = {"TableName": self.table, "Key": self.key, "ConsistentRead": True}
        try:
            image: Image | None = client.patiently(lambda: client.ask(connection, "GetItem", request)).get("Item")
        except responses.BOTOCORE_EXCEPTIONS as error:
            raise GetError(f"Error getting item: {error}", responses.readable(error)) from error
        return image

    def judge(self, image: Image | None) -> Outcome | None:
        """See `resolve_by_id`."""
        seen = None if image is None else versions.known_of(self.model, image)
        part = self.part
        return resolve_by_id(seen, part.before, part.write_ids, is_checked=part.is_checked, is_delete=self.is_delete)


def outcome_query_of(writes: Sequence[Sent]) -> OutcomeQuery:
    """Return the question what became of a write, or of several that are applied together or not at all."""
    return OutcomeQuery(lambda: _resolve(writes))


def _resolve(writes: Sequence[Sent]) -> Resolution:
    for write in sorted(writes, key=lambda each: each.part.begins_life):  # last those that cannot be kept out
        outcome = _outcome(write)
        if outcome in _TEXTS:
            return _TEXTS[outcome]
    return "unknown"


def _outcome(write: Sent) -> Outcome:
    if not write.part.write_ids:
        return Outcome.UNKNOWN
    for _ in range(_MOST_LOOKUPS):
        image = write.read()
        outcome = write.judge(image)
        if outcome is not None or image is None:
            return outcome or Outcome.UNKNOWN
        try:
            writer_of(as_model(write.model, image)).touch(None, checks_version=True)
        except (StaleVersion, OutcomeUnknown):  # the next read tells by whom
            continue
        except (Conflict, LockLost):  # the item is locked, or has expired
            break
        return Outcome.REJECTED
    return Outcome.UNKNOWN


class Operation(Enum):
    """A kind of write in PynamoDB: its request, its error, and its name in messages."""

    SAVE = "PutItem", PutError, "put"
    UPDATE = "UpdateItem", UpdateError, "update"
    DELETE = "DeleteItem", DeleteError, "delete"
    CHECK = "ConditionCheckItem", TransactWriteError, "check"
    INTENT = "UpdateItem", TransactWriteError, "prepare"  # of a transaction of many items

    def __init__(self, request: str, error: type[PynamoDBException], verb: str) -> None:
        self.request: str = request
        self.error: type[PynamoDBException] = error
        self.verb: str = verb


SAVE: Final = Operation.SAVE
UPDATE: Final = Operation.UPDATE
DELETE: Final = Operation.DELETE
CHECK: Final = Operation.CHECK


class Write(NamedTuple):
    """One write of one item, before the lock's part is added. A value, but for the ids in `part`: one each attempt.

    Attributes:
        part: the version's part of the write.
        condition: all conditions except the lock's.
        actions: of an update, or of a save that is sent as one.
        attributes: of a save that is sent as a Put; None for all other writes.
        values: of a save: those of all declared attributes of the instance.
        is_repeatable: whether a second copy does no harm.
        kind: its effect on the held entry.
        is_shown: whether the instance already shows the values that an update will store.
        is_strict: whether the write is part of a `Transaction`: its instance may differ from the one that was read.
        is_optional: whether a transaction continues without it if its condition is false.
        unique_rows: what it does to the rows of unique values, if its model has such.
    """

    item: Model
    operation: Operation
    part: VersionPart
    condition: Condition | None
    actions: Sequence[Action] = ()
    attributes: dict[str, Any] | None = None
    values: Mapping[str, Any] = {}
    is_repeatable: bool = True
    kind: EntryEffect = EntryEffect.KEEP
    return_values: str | None = None
    is_shown: bool = False
    is_strict: bool = False
    is_optional: bool = False
    unique_rows: UniqueRows | None = None

    def but(self, **changed: Any) -> Write:
        return self._replace(**changed)

    @property
    def label(self) -> str:
        return keys.label_of(type(self.item), key_values_of(self.item))

    @property
    def model_and_key(self) -> tuple[type[Model], Image]:
        model = type(self.item)
        return model, keys.key_of(model, *key_values_of(self.item))

    @property
    def called(self) -> str:
        """The call, for people; PynamoDB's own messages say "put" for a save."""
        return f"the {'save' if self.operation is SAVE else self.operation.verb} of {self.label}"

    @property
    def is_sent_once(self) -> bool:
        """Whether the write must not be sent twice; a read finds its outcome by its id instead."""
        return not self.is_repeatable and self.part.write_id is not None

    @property
    def request(self) -> str:
        return "UpdateItem" if self.actions else self.operation.request

    @property
    def whole(self) -> Condition | None:
        """All conditions except the lock's."""
        whole = self.condition
        if self.unique_rows is not None:
            whole = conditions.both(whole, self.unique_rows.condition())
        return conditions.both(whole, self.part.shape.known)

    def kwargs(self, clause: Clause | None = None, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the request, with the lock's part."""
        hash_key, range_key = serialized_key_of(self.item)
        kwargs: dict[str, Any] = connection_of(self.item).get_operation_kwargs(
            hash_key,
            range_key=range_key,
            key=KEY if self.attributes is None else ITEM,
            attributes=self.attributes,
            actions=self.actions or None,
            condition=self.whole,
            return_values=self.return_values,
            return_values_on_condition_failure="ALL_OLD",
        )
        if clause is not None:
            protocol.merge(kwargs, clause, given or {}, is_update=self.request == "UpdateItem")
        conditions.check_size(self.item, kwargs)
        return kwargs

    def done(self, data: Mapping[str, Any]) -> None:
        """Update the instance after the write; updates and unchecked saves respond with the new attributes."""
        match self.operation:
            case Operation.UPDATE:
                self.item.deserialize(data["Attributes"])
            case Operation.SAVE:
                self.note_stored()
                if not self.part.is_checked:
                    versions.take_version(self.item, data.get("Attributes", {}))
                elif self.is_strict and not self.is_shown:
                    versions.mark_stale(self.item)
            case Operation.DELETE | Operation.CHECK | Operation.INTENT:
                pass
            case _:
                assert_never(self.operation)

    def note_stored(self) -> None:
        """Give the instance the version and the write id that are stored now."""
        if self.is_strict and self.part.is_checked:  # the transaction may have read the item into another instance
            versions.set_known(self.item, self.part.before)
        is_known = self.operation is SAVE and self.part.is_checked and not self.is_strict
        removable = frozenset(self.values) - self.part.shape.lasting if is_known else None
        versions.note_writing(self.item, self.part.write_id, removable)  # a user's override of the next call sees it
        self.item.update_local_version_attribute()
        if self.operation is SAVE and self.part.shape.unique is not None:
            versions.note_values(self.item, self.values)

    def stored(self) -> dict[str, Any]:
        """Return the attributes that a save stores, without keys."""
        if self.attributes is not None:
            return self.attributes
        sets: list[Any] = [action for action in self.actions if isinstance(action, SetAction)]
        stored = {conditions.changed_by(action): action.values[1].values[0] for action in sets}
        self.part.complete_put(stored)
        return stored

    def judge(self, image: Image | None, *, repeated: bool) -> Outcome:
        """Return the outcome of the write, given the stored item of a refusal."""
        seen = None if image is None else versions.known_of(type(self.item), image)
        if seen is not None:
            self.part.note(seen.write_id)
        return judge_by_id(seen, self.part.before, self.part.write_ids, kind=self.kind, repeated=repeated)

    def may_still_be_applied(self, image: Image | None) -> bool:
        """Tell whether DynamoDB may still accept a copy of the write that arrives late: only ids never come again."""
        before, seen = self.part.before, versions.known_of(type(self.item), image or {})
        return not (self.part.is_checked and before.is_gone_for_good(seen))

    def failed(self, error: Exception) -> PynamoDBException:
        """Return the error PynamoDB would raise."""
        message = f"Failed to {self.operation.verb} item: {error}"
        if responses.answer_in(error) is Answer.CONFLICT:
            busy: Any = also(TransactionConflict, self.operation.error)(message, cause=error)
            return busy  # type: ignore[no-any-return]
        return self.operation.error(message, responses.readable(error))

    def unknown(self, error: Exception, made: dict[str, Any], write_id: str | None) -> OutcomeUnknown:
        """Return the error for a write that may have been applied, by the request that was made of it last."""
        write_id = write_id or self.part.write_id
        sent = Sent.of(type(self.item), made, self.part, is_delete=self.operation is DELETE)
        return also(OutcomeUnknown, self.operation.error)(
            f"{self.called} (write {write_id or 'without an id'}) may or may not have "
            f"been applied: {error}. Read the item again before you decide what to do.",
            write_id=write_id,
            cause=error,
            question=outcome_query_of([sent]),
        )


def plan_check(item: Model) -> Write:
    """Return a transaction's check that an item is still the one that was read."""
    versions.check_current(item, TransactWriteError)
    part = versions.part_of(item, is_checked=True)
    return Write(item, CHECK, part, part.shape.or_expired(part.condition()))


#: What to do about a locked item: in a single write, and in a transaction.
ACQUIRE: Final = "Acquire the lock (locked() or edit()), or try again when it is free."
READ_FOR_UPDATE: Final = "Read it with for_update=True, which waits for the lock, or try again when it is free."


def locked_by(
    row: LockRow,
    holder: QueueEntry,
    error: type[PynamoDBException],
    cause: Exception | None = None,
    stored: tuple[type[Model], Image] | None = None,
    advice: str = ACQUIRE,
) -> ItemLocked:
    """Return the error for a write that an entry is in the way of."""
    return also(ItemLocked, error)(
        f"{row.label} is locked by {plain(holder.owner)} (ticket {holder.ticket}); nothing was written. {advice}",
        holder=holder.owner,
        ticket=holder.ticket,
        stored=stored,
        refused_by=None if row.model is None else (row.model, row.key),
        cause=cause,
    )


def why_refused(
    write: Write, kind: type[PynamoDBException], image: Image | None, cause: Exception, lock: LockRow | None = None
) -> Exception:
    """Return the error for a refused write; `lock` must be free, if given."""
    state = FREE if lock is None else lock.state(image)
    if lock is not None and state.entries:
        stored = None if image is None else (type(write.item), image)
        advice = READ_FOR_UPDATE if write.is_strict else ACQUIRE
        return locked_by(lock, state.entries[0], kind, cause, stored, advice)
    return error_of_refusal(write, kind, image, cause)


def error_of_refusal(write: Write, kind: type[PynamoDBException], image: Image | None, cause: Exception) -> Exception:
    """Return the error for a failed condition: another version, another class, or the caller's own condition.

    It is also a `kind` of PynamoDB; callers find the code of the failed condition in its `cause`.

    Raises:
        UnknownFormat: the item is a row of ours that a newer release has stored.
    """
    model, before = type(write.item), write.part.before
    versions.refuse_newer(model, image)
    if getattr(model, "_holds_unique_values", False):
        return not_unique(write, image, kind, cause)
    if write.operation is not CHECK and has_foreign(model, image):
        return foreign_row_error(f"{write.called} was refused", model.Meta.table_name, "no lock")
    stored_class = None if image is None or write.operation is not UPDATE else class_of(model, image)
    if stored_class not in (None, model) and kind is UpdateError:
        return ValueError(f"Cannot update this item from the returned class: {stored_class.__name__}")
    shown = versions.shape_of(model).unexpired(image)
    stored = None if shown is None else (model, shown)
    seen = versions.known_of(model, image or {})
    is_other = not before.may_be(seen) or (write.is_strict and before.write_id != seen.write_id)
    refused, flaw = f"{write.called} was refused and nothing changed", versions.flaw_of(model, image)
    if write.part.is_checked and is_other and getattr(model, "_is_guard", False):
        return also(TransactionConflict, kind)(
            f"{refused}, since other writers have changed rows of the same hash key; a retry is safe. ({cause})",
            refused_by=write.model_and_key,
            cause=cause,
        )
    if write.part.is_checked and is_other:
        return also(StaleVersion, kind)(
            f"{refused}: {flaw or _why_stale(model, before.version, seen.version, image)} ({cause})",
            expected=before.version,
            actual=seen.version,
            stored=stored,
            refused_by=write.model_and_key,
            cause=cause,
        )
    why = (why_misplaced(write.item, image) if write.operation is SAVE else "") or "its condition was not met."
    if flaw is not None and write.part.is_checked:
        why = flaw
    elif write.unique_rows is not None and not write.unique_rows.is_of(image):
        why = "this instance was not read with the unique values of the stored item: refresh() it first."
    return also(Conflict, kind)(
        f"{refused}: {why} ({cause})", stored=stored, refused_by=write.model_and_key, cause=cause
    )


def _why_stale(model: type[Model], expected: int | None, actual: int | None, image: Image | None) -> str:
    """Return what is known, and what to do."""
    if image is None:
        return f"it was read in version {expected}, and the item does not exist any more. Read before you save again."
    again = "Start again from the error's `current`, or refresh() the item."
    found = "without a version" if actual is None else f"in version {actual}"
    if expected is None and versions.shape_of(model).is_expired(image):
        return "the item has expired, and is still stored: only a save of a new item replaces it."
    if expected is None:
        return f"the item exists already, {found}, and this instance was not read from it. {again}"
    if actual == expected:
        found += " by another write (the item was deleted and created again, or written without its version)"
    return f"it was read in version {expected}, and is stored {found}. {again}"


def _refusal(about: dict[str, Any], error: BaseException) -> None:
    events, about = event_stream.events, {**clocks(), **about, "error": type(error).__name__}
    if isinstance(error, OutcomeUnknown):
        emit(events.WriteInDoubt(**about, write_id=error.write_id))
    elif isinstance(error, StaleVersion):
        emit(events.WriteRefused(**about, expected=error.expected, actual=error.actual))
    elif isinstance(error, ItemLocked):
        emit(events.WriteRefused(**about, holder=error.holder, holder_ticket=error.ticket))
    elif isinstance(error, TransactionAborted):
        emit(events.WriteRefused(**about, reason=error.reason))
    elif isinstance(error, Conflict):
        emit(events.WriteRefused(**about))


@to_listeners
def write_failed(write: Write, error: Exception) -> None:
    """Report a conflict of a single write, or its unknown outcome."""
    _refusal({**_named(*write.model_and_key), "operation": write.operation.verb}, error)


def _named(model: type[Model], key: Image) -> dict[str, Any]:
    return {"table": connection_of(model).table_name, "model": model, "name": keys.name_of(model, key)}


@to_listeners
def commit_failed(transaction_id: str, table: str, error: Exception) -> None:
    """Report the same of a transaction: about the item that has refused it; else with the table of its first item."""
    refused_by = error.refused_by if isinstance(error, Conflict) else None
    about = {"table": table, "model": None, "name": transaction_id} if refused_by is None else _named(*refused_by)
    _refusal({**about, "transaction_id": transaction_id, "operation": "transaction"}, error)
