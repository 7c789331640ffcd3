"""What the package asks of its models, whatever their class: the doors to the private names of `_models`.

Lower floors know no class of `_models`, and other folders use no private name of it. So what they ask is here, once
and with its type.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._pynamodb import connection_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.row_keys import OwnKeys


# Where its table is


class Endpoint(NamedTuple):
    """Where the table of a model is: two places may have tables of one name. No account: that of the environment."""

    region: str | None
    host: str | None
    account: str | None

    def __str__(self) -> str:
        said_by = "" if self.account is None else f" with the credentials {self.account!r} of its Meta"
        return f"{self.region} ({self.host or 'AWS'}){said_by}"


def endpoint_of(model: type[Model]) -> Endpoint:
    connection = connection_of(model).connection
    return Endpoint(connection.region, connection.host, account_of(model))


#: Access keys of models that have their own, as first seen: later sessions of a role have other keys.
_accounts: weakref.WeakKeyDictionary[type[Model], str] = weakref.WeakKeyDictionary()


def account_of(model: type[Model] | None) -> str | None:
    """Identify the account of a model's tables: two accounts may have tables of one name in one Region.

    None: the environment's account.
    """
    meta: Any = getattr(model, "Meta", object)
    if getattr(meta, "aws_access_key_id", None) is None:
        return None
    said_by: Any = next(
        (base for base in getattr(meta, "__mro__", ()) if vars(base).get("aws_access_key_id") is not None), None
    )
    return None if said_by is None else _accounts.setdefault(said_by, said_by.aws_access_key_id)


def refuse_apart(one: type[Model], other: type[Model]) -> None:
    """Refuse two models whose tables no native transaction could include."""
    if one is other:  # as for most items of most transactions
        return
    places = endpoint_of(one), endpoint_of(other)
    if places[0] != places[1]:
        raise ConfigurationError(
            f"{one.__name__} is in {places[0]}, and {other.__name__} in {places[1]}, so no transaction can include "
            f"both: give both the same Meta.region, Meta.host and Meta.aws_access_key_id, or use them apart."
        )


# Where its locks are


def lock_attribute_of(model: Any) -> Any:
    """Return the `LockAttribute` of a model, or of an item's; None if it has none."""
    return model._lock_attribute()


def lock_table_of(model: Any) -> Any:
    """Return the `NamedLock` in whose table the locks of a model without a `LockAttribute` are."""
    return model._lock_table()


def has_lock_place(model: Any) -> bool:
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
    kept: Condition | None = item._placement_condition(condition, *arguments, **options)
    return kept
