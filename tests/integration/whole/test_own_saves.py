"""Every way to write an item: `before_save`; a `save`, `update` or `delete` of its own; an instance read in part."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex, IncludeProjection, KeysOnlyProjection
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import LockableMixin, LockableModel, TransactWrite, atransaction, transaction
from pynamo_locking.exceptions import BatchError, ConfigurationError
from pynamo_locking.intervals import IntervalMixin
from tests.support.interval_models import Slot, SlotLocks, SlotTransactions
from tests.support.models import Device, Locks
from tests.support.transaction_models import Plain, Purse, Transactions, existing, stored
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

# The ways. Each changes the item that was read, or stores a new one.


def by_transact(kind: Any) -> Callable[[Any], None]:
    def save(item: Any) -> None:
        with kind(connection=item._get_connection().connection) as actions:
            actions.save(item)

    return save


def batched(count: int, **options: bool) -> Callable[[Any], None]:
    """The items of one request are written by statements; a single one is not."""

    def save(item: Any) -> None:
        with type(item).guarded_batch(**options) as batch:
            batch.save(item)
            if count == 2:
                batch.save(another(item))

    return save


def another(item: Any) -> Any:
    """A new item with another hash key."""
    besides = {"version", "lock", item._hash_keyname}
    values = {name: value for name, value in item.attribute_values.items() if name not in besides}
    return type(item)("another", **values)


def unguarded(item: Any) -> None:
    with type(item).batch_write(unguarded=True) as batch:
        batch.save(item)


def modify(item: Any, **options: bool) -> None:
    type(item).modify(*keys_of(item), change=lambda _: None, **options)


def edit(item: Any) -> None:
    with type(item).edit(*keys_of(item), wait=0):
        pass


def locked(item: Any) -> None:
    with type(item).locked(*keys_of(item), wait=0) as lock:
        lock.item.save()


def in_transaction(item: Any) -> None:
    with transaction() as tx:
        tx.save(tx.get(type(item), *keys_of(item)))


def awaited(item: Any) -> None:
    async def main() -> None:
        async with atransaction() as tx:
            await tx.save(await tx.get(type(item), *keys_of(item)))

    asyncio.run(main())


def insert_in(tx: Any, row: Any) -> None:
    with tx as unit:
        unit.insert_disjoint(type(row), [row])


def move_in(tx: Any, row: Any) -> None:
    with tx as unit:
        unit.move(row, *moved(row))


def by_ours(row: Any) -> TransactWrite:
    return TransactWrite(connection=row._get_connection().connection)


def keys_of(item: Any) -> tuple[Any, ...]:
    return tuple(getattr(item, name) for name in (item._hash_keyname, item._range_keyname) if name is not None)


def moved(row: Any) -> tuple[Any, Any]:
    """Its begin, and another end than that of its kind."""
    [(_, begin, end)] = [(*keys, *values.values()) for base, _, keys, values in KINDS.values() if isinstance(row, base)]
    return begin, end * 2


CALLS_SAVE: dict[str, Callable[[Any], object]] = {
    "save": lambda item: item.save(),
    "asave": lambda item: asyncio.run(item.asave()),
    "modify": modify,
    "locked": locked,
    "batch of one": batched(1),
    "batch": batched(2),
}
OTHERS: dict[str, Callable[[Any], object]] = {
    "edit": edit,
    "tx.save": in_transaction,
    "tx.save awaited": awaited,
    "TransactWrite": by_transact(TransactWrite),
    "PynamoDB's TransactWrite": by_transact(StockTransactWrite),
    "batch in transactions": batched(1, transactions=True),
    "batch_write": unguarded,
    "insert_disjoint": lambda row: type(row).intervals.insert_disjoint([row]),
    "ainsert_disjoint": lambda row: asyncio.run(type(row).intervals.ainsert_disjoint([row])),
    "tx.insert_disjoint": lambda row: insert_in(transaction(), row),
    "TransactWrite.insert_disjoint": lambda row: insert_in(by_ours(row), row),
    "move": lambda row: type(row).intervals.move(row, *moved(row)),
    "amove": lambda row: asyncio.run(type(row).intervals.amove(row, *moved(row))),
    "tx.move": lambda row: move_in(transaction(), row),
    "TransactWrite.move": lambda row: move_in(by_ours(row), row),
}
WAYS = CALLS_SAVE | OTHERS

# The same for updates and deletes.


def update_of(item: Any) -> list[Any]:
    """What changes the item, but not its interval."""
    return [type(item).note.set("7")] if isinstance(item, Slot) else [getattr(type(item), number_of(item)).set(7)]


def number_of(item: Any) -> str:
    return next(name for base, name, _, _ in KINDS.values() if isinstance(item, base))


def in_transaction_of(kind: Any, change: Callable[[Any, Any], object]) -> Callable[[Any], None]:
    """Of a new TransactWrite of that class, or of a `transaction`."""

    def write(item: Any) -> None:
        with kind(connection=item._get_connection().connection) if isinstance(kind, type) else kind() as tx:
            change(tx, tx.get(type(item), *keys_of(item)) if kind is transaction else item)

    return write


def in_awaited_transaction(change: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    async def main(item: Any) -> None:
        async with atransaction() as tx:
            await change(tx, await tx.get(type(item), *keys_of(item)))

    return lambda item: asyncio.run(main(item))


def in_lock(change: Callable[[Any], object]) -> Callable[[Any], None]:
    def write(item: Any) -> None:
        with type(item).locked(*keys_of(item), wait=0) as lock:
            change(lock.item)

    return write


def in_edit(change: Callable[[Any], object]) -> Callable[[Any], None]:
    def write(item: Any) -> None:
        with type(item).edit(*keys_of(item), wait=0) as edited:
            change(edited)

    return write


def deleted_in_batch(count: int, **options: bool) -> Callable[[Any], None]:
    def delete(item: Any) -> None:
        other = another(item)
        other.save()
        with type(item).guarded_batch(**options) as batch:
            batch.delete(item)
            if count == 2:
                batch.delete(other)

    return delete


def deleted_unguarded(item: Any) -> None:
    with type(item).batch_write(unguarded=True) as batch:
        batch.delete(item)


def suspended(item: Any) -> None:
    with transaction() as tx:
        tx.delete(tx.get(type(item), *keys_of(item)))
        tx.suspend()


def to_another_key(move: Callable[[Any, Any, Any], object]) -> Callable[[Any], object]:
    return lambda row: move(row, 3, 4)


def move_by(tx: Any, row: Any, begin: Any, end: Any) -> None:
    with tx as unit:
        unit.move(row, begin, end)


CALLS_UPDATE: dict[str, Callable[[Any], object]] = {
    "update": lambda item: item.update(update_of(item)),
    "aupdate": lambda item: asyncio.run(item.aupdate(update_of(item))),
    "update locked": in_lock(lambda item: item.update(update_of(item))),
    "update in edit": in_edit(lambda item: item.update(update_of(item))),
}
OTHER_UPDATES: dict[str, Callable[[Any], object]] = {
    "tx.update": in_transaction_of(transaction, lambda tx, item: tx.update(item, update_of(item))),
    "tx.update awaited": in_awaited_transaction(lambda tx, item: tx.update(item, update_of(item))),
    "TransactWrite.update": in_transaction_of(TransactWrite, lambda tx, item: tx.update(item, update_of(item))),
    "PynamoDB's TransactWrite.update": in_transaction_of(
        StockTransactWrite, lambda tx, item: tx.update(item, update_of(item))
    ),
    "close_at": lambda row: type(row).intervals.close_at(row, 1.5),
    "aclose_at": lambda row: asyncio.run(type(row).intervals.aclose_at(row, 1.5)),
}
CALLS_DELETE: dict[str, Callable[[Any], object]] = {
    "delete": lambda item: item.delete(),
    "adelete": lambda item: asyncio.run(item.adelete()),
    "delete locked": in_lock(lambda item: item.delete()),
    "delete in edit": in_edit(lambda item: item.delete()),
    "delete in a batch of one": deleted_in_batch(1),
    "delete in a batch": deleted_in_batch(2),
}
OTHER_DELETES: dict[str, Callable[[Any], object]] = {
    "tx.delete": in_transaction_of(transaction, lambda tx, item: tx.delete(item)),
    "tx.delete awaited": in_awaited_transaction(lambda tx, item: tx.delete(item)),
    "tx.delete suspended": suspended,
    "TransactWrite.delete": in_transaction_of(TransactWrite, lambda tx, item: tx.delete(item)),
    "PynamoDB's TransactWrite.delete": in_transaction_of(StockTransactWrite, lambda tx, item: tx.delete(item)),
    "delete in a batch in transactions": deleted_in_batch(1, transactions=True),
    "batch_write.delete": deleted_unguarded,
    "move to another key": to_another_key(lambda row, *ends: type(row).intervals.move(row, *ends)),
    "amove to another key": to_another_key(lambda row, *ends: asyncio.run(type(row).intervals.amove(row, *ends))),
    "tx.move to another key": to_another_key(lambda row, *ends: move_by(transaction(), row, *ends)),
    "TransactWrite.move to another key": to_another_key(lambda row, *ends: move_by(by_ours(row), row, *ends)),
}

#: By the name of the method: the ways that call it, and those that do not.
METHODS = {
    "save": (CALLS_SAVE, OTHERS),
    "update": (CALLS_UPDATE, OTHER_UPDATES),
    "delete": (CALLS_DELETE, OTHER_DELETES),
}

# The models: a Put, an update, a transaction with the lock's row, an interval.

KINDS: dict[str, tuple[type[Any], str, tuple[Any, ...], dict[str, Any]]] = {
    "versioned": (Plain, "value", ("a",), {}),
    "lock in the item": (Purse, "balance", ("a",), {}),
    "lock in a row": (Device, "total", ("a",), {}),
    "interval": (Slot, "note", ("a", 1), {"end": 2}),
}


def can(kind: str, way: str) -> bool:
    """Tell whether a model of that kind can be saved so at all."""
    model = KINDS[kind][0]
    if "move" in way or "insert" in way or "close_at" in way:
        return issubclass(model, IntervalMixin)
    if "PynamoDB's TransactWrite" in way:
        return not issubclass(model, LockableMixin)
    if "suspended" in way and issubclass(model, IntervalMixin):
        return False
    return ("edit" not in way and "locked" not in way) or issubclass(model, LockableMixin)


CASES = [pytest.param(kind, way, id=f"{way}-{kind}") for kind in KINDS for way in WAYS if can(kind, way)]


def declared(kind: str, **members: Any) -> Any:
    """A subclass with these members, in a table of its own."""
    base = KINDS[kind][0]
    meta = type("Meta", (base.Meta,), {"table_name": f"own-{base.Meta.table_name}"})
    return type("Own", (base,), {"Meta": meta, "__module__": __name__, **members})


@pytest.fixture
def tables(memory: Engine) -> Engine:
    """In memory: whether the library calls a model's methods does not depend on the engine."""
    memory.bind(Transactions, Locks, SlotLocks, SlotTransactions)
    return memory


