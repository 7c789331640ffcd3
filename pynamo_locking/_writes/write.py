"""One guarded write: its conditions, its actions, its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.constants import ITEM, KEY
from pynamodb.exceptions import DeleteError, PutError, PynamoDBException, TransactWriteError, UpdateError
from pynamodb.expressions.update import SetAction

from pynamo_locking._core.error_codes import ACTION_FAILED, Answer
from pynamo_locking._core.freshness import Why
from pynamo_locking._core.outcome import EntryEffect, Outcome, judge_by_id
from pynamo_locking._io import answers, connections, dispatch, runtime
from pynamo_locking._items import clauses, expiry, knowledge, versions
from pynamo_locking._writes.resolving import Sent, question_of
from pynamo_locking.exceptions import OutcomeUnknown, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb.connection import Connection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.stored import Image
    from pynamo_locking._items.versions import VersionPart
    from pynamo_locking._writes.claims import Claims


@dataclass(frozen=True)
class Operation:
    """A kind of write in PynamoDB: its request, its error, and its name in messages."""

    request: str
    error: type[PynamoDBException]
    verb: str


SAVE: Final = Operation("PutItem", PutError, "put")
UPDATE: Final = Operation("UpdateItem", UpdateError, "update")
DELETE: Final = Operation("DeleteItem", DeleteError, "delete")
#: How often a write is sent with other unique values.
_MOST_LOOKS: Final = 8

CHECK: Final = Operation("ConditionCheckItem", TransactWriteError, "check")


@dataclass
class Write:
    """One write of one item, before the lock's part is added.

    Attributes:
        part: the version's part of the write.
        condition: all conditions except the lock's.
        actions: of an update, or of a save that is sent as one.
        attributes: of a save that is sent as a Put; None for all other writes.
        values: of a save: those of all declared attributes of the instance.
        is_repeatable: whether a second copy does no harm.
        creates: whether DynamoDB would accept it where there is no item.
        kind: its effect on the held entry.
        is_shown: whether the instance already shows the values that an update will store.
        is_strict: whether the write is part of a `Transaction`: its instance may differ from the one that was read.
        is_unanswered: whether its first attempt was in a batch to which no answer came.
        is_optional: whether a transaction goes on without it if its condition is not met.
        claims: what it does to the rows of unique values, if its model has such.
        second: the time for its conditions about expiry: the second in which the request is first made.
        made: the last request that was made of it.
    """

    item: Model
    operation: Operation
    part: VersionPart
    condition: Condition | None
    actions: list[Action] = field(default_factory=list)
    attributes: dict[str, Any] | None = None
    values: dict[str, Any] = field(default_factory=dict)
    is_repeatable: bool = True
    creates: bool = False
    kind: EntryEffect = EntryEffect.KEEP
    return_values: str | None = None
    is_shown: bool = False
    is_strict: bool = False
    is_unanswered: bool = False
    is_optional: bool = False
    claims: Claims | None = None
    second: int | None = field(default=None, init=False)
    made: dict[str, Any] = field(default_factory=dict, init=False)
    _asked: tuple[Condition | None, Sequence[Action]] = field(default=(None, ()), init=False)
    _in_doubt: bool = field(default=False, init=False)

    def copied(self) -> Write:
        """Return a copy, to be changed."""
        copy = Write.__new__(Write)
        vars(copy).update(vars(self))
        return copy

    @property
    def label(self) -> str:
        """The item, for people."""
        keys = [getattr(self.item, name) for name in (self.item._hash_keyname, self.item._range_keyname) if name]
        return f"{type(self.item).__name__}({', '.join(map(repr, keys))})"

    @property
    def called(self) -> str:
        """The call, for people; PynamoDB's own messages say "put" for a save."""
        return f"the {'save' if self.operation is SAVE else self.operation.verb} of {self.label}"

    @property
    def is_sent_once(self) -> bool:
        """Whether the write must not be sent twice; a read finds its outcome by its id instead."""
        return not self.is_repeatable and self.part.write_id is not None

    @property
    def is_tried_once(self) -> bool:
        """Whether botocore must not repeat the request: each attempt has an id of its own, or there is only one."""
        return self.part.begins_life and self.operation is not DELETE

    @property
    def request(self) -> str:
        """DynamoDB's name of the request."""
        return "UpdateItem" if self.actions else self.operation.request

    def kwargs(self, guard: Condition | None = None, actions: Sequence[Action] = ()) -> dict[str, Any]:
        """Return the request, with a guard and actions in addition."""
        self._asked = (guard, actions)
        all_actions = [*self.actions, *actions] if self.actions else None
        whole = clauses.both(self.condition, None if self.claims is None else self.claims.condition())
        whole = clauses.both(whole, self.part.shape.known)
        hash_key, range_key = self.item._get_hash_range_key_serialized_values()
        kwargs: dict[str, Any] = self.item._get_connection().get_operation_kwargs(
            hash_key,
            range_key=range_key,
            key=KEY if self.attributes is None else ITEM,
            attributes=self.attributes,
            actions=all_actions,
            condition=clauses.both(whole, guard),
            return_values=self.return_values,
            return_values_on_condition_failure="ALL_OLD",
        )
        clauses.check_size(self.item, kwargs)
        self.second = expiry.date(kwargs, self.second)
        self.made = kwargs
        return kwargs

    def dispatch(self, kwargs: dict[str, Any], *, once: bool = False) -> dict[str, Any]:
        """Send it over the model's connection, with the timeouts and, unless `once`, the retries of its Meta."""
        if self.is_unanswered:
            self.is_unanswered = False
            raise answers.unanswered("BatchExecuteStatement")
        connection = self.item._get_connection().connection
        if once:
            connection = connections.single_attempt(connection)
        if self.claims is None:
            return dispatch.dispatch(connection, self.request, kwargs)
        for left in reversed(range(_MOST_LOOKS)):
            try:
                return self._send(connection, self.claims)
            except answers.BOTOCORE_EXCEPTIONS as error:
                if left and self._learns(error, self.claims):
                    continue
                self._in_doubt = self._in_doubt or answers.is_ambiguous(error)
                raise
        raise AssertionError

    def _send(self, connection: Connection, claims: Claims) -> dict[str, Any]:
        """Send it alone, or with its rows in a transaction that is refused as it would be refused alone."""
        if not claims.rows:
            return dispatch.dispatch(connection, self.request, self.made)
        item = {name: value for name, value in self.made.items() if name != "ReturnValues"}
        actions = [{self.request.removesuffix("Item"): item}, *claims.actions()]
        request = {"TransactItems": actions, "ClientRequestToken": runtime.current.token()}
        try:
            return dispatch.dispatch(connection, "TransactWriteItems", request)
        except answers.BOTOCORE_EXCEPTIONS as error:
            reason = next(iter(answers.reasons_of(error)), {})
            if reason.get("Code") == ACTION_FAILED:
                message, table = reason.get("Message", ""), self.item.Meta.table_name
                raise answers.of_first_action(error, self.operation.error, message, table)  # noqa: B904 - it has one
            raise

    def _learns(self, error: Exception, claims: Claims) -> bool:
        """Tell whether a refusal shows what to do otherwise: other values of the item, or a row that is not in the way.

        Raises:
            NotUnique: another item has a value; also PynamoDB's error.
            OutcomeUnknown: so it is, and an earlier copy of the write may still arrive.
        """
        if answers.answer_of(error) is not Answer.REFUSED:
            return False
        reasons = answers.reasons_of(error)
        if reasons and reasons[0].get("Code") != ACTION_FAILED:
            if self._in_doubt or answers.was_repeated(error):
                raise self.unknown(error) from error
            return claims.see(reasons[1:], error)
        if not self.expects_other_values(answers.image_of(error)):
            return False
        self.kwargs(*self._asked)
        return True

    def expects_other_values(self, image: Image | None) -> bool:
        """Plan for the unique values of the stored item that came with a refusal, if it may be written at all."""
        model, part = type(self.item), self.part
        if self.claims is None or versions.known_of(model, image or {}).write_id in part.write_ids:
            return False
        current = versions.known_of(model, expiry.unexpired(model, image) or {})
        return (not part.is_checked or part.before.may_be(current)) and self.claims.learns(image)

    def done(self, data: Mapping[str, Any]) -> None:
        """Update the instance after the write; updates and unchecked saves respond with the new attributes."""
        if self.operation is UPDATE:
            self.item.deserialize(data["Attributes"])
        elif self.operation is SAVE:
            self.note_stored()
            if not self.part.is_checked:
                knowledge.take_version(self.item, data.get("Attributes", {}))
            elif self.is_strict and not self.is_shown:
                knowledge.mark_old(self.item)

    def note_stored(self) -> None:
        """Give the instance the version and the write id that are stored now."""
        if self.is_strict and self.part.is_checked:  # the transaction may have read the item into another instance
            knowledge.set_known(self.item, self.part.before)
        is_known = self.operation is SAVE and self.part.is_checked and not self.is_strict
        knowledge.expect(self.item, self.part, names=self.stored() if is_known else None)
        self.item.update_local_version_attribute()
        if self.operation is SAVE:
            knowledge.note_values(self.item, self.values)

    def stored(self) -> dict[str, Any]:
        """Return the attributes that a save stores, without keys."""
        if self.attributes is not None:
            return self.attributes
        sets: list[Any] = [action.values for action in self.actions if isinstance(action, SetAction)]
        stored = {path.path[0]: value.values[0] for path, value in sets}
        self.part.complete_put(stored)
        return stored

    def note_doubt(self) -> None:
        """Mark the instance as stale after an unknown outcome: it lacks an update that may have been applied."""
        if self.operation is UPDATE and not self.is_shown:
            knowledge.mark_old(self.item, Why.UNKNOWN)

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
        if answers.answer_of(error) is Answer.CONFLICT:
            busy: Any = also(TransactionConflict, self.operation.error)(message, cause=error)
            return busy  # type: ignore[no-any-return]
        return self.operation.error(message, answers.readable(error))

    def unknown(self, error: Exception, write_id: str | None = None) -> OutcomeUnknown:
        """Return the error for a write that may have been applied."""
        write_id = write_id or self.part.write_id
        sent = Sent.of(type(self.item), self.made, self.part, is_delete=self.operation is DELETE)
        return also(OutcomeUnknown, self.operation.error)(
            f"{self.called} (write {write_id or 'without an id'}) may or may not have "
            f"been applied: {error}. Read the item again before you decide what to do.",
            write_id=write_id,
            cause=error,
            question=question_of([sent]),
        )


def action_of(write: Write, guard: Condition | None = None, actions: Sequence[Action] = ()) -> dict[str, Any]:
    """Return a write as an action of a transaction, with the lock's part."""
    kwargs = write.kwargs(guard, actions)
    kwargs.pop("ReturnValues", None)  # a transaction returns no values
    return {write.request.removesuffix("Item"): kwargs}
