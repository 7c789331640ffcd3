"""The processes of the bank of `tests.support.bank`: started, killed and awaited, and what they say at the end."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import forks
from tests.support.bank import MODELS, Clerk, is_long, kind_of

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from tests.engines.engine import Engine


def serve() -> None:
    """Be the process that the clerks are forked from."""
    job = json.loads(sys.argv[1])
    forks.use(MODELS, job["meta"])
    forks.serve(job["parent"], lambda number: Clerk(number, job["seed"], Path(job["folder"])).work())


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
        job = {
            "parent": os.getpid(),
            "meta": forks.meta_of(MODELS, engine),
            "seed": seed,
            "folder": str(folder),
        }
        code = "from tests.support.bank_crew import serve; serve()"
        self._forks = forks.Forks(folder / "stderr", code, json.dumps(job))
        self._pids: dict[int, int] = {}
        self.start(size)

    def start(self, count: int) -> None:
        """Let so many more begin."""
        for _ in range(count):
            number = len(self._pids) + len(self.killed)
            self._pids[number] = self._forks.start(number)

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
        self._forks.kill(self._pids.pop(number))
        self.killed.add(number)

    def close(self) -> None:
        """End all of them, whatever they are doing."""
        self._forks.close()

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
