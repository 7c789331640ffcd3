"""Transactions in tasks of asyncio: the same promises, and a cancelled task leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import atransaction, atransactional, transaction
from pynamo_locking.exceptions import ConfigurationError, StaleVersion, TransactionConflict
from pynamo_locking.transactions import AsyncTransaction, current_transaction
from tests.support.cancelling import Cancelled, ended
from tests.support.deeds import dying_at
from tests.support.transaction_helpers import committed_balances
from tests.support.transaction_models import (
    Purse,
    RowLocks,
    Seat,
    Sheet,
    locks_of_names,
    rows_of,
    survive,
)
from tests.support.wire import count_requests
from tests.support.workers import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.engines.engine import Engine


@pytest.fixture(autouse=True)
def _nothing_left(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def store(**balances: int) -> None:
    for key, balance in balances.items():
        Purse(key, balance=balance).save()


def stored_purses() -> list[Purse]:
    return sorted(Purse.scan(consistent_read=True), key=lambda purse: purse.purse_id)


def leave_mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let a process die that has marked items, and whose lease lasts; return the key of one of them."""

    def marks() -> None:
        with transaction(lease=3600) as tx:
            for key in "abcde":
                tx.touch(tx.get(Purse, key))

    with dying_at(monkeypatch, "decision"):
        assert not survive(marks)
    return next(row["purse_id"]["S"] for row in rows_of(Purse) if "tx" in row.get("lock", {}).get("M", {}))


async def move(tx: AsyncTransaction, source: str, target: str, amount: int = 1, *, for_update: bool = False) -> None:
    for key, change in sorted([(source, -amount), (target, amount)]):
        purse = await tx.get(Purse, key, for_update=for_update)
        purse.balance += change
        await tx.save(purse)


# What a transaction does


async def test_a_transfer(engine: Engine) -> None:
    store(a=10, b=0)
    async with atransaction() as tx:
        await move(tx, "a", "b", 3)
        assert not tx.is_committed
    assert tx.is_committed
    assert committed_balances("a", "b") == [7, 3]


async def test_an_error_rolls_back() -> None:
    store(a=10, b=0)
    told: list[str] = []

    with pytest.raises(ValueError):
        async with atransaction() as tx:
            tx.after_rollback(lambda: told.append(threading.current_thread().name))
            await move(tx, "a", "b", 3)
            raise ValueError
    assert committed_balances("a", "b") == [10, 0]
    assert told == ["pynamo-locking-asyncio"]


async def test_each_method_does_what_its_namesake_does() -> None:
    store(a=1, b=2, c=3, d=4)

    told: list[str] = []
    async with atransaction() as tx:
        a, b, c = [await tx.get(Purse, key) for key in "abc"]
        assert await tx.get_or_none(Purse, "none") is None
        await tx.update(a, [Purse.balance.add(10)])
        assert a.balance == 11
        await tx.delete(b)
        await tx.touch(c)
        await tx.check(Purse.get("d"))
        saved = tx.savepoint()
        await tx.save(Purse("e"))
        saved.rollback()
        assert (await tx.plan()).path == "native"
        tx.after_commit(lambda: told.append(tx.id))
    assert [purse.purse_id for purse in stored_purses()] == ["a", "c", "d"]
    assert (Purse.get("a").balance, Purse.get("c").version, len(told)) == (11, 2, 1)


async def test_commit_and_rollback_by_hand() -> None:
    store(a=10, b=0)
    async with atransaction() as tx:
        await move(tx, "a", "b")
        await tx.rollback()
    assert not tx.is_committed
    async with atransaction() as tx:
        await move(tx, "a", "b")
        await tx.commit()
        assert tx.is_committed
        with pytest.raises(ConfigurationError, match="has ended"):
            await tx.get(Purse, "a")
    assert committed_balances("a", "b") == [9, 1]


async def test_requests_are_those_of_a_plain_transaction() -> None:
    store(a=10, b=0)

    await transfers_under_locks()  # the first one makes the documents of the locks
    with count_requests() as awaited:
        await transfers_under_locks()
    with count_requests() as plain, transaction() as tx:
        for key, change in [("a", -1), ("b", 1)]:
            purse = tx.get(Purse, key, for_update=True)
            purse.balance += change
            tx.save(purse)
    assert awaited.by_operation == plain.by_operation


