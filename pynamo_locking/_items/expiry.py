"""Expired items, which DynamoDB may keep for days: absent for reads, and replaceable by a new item.

All other writes ignore the time of expiry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.constants import ALL, NUMBER
from pynamodb.expressions.operand import Value
from pynamodb.expressions.util import get_value_placeholder
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import runtime
from pynamo_locking._io.stored_rows import Place
from pynamo_locking._pynamodb import indexes_of, ttl_attribute_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model


def attribute_name(model: type[Model]) -> str | None:
    """Return the stored name of the time of expiry; None for models that do not hide expired items."""
    if not getattr(model, "_hides_expired", False):
        return None
    attribute = ttl_attribute_of(model)
    if attribute is None:
        raise ConfigurationError(
            f"{model.__name__} is an ExpiringMixin and has no TTLAttribute: declare one, such as "
            f"`expires = TTLAttribute(null=True)`."
        )
    name: str = attribute.attr_name
    return name


def now_s() -> int:
    return runtime.current.time_ms() // 1000


def time_in(image: Mapping[str, Any] | None, name: str | None) -> dict[str, Any] | None:
    """Return the stored time of expiry in an image; None for never: NULL, and what is no number, are no time."""
    stored: dict[str, Any] = (image or {}).get(name or "", {})  # no attribute is called ""
    return stored if NUMBER in stored else None


def is_past(time: Mapping[str, Any] | None) -> bool:
    return time is not None and float(time[NUMBER]) <= now_s()


def filter_of_query(model: type[Model], index_name: str | None, by_range: Condition | None) -> Condition | None:
    """Return the filter that leaves expired items out of a query; None if the query needs none."""
    name = attribute_name(model)
    if name is None or index_name is None or name not in _keys_of(indexes_of(model)[index_name].Meta.attributes):
        return filter_of_scan(model, index_name)
    if by_range is None:
        raise ConfigurationError(
            f"{name!r} is a key of the index {index_name!r}, and DynamoDB cannot filter by keys: pass a "
            f"range_key_condition on it, or include_expired=True to {model.__name__}'s own method."
        )
    return None  # the caller has chosen the times


def filter_of_scan(model: type[Model], index_name: str | None) -> Condition | None:
    """Return the filter that leaves expired items out of a scan; None for models that do not hide them."""
    name = attribute_name(model)
    if name is None:
        return None
    if not is_projected(name, model, index_name):
        raise ConfigurationError(
            f"the index {index_name!r} of {model.__name__} does not have {name!r}, so its expired items cannot be "
            f"left out: add it to the projection, or pass include_expired=True to {model.__name__}'s own method."
        )
    return _alive(name)


def is_projected(name: str, model: type[Model], index_name: str | None) -> bool:
    """Tell whether reads by an index can be filtered by a stored attribute: the model says that the index has it."""
    names = projected(model, index_name)
    return names is None or name in names


def projected(model: type[Model], index_name: str | None) -> frozenset[str] | None:
    """Return the stored names of what an index has, as the model says; None for all, and without an index."""
    if index_name is None:
        return None
    index = indexes_of(model).get(index_name)
    if index is None:
        return frozenset()
    projection = index.Meta.projection
    if projection.projection_type == ALL:
        return None
    keys = _keys_of(index.Meta.attributes) | _keys_of(model.get_attributes())
    return keys.union(projection.non_key_attributes or ())


def _keys_of(attributes: Mapping[str, Attribute[Any]]) -> frozenset[str]:
    return frozenset(each.attr_name for each in attributes.values() if each.is_hash_key or each.is_range_key)


class _Now(Value):
    """The second in which the request is made, not the second in which its condition is built."""

    format_string = "now"
    attr_type: str = NUMBER

    def __init__(self) -> None:
        self.values = ()

    @property
    def value(self) -> dict[str, str]:
        return {NUMBER: str(now_s())}

    @override
    def serialize(self, placeholder_names: dict[str, str], expression_attribute_values: dict[str, Any]) -> str:
        return str(get_value_placeholder(self.value, expression_attribute_values))


def _alive(name: str) -> Condition:
    """Return the filter for items that have not expired when the request is made.

    NULL, and what is no number, are no time of expiry; for DynamoDB's TTL neither. DynamoDB compares them with no
    number, so the condition is a negation. In a statement a comparison with a missing attribute may be neither true
    nor false, so that is said apart.
    """
    condition: Condition = Place(name).does_not_exist() | ~has_passed(name)
    return condition


def has_passed(name: str) -> Condition:
    """Return the condition that an item has expired when the request is made."""
    passed: Condition = Place(name) <= _Now()
    return passed


def holds_without_item(condition: Condition | None) -> bool:
    """Tell whether DynamoDB would find a condition true where there is no item at all.

    Of the comparisons with a missing attribute, only ``attribute_not_exists`` and ``<>`` are true.
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
