"""Models of all sorts, expiring, undeclared, large and many items take part in transactions."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import PutError, TransactWriteError

from pynamo_locking import transaction
from pynamo_locking.exceptions import ConfigurationError, Conflict
from pynamo_locking_testing import VirtualClock
from tests.support.models import key_of
from tests.support.transaction_helpers import Expecting, add_fillers
from tests.support.transaction_models import (
    Animal,
    Blob,
    Dog,
    Plain,
    Purse,
    Robot,
    RowLocks,
    Session,
    Sheet,
    Transactions,
    make_long_from,
    marked_rows,
    purses,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking.transactions import Transaction
    from tests.engines.engine import Engine


# Models of all sorts


def test_models_of_all_sorts(concurrent_engine: Engine, path: str) -> None:
    """Renamed attributes, range keys, number and binary keys, discriminators: created, updated, deleted."""
    concurrent_engine.bind(Sheet, Blob, Animal, Robot, RowLocks)
    makers: list[Callable[[int], Any]] = [
        lambda i: Sheet("f", i, body="b"),
        lambda i: Blob(bytes([i, 255]), data=b"d"),
        lambda i: Dog(f"dog{i}", tricks=i),
        lambda i: Robot(f"r{i}", total=i),
    ]
    count = {"single": 1, "native": 2, "long": 6}[path]
    changes: dict[type[Any], Any] = {
        Sheet: Sheet.body.set("changed"),
        Blob: Blob.data.set(b"changed"),
        Dog: Dog.tricks.set(99),
        Robot: Robot.total.set(99),
    }
    for make in makers[: 3 if path == "long" else 4]:
        items = [make(i) for i in range(count)]
        model = type(items[0])
        with transaction() as tx:
            for item in items:
                tx.save(item)
        with transaction() as tx:
            for item in items:
                found = tx.get(model, *key_of(item))
                assert type(found) is model
                tx.update(found, [changes[model]])
        for item in items:
            again = model.get(*key_of(item), consistent_read=True)
            assert type(again) is model
            assert again.version == 2
            assert again.serialize()[changes[model].values[0].path[0]] in (
                {"S": "changed"},
                {"B": b"changed"},
                {"N": "99"},
            )
        with transaction() as tx:
            for item in items:
                tx.delete(tx.get(model, *key_of(item)))
        assert rows_of(model) == []


def test_several_models_in_one(concurrent_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One long transaction of several tables is one: all or none of them change."""
    concurrent_engine.bind(Sheet, Plain, Robot, RowLocks)
    make_long_from(monkeypatch, 6)

    def fill(tx: Transaction, *, fails: bool) -> None:
        tx.save(Plain("a", value=1))
        tx.save(Robot("a", total=1))
        for i in range(4):
            tx.save(Purse(f"p{i}"))
            tx.save(Sheet("f", i), Sheet.body == "never" if fails and i == 3 else None)

    with pytest.raises(Conflict), transaction() as tx:
        fill(tx, fails=True)
    assert [rows_of(model) for model in (Plain, Robot, Purse, Sheet)] == [[], [], [], []]
    with transaction() as tx:
        fill(tx, fails=False)
        assert tx.plan().path == "long"
    assert [len(rows_of(model)) for model in (Plain, Robot, Purse, Sheet)] == [1, 1, 4, 4]


def test_models_without_a_place_for_a_mark(engine: Engine) -> None:
    """Up to 99 of their items can be part of a long transaction; more are refused before anything is written."""
    engine.bind(Plain)

    def fill(tx: Transaction, plain: int) -> None:
        for i in range(plain):
            tx.save(Plain(f"a{i}"))
        for i in range(3):
            tx.save(Purse(f"p{i}"))

    with pytest.raises(ConfigurationError, match="LockAttribute"), transaction() as tx:
        fill(tx, 100)
    assert rows_of(Plain) == rows_of(Purse) == rows_of(Transactions) == []
    with transaction() as tx:
        fill(tx, 99)
        assert tx.plan().path == "long"
    assert (len(rows_of(Plain)), len(rows_of(Purse))) == (99, 3)


def test_items_that_expire(cheap: Engine, path: str) -> None:
    """An expired item counts as absent: it is not read, and one that is made in its place has nothing of it."""
    cheap.bind(Session)
    with VirtualClock() as clock:
        for i in range(6):
            Session(f"s{i}", user="old", note="old", expires_at=timedelta(seconds=10)).save()
        clock.jump(100)
        count = {"single": 1, "native": 2, "long": 6}[path]
        for reads in (True, False):
            with transaction() as tx:
                for i in range(count):
                    assert not reads or tx.get_or_none(Session, f"s{i}") is None
                    tx.save(Session(f"s{i}", user="new", expires_at=timedelta(seconds=10)))
            for i in range(count):
                found = Session.get(f"s{i}", consistent_read=True)
                assert (found.user, found.note, found.version) == ("new", None, 1)
            clock.jump(100)
        assert marked_rows(Session) == []


