"""Conditions and actions of one item's write, and their effect computed without a request.

An image is an item in DynamoDB's JSON form, with binary values as bytes. The results are canonical (numbers in one
spelling, sets sorted) and share nothing with the arguments, which stay unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pynamodb.expressions.operand import Value
from pynamodb.expressions.update import DeleteAction, RemoveAction, SetAction

from pynamo_locking._core.dynamodb import LONGEST_EXPRESSION, KeyRule
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._expressions.expressions import Expressions
from pynamo_locking._expressions.values import canonical_item, copy_of, invalid_value, item_size
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._pynamodb import discriminator_of, schema_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.stored_rows import Image
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
        path = Place(name)
        actions.append(path.set(Stored(values[name])) if name in values else path.remove())
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
        not any("[" in segment for segment in path_of(action))
        and (
            isinstance(action, (RemoveAction, DeleteAction))
            or (isinstance(action, SetAction) and isinstance(action.values[1], Value))
        )
        for action in actions
    )


def path_of(action: Action) -> list[str]:
    """Return the path that an action changes, by its segments."""
    path: Any = action.values[0]  # a Path in every action there is
    segments: list[str] = path.path
    return segments


def check_size(item: Model, kwargs: Mapping[str, Any]) -> None:
    """Refuse an update whose expression is too long for DynamoDB."""
    size = len(kwargs.get("UpdateExpression") or "")
    if size > LONGEST_EXPRESSION:
        raise ConfigurationError(
            f"{type(item).__name__} has {len(item.get_attributes())} attributes: saving them in one update takes an "
            f"expression of {size} bytes, and DynamoDB allows {LONGEST_EXPRESSION}. Put attributes into a map, "
            f"keep an embedded lock in a separate row (Meta.lock_table), or save with the version's condition."
        )


# Items as DynamoDB stores them, and the effects of requests on them, computed without a request.


def updated(image: Image | None, kwargs: Mapping[str, Any]) -> Image:
    """Return an item as it is after an UpdateItem; of no item, one with the request's key.

    The request's condition is not evaluated: see `holds`. The result may be too large, or break an index: see
    `pynamo_locking._core.dynamodb.problems`. `Refusal` if DynamoDB would refuse the request, as an ADD to a string.
    """
    expressions = Expressions(kwargs, "UpdateExpression", "ConditionExpression")
    update = expressions.update()
    expressions.condition()
    expressions.check_all_used()
    before = canonical_item(image or kwargs["Key"])
    if update is None:
        return before
    for path in update.paths:
        if path[0] in kwargs["Key"]:
            raise invalid_value(f"Cannot update attribute {path[0]}. This attribute is part of the key")
    return copy_of(update.apply(before))  # two attributes may share an object: SET a = b


def holds(image: Image | None, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether the condition of a write, if it has one, is true of an item; `Refusal` if it is invalid."""
    condition = Expressions(kwargs, "UpdateExpression", "ConditionExpression").condition()
    return condition is None or condition.holds(canonical_item(image or {}))


def difference(
    before: Image | None, after: Image, *, keys: Collection[str] = ()
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the attributes to set, and the names of those to remove, that turn one image into another.

    Values are compared as in DynamoDB: the spelling of a number and the order of a set do not count. Attributes are set
    as a whole, even if only a part of a map differs. Key attributes, named in `keys`, are left out; that is needed only
    if there was no item before.
    """
    old, new = canonical_item(before or {}), canonical_item(after)
    changed = {name: value for name, value in new.items() if name not in keys and old.get(name) != value}
    return changed, sorted(name for name in old if name not in new and name not in keys)


def size_of(image: Image) -> int:
    """Return the size of an item in bytes, names included, as DynamoDB counts it; `Refusal` for an invalid value."""
    return item_size(canonical_item(image))


def rough_size_of(image: Image) -> int:
    """Return about the size of an item, in a third of the time: numbers count as they are spelled."""
    return item_size(image)


def key_rules(model: type[Model]) -> tuple[KeyRule, ...]:
    """Return the key attributes of a table and of all its indexes, those of other classes of the table included."""
    schema = schema_of(model)
    rules = _rules(schema, None)
    for index in [*schema["local_secondary_indexes"], *schema["global_secondary_indexes"]]:
        rules += _rules(index, index["index_name"])
    return tuple(rules)


def _rules(schema: Any, index: str | None) -> list[KeyRule]:
    # The definitions of a table include its indexes' keys, behind its own: the first of each name counts.
    types = {each["AttributeName"]: each["AttributeType"] for each in reversed(schema["attribute_definitions"])}
    roles: dict[str, Literal["hash", "range"]] = {"HASH": "hash", "RANGE": "range"}
    rules = [
        KeyRule(each["AttributeName"], types[each["AttributeName"]], roles[each["KeyType"]], index)
        for each in schema["key_schema"]
    ]
    return sorted(rules, key=lambda rule: rule.role)
