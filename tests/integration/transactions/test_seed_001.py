"""What the text "From CD to ACID" gives, by its sections: locks of items that do not exist, and isolated reads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import transaction
from pynamo_locking.exceptions import ItemLocked
from pynamo_locking.transactions import Transaction
from tests.support.parties import in_thread
from tests.support.transaction_models import (
    Purse,
    RowLocks,
    Seat,
    locks_of_names,
    purses,
    rows_of,
)

if TYPE_CHECKING:
    from tests.engines.engine import Engine


def test_seed_001_no_contention_an_item_inserted_to_acquire_the_lock(engine: Engine) -> None:
    """A transient item: who locks it has its key alone, and a rollback leaves nothing of it."""
    engine.bind(Seat, RowLocks)
    tx, other = Transaction(), Transaction(wait=20)
    assert tx.get_or_none(Seat, "a", for_update=True) is None
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(other.get_or_none(Seat, "a", for_update=True)))
    thread.start()
    assert rows_of(Seat) == []
    tx.rollback()
    thread.join()
    in_thread(other.rollback)
    assert found == [None]
    assert rows_of(Seat) == []
    assert locks_of_names() == []


def test_seed_001_isolation_read_locks(engine: Engine) -> None:
    """A read transaction that is coded like a write and rolled back: no process writes what it reads meanwhile."""
    purses(2)
    reader = Transaction()
    total = sum(purse.balance for purse in reader.get_all(Purse, ["p0", "p1"], for_share=True) if purse is not None)

    def move() -> None:
        with transaction() as tx:
            for purse in tx.get_all(Purse, ["p0", "p1"]):
                assert purse is not None
                tx.update(purse, [Purse.balance.add(50 if purse.purse_id == "p0" else -50)])

    with pytest.raises(ItemLocked):
        in_thread(move)
    assert total == sum(purse.balance for purse in Purse.scan(consistent_read=True)) == 200
    reader.rollback()
    in_thread(move)
    assert [Purse.get(key).balance for key in ("p0", "p1")] == [150, 50]
