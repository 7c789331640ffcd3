"""What one run is: who takes part, and what may go wrong. A plan and a list of choices are a run."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.strategies import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Wall clocks may be off by so much, which is within `max_clock_skew` of the workloads' locks; or by far more.
SKEWS_S: Final = {"none": (0.0,), "some": (0.0, 4.0, -4.0), "wild": (0.0, 3600.0, -3600.0)}

#: How fast monotonic clocks run; two of them differ by less than the library's `RATE_MARGIN`.
DRIFTS: Final = (0.0, 0.02, -0.02)

#: Of workloads in which every second party only looks, so that fewer would be one writer.
LEAST_PARTIES: Final = {"either": 4}


@dataclass(frozen=True)
class Plan:
    """The options of a run.

    Attributes:
        workload: name of what is done.
        parties: how many take part.
        processes: among how many processes they are distributed.
        rounds: how often each does it.
        faults: how often each kind of fault may happen.
        preemptions: how often a party that could go on is interrupted; None for any number.
        is_fine: hand over at mutexes, events and notifications, too.
        has_jitter: choose each jitter.
        skew: none, some, or wild: beyond `max_clock_skew`.
        has_drift: choose the rates of the clocks.
        write_units: what DynamoDB serves of one hash key in a second; None for any number.
        block: how many callers of a process may share an entry of the queue.
        has_wakeups: processes wake each other, and wake-ups are late, lost or forged.
    """

    workload: str
    parties: int = 2
    processes: int = 2
    rounds: int = 1
    faults: Mapping[Fault, int] = field(default_factory=dict)
    preemptions: int | None = None
    is_fine: bool = False
    has_jitter: bool = False
    skew: str = "none"
    has_drift: bool = False
    write_units: float | None = None
    block: int = 1
    has_wakeups: bool = False

    @property
    def has_skew(self) -> bool:
        """Whether wall clocks are further apart than the locks allow."""
        return self.skew == "wild"

    def to_json(self) -> str:
        fields = asdict(self) | {"faults": {fault.value: times for fault, times in self.faults.items()}}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that was written as text."""
        fields: dict[str, Any] = json.loads(text)
        faults = {Fault(name): times for name, times in fields.pop("faults").items()}
        return cls(**fields, faults=faults)

    def but(self, **changes: Any) -> Plan:
        """Return a plan with other options."""
        return replace(self, **changes)


@dataclass(frozen=True)
class RandomPlan:
    """A plan that follows from a seed, and how the choices of its run are made.

    Attributes:
        seed: everything follows from it.
        plan: the options of the run.
        strategy: how it is decided who runs next.
        rate: how likely a fault is at each request that it can hit.
    """

    seed: int
    plan: Plan
    strategy: str
    rate: float

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.strategy}, fault rate {self.rate:.2f}, {self.plan.to_json()}"


def random_plan(workload: str, seed: int) -> RandomPlan:
    """Derive a plan from a seed.

    Each kind of fault is possible in a quarter of all runs, and happens there at some of its chances: the two
    levels of FoundationDB's simulation, which mix rare faults in unlikely combinations.
    """
    chance = random.Random(f"{workload} {seed}")
    parties = max(chance.choice((2, 2, 3, 3, 4)), LEAST_PARTIES.get(workload, 2))
    *others, doubled, hot, replicated = Fault
    faults = {fault: chance.choice((1, 1, 2, 3)) for fault in others if chance.random() < 1 / 4}
    plan = Plan(
        workload=workload,
        parties=parties,
        processes=chance.randint(1 if parties > 2 else 2, parties),
        rounds=chance.choice((1, 1, 2)),
        faults=faults,
        is_fine=chance.random() < 1 / 2,
        has_jitter=chance.random() < 1 / 2,
        skew=chance.choice(("none", "none", "some", "some", "wild")),
        has_drift=chance.random() < 1 / 2,
    )
    rate = chance.choice((0.03, 0.1, 0.25))
    if chance.random() < 1 / 4:  # drawn last, since these came last: what follows from a seed stays what it was
        plan = plan.but(faults={**faults, doubled: chance.choice((1, 1, 2, 3))})
    if chance.random() < 1 / 4:
        plan = plan.but(faults={**plan.faults, hot: chance.choice((1, 1, 2, 3))})
    if chance.random() < 1 / 2:
        plan = plan.but(block=chance.choice((2, 32)))
    if chance.random() < 1 / 4:
        plan = plan.but(has_wakeups=True)
    if chance.random() < 1 / 4:
        plan = plan.but(faults={**plan.faults, replicated: chance.choice((1, 2, 3))})
    return RandomPlan(seed, plan, tuple(STRATEGIES)[seed % len(STRATEGIES)], rate)
