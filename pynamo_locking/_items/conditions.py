"""Conditions and actions of one item's write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamodb.expressions.operand import Value
from pynamodb.expressions.update import DeleteAction, RemoveAction, SetAction, Update

from pynamo_locking._core.dynamodb import LONGEST_EXPRESSION
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io.stored_rows import Place, SetStored, steps_of
from pynamo_locking._pynamodb import discriminator_of, hash_attribute_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.stored_rows import Image, Steps
    from pynamo_locking._items.versions import VersionPart


#: An attribute that no item has.
_NOTHING: Final = "pynamo_locking_nothing"


def both(left: Condition | None, right: Condition | None) -> Condition | None:
    """Join conditions, either of which may be missing."""
    if left is None or right is None:
        return left if right is None else right
    joined: Condition = left & right
    return joined


def save_actions(item: Model, values: Image, kept: Collection[str], part: VersionPart, stored: Image) -> list[Action]:
    """Return the update that stores the `values` of an instance's declared attributes, except those in `kept`.

    `stored` is the item without which the write is refused, {} if another one would do: what it has is not set again.

    A Put would overwrite the lock document, and the entries of waiters who joined meanwhile, with an old copy; nor
    could it increment an unknown version.
    """
    version = part.shape.attribute
    actions: list[Action] = []
    for attribute in item.get_attributes().values():
        name = attribute.attr_name
        if attribute.is_hash_key or attribute.is_range_key or name in kept or attribute is version:
            continue
        if stored and values.get(name) == stored.get(name):
            continue
        actions.append(SetStored(name, values[name]) if name in values else RemoveAction(Place(name)))
    actions += part.actions()
    # DynamoDB accepts an update without any action, but moto does not.
    return actions or [nothing()]


def nothing() -> Action:
    """Return an action that changes nothing, of an attribute that no item has."""
    action: Action = Place(_NOTHING).remove()
    return action


def same_class(item: Model) -> Condition | None:
    """Require the instance's class of the stored item: PynamoDB notices another class only after the update."""
    attribute = discriminator_of(item)
    if attribute is None:
        return None
    value, path = attribute.get_discriminator(type(item)), Place(attribute.attr_name)
    none: Condition = path.does_not_exist()
    return none if value is None else none | (path == value)


def is_repeatable(actions: Sequence[Action]) -> bool:
    """Tell whether a second copy of an update would change nothing more.

    Removing an element of a list moves the later ones, and setting one beyond its end appends it.
    """
    return all(
        not any(isinstance(step, int) for step in path_of(action))
        and (
            isinstance(action, (RemoveAction, DeleteAction))
            or (isinstance(action, SetAction) and isinstance(action.values[1], Value))
        )
        for action in actions
    )


def exists(model: Model | type[Model]) -> Condition:
    there: Condition = Place(hash_attribute_of(model).attr_name).exists()
    return there


def does_not_exist(model: Model | type[Model]) -> Condition:
    absent: Condition = Place(hash_attribute_of(model).attr_name).does_not_exist()
    return absent


def path_of(action: Action) -> Steps:
    """Return the steps of the path that an action changes; PynamoDB's `ValueError` for what is no action."""
    Update(action)
    path: Any = action.values[0]  # a Path in every action there is
    return steps_of(path)


def changed_by(action: Action) -> str:
    """Return the stored name of the attribute that an action changes, as a whole or in part."""
    return str(path_of(action)[0])


def check_size(item: Model, kwargs: Mapping[str, Any]) -> None:
    """Refuse an update whose expression is too long for DynamoDB."""
    size = len(kwargs.get("UpdateExpression") or "")
    if size > LONGEST_EXPRESSION:
        raise ConfigurationError(
            f"{type(item).__name__} has {len(item.get_attributes())} attributes: saving them in one update takes an "
            f"expression of {size} bytes, and DynamoDB allows {LONGEST_EXPRESSION}. Put attributes into a map, "
            f"keep an embedded lock in a separate row (Meta.lock_table), or save with the version's condition."
        )
