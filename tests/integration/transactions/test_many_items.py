"""Transactions of hundreds and thousands of items: requests counted, sizes kept, nothing sent in vain."""

from __future__ import annotations

import random
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import LockSettings, transaction
from pynamo_locking._core import transactions
from pynamo_locking._core.values import item_size
from pynamo_locking._io import batch_requests, transaction_record
from pynamo_locking._io.transaction_record import record_table_of
from pynamo_locking.exceptions import StaleVersion
from pynamo_locking.transactions import Transaction
from tests.support.parties import in_thread
from tests.support.transaction_helpers import units
from tests.support.transaction_models import (
    Purse,
    Session,
    Transactions,
    dying_after,
    make_long_from,
    marked_rows,
    rows_of,
    survive,
)
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from tests.engines.engine import Engine
    from tests.support.transaction_models import Process

pytestmark = pytest.mark.alone

SIZES = (101, *(pytest.param(count, marks=pytest.mark.slow) for count in (250, 1000)))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine sends nothing twice, and statements are not refused yet."""
    monkeypatch.setattr(Purse.Meta, "lock_settings", LockSettings(lease=120, request_timeout=15))
    monkeypatch.setattr(batch_requests, "_off_until_s", {})


def begin() -> Transaction:
    return Transaction(lease=3600, wait=3600)


def fill(count: int, note: str = "") -> list[str]:
    """Store so many purses, and return their keys."""
    keys = [f"p{i:05}" for i in range(count)]
    for start in range(0, count, 100):
        with transaction() as tx:
            for key in keys[start : start + 100]:
                tx.save(Purse(key, balance=1, note=note or None))
    return keys


def raise_all(tx: Transaction, keys: list[str]) -> None:
    for item in tx.get_all(Purse, keys):
        assert item is not None
        item.balance += 1
        tx.save(item)


# Placeholders


@pytest.mark.parametrize("count", SIZES)
def test_inserts(concurrent_engine: Engine, count: int) -> None:
    """Header, names, 99 placeholders at once, the decision, finishes by 25, the header: 1,000 in 51 requests."""
    tx = begin()
    for i in range(count):
        tx.save(Purse(f"n{i}", balance=1))
    with count_requests() as counted:
        tx.commit()
    staged = count - 99
    assert counted.total == 4 + -(-staged // 99) + -(-staged // 25)
    assert len(rows_of(Purse)) == count
    assert marked_rows(Purse) == []
    assert Transactions.outcome(tx.id) == "finished"


def test_what_is_in_the_way_of_one_placeholder(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired item is deleted, placeholders of a dead transaction are dropped, and all are created in the end."""
    memory.bind(Session)
    make_long_from(monkeypatch, 6)
    keys = [f"s{i:02}" for i in range(12)]
    dead = _saving(keys[:8])
    with dying_after(monkeypatch, 3):  # header, names, placeholders
        in_thread(lambda: survive(dead.commit))
    transaction_record.abort(record_table_of(Transactions), dead.id, "asked")
    assert len(marked_rows(Session)) == 3
    Session(keys[9], user="old", expires_at=datetime.now(timezone.utc) - timedelta(minutes=1)).save()
    _saving(keys).commit()
    assert {row["session_id"]["S"]: row["user"]["S"] for row in rows_of(Session)} == dict.fromkeys(keys, "new")
    assert marked_rows(Session) == []


def _saving(keys: list[str]) -> Transaction:
    tx = Transaction(lease=3600, wait=3600, workers=1)
    for key in keys:
        tx.save(Session(key, user="new"))
    return tx


def mixed(tx: Transaction, there: list[str]) -> None:
    """Insert, update, save, delete and check, in sizes from some bytes to some kilobytes."""
    generator = random.Random(len(there))
    for i, item in enumerate(tx.get_all(Purse, there)):
        assert item is not None
        if i % 5 == 0:
            tx.save(Purse(f"n{i}", note="y" * generator.randrange(1500)))
        elif i % 5 == 1:
            tx.update(item, [Purse.balance.add(1)])
        elif i % 5 == 2:
            item.note = "z" * generator.randrange(1, 3000)
            tx.save(item)
        elif i % 5 == 3:
            tx.delete(item)