@pytest.mark.parametrize("for_update", [False, True])
async def test_many_items_at_once(cheap: Engine, for_update: bool) -> None:
    store(a=10, b=0)
    with count_requests() as requests:
        async with atransaction() as tx:
            found = await tx.get_all(Purse, ["b", "a", "b"], for_update=for_update)
            assert found[0] is found[2]
            for purse, change in zip(found, (4, -4), strict=False):
                assert purse is not None
                assert bool(Purse.lock_state(purse.purse_id).entries) is for_update
                purse.balance += change
                await tx.save(purse)
    assert committed_balances("a", "b") == [6, 4]
    assert requests.by_operation["BatchGetItem"] == (not for_update)  # or the grants bring the items


# Locks


async def test_tasks_of_one_transaction_take_turns_and_share_its_locks(cheap: Engine) -> None:
    """A lock that a child task has acquired guards the write of the parent."""
    store(a=10, b=0, c=5)
    async with atransaction() as tx:
        found = await asyncio.gather(*[tx.get(Purse, key, for_update=True) for key in "aba"])
        assert found[0] is found[2]
        found[0].balance -= 1
        found[1].balance += 1
        await asyncio.gather(tx.save(found[0]), tx.save(found[1]))
        await tx.get(Purse, "c", for_update=True)
        assert len(Purse.lock_state("c").holders) == 1
    assert committed_balances("a", "b") == [9, 1]
    assert [Purse.lock_state(key).entries for key in "abc"] == [(), (), ()]


async def test_the_lock_of_an_absent_item(memory: Engine) -> None:
    """Two tasks that want to create an item queue for its name, and the second finds the first one's."""
    memory.bind(Seat, RowLocks)

    async def create(user: str) -> None:
        async with atransaction() as tx:
            seat = await tx.get_or_none(Seat, "a", for_update=True) or Seat("a", users="")
            await asyncio.sleep(0.01)
            seat.users += user
            await tx.save(seat)

    await asyncio.gather(*map(create, "abc"))
    async with atransaction() as tx, atransaction(join=True):
        with pytest.raises(ConfigurationError, match=r"Meta\.lock_table"):
            await tx.get_or_none(Purse, "none", for_update=True)
        found = await tx.get_all(Seat, ["a", "none"], for_share=True)
        assert [seat and sorted(seat.users) for seat in found] == [["a", "b", "c"], None]  # in the order of arrival
        assert [entry.mode for entry in Seat.lock_state("a").holders] == ["shared"]
        assert found[0] is not None
        with pytest.raises(ConfigurationError, match="no upgrade"):
            await tx.delete(found[0])
    assert [Seat.lock_state("a").entries, *locks_of_names()] == [()]


@pytest.mark.parametrize(
    ("count", "for_update"),
    # The long form takes half a minute on a quiet machine, and four times that while other programs run.
    [pytest.param(200, False, marks=[pytest.mark.slow, pytest.mark.timeout(400)]), (12, False), (40, True)],
)
async def test_many_transactions_at_once(cheap: Engine, count: int, for_update: bool) -> None:
    """All are committed or refused, the money is right, and 32 threads at most have made the requests."""
    store(**{f"k{i}": 100 for i in range(50)})
    threads: list[int] = []

    @atransactional(attempts=100, wait=PATIENCE)
    async def transfer(tx: AsyncTransaction, i: int) -> None:
        await move(tx, f"k{i % 50}", f"k{i * 7 % 49}", 1, for_update=for_update)
        threads.append(sum(thread.name == "pynamo-locking-asyncio" for thread in threading.enumerate()))

    assert await asyncio.gather(*map(transfer, range(count)), return_exceptions=True) == [None] * count
    assert sum(purse.balance for purse in stored_purses()) == 5000
    assert 0 < max(threads) <= 32


# Retries


async def test_a_conflict_is_retried() -> None:
    store(a=10, b=0)
    attempts: list[str] = []

    @atransactional()
    async def transfer(tx: AsyncTransaction, amount: int) -> str:
        attempts.append(tx.id)
        await move(tx, "a", "b", amount)
        if len(attempts) < 3:
            await Purse.get("a").aupdate([Purse.balance.add(1)])
        return tx.id

    assert await transfer(5) == attempts[2]
    assert len(set(attempts)) == 3
    assert committed_balances("a", "b") == [7, 5]


async def test_the_last_attempt_raises() -> None:
    store(a=10, b=0)

    @atransactional(attempts=2)
    async def transfer(tx: AsyncTransaction) -> None:
        await move(tx, "a", "b")
        Purse.get("a").update([Purse.note.set(tx.id)])

    with pytest.raises(StaleVersion, match="gave up after attempt 2 of 2"):
        await transfer()


