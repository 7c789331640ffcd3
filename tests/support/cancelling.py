"""Runs coroutines and cancels their tasks where they wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.support.workers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator


class Cancelled:
    """Runs a coroutine and cancels its task at the n-th place where it waits.

    Args:
        coroutine: what to run.
        place: which place; from 1.
        how: "begins": as soon as it waits there; "ends": when what it waits for is there, before it hears of it;
            "again": as soon as it waits there, and wherever it waits after that.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], place: int, how: str) -> None:
        self._coroutine = coroutine
        self._place = place
        self._how = how
        self.places = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        me = asyncio.current_task()
        assert me is not None
        resume: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                waited = resume()
            except StopIteration as done:
                return done.value
            self.places += 1
            if self.places == self._place and self._how == "ends" and waited is not None:
                waited.add_done_callback(lambda _: me.cancel())
            elif self.places == self._place or (self._how == "again" and self.places > self._place):
                me.cancel()
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - thrown on
                resume = lambda error=error: self._coroutine.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                resume = lambda: self._coroutine.send(None)  # noqa: E731


async def ended(task: asyncio.Task[Any]) -> bool:
    """Wait for a task; tell whether it went through."""
    [done], _ = await asyncio.wait([task], timeout=PATIENCE)
    if done.cancelled():
        return False
    error = done.exception()
    assert error is None, repr(error)
    return True
