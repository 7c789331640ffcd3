"""Async generators that hold a lock, and are closed before their end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import locked_all
from pynamo_locking._io import client, concurrency
from pynamo_locking._locks import held_lock
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
def slow(memory, monkeypatch):
    """The same, whose answers to tasks take their time: who does not wait for them has gone on meanwhile."""
    dispatch = client.dispatch

    def late(*args: Any) -> Any:
        if threading.current_thread().name == "pynamo-locking-asyncio":
            time.sleep(0.05)  # nothing depends on it, but that the test cannot succeed by chance
        return dispatch(*args)

    monkeypatch.setattr(client, "dispatch", late)
    return memory


def is_free() -> bool:
    return Plain.lock_state("a").entries == Beside.lock_state("a").entries == ()


async def locked() -> AsyncIterator[int]:
    async with Plain.locked("a", lease=600):
        yield 1
        yield 2


async def edited() -> AsyncIterator[int]:
    async with Plain.edit("a", lease=600) as item:
        item.value = 5
        yield 1
        yield 2


async def all_locked() -> AsyncIterator[int]:
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
    assert held_lock.holds_nothing()
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
        with pytest.MonkeyPatch.context() as patch:
            dispatch, seen = client.dispatch, []

            def cancelling(*args: Any) -> Any:
                seen.append(1)
                if len(seen) == 2:
                    cancelled = threading.Event()
                    loop.call_soon_threadsafe(task.cancel)
                    loop.call_soon_threadsafe(cancelled.set)
                    assert cancelled.wait(PATIENCE)
                return dispatch(*args)

            patch.setattr(client, "dispatch", cancelling)
            with pytest.raises(asyncio.CancelledError):
                await task
        assert is_free()

    asyncio.run(main())
    until(lambda: not concurrency.blocking_threads._threads, "the threads to leave")
