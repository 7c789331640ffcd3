"""The contenders as they are set up for a run: with their published settings, and some with our poll interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.contenders import CONTENDERS, Contender, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The interval at which the first waiter of our queue looks, by default.
OUR_POLL_S: Final = 0.1


@dataclass(frozen=True)
class Variant:
    """One contender with its settings. Processes are told which by this.

    Attributes:
        key: in `CONTENDERS`.
        poll_s: time between two looks of a waiter; None for the published default.
    """

    key: str
    poll_s: float | None = None

    @property
    def kind(self) -> type[Contender]:
        """The contender's class."""
        return CONTENDERS[self.key]

    @property
    def name(self) -> str:
        """As it stands in the tables."""
        return self.kind.name if self.poll_s is None else f"{self.kind.name}, polls like ours"

    @property
    def pace_s(self) -> float:
        """How long it sleeps between two looks; 0 if it does not poll."""
        return self.poll_s or self.kind.poll_s or 0.0

    def build(self, place: Place, lease_s: float | None = None) -> Contender:
        """Return it, ready to work at a place."""
        return self.kind(place, poll_s=self.poll_s, lease_s=lease_s)

    @property
    def slug(self) -> str:
        """A name for tables of DynamoDB and folders."""
        return self.kind.__name__.lower() + ("" if self.poll_s is None else "-tuned")


def variants(wanted: Callable[[type[Contender]], bool], *, tuned: bool = False) -> Iterator[Variant]:
    """Yield the contenders that can run here.

    Args:
        wanted: which of them.
        tuned: whether those that poll more seldom than we do also run with our interval.
    """
    for key, kind in CONTENDERS.items():
        if wanted(kind) and not kind.unavailable():
            yield Variant(key)
            if tuned and (kind.poll_s or 0) > OUR_POLL_S:
                yield Variant(key, OUR_POLL_S)


def missing() -> list[str]:
    """Say which contenders cannot run here, and why."""
    return [f"{kind.name}: {why}" for kind in CONTENDERS.values() if (why := kind.unavailable())]
