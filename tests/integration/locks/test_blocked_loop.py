"""A lock that is taken without `await` in a coroutine: what another task of the loop holds is refused at once."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking.events import Acquired, subscribe
from pynamo_locking.exceptions import ConfigurationError, LockTimeout
from tests.support.models import Account, Device, Locks
from tests.support.parties import held_elsewhere

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
