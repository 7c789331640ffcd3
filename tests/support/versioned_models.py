"""Models with a version, on PynamoDB's base class and on ours: what differs between them is what a test shows."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from pynamodb.attributes import DiscriminatorAttribute
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, VersionAttribute, VersionedMixin
from tests.support.models import declare

if TYPE_CHECKING:
    from tests.engines.engine import Engine

Bases = tuple[type[Any], ...]

STOCK: Bases = (Model,)
VERSIONED: Bases = (VersionedMixin, Model)
LOCKABLE: Bases = (LockableModel,)
OURS = {"versioned": VERSIONED, "lockable": LOCKABLE}
EVERYBODY = {"stock": STOCK, **OURS}
FAILED = "ConditionalCheckFailedException"


def version_of(bases: Bases, attr_name: str | None = None) -> Any:
    """Return the version attribute that goes with the base classes."""
    return (StockVersionAttribute if bases == STOCK else VersionAttribute)(attr_name=attr_name)


def versioned(name: str, bases: Bases, /, *, attr_name: str | None = None, **parts: Any) -> Any:
    """Return a model with a version, and a lock in the item where the base knows of locks.

    botocore makes no retries: the attempts that a test counts are ours.
    """
    lock = LockableModel in bases
    options = {"hash_key": "pk", "max_retry_attempts": 0, "lock": lock, "version": version_of(bases, attr_name)}
    return declare(name, *bases, **{**options, **parts})


def document(bases: Bases, *, renamed: bool = False) -> Any:
    return versioned("Doc", bases, attr_name="v" if renamed else None, texts="body", numbers="total")


def inherited(bases: Bases) -> Any:
    """Return a model whose version comes from a base class of its own."""
    base = types.new_class("Versioned", bases, exec_body=lambda body: body.update(version=version_of(bases, "v")))
    return versioned("Doc", (base,), version=False, lock=bases == LOCKABLE, numbers="total")


def family(bases: Bases) -> tuple[Any, Any, Any]:
    """Return two classes of one table."""
    animal = versioned("Animal", bases, kind=DiscriminatorAttribute(), numbers="legs")
    cat, dog = (types.new_class(name, (animal,), {"discriminator": name.lower()}) for name in ("Cat", "Dog"))
    return animal, cat, dog


SHAPES = {"plain": document, "renamed": lambda bases: document(bases, renamed=True), "inherited": inherited}


def connection_of(model: Any) -> Any:
    """Return PynamoDB's connection of a model."""
    return model._get_connection().connection


def item_of(engine: Engine, model: Any, pk: str = "a") -> dict[str, Any] | None:
    """Return the stored item in DynamoDB's form."""
    key = {"pk": {"S": pk}}
    answer = engine.client().get_item(TableName=model.Meta.table_name, Key=key, ConsistentRead=True)
    item: dict[str, Any] | None = answer.get("Item")
    return item


def saved(model: Any, pk: str = "a", version: int = 1, **values: Any) -> Any:
    """Return an item that has been written as many times as its version says."""
    item = model(pk, **values)
    for _ in range(version):
        item.save()
    assert item.version == version
    return item


def stale(model: Any, pk: str = "a") -> Any:
    """Return a copy in version 1 of an item that is stored in version 2."""
    copy = saved(model, pk)
    model.get(pk).update([model.body.set("newer")])
    return copy


def recreated(model: Any, pk: str = "a") -> Any:
    """Return a copy of an item that has been deleted and created again since, to the same version."""
    saved(model, pk, body="old")
    copy = model.get(pk)
    model.get(pk).delete()
    saved(model, pk, body="new")
    return copy
