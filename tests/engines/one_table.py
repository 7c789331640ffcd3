"""The tables of the package as parts of one table of other items: ``ONE_TABLE=1 python -m pytest ...`` for any test."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import Attribute, AttributeContainerMeta

from pynamo_locking import NamedLock, TransactionTable
from pynamo_locking.unique import UniqueTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb.models import Model


#: When set, `Engine.bind` puts the locks, transactions and guards of a test into one table, beside other items.
VARIABLE: Final = "ONE_TABLE"

#: Whose rows can be among others.
SHAREABLE: Final = NamedLock, TransactionTable, UniqueTable

OTHERS: Final = 50


def is_wanted() -> bool:
    """Whether the tables are to be shared."""
    return bool(os.environ.get(VARIABLE))


@contextmanager
def sharing(model: type[Model]) -> Iterator[None]:
    """Make a class one in a table of other items, as if its Meta had said so."""
    meta: Any = model.Meta
    made: Any = model
    if made._own_keys.is_shared:
        yield
        return
    before = {name: value for name, value in vars(model).items() if isinstance(value, Attribute)}
    meta.keys, meta.prefix, meta.ttl_attribute = ("pk", "sk"), f"{model.__name__}#", "ttl"
    try:
        made.__init_subclass__()
        _collect(made)
        yield
    finally:
        del meta.keys, meta.prefix, meta.ttl_attribute
        for name in [name for name, value in vars(model).items() if isinstance(value, Attribute)]:
            delattr(model, name)
        for name, value in before.items():
            setattr(model, name, value)
        made.__init_subclass__()
        _collect(made)


def alone(model: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a class as they are in a table of its own, without those of others."""
    if not (hasattr(model, "_own_keys") and model._own_keys.is_shared):
        return rows
    names = {"ttl": "expires_s", "sk": ""}
    found = [model._own_keys.alone(row, model._hash_keyname, names) for row in rows]
    return [{name: value for name, value in row.items() if name and name != "pk"} for row in found if row is not None]


def _collect(model: Any) -> None:
    """Do what PynamoDB does when a class is made."""
    AttributeContainerMeta._initialize_attributes(model, None)
    keys = {name for name, each in model.get_attributes().items() if each.is_range_key}
    model._range_keyname = next(iter(keys), None)


@contextmanager
def beside_others(client: Any, table: str) -> Iterator[None]:
    """Put items of another program into a table; at the end, they are what they were."""
    before = {f"item#{i}": other(i) for i in range(OTHERS)}
    for item in before.values():
        client.put_item(TableName=table, Item=item)
    yield
    for item in before.values():
        key = {name: item[name] for name in ("pk", "sk")}
        assert client.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item") == item


def other(i: int) -> dict[str, Any]:
    """An item of another program, with attributes that rows of ours have as well."""
    return {
        "pk": {"S": f"item#{i}"},
        "sk": {"S": ("lock#", "transaction#", "item#")[i % 3] + str(i)},
        "name": {"S": f"n{i}"},
        "id": {"S": f"t{i}"},
        "state": {"S": ("pending", "committed", "aborted")[i % 3]},
        "priority": {"S": f"00000000000000{i}-t{i}"},
        "content": {"M": {"items": {"L": []}}},
        "expires_s": {"N": "1"},
        "ttl": {"N": "1"},
        "version": {"N": str(i)},
        "lock": {"M": {"queue": {"M": {}}, "next": {"L": [{"N": "1"}]}}},
    }
