"""One write of one item: what is asked for, how it is sent, and what its refusal means.

`plan_save`, `plan_update` and `plan_delete` put the version and the expiry into it. What a lock adds comes
from those who send it: `unlocked` without an entry of our own in the queue, `locked` with one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.constants import ITEM, KEY
from pynamodb.exceptions import DeleteError, PutError, PynamoDBException, TransactWriteError, UpdateError

from pynamo_locking._core import error_codes
from pynamo_locking._core.error_codes import Answer
from pynamo_locking._core.freshness import Why
from pynamo_locking._core.outcome import Kind, Outcome, judge_by_id
from pynamo_locking._io import attempts, expiry, guards, transport, versions
from pynamo_locking._io.denials import foreign, has_foreign
from pynamo_locking.exceptions import Conflict, OutcomeUnknown, StaleVersion, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.requests import Image
    from pynamo_locking._io.versions import VersionPart


@dataclass(frozen=True)
class Operation:
    """A write as PynamoDB's users know it: its request, its error, and its name in messages."""

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
        item: the model instance.
        operation: what the caller asked for.
        part: the version's part of it.
        condition: everything but the lock's.
        actions: of an update, or of a save that goes out as one.
        attributes: of a save that goes out as a Put; None for all other writes.
        is_repeatable: whether a second copy does no harm.
        creates: whether it would be accepted where there is no item.
        kind: what it does to our entry in the lock's queue.
        return_values: what DynamoDB is asked for.
        is_shown: whether the instance has the values already that an update will have stored.
        is_strict: whether an item without a write id must not be taken for one that has one.
        second: by which an item of it has expired or has not: that in which its request is first made.
    """

    item: Model
    operation: Operation
    part: VersionPart
    condition: Condition | None
    actions: list[Action] = field(default_factory=list)
    attributes: dict[str, Any] | None = None
    is_repeatable: bool = True
    creates: bool = False
    kind: Kind = Kind.KEEP
    return_values: str | None = None
    is_shown: bool = False
    is_strict: bool = False
    second: int | None = field(default=None, init=False)

    @property
    def label(self) -> str:
        """Its item, for people."""
        keys = [getattr(self.item, name) for name in (self.item._hash_keyname, self.item._range_keyname) if name]
        return f"{type(self.item).__name__}({', '.join(map(repr, keys))})"

    @property
    def called(self) -> str:
        """What the caller has called, for people; PynamoDB's own messages say "put" for a save."""
        return f"the {'save' if self.operation is SAVE else self.operation.verb} of {self.label}"

    @property
    def is_sent_once(self) -> bool:
        """Whether it must not be sent twice, and can be looked for by its id instead."""
        return not self.is_repeatable and self.part.write_id is not None

    @property
    def is_tried_once(self) -> bool:
        """Whether botocore must not repeat it, since each attempt has an id of its own, or is the only one."""
        return self.part.begins_life and self.operation is not DELETE

    @property
    def request(self) -> str:
        """DynamoDB's name of the request."""
        return "UpdateItem" if self.actions else self.operation.request

    def kwargs(self, guard: Condition | None = None, actions: Sequence[Action] = ()) -> dict[str, Any]:
        """Return the request with that guard and those actions in addition."""
        all_actions = [*self.actions, *actions] if self.actions else None
        hash_key, range_key = self.item._get_hash_range_key_serialized_values()
        kwargs: dict[str, Any] = self.item._get_connection().get_operation_kwargs(
            hash_key,
            range_key=range_key,
            key=KEY if self.attributes is None else ITEM,
            attributes=self.attributes,
            actions=all_actions,
            condition=guards.both(self.condition, guard),
            return_values=self.return_values,
            return_values_on_condition_failure="ALL_OLD",
        )
        guards.check_size(self.item, kwargs)
        self.second = expiry.now_s() if self.second is None else self.second
        expiry.date(kwargs, self.second)
        return kwargs

    def dispatch(self, kwargs: dict[str, Any], *, once: bool = False) -> dict[str, Any]:
        """Send it over the model's own connection, with the timeouts and, unless `once`, retries its Meta asks for."""
        connection = self.item._get_connection().connection
        if once:
            connection = transport.single_attempt(connection)
        return attempts.dispatch(connection, self.request, kwargs)

    def done(self, data: Mapping[str, Any]) -> None:
        """Make the instance what it is after the write was applied.

        Args:
            data: the response; for an update and a save without a check, with the item's new attributes.
        """
        if self.operation is UPDATE:
            self.item.deserialize(data["Attributes"])
        elif self.operation is SAVE:
            if self.is_strict and self.part.is_checked:  # of a transaction, perhaps from another instance
                versions.set_known(self.item, self.part.before)
            versions.expect(self.item, self.part)
            self.item.update_local_version_attribute()
            if not self.part.is_checked:
                versions.take_version(self.item, data.get("Attributes", {}))
            elif self.is_strict and not self.is_shown:
                versions.mark_old(self.item)

    def note_doubt(self) -> None:
        """Note that it may have been applied: an update is not in the instance then, which must not be saved."""
        if self.operation is UPDATE and not self.is_shown:
            versions.mark_old(self.item, Why.UNKNOWN)

    def judge(self, image: Image | None, *, repeated: bool) -> Outcome:
        """Return what became of it, given the item that a refusal came with."""
        seen = None if image is None else versions.known_of(type(self.item), image)
        if seen is not None:
            self.part.note(seen.write_id)
        return judge_by_id(seen, self.part.before, self.part.write_ids, kind=self.kind, repeated=repeated)

    def may_still_be_applied(self, image: Image | None) -> bool:
        """Tell whether a copy that is on its way may be accepted later: only ids never come again."""
        before, seen = self.part.before, versions.known_of(type(self.item), image or {})
        return not (self.part.is_checked and before.is_gone_for_good(seen))

    def failed(self, error: Exception) -> PynamoDBException:
        """Return the error PynamoDB would raise."""
        message = f"Failed to {self.operation.verb} item: {error}"
        if error_codes.answer_of(transport.code_of(error)) is Answer.CONFLICT:
            busy: Any = also(TransactionConflict, self.operation.error)(message, cause=error)
            return busy  # type: ignore[no-any-return]
        return self.operation.error(message, transport.readable(error))

    def unknown(self, error: Exception, write_id: str | None = None) -> OutcomeUnknown:
        """Return the error for a write that may have been applied."""
        write_id = write_id or self.part.write_id
        return also(OutcomeUnknown, self.operation.error)(
            f"{self.called} (write {write_id or 'without an id'}) may or may not have "
            f"been applied: {error}. Read the item again before you decide what to do.",
            write_id=write_id,
            cause=error,
        )


