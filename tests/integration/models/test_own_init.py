"""A model with an `__init__` of its own, which takes its key by another name: new instances are made as PynamoDB does.

PynamoDB makes an instance without a key, and sets the attributes afterwards.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute, VersionAttribute, transaction
from pynamo_locking.contrib.flask import etag
from pynamo_locking.contrib.starlette import if_match
from pynamo_locking_testing import concurrent_write
from tests.support.models import meta
from tests.support.transaction_models import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


class Order(LockableModel):
    """Keyword-only arguments, one of them required of everybody but PynamoDB."""

    Meta = meta("orders", transaction_table=Transactions)

    shop = UnicodeAttribute(hash_key=True, attr_name="pk")
    number = NumberAttribute(range_key=True, attr_name="sk")
    state = UnicodeAttribute(default_for_new="new")
    total = NumberAttribute(default=1)
    version = VersionAttribute()
    lock = LockAttribute()

    def __init__(self, *, reference: str = "", _user_instantiated: bool = True, **attributes: Any) -> None:
        if _user_instantiated and not reference:
            raise TypeError("an order has a reference")
        super().__init__(_user_instantiated=_user_instantiated, **attributes)


def add(order: Order) -> None:
    order.total = order.total + 1


def saved_by_transaction(look: Callable[[Any], object]) -> None:
    """A transaction that finds no item, and creates it."""
    with transaction() as tx:
        assert look(tx) in (None, [None])
        tx.save(Order(reference="r", shop="s", number=1, total=2))


def updated_with_another() -> None:
    with concurrent_write(Order, "s", 1):
        Order.modify("s", 1, add, create=True)


WAYS: dict[str, Callable[[], object]] = {
    "get_or_create": lambda: Order.get_or_create("s", 1, defaults={"total": 2}),
    "modify": lambda: Order.modify("s", 1, add, create=True),
    "get_or_none": lambda: saved_by_transaction(lambda tx: tx.get_or_none(Order, "s", 1)),
    "get_all": lambda: saved_by_transaction(lambda tx: tx.get_all(Order, [("s", 1)])),
    "concurrent_write": updated_with_another,
}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_a_new_item(cheap: Engine, make: Callable[[], object]) -> None:
    """It has its key, its defaults, and what was given."""
    cheap.bind(Order, Transactions)
    make()
    order = Order.get("s", 1)
    assert (order.shop, order.number, order.state, order.total) == ("s", 1, "new", 2)


def test_a_write_by_an_etag(cheap: Engine) -> None:
    """No item is read: an instance is made with the key and the version."""
    cheap.bind(Order)
    Order(reference="r", shop="s", number=1).save()
    request = SimpleNamespace(environ={"HTTP_IF_MATCH": f'"{etag(Order.get("s", 1))}"'})
    if_match(request, Order, "s", 1).update([Order.total.set(2)])
    assert Order.get("s", 1).total == 2


def test_defaults_with_another_name(cheap: Engine) -> None:
    """They are refused as PynamoDB refuses them, before the item is written."""
    cheap.bind(Order)
    with pytest.raises(ValueError, match="Attribute colour specified does not exist"):
        Order.get_or_create("s", 1, defaults={"colour": "red"})
    assert list(Order.scan()) == []
