"""`before_save` in every way to store an item as its instance shows it; and a model with a `save` of its own there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import LockableMixin, TransactWrite, atransaction, transaction
from pynamo_locking.exceptions import BatchError, ConfigurationError
from pynamo_locking.intervals import IntervalMixin
from tests.support.faults import count_requests
from tests.support.interval_models import Lease, Slot, SlotLocks, SlotTransactions
from tests.support.models import Account, Device, Locks
from tests.support.transaction_models import Plain, Purse, Session, Transactions, stored

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
    """Its begin, and another end."""
    begin, end = (getattr(row, name) for name in type(row).Meta.interval)
    return begin, end * 2


CALLS_SAVE: dict[str, Callable[[Any], object]] = {
    "save": lambda item: item.save(),
    "asave": lambda item: asyncio.run(item.asave()),
    "modify": modify,
    "modify combined": lambda item: modify(item, combine=True),
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
    "insert_disjoint": lambda row: type(row).insert_disjoint([row]),
    "ainsert_disjoint": lambda row: asyncio.run(type(row).ainsert_disjoint([row])),
    "tx.insert_disjoint": lambda row: insert_in(transaction(), row),
    "TransactWrite.insert_disjoint": lambda row: insert_in(by_ours(row), row),
    "move": lambda row: type(row).move(row, *moved(row)),
    "amove": lambda row: asyncio.run(type(row).amove(row, *moved(row))),
    "tx.move": lambda row: move_in(transaction(), row),
    "TransactWrite.move": lambda row: move_in(by_ours(row), row),
}
WAYS = CALLS_SAVE | OTHERS

# The models. Each has a kind of `note`.

KINDS: dict[str, tuple[type[Any], str, tuple[Any, ...], dict[str, Any]]] = {
    "versioned": (Plain, "value", ("a",), {}),
    "lock in the item": (Purse, "balance", ("a",), {}),
    "lock in the item, no version": (Account, "balance", ("a",), {}),
    "lock in a row": (Device, "total", ("a",), {}),
    "expiring": (Session, "note", ("a",), {}),
    "interval": (Slot, "note", ("a", 1), {"end": 2}),
    "interval, lock in the row": (Lease, "note", ("a", "b"), {"after": "c"}),
}


def can(kind: str, way: str) -> bool:
    """Tell whether a model of that kind can be saved so at all."""
    model, is_versioned = KINDS[kind][0], kind != "lock in the item, no version"
    is_interval = issubclass(model, IntervalMixin)
    if "move" in way or "insert" in way:
        return is_interval
    if way in ("modify", "modify combined", "tx.save", "tx.save awaited") and not is_versioned:
        return False
    return way not in ("edit", "locked") or issubclass(model, LockableMixin)


CASES = [pytest.param(kind, way, id=f"{way}-{kind}") for kind in KINDS for way in WAYS if can(kind, way)]


def declared(kind: str, **members: Any) -> Any:
    """A subclass with these members, in a table of its own."""
    base = KINDS[kind][0]
    meta = type("Meta", (base.Meta,), {"table_name": f"own-{base.Meta.table_name}"})
    return type("Own", (base,), {"Meta": meta, "__module__": __name__, **members})


@pytest.fixture
def tables(cheap: Engine) -> Engine:
    cheap.bind(Transactions, Locks, SlotLocks, SlotTransactions)
    return cheap


def arranged(model: Any, kind: str, way: str) -> Any:
    """The stored item, or a new row for a way that inserts."""
    _, _, keys, values = KINDS[kind]
    item = model(*keys, **values)
    if "insert" in way:
        return item
    model.off = True
    item.save()
    model.off = False
    return model.get(*keys, consistent_read=True)


def run(way: str, item: Any) -> Exception | None:
    """Save the item, and return the error of the write."""
    try:
        WAYS[way](item)
    except BatchError as error:
        return error.results[0].error
    except Exception as error:  # noqa: BLE001 - compared by the caller
        return error
    return None


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_before_save_is_called_once(tables: Engine, kind: str, way: str) -> None:
    """And what it sets is stored: it comes before the request is built."""
    name, calls = KINDS[kind][1], list[Any]()

    def before_save(self: Any) -> None:
        if not type(self).off:
            calls.append(keys_of(self))
            setattr(self, name, "7" if name == "note" else 7)

    model = tables.bind(declared(kind, before_save=before_save, off=False))
    item = arranged(model, kind, way)
    assert run(way, item) is None
    assert calls.count(keys_of(item)) == 1
    assert "7" in next(iter((stored(model, *keys_of(item)) or {})[model.get_attributes()[name].attr_name].values()))


class TooCheapError(Exception):
    """What a model of the tests raises."""


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_what_before_save_raises_keeps_the_item(tables: Engine, kind: str, way: str) -> None:
    """The caller gets it, and nothing of the item is written."""

    def before_save(self: Any) -> None:
        if not type(self).off:
            raise TooCheapError

    model = tables.bind(declared(kind, before_save=before_save, off=False))
    item = arranged(model, kind, way)
    before = stored(model, *keys_of(item))
    assert isinstance(run(way, item), TooCheapError)
    assert without_lock(stored(model, *keys_of(item))) == without_lock(before)


def without_lock(image: dict[str, Any] | None) -> dict[str, Any]:
    """A lock that was taken before, and given back, leaves an empty document."""
    return {name: value for name, value in (image or {}).items() if name != "lock"}


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_save_of_its_own_is_called_or_refused(tables: Engine, kind: str, way: str) -> None:
    """Never left out in silence."""
    calls = list[Any]()

    def save(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(keys_of(self))
        return super(model, self).save(*arguments, **options)

    model = tables.bind(declared(kind, save=save))
    item = arranged(model, kind, way)
    calls.clear()
    before = stored(model, *keys_of(item))
    with count_requests() as counted:
        error = run(way, item)
    if way in CALLS_SAVE:
        assert (error, calls.count(keys_of(item))) == (None, 1)
        return
    assert isinstance(error, ConfigurationError)
    assert "Own defines save(), which" in str(error)
    assert "before_save()" in str(error)
    assert not calls
    assert stored(model, *keys_of(item)) == before
    assert set(counted.by_operation) <= {"GetItem"}  # of the transaction's own read


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
    model.move(row, 1, 4)
    with pytest.raises(TooCheapError):
        model.move(row, 2, 8)
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