def refusal(write: Write, kind: type[PynamoDBException], image: Image | None, cause: Exception) -> Exception:
    """Return what a failed condition means: another version, another class, or the caller's own condition.

    Args:
        write: what was refused.
        kind: PynamoDB's error that it has to be as well.
        image: the stored item.
        cause: as callers find it by its code.
    """
    model, before = type(write.item), write.part.before
    if write.operation is not CHECK and has_foreign(model, image):
        return foreign(f"{write.called} was refused", model.Meta.table_name, "no lock")
    image = dict(expiry.unexpired(model, image) or {}) or None
    stored_class = None if image is None or write.operation is not UPDATE else _class_of(model, image)
    if stored_class not in (None, model) and kind is UpdateError:
        return ValueError(f"Cannot update this item from the returned class: {stored_class.__name__}")
    stored = None if image is None else (model, image)
    seen = versions.known_of(model, image or {})
    is_other = not before.may_be(seen) or (write.is_strict and before.write_id != seen.write_id)
    refused = f"{write.called} was refused and nothing changed"
    if write.part.is_checked and is_other:
        return also(StaleVersion, kind)(
            f"{refused}: {_why_stale(before.version, seen.version, image)} ({cause})",
            expected=before.version,
            actual=seen.version,
            stored=stored,
            cause=cause,
        )
    return also(Conflict, kind)(f"{refused}: its condition was not met. ({cause})", stored=stored, cause=cause)


