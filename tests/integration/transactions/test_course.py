"""The course of a transaction: savepoints, callbacks, its end, locks, nesting, repetition and the deadline."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import atransactional, transaction, transactional
from pynamo_locking.exceptions import ConfigurationError, Conflict, ItemLocked, LockTimeout, StaleVersion
from pynamo_locking.transactions import AsyncTransaction, Transaction, current_transaction
from pynamo_locking_testing import VirtualClock
from tests.support.parties import held_elsewhere, in_thread
from tests.support.transaction_helpers import add_fillers, balance
from tests.support.transaction_models import (
    Plain,
    Purse,
    Robot,
    RowLocks,
    marked_rows,
    purses,
    stored,
)
from tests.support.wire import count_requests, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

pytestmark = pytest.mark.core


# Savepoints, callbacks, the end


def test_savepoint(cheap: Engine, path: str) -> None:
    """Going back to a savepoint undoes what came after it, in the instances too, as often as one likes."""
    purses(3)
    with transaction() as tx:
        first, second = tx.get(Purse, "p0"), tx.get(Purse, "p1")
        tx.update(first, [Purse.balance.add(1)])
        point = tx.savepoint()
        for _ in range(2):
            tx.update(first, [Purse.balance.add(10)])
            tx.delete(second)
            tx.save(Purse("new"))
            third = tx.get(Purse, "p2")
            tx.update(third, [Purse.balance.add(1)])
            point.rollback()
            assert first.balance == 101
            assert tx.get(Purse, "p1").balance == 100
            assert tx.get_or_none(Purse, "new") is None
            assert tx.get(Purse, "p2").balance == 100
        tx.update(first, [Purse.balance.add(100)])
        add_fillers(tx, path)
    assert [Purse.get(f"p{i}", consistent_read=True).balance for i in range(3)] == [201, 100, 100]
    assert stored(Purse, "new") is None


def test_callbacks_and_locks(cheap: Engine) -> None:
    """After a commit the locks are given back first, then the callbacks run in their order; so after a rollback."""
    purses(1)
    calls: list[Any] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: calls.append((name, len(Purse.lock_state("p0").entries)))

    for fails in (False, True):
        with suppress(KeyError), transaction() as tx:
            tx.get(Purse, "p0", for_update=True)
            for i in (1, 2):
                tx.after_commit(note(f"commit {i}"))
                tx.after_rollback(note(f"rollback {i}"))
            note("inside")()
            if fails:
                raise KeyError
    assert calls == [
        ("inside", 1),
        ("commit 1", 0),
        ("commit 2", 0),
        ("inside", 1),
        ("rollback 1", 0),
        ("rollback 2", 0),
    ]


def test_explicit_end(cheap: Engine) -> None:
    """commit() and rollback() end a transaction; after that nothing can be done with it, and rollback does nothing."""
    purses(1)
    tx = Transaction()
    item = tx.get(Purse, "p0")
    item.balance = 1
    tx.save(item)
    tx.commit()
    tx.rollback()
    assert Purse.get("p0").balance == 1
    over: list[Callable[[], object]] = [
        tx.commit,
        tx.savepoint,
        lambda: tx.get(Purse, "p0"),
        lambda: tx.get_or_none(Purse, "p0"),
        lambda: tx.save(item),
        lambda: tx.update(item, [Purse.balance.add(1)]),
        lambda: tx.delete(item),
        lambda: tx.check(item),
        lambda: tx.touch(item),
        lambda: tx.query(Purse, "p0"),
        tx.__enter__,
    ]
    for call in over:
        with pytest.raises(ConfigurationError, match="has ended"):
            call()
    other = Transaction()
    other.save(item)
    other.rollback()
    with pytest.raises(ConfigurationError, match="has ended"):
        other.commit()
    assert item.version == 2
    assert Purse.get("p0").version == 2


def test_ended_inside_its_block() -> None:
    """A transaction that was committed or rolled back inside its block is not committed again at its end."""
    with transaction() as tx:
        tx.save(Purse("a"))
        tx.commit()
    with transaction() as tx:
        tx.save(Purse("b"))
        tx.rollback()
    assert stored(Purse, "a") is not None
    assert stored(Purse, "b") is None


def test_an_empty_transaction(engine: Engine) -> None:
    """One that does nothing makes no request."""
    with count_requests() as counted:
        with transaction() as tx:
            pass
        assert not tx.is_repeated
    assert counted.total == 0


# Locks


@pytest.mark.parametrize("model", [Purse, Robot])
def test_for_update(engine: Engine, model: type[Any], path: str) -> None:
    """for_update holds the item's lock until the end, in the item and in a row of its own."""
    engine.bind(Robot, RowLocks)
    model("a").save()
    name = model.total if model is Robot else model.balance
    with transaction() as tx:
        item = tx.get(model, "a", for_update=True)
        assert tx.get(model, "a", for_update=True) is item
        assert len(model.lock_state("a").entries) == 1
        with pytest.raises(LockTimeout):
            in_thread(lambda: model.locked("a", wait=0).acquire())
        tx.update(item, [name.add(5)])
        add_fillers(tx, path)
    assert model.lock_state("a").entries == ()
    assert getattr(model.get("a", consistent_read=True), name.attr_name) == 5
    item.save()


