"""Two classes of one table: an instance is handed out as one of the class that was asked for, or an error says so."""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pynamodb.attributes import DiscriminatorAttribute, NumberAttribute, UnicodeAttribute

from pynamo_locking import (
    LockableModel,
    LockAttribute,
    NamedLock,
    VersionAttribute,
    atransaction,
    locked_all,
    transaction,
)
from pynamo_locking.exceptions import ConfigurationError, StaleVersion
from tests.support.models import declare, meta
from tests.support.transaction_models import Transactions, stored
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

Locks = declare("Locks", NamedLock, table_name="class-locks")
OF_TRANSACTIONS: Any = {"transaction_table": Transactions, "guard_queries": "table"}


class Base(LockableModel):
    """Some of the attributes."""

    Meta = meta("items", **OF_TRANSACTIONS)

    group = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(range_key=True)
    total = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Apart(LockableModel):
    """All of the attributes."""

    Meta = meta("items", **OF_TRANSACTIONS)

    group = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(range_key=True)
    total = NumberAttribute(default=0)
    note = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Derived(Base):
    """All of the attributes, by inheritance."""

    note = UnicodeAttribute(null=True)


class Row(LockableModel, discriminator="row"):
    """A class with others below it, told apart by an attribute."""

    Meta = meta("rows", **OF_TRANSACTIONS)

    group = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(range_key=True)
    kind = DiscriminatorAttribute()
    total = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Order(Row, discriminator="order"):
    """One of them."""

    note = UnicodeAttribute(null=True)


class Address(Row, discriminator="address"):
    """Another one."""


class Machine(LockableModel):
    """The lock in a row of its own."""

    Meta = meta("machines", lock_table=Locks, **OF_TRANSACTIONS)

    group = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(range_key=True)
    total = NumberAttribute(default=0)
    version = VersionAttribute()


class Motor(LockableModel):
    """The same items, with more of their attributes."""

    Meta = meta("machines", lock_table=Locks, **OF_TRANSACTIONS)

    group = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(range_key=True)
    total = NumberAttribute(default=0)
    note = UnicodeAttribute(null=True)
    version = VersionAttribute()


class Pair(NamedTuple):
    """The class that has the item, and the one that is asked for, of which it is no instance."""

    first: Any
    second: Any


PAIRS = {
    "apart": Pair(Base, Apart),
    "the other way round": Pair(Apart, Base),
    "derived": Pair(Base, Derived),
    "lock in a row": Pair(Machine, Motor),
}
KEY = ("g", "1")


def bound(engine: Engine, pair: Pair) -> Pair:
    """Both in one table, in which the first one has stored an item."""
    engine.bind(Transactions, Locks, pair.first)
    engine.bind_to(pair.first.Meta.table_name, pair.second)
    pair.first(*KEY).save()
    return pair


@pytest.fixture(params=list(PAIRS.values()), ids=list(PAIRS))
def pair(request: pytest.FixtureRequest, cheap: Engine) -> Pair:
    return bound(cheap, request.param)


def named(pair: Pair) -> str:
    return f"as {pair.first.__name__}, and {pair.second.__name__} was asked for"


# In a transaction


def saved(tx: Any, model: Any) -> None:
    tx.save(model.get(*KEY, consistent_read=True))


def updated(tx: Any, model: Any) -> None:
    tx.update(model.get(*KEY, consistent_read=True), [model.total.add(1)])


def updated_unread(tx: Any, model: Any) -> None:
    tx.update(model(*KEY), [model.total.add(1)], add_version_condition=False)


FIRST: dict[str, Callable[[Any, Any], object]] = {
    "get": lambda tx, model: tx.get(model, *KEY),
    "get for update": lambda tx, model: tx.get(model, *KEY, for_update=True),
    "get_all": lambda tx, model: tx.get_all(model, [KEY]),
    "query": lambda tx, model: tx.query(model, "g"),
    "scan": lambda tx, model: tx.scan(model, at_most=9),
    "save": saved,
    "update": updated,
    "update, unread": updated_unread,
    "check": lambda tx, model: tx.check(model.get(*KEY, consistent_read=True)),
    "touch": lambda tx, model: tx.touch(model.get(*KEY, consistent_read=True)),
}
READS: dict[str, Callable[[Any, Any], Any]] = {
    "get": lambda tx, model: tx.get(model, *KEY),
    "get_or_none": lambda tx, model: tx.get_or_none(model, *KEY),
    "get for update": lambda tx, model: tx.get(model, *KEY, for_update=True),
    "get_all": lambda tx, model: tx.get_all(model, [("g", "0"), KEY])[1],
    "query": lambda tx, model: tx.query(model, "g")[0],
    "query with a limit": lambda tx, model: tx.query(model, "g", limit=1)[0],
    "scan": lambda tx, model: tx.scan(model, at_most=9)[0],
}


