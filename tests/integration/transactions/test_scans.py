"""Scans in a transaction show its own writes, notice what appears in the table, and have a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import atransaction, transaction
from pynamo_locking.exceptions import ConfigurationError, StaleVersion
from pynamo_locking.transactions import Transaction
from tests.support.deeds import dying_at
from tests.support.parties import in_thread
from tests.support.transaction_helpers import Expecting, units
from tests.support.transaction_models import Entry, Purse, Rate, Transactions, rows_of, survive

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


@pytest.fixture(autouse=True)
def _tables(database: Engine) -> None:
    database.bind(Rate)


def fill() -> None:
    with transaction() as tx:
        for i in range(4):
            tx.save(Rate("abcd"[i], i, price=i))


def rates(tx: Transaction, *conditions: Any, at_most: int = 10) -> list[tuple[str, int]]:
    return sorted((rate.zone, int(rate.since)) for rate in tx.scan(Rate, *conditions, at_most=at_most))


def test_a_scan_sees_own_writes(engine: Engine) -> None:
    """It shows what is stored with what the transaction has done: created, changed, deleted."""
    fill()
    with transaction() as tx:
        tx.save(Rate("x", 9, price=9))
        tx.delete(tx.get(Rate, "b", 1))
        tx.update(tx.get(Rate, "c", 2), [Rate.price.set(20)])
        assert rates(tx) == [("a", 0), ("c", 2), ("d", 3), ("x", 9)]
        assert rates(tx, Rate.price >= 9) == [("c", 2), ("x", 9)]
        assert tx.get(Rate, "c", 2) in tx.scan(Rate, at_most=4)
        assert len(tx.query(Rate, "c")) == 1
    assert Rate.count("b") == 0


def create() -> None:
    with transaction() as tx:
        tx.save(Rate("new", 5))


def delete() -> None:
    with transaction() as tx:
        tx.delete(tx.get(Rate, "d", 3))


def change() -> None:
    Rate.get("a", 0).save()


@pytest.mark.parametrize("does", [create, delete, change])
def test_a_scan_notices_what_appears_and_changes(engine: Engine, does: Callable[[], None]) -> None:
    """What is created or deleted anywhere in the table is noticed, and a change of what was found."""
    fill()
    with pytest.raises(StaleVersion), transaction() as tx:
        assert len(tx.scan(Rate, at_most=5)) == 4
        in_thread(does)
        tx.save(Purse("total"))
    assert rows_of(Purse) == []


def test_queries_of_a_guarded_table_share_its_guard(cheap: Engine) -> None:
    """A query notices what appears under another hash key as well: there is one row for all."""
    fill()
    for does in (change, create):
        with Expecting(StaleVersion if does is create else None), transaction() as tx:
            assert tx.query(Rate, "none") == []
            in_thread(does)
            tx.save(Purse("total"))


@pytest.mark.usefixtures("few")
def test_a_scan_finishes_what_a_dead_process_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its items are committed, and some of them still placeholders."""
    with dying_at(monkeypatch, "finish f"):
        assert not survive(fill_many)
    with transaction() as tx:
        assert [price for _, price in rates(tx)] == [0] * 6


def fill_many() -> None:
    with transaction() as tx:
        for zone in "abcdef":
            tx.save(Rate(zone, 0))


def test_a_scan_that_promises_too_much_is_refused(memory: Engine) -> None:
    """Without a guard of the table only weaker isolations scan; and none without a bound."""
    memory.bind(Entry)
    fill()
    with transaction() as tx:
        for model in (Entry, Purse):
            with pytest.raises(ConfigurationError, match=r'guard_queries = "table"'):
                tx.scan(model, at_most=5)
        for bound in (0, -1, None, 1.5):
            with pytest.raises(ConfigurationError, match="at_most"):
                tx.scan(Rate, at_most=bound)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="more than at_most=3 items"):
            tx.scan(Rate, at_most=3)
        assert len(tx.scan(Rate, at_most=4)) == 4
    Purse("p").save()
    with transaction(isolation="read_committed") as tx:
        assert [purse.purse_id for purse in tx.scan(Purse, at_most=1)] == ["p"]


async def test_tasks_scan_too() -> None:
    """With the same arguments."""
    fill()
    async with atransaction() as tx:
        assert len(await tx.scan(Rate, Rate.price > 1, at_most=4)) == 2


def test_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan reads one row beyond its bound at most; the guard is read once, and what it names."""
    with transaction() as tx:
        tx.scan(Rate, at_most=1)
    with Rate.batch_write(unguarded=True) as batch:
        for i in range(40):
            batch.save(Rate("a", i, version=1))
    tx = Transaction()
    requests, written, read = units(monkeypatch, lambda: tx.scan(Rate, at_most=100))
    assert (requests, written, read) == (2, 0, 1 + 1)
    assert units(monkeypatch, lambda: tx.scan(Rate, at_most=100))[0] == 1
    with pytest.raises(ConfigurationError):
        tx.scan(Rate, at_most=39)
    create()
    [guard] = [row for row in rows_of(Transactions) if row["id"]["S"].startswith("guard#")]
    assert guard["id"]["S"].endswith(Rate.Meta.table_name)