@pytest.mark.parametrize("model", [Purse, Robot])
def test_for_update_and_delete(engine: Engine, model: type[Any], path: str) -> None:
    """An item that was locked for update can be deleted."""
    engine.bind(Robot, RowLocks)
    model("a").save()
    with transaction() as tx:
        tx.delete(tx.get(model, "a", for_update=True))
        add_fillers(tx, path)
    assert stored(model, "a") is None


def test_for_update_waits_for_the_lock() -> None:
    """It waits until the deadline of the transaction, and leaves no entry behind."""
    purses(1)
    with VirtualClock(), held_elsewhere(Purse.locked("p0")):
        with pytest.raises(LockTimeout), transaction(wait=3) as tx:
            tx.get(Purse, "p0", for_update=True)
        assert len(Purse.lock_state("p0").entries) == 1


def test_for_update_of_an_absent_item(cheap: Engine) -> None:
    """That an item is absent is relied upon with for_update as well."""
    with pytest.raises(Conflict), transaction() as tx:
        with pytest.raises(Purse.DoesNotExist):
            tx.get(Purse, "a", for_update=True)
        tx.save(Purse("because there is no a"))
        in_thread(Purse("a").save)
    assert stored(Purse, "because there is no a") is None


def test_for_update_inside_the_lock(path: str) -> None:
    """The holder of the lock can take it again in a transaction, and still holds it afterwards."""
    purses(1)
    with Purse.locked("p0"):
        with transaction() as tx:
            item = tx.get(Purse, "p0", for_update=True)
            tx.update(item, [Purse.balance.add(1)])
            add_fillers(tx, path)
        assert len(Purse.lock_state("p0").entries) == 1
    assert Purse.lock_state("p0").entries == ()
    assert Purse.get("p0").balance == 101


def test_for_update_needs_a_lock(memory: Engine) -> None:
    """A model without a lock cannot be locked."""
    memory.bind(Plain)
    with transaction() as tx, pytest.raises(ConfigurationError, match="no lock for for_update"):
        tx.get(Plain, "a", for_update=True)


# Nested, and functions


def test_nested() -> None:
    """Inside another one a transaction is refused, or joins it: then its block does not end it."""
    assert current_transaction() is None
    with transaction() as outer:
        assert current_transaction() is outer
        with pytest.raises(ConfigurationError, match="join=True"), transaction():
            pass
        with pytest.raises(TypeError, match="no option 'retries'"), transaction(join=True, retries=3):  # type: ignore[call-arg]
            pass
        with transaction(join=True) as inner:
            assert inner is outer
            inner.save(Purse("a"))
        assert stored(Purse, "a") is None
        assert in_thread(current_transaction) is None
    assert current_transaction() is None
    assert stored(Purse, "a") is not None
    with pytest.raises(KeyError), transaction() as outer, transaction(join=True):
        outer.save(Purse("b"))
        raise KeyError
    assert stored(Purse, "b") is None


def test_transactional_tries_again(engine: Engine) -> None:
    """After a conflict the function runs again, with the age of the first attempt and an id of its own."""
    purses(1)
    seen: list[Transaction] = []

    @transactional(attempts=5, wait=0)
    def add(tx: Transaction, key: str, *, by: int) -> int:
        seen.append(tx)
        assert current_transaction() is tx
        item = tx.get(Purse, key)
        if len(seen) < 3:
            in_thread(lambda: Purse.get(key).update([Purse.balance.add(1)]))
        tx.update(item, [Purse.balance.add(by)])
        return int(item.balance)

    with VirtualClock():
        assert add("p0", by=10) == 112
    assert Purse.get("p0", consistent_read=True).balance == 112
    assert len({tx.id for tx in seen}) == 3
    assert len({tx._options.priority for tx in seen}) == 1
    assert current_transaction() is None


def test_transactional_gives_up() -> None:
    """After the last attempt its error is raised; a condition of the caller's own is not tried again."""
    purses(1)
    calls = []

    @transactional(attempts=3, wait=0)
    def always_late(tx: Transaction) -> None:
        calls.append("late")
        item = tx.get(Purse, "p0")
        in_thread(lambda: Purse.get("p0").touch())
        tx.save(item)

    @transactional(attempts=3)
    def never_met(tx: Transaction) -> None:
        calls.append("not met")
        tx.save(tx.get(Purse, "p0"), Purse.balance == -1)

    @transactional(attempts=3)
    def broken(tx: Transaction) -> None:
        calls.append("broken")
        tx.save(tx.get(Purse, "p0"))
        raise KeyError

    with VirtualClock():
        with pytest.raises(StaleVersion) as last:
            always_late()
        assert last.value.actual == 4
        assert str(last.value).startswith("transactional() gave up after attempt 3 of 3: ")
        with pytest.raises(Conflict) as caught:
            never_met()
        assert not isinstance(caught.value, StaleVersion)
        with pytest.raises(KeyError):
            broken()
    assert calls == ["late"] * 3 + ["not met", "broken"]
    assert Purse.get("p0").version == 4


