"""The processes of the bank of `tests.support.bank`: started, killed and awaited, and what they say at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.bank import MODELS, Clerk, is_long, kind_of
from tests.support.nursery import ROOT, die_with

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from tests.engines.engine import Engine


# The process that the clerks are forked from


def serve() -> None:
    """Fork, kill and await clerks, as the lines of standard input say. One that has imported everything is quick."""
    job = json.loads(sys.argv[1])
    die_with(job["parent"])
    for name, meta in job["meta"].items():
        for option, value in meta.items():
            setattr(MODELS[name].Meta, option, value)
    for line in sys.stdin:
        command, number = line.split()
        if command == "start":
            answer = _fork_clerk(int(number), job)
        else:
            os.kill(int(number), signal.SIGKILL)
            _, answer = os.waitpid(int(number), 0)
        print(answer, flush=True)  # noqa: T201 - the answer


def _fork_clerk(number: int, job: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with(parent)
        Clerk(number, job["seed"], Path(job["folder"])).work()
    except BaseException:  # noqa: BLE001 - reported, and nothing of the parent may run here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


class Crew:
    """So many clerks at work.

    Args:
        folder: for their logs.
        engine: where the bank is.
        seed: of the run.
        size: how many.
    """

    def __init__(self, folder: Path, engine: Engine, seed: str, size: int) -> None:
        self.killed: set[int] = set()
        self.folder = folder
        self._said = folder / "stderr"
        names = ("table_name", "host", "region", *engine.credentials)
        meta = {name: {option: getattr(model.Meta, option) for option in names} for name, model in MODELS.items()}
        job = {"parent": os.getpid(), "meta": meta, "seed": seed, "folder": str(folder)}
        code = "from tests.support.bank_crew import serve; serve()"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(job)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._pids: dict[int, int] = {}
        self.start(size)

    def _ask(self, command: str, number: int) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command} {number}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._said.read_text()[-4000:]
        return int(answer)

    def start(self, count: int) -> None:
        """Let so many more begin."""
        for _ in range(count):
            number = len(self._pids) + len(self.killed)
            self._pids[number] = self._ask("start", number)

    def written(self) -> int:
        """How many bytes all of them have written into their logs: some 15 for each line."""
        return sum(path.stat().st_size for path in self.folder.glob("*.log"))

    def kill(self, chooser: random.Random) -> None:
        """Kill one of them, whatever it is doing, and let another one take its place."""
        self._kill(chooser.choice(list(self._pids)))
        self.start(1)

    def kill_all(self) -> None:
        """Kill all of them."""
        for number in list(self._pids):
            self._kill(number)

    def _kill(self, number: int) -> None:
        status = self._ask("kill", self._pids.pop(number))
        assert status == signal.SIGKILL, self._said.read_text()[-4000:]
        self.killed.add(number)

    def close(self) -> None:
        """End all of them, whatever they are doing: they die with the process that they were forked from."""
        self._process.kill()
        self._process.communicate()

    def ledger(self) -> Ledger:
        """Read all logs."""
        return Ledger.of(path.read_text() for path in self.folder.glob("*.log"))


@dataclass
class Ledger:
    """What the clerks say of their transfers, by label."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """``begin`` for one whose clerk was killed, ``committed``, ``refused`` or ``unknown``."""

    @classmethod
    def of(cls, logs: Iterable[str]) -> Ledger:
        """Read logs."""
        ledger = cls()
        for log in logs:
            for event, label in map(str.split, log.splitlines()):
                if event != "begin" or label not in ledger.outcomes:  # another clerk may have ended what one began
                    ledger.outcomes[label] = event
        return ledger

    def resumed(self) -> int:
        """How many transfers were committed by a clerk that went on with them."""
        return sum(told == "committed" and kind_of(label) == "s" for label, told in self.outcomes.items())

    def count(self) -> Counter[str]:
        """How often each outcome came, by the size of the transaction."""
        return Counter(f"{outcome} {'long' if is_long(label) else 'short'}" for label, outcome in self.outcomes.items())
