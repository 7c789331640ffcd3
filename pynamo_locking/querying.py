"""The query of a transaction: what is stored, and what the transaction has done to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.models import Model

from pynamo_locking._io import guards, images

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition

    from pynamo_locking._io.unit import Entry
    from pynamo_locking.members import Members


def find(
    members: Members,
    model: type[Any],
    hash_key: Any,
    range_key_condition: Condition | None,
    filter_condition: Condition | None,
    options: dict[str, Any],
) -> list[Any]:
    """Return the items of a hash key as a transaction sees them, in the order of their range keys."""
    options = {**options, "consistent_read": True}
    limit, backwards = options.pop("limit", None), options.get("scan_index_forward") is False
    # PynamoDB's own query shows placeholders as well: one of them may be an item that is committed.
    query: Any = Model.query
    stored = query.__func__(model, hash_key, range_key_condition, None, **options)
    stored._map_fn = None  # images instead of instances
    entries = [members.found(model, image) for image in stored]
    known = {id(entry) for entry in entries}
    entries += [
        entry
        for entry in members.entries.values()
        if id(entry) not in known and issubclass(entry.model, model) and _has_key(entry, hash_key, range_key_condition)
    ]
    found = [entry.item for entry in entries if entry.look() is not None and _matches(entry, filter_condition)]
    if model._range_keyname is not None:
        found.sort(key=lambda item: getattr(item, model._range_keyname), reverse=backwards)
    return found[:limit]


def _has_key(entry: Entry, hash_key: Any, range_key_condition: Condition | None) -> bool:
    attribute: Any = entry.model.get_attributes()[str(entry.model._hash_keyname)]
    return _holds(entry, guards.both(attribute == hash_key, range_key_condition))


def _matches(entry: Entry, condition: Condition | None) -> bool:
    return condition is None or _holds(entry, condition)


def _holds(entry: Entry, condition: Condition | None) -> bool:
    keys = entry.item._get_hash_range_key_serialized_values()
    kwargs = entry.item._get_connection().get_operation_kwargs(keys[0], range_key=keys[1], condition=condition)
    return images.holds(entry.look(), kwargs)
