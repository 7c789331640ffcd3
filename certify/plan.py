"""What a run is to do, and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

#: The stages, in the order in which they run.
STAGES: Final = {
    "contract": "What the package needs of DynamoDB: conditions, atomicity, transactions, returned images",
    "locks": "Locks while their holders are killed: counters are exact, and tickets are served in order",
    "answers": "Lost requests and lost answers: each change is applied once, and no conflict is reported by mistake",
    "transactions": "Transactions while processes are killed: each snapshot has the same sum",
    "contention": "One lock that all processes want: turns a second, and requests a turn",
    "latencies": "How long each operation takes",
}

#: So many items a long transaction writes in the latency stage, one more than DynamoDB allows in one request.
LONG: Final = 101

#: Accounts of the bank; small enough for one TransactGetItems.
ACCOUNTS: Final = 20

#: One in so many transfers of the bank is a long transaction.
LONG_EVERY: Final = 25

#: Forms of a change whose answers are lost; see `work.answers`.
FORMS: Final = 6

#: Write and read units of a long transaction.
_LONG_WRITES: Final = 230
_LONG_READS: Final = 110


class Place(NamedTuple):
    """Where the tables are."""

    prefix: str
    region: str | None = None
    endpoint: str | None = None

    def table(self, kind: str) -> str:
        """Return the name of a table: ``contract``, ``items``, ``locks`` or ``transactions``."""
        return f"{self.prefix}certify-{kind}"


@dataclass(frozen=True)
class Price:
    """US dollars for a million request units on demand.

    The default is that of us-east-1 on 21 November 2026, by https://aws.amazon.com/dynamodb/pricing/on-demand/.
    """

    read: float = 0.125
    write: float = 0.625

    def of(self, reads: float, writes: float) -> float:
        """Return what so many units cost, in dollars."""
        return (reads * self.read + writes * self.write) / 1e6


class Units(NamedTuple):
    """Read and write units."""

    reads: float
    writes: float


@dataclass(frozen=True)
class Plan:
    """What is done.

    Attributes:
        scale: 1 is some minutes in a Region; all counts grow with it.
        stages: the names of the stages to run.
        seed: of all choices.
    """

    scale: float = 1.0
    stages: tuple[str, ...] = tuple(STAGES)
    seed: str = ""

    def _count(self, at_one: int, least: int) -> int:
        return max(least, round(at_one * self.scale))

    @property
    def workers(self) -> int:
        """How many processes work at once."""
        return self._count(8, 2) if self.scale < 1 else 8

    @property
    def lease(self) -> float:
        """The lease of locks and transactions, in seconds: so long a killed process holds up the others."""
        return 6.0 if self.scale >= 1 else 3.0

    @property
    def turns(self) -> int:
        """How many times a counter is incremented under kills, and how many transfers there are."""
        return self._count(600, 40)

    @property
    def kills(self) -> int:
        """How many processes are killed in the stage of locks, and again in that of transactions."""
        return self._count(12, 1)

    @property
    def snapshots(self) -> int:
        """How many snapshots of the bank are taken."""
        return self._count(50, 5)

    @property
    def rounds(self) -> int:
        """How many times each form of a change loses answers, and how many times each operation is timed."""
        return self._count(100, 4)

    @property
    def contended(self) -> int:
        """How many turns are taken at one lock."""
        return self._count(400, 40)

    @property
    def longs(self) -> int:
        """How many long transactions are timed."""
        return self._count(10, 1)

    def estimate(self, stage: str) -> Units:
        """Return the units that a stage will use; the factors are what dynoxide reports, rounded up.

        It counts as DynamoDB documents it: two units for each item of a transaction, also for one that is only checked.
        """
        long = self.turns / LONG_EVERY
        changes = FORMS * self.rounds
        return {
            "contract": Units(700, 2_300),
            "locks": Units(1.0 * self.turns, 3.3 * self.turns + 10 * self.kills),
            "answers": Units(2.2 * changes, 3.4 * changes),
            "transactions": Units(
                3.5 * self.turns + 2.5 * ACCOUNTS * self.snapshots + _LONG_READS * long,
                4.5 * self.turns + _LONG_WRITES * (long + self.kills / 4),
            ),
            "contention": Units(1.0 * self.contended, 2.2 * self.contended),
            "latencies": Units(
                3.5 * self.rounds + _LONG_READS * self.longs, 13.5 * self.rounds + _LONG_WRITES * self.longs
            ),
        }[stage]

    def estimates(self) -> Units:
        """Return the units that all stages will use."""
        units = [self.estimate(stage) for stage in self.stages]
        return Units(sum(each.reads for each in units), sum(each.writes for each in units))
