"""For tests of locks: one item with its lock inside, whose queue is empty in the end, and tests that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.workers import Beside, Locks, Plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def with_item(engine: Engine, model: Any) -> Iterator[Any]:
    """Yield a model that has the item "a"; in the end no entry is left in its queue."""
    engine.bind(*((Locks, model) if model is Beside else (model,)))
    model("a").save()
    yield model
    assert model.lock_state("a").entries == ()


@pytest.fixture
def plain_item(dynoxide: Engine) -> Iterator[Any]:
    """An item with its lock inside, in a process of its own."""
    yield from with_item(dynoxide, Plain)


@pytest.fixture
def plain_item_in_memory(memory: Engine) -> Iterator[Any]:
    """The same in memory."""
    yield from with_item(memory, Plain)