CASES = [*((first, "get") for first in FIRST), *(("get", read) for read in READS), ("save", "query"), ("save", "scan")]


@pytest.mark.parametrize(("first", "read"), CASES)
def test_an_item_of_a_transaction_has_one_class(pair: Pair, first: str, read: str) -> None:
    """What is set on an attribute that only the other class has would be lost."""
    with transaction() as tx:
        FIRST[first](tx, pair.first)
        mine = tx.get(pair.first, *KEY)
        with pytest.raises(ConfigurationError, match=named(pair)) as refused:
            READS[read](tx, pair.second)
        assert "with one class in this transaction" in str(refused.value)
        assert READS[read](tx, pair.first) is mine
    with transaction() as tx:
        item = READS[read](tx, pair.second)
        assert type(item) is pair.second
        item.total = 7
        tx.save(item)
    assert pair.first.get(*KEY, consistent_read=True).total == 7


@pytest.mark.core
def test_an_item_of_a_transaction_has_one_class_on_each_engine(engine: Engine) -> None:
    """The same, on every engine."""
    pair = bound(engine, PAIRS["apart"])
    with transaction() as tx:
        tx.get(Base, *KEY)
        with pytest.raises(ConfigurationError, match=named(pair)):
            tx.get(Apart, *KEY)
    with transaction() as tx:
        full = tx.get(Apart, *KEY)
        full.note = "kept"
        tx.save(full)
    assert stored(Base, *KEY)["note"] == {"S": "kept"}  # type: ignore[index]


def test_an_item_of_an_awaited_transaction_has_one_class(pair: Pair) -> None:
    """As the other one."""

    async def main() -> None:
        async with atransaction() as tx:
            await tx.get(pair.first, *KEY)
            with pytest.raises(ConfigurationError, match=named(pair)):
                await tx.get(pair.second, *KEY)

    asyncio.run(main())


def test_what_a_query_does_not_show_may_have_another_class(cheap: Engine) -> None:
    """Only what is handed out is judged: not what a filter or a limit leaves out, nor what is deleted."""
    bound(cheap, PAIRS["apart"])
    for name in ("2", "3"):
        Base("g", name).save()
    with transaction() as tx:
        tx.save(Base("g", "4", total=4))
        tx.delete(tx.get(Base, "g", "3"))
        assert [row.name for row in tx.query(Apart, "g", limit=2)] == ["1", "2"]
        assert [row.name for row in tx.query(Apart, "g", filter_condition=Apart.total < 4)] == ["1", "2"]
        with pytest.raises(ConfigurationError, match="as Base, and Apart was asked for"):
            tx.query(Apart, "g")


@pytest.mark.parametrize("read", [("get", *KEY), ("query", "g"), ("scan",)], ids=lambda read: read[0])
def test_what_no_caller_has_may_get_any_class(cheap: Engine, read: tuple[Any, ...]) -> None:
    """A query reads rows of other classes as well, where a filter tells them apart, and hands none of them out."""
    bound(cheap, PAIRS["apart"])
    operation, *arguments = read
    options = {"at_most": 9} if operation == "scan" else {}
    with transaction() as tx:
        start = tx.savepoint()
        assert tx.query(Base, "g", filter_condition=Base.total > 0) == []
        before = tx.savepoint()
        found = getattr(tx, operation)(Apart, *arguments, **options)
        full = found if operation == "get" else found[0]
        assert type(full) is Apart
        assert tx.get(Apart, *KEY) is full
        with pytest.raises(ConfigurationError, match="is in an open transaction"):
            full.save()
        full.note = "taken back"
        tx.save(full)
        before.rollback()
        assert tx.get(Apart, *KEY).note is None
        start.rollback()
        full = tx.get(Apart, *KEY)
        assert full.note is None
        full.note = "kept"
        tx.save(full)
        with pytest.raises(ConfigurationError, match="as Apart, and Base was asked for"):
            tx.get(Base, *KEY)
    assert Apart.get(*KEY, consistent_read=True).note == "kept"