def arranged(model: Any, kind: str, way: str) -> Any:
    """The stored item, or a new row for a way that inserts."""
    _, _, keys, values = KINDS[kind]
    if "insert" in way:
        return model(*keys, **values)
    if stored(model, *keys) is None:
        model.off = True
        model(*keys, **values).save()
        model.off = False
    return model.get(*keys, consistent_read=True)


def run(save: Callable[[Any], object], item: Any) -> Exception | None:
    """Save the item, and return the error of the write."""
    try:
        save(item)
    except BatchError as error:
        return error.results[0].error
    except Exception as error:  # noqa: BLE001 - compared by the caller
        return error
    return None


class TooCheapError(Exception):
    """What a model of the tests raises."""


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_before_save_is_called_once(tables: Engine, kind: str, way: str) -> None:
    """What it raises keeps the item; what it sets is stored: it comes before the request is built."""
    name, calls = KINDS[kind][1], list[Any]()

    def before_save(self: Any) -> None:
        if type(self).off:
            return
        if type(self).refuses:
            raise TooCheapError
        calls.append(keys_of(self))
        setattr(self, name, "7" if name == "note" else 7)

    model = tables.bind(declared(kind, before_save=before_save, off=False, refuses=True))
    item = arranged(model, kind, way)
    before = stored(model, *keys_of(item))
    assert isinstance(run(WAYS[way], item), TooCheapError)
    assert without_lock(stored(model, *keys_of(item))) == without_lock(before)
    model.refuses = False
    item = arranged(model, kind, way)
    assert run(WAYS[way], item) is None
    assert calls.count(keys_of(item)) == 1
    assert "7" in next(iter((stored(model, *keys_of(item)) or {})[model.get_attributes()[name].attr_name].values()))


