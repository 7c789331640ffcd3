"""Plans a save, an update, a delete and a check, without the lock's part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb.exceptions import DeleteError, PutError, PynamoDBException, TransactWriteError, UpdateError

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.outcome import EntryEffect
from pynamo_locking._items import clauses, expiry, knowledge
from pynamo_locking._writes.claims import claims_of_delete, claims_of_save, claims_of_update
from pynamo_locking._writes.write import CHECK, DELETE, SAVE, UPDATE, Write

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.stored import Image


def plan_save(
    item: Model,
    condition: Condition | None,
    *,
    checks_version: bool,
    kept: Collection[str] = (),
    error: type[PynamoDBException] = PutError,
    token: str | None = None,
    stored: Image | None = None,
) -> Write:
    """Return the save of an item: a Put, as in PynamoDB, or an update that increments an unknown stored version.

    Args:
        item: the model instance.
        condition: the caller's.
        checks_version: whether the stored version must be the one that was read.
        kept: the stored names of declared attributes that survive; if there are any, it is an update.
        error: what PynamoDB raises when a save of this kind fails.
        token: the caller's name of the transaction, if the save is part of one.
        stored: see `clauses.save_actions`.
    """
    if checks_version:
        knowledge.check_current(item, error)
    part = knowledge.part_of(item, is_checked=checks_version, token=token)
    whole = expiry.for_save(type(item), clauses.both(condition, part.condition()))
    write = Write(item, SAVE, part, whole, values=item.serialize(null_check=True))
    if kept or (not checks_version and part.shape.attribute is not None):
        write.actions = clauses.save_actions(item, write.values, kept, part, stored or {})
        write.return_values = None if checks_version else "UPDATED_NEW"
    else:
        write.attributes = dict(write.values)
        for attribute in (item._hash_key_attribute(), item._range_key_attribute()):
            if attribute is not None:
                write.attributes.pop(attribute.attr_name, None)
        part.complete_put(write.attributes)
    write.claims = claims_of_save(item, write.values, error)
    return write


def plan_update(
    item: Model,
    actions: Sequence[Action],
    condition: Condition | None,
    *,
    checks_version: bool,
    token: str | None = None,
) -> Write:
    """Return the update of an item, whose response is the item after it.

    An update that does not check the version and would change the item again if repeated is sent only once.
    """
    part = knowledge.part_of(item, is_checked=checks_version, token=token)
    whole = clauses.both(clauses.both(condition, part.condition()), clauses.same_class(item))
    return Write(
        item,
        UPDATE,
        part,
        expiry.for_update(type(item), whole),
        [*actions, *part.actions()],
        is_repeatable=part.is_checked or clauses.is_repeatable(actions),
        creates=expiry.holds_without_item(whole),
        return_values="ALL_NEW",
        claims=claims_of_update(item, actions, UpdateError),
    )


def plan_delete(item: Model, condition: Condition | None, *, checks_version: bool) -> Write:
    """Return the delete of an item."""
    part = knowledge.part_of(item, is_checked=checks_version)
    whole = clauses.both(condition, part.condition())
    if expiry.holds_without_item(whole):
        whole = expiry.for_save(type(item), whole)
    claims = claims_of_delete(item, DeleteError)
    return Write(item, DELETE, part, whole, kind=EntryEffect.DELETE, claims=claims)


def plan_check(item: Model) -> Write:
    """Return a transaction's check that an item is still the one that was read."""
    knowledge.check_current(item, TransactWriteError)
    part = knowledge.part_of(item, is_checked=True)
    return Write(item, CHECK, part, expiry.for_save(type(item), part.condition()))


def check_actions(item: Model, protected: str | None, actions: Sequence[Action]) -> None:
    """Refuse a value that is not a list of actions, and actions on the lock itself."""
    if not isinstance(actions, list) or not actions:
        raise TypeError("the value of `actions` is expected to be a non-empty list")
    for action in actions:
        if clauses.path_of(action)[0] == protected:
            raise ConfigurationError(
                f"{action!r} would change the lock of {type(item).__name__} behind its back; "
                f"use locked() or break_lock()."
            )
