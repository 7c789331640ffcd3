"""Everything that keeps rows, in one table with a hash key and a range key, beside 1,000 items of other programs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import locked_all, transaction
from pynamo_locking.exceptions import NotUnique, OverlapError
from pynamo_locking.recipes import idempotent
from tests.engines import one_table
from tests.support.one_table_models import (
    Calls,
    Entry,
    Locks,
    Order,
    Robot,
    Shift,
    Transactions,
    Uniques,
    User,
    assert_others_are_as_they_were,
    make,
    raw,
)
from tests.support.parties import in_thread
from tests.support.transaction_models import dying_where, make_long_from, survive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine


@pytest.fixture
def app(concurrent_engine: Engine) -> Iterator[str]:
    """The table, whose other items are what they were when the test ends."""
    table = make(concurrent_engine)
    yield table
    assert_others_are_as_they_were(concurrent_engine, table)


def ours(engine: Engine, table: str) -> set[str]:
    """The range keys of our rows."""
    return {sk for pk, sk in raw(engine, table) if pk.startswith("acme#ours#")}


def is_free(lock: Callable[[], Any]) -> bool:
    """Whether another thread gets a lock at once."""

    def take() -> bool:
        with lock() as taken:
            return taken is not None

    return bool(in_thread(take))


def test_everything(app: str, concurrent_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of all kinds, intervals, and transactions on each path, with their rows beside those of others."""
    locks()
    intervals()
    transactions(monkeypatch)
    unique_values()
    jobs()
    assert ours(concurrent_engine, app) >= {"lock#nightly", f"lock#{app}/robot/1", f"lock#guard#{app}/team"}
    assert {each.name for each in Locks.scan()} >= {"nightly", f"{app}/robot/1"}


def locks() -> None:
    """Locks in all modes."""
    with Locks.locked("nightly", wait=0) as lock:
        assert not is_free(lambda: Locks.try_locked("nightly"))
        assert Locks.lock_state("nightly").holders[0].ticket == lock.ticket
        assert Locks.get("nightly").name == "nightly"
        assert [each.name for each in Locks.query("nightly")] == ["nightly"]
        assert [each.name for each in Locks.batch_get(["nightly", "none"])] == ["nightly"]
    with Locks.locked("read", shared=True), Locks.locked("pool", permits=3):
        assert is_free(lambda: Locks.try_locked("read", shared=True))
        assert is_free(lambda: Locks.try_locked("pool", permits=3))
        assert not is_free(lambda: Locks.try_locked("read"))
    with Locks.locked_range("line", 1, 5), locked_all(Locks.locked("a"), Robot.locked("robot", "1")):
        assert not is_free(lambda: Robot.try_locked("robot", "1"))
    Robot("robot", "1").save()
    with Robot.edit("robot", "1") as robot:
        robot.total += 1
    with Order.locked_range("order", "1", "5"):
        Order("order", "1").save()
    assert in_thread(lambda: asyncio.run(_held())) > 0


async def _held() -> int:
    async with Locks.locked("task") as lock:
        return lock.ticket


def intervals() -> None:
    """Optimistic and pessimistic."""
    Shift.intervals.insert_disjoint([Shift("team", "08", until="12"), Shift("team", "12", until="16")])
    with pytest.raises(OverlapError):
        Shift.intervals.insert_disjoint([Shift("team", "11", until="13")])
    Shift.intervals.insert_disjoint([Shift("team", "16", until="18")], pessimistic=True)
    with Shift.locked_range("team", "18", "20"):
        Shift("team", "18", until="19").save()


def unique_values() -> None:
    """One user has an address, until it changes."""
    User("user", "1", email="a@x").save()
    with pytest.raises(NotUnique):
        User("user", "2", email="a@x").save()
    user = User.get("user", "1")
    user.email = "b" * 1500
    user.save()
    with transaction() as tx:
        tx.save(User("user", "2", email="a@x"))
    assert User.check_unique().is_sound
    Uniques(next(each.name for each in Uniques.scan() if each.name.endswith("a%40x"))).delete(
        add_version_condition=False
    )
    assert [each.kind for each in User.repair_unique().problems] == ["missing row"]
    assert User.check_unique().is_sound


