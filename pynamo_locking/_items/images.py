"""Items as DynamoDB stores them, and what requests do to them, worked out here without a request.

An image is an item in DynamoDB's JSON form, with binary values as bytes. What these functions return is
canonical (numbers in one spelling, sets sorted) and shares nothing with what they were given, which they do
not change. None of them sends a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pynamo_locking._core.limits import KeyRule
from pynamo_locking._expressions.refusals import invalid_value
from pynamo_locking._expressions.request import Expressions
from pynamo_locking._expressions.values import canonical_item, copy_of, item_size

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pynamodb.models import Model

    from pynamo_locking._io.stored import Image

__all__ = ["difference", "holds", "key_rules", "size_of", "updated"]


def updated(image: Image | None, kwargs: Mapping[str, Any]) -> Image:
    """Return an item as it is after an UpdateItem. The request's condition is not evaluated: see `holds`.

    The result may still be too large, or break an index: see `pynamo_locking._core.limits.problems`.

    Args:
        image: the item before; None if there is none, which makes one of the request's key.
        kwargs: the request: ``Key``, ``UpdateExpression``, its names and values.

    Raises:
        Refusal: DynamoDB would refuse the request (as an ADD to a string), with its code and message.
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
    return copy_of(update.apply(before))  # two attributes of it may be one object: SET a = b


def holds(image: Image | None, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether the condition of a write is true of an item.

    Args:
        image: the item; None if there is none, of which only the absence of attributes is true.
        kwargs: the request: ``ConditionExpression``, its names and values. Without a condition it is true.

    Raises:
        Refusal: DynamoDB would refuse the condition whatever is stored.
    """
    condition = Expressions(kwargs, "UpdateExpression", "ConditionExpression").condition()
    return condition is None or condition.holds(canonical_item(image or {}))


def difference(
    before: Image | None, after: Image, *, keys: Collection[str] = ()
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return what has to be done to one image of an item to get another one of it.

    Values are compared as DynamoDB does: the spelling of a number and the order of a set do not count.

    Args:
        before: the item before; None if there was none.
        after: the item afterwards.
        keys: names of its key attributes, which are left out. Needed only if there was no item before: the
            keys of one item do not differ.

    Returns:
        The attributes to set, with their values, and the names of those to remove, sorted. Only whole
        attributes: of a map that differs somewhere inside, all is set.
    """
    old, new = canonical_item(before or {}), canonical_item(after)
    changed = {name: value for name, value in new.items() if name not in keys and old.get(name) != value}
    return changed, sorted(name for name in old if name not in new and name not in keys)


def size_of(image: Image) -> int:
    """Return the size of an item in bytes, names included, as DynamoDB counts it against its 400 KB.

    Raises:
        Refusal: it has a value that DynamoDB does not store.
    """
    return item_size(canonical_item(image))


def key_rules(model: type[Model]) -> tuple[KeyRule, ...]:
    """Return the key attributes of a model's table and of all its indexes, for `problems`.

    Args:
        model: the model. With a discriminator, the indexes of all classes of its table count.
    """
    schema = model._get_schema()
    indexes = [*schema["local_secondary_indexes"], *schema["global_secondary_indexes"]]
    rules = _rules(schema, None)
    for index in indexes:
        rules += _rules(index, index["index_name"])
    return tuple(rules)


def _rules(schema: Any, index: str | None) -> list[KeyRule]:
    # A table's schema has the types of its indexes' keys as well, behind its own: the first of a name counts.
    types = {each["AttributeName"]: each["AttributeType"] for each in reversed(schema["attribute_definitions"])}
    roles: dict[str, Literal["hash", "range"]] = {"HASH": "hash", "RANGE": "range"}
    rules = [
        KeyRule(each["AttributeName"], types[each["AttributeName"]], roles[each["KeyType"]], index)
        for each in schema["key_schema"]
    ]
    return sorted(rules, key=lambda rule: rule.role)
