"""A lock that is taken without `await` in a coroutine: what another task of the loop holds is refused at once."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import transactional
from pynamo_locking.events import Acquired, subscribe
from pynamo_locking.exceptions import ConfigurationError, ItemLocked, LockTimeout
from tests.support.models import Account, Device, Locks
from tests.support.parties import held_elsewhere
from tests.support.wire import count_requests
from tests.support.workers import Enforced
from tests.support.workers import Locks as WorkersLocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

pytestmark = pytest.mark.usefixtures("_tables")


@pytest.fixture
def _tables(memory: Engine) -> None:
    memory.bind(Locks, Account, Device)
    Account("a").save()
    Device("a").save()


def enter(block: Any) -> None:
    with block:
        pass


def change(item: Any) -> None:
    item.note = "changed"


def in_transaction(model: Any, *, count: int = 1) -> None:
    @transactional
    def run(tx: Any) -> None:
        item = tx.get(model, "a")
        change(item)
        tx.save(item)
        for number in range(1, count):
            tx.save(model(f"new{number}"))

    run()


WRITES: dict[str, Callable[[Any], Any]] = {
    "modify": lambda model: model.modify("a", change),
    "transactional": in_transaction,
    "native": lambda model: in_transaction(model, count=2),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "edit": lambda model: enter(model.edit("a")),
    "locked": lambda model: enter(model.locked("a")),
    "acquire": lambda model: model.locked("a").acquire(),
    "for a second": lambda model: enter(model.locked("a", wait=1)),
}


async def beside(take: Callable[[], Any], hold: Any, *, is_awaited: bool = True) -> Any:
    """Take a lock in one task, while another task of the loop holds it."""
    has_it, may_go = asyncio.Event(), asyncio.Event()

    async def holder() -> None:
        if is_awaited:
            async with hold:
                has_it.set()
                await may_go.wait()
        else:
            with hold:
                has_it.set()
                await may_go.wait()

    task = asyncio.create_task(holder())
    await has_it.wait()
    try:
        return take()
    finally:
        may_go.set()
        await task


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("model", [Account, Device])
def test_a_lock_of_another_task(model: Any, way: Callable[[Any], Any], is_awaited: bool) -> None:
    """The holder could not go on while the loop is blocked."""
    with pytest.raises(ConfigurationError, match=r"held by another task of the event loop .* use `async with`"):
        asyncio.run(beside(lambda: way(model), model.locked("a"), is_awaited=is_awaited))
    assert model.lock_state("a").entries == ()


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_a_lock_of_another_task_refuses(write: Callable[[Any], Any], is_awaited: bool) -> None:
    """It is not repeated: the holder could not go on meanwhile. What is not to be repeated raises what it raises."""
    with (
        count_requests() as requests,
        pytest.raises(ConfigurationError, match=r"held by another task of the event loop .* or the awaited method"),
    ):
        asyncio.run(beside(lambda: write(Account), Account.locked("a"), is_awaited=is_awaited))
    assert requests.total <= 8
    once: list[Callable[[], Any]] = [
        lambda: Account.modify("a", change, attempts=1),
        transactional(attempts=1)(lambda tx: tx.update(tx.get(Account, "a"), [Account.balance.add(1)])),
    ]
    for act in once:
        with pytest.raises(ItemLocked):
            asyncio.run(beside(act, Account.locked("a"), is_awaited=is_awaited))
    assert Account.get("a").note is None


def test_a_write_in_a_range_of_another_task(memory: Engine) -> None:
    """All writes respect the range, which is locked in a row of its own."""
    memory.bind(WorkersLocks, Enforced)
    Enforced("k", 3).save()
    with pytest.raises(ConfigurationError, match="held by another task of the event loop"):
        asyncio.run(beside(lambda: Enforced.modify("k", 3, lambda _: None), Enforced.locked_range("k", 1, 5)))


def test_a_write_that_waits_for_a_lock_elsewhere() -> None:
    """The lock of another thread, or of another task for an awaited write, is released while this one pauses."""
    held = threading.Event()

    def hold() -> None:
        with Account.locked("a"):
            held.set()
            time.sleep(0.1)

    async def ahold() -> None:
        async with Account.locked("a"):
            held.set()
            await asyncio.sleep(0.1)

    async def beside_a_thread() -> None:
        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        Account.modify("a", change)
        holder.join()

    async def beside_a_task() -> None:
        holder = asyncio.create_task(ahold())
        while not held.is_set():  # noqa: ASYNC110 - of two kinds of holders
            await asyncio.sleep(0)
        await Account.amodify("a", change)
        await holder

    for main in (beside_a_thread, beside_a_task):
        held.clear()
        asyncio.run(main())
        item = Account.get("a")
        assert item.note == "changed"
        item.update([Account.note.remove()])


def test_what_does_not_wait_for_a_task() -> None:
    """Readers beside readers, a lock that is not waited for, the task's own lock, a lock of another thread."""
    asyncio.run(beside(lambda: enter(Account.locked("a", shared=True)), Account.locked("a", shared=True)))
    with pytest.raises(LockTimeout):
        asyncio.run(beside(lambda: enter(Account.locked("a", wait=0)), Account.locked("a")))

    async def again() -> None:
        async with Account.locked("a"):
            enter(Account.edit("a"))

    asyncio.run(again())

    async def waits() -> None:
        with pytest.raises(LockTimeout):
            enter(Account.locked("a", wait=0.01))

    with held_elsewhere(Account.locked("a")):
        asyncio.run(waits())


def test_a_lock_that_was_just_granted_to_a_task() -> None:
    """The thread that has made its last request knows that, and the task does not know it yet."""
    granted, may_go = threading.Event(), threading.Event()

    def tell(_: Acquired) -> None:
        granted.set()
        may_go.wait(10)

    async def hold() -> None:
        async with Account.locked("a"):
            pass

    async def main() -> None:
        with subscribe(tell, Acquired):
            task = asyncio.create_task(hold())
            await asyncio.to_thread(granted.wait, 10)
        try:
            with pytest.raises(ConfigurationError, match="held by another task of the event loop"):
                enter(Account.locked("a", wait=1))
        finally:
            may_go.set()
            await task

    asyncio.run(main())
