"""Stored names with brackets and dots, which PynamoDB saves; and what is no action, which it refuses with a word."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import ListAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import ExpiringMixin, LockableMixin, TransactWrite, TTLAttribute, VersionedMixin, transaction
from tests.support.interval_models import Slot, SlotLocks
from tests.support.models import Locks, declare
from tests.support.transaction_models import Transactions, make_long_from
from tests.support.unique_models import Uniques

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


def named(name: str, *bases: Any, **options: Any) -> Any:
    return declare(
        name,
        *bases,
        pk=UnicodeAttribute(hash_key=True, attr_name="key[0]"),
        price=NumberAttribute(attr_name="price[EUR]", null=True),
        first=NumberAttribute(attr_name="prices[0]", null=True),
        note=UnicodeAttribute(attr_name="a.b", null=True),
        tags=ListAttribute(null=True),
        expires=TTLAttribute(null=True, attr_name="end[s]"),
        version=True,
        transaction_table=Transactions,
        **options,
    )


MODELS = {
    "versioned": named("Versioned", ExpiringMixin, VersionedMixin),
    "embedded": named("Embedded", ExpiringMixin, LockableMixin, lock=True),
    "beside": named("Beside", ExpiringMixin, LockableMixin, lock_table=Locks),
    "unique": named("UniquePrice", ExpiringMixin, LockableMixin, lock=True, unique=("price",), unique_table=Uniques),
}


def saved(item: Any) -> None:
    item.save()


def saved_unchecked(item: Any) -> None:
    item.save(add_version_condition=False)


def another(item: Any) -> Any:
    number = 7 + (item.version or 0)
    return type(item)(f"other {number}", price=number, tags=[1])


def in_batch(item: Any) -> None:
    with type(item).guarded_batch() as batch:
        batch.save(item)
        batch.save(another(item))


def transacted(item: Any) -> None:
    with TransactWrite(connection=item._get_connection().connection) as transaction_:
        transaction_.save(item)


def committed(item: Any) -> None:
    with transaction() as tx:
        tx.save(item)
        tx.save(another(item))


def modified(item: Any) -> None:
    def change(stored: Any) -> None:
        stored.price, stored.first, stored.note = item.price, item.first, item.note

    type(item).modify(item.pk, change, create=True)


def created(item: Any) -> None:
    if item.version is None:
        names = ("price", "first", "note", "expires", "tags")
        item.get_or_create(item.pk, defaults={name: getattr(item, name) for name in names})
    else:
        item.save()


def committed_long(item: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_long_from(patch)
        committed(item)


WAYS = [saved, saved_unchecked, in_batch, transacted, committed, committed_long, modified, created]
#: A save of unique values checks the version. What has no lock takes no intents.
NO_WAYS = [("unique", saved_unchecked), ("versioned", committed_long)]


@pytest.mark.parametrize(
    ("kind", "way"), [(kind, way) for kind in MODELS for way in WAYS if (kind, way) not in NO_WAYS]
)
def test_a_name_with_brackets(cheap: Engine, kind: str, way: Callable[[Any], None]) -> None:
    """It is stored under its whole name, by every way that saves, and removed by the next save."""
    model = MODELS[kind]
    cheap.bind(Locks, Uniques, Transactions, model)
    way(model("a", price=1, first=2, note="n", tags=[1], expires=timedelta(minutes=9)))
    raw = {name: next(iter(value.values())) for name, value in found(cheap, model, "a").items()}
    assert {name: raw[name] for name in ("price[EUR]", "prices[0]", "a.b")} == {
        "price[EUR]": "1",
        "prices[0]": "2",
        "a.b": "n",
    }
    item = model.get("a")
    item.price, item.first, item.note = 3, None, None
    way(item)
    item.refresh()
    assert (item.price, item.first, item.note) == (3, None, None)
    item.touch()
    item.delete()
    assert found(cheap, model, "a") == {}


def found(engine: Engine, model: Any, key: str) -> dict[str, Any]:
    table = model._get_connection().table_name
    answer = engine.client().get_item(TableName=table, Key={"key[0]": {"S": key}}, ConsistentRead=True)
    item: dict[str, Any] = answer.get("Item", {})
    return item


def in_transaction(item: Any, actions: list[Any]) -> None:
    with transaction() as tx:
        tx.update(tx.get(type(item), *keys_of(item)), actions)


def keys_of(item: Any) -> tuple[Any, ...]:
    return tuple(getattr(item, name) for name in (item._hash_keyname, item._range_keyname) if name)


def by(kind: Any) -> Callable[[Any, list[Any]], None]:
    def update(item: Any, actions: list[Any]) -> None:
        with kind(connection=item._get_connection().connection) as transaction_:
            transaction_.update(item, actions)

    return update


UPDATES: dict[str, Callable[[Any, list[Any]], object]] = {
    "update": lambda item, actions: item.update(actions),
    "update unchecked": lambda item, actions: item.update(actions, add_version_condition=False),
    "tx.update": in_transaction,
    "TransactWrite": by(TransactWrite),
    "PynamoDB's TransactWrite": by(StockTransactWrite),
}


#: PynamoDB's TransactWrite refuses what has a lock.
EACH_UPDATE = [(kind, way) for kind in MODELS for way in UPDATES if kind == "versioned" or "PynamoDB" not in way]


@pytest.mark.parametrize(("kind", "way"), [*EACH_UPDATE, ("interval", "update"), ("interval", "tx.update")])
def test_what_is_no_action(cheap: Engine, kind: str, way: str) -> None:
    """As `list.prepend()` without `set()`: PynamoDB's error, whatever the model has."""
    model = MODELS.get(kind, Slot)
    cheap.bind(Locks, SlotLocks, Uniques, Transactions, model)
    if model is Slot:
        item: Any = Slot("blue", 1, end=2)
        Slot.intervals.insert_disjoint([item])
        operand: Any = Slot.end + 1
    else:
        item = model("a", tags=[1])
        item.save()
        operand = model.tags.prepend([0])
    with pytest.raises(ValueError, match=f"unsupported action type: '{type(operand).__name__}'"):
        UPDATES[way](item, [operand])


@pytest.mark.parametrize(("kind", "way"), EACH_UPDATE)
def test_an_action_on_a_name_with_brackets(cheap: Engine, kind: str, way: str) -> None:
    """PynamoDB has no path to it: its own error."""
    model = MODELS[kind]
    cheap.bind(Locks, Uniques, Transactions, model)
    model("a", price=1).save()
    with pytest.raises(ValueError, match=r"price\[EUR\] is not a valid document path"):
        UPDATES[way](model.get("a"), [model.price.set(2)])
