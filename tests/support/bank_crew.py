"""The processes of the bank of `tests.support.bank`, and what they say at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support import nursery
from tests.support.bank import MODELS, Clerk, is_long, kind_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.engine import Engine


def crew_of(folder: Path, engine: Engine, seed: str, size: int) -> nursery.Crew:
    """Let so many clerks begin, with their logs in a folder."""
    forks = nursery.Nursery(nursery.use, nursery.places_of(engine, MODELS.values()))
    return nursery.Crew(forks, folder, size, _live, seed, folder)


def _live(_pipe: object, number: int, seed: str, folder: Path) -> None:
    Clerk(number, seed, folder).work()


@dataclass
class Ledger:
    """What the clerks say of their transfers, by label."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """``begin`` for one whose clerk was killed, ``committed``, ``refused`` or ``unknown``."""

    @classmethod
    def of(cls, folder: Path) -> Ledger:
        """Read all logs."""
        ledger = cls()
        for log in folder.glob("*.log"):
            for event, label in map(str.split, log.read_text().splitlines()):
                if event != "begin" or label not in ledger.outcomes:  # another clerk may have ended what one began
                    ledger.outcomes[label] = event
        return ledger

    def resumed(self) -> int:
        """How many transfers were committed by a clerk that went on with them."""
        return sum(told == "committed" and kind_of(label) == "s" for label, told in self.outcomes.items())

    def count(self) -> Counter[str]:
        """How often each outcome came, by the size of the transaction."""
        return Counter(f"{outcome} {'long' if is_long(label) else 'short'}" for label, outcome in self.outcomes.items())
