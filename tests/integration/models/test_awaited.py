"""The awaited forms of the methods of models: each does what the method without the "a" does, in a thread."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking.exceptions import LockLost, NotUnique, OverlapError, StaleVersion
from pynamo_locking.transactions import Transaction
from tests.support.deeds import dying_at
from tests.support.interval_models import Slot, SlotLocks, slots, stored_slots
from tests.support.transaction_models import (
    Purse,
    RowLocks,
    Sheet,
    Transactions,
    make_long_from,
    survive,
)
from tests.support.unique_models import Uniques, User
from tests.support.wire import ALL, on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from tests.engines.engine import Engine

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def _nothing_in_the_loop() -> Iterator[None]:
    """No request may be made by the thread that runs the event loop."""
    in_the_loop: Any = on(where=lambda _: asyncio._get_running_loop() is not None)
    with in_the_loop.watch() as blocking:
        yield
    assert blocking.bodies == []


async def all_of(found: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in found]


def test_reads(memory: Engine) -> None:
    memory.bind(Sheet, Transactions)
    for number in range(5):
        Sheet("f", number, body=f"b{number}").save()

    async def main() -> None:
        assert sorted(sheet.number for sheet in await all_of(Sheet.ascan(Sheet.body != "b3"))) == [0, 1, 2, 4]
        assert len(await all_of(Sheet.ascan(limit=2, page_size=1))) == 2
        assert await Sheet.acount("f", Sheet.number > 1) == 3
        some = await all_of(Sheet.abatch_get([("f", 1), ("f", 4), ("f", 9)], consistent_read=True))
        assert sorted(sheet.number for sheet in some) == [1, 4]
        assert {type(each) for each in some} == {Sheet}

    asyncio.run(main())


def test_a_touch(memory: Engine) -> None:
    memory.bind(Purse, RowLocks, Transactions)
    purse = Purse("a")
    purse.save()

    async def main() -> None:
        other = await Purse.aget("a")
        await purse.atouch(Purse.balance == 0)
        with pytest.raises(StaleVersion):
            await other.atouch()
        await other.atouch(add_version_condition=False)

    asyncio.run(main())
    assert Purse.get("a").version == 3


def test_the_lock_of_an_item(memory: Engine) -> None:
    memory.bind(Purse, RowLocks, Transactions)
    Purse("a").save()

    async def main() -> None:
        lock = await Purse.locked("a").aacquire()
        state = await Purse.alock_state("a")
        assert [entry.ticket for entry in state.holders] == [lock.ticket]
        assert not await Purse.abreak_lock("a", ticket=lock.ticket + 1)
        assert await Purse.abreak_lock("a", ticket=lock.ticket)
        assert (await Purse.alock_state("a")).entries == ()
        with pytest.raises(LockLost):
            await lock.arelease()

    asyncio.run(main())


def test_unique_values(memory: Engine) -> None:
    memory.bind(User, Uniques, Transactions)
    User("u", email="u@x").save()
    for row in Uniques.scan():
        row.delete()

    async def main() -> None:
        assert not (await User.acheck_unique()).is_sound
        assert not (await User.acheck_unique()).is_sound  # it changes nothing
        await User.arepair_unique()
        assert (await User.acheck_unique()).is_sound
        with pytest.raises(NotUnique):
            await User("v", email="u@x").asave()

    asyncio.run(main())


def test_intervals(memory: Engine) -> None:
    memory.bind(Slot, SlotLocks)

    async def main() -> None:
        rows = slots((0, 3), (5, 7))
        await Slot.intervals.ainsert_disjoint(rows)
        with pytest.raises(OverlapError):
            await Slot.intervals.ainsert_disjoint(slots((2, 4)), pessimistic=True)
        await Slot.intervals.ainsert_disjoint(slots((8, 9)), pessimistic=True, wait=5)
        await Slot.intervals.amove(rows[0], 1, 4)
        with pytest.raises(OverlapError):
            await Slot.intervals.amove(rows[1], 0, 2, pessimistic=True)
        await Slot.intervals.aclose_at(rows[1], 6)
        assert await Slot.intervals.afree("d", 0, 10) == [(0, 1), (4, 5), (6, 8), (9, 10)]
        assert await all_of(Slot.intervals.afree_in(["d", "e"], 0, 2)) == [("d", 0, 1), ("e", 0, 2)]
        found = await Slot.intervals.aoverlapping("d", 3, 6)
        assert [(type(row), row.begin) for row in found] == [(Slot, 1), (Slot, 5)]
        assert [row.begin for row in await all_of(Slot.intervals.aoverlapping_in(["e", "d"], 0, 9, limit=2))] == [1, 5]

    asyncio.run(main())
    assert stored_slots() == [(1, 4), (5, 6), (8, 9)]


def test_tasks_that_wait_for_a_range_leave_the_threads_to_its_holder(memory: Engine) -> None:
    """There are more tasks than threads. If each waited in a thread, the holder could not release the range."""
    memory.bind(Slot, SlotLocks)

    async def main() -> None:
        async with Slot.locked_range("d", 0, 100):
            waits = [Slot.intervals.ainsert_disjoint(slots((n, n + 1)), pessimistic=True, wait=30) for n in range(40)]
            tasks = [asyncio.ensure_future(each) for each in waits]
            while len((await Slot.alock_state("d")).entries) < 2:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert stored_slots() == [(n, n + 1) for n in range(40)]


def test_a_cancelled_task_leaves_no_range_lock(memory: Engine) -> None:
    """Neither while it waits for the lock, nor once it has stored its rows."""
    memory.bind(Slot, SlotLocks)

    async def main() -> None:
        async with Slot.locked_range("d", 0, 100):
            task = asyncio.ensure_future(Slot.intervals.ainsert_disjoint(slots((1, 2)), pessimistic=True))
            while len((await Slot.alock_state("d")).entries) < 2:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await Slot.alock_state("d")).entries == ()

    asyncio.run(main())
    assert stored_slots() == []


def test_transactions_of_others(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their outcome, and what completes them."""
    make_long_from(monkeypatch)
    memory.bind(Purse, RowLocks, Transactions)

    def decide(*keys: str) -> str:
        """Leave a transaction that is committed, and not finished."""
        for key in keys:
            Purse(key).save()
        tx = Transaction(workers=1)
        for key in keys:
            tx.touch(tx.get(Purse, key))
        with dying_at(monkeypatch, "decision", is_answer_lost=True):
            assert not survive(tx.commit)
        return tx.id

    async def main(first: str, second: str) -> None:
        assert await Transactions.aoutcome(first) == "committed"
        assert await Transactions.arecover(first) == "finished"
        report = await Transactions.asweep(segments=2)
        assert report.finished == 1
        assert await Transactions.aoutcome(second) == "finished"

    asyncio.run(main(decide(*"abcde"), decide(*"fghij")))
    assert {purse.version for purse in Purse.scan()} == {2}


