"""Guarded queries find what a transaction has created that DynamoDB has decided, and not put in its place yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import VersionAttribute, VersionedMixin, transaction
from tests.support.interval_models import unapplied
from tests.support.models import meta
from tests.support.transaction_models import Entry, Transactions, dying_after, rows_of
from tests.support.wire import on

if TYPE_CHECKING:
    from tests.engines.engine import Engine


class Named(VersionedMixin, Model):
    """Items with long keys."""

    Meta = meta("named", guard_queries=True, transaction_table=Transactions)

    box = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(range_key=True)
    version = VersionAttribute()


@pytest.fixture(autouse=True)
def _tables(database: Engine) -> None:
    database.bind(Entry)


def create(*numbers: int) -> None:
    with transaction() as tx:
        for number in numbers:
            tx.save(Entry("b", number, amount=1))


def total() -> float:
    """What a transaction sees, which commits what it has seen."""
    with transaction() as tx:
        found = sum(entry.amount for entry in tx.query(Entry, "b"))
        tx.save(Entry("totals", 1, amount=found), add_version_condition=False)
    return found


@pytest.mark.parametrize("between", [0, 3, 12])
def test_a_query_waits_for_what_its_guard_names(between: int) -> None:
    """The guard shows a transaction whose items no query finds; however many others there were since."""
    with on("TransactGetItems").watch() as sent, unapplied(Entry):
        create(1, 2)
        assert rows_of(Entry) == []
        for i in range(between):
            create(10 + i)
        assert total() == 2 + between

    assert sent.hits >= 2


def test_a_guard_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was settled is named no more; without anything named, a query is one request less."""
    with transaction() as tx:
        assert tx.query(Entry, "b") == []
    for i in range(40):
        create(i)
    [guard] = [row for row in rows_of(Transactions) if row["id"]["S"].startswith("guard#")]

    assert 1 <= len([name for name in guard if name.startswith("touched#")]) <= 9
    assert total() == 40


def test_what_is_taken_back_is_not_counted() -> None:
    """A savepoint takes the guard back as well."""
    with transaction() as tx:
        before = tx.savepoint()
        tx.save(Entry("b", 1))
        before.rollback()
    assert rows_of(Entry) == rows_of(Transactions) == []


def test_a_query_waits_after_a_savepoint_was_rolled_back() -> None:
    """What is left of the transaction is named in the guard as if there had been no savepoint."""
    with unapplied(Entry), transaction() as tx:
        tx.save(Entry("b", 1, amount=1))
        before = tx.savepoint()
        tx.save(Entry("b", 2, amount=1))
        before.rollback()
    [guard] = rows_of(Transactions)
    named = [each for name, value in guard.items() if name.startswith("touched#") for each in value["L"]]
    assert any(number["N"] == "1" for each in named for number in each["M"].values())


def test_a_guard_stays_smaller_than_an_item_may_be(memory: Engine) -> None:
    """Long keys are settled and removed after fewer transactions than short ones."""
    memory.bind(Named)
    for round_ in range(6):
        with transaction() as tx:
            for i in range(90):
                tx.save(Named("b", f"{round_}-{i}-".ljust(1000, "x")))
    assert len(list(Named.query("b"))) == 540


def test_each_guard_settles_what_it_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one transaction is named in the guards of two hash keys: that it was settled for one says nothing."""
    with transaction() as tx:
        for book in "bc":
            tx.save(Entry(book, 1))
    with dying_after(monkeypatch, None) as process, transaction() as tx:
        for book in "bc":
            tx.query(Entry, book)
            reads = [kwargs["TransactItems"] for operation, kwargs in process.sent if operation == "TransactGetItems"]
            assert book in [get["Get"]["Key"].get("book", {"S": ""})["S"] for read in reads for get in read]