def test_an_instance_of_a_subclass_is_one_of_the_base_class(cheap: Engine) -> None:
    """It has all attributes of the class that was asked for, and its own are kept."""
    bound(cheap, PAIRS["derived"])
    with transaction() as tx:
        full = tx.get(Derived, *KEY)
        full.note = "kept"
        tx.save(full)
        base = tx.get(Base, *KEY)
        assert base is full
        base.total = 7
        tx.save(base)
    again = Derived.get(*KEY, consistent_read=True)
    assert (again.total, again.note) == (7, "kept")


def test_what_is_written_keeps_its_class(cheap: Engine) -> None:
    """Also if no caller has the instance, since the write was given one that only names the item."""
    pair = bound(cheap, PAIRS["apart"])
    with transaction() as tx:
        assert tx.query(Base, "g", filter_condition=Base.total > 0) == []
        tx.update(Base(*KEY), [Base.total.add(1)], add_version_condition=False)
        with pytest.raises(ConfigurationError, match=named(pair)):
            tx.get(Apart, *KEY)
        assert tx.get(Base, *KEY).total == 1


def test_what_no_caller_has_gets_the_class_that_is_asked_for(cheap: Engine) -> None:
    """Not that of a query which has left it out: a row of another kind lacks what a subclass needs."""
    parcel: Any = declare("Parcel", Base, weight=NumberAttribute(), table_name="items")
    bound(cheap, Pair(Base, parcel))
    with transaction(isolation="read_committed") as tx:
        assert tx.query(parcel, "g", filter_condition=parcel.weight > 0) == []
        base = tx.get(Base, *KEY)
        assert type(base) is Base
        base.total = 7
        tx.save(base)
    assert Base.get(*KEY, consistent_read=True).total == 7


def test_a_save_in_another_class_than_was_read(pair: Pair) -> None:
    """The instance that is saved is the one from then on, and a save of the other one is refused."""
    with transaction() as tx:
        read = tx.get(pair.first, *KEY)
        other = pair.second.get(*KEY, consistent_read=True)
        other.total = 7
        tx.save(other)
        assert tx.get(pair.second, *KEY) is other
        read.total = 8
        with pytest.raises(StaleVersion):
            tx.save(read)
        if not issubclass(pair.second, pair.first):
            with pytest.raises(ConfigurationError, match="was asked for"):
                tx.get(pair.first, *KEY)
    assert pair.first.get(*KEY, consistent_read=True).total == 7


def test_an_absent_item_has_no_class(cheap: Engine) -> None:
    """Until it is saved; and a deleted one has none any more."""
    bound(cheap, PAIRS["apart"])
    with transaction() as tx:
        assert tx.get_or_none(Base, "g", "2") is None
        assert tx.get_or_none(Apart, "g", "2") is None
        made = Apart("g", "2", note="kept")
        tx.save(made)
        assert tx.get(Apart, "g", "2") is made
        with pytest.raises(ConfigurationError, match="as Apart, and Base was asked for"):
            tx.get(Base, "g", "2")
        tx.delete(tx.get(Base, *KEY))
        assert tx.get_or_none(Apart, *KEY) is None
        tx.save(Apart(*KEY, note="anew"))
    assert [row.note for row in Apart.query("g", consistent_read=True)] == ["anew", "kept"]


def test_a_class_that_the_instance_does_not_have(cheap: Engine) -> None:
    """An instance that only names the item is no instance of the class that the stored item names."""
    cheap.bind(Transactions, Locks, Row)
    cheap.bind_to(Row.Meta.table_name, Order, Address)
    Order(*KEY, note="kept").save()
    with pytest.raises(ConfigurationError, match="as Row, and Order was asked for"), transaction() as tx:
        tx.update(Row(*KEY), [Row.total.add(1)], add_version_condition=False)
        tx.get(Row, *KEY)
    assert Order.get(*KEY, consistent_read=True).note == "kept"