@pytest.mark.parametrize("count", [130, *(pytest.param(count, marks=pytest.mark.slow) for count in (50, 250, 1000))])
def test_requests_of_all_kinds(dynoxide: Engine, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks, placeholders, checks before the decision, and finishes."""
    there = fill(count, "x" * 850)
    tx = begin()
    mixed(tx, there)
    plan = tx.plan()
    assert plan.path == ("native" if count == 50 else "long")
    assert units(monkeypatch, tx.commit)[0] == {50: 1, 130: 11, 250: 17, 1000: 64}[count]


# Sizes


def test_rows_of_changes(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit into a mark has a row, which is not read back by its own transaction.

    The requests: header, names, rows, marks together, decision, finishes, header, rows.
    """
    for i in range(14):
        Purse(f"p{i:05}", note="x" * 300_000).save()
    tx = begin()
    for i in range(14):
        item = tx.get(Purse, f"p{i:05}")
        item.note = "y" * 300_000
        tx.save(item)
    plan = tx.plan()
    assert len(plan.staged) == 2
    assert units(monkeypatch, tx.commit)[0] == 1 + 1 + 2 + 1 + 1 + 2 + 1 + 2
    assert {row["note"]["S"][0] for row in rows_of(Purse)} == {"y"}
    assert [row["id"]["S"] for row in rows_of(Transactions) if "!" in row["id"]["S"]] == []


def test_new_items_do_not_spill(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new item has nothing stored beside its mark; and large placeholders share a request as far as 4 MB go."""
    tx = begin()
    for i in range(26):
        tx.save(Purse(f"n{i:02}", note="y" * 300_000))
    plan = tx.plan()
    assert len(plan.staged) == 14
    assert units(monkeypatch, tx.commit)[0] == 1 + 1 + 2 + 1 + 14 + 1
    assert len(rows_of(Purse)) == 26


def test_names_fill_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of names exceeds what it may hold: so 9,000 short keys do not make one of more than 400 KB."""
    monkeypatch.setattr(transactions, "ROW_BYTES", 2000)
    monkeypatch.setattr(transactions, "MOST_BYTES_IN_ITEM", 10_000)
    monkeypatch.setattr("pynamo_locking._transactions.prepare.MOST_BYTES_IN_ITEM", 600)
    keys = fill(150, "x" * 200)
    tx = begin()
    for i, item in enumerate(tx.get_all(Purse, keys)):
        assert item is not None
        item.note = "y" * (20 if i % 2 else 400)
        tx.save(item)
    with count_requests() as counted:
        tx.commit()
    names = [row for row in rows_of(Transactions) if "#" in row["id"]["S"]]
    assert len(names) > 1
    assert max(item_size(row) for row in names) <= 2000 + 100
    assert max(item_size(row) for row in names) > 1700
    assert counted.total == 11


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thousands(memory: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """All or none of them; in requests, time and memory an item as a thousand."""
    count = 20_000
    keys = fill(count)
    tx = begin()
    raise_all(tx, keys)
    started = time.perf_counter()
    with count_requests() as counted:
        tx.commit()
    each_ms = (time.perf_counter() - started) / count * 1000
    with capsys.disabled():
        sys.stdout.write(f"\n{count:,} items: {counted.total:,} requests, {each_ms:.2f} ms each\n")
    assert counted.total < 4 + 2 * count / 25 + count / 3000
    assert {row["balance"]["N"] for row in rows_of(Purse)} == {"2"}
    assert marked_rows(Purse) == []


# Aborts


@pytest.mark.parametrize("is_new", [False, True], ids=["updates", "inserts"])
def test_an_abort_drops_what_was_begun(monkeypatch: pytest.MonkeyPatch, *, is_new: bool) -> None:
    """The first item is not the one that was read: no mark but those of its batch is dropped."""
    keys = fill(1 if is_new else 150)
    tx = Transaction(lease=3600, wait=3600, workers=1)
    if is_new:
        for i in range(250):
            tx.save(Purse(f"n{i:05}"))
    else:
        raise_all(tx, keys)
    first = tx.plan().staged[0]
    Purse(sorted(keys)[first] if not is_new else f"n{first:05}", balance=9).save(add_version_condition=False)
    with dying_after(monkeypatch, None) as process, pytest.raises(StaleVersion):
        tx.commit()
    assert [len(each) for each in _drops(process)] == ([] if is_new else [24])
    assert marked_rows(Purse) == []
    assert Transactions.outcome(tx.id) == "aborted"


def _drops(process: Process) -> list[list[Any]]:
    """The requests that drop marks: the statements of each, or the one write."""
    dropped = list[list[Any]]()
    for _, kwargs in process.sent:
        statements = [
            each
            for each in kwargs.get("Statements", [])
            if "MISSING" in each["Statement"] and "SET" not in each["Statement"]
        ]
        is_drop = "#tx.#id = :id" in kwargs.get("ConditionExpression", "")
        dropped.extend([statements] if statements else [[kwargs]] if is_drop else [])
    return dropped
