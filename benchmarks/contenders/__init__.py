"""Everybody who counts up an item that others count up as well: this package, and what people use instead.

The algorithms of others are written from their sources, which each module names, request by request, with their
published defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.contenders.aws_lock_client import AwsLockClient
from benchmarks.contenders.base import Contender, Place
from benchmarks.contenders.ours import Combine, Edit, LockedInItem, LockedInRow, Modify, Named
from benchmarks.contenders.postgres import PostgreSQL
from benchmarks.contenders.pynamodb_alone import PlainUpdates, RetryLoop, Unprotected
from benchmarks.contenders.python_dynamodb_lock import PythonDynamoDBLock
from benchmarks.contenders.ticket_seed import TicketScheme

__all__ = ["CONTENDERS", "PLAIN", "Contender", "Place", "Variant", "missing", "variants"]

_IN_ORDER: Final[tuple[type[Contender], ...]] = (
    Unprotected,
    RetryLoop,
    Edit,
    LockedInItem,
    LockedInRow,
    Named,
    Modify,
    Combine,
    TicketScheme,
    AwsLockClient,
    PythonDynamoDBLock,
    PostgreSQL,
)

#: All, in the order of the tables. The first is the yardstick.
CONTENDERS: Final[dict[str, type[Contender]]] = {each.name: each for each in _IN_ORDER}
#: The interval at which the first waiter of our queue looks, by default.
OUR_POLL_S: Final = 0.1


@dataclass(frozen=True)
class Variant:
    """One contender with its settings. Processes are told which by this.

    Attributes:
        kind: the contender's class.
        poll_s: time between two looks of a waiter; None for the published default.
    """

    kind: type[Contender]
    poll_s: float | None = None

    @property
    def name(self) -> str:
        """As it stands in the tables."""
        return self.kind.name if self.poll_s is None else f"{self.kind.name}, polls like ours"

    @property
    def slug(self) -> str:
        """A name for tables of DynamoDB and folders."""
        return self.kind.__name__.lower() + ("" if self.poll_s is None else "-tuned")

    @property
    def pace_s(self) -> float:
        """How long it sleeps between two looks; 0 if it does not poll."""
        return self.poll_s or self.kind.poll_s or 0.0

    def build(self, place: Place, lease_s: float | None = None) -> Contender:
        """Return it, ready to work at a place."""
        return self.kind(place, poll_s=self.poll_s, lease_s=lease_s)


#: What no chain of changes that depend on each other can outrun.
PLAIN: Final = Variant(PlainUpdates)


def variants(*, tuned: bool = False) -> list[Variant]:
    """Return the contenders that can run here. Tuned: those that poll more seldom than we do also with our interval."""
    found = []
    for kind in CONTENDERS.values():
        if not kind.unavailable():
            found.append(Variant(kind))
            if tuned and (kind.poll_s or 0) > OUR_POLL_S:
                found.append(Variant(kind, OUR_POLL_S))
    return found


def missing() -> list[str]:
    """Say which contenders cannot run here, and why."""
    return [f"{kind.name}: {why}" for kind in CONTENDERS.values() if (why := kind.unavailable())]