def test_transactional_inside_another() -> None:
    """Inside another transaction it is refused, or is a part of that."""

    @transactional(join=True)
    def joins(tx: Transaction) -> Transaction:
        tx.save(Purse("a"))
        return tx

    @transactional()
    def refuses(tx: Transaction) -> None:
        raise AssertionError("never runs")

    with transaction() as outer:
        assert joins() is outer
        assert stored(Purse, "a") is None
        with pytest.raises(ConfigurationError, match="join=True"):
            refuses()
    assert stored(Purse, "a") is not None
    Purse.get("a").delete()
    assert joins().id != outer.id


def test_transactional_without_parentheses() -> None:
    """The same as with empty ones, for a function and for a coroutine function."""

    @transactional
    def add(tx: Transaction, amount: int) -> str:
        tx.update(Purse("p0"), [Purse.balance.add(amount)], add_version_condition=False)
        return "done"

    @atransactional
    async def add_awaited(tx: AsyncTransaction, amount: int) -> str:
        await tx.update(Purse("p0"), [Purse.balance.add(amount)], add_version_condition=False)
        return "done"

    purses(1)
    assert (add(1), asyncio.run(add_awaited(amount=2))) == ("done", "done")
    assert balance("p0") == 103


def test_transactional_refuses_an_option_that_it_does_not_have() -> None:
    """Where the function is declared. So does `transaction`, also where it joins another one."""
    with pytest.raises(TypeError, match="nope"):
        transactional(join=True, nope=1)
    with (
        transaction(),
        pytest.raises(TypeError, match="no option 'nope'"),
        transaction(join=True, nope=1),  # type: ignore[call-arg]
    ):
        raise AssertionError("never runs")


def test_all_attempts_have_one_deadline(few: None) -> None:
    """`wait` is not given anew to each attempt: what is left of it is, and then nothing."""
    purses(1)
    begun: list[float] = []

    @transactional(wait=5, attempts=2)
    def write(tx: Transaction) -> None:
        begun.append(clock.elapsed)
        tx.save(tx.get(Purse, "p0"))
        add_fillers(tx, "long")

    with VirtualClock() as clock, held_elsewhere(Purse.locked("p0")), pytest.raises(ItemLocked):
        write()
    waited = [after - before for before, after in itertools.pairwise(begun)]
    assert len(waited) > 2, "a lock that is held is no conflict"
    assert waited[0] == 2.5, "a retry leaves half of the time"
    assert waited[1] < 2.5
    assert clock.elapsed <= 8


def test_the_deadline(path: str) -> None:
    """A commit waits for the lock of another holder until its deadline at most, or refuses at once."""
    purses(1)
    with VirtualClock() as clock, held_elsewhere(Purse.locked("p0")):
        with pytest.raises(ItemLocked), transaction(wait=5) as tx:
            tx.save(tx.get(Purse, "p0"))
            add_fillers(tx, path)
        assert clock.elapsed <= 8
    assert stored(Purse, "filler0") is None
    assert marked_rows(Purse) == []


def test_a_committed_transaction_is_not_run_again() -> None:
    """Although a callback after the commit fails with what is worth another attempt before it."""
    purses(1)

    @transactional(attempts=3)
    def add(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        purse.balance += 1
        tx.save(purse)
        tx.after_commit(lambda: Purse("p0", note="new").save())

    with pytest.raises(StaleVersion):
        add()
    assert balance("p0") == 101


def test_a_lock_that_is_lost_without_a_write_does_not_undo_a_commit() -> None:
    """What was read under it is checked by its write id; the commit says what it has done."""
    purses(2)
    with transaction() as tx:
        tx.get(Purse, "p0", for_update=True)
        tx.update(tx.get(Purse, "p1"), [Purse.balance.add(1)])
        [holder] = Purse.lock_state("p0").holders
        Purse.break_lock("p0", ticket=holder.ticket)
    assert balance("p1") == 101


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lock_whose_release_is_refused_does_not_undo_a_commit(
    caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    """The caller gets the result of what was committed, callbacks run, and a warning says that the lock stays."""
    purses(2)
    called = list[str]()

    @transactional()
    def add(tx: Transaction) -> str:
        tx.after_commit(lambda: called.append("after"))
        tx.get(Purse, "p0", for_update=True)
        tx.update(tx.get(Purse, "p1"), [Purse.balance.add(1)])
        stack.enter_context(on("UpdateItem").answer("ExpiredTokenException", always=True))
        return "added"

    @atransactional()
    async def aadd(tx: AsyncTransaction) -> str:
        tx.after_commit(lambda: called.append("after"))
        await tx.get(Purse, "p0", for_update=True)
        await tx.update(await tx.get(Purse, "p1"), [Purse.balance.add(1)])
        stack.enter_context(on("UpdateItem").answer("ExpiredTokenException", always=True))
        return "added"

    with ExitStack() as stack:
        assert (asyncio.run(aadd()) if is_async else add()) == "added"
    assert (balance("p1"), called) == (101, ["after"])
    [warning] = [each.message for each in caplog.records if "is left to expire" in each.message]
    assert "p0" in warning