def _class_of(model: type[Model], image: Image) -> Any:
    """Return the class of a stored item, None if it is not known here."""
    try:
        return model._get_discriminator_class(image)
    except ValueError:
        return None


def _why_stale(expected: int | None, actual: int | None, image: Image | None) -> str:
    """Return what is known, and what to do."""
    if image is None:
        return f"it was read in version {expected}, and the item does not exist any more. Read before you save again."
    again = "Start again from the error's `current`, or refresh() the item."
    found = "without a version" if actual is None else f"in version {actual}"
    if expected is None:
        return f"the item exists already, {found}, and this instance was not read from it. {again}"
    if actual == expected:
        found += " by another write (the item was deleted and created again, or written without its version)"
    return f"it was read in version {expected}, and is stored {found}. {again}"


# What is asked for


def plan_save(
    item: Model,
    condition: Condition | None,
    *,
    checks_version: bool,
    as_update: bool = False,
    kept: Collection[str] = (),
    error: type[PynamoDBException] = PutError,
    token: str | None = None,
) -> Write:
    """Return the save of an item.

    A Put, as PynamoDB does it, unless the stored version has to be counted up without knowing it.

    Args:
        item: the model instance.
        condition: the caller's.
        checks_version: whether the stored version must be the one that was read.
        as_update: whether something in the stored item has to survive.
        kept: what that is, by stored names.
        error: what PynamoDB raises when a save of this kind fails.
        token: of the caller's own, which names the transaction that it is part of.
    """
    if checks_version:
        versions.check_current(item, error)
    part = versions.part_of(item, is_checked=checks_version, token=token)
    whole = expiry.for_save(type(item), guards.both(condition, part.condition()))
    write = Write(item, SAVE, part, whole)
    if as_update or (not checks_version and part.shape.attribute is not None):
        write.actions = guards.save_actions(item, kept, part)
        write.return_values = None if checks_version else "UPDATED_NEW"
    else:
        write.attributes = item.serialize(null_check=True)
        for attribute in (item._hash_key_attribute(), item._range_key_attribute()):
            if attribute is not None:
                write.attributes.pop(attribute.attr_name, None)
        part.complete_put(write.attributes)
    return write


def plan_update(
    item: Model,
    actions: Sequence[Action],
    condition: Condition | None,
    *,
    checks_version: bool,
    token: str | None = None,
) -> Write:
    """Return the update of an item, whose answer is the item after it.

    One without a check of the version that is not the same when done twice is sent once only.
    """
    part = versions.part_of(item, is_checked=checks_version, token=token)
    whole = guards.both(guards.both(condition, part.condition()), guards.same_class(item))
    return Write(
        item,
        UPDATE,
        part,
        expiry.for_update(type(item), whole),
        [*actions, *part.actions()],
        is_repeatable=part.is_checked or guards.is_repeatable(actions),
        creates=expiry.holds_without_item(whole),
        return_values="ALL_NEW",
    )


def plan_delete(item: Model, condition: Condition | None, *, checks_version: bool) -> Write:
    """Return the delete of an item."""
    part = versions.part_of(item, is_checked=checks_version)
    whole = guards.both(condition, part.condition())
    if expiry.holds_without_item(whole):
        whole = expiry.for_save(type(item), whole)
    return Write(item, DELETE, part, whole, kind=Kind.DELETE)


def plan_check(item: Model) -> Write:
    """Return the check of a transaction that an item is still the one that was read."""
    versions.check_current(item, TransactWriteError)
    part = versions.part_of(item, is_checked=True)
    return Write(item, CHECK, part, expiry.for_save(type(item), part.condition()))
