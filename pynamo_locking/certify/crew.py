"""The child processes of a run: started, killed and awaited."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking.certify.meter import CAPPED, Ledger, Meter
from pynamo_locking.certify.work import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

    from pynamo_locking.certify.plan import Place, Plan

    Work = Callable[[Job], dict[str, Any]]

#: A child that does not end by then hangs: no stage takes so long.
PATIENCE_S: Final = 3600.0
_POLL_S: Final = 0.005


class CapReached(Exception):  # noqa: N818 - it is no error
    """A child would have used more units than the cap allows."""


class ChildFailed(Exception):  # noqa: N818 - it is an answer
    """A child has ended with an error."""


class Child(NamedTuple):
    """One child process."""

    process: BaseProcess
    slot: int
    pipe: Connection


def context() -> ForkServerContext | SpawnContext:
    """Return how children are started: forked from a process that has imported everything, where there is fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload([__name__])
    return made


class Crew:
    """The children of a run.

    Args:
        place: where the tables are.
        plan: what they do.
        cap: on the units that all of them use together.
    """

    def __init__(self, place: Place, plan: Plan, cap: float) -> None:
        self._place = place
        self.plan = plan
        self._context = context()
        self.ledger = Ledger(self._context, cap)
        self._children: list[Child] = []
        self.first = 0
        self._give_up = time.monotonic() + PATIENCE_S

    def begin_stage(self) -> None:
        """Let children that are started from now on belong to a new stage."""
        self.close()
        self.first = self.ledger.new_slot()
        self._give_up = time.monotonic() + PATIENCE_S

    def start(self, work: Work) -> Child:
        """Start a child that does this."""
        slot = self.ledger.new_slot()
        ours, theirs = self._context.Pipe(duplex=False)
        job = Job(self._place, self.plan, self.ledger, slot, self.first)
        process = self._context.Process(target=_live, args=(work, job, theirs), daemon=True)
        process.start()
        theirs.close()
        child = Child(process, slot, ours)
        self._children.append(child)
        return child

    def kill(self, child: Child) -> bool:
        """SIGKILL a child; tell whether it was in the middle of a turn."""
        child.process.kill()
        child.process.join()
        self._children.remove(child)
        return self.ledger.of(child.slot, "holds") > 0

    def until(self, is_so: Callable[[], object]) -> None:
        """Wait while the children work.

        Raises:
            CapReached: a child has stopped at the cap.
            ChildFailed: a child has ended with an error.
        """
        while not is_so():
            self._check()
            time.sleep(_POLL_S)

    def _check(self, but: Child | None = None) -> None:
        """Raise what has ended a child; its answer, if it has one, may wait."""
        for child in self._children:
            if child is not but and child.process.exitcode not in (None, 0):
                self.result(child)
        if time.monotonic() > self._give_up:
            raise ChildFailed(f"the stage has not ended within {PATIENCE_S:.0f} s")

    def result(self, child: Child) -> dict[str, Any]:
        """Wait for the end of a child, and return what it has found.

        Raises:
            CapReached, ChildFailed: as for `until`.
        """
        while not child.pipe.poll(_POLL_S):  # also at its end
            self._check(but=child)
        try:
            is_well, found = child.pipe.recv()
        except EOFError:
            child.process.join()
            if child.process.exitcode == CAPPED:
                raise CapReached from None
            raise ChildFailed(f"a child process has ended with exit code {child.process.exitcode}") from None
        if not is_well:
            raise ChildFailed(found)
        answer: dict[str, Any] = found
        return answer

    def run(self, work: Work) -> dict[str, Any]:
        """Let one child do this, and return what it has found."""
        return self.result(self.start(work))

    def close(self) -> None:
        """End all children."""
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.process.join()
            child.pipe.close()
        self._children.clear()


# In the child


def _live(work: Work, job: Job, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent as well, which ends us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    logging.getLogger("pynamo_locking").addHandler(logging.NullHandler())  # evictions of killed processes
    Meter(job.ledger, job.slot).install()
    try:
        answer: tuple[bool, Any] = (True, work(job))
    except Exception as error:  # noqa: BLE001 - the parent tells of it
        where = traceback.extract_tb(error.__traceback__)[-1]
        answer = (False, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
    pipe.send(answer)
    if not answer[0]:
        raise SystemExit(1)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
