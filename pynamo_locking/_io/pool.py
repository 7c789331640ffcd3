"""Runs jobs in a few threads, each in the context of the caller, so that the caller's locks guard them as well."""

from __future__ import annotations

import contextvars
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pynamo_locking._io import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("pynamo_locking")


class Pool:
    """A number of jobs, none of which may raise.

    Args:
        jobs: what to do.
        workers: how many at once.
        on_done: called in the caller's thread with the index of each job that is done.

    Attributes:
        begun: the indexes of the jobs that were begun.
        is_over: whether running jobs should end: the caller is interrupted, or all are done.
    """

    def __init__(self, jobs: Sequence[Callable[[], None]], workers: int, on_done: Callable[[int], None]) -> None:
        self._jobs = jobs
        self._workers = min(workers, len(jobs))
        self._on_done = on_done
        self._waiting = deque(range(len(jobs)))
        self._done: deque[int] = deque()
        self._running = 0
        self.begun: set[int] = set()
        self.is_over = False
        self._changed = runtime.current.condition()

    def run(self) -> None:
        """Do all jobs, and return when none is running.

        If `on_done` raises, or the caller is interrupted, no other job is begun.
        """
        try:
            for number in range(self._workers):
                if not self._start(is_needed=number == 0):
                    break
            for _ in self._jobs:
                self._on_done(self._next_done())
        finally:
            self._stop()

    def _start(self, *, is_needed: bool) -> bool:
        """Start one more thread; False if there is none, and the running threads have to do all."""
        context = contextvars.copy_context()
        try:
            runtime.current.spawn(lambda: context.run(self._work), name="pynamo-locking-batch")
        except RuntimeError:
            if is_needed:
                raise  # no thread would do anything
            logger.warning("no thread to help with a batch", exc_info=True)
            return False
        return True

    def _work(self) -> None:
        while True:
            with self._changed:
                # Stay close to the caller, so that it can still stop the jobs after an error that it has not heard of.
                while self._waiting and len(self._done) >= self._workers:
                    runtime.current.wait(self._changed, None)
                if not self._waiting:
                    return
                index = self._waiting.popleft()
                self.begun.add(index)
                self._running += 1
            try:
                self._jobs[index]()
            finally:
                with self._changed:
                    self._running -= 1
                    self._done.append(index)
                    self._changed.notify_all()

    def _next_done(self) -> int:
        with self._changed:
            while not self._done:
                runtime.current.wait(self._changed, None)
            self._changed.notify_all()
            return self._done.popleft()

    def _stop(self) -> None:
        try:
            self._send_home()
            with self._changed:
                while self._running:
                    runtime.current.wait(self._changed, None)
        finally:
            self._send_home()  # if the caller was interrupted once more, perhaps before it was done

    def _send_home(self) -> None:
        """Begin no other job, and end the threads that wait for the caller."""
        self.is_over = True
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()


def run_all(jobs: Sequence[Callable[[], object]], workers: int) -> None:
    """Do all jobs; a single one in this thread. After the first failure begin no other job, and raise it."""
    if len(jobs) == 1:
        jobs[0]()
        return
    failures = list[BaseException]()

    def guarded(job: Callable[[], object]) -> None:
        if not failures:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                failures.append(error)

    Pool([partial(guarded, job) for job in jobs], workers, lambda _: None).run()
    if failures:
        raise failures[0]