# What becomes of them when their task is cancelled

READS: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
    "aget": lambda: Purse.aget("a"),
    "acount": lambda: Purse.acount("a"),
    "alock_state": lambda: Purse.alock_state("a"),
    "ascan": lambda: all_of(Purse.ascan()),
}
WRITES: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
    "atouch": lambda: Purse.get("a").atouch(),
    "arefresh": lambda: Purse("a").arefresh(),
    "abreak_lock": lambda: Purse.abreak_lock("a", ticket=1),
    "ainsert_disjoint": lambda: Slot.intervals.ainsert_disjoint(slots((1, 2))),
}


@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_a_read_is_left_and_a_write_is_not(memory: Engine, name: str) -> None:
    memory.bind(Purse, Slot, SlotLocks, RowLocks, Transactions)
    Purse("a").save()
    begun, go_on = threading.Event(), threading.Event()
    work = {**READS, **WRITES}[name]()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    async def main() -> None:
        task = asyncio.ensure_future(work)
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        await asyncio.wait([task], timeout=5 if name in READS else 0.05)
        is_left = task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_left is (name in READS)

    with on(times=ALL).before(wait):
        asyncio.run(main())


def test_a_method_of_a_subclass_is_awaited() -> None:
    """Whoever overrides `save` need not override `asave`."""

    class Noted(Purse):
        def save(self, *_: Any, **__: Any) -> Any:
            return {"saved": "here"}

    assert asyncio.run(Noted("a").asave()) == {"saved": "here"}