def test_items_that_do_not_expire_yet(cheap: Engine, path: str) -> None:
    """Living items of a model whose items expire are updated and deleted as all others."""
    cheap.bind(Session)
    count = {"single": 1, "native": 2, "long": 6}[path]
    for i in range(count):
        Session(f"s{i}", user="u", expires_at=timedelta(days=2)).save()
    with transaction() as tx:
        for i in range(count):
            tx.update(tx.get(Session, f"s{i}"), [Session.note.set("n")])
    assert {(s.note, s.version) for s in Session.scan(consistent_read=True)} == {("n", 2)}
    with transaction() as tx:
        for i in range(count):
            tx.delete(tx.get(Session, f"s{i}"))
    assert rows_of(Session) == []


def add_undeclared(key: str) -> None:
    connection = Purse._get_connection()
    connection.connection.dispatch(
        "UpdateItem",
        {
            "TableName": connection.table_name,
            "Key": {"purse_id": {"S": key}},
            "UpdateExpression": "SET undeclared = :u",
            "ExpressionAttributeValues": {":u": {"S": "kept"}},
        },
    )


@pytest.mark.parametrize("outside", [False, True], ids=["read", "unread"])
def test_undeclared_attributes_survive(engine: Engine, path: str, *, outside: bool) -> None:
    """Attributes that a lockable model does not declare survive saves and updates, on every path."""
    count = {"single": 1, "native": 3, "long": 7}[path]
    purses(count)
    for i in range(count):
        add_undeclared(f"p{i}")
    with transaction() as tx:
        for i in range(count):
            item = Purse.get(f"p{i}") if outside else tx.get(Purse, f"p{i}")
            if i % 3 == 0:
                item.balance = 1
                tx.save(item)
            if i % 3 == 1:
                tx.update(item, [Purse.balance.set(1)])
            if i % 3 == 2:
                tx.save(item)
                tx.update(item, [Purse.balance.set(1)])
    for row in rows_of(Purse):
        assert (row["undeclared"], row["balance"]) == ({"S": "kept"}, {"N": "1"})


# Large items


def test_large_items(cheap: Engine, few: None) -> None:
    """Items too large for their mark beside them are staged by rows of their own, which are gone afterwards."""
    for text in ("a", "b"):
        with transaction() as tx:
            for i in range(6):
                item = tx.get_or_none(Purse, f"big{i}") or Purse(f"big{i}")
                item.note = text * 300_000
                tx.save(item)
            assert tx.plan().path == "long"
    assert {Purse.get(f"big{i}", consistent_read=True).note for i in range(6)} == {"b" * 300_000}
    assert [row["id"] for row in rows_of(Transactions) if "!" in row["id"]["S"]] == []
    assert marked_rows(Purse) == []


def test_more_than_a_native_transaction_holds(cheap: Engine) -> None:
    """Few items of more than 4 MB together take the long path."""
    with transaction() as tx:
        for i in range(14):
            tx.save(Purse(f"big{i}", note="x" * 300_000))
        assert tx.plan().path == "long"
    assert len(rows_of(Purse)) >= 1
    assert all(Purse.count(f"big{i}") for i in range(14))


@pytest.mark.parametrize(("size", "fits"), [(395_000, True), (408_000, True), (409_500, False)])
def test_items_at_the_limit_of_dynamodb(cheap: Engine, size: int, few: None, *, fits: bool) -> None:
    """Staged items of almost 400 KB are stored, or refused before anything is written."""
    with Expecting(None if fits else ConfigurationError), transaction() as tx:
        for i in range(6):
            tx.save(Purse(f"big{i}", note="x" * size))
    assert [Purse.count(f"big{i}") for i in range(6)] == [int(fits)] * 6
    assert fits or rows_of(Transactions) == []


def test_items_that_are_too_large_are_refused(cheap: Engine, path: str) -> None:
    """An item that DynamoDB would refuse is refused before anything is written, on every path."""
    with pytest.raises((ConfigurationError, TransactWriteError, PutError)), transaction() as tx:
        add_fillers(tx, path)
        tx.save(Purse("big", note="x" * 420_000))
    assert rows_of(Purse) == []
    assert marked_rows(Purse) == []


def test_real_numbers(cheap: Engine) -> None:
    """250 items without any lowered limit: all are written, once, and the header says finished."""
    with transaction() as tx:
        for i in range(250):
            tx.save(Purse(f"p{i}", balance=i))
        assert tx.plan().path == "long"
    assert sum(row["balance"]["N"] == str(int(row["purse_id"]["S"][1:])) for row in rows_of(Purse)) == 250
    assert Transactions.outcome(tx.id) == "finished"
    assert {row["version"]["N"] for row in rows_of(Purse)} == {"1"}


def test_items_that_expire_soon_get_no_mark(memory: Engine, few: None) -> None:
    """DynamoDB could delete one together with a mark that is decided: too many of them are refused, unwritten."""
    memory.bind(Session)
    for i in range(6):
        Session(f"s{i}", user="before", expires_at=timedelta(hours=1)).save()
    with pytest.raises(ConfigurationError, match="expire"), transaction(Transactions) as tx:
        for i in range(6):
            tx.update(tx.get(Session, f"s{i}"), [Session.user.set("after")])
    assert {session.user for session in Session.scan()} == {"before"}
