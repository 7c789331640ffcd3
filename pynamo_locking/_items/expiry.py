"""Expired items, which DynamoDB may keep for days, and which count as absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.constants import ALL, NUMBER
from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.util import get_value_placeholder
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import runtime
from pynamo_locking._io.stored import Stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.indexes import Index
    from pynamodb.models import Model

_M = TypeVar("_M", bound="Model")


_I = TypeVar("_I", bound="Mapping[str, Any]")


def attribute_name(model: type[Model]) -> str | None:
    """Return the stored name of the time of expiry, None for models whose expired items are items still.

    Raises:
        ConfigurationError: the model wants them hidden, and has no TTLAttribute.
    """
    if not getattr(model, "_hides_expired", False):
        return None
    attribute = model._ttl_attribute()
    if attribute is None:
        raise ConfigurationError(
            f"{model.__name__} is an ExpiringMixin and has no TTLAttribute: declare one, such as "
            f"`expires = TTLAttribute(null=True)`."
        )
    name: str = attribute.attr_name
    return name


def now_s() -> int:
    """Return the second that is running, as DynamoDB counts them for TTL."""
    return runtime.current.time_ms() // 1000


def is_expired(model: type[Model], image: Mapping[str, Any] | None) -> bool:
    """Tell whether an image is that of an item that counts as absent."""
    name = attribute_name(model)
    value = None if name is None or image is None else image.get(name, {}).get(NUMBER)
    return value is not None and float(value) <= now_s()


def unexpired(model: type[Model], image: _I | None) -> _I | None:
    """Return the image, or None if the item counts as absent."""
    return None if is_expired(model, image) else image


def has_expired(item: Model) -> bool:
    """Tell whether an item counts as absent by now."""
    name = attribute_name(type(item))
    value = None if name is None else getattr(item, type(item)._dynamo_to_python_attr(name))
    return value is not None and value.timestamp() <= now_s()


def present(item: _M) -> _M:
    """Return an item that was read, unless it counts as absent.

    Raises:
        DoesNotExist: it does.
    """
    if has_expired(item):
        raise item.DoesNotExist("This item has expired.")
    return item


def is_projected(name: str, index: Index[Any]) -> bool:
    """Tell whether an index has an attribute."""
    projection = index.Meta.projection
    return projection.projection_type == ALL or name in (projection.non_key_attributes or ()) or is_key_of(name, index)


def is_key_of(name: str, index: Index[Any]) -> bool:
    """Tell whether an attribute is a key of an index."""
    return any(attribute.attr_name == name for attribute in index.Meta.attributes.values() if _is_key(attribute))


def _is_key(attribute: Attribute[Any]) -> bool:
    return bool(attribute.is_hash_key or attribute.is_range_key)


class _Moment(dict[str, str]):
    """The time in a request, in DynamoDB's form."""


class _Now(Value):
    """The second in which a request is made, not that in which its condition is."""

    format_string = "now"
    attr_type: str = NUMBER

    def __init__(self) -> None:
        self.values = ()

    @override
    def serialize(self, placeholder_names: dict[str, str], expression_attribute_values: dict[str, Any]) -> str:
        return str(get_value_placeholder(_Moment({NUMBER: str(now_s())}), expression_attribute_values))


def date(kwargs: Mapping[str, Any], second: int | None = None) -> int | None:
    """Make a request one of that second, or of this one; return of which, None if the time is not in it.

    Two copies of one request must be of the same second: the first could be accepted after the second was refused.
    """
    for value in kwargs.get("ExpressionAttributeValues", {}).values():
        if isinstance(value, _Moment):
            second = now_s() if second is None else second
            value[NUMBER] = str(second)
    return second


def date_now(action: Mapping[str, Any]) -> None:
    """Make an action of a transaction, such as ``{"Put": {...}}``, one of this second; before it is first sent."""
    for kwargs in action.values():
        date(kwargs)


def alive(name: str) -> Condition:
    """Return the condition that an item has no time of expiry, or one to come when the request is made."""
    path = Path([name])
    condition: Condition = path.does_not_exist() | (path > _Now())
    return condition


def for_save(model: type[Model], condition: Condition | None) -> Condition | None:
    """Return what a condition becomes when a save may replace an expired item as if there were none."""
    name = attribute_name(model)
    if name is None or condition is None:
        return condition
    if holds_without_item(condition):
        replaceable: Condition = condition | (Path([name]) <= _Now())
        return replaceable
    in_time: Condition = condition & alive(name)
    return in_time


def for_update(model: type[Model], condition: Condition | None) -> Condition | None:
    """Return what a condition becomes when an update must not touch what is left of an expired item."""
    name = attribute_name(model)
    if name is None:
        return condition
    return alive(name) if condition is None else condition & alive(name)


def still(model: type[Model], image: Mapping[str, Any]) -> Condition:
    """Return the condition that an expired item is the one in this image, so that nobody has prolonged it."""
    name = attribute_name(model)
    assert name is not None  # noqa: S101 - asked for only then
    condition: Condition = Path([name]) == Stored(image[name])
    return condition


def holds_without_item(condition: Condition | None) -> bool:
    """Tell whether DynamoDB would find a condition true where there is no item at all.

    A missing attribute equals nothing, is in no order and of no type; it is only not there, and different.
    """
    if condition is None:
        return True
    parts = condition.values
    if condition.operator == "AND":
        return all(map(holds_without_item, parts))
    if condition.operator == "OR":
        return any(map(holds_without_item, parts))
    if condition.operator == "NOT":
        return not holds_without_item(parts[0])
    return condition.operator in ("attribute_not_exists", "<>")
