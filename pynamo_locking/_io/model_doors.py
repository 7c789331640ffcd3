"""What the package asks of its models, whatever their class: the doors to the private names of `_models`.

Lower floors know no class of `_models`, and other folders use no private name of it. So what they ask is here, once
and with its type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.row_keys import OwnKeys


# Where its locks are


def lock_attribute_of(model: Any) -> Any:
    """Return the `LockAttribute` of a model, or of an item's; None if it has none."""
    return model._lock_attribute()


def lock_table_of(model: Any) -> Any:
    """Return the `NamedLock` in whose table the locks of a model without a `LockAttribute` are."""
    return model._lock_table()


def has_lock_place(model: Any) -> bool:
    """Tell whether items of a model can be locked at all."""
    return bool(model._has_lock_place())


def lock_target_of(model: Any, hash_key: Any, range_key: Any = None) -> Any:
    """Return the `LockTarget` of one item; `ConfigurationError` if the values cannot be its key."""
    return model._target_of(hash_key, range_key)


def lock_target_by_name(model: Any, key: dict[str, Any], settings: Any, read: Any) -> Any:
    """Return the `LockTarget` of the name of an item, in the table of its model's locks."""
    return model._target_elsewhere(key, settings, read)


def lock_row_of_key(model: Any, key: dict[str, Any]) -> Any:
    """Return the `LockRow` with the lock, and the write intents, of the item with this key; None if it has none."""
    return model._row_of_key(key)


def creates_item(model: Any) -> bool:
    """Tell whether the items of a model are there for locks alone, so that a lock creates its item."""
    return bool(getattr(model, "_lock_creates_item", False))


def enforcement_of(model: Any) -> str | None:
    """Return which locks in other rows the writes of a model respect (`Meta.enforce_locks`); None for none."""
    enforced: str | None = model._enforces()
    return enforced


def own_keys_of(model: Any) -> OwnKeys:
    """Return how the rows of a class of ours are named."""
    keys: OwnKeys = model._own_keys
    return keys


# Its writes


def extents_of(item: Any) -> Sequence[LockMode]:
    """Return where an item is among those of its hash key, as the locks of ranges see it."""
    extents: Sequence[LockMode] = item._extents()
    return extents


def writer_of(item: Any, extents: Sequence[LockMode] | None = None) -> Any:
    """Return the `Writer` of an item; None if PynamoDB writes it. Locked ranges see the item in its own extents."""
    return item._make_writer(extents)


def kept_condition(item: Any, condition: Condition | None, *arguments: Any, **options: Any) -> Condition | None:
    """Return the condition of a write, with what its model adds: an interval must stay the one that was read."""
    kept: Condition | None = item._kept(condition, *arguments, **options)
    return kept
