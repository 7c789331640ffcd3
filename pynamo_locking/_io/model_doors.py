"""What the package asks of its models, whatever their class: the doors to the private names of `_models`.

Lower floors know no class of `_models`, and other modules use no private name of a model. So what they ask is here,
once and with its type.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.connection import Connection

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._pynamodb import access_key_of, connection_of, key_in_use, region_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.row_keys import OwnKeys


# Where its table is


class Endpoint(NamedTuple):
    """Where a connection sends requests: tables of one name may be in two places. No account: the environment's."""

    region: str | None
    host: str | None
    account: str | None

    def __str__(self) -> str:
        said_by = "" if self.account is None else f" with the credentials {self.account!r}"
        return f"{self.region} ({self.host or 'AWS'}){said_by}"


def endpoint_of(model: type[Model]) -> Endpoint:
    return endpoint_to(connection_of(model).connection, account_of(model))


def endpoint_to(connection: Connection, account: str | None) -> Endpoint:
    """Return where a connection of an account sends requests."""
    return Endpoint(region_of(connection), connection.host, account)


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
            f"{one.__name__} is in {places[0]}, and {other.__name__} in {places[1]}, so no transaction or "
            f"batch can include both: give both the same Meta.region, Meta.host and Meta.aws_access_key_id, or use "
            f"them apart."
        )


def refuse_elsewhere(connection: Connection, model: type[Model]) -> None:
    """Refuse a model whose items a connection would write to another place than the model's own connection does."""
    own = connection_of(model).connection
    if own is connection or not all(issubclass(type(each), Connection) for each in (own, connection)):
        return  # a test may hand in anything
    here, there = endpoint_of(model), endpoint_to(connection, access_key_of(connection))
    accounts = {here.account, access_key_of(own), model.Meta.aws_access_key_id}  # keys of one role, at several times
    is_account = there.account in accounts or key_in_use(connection) == key_in_use(own)
    is_region = there.region in {here.region, None}  # without one it sends nothing, unless a test has replaced that
    if not (is_region and is_account and there.host == here.host):
        raise ConfigurationError(
            f"{model.__name__} is in {here}, and the connection of this transaction sends to {there}, where another "
            f"table of that name may be: nothing was sent. Give it a connection with the Region, the host and the "
            f"credentials of the model's Meta; without one it has that of its first model."
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


def lock_row_in(table: Any, key: dict[str, Any], settings: Any, name: str) -> Any:
    """Return the `LockRow` of a name in a table of locks."""
    return table._lock_row(key, lock_attribute_of(table), settings, name)


def own_lock_row_of(item: Any) -> Any:
    """Return the `LockRow` of an item: its own, or that of its name."""
    return item._lock_row_of_item(None)


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


def also_stored_of(model: Any) -> frozenset[str]:
    """Return which attributes rows of ours have besides those that their class declares."""
    also_stored: frozenset[str] = model._also_stored
    return also_stored


# Its writes


def call_before_save(item: Any) -> None:
    """Refuse an item that was read in part, and call its `before_save`."""
    item._prepare_save()


def save_prepared(item: Any, condition: Condition | None, **options: Any) -> dict[str, Any]:
    """Save an item after `call_before_save`."""
    data: dict[str, Any] = item._save_prepared(condition, **options)
    return data


def inserted_by(model: Any, tx: Any, new_rows: object) -> Any:
    """Return the `Placed` insert of new rows into a `Transaction`; `ConfigurationError` without intervals."""
    return model._inserting(tx, new_rows)


def moved_by(row: Any, tx: Any, begin: Any, end: Any) -> Any:
    """Return the `Placed` move of a row in a `Transaction`; `ConfigurationError` without intervals."""
    return row._moving(tx, begin, end)


def most_actions_of(item: Any) -> int:
    """Return how many actions a native transaction needs for a write of an item."""
    actions: int = item._most_actions()
    return actions


def extents_of(item: Any) -> Sequence[LockMode]:
    """Return where an item is among those of its hash key, as the locks of ranges see it."""
    extents: Sequence[LockMode] = item._extents()
    return extents


def writer_of(item: Any, extents: Sequence[LockMode] | None = None) -> Any:
    """Return the `Writer` of an item; None if PynamoDB writes it. Locked ranges see the item in its own extents."""
    return item._make_writer(extents)


def lone_writer_of(item: Any) -> Any:
    """Return the `Writer` of a write that is no part of a transaction; refuse an item that is in one."""
    return item._writer()


def kept_condition(item: Any, condition: Condition | None, *arguments: Any, **options: Any) -> Condition | None:
    """Return the condition of a write, with what its model adds: an interval must stay the one that was read."""
    kept: Condition | None = item._placement_condition(condition, *arguments, **options)
    return kept


def why_misplaced(item: Any, image: dict[str, Any] | None) -> str:
    """Say how the stored item is elsewhere than an instance says, and what to do; empty if it is not."""
    said: str = item._why_misplaced(image) if image and hasattr(item, "_why_misplaced") else ""
    return said