def jobs() -> None:
    """Calls that may be made twice, a job once in a period, a leader."""
    made = list[str]()

    @idempotent(Calls, key="order")
    def charge(order: str) -> str:
        made.append(order)
        return f"charged {order}"

    assert [charge("nightly"), charge("nightly")] == ["charged nightly"] * 2
    assert made == ["nightly"]
    for is_first in (True, False):
        with Locks.once("report", period=3600, since_success=True) as turn:
            assert bool(turn) == is_first


def transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On each path, with an idempotency key, suspended, and with guarded queries."""
    for path, most in (("native", 100), ("long", 8)):
        make_long_from(monkeypatch, most)
        with transaction(idempotency_key=path) as tx:
            for i in range(12):
                tx.save(Order(f"order-{path}", str(i), total=i))
            tx.update(tx.get(Robot, "robot", "1", for_update=True), [Robot.total.add(1)])
            tx.save(Entry("book", path))
            assert len(tx.query(Entry, "book")) == (1 if path == "native" else 2)
        assert Transactions.outcome(idempotency_key=path) == "committed"
    with transaction(Transactions) as tx:
        order, robot = tx.get(Order, "order-long", "1"), tx.get(Robot, "robot", "1")
        tx.update(order, [Order.total.set(100)])
        tx.update(robot, [Robot.total.set(100)])
        id_ = tx.suspend(expires_after=60)
    with transaction(Transactions) as tx:
        tx.resume(id_, (Robot, Order))
    assert (Order.get("order-long", "1").total, Robot.get("robot", "1").total) == (100, 100)
    assert not Transactions.sweep().failed


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_transaction(memory: Engine, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """`recover` and a sweep complete it, and see no header of others."""
    table = make(memory, 100)
    make_long_from(monkeypatch)
    Order("o", "old", total=1).save()

    ids = list[str]()

    def commit() -> None:
        with transaction() as tx:
            ids.append(tx.id)
            tx.update(tx.get(Order, "o", "old"), [Order.total.set(2)])
            for i in range(6):
                tx.save(Order("o", str(i), total=2))

    def is_last(_: int, operation: str, kwargs: dict[str, Any]) -> bool:
        return operation == "TransactWriteItems" and "'committed'" in str(kwargs)

    with dying_where(monkeypatch, is_last, is_answer_lost=moment == "after"):
        assert not survive(commit)
    assert Transactions.outcome(ids[0]) == {"before": "pending", "after": "committed"}[moment]
    assert Transactions.recover(ids[0], force=True) == {"before": "aborted", "after": "finished"}[moment]
    assert len(list(Order.query("o"))) == (1 if moment == "before" else 7)
    assert Transactions.sweep(older_than=0).failed == {}
    assert_others_are_as_they_were(memory, table, 100)


#: Tests of what has tables of its own, which do not look at its rows as they are stored.
ELSEWHERE = (
    "transactions/test_recovery.py",
    "transactions/test_suspension.py",
    "locks/test_locks.py",
    "intervals/test_intervals.py",
)
CHOSEN = "not moto and not local and not dynoxide and (one_attempt or any_process or test_locks or test_intervals)"


@pytest.mark.slow
@pytest.mark.processes
def test_what_is_tested_with_tables_of_its_own() -> None:
    """The same tests pass where the engine puts our rows into one table, beside items of others."""
    command = [sys.executable, "-m", "pytest", "--no-cov", "-q", "-p", "no:cacheprovider", "-k", CHOSEN]
    paths = [str(Path(__file__).parents[1] / each) for each in ELSEWHERE]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    run = subprocess.run(
        [*command, *paths], env=environment | {one_table.VARIABLE: "1"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert " passed" in run.stdout
