"""What models can be made of, and what their instances keep in copies and dictionaries."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from pynamodb.attributes import (
    BinaryAttribute,
    ListAttribute,
    MapAttribute,
    NumberAttribute,
    NumberSetAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
)
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    TransactWrite,
    TTLAttribute,
    VersionAttribute,
    VersionedMixin,
)
from pynamo_locking.exceptions import BatchError, StaleVersion
from tests.support.models import declare, meta
from tests.support.parties import shifted_clock
from tests.support.versioned_models import LOCKABLE, VERSIONED, connection_of, family, item_of


@pytest.fixture(autouse=True)
def _clock():
    """Ten days ahead of the engines: DynamoDB Local deletes what has expired by its own clock."""
    with shifted_clock() as clock:
        clock.shift = 864_000.0
        yield


FAMILIES = pytest.mark.parametrize("bases", [VERSIONED, LOCKABLE], ids=["free", "lockable"])


@FAMILIES
def test_polymorphic_models_share_one_inherited_version(cheap, bases):
    """Each class keeps its own type through all writes, and the version counts for all of them."""
    animal, cat, dog = cheap.bind(*family(bases))
    tables = {model: model.Meta.table_name for model in (animal, dog, cat)}
    assert len(set(tables.values())) == 1
    dog("rex").save()
    found = animal.get("rex")
    assert type(found) is dog
    found.update([dog.legs.set(3)])
    found.touch()
    with pytest.raises(StaleVersion) as caught:
        dog("rex").save()
    assert (type(caught.value.current), caught.value.actual) == (dog, 3)
    again = animal.modify("rex", change=lambda it: setattr(it, "legs", it.legs + 1))
    assert (type(again), again.legs, again.version) == (dog, 4, 4)
    with TransactWrite(connection=connection_of(animal)) as transaction:
        transaction.save(cat("tom"))
    assert {type(each) for each in animal.scan()} == {dog, cat}
    assert [each.pk for each in cat.scan()] == ["tom"]


@pytest.mark.parametrize("checks", [True, False])
@FAMILIES
def test_an_update_by_an_object_of_another_class_changes_nothing(cheap, bases, checks):
    """PynamoDB raises the same ValueError, after it has changed the item; ours is refused by DynamoDB."""
    animal, cat, dog = cheap.bind(*family(bases))
    dog("rex").save()
    before = item_of(cheap, animal, "rex")
    wrong = cat("rex")
    wrong.version = 1
    with pytest.raises(ValueError, match="Cannot update this item from the returned class"):
        wrong.update([animal.legs.set(3)], add_version_condition=checks)
    assert item_of(cheap, animal, "rex") == before
    animal.get("rex").update([dog.legs.set(4)], add_version_condition=checks)  # its own class passes
    before = item_of(cheap, animal, "rex")
    for kind in (TransactWrite, StockTransactWrite):
        with pytest.raises((ValueError, TransactWriteError)), kind(connection=connection_of(animal)) as transaction:
            transaction.update(wrong, [animal.legs.set(3)], add_version_condition=checks)
        assert item_of(cheap, animal, "rex") == before


class Address(MapAttribute):
    """A typed map."""

    street = UnicodeAttribute(attr_name="s")
    number = NumberAttribute(null=True)


class AllKinds(Model):
    """All kinds of attributes."""

    pk = UnicodeAttribute(hash_key=True)
    sk = NumberAttribute(range_key=True)
    text = UnicodeAttribute(null=True)
    amount = NumberAttribute(default=lambda: 7)
    fresh = UnicodeAttribute(default_for_new="new")
    names = UnicodeSetAttribute(default=set)
    numbers = NumberSetAttribute(null=True)
    data = BinaryAttribute(null=True, legacy_encoding=False)
    raw = MapAttribute(null=True)
    address = Address(null=True, attr_name="adr")
    several = ListAttribute(of=Address, default=list)
    version = VersionAttribute()


class Everything(VersionedMixin, AllKinds):
    """A save is a Put."""

    Meta = meta("everything")


class EverythingLocked(LockableModel, AllKinds):
    """The lock is in the item, so that a save is an update."""

    Meta = meta("everything-locked")

    lock = LockAttribute()


BOTH = pytest.mark.parametrize("model", [Everything, EverythingLocked])


FULL = {
    "text": "t\u00e4xt",
    "names": {"a", "b"},
    "numbers": {1, 2.5},
    "data": b"\x00\xff",
    "raw": {"deep": {"list": [1, "two", None, {"x": True}]}},
    "address": {"street": "High Street", "number": 3},
    "several": [{"street": "Low Street"}],
}


def _full() -> dict[str, Any]:
    return FULL | {"address": Address(**FULL["address"]), "several": [Address(**each) for each in FULL["several"]]}


def _values(item: Any) -> dict[str, Any]:
    """Return what an item has, without its lock and its version; a set has no order."""
    return {name: _in_order(value) for name, value in item.serialize().items() if name not in ("lock", "version")}


def _in_order(value: dict[str, Any]) -> dict[str, Any]:
    return {kind: sorted(each) if kind in ("SS", "NS", "BS") else each for kind, each in value.items()}


def _item(engine: Any, model: type[Any]) -> dict[str, Any]:
    """The item "a", 1, as DynamoDB has it."""
    key = {"pk": {"S": "a"}, "sk": {"N": "1"}}
    item: dict[str, Any] = engine.client().get_item(TableName=model.Meta.table_name, Key=key, ConsistentRead=True)[
        "Item"
    ]
    return item


def _save_alone(item: Any, checks: bool) -> None:
    item.save(add_version_condition=checks)


def _save_in_transaction(item: Any, checks: bool) -> None:
    with TransactWrite(connection=connection_of(type(item))) as transaction:
        transaction.save(item, add_version_condition=checks)


def _save_in_batch(item: Any, checks: bool) -> None:
    with type(item).guarded_batch() as batch:
        batch.save(item, add_version_condition=checks)


SAVES = (_save_alone, _save_in_transaction, _save_in_batch)


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("save", SAVES)
@BOTH
def test_every_kind_of_attribute_survives_a_save_and_an_empty_one_is_removed(engine, model, save, checks):
    """Also where the save is an UpdateItem: an empty set and a None leave nothing behind."""
    engine.bind(model)
    item = model("a", 1, **_full())
    save(item, checks)
    found = model.get("a", 1, consistent_read=True)
    assert _values(found) == _values(item)
    assert (found.fresh, found.amount, found.version) == ("new", 7, 1)
    assert found.raw.as_dict() == FULL["raw"]
    for name in ("text", "names", "numbers", "data", "raw", "address"):
        setattr(found, name, None if name != "names" else set())
    found.several = []
    save(found, checks)
    stored = _item(engine, model)
    assert set(stored) - {"lock"} == {"pk", "sk", "amount", "fresh", "several", "version", "version_write_id"}
    again = model.get("a", 1, consistent_read=True)
    assert (again.names, again.several, again.version) == (set(), [], 2)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("checks", [True, False])
@BOTH
def test_a_required_attribute_without_a_value_is_refused_before_anything_is_sent(memory, model, save, checks):
    """As PynamoDB does; the stored item is what it was."""
    memory.bind(model)
    item = model("a", 1)
    item.save()
    before = _item(memory, model)
    item.amount = None
    with pytest.raises((ValueError, BatchError), match="cannot be None"):
        save(item, checks)
    assert _item(memory, model) == before
    assert item.version == 1


Bare = declare("Bare", VersionedMixin, hash_key="pk", range_key="sk", version=True)
BareLocked = declare("BareLocked", hash_key="pk", range_key="sk", lock=True)
BareExpiring = declare("BareExpiring", ExpiringMixin, hash_key="pk", range_key="sk", expires=TTLAttribute(null=True))


@pytest.mark.parametrize("model", [Bare, BareLocked, BareExpiring])
def test_models_of_keys_only_can_be_saved_changed_and_deleted(cheap, model):
    """There is always something that DynamoDB takes as a write."""
    cheap.bind(model)
    item = model("a", 1)
    item.save()
    item.save()
    with TransactWrite(connection=connection_of(model)) as transaction:
        transaction.save(item)
    item.refresh()
    item.delete()
    assert list(model.query("a")) == []


@pytest.mark.parametrize("make", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
@BOTH
def test_a_copy_knows_as_much_as_the_instance(cheap, model, make):
    """It has the write id: so it is refused over an item that was deleted and made again."""
    cheap.bind(model)
    model("a", 1, **_full()).save()
    item = model.get("a", 1)
    first, second = make(item), make(item)
    first.save()
    assert first.version == 2
    with pytest.raises(StaleVersion):
        second.save()
    old = make(first)
    first.delete()
    for _ in range(2):
        item = next(iter(model.query("a")), None) or model("a", 1)
        item.save()
    assert item.version == old.version
    with pytest.raises(StaleVersion) as caught:
        old.save()
    assert (caught.value.expected, caught.value.actual) == (2, 2)
