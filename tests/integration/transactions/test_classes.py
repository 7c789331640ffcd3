"""Several classes under one hash key, told apart by a discriminator: a transaction shows what PynamoDB's reads show."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import DiscriminatorAttribute, NumberAttribute, UnicodeAttribute

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    TTLAttribute,
    VersionAttribute,
    atransaction,
    transaction,
)
from pynamo_locking.exceptions import ConfigurationError
from tests.support.models import meta
from tests.support.transaction_models import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


class Row(ExpiringMixin, LockableModel):
    """What a customer has."""

    Meta = meta("rows", transaction_table=Transactions, guard_queries="table")

    customer = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(range_key=True)
    kind = DiscriminatorAttribute(attr_name="k")
    total = NumberAttribute(default=0)
    expires = TTLAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Order(Row, discriminator="order"):
    """One class."""


class Express(Order, discriminator="express"):
    """A class of the class."""


class Address(Row, discriminator="address"):
    """Another class."""


class Entry(LockableModel):
    """A class of a table whose items name no class."""

    Meta = meta("entries", transaction_table=Transactions, guard_queries="table")

    book = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(range_key=True)
    version = VersionAttribute()


class Shown(Entry):
    """The same items, for a page."""


@pytest.fixture(autouse=True)
def _rows(cheap: Engine) -> None:
    """Two orders and an address of one customer, an expired address, and a row of a class that is not known here."""
    cheap.bind(Transactions, Row)
    for model in (Order, Express, Address):
        model._connection = None
    past = datetime.now(timezone.utc) - timedelta(hours=1)
    with transaction() as tx:
        for row in (Address("c", "1"), Order("c", "2"), Express("c", "3"), Address("c", "4", expires=past)):
            tx.save(row)
    image = {"customer": {"S": "c"}, "name": {"S": "5"}, "k": {"S": "invoice"}, "version": {"N": "1"}}
    cheap.client().put_item(TableName=Row._get_connection().table_name, Item=image)


def shown(found: Any) -> list[tuple[type[Any], str]]:
    return sorted(((type(row), row.name) for row in found), key=lambda each: each[1])


ORDERS = [(Order, "2"), (Express, "3")]
READS: dict[str, Callable[[Any, Any], Any]] = {
    "query": lambda tx, model: tx.query(model, "c"),
    "query in pages": lambda tx, model: tx.query(model, "c", page_size=1),
    "query with a limit": lambda tx, model: tx.query(model, "c", limit=2),
    "scan": lambda tx, model: tx.scan(model, at_most=20),
}


@pytest.mark.parametrize("isolation", ["serializable", "snapshot", "read_committed"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_rows_of_one_class(read: Callable[[Any, Any], Any], isolation: str) -> None:
    """As `Order.query` shows: orders and what is derived from them, and what the transaction has done to them."""
    assert shown(Order.query("c")) == ORDERS
    with transaction(isolation=isolation) as tx:
        assert shown(read(tx, Order)) == ORDERS
        assert shown(read(tx, Express)) == [(Express, "3")]
        assert shown(tx.query(Row, "c")) == [(Address, "1"), *ORDERS]
        assert shown(read(tx, Order)) == ORDERS
    with transaction() as tx:
        tx.save(Order("c", "0"))
        tx.save(Address("c", "6"))
        tx.delete(tx.get(Order, "c", "2"))
        assert shown(read(tx, Order)) == [(Order, "0"), (Express, "3")]
    assert shown(Row.query("c")) == [(Order, "0"), (Address, "1"), (Express, "3"), (Address, "6")]


@pytest.mark.parametrize("read", [READS["query"], READS["scan"]], ids=["query", "scan"])
def test_rows_of_one_class_awaited(read: Callable[[Any, Any], Any]) -> None:
    """As the other one."""

    async def main() -> None:
        async with atransaction() as tx:
            assert shown(await read(tx, Order)) == ORDERS

    asyncio.run(main())


GETS: dict[str, Callable[[Any, Any], Any]] = {
    "get": lambda tx, model: tx.get(model, "c", "1"),
    "get_or_none": lambda tx, model: tx.get_or_none(model, "c", "1"),
    "get_all": lambda tx, model: tx.get_all(model, [("c", "1"), ("c", "2")]),
    "for update": lambda tx, model: tx.get(model, "c", "1", for_update=True),
}
FIRST: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda tx: None,
    "got as a row": lambda tx: tx.get(Row, "c", "1"),
    "got as an address": lambda tx: tx.get(Address, "c", "1"),
    "queried": lambda tx: tx.query(Row, "c"),
    "queried as orders": lambda tx: tx.query(Order, "c"),
    "saved": lambda tx: tx.save(Row.get("c", "1")),
    "made anew": lambda tx: [tx.delete(Row.get("c", "1")), tx.save(Address("c", "1"))],
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
@pytest.mark.parametrize("get", GETS.values(), ids=GETS)
def test_an_item_of_another_class(first: Callable[[Any], Any], get: Callable[[Any, Any], Any]) -> None:
    """As `Order.get` says, whatever the transaction has read before."""
    with pytest.raises(ValueError, match="Cannot instantiate a Order from the returned class: Address"):
        Order.get("c", "1")
    with transaction() as tx:
        first(tx)
        with pytest.raises(ValueError, match="Cannot instantiate a Order from the returned class: Address"):
            get(tx, Order)
        assert [type(row) for row in tx.get_all(Row, [("c", "1"), ("c", "2"), ("c", "3")])] == [Address, Order, Express]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_rows_that_name_no_class(cheap: Engine, read: Callable[[Any, Any], Any]) -> None:
    """PynamoDB shows them in each class. A transaction leaves none out: it shows its instances, or refuses."""
    cheap.bind(Entry)
    Shown._connection = None
    with transaction() as tx:
        tx.save(Entry("c", "1"))
        tx.save(Entry("c", "3"))
    with transaction() as tx:
        tx.get(Shown, "c", "1")
        tx.save(Shown("c", "2"))
        tx.delete(tx.get(Shown, "c", "3"))
        assert [row.name for row in sorted(read(tx, Entry), key=lambda row: row.name)] == ["1", "2"]
    with transaction() as tx:
        tx.get(Entry, "c", "2")
        with pytest.raises(ConfigurationError, match="as Entry, and Shown was asked for"):
            read(tx, Shown)
    assert [row.name for row in Shown.query("c")] == ["1", "2"]
