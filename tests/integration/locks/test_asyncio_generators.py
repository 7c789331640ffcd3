"""Async generators that hold a lock, and are closed before their end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import locked_all
from tests.support.wire import ALL, on
from tests.support.workers import PATIENCE, Beside, Locks, Plain, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
def memory(memory):
    """The engine with the items of these tests."""
    memory.bind(Locks, Beside, Plain)
    for model in (Plain, Beside):
        model("a").save()
    return memory


@pytest.fixture
def slow(memory):
    """The same, whose answers come when the loop has gone on: so has who does not wait for them."""

    async def go_on() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def wait() -> None:
        asyncio.run_coroutine_threadsafe(go_on(), loops[-1]).result(PATIENCE)

    with on("UpdateItem", times=ALL).before(wait):
        yield memory


#: Those of the generators that have begun.
loops: list[asyncio.AbstractEventLoop] = []


def is_free() -> bool:
    return Plain.lock_state("a").entries == Beside.lock_state("a").entries == ()


async def locked() -> AsyncIterator[int]:
    loops.append(asyncio.get_running_loop())
    async with Plain.locked("a", lease=600):
        yield 1
        yield 2


async def edited() -> AsyncIterator[int]:
    loops.append(asyncio.get_running_loop())
    async with Plain.edit("a", lease=600) as item:
        item.value = 5
        yield 1
        yield 2


async def all_locked() -> AsyncIterator[int]:
    loops.append(asyncio.get_running_loop())
    async with locked_all(Plain.locked("a", lease=600), Beside.locked("a", lease=600)):
        yield 1
        yield 2


WAYS = [locked, edited, all_locked]


@pytest.mark.parametrize("way", WAYS)
async def test_closed_by_its_task(slow, way):
    """When `aclose` returns, the lock has been given back; nothing was saved."""
    async with contextlib.aclosing(way()) as numbers:  # type: ignore[type-var]
        async for _ in numbers:
            break
    assert is_free()
    async with Plain.try_locked("a") as lock:
        assert lock is not None
    assert Plain.get("a").value == 0


@pytest.mark.parametrize("way", WAYS)
def test_left_to_the_loop(slow, way):
    """A generator that a `break` has left: when `asyncio.run` returns, the lock has been given back."""
    left: list[Any] = []

    async def main() -> None:
        left.append(way())
        async for _ in left[0]:
            break

    asyncio.run(main())
    assert is_free()
    assert Plain.get("a").value == 0


@pytest.mark.parametrize("way", WAYS)
def test_its_loop_has_gone(memory, way):
    """No task can wait: a thread gives the lock back, and nothing is raised into the collector."""

    async def hold() -> None:
        async for _ in way():
            begun.append(1)
            await loop.create_future()

    async def until_begun() -> None:
        task = loop.create_task(hold())
        while not begun:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    begun: list[int] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(until_begun())
    loop.close()
    until(lambda: gc.collect() >= 0 and is_free(), "the lock to be given back")


def test_closed_while_it_gives_the_lock_back(memory):
    """A task that is cancelled meanwhile hears of it when the lock is free."""

    async def close() -> None:
        async with contextlib.aclosing(locked()) as numbers:  # type: ignore[type-var]
            async for _ in numbers:
                break

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(close())

        def cancel() -> None:
            is_cancelled = threading.Event()
            loop.call_soon_threadsafe(task.cancel)
            loop.call_soon_threadsafe(is_cancelled.set)
            assert is_cancelled.wait(PATIENCE)

        with on("UpdateItem", nth=3).before(cancel) as release, pytest.raises(asyncio.CancelledError):
            await task
        assert release.hits == 1
        assert is_free()

    asyncio.run(main())