@pytest.mark.parametrize("models", [[Row], [Row, Order], [Order, Row], [Order]], ids=len)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_resumed_transaction_has_the_class_of_the_item(cheap: Engine, models: list[Any], is_new: bool) -> None:
    """Also of an item that it is to create, of which only the planned attributes name the class."""
    cheap.bind(Transactions, Locks, Row)
    cheap.bind_to(Row.Meta.table_name, Order, Address)
    if not is_new:
        Order(*KEY).save()
    with transaction() as tx:
        order = Order(*KEY) if is_new else tx.get(Order, *KEY)
        order.note = "kept"
        tx.save(order)
        id_ = tx.suspend()
    with transaction() as tx:
        tx.resume(id_, models)
        with pytest.raises(ValueError, match="Cannot instantiate a Address from the returned class: Order"):
            tx.get(Address, *KEY)
        assert type(tx.get(Row, *KEY)) is Order
        assert tx.get(Order, *KEY).note == "kept"
    assert Order.get(*KEY, consistent_read=True).note == "kept"


def test_a_resumed_transaction_has_one_class(cheap: Engine) -> None:
    """That of the model which is named for it."""
    pair = bound(cheap, PAIRS["apart"])
    with transaction() as tx:
        item = tx.get(Apart, *KEY)
        item.note = "kept"
        tx.save(item)
        id_ = tx.suspend()
    with transaction() as tx:
        tx.resume(id_, [Base, Apart])
        assert tx.get(Apart, *KEY).note == "kept"
        with pytest.raises(ConfigurationError, match="as Apart, and Base was asked for"):
            tx.get(Base, *KEY)
    with transaction() as tx:
        item = tx.get(Apart, *KEY)
        item.note = "again"
        tx.save(item)
        id_ = tx.suspend()
    with transaction() as tx:
        tx.resume(id_, [Base])
        with pytest.raises(ConfigurationError, match=named(pair)):
            tx.get(Apart, *KEY)
    assert Apart.get(*KEY, consistent_read=True).note == "again"


# In the blocks of a lock


def edit(model: Any, use: Callable[[Any], None]) -> None:
    with model.edit(*KEY, wait=0) as item:
        use(item)


def aedit(model: Any, use: Callable[[Any], None]) -> None:
    async def main() -> None:
        async with model.edit(*KEY, wait=0) as item:
            use(item)

    asyncio.run(main())


def locked(model: Any, use: Callable[[Any], None]) -> None:
    with model.locked(*KEY, wait=0) as lock:
        use(lock.item)


def locked_together(model: Any, use: Callable[[Any], None]) -> None:
    with locked_all(model.locked(*KEY), wait=0) as [lock]:
        use(lock.item)


def tried(model: Any, use: Callable[[Any], None]) -> None:
    with model.try_locked(*KEY) as lock:
        use(lock.item)


def locked_first(model: Any, use: Callable[[Any], None]) -> None:
    with model.locked_first([KEY]) as lock:
        use(lock.item)


def attached(model: Any, use: Callable[[Any], None]) -> None:
    token = model.locked(*KEY, wait=0).acquire().detach(lease=60)
    with model.attach(token) as lock:
        use(lock.item)


BLOCKS: dict[str, Callable[[Any, Callable[[Any], None]], None]] = {
    "edit": edit,
    "locked": locked,
    "locked_all": locked_together,
    "try_locked": tried,
    "locked_first": locked_first,
}
OUTER = {**BLOCKS, "attach": attached}


NESTED = [*((outer, "edit") for outer in OUTER), *(("edit", inner) for inner in BLOCKS), ("locked", "locked")]


@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_the_blocks_of_a_lock_have_one_class(pair: Pair, outer: str, inner: str) -> None:
    """They share an instance. The outer block goes on with it, and saves it."""

    def never(item: Any) -> None:
        raise AssertionError(item)

    def use(item: Any) -> None:
        with count_requests() as counted, pytest.raises(ConfigurationError, match=named(pair)) as refused:
            BLOCKS[inner](pair.second, never)
        assert "in every block" in str(refused.value)
        assert not counted.by_operation
        item.total = 7
        item.save()

    OUTER[outer](pair.first, use)
    assert pair.first.get(*KEY, consistent_read=True).total == 7
    BLOCKS[inner](pair.second, lambda item: item.update([pair.second.total.set(8)]))
    assert pair.first.get(*KEY, consistent_read=True).total == 8


