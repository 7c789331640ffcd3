"""`Transaction.get_all`: many items in few requests, each as `get_or_none` would return it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import GetError

from pynamo_locking import transaction, transactional
from pynamo_locking.exceptions import ConfigurationError, InvalidInput
from pynamo_locking.transactions import Transaction
from tests.support.deeds import die_at
from tests.support.parties import in_parallel
from tests.support.statements import answering
from tests.support.transaction_helpers import units
from tests.support.transaction_models import (
    Blob,
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
)
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking_testing import VirtualClock
    from tests.engines.engine import Engine

ISOLATIONS = ["serializable", "snapshot", "read_committed"]


def test_a_hundred_items_are_read_changed_and_committed_in_two_requests(concurrent_engine: Engine) -> None:
    """One BatchGetItem, one TransactWriteItems."""
    keys = [f"p{i:02}" for i in range(100)]
    with transaction() as tx:
        for key in keys:
            tx.save(Purse(key, balance=1))
    with count_requests() as counted:
        double(keys)
    assert counted.by_operation == {"BatchGetItem": 1, "TransactWriteItems": 1}
    assert {int(item.balance) for item in Purse.batch_get(keys, consistent_read=True)} == {2}


@transactional()
def double(tx: Transaction, keys: list[str]) -> None:
    for item in tx.get_all(Purse, keys):
        assert item is not None
        item.balance *= 2
        tx.save(item)


def test_it_costs_a_request_for_a_hundred_items_and_the_units_of_single_reads(
    dynoxide: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No unit more, absent or not; nothing for what was read before; and the plan is as after single reads."""
    purses(9)
    for isolation, count in (("serializable", 105), ("snapshot", 20), ("read_committed", 20)):
        tx, single = Transaction(isolation=isolation), Transaction(isolation=isolation)
        keys = [f"p{i}" for i in range(count)]

        def read(tx: Transaction = tx, keys: list[str] = keys) -> None:
            assert [key for key, item in zip(keys, tx.get_all(Purse, keys), strict=True) if item] == keys[:9]

        assert units(monkeypatch, read) == (-(-count // 100), 0, count)
        assert units(monkeypatch, read) == (0, 0, 0)
        for key in keys[:20]:
            single.get_or_none(Purse, key)
        assert single.plan() == tx.plan() or count > 100


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_items_come_in_the_order_of_the_keys(isolation: str) -> None:
    """Absent ones are None; the same key twice is one instance, the same as that of get; with the changes made."""
    purses(3)
    with transaction(isolation=isolation) as tx:
        second = tx.get(Purse, "p1")
        found = tx.get_all(Purse, iter(["p2", "none", "p1", "p0", "p2", "none"]))
        assert [item and item.purse_id for item in found] == ["p2", None, "p1", "p0", "p2", None]
        assert found[2] is second
        assert found[0] is found[4] is tx.get(Purse, "p2")
        assert tx.get_all(Purse, []) == []
        if isolation != "snapshot":
            second.balance = 7
            tx.save(second)
            tx.delete(tx.get(Purse, "p2"))
            tx.save(Purse("none", balance=8))
            seen = tx.get_all(Purse, ["none", "p1", "p2"])
            assert [item and item.balance for item in seen] == [8, 7, None]


def test_keys_of_every_kind(memory: Engine) -> None:
    """A range key stands in a tuple; numbers and bytes are keys; an item that has expired is absent."""
    memory.bind(Sheet, Blob, Plain, RowLocks, Robot, Session)
    with transaction() as tx:
        for number in (1, 2.5):
            tx.save(Sheet("a", number, body=str(number)))
        tx.save(Blob(b"\xff", data=b"1"))
        tx.save(Plain("p", value=1))
        tx.save(Robot("r", total=1))
        tx.save(Session("old", expires_at=timedelta(seconds=-5)))
        tx.save(Session("new"))
    with transaction() as tx:
        sheets = tx.get_all(Sheet, [("a", 2.5), ["a", 1], ("a", 1.0), ("b", 1)])
        assert [sheet and sheet.body for sheet in sheets] == ["2.5", "1", "1", None]
        assert sheets[1] is sheets[2]
        assert [blob and blob.data for blob in tx.get_all(Blob, [b"\xff", b"\x00"])] == [b"1", None]
        assert [plain and plain.value for plain in tx.get_all(Plain, ["p", "q"])] == [1, None]
        assert [robot and robot.total for robot in tx.get_all(Robot, ["q", "r"], for_update=True)] == [None, 1]
        assert [session is None for session in tx.get_all(Session, ["old", "new"])] == [True, False]


@pytest.mark.parametrize(
    ("model", "keys", "told"),
    [
        (Sheet, ["ab"], "takes \\(hash key, range key\\)"),
        (Sheet, [("a", 1, 2)], "takes \\(hash key, range key\\)"),
        (Purse, [("a", 1)], "hash key of Purse"),
        (Purse, [None], "a value is needed"),
        (RowLocks, ["a"], "VersionAttribute"),
    ],
)
def test_what_is_no_key_is_refused(memory: Engine, model: Any, keys: list[Any], told: str) -> None:
    """Before any request; and nothing is left in the transaction."""
    memory.bind(Sheet)
    tx = Transaction()
    with pytest.raises((ConfigurationError, InvalidInput), match=told):
        tx.get_all(model, keys)
    assert tx.plan().path == "nothing"
    tx.rollback()
    with pytest.raises(ConfigurationError, match="has ended"):
        tx.get_all(Purse, ["a"])


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
def test_the_commit_checks_what_was_read(isolation: str) -> None:
    """Items and absences, as after get_or_none."""
    for changed in ("p0", "none"):
        purses(2)
        Purse("none").delete(add_version_condition=False)
        tx = Transaction(isolation=isolation)
        tx.get_all(Purse, ["p0", "p1", "none"])
        Purse(changed).update([Purse.balance.set(1)], add_version_condition=False)
        with pytest.raises(Exception, match="version") as caught:
            tx.commit()
        assert type(caught.value).__name__.startswith("StaleVersion")
        Purse("p0").delete(add_version_condition=False)
        Purse("p1").delete(add_version_condition=False)


# What DynamoDB leaves out


@contextmanager
def stingy(monkeypatch: pytest.MonkeyPatch, most: Callable[[int], int]) -> Iterator[list[int]]:
    """Answer so many keys of each BatchGetItem, by its number; yields how many were asked for."""
    numbers = list[int]()

    def answer(send: Any, kwargs: Any) -> Any:
        [(table, asked)] = kwargs["RequestItems"].items()
        keys = asked["Keys"]
        numbers.append(len(keys))
        served = most(len(numbers))
        left = {table: {**asked, "Keys": keys[served:]}} if keys[served:] else {}
        if not served:
            return {"Responses": {}, "UnprocessedKeys": left}
        return {**send({"RequestItems": {table: {**asked, "Keys": keys[:served]}}}), "UnprocessedKeys": left}

    with answering(monkeypatch, answer, "BatchGetItem"):
        yield numbers


def test_keys_that_were_left_out_are_asked_for_again(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those, at once the first time, then after pauses; also when the time to wait is over, while some come."""
    purses(7)
    keys = [f"p{i}" for i in range(8)]
    with stingy(monkeypatch, lambda request: 2 if request % 2 else 0) as asked, transaction(wait=30) as tx:
        assert [item and item.purse_id for item in tx.get_all(Purse, keys)] == [*keys[:7], None]
    assert asked == [8, 6, 6, 4, 4, 2, 2]
    assert 0 < clock.elapsed < 10
    with stingy(monkeypatch, lambda request: 3) as asked, transaction(wait=0) as tx:
        assert [item and item.purse_id for item in tx.get_all(Purse, keys)] == [*keys[:7], None]
    assert asked == [8, 5, 2]


def test_an_engine_that_is_too_busy_until_the_end(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the error of a single read that was throttled, once `wait` is over; nothing takes part then."""
    purses(3)
    tx, few_keys = Transaction(wait=5), stingy(monkeypatch, lambda request: 1 if request == 1 else 0)
    with few_keys as asked, pytest.raises(GetError, match=r"2 items of .*a retry is safe") as caught:
        tx.get_all(Purse, ["p0", "p1", "p2"])
    assert caught.value.cause_response_code == "ProvisionedThroughputExceededException"
    assert 5 <= clock.elapsed < 8
    assert len(asked) < 30
    assert tx.plan().path == "nothing"


def test_more_than_sixteen_megabytes() -> None:
    """DynamoDB splits the answer, and nothing is missing."""
    for i in range(45):
        Purse(f"p{i}", note=f"{i:02}" + "x" * 390_000).save()
    with transaction(isolation="read_committed", wait=0) as tx:
        found = tx.get_all(Purse, [f"p{i}" for i in range(45)])
        assert [item.note[:2] for item in found if item is not None] == [f"{i:02}" for i in range(45)]


# Marks and locks


def test_marks_are_resolved(clock: VirtualClock, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dead process has decided is finished by who reads; what it has not is dropped, after its lease."""
    for prefix, is_committed in (("old", False), ("done", True)):
        items = purses(6, prefix=prefix)
        tx = Transaction(workers=1)
        for item in items:
            item.balance = 1
            tx.save(item)
        for i in range(2):
            tx.save(Purse(f"{prefix}new{i}", balance=1))
        die_at(monkeypatch, f"finish {prefix}5" if is_committed else "decision", tx.commit)
        assert marked_rows(Purse)
        assert (Transactions.outcome(tx.id) == "committed") is is_committed
        keys = [f"{prefix}{i}" for i in range(6)] + [f"{prefix}new{i}" for i in range(2)]
        with transaction(isolation="read_committed") as reader:
            found = reader.get_all(Purse, keys)
        assert [item and item.balance for item in found] == ([1] * 8 if is_committed else [100] * 6 + [None] * 2)
        make_long_from(monkeypatch, 100)
        with transaction() as reader:
            found = reader.get_all(Purse, keys)
        assert [item and item.balance for item in found] == ([1] * 8 if is_committed else [100] * 6 + [None] * 2)
        assert marked_rows(Purse) == []
        make_long_from(monkeypatch)


def test_for_update_holds_all_locks_until_the_end(engine: Engine) -> None:
    """The write that follows knows its lock."""
    purses(2)
    with transaction() as tx:
        found = tx.get_all(Purse, ["p1", "p0", "p1"], for_update=True)
        assert [item and item.purse_id for item in found] == ["p1", "p0", "p1"]
        for key in ("p0", "p1"):
            assert len(Purse.lock_state(key).holders) == 1
        for item in found[:2]:
            assert item is not None
            item.balance = 5
            tx.save(item)
        assert tx.get_all(Purse, ["p0", "p1"], for_update=True) == [found[1], found[0]]
    for key in ("p0", "p1"):
        assert Purse.lock_state(key).holders == ()
    assert Purse.get("p0").balance == 5


def test_for_update_takes_the_locks_in_one_order() -> None:
    """Two that name the same items in different orders never wait for each other."""
    purses(2)
    together = threading.Barrier(2)

    def move(keys: list[str]) -> None:
        for _ in range(5):
            together.wait(60)
            with transaction(wait=20) as tx:
                for item in tx.get_all(Purse, keys, for_update=True):
                    assert item is not None
                    tx.update(item, [Purse.balance.add(1)])

    in_parallel(lambda: move(["p0", "p1"]), lambda: move(["p1", "p0"]))
    assert [Purse.get(key).balance for key in ("p0", "p1")] == [110, 110]
