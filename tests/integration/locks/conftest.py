"""For tests of locks: one item with its lock inside, whose queue is empty in the end."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking.exceptions import LockTimeout
from tests.support.parties import held_elsewhere, in_thread
from tests.support.workers import Beside, Locks, Plain, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from tests.engines.engine import Engine


def bind(engine: Engine, model: Any, *keys: str) -> tuple[type[Any], ...]:
    """Bind a model, and the table of its locks if that is another one; save some items; return what was bound."""
    models = (Locks, Beside) if model is Beside else (model,)
    engine.bind(*models)
    for key in keys:
        model(key).save()
    return models


def with_item(engine: Engine, model: Any) -> Iterator[Any]:
    """Yield a model that has the item "a"; in the end no entry is left in its queue."""
    bind(engine, model, "a")
    yield model
    assert model.lock_state("a").entries == ()


@pytest.fixture
def plain_item(memory: Engine) -> Iterator[Any]:
    """An item with its lock inside, in memory."""
    yield from with_item(memory, Plain)


class Way:
    """How a party uses locks: by calls that block, or by those that a task awaits."""

    def __init__(self, name: str) -> None:
        self.is_awaited = name == "task"

    @asynccontextmanager
    async def __call__(self, block: Any) -> AsyncIterator[Any]:
        """Enter a block by `with`, or by `async with`."""
        if self.is_awaited:
            async with block as value:
                yield value
        else:
            with block as value:
                yield value

    async def call(self, lock: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a lock, or await the other one."""
        return await getattr(lock, f"a{method}")(*arguments) if self.is_awaited else getattr(lock, method)(*arguments)

    async def apart(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Let another party work: a task of this loop, or a thread."""
        if self.is_awaited:
            return await asyncio.create_task(work())
        return in_thread(lambda: asyncio.run(work()))

    async def is_free(self, lock: Any) -> bool:
        """Whether another party gets a lock at once."""

        async def attempt() -> bool:
            try:
                await self.call(lock, "acquire", 0)
            except LockTimeout:
                return False
            await self.call(lock, "release")
            return True

        return bool(await self.apart(attempt))


@pytest.fixture(params=["thread", "task"])
def way(request: pytest.FixtureRequest) -> Way:
    """Each way to use locks."""
    return Way(request.param)


def granted_in_turn(model: Any, key: str, holder: Any, *waiters: tuple[Any, Any]) -> list[Any]:
    """Let others line up behind a holder, each a name and a lock; return the names in the order of the grants."""
    granted = list[Any]()

    def take(name: Any, lock: Any) -> None:
        with lock:
            granted.append(name)

    with ThreadPoolExecutor(len(waiters)) as pool, held_elsewhere(holder):
        for waiting, waiter in enumerate(waiters, 1):
            pool.submit(take, *waiter)
            until_waiting(model, key, waiting)
        assert granted == []
    return granted


def until_waiting(model: Any, key: str, count: int = 1) -> list[Any]:
    """Wait until so many are in the queue behind the holders; return their entries."""
    until(lambda: len(model.lock_state(key).waiters) >= count, f"{count} waiters")
    return list(model.lock_state(key).waiters)
