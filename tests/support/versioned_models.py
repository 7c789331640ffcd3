"""Models with a version, on PynamoDB's base class and on ours: what differs between them is what a test shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.attributes import DiscriminatorAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.attributes import TTLAttribute as StockTTLAttribute
from pynamodb.attributes import VersionAttribute as StockVersionAttribute
from pynamodb.models import Model

from pynamo_locking import ExpiringMixin, LockableModel, LockAttribute, TTLAttribute, VersionAttribute, VersionedMixin
from tests.support.models import meta

if TYPE_CHECKING:
    from tests.engines.engine import Engine

Bases = tuple[type[Any], ...]

STOCK: Bases = (Model,)
VERSIONED: Bases = (VersionedMixin, Model)
LOCKABLE: Bases = (LockableModel,)
OURS = {"versioned": VERSIONED, "lockable": LOCKABLE}
EVERYBODY = {"stock": STOCK, **OURS}
FAILED = "ConditionalCheckFailedException"


def own_attempts(table_name: str, **options: Any) -> Any:
    """Return a `Meta` without retries of botocore: the attempts that a test counts are ours."""
    return meta(table_name, max_retry_attempts=0, **options)


def version_of(bases: Bases, attr_name: str | None = None) -> Any:
    """Return the version attribute that goes with the base classes."""
    return (StockVersionAttribute if bases == STOCK else VersionAttribute)(attr_name=attr_name)


def document(bases: Bases, *, renamed: bool = False) -> Any:
    """Return a model with a version, and a lock in the item where the base knows of locks."""

    class Doc(*bases):  # type: ignore[misc]
        Meta = own_attempts("docs")

        pk = UnicodeAttribute(hash_key=True)
        body = UnicodeAttribute(null=True)
        total = NumberAttribute(default=0)
        version = version_of(bases, "v" if renamed else None)
        if bases == LOCKABLE:
            lock = LockAttribute()

    return Doc


def inherited(bases: Bases) -> Any:
    """Return a model whose version comes from a base class of its own."""

    class Versioned(*bases):  # type: ignore[misc]
        version = version_of(bases, "v")

    class Doc(Versioned):
        Meta = own_attempts("docs")

        pk = UnicodeAttribute(hash_key=True)
        total = NumberAttribute(default=0)
        if bases == LOCKABLE:
            lock = LockAttribute()

    return Doc


def family(bases: Bases) -> tuple[Any, Any, Any]:
    """Return two classes of one table."""

    class Animal(*bases):  # type: ignore[misc]
        Meta = own_attempts("animals")

        pk = UnicodeAttribute(hash_key=True)
        kind = DiscriminatorAttribute()
        legs = NumberAttribute(default=0)
        version = version_of(bases)
        if bases == LOCKABLE:
            lock = LockAttribute()

    class Cat(Animal, discriminator="cat"):  # type: ignore[call-arg]
        pass

    class Dog(Animal, discriminator="dog"):  # type: ignore[call-arg]
        pass

    return Animal, Cat, Dog


def session(bases: Bases) -> Any:
    """Return a model whose items expire."""
    if bases != STOCK:
        bases = (ExpiringMixin, *bases)

    class Session(*bases):  # type: ignore[misc]
        Meta = own_attempts("sessions")

        pk = UnicodeAttribute(hash_key=True)
        total = NumberAttribute(default=0)
        expires = (StockTTLAttribute if bases == STOCK else TTLAttribute)(null=True)
        version = version_of(bases)
        if LockableModel in bases:
            lock = LockAttribute()

    return Session


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