async def test_inside_another_transaction() -> None:
    store(a=10, b=0)

    @atransactional(join=True)
    async def part(tx: AsyncTransaction) -> AsyncTransaction:
        await move(tx, "a", "b")
        return tx

    @atransactional()
    async def other(tx: AsyncTransaction) -> None:
        raise AssertionError(tx)

    def plain() -> None:
        with transaction(join=True) as tx:
            purse = tx.get(Purse, "a")
            purse.note = "joined"
            tx.save(purse)

    async with atransaction() as tx:
        assert await part() is tx
        await asyncio.to_thread(plain)
        with pytest.raises(ConfigurationError, match="join=True"):
            await other()
        with pytest.raises(ConfigurationError, match="join=True"):
            async with atransaction():
                pass
    assert current_transaction() is None
    with transaction() as outer:
        async with atransaction(join=True) as joined:
            assert joined.id == outer.id
            await move(joined, "a", "b")
    assert committed_balances("a", "b") == [8, 2]
    assert Purse.get("a").note == "joined"


async def test_an_option_that_a_transaction_does_not_have() -> None:
    """Is refused where the function is declared; by `atransaction` also where it joins another one."""
    with pytest.raises(TypeError, match="nope"):
        atransactional(join=True, nope=1)  # type: ignore[call-overload]
    async with atransaction():
        with pytest.raises(TypeError, match="no option 'nope'"):
            async with atransaction(join=True, nope=1):  # type: ignore[call-arg]
                raise AssertionError("never runs")


async def test_what_is_no_coroutine_is_refused() -> None:
    store(a=1)
    with pytest.raises(ConfigurationError, match="transactional"):
        atransactional()(lambda tx: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match="at least one attempt"):
        atransactional(attempts=0)

    async def callback() -> None:
        raise AssertionError

    async with atransaction() as tx:
        with pytest.raises(ConfigurationError, match="is a coroutine"):
            tx.after_commit(callback)


# Cancelled


async def transfers() -> None:
    async with atransaction() as tx:
        await move(tx, "a", "b")


async def transfers_under_locks() -> None:
    async with atransaction() as tx:
        await move(tx, "a", "b", for_update=True)


async def transfers_again() -> None:
    seen: list[str] = []

    @atransactional()
    async def transfer(tx: AsyncTransaction) -> None:
        seen.append(tx.id)
        await move(tx, "a", "b")
        if len(seen) == 1:
            Purse.get("a", consistent_read=True).touch()  # so that another attempt follows at once

    await transfer()


async def moves_much() -> None:
    async with atransaction() as tx:
        for key in "cdef":
            purse = await tx.get(Purse, key)
            await tx.touch(purse)
        await move(tx, "a", "b")


WORKS = [transfers, transfers_under_locks, transfers_again, moves_much]


@pytest.mark.parametrize("how", ["begins", "ends", "again"])
@pytest.mark.parametrize("work", WORKS)
def test_cancelled_at_each_place(work: Callable[[], Coroutine[Any, Any, None]], how: str, few: None) -> None:
    """No lock, no mark and no thread is left, and all of it is written or nothing."""
    store(a=1000, b=0, c=0, d=0, e=0, f=0)

    async def run(place: int) -> tuple[bool, int]:
        cancelled = Cancelled(work(), place, how)
        return await ended(asyncio.ensure_future(cancelled)), cancelled.places

    committed = 0
    for place in itertools.count(1):
        before = committed_balances("b")[0]
        is_through, places = asyncio.run(run(place))
        assert [Purse.lock_state(key).entries for key in "ab"] == [(), ()]
        assert sum(committed_balances("a", "b")) == 1000
        assert "'tx'" not in str(rows_of(Purse))
        committed += committed_balances("b")[0] - before
        assert committed_balances("b")[0] - before in ((1,) if is_through else (0, 1))
        if places < place:
            break
    assert place > 5
    assert 0 < committed < place