def test_the_awaited_blocks_of_a_lock_have_one_class(pair: Pair) -> None:
    """As the others."""

    async def main() -> None:
        async with pair.first.edit(*KEY) as item:
            item.total = 7
            with pytest.raises(ConfigurationError, match=named(pair)):
                async with pair.second.edit(*KEY):
                    raise AssertionError
            with pytest.raises(ConfigurationError, match=named(pair)):
                async with pair.second.locked(*KEY) as lock:
                    await lock.aitem()

    asyncio.run(main())
    assert pair.first.get(*KEY, consistent_read=True).total == 7


@pytest.mark.core
def test_the_blocks_of_a_lock_have_one_class_on_each_engine(engine: Engine) -> None:
    """The same, on every engine."""
    pair = bound(engine, PAIRS["apart"])
    with Base.edit(*KEY) as base:
        base.total = 7
        with pytest.raises(ConfigurationError, match=named(pair)), Apart.edit(*KEY):
            pass
    with Apart.edit(*KEY) as full:
        full.note = "kept"
    image = stored(Base, *KEY)
    assert image is not None
    assert (image["total"], image["note"]) == ({"N": "7"}, {"S": "kept"})


@pytest.mark.parametrize("inner", BLOCKS)
@pytest.mark.parametrize("lock_table", [None, Locks], ids=["lock in the item", "lock in a row"])
def test_a_block_for_a_sibling_of_the_class(cheap: Engine, inner: str, lock_table: Any) -> None:
    """As PynamoDB's get says, inside a block for the item as well."""
    options: dict[str, Any] = {"lock": True} if lock_table is None else {"lock_table": lock_table}
    base: Any = declare("Kept", kind=DiscriminatorAttribute(), hash_key="group", version=True, **options)
    classes: list[Any] = [types.new_class(name, (base,), {"discriminator": name}) for name in ("One", "Other")]
    one, other = classes
    cheap.bind(Locks, base)
    cheap.bind_to(base.Meta.table_name, one, other)
    one("g").save()
    with base.edit("g") as item:
        assert type(item) is one
        with one.edit("g") as same:
            assert same is item
        with pytest.raises(ValueError, match="Cannot instantiate a Other from the returned class: One"):
            other.get("g")
        with pytest.raises(ValueError, match="Cannot instantiate a Other from the returned class: One"):
            {
                "edit": lambda: other.edit("g").__enter__(),
                "locked": lambda: other.locked("g").__enter__().item,
                "locked_all": lambda: locked_all(other.locked("g")).__enter__()[0].item,
                "try_locked": lambda: other.try_locked("g").__enter__().item,
                "locked_first": lambda: other.locked_first(["g"]).__enter__().item,
            }[inner]()


def test_a_subclass_in_an_outer_block(cheap: Engine) -> None:
    """The inner block is handed the instance of the subclass, and nothing of it is lost."""
    bound(cheap, PAIRS["derived"])
    with Derived.edit(*KEY) as full:
        full.note = "kept"
        with Base.edit(*KEY) as base:
            base.total = 7
    again = Derived.get(*KEY, consistent_read=True)
    assert (again.total, again.note) == (7, "kept")


def test_a_change_of_an_item_that_another_class_has_replaced(cheap: Engine) -> None:
    """The function is not handed the instance that came with the refusal: the item is no Order any more."""
    cheap.bind(Transactions, Row)
    cheap.bind_to(Row.Meta.table_name, Order, Address)
    Order(*KEY).save()
    seen = list[type[Any]]()

    def change(order: Any) -> None:
        seen.append(type(order))
        Order.get(*KEY, consistent_read=True).delete()
        with transaction() as tx:
            tx.save(Address(*KEY))
        order.note = "changed"

    with pytest.raises(ValueError, match="Cannot instantiate a Order from the returned class: Address"):
        Order.modify(*KEY, change)
    assert seen == [Order]
