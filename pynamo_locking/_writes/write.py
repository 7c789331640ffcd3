"""One guarded write: its conditions, its actions, its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.constants import ITEM, KEY
from pynamodb.exceptions import DeleteError, PutError, PynamoDBException, TransactWriteError, UpdateError
from pynamodb.expressions.update import SetAction

from pynamo_locking._core.error_codes import Answer
from pynamo_locking._core.freshness import Why
from pynamo_locking._core.outcome import EntryEffect, Outcome, judge_by_id
from pynamo_locking._io import answers, connections, dispatch
from pynamo_locking._items import clauses, expiry, knowledge, versions
from pynamo_locking._writes.resolving import Sent, question_of
from pynamo_locking.exceptions import OutcomeUnknown, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.stored import Image
    from pynamo_locking._items.versions import VersionPart


@dataclass(frozen=True)
class Operation:
    """A kind of write in PynamoDB: its request, its error, and its name in messages."""

    request: str
    error: type[PynamoDBException]
    verb: str


SAVE: Final = Operation("PutItem", PutError, "put")
UPDATE: Final = Operation("UpdateItem", UpdateError, "update")
DELETE: Final = Operation("DeleteItem", DeleteError, "delete")
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
    second: int | None = field(default=None, init=False)
    made: dict[str, Any] = field(default_factory=dict, init=False)

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
        all_actions = [*self.actions, *actions] if self.actions else None
        hash_key, range_key = self.item._get_hash_range_key_serialized_values()
        kwargs: dict[str, Any] = self.item._get_connection().get_operation_kwargs(
            hash_key,
            range_key=range_key,
            key=KEY if self.attributes is None else ITEM,
            attributes=self.attributes,
            actions=all_actions,
            condition=clauses.both(self.condition, guard),
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
        return dispatch.dispatch(connection, self.request, kwargs)

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
