"""The processes of a campaign: forked from one that has imported everything, killed, stopped, and awaited."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.campaign.models import MODELS
from tests.support.nursery import ROOT, die_with

if TYPE_CHECKING:
    import random

    from tests.engines.engine import Engine


# The process that the others are forked from


def serve() -> None:
    """Fork, kill and await, as the lines of standard input say."""
    job = json.loads(sys.argv[1])
    die_with(job["parent"])
    from tests.campaign import party, served  # noqa: F401 - for all that are forked
    from tests.engines import descriptions

    descriptions.share()
    for name, meta in job["meta"].items():
        for option, value in meta.items():
            setattr(MODELS[name].Meta, option, value)
    if job["bug"]:
        _plant(job["bug"])
    for line in sys.stdin:
        command, number = line.split()
        if command == "start":
            answer = _fork(int(number), job)
        else:
            if command == "kill":
                os.kill(int(number), signal.SIGKILL)
            answer = os.waitpid(int(number), 0)[1]
        print(answer, flush=True)  # noqa: T201 - the answer


_planted = contextlib.ExitStack()


def _plant(name: str) -> None:
    """Have a bug of `tests.simulation.planted` in the package, in all processes that are forked."""
    from tests.simulation.planted import BUGS

    [bug] = [bug for bug in BUGS if bug.name == name]
    _planted.enter_context(bug.planted())


def _fork(number: int, job: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with(parent)
        _live(number, job)
        code = 0
    except BaseException:  # noqa: BLE001 - reported, and nothing of the parent may run here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


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
        self._said = folder / "stderr"
        (folder / "go-on").touch()
        names = ("table_name", "host", "region", "connect_timeout_seconds", "read_timeout_seconds", *engine.credentials)
        job = {
            "parent": os.getpid(),
            "meta": {name: {option: getattr(model.Meta, option) for option in names} for name, model in MODELS.items()},
            "folder": str(folder),
            "memory": memory and str(memory),
            **how,
        }
        code = "from tests.campaign.crew import serve; serve()"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(job)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._pids: dict[int, float] = {}
        self._begun = 0
        for _ in range(size):
            self._start()

    def _ask(self, command: str, number: int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command} {number}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.said()
        return int(answer)

    def said(self) -> str:
        """Return what they have written to standard error."""
        return self._said.read_text()[-4000:]

    def _start(self) -> None:
        self._pids[self._ask("start", self._begun)] = 0.0
        self._begun += 1

    def kill(self, chooser: random.Random) -> None:
        """Kill one of them, whatever it is doing, and let another one take its place."""
        pid = chooser.choice(list(self._pids))
        del self._pids[pid]
        status = self._ask("kill", pid)
        assert status == signal.SIGKILL, self.said()
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
            status = self._ask("wait", self._pids.popitem()[0])
            assert status == 0, self.said()

    def close(self) -> None:
        """End all of them, whatever they are doing: they die with the process that they were forked from."""
        self._process.kill()
        self._process.communicate()
