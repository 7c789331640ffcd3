"""The processes of a campaign: forked from one that has imported everything, killed, stopped, and awaited."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.campaign.models import MODELS
from tests.support import forks

if TYPE_CHECKING:
    import random

    from tests.engines.engine import Engine


def serve() -> None:
    """Be the process that the others are forked from."""
    job = json.loads(sys.argv[1])
    from tests.campaign import party, served  # noqa: F401 - for all that are forked
    from tests.engines import descriptions

    descriptions.share()
    forks.use(MODELS, job["meta"])
    if job["bug"]:
        _plant(job["bug"])
    forks.serve(job["parent"], lambda number: _live(number, job))


_planted = contextlib.ExitStack()


def _plant(name: str) -> None:
    """Have a bug of `tests.simulation.planted` in the package, in all processes that are forked."""
    from tests.simulation.planted import BUGS

    [bug] = [bug for bug in BUGS if bug.name == name]
    _planted.enter_context(bug.planted())


def _live(number: int, job: dict[str, Any]) -> None:
    from tests.campaign.party import Party
    from tests.campaign.served import RemoteMemory

    logging.disable(logging.WARNING)  # each fault is told
    with RemoteMemory(job["memory"]) if job["memory"] else contextlib.nullcontext():
        Party(Path(job["folder"]), number, job["seed"], job["only"], job["slots"]).work()


# The campaign's side


class Crew:
    """So many processes at work.

    Args:
        folder: for their files.
        engine: which tables they use.
        memory: the socket of the server in memory, if that is the engine.
        size: how many.
        how: the options of a campaign: seed, bug, only, slots.
    """

    def __init__(self, folder: Path, engine: Engine, memory: Path | None, size: int, how: dict[str, Any]) -> None:
        self.killed = self.stopped = 0
        self._folder = folder
        (folder / "go-on").touch()
        job = {
            "parent": os.getpid(),
            "meta": forks.meta_of(MODELS, engine),
            "folder": str(folder),
            "memory": memory and str(memory),
            **how,
        }
        code = "from tests.campaign.crew import serve; serve()"
        self._forks = forks.Forks(folder / "stderr", code, json.dumps(job))
        self._pids: dict[int, float] = {}
        self._begun = 0
        for _ in range(size):
            self._start()

    def _start(self) -> None:
        self._pids[self._forks.start(self._begun)] = 0.0
        self._begun += 1

    def kill(self, chooser: random.Random) -> None:
        """Kill one of them, whatever it is doing, and let another one take its place."""
        pid = chooser.choice(list(self._pids))
        del self._pids[pid]
        self._forks.kill(pid)
        self.killed += 1
        self._start()

    def stop(self, chooser: random.Random, seconds: float) -> None:
        """Let one of them stand still for so long."""
        pid = chooser.choice(list(self._pids))
        os.kill(pid, signal.SIGSTOP)
        self._pids[pid] = time.monotonic() + seconds
        self.stopped += 1

    def wake(self, *, everybody: bool = False) -> None:
        """Let those go on that have stood still for long enough."""
        for pid, until in self._pids.items():
            if until and (everybody or until <= time.monotonic()):
                os.kill(pid, signal.SIGCONT)
                self._pids[pid] = 0.0

    def finish(self) -> None:
        """Wait until all of them have ended what they began."""
        self.wake(everybody=True)
        (self._folder / "go-on").unlink()
        while self._pids:
            self._forks.wait(self._pids.popitem()[0])

    def close(self) -> None:
        """End all of them, whatever they are doing."""
        self._forks.close()
