"""The worker processes, as their parent sees them."""

from __future__ import annotations

import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Self

from demo import teller
from tests.support.nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection

    from demo.teller import Message, Order
    from tests.support.nursery import Child


class WorkerDiedError(RuntimeError):
    """A worker ended that nobody had killed."""


class Crew:
    """Some worker processes. Use it as a context manager: none of them outlives it."""

    def __init__(self, names: Iterable[str], host: str) -> None:
        self._nursery = Nursery()
        self._workers: dict[str, Child] = {}
        try:
            for name in names:
                self._workers[name] = self._nursery.start(teller.main, name, host)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, name: str, order: Order) -> None:
        """Give an order to one worker."""
        self._workers[name].pipe.send(order)

    def messages(self, timeout: float) -> Iterator[tuple[str, Message]]:
        """Yield what the workers said, waiting at most so long for the first word."""
        names: dict[Any, str] = {worker.pipe: name for name, worker in self._workers.items()}
        for pipe in cast("list[Connection[Order, Message]]", wait(list(names), timeout)):
            name = names[pipe]
            try:
                while pipe.poll():
                    yield name, pipe.recv()
            except (EOFError, ConnectionResetError) as error:
                raise WorkerDiedError(f"{name} ended by itself: {self._workers[name].said()}") from error

    def kill(self, name: str) -> float:
        """End a worker with SIGKILL and return the time right before."""
        now = time.monotonic()
        self._workers.pop(name).close()
        return now

    def close(self) -> None:
        """End all workers."""
        self._nursery.close()
