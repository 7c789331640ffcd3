"""Queries in a transaction show its own writes, notice what appears, and promise no more than they keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import transaction
from pynamo_locking.exceptions import ConfigurationError, StaleVersion
from pynamo_locking.transactions import Transaction
from tests.support.parties import in_thread
from tests.support.transaction_helpers import Expecting, units
from tests.support.transaction_models import Entry, Purse, Sheet

if TYPE_CHECKING:
    from tests.engines.engine import Engine

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def _tables(database: Engine) -> None:
    database.bind(Entry)


def fill_entries() -> None:
    with transaction() as tx:
        for i in range(4):
            tx.save(Entry("b", i, amount=i))


def test_query_sees_own_writes(engine: Engine) -> None:
    """A query shows what is stored with what the transaction has done: created, changed, deleted."""
    fill_entries()
    with transaction() as tx:
        tx.save(Entry("b", 10, amount=10))
        tx.save(Entry("other", 11))
        tx.delete(tx.get(Entry, "b", 1))
        tx.update(tx.get(Entry, "b", 2), [Entry.amount.set(20)])

        def numbers(*conditions: Any, **options: Any) -> list[int]:
            return [int(item.number) for item in tx.query(Entry, "b", *conditions, **options)]

        assert numbers() == [0, 2, 3, 10]
        assert numbers(scan_index_forward=False) == [10, 3, 2, 0]
        assert numbers(Entry.number > 1) == [2, 3, 10]
        assert numbers(None, Entry.amount >= 10) == [2, 10]
        assert numbers(limit=2) == [0, 2]
        found = tx.query(Entry, "b")
        assert found[1] is tx.get(Entry, "b", 2)
    assert [int(item.number) for item in Entry.query("b")] == [0, 2, 3, 10]


@pytest.mark.parametrize(("count", "backwards"), [(100, False), (1000, True)])
def test_a_limited_query_reads_what_it_returns(
    cheap: Engine, monkeypatch: pytest.MonkeyPatch, count: int, backwards: bool
) -> None:
    """Rows after the last row of the result are no part of the transaction, and may change; rows before it may not."""
    with Entry.batch_write(unguarded=True) as batch:
        for i in range(count):
            batch.save(Entry("b", i, amount=i % 10, version=1))

    def fours(tx: Transaction) -> list[Entry]:
        return tx.query(Entry, "b", None, Entry.amount == 4, limit=2, scan_index_forward=not backwards)

    tx = Transaction()
    requests, _, read_units = units(monkeypatch, lambda: fours(tx))
    assert requests <= 1 + 4  # the guard, and pages of 2, 4, 8 and 16 rows
    assert read_units <= 5
    first, second = fours(tx)
    assert [first.number, second.number] == ([count - 6, count - 16] if backwards else [4, 14])
    step = -1 if backwards else 1
    in_thread(Entry.get("b", second.number + step).save)
    tx.touch(first)
    tx.commit()
    tx = Transaction()
    [first, _] = fours(tx)
    in_thread(Entry.get("b", second.number - step).save)
    tx.touch(first)
    with pytest.raises(StaleVersion):
        tx.commit()


def test_guarded_queries_notice_what_appears(engine: Engine) -> None:
    """To create or delete an item of the hash key makes the query's transaction fail; to update one does not."""
    fill_entries()

    def create() -> None:
        with transaction() as tx:
            tx.save(Entry("b", 5))

    def delete() -> None:
        with transaction() as tx:
            tx.delete(tx.get(Entry, "b", 5))

    def elsewhere() -> None:
        with transaction() as tx:
            tx.save(Entry("c", 5))

    for change, is_noticed in ((create, True), (delete, True), (elsewhere, False)):
        with Expecting(StaleVersion if is_noticed else None), transaction() as tx:
            total = sum(item.amount for item in tx.query(Entry, "b"))
            in_thread(change)
            tx.save(Entry("totals", 1, amount=total), add_version_condition=False)


def test_queries_that_promise_too_much_are_refused(memory: Engine) -> None:
    """Without guards only weaker isolations query; an index never."""
    memory.bind(Sheet)
    Sheet("f", 1).save()
    with transaction() as tx:
        with pytest.raises(ConfigurationError, match="guard_queries"):
            tx.query(Sheet, "f")
        with pytest.raises(ConfigurationError, match="index"):
            tx.query(Entry, "b", index_name="by-amount")
    with transaction(isolation="read_committed") as tx:
        [sheet] = tx.query(Sheet, "f", Sheet.number > 0, Sheet.body.does_not_exist())
        assert tx.query(Sheet, "f", Sheet.number > 1) == []
        tx.update(sheet, [Sheet.body.set("x")])
        assert tx.query(Sheet, "f", filter_condition=Sheet.body == "x") == [sheet]


def test_a_weaker_isolation_does_not_notice_what_appears(cheap: Engine) -> None:
    """Only what is written is checked: no other insert is in the way. An insert of its own is counted all the same."""
    cheap.bind(Purse)
    fill_entries()

    def insert(number: int) -> None:
        with transaction(isolation="read_committed") as tx:
            assert tx.query(Entry, "b")
            tx.save(Entry("b", number))

    for own in (Purse("total"), Entry("b", 8)):
        with transaction(isolation="read_committed") as tx:
            seen = len(tx.query(Entry, "b"))
            in_thread(lambda number=10 + seen: insert(number))
            tx.save(own)
    with pytest.raises(StaleVersion), transaction() as tx:
        assert len(tx.query(Entry, "b")) == seen + 2
        in_thread(lambda: insert(20))
        tx.save(Purse("last"))


def test_a_query_after_an_insert_is_guarded() -> None:
    """The guard row was counted without a check by the insert; the query relies on it."""
    Entry("l", 1).save()
    with pytest.raises(StaleVersion), transaction() as tx:
        tx.save(Entry("l", 2))
        assert len(tx.query(Entry, "l")) == 2
        with Transaction() as other:
            other.save(Entry("l", 3))
    assert Entry.count("l") == 2


@pytest.mark.parametrize("option", ["attributes_to_get", "last_evaluated_key", "index_name"])
def test_queries_read_whole_items(option: str) -> None:
    """A part of an item would be taken for all of it by the next save."""
    with transaction(isolation="read_committed") as tx, pytest.raises(ConfigurationError):
        tx.query(Entry, "l", **{option: ["amount"]})


def test_an_upsert_without_a_check_counts_in_the_guard() -> None:
    """It may create the item, which a query has to notice."""
    row = Entry("l", 1)
    row.save()
    Entry.get("l", 1).delete()
    with pytest.raises(StaleVersion), transaction() as tx:
        assert tx.query(Entry, "l") == []
        tx.save(Purse("noted"))
        with Transaction() as other:
            other.update(row, [Entry.amount.add(5)], add_version_condition=False)
