"""Items as DynamoDB stores them, and the effects of requests on them, computed without a request.

An image is an item in DynamoDB's JSON form, with binary values as bytes. The results are canonical (numbers in one
spelling, sets sorted) and share nothing with the arguments, which stay unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pynamo_locking._core.dynamodb import KeyRule
from pynamo_locking._expressions.expressions import Expressions
from pynamo_locking._expressions.values import canonical_item, copy_of, invalid_value, item_size
from pynamo_locking._pynamodb import schema_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pynamodb.models import Model

    from pynamo_locking._io.stored_rows import Image


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
