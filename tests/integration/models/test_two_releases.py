"""An older process writes an item of a newer release, which has an attribute that its model does not declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking import LockableModel, transaction
from tests.support.models import Locks, declare
from tests.support.transaction_models import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

PLACES: Final[dict[str, dict[str, Any]]] = {
    "no lock": {"version": True},
    "lock in the item": {"version": True, "lock": True},
    "lock in a row": {"version": True, "lock_table": Locks},
}
OLDER: Final = {
    place: declare("Order", LockableModel, numbers="total", transaction_table=Transactions, **parts)
    for place, parts in PLACES.items()
}
NEWER: Final = {
    place: declare("Order", LockableModel, numbers="total", texts="note", transaction_table=Transactions, **parts)
    for place, parts in PLACES.items()
}


def save(model: Any, **options: Any) -> None:
    order = model.get("a")
    order.total = 1
    order.save(**options)


def save_inside(model: Any) -> None:
    with model.locked("a"):
        save(model)


def modify(model: Any) -> None:
    model.modify("a", lambda order: setattr(order, "total", 1))


def edit(model: Any) -> None:
    with model.edit("a") as order:
        order.total = 1


def update(model: Any) -> None:
    model.get("a").update([model.total.set(1)])


def save_in_batch(model: Any) -> None:
    order = model.get("a")
    order.total = 1
    with model.guarded_batch() as batch:
        batch.save(order)


def save_in_transaction(model: Any) -> None:
    with transaction() as tx:
        order = tx.get(model, "a")
        order.total = 1
        tx.save(order)


def update_in_transaction(model: Any) -> None:
    with transaction() as tx:
        tx.update(tx.get(model, "a"), [model.total.set(1)])


def save_unchecked(model: Any) -> None:
    save(model, add_version_condition=False)


WHOLE: Final = (save, save_inside, modify, edit, save_in_batch, save_in_transaction)
PARTS: Final = (update, update_in_transaction, save_unchecked)


@pytest.mark.parametrize(
    ("place", "write"),
    [
        (place, write)
        for place in PLACES
        for write in (*WHOLE, *PARTS)
        if place != "no lock" or write not in (edit, save_inside)
    ],
)
def test_an_attribute_that_only_the_newer_release_knows(
    cheap: Engine, place: str, write: Callable[[Any], None]
) -> None:
    """As `operate.md` says: with the lock in the item it is kept; otherwise a save drops it, as PynamoDB's does."""
    older, newer = OLDER[place], NEWER[place]
    cheap.bind(older, Locks, Transactions)
    cheap.bind_to(older.Meta.table_name, newer)
    newer("a", note="fragile").save()
    write(older)
    order = newer.get("a")
    assert order.total == 1
    assert order.note == (None if place != "lock in the item" and write in WHOLE else "fragile")
