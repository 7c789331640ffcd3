"""The worker processes, as their parent sees them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, cast

from typing_extensions import Self

from demo import teller

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from demo.teller import Message, Order


class WorkerDiedError(RuntimeError):
    """A worker ended that nobody had killed."""


class Crew:
    """Some worker processes. Use it as a context manager: none of them outlives it."""

    def __init__(self, names: Iterable[str], host: str) -> None:
        self._processes: dict[str, SpawnProcess] = {}
        self._pipes: dict[Connection[Order, Message], str] = {}
        # Ctrl-C is the parent's business: workers inherit the mask, and never see it. (Starting the resource
        # tracker, which the first worker would do, lifts the mask.)
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for name in names:
                self._start(name, host)
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def _start(self, name: str, host: str) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=teller.main, args=(name, theirs, host), name=name, daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self._processes[name] = process
        self._pipes[ours] = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, name: str, order: Order) -> None:
        """Give an order to one worker."""
        next(pipe for pipe, owner in self._pipes.items() if owner == name).send(order)

    def messages(self, timeout: float) -> Iterator[tuple[str, Message]]:
        """Yield what the workers said, waiting at most so long for the first word."""
        for pipe in cast("list[Connection[Order, Message]]", wait(list(self._pipes), timeout)):
            name = self._pipes[pipe]
            try:
                while pipe.poll():
                    yield name, pipe.recv()
            except (EOFError, ConnectionResetError) as error:
                raise WorkerDiedError(f"{name} ended by itself; its reason stands above.") from error

    def kill(self, name: str) -> float:
        """End a worker with SIGKILL and return the time right before."""
        pipe = next(pipe for pipe, owner in self._pipes.items() if owner == name)
        now = time.monotonic()
        self._processes[name].kill()
        self._processes[name].join()
        del self._pipes[pipe]
        pipe.close()
        return now

    def close(self) -> None:
        """End all workers."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()
        for pipe in self._pipes:
            pipe.close()