def without_lock(image: dict[str, Any] | None) -> dict[str, Any]:
    """A lock that was taken before, and given back, leaves an empty document."""
    return {name: value for name, value in (image or {}).items() if name != "lock"}


OWN = [
    pytest.param(kind, name, way, id=f"{way}-{kind}")
    for kind in KINDS
    for name, (calls, others) in METHODS.items()
    for way in calls | others
    if can(kind, way)
]


@pytest.mark.parametrize("is_later", [False, True], ids=["declared", "set later"])
@pytest.mark.parametrize(("kind", "name", "way"), OWN)
def test_a_method_of_its_own_is_called_or_refused(
    tables: Engine, kind: str, name: str, way: str, is_later: bool
) -> None:
    """Never left out in silence; also if something, such as a decorator of the class, has set it later."""
    seen = list[Any]()

    @functools.wraps(getattr(KINDS[kind][0], name))
    def own(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(keys_of(self))
        return getattr(super(model, self), name)(*arguments, **options)

    model = tables.bind(declared(kind, **({} if is_later else {name: own})))
    item = arranged(model, kind, way)
    if is_later:
        setattr(model, name, own)
    seen.clear()
    before = stored(model, *keys_of(item))
    calls, others = METHODS[name]
    with count_requests() as counted:
        error = run((calls | others)[way], item)
    if way in calls:
        assert (error, seen.count(keys_of(item))) == (None, 1)
        return
    assert isinstance(error, ConfigurationError)
    assert f"Own defines {name}(), which" in str(error)
    assert ("before_save()" if name == "save" else "another name") in str(error)
    assert not seen
    assert stored(model, *keys_of(item)) == before
    assert name != "save" or set(counted.by_operation) <= {"GetItem"}  # of the transaction's own read


@pytest.mark.parametrize("name", ["update", "delete"])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_another_method_of_its_own_is_in_no_way(tables: Engine, kind: str, way: str, name: str) -> None:
    """A save is none of its business. A row that keeps its key is not deleted."""
    model = tables.bind(declared(kind, **{name: lambda self, *_, **__: pytest.fail("was called")}))
    assert run(WAYS[way], arranged(model, kind, way)) is None


@pytest.mark.core
@pytest.mark.parametrize("name", ["update", "delete"])
def test_a_method_of_its_own_on_each_engine(engine: Engine, name: str) -> None:
    """A transaction refuses it, and touches and checks the item as before; alone it is called."""
    engine.bind(Transactions)
    model = engine.bind(declared("lock in the item", **{name: lambda self, *_, **__: "mine"}))
    model("a").save()
    with pytest.raises(ConfigurationError, match=rf"Own defines {name}\(\), which tx.{name}\(\) would not call"):
        in_transaction_of(transaction, lambda tx, item: getattr(tx, name)(item, *arguments_of(name, item)))(model("a"))
    item = model.get("a", consistent_read=True)
    assert getattr(item, name)() == "mine"
    with transaction() as tx:
        tx.touch(tx.get(model, "a"))
    assert existing(model, "a")["version"] == {"N": "2"}


def arguments_of(name: str, item: Any) -> tuple[Any, ...]:
    return (update_of(item),) if name == "update" else ()


@pytest.mark.parametrize("name", ["save", "delete"])
def test_a_batch_in_transactions_refuses_a_method_of_its_own_at_once(tables: Engine, name: str) -> None:
    """Where the item is added, and not when others may have been written."""
    model = tables.bind(declared("versioned", **{name: lambda self, *_, **__: None}))
    refused = pytest.raises(ConfigurationError, match=r"guarded_batch\(transactions=True\) would not call")
    with model.guarded_batch(transactions=True) as batch, refused:
        getattr(batch, name)(model("a"))
    assert batch.results == ()


def test_a_resumed_save_is_no_update_of_its_own(tables: Engine) -> None:
    """A transaction that was suspended has the attributes to set, whichever call has set them."""
    model = tables.bind(declared("lock in the item", update=lambda self, *_, **__: pytest.fail("was called")))
    model("a").save()
    with transaction() as tx:
        item = tx.get(model, "a")
        item.balance = 7
        tx.save(item)
        id_ = tx.suspend()
    with transaction() as tx:
        tx.resume(id_, [model])
    assert existing(model, "a")["balance"] == {"N": "7"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_replaces_one_of_ours(tables: Engine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """For all models at once, as some instrument them: it is none of ours, wherever it stands."""
    model = tables.bind(declared("lock in the item"))
    model("a").save()
    monkeypatch.setattr(LockableModel, name, getattr(LockableModel, name), raising=False)
    in_transaction_of(transaction, lambda tx, item: getattr(tx, name)(item, *arguments_of(name, item)))(model("a"))
    model("a").save(add_version_condition=False)
    monkeypatch.setattr(LockableModel, name, lambda self, *_, **__: None)
    with pytest.raises(ConfigurationError, match=f"Own defines {name}"):
        in_transaction_of(transaction, lambda tx, item: getattr(tx, name)(item, *arguments_of(name, item)))(model("a"))


def test_an_instance_with_a_method_of_its_own(tables: Engine) -> None:
    """What is set on the instance is looked up as Python does."""
    model = tables.bind(declared("lock in the item"))
    model("a").save()
    with pytest.raises(ConfigurationError, match="Own defines delete"), transaction() as tx:
        item = tx.get(model, "a")
        item.delete = lambda: None
        tx.delete(item)


def test_a_save_of_a_mixin_is_one_of_the_model() -> None:
    """Whoever of the users wrote it; one of PynamoDB or of this package is none."""

    class Priced:
        def save(self, *_: Any, **__: Any) -> None:
            raise NotImplementedError

    class Order(Priced, Purse):  # type: ignore[misc]
        pass

    with pytest.raises(ConfigurationError, match="Order defines save"):
        Order.edit("a")


def test_a_moved_row_shows_its_new_interval(tables: Engine) -> None:
    """`before_save` checks what will be stored, and the instance is what it was if that is refused."""
    seen = list[Any]()

    def before_save(self: Any) -> None:
        seen.append((self.begin, self.end))
        if self.end > 5:
            raise TooCheapError

    model = tables.bind(declared("interval", before_save=before_save))
    row = model("a", 1, end=2)
    row.save()
    model.intervals.move(row, 1, 4)
    with pytest.raises(TooCheapError):
        model.intervals.move(row, 2, 8)
    assert seen == [(1, 2), (1, 4), (2, 8)]
    assert (row.begin, row.end) == (1, 4)
    row.end = 5
    row.save()  # which is refused as a plain write first, and is then a move
    assert seen[3:] == [(1, 5)]


def test_update_touch_and_delete_are_no_saves(tables: Engine) -> None:
    """They store nothing that the instance shows."""
    calls = list[Any]()
    model = tables.bind(declared("versioned", before_save=lambda self, *_: calls.append(self)))
    item = model("a")
    item.save()
    item.update([model.value.set(1)])
    item.touch()
    with transaction() as tx:
        tx.update(tx.get(model, "a"), [model.value.set(2)])
    model.get("a", consistent_read=True).delete()
    assert calls == [item]


# Instances that were read in part.


def index(projection: Any) -> Any:
    Meta = type("Meta", (), {"projection": projection})  # noqa: N806
    return type("ByGroup", (GlobalSecondaryIndex,), {"Meta": Meta, "group": UnicodeAttribute(hash_key=True)})()


def of_index(index_name: str, names: Callable[[Any], Any] = lambda _: None) -> dict[str, Callable[[Any, Any], Any]]:
    def options(model: Any) -> dict[str, Any]:
        return {"index_name": index_name, "attributes_to_get": names(model), "include_expired": True}

    return {
        f"query {index_name}": lambda model, keys: of_keys(keys, model.query("g", **options(model))),
        f"query {index_name}, awaited": lambda model, keys: awaited_of_keys(keys, model.aquery("g", **options(model))),
        f"scan {index_name}": lambda model, keys: of_keys(keys, model.scan(**options(model))),
    }


def by_names(names: Callable[[Any], Any]) -> dict[str, Callable[[Any, Any], Any]]:
    return {
        "get": lambda model, keys: model.get(*keys, attributes_to_get=names(model)),
        "get, awaited": lambda model, keys: asyncio.run(model.aget(*keys, attributes_to_get=names(model))),
        "batch_get": lambda model, keys: next(
            model.batch_get([keys if len(keys) > 1 else keys[0]], attributes_to_get=names(model))
        ),
        "query": lambda model, keys: of_keys(keys, model.query(keys[0], attributes_to_get=names(model))),
        "scan": lambda model, keys: of_keys(keys, model.scan(attributes_to_get=iter(names(model)))),
    }


def of_keys(keys: tuple[Any, ...], found: Any) -> Any:
    return next(item for item in found if keys_of(item) == keys)


def awaited_of_keys(keys: tuple[Any, ...], found: Any) -> Any:
    async def main() -> Any:
        return of_keys(keys, [item async for item in found])

    return asyncio.run(main())


def keys_and_group(model: Any) -> list[Any]:
    """Names, and an attribute, of some of the attributes."""
    return [each.attr_name for each in model.get_attributes().values() if each.is_hash_key or each.is_range_key] + [
        model.group
    ]


def all_but_the_lock(model: Any) -> list[str]:
    """No save changes a lock."""
    return [each.attr_name for name, each in model.get_attributes().items() if name != "lock"]


IN_PART = {
    **by_names(keys_and_group),
    **of_index("keys_only"),
    **of_index("some"),
    **of_index("all", keys_and_group),
}
AS_A_WHOLE = {**by_names(all_but_the_lock), **of_index("all"), **of_index("enough")}


def grouped(kind: str) -> Any:
    """A subclass with indexes by a group, of which some have all attributes: each has the keys without naming them."""
    keys = {
        each.attr_name for each in KINDS[kind][0].get_attributes().values() if each.is_hash_key or each.is_range_key
    }
    enough = index(IncludeProjection([name for name in all_but_the_lock(KINDS[kind][0]) if name not in keys]))
    some, keys_only = index(IncludeProjection(["version"])), index(KeysOnlyProjection())
    indexes = {"keys_only": keys_only, "some": some, "enough": enough, "all": index(AllProjection())}
    return declared(kind, group=UnicodeAttribute(null=True), **indexes)


def given_to_a_transaction(item: Any) -> None:
    with transaction() as tx:
        tx.save(item)


READS_ITSELF = ("modify", "edit", "locked", "tx.save awaited")
#: The ways that save an instance which the caller has read.
OF_THE_CALLER = {way: save for way, save in WAYS.items() if way not in READS_ITSELF and "insert" not in way}
OF_THE_CALLER["tx.save"] = given_to_a_transaction


@pytest.mark.parametrize(("kind", "way"), [case for case in CASES if case.values[1] in OF_THE_CALLER])
def test_an_instance_that_was_read_in_part(memory: Engine, kind: str, way: str) -> None:
    """No way stores it: it would remove what the read has left out. Nothing is sent until it is refreshed."""
    memory.bind(Transactions, Locks, SlotLocks, SlotTransactions)
    model = memory.bind(grouped(kind))
    _, _, keys, values = KINDS[kind]
    model(*keys, group="g", **values).save()
    save = OF_THE_CALLER[way]
    for name, read in IN_PART.items():
        before, item = stored(model, *keys), read(model, keys)
        with count_requests() as counted:
            error = run(save, item)
        assert isinstance(error, ConfigurationError), name
        assert "refresh()" in str(error), name
        assert "batch" in way or not counted.by_operation, name
        assert stored(model, *keys) == before, name
    item.refresh(consistent_read=True)
    assert run(save, item) is None
    assert run(save, model.get(*keys, consistent_read=True)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_done_with_an_instance_that_was_read_in_part(tables: Engine, kind: str) -> None:
    """An update and a delete leave what it lacks alone, and an update brings it. What lacks nothing is saved."""
    model = tables.bind(grouped(kind))
    _, _, keys, values = KINDS[kind]
    model(*keys, group="g", **values).save()
    for name, read in AS_A_WHOLE.items():
        assert run(WAYS["save"], read(model, keys)) is None, name
    item = model.get(*keys, attributes_to_get=[*keys_and_group(model), "version"])
    item.update([model.group.set("h")])
    item.save()
    model.get(*keys, attributes_to_get=keys_and_group(model)).delete(add_version_condition=False)
    assert stored(model, *keys) is None
