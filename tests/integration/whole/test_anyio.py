"""Cancel scopes of anyio, as FastAPI and Starlette have them: they cancel a task in each pass of its event loop."""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any, Final

import anyio
import pytest

from pynamo_locking import atransaction
from tests.support.wire import on
from tests.support.workers import Versioned

#: Of the loop, while one request takes its time. Without a shield there are tens of thousands in a second.
MOST_PASSES: Final = 100


class Passes(selectors.DefaultSelector):
    """Counts the passes of an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def select(self, timeout: float | None = None) -> Any:
        self.count += 1
        return super().select(timeout)


async def save(item: Any) -> None:
    item.value = 1
    await item.asave()


async def modify(_item: Any) -> None:
    await Versioned.amodify("a", lambda item: setattr(item, "value", 1))


async def edit(_item: Any) -> None:
    async with Versioned.edit("a") as item:
        item.value = 1


async def release(_item: Any) -> None:
    async with Versioned.locked("a"):
        pass


async def commit(_item: Any) -> None:
    async with atransaction() as tx:
        item = await tx.get(Versioned, "a")
        item.value = 1
        await tx.save(item)


@pytest.fixture
def item(memory):
    memory.bind(Versioned)
    item = Versioned("a", value=0)
    item.save()
    return item


@pytest.mark.parametrize(
    ("work", "request_at", "value"),
    [(save, 1, 1), (modify, 1, 1), (edit, 1, 0), (edit, 3, 1), (release, 2, 0), (release, 3, 0), (commit, 1, 1)],
)
def test_the_rest_of_a_request_is_awaited_in_a_shield(item, work, request_at, value):
    """The request is finished, the cancellation is heard after it, and the loop is not kept busy meanwhile."""
    passes, loops, scopes = Passes(), list[asyncio.AbstractEventLoop](), list[anyio.CancelScope]()

    def cancel_and_hold_up() -> None:
        loops[0].call_soon_threadsafe(scopes[0].cancel)
        time.sleep(0.3)

    async def cancelled() -> bool:
        loops.append(asyncio.get_running_loop())
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await work(item)
        return scope.cancelled_caught

    loop = asyncio.SelectorEventLoop(passes)
    try:
        with on("UpdateItem", "PutItem", "TransactWriteItems", nth=request_at).before(cancel_and_hold_up):
            assert loop.run_until_complete(cancelled())
    finally:
        loop.close()
    assert passes.count < MOST_PASSES
    assert Versioned.get("a", consistent_read=True).value == value
    assert Versioned.lock_state("a").entries == ()