async def test_a_cancelled_reader_waits_for_no_transaction(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for the lease of the dead one; the cancellation ends that at the next pause."""
    store(a=1, b=1, c=1, d=1, e=1)
    key = leave_mark(monkeypatch)

    async def reads() -> None:
        async with atransaction(wait=3600) as tx:
            await tx.get(Purse, key)

    task = asyncio.ensure_future(reads())
    while not any(thread.name == "pynamo-locking-asyncio" for thread in threading.enumerate()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    [done], _ = await asyncio.wait([task], timeout=PATIENCE)
    assert done.cancelled()


def test_cancelled_on_leaving_while_another_task_has_its_turn(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block ends once the step of the other task has ended, which waits for no transaction any more."""
    store(a=1, b=1, c=1, d=1, e=1, free=1)
    key = leave_mark(monkeypatch)
    readers: list[asyncio.Future[Any]] = []

    async def main() -> None:
        async with atransaction(wait=3600) as tx:
            await tx.get(Purse, "free", for_update=True)
            readers.append(asyncio.ensure_future(tx.get(Purse, key)))
            await asyncio.sleep(0)
            raise ValueError

    async def cancels() -> None:
        task = asyncio.ensure_future(main())
        while not readers:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        [done], _ = await asyncio.wait([task], timeout=PATIENCE)
        assert done.cancelled()
        with pytest.raises(TransactionConflict):
            await readers[0]
        assert Purse.lock_state("free").entries == ()

    asyncio.run(cancels())


def test_a_closed_loop_leaves_no_lock() -> None:
    store(a=1)
    told: list[str] = []

    async def holds() -> None:
        async with atransaction() as tx:
            tx.after_rollback(lambda: told.append(threading.current_thread().name))
            await tx.get(Purse, "a", for_update=True)
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    loop.set_debug(False)
    task = loop.create_task(holds())

    async def until_held() -> None:
        while not Purse.lock_state("a").entries:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.001)

    loop.run_until_complete(until_held())
    loop.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.get_coro().close()  # type: ignore[union-attr]
    until(lambda: not Purse.lock_state("a").entries, "the lock to be given back")
    until(lambda: told == ["pynamo-locking-asyncio"], "the callback")
    del task


async def test_a_conflict_is_told(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    store(a=1, b=1, c=1, d=1, e=1)
    key = leave_mark(monkeypatch)

    with pytest.raises(TransactionConflict):
        async with atransaction(wait=0) as tx:
            await tx.get(Purse, key)


# The methods of models


async def test_the_methods_of_models(cheap: Engine) -> None:
    store(a=10)
    purse = await Purse.aget("a", consistent_read=True)
    purse.balance = 11
    await purse.asave(Purse.balance == 10)
    other = await Purse.aget("a")
    await other.aupdate([Purse.balance.add(1)])
    with pytest.raises(StaleVersion):
        await purse.asave()
    await purse.arefresh(consistent_read=True)
    assert purse.balance == 12
    changed = await Purse.amodify("a", lambda stored: setattr(stored, "note", "changed"))
    assert (changed.note, changed.version) == ("changed", 4)
    assert [found.purse_id async for found in Purse.aquery("a", filter_condition=Purse.balance == 12)] == ["a"]
    await changed.adelete()
    with pytest.raises(Purse.DoesNotExist):
        await Purse.aget("a")


async def test_they_write_under_the_lock_of_the_task() -> None:
    store(a=10)
    async with Purse.locked("a") as lock:
        lock.item.balance += 1
        await lock.item.asave()
    assert committed_balances("a") == [11]


async def test_a_query_reads_no_more_than_twice_what_is_seen(memory: Engine) -> None:
    memory.bind(Sheet)
    for number in range(40):
        Sheet("f", number).save()

    for count in (1, 3, 40):
        seen: list[int] = []
        with count_requests() as requests:
            async for sheet in Sheet.aquery("f", page_size=1):
                seen.append(int(sheet.number))
                if len(seen) == count:
                    break
        assert seen == list(range(count))
        assert requests.total <= 2 * count


@pytest.mark.parametrize("how", ["begins", "ends", "again"])
def test_a_cancelled_save_is_whole(how: str) -> None:
    """The task hears of its cancellation when the write has ended."""
    store(a=0)

    async def adds() -> None:
        purse = await Purse.aget("a", consistent_read=True)
        purse.balance += 1
        await purse.asave()

    async def run(place: int) -> tuple[bool, int]:
        cancelled = Cancelled(adds(), place, how)
        return await ended(asyncio.ensure_future(cancelled)), cancelled.places

    for place in itertools.count(1):
        before = committed_balances("a")[0]
        is_through, places = asyncio.run(run(place))
        after = committed_balances("a")[0]
        assert after - before == (place > 1)
        if places < place:
            assert is_through
            break
    assert place == 3
