"""An instance is gone with the last name for it: no cycle of this package leaves it to the garbage collector."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import transaction
from tests.support.transaction_models import Purse, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


def edited() -> weakref.ref[Any]:
    with Purse.edit("a") as purse:
        purse.balance += 1
    return weakref.ref(purse)


def locked() -> weakref.ref[Any]:
    with Purse.locked("a") as lock:
        return weakref.ref(lock.item)


def committed() -> weakref.ref[Any]:
    with transaction() as tx:
        purse = tx.get(Purse, "a")
        purse.balance += 1
        tx.save(purse)
    return weakref.ref(purse)


@pytest.mark.parametrize("work", [edited, locked, committed])
def test_nothing_keeps_an_instance(memory: Engine, work: Callable[[], weakref.ref[Any]]) -> None:
    memory.bind(Purse, Transactions)
    Purse("a").save()
    assert work()() is None  # before the collector can have run
