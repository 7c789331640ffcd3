"""Partitions that have no units left: what the simulated DynamoDB serves of them, and that nothing is violated."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pynamo_locking_testing._engine.choices import Seeded
from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.scheduler import LATENCY_S
from pynamo_locking_testing._engine.strategies import STRATEGIES
from tests.simulation.bench import Bench, addition, place
from tests.simulation.plans import Plan
from tests.simulation.run import run

REFUSED = "ProvisionedThroughputExceededException"
#: Everything takes its turn there: far fewer than the parties would use.
UNITS = 4.0
SEEDS = 6


def test_so_many_units_in_a_second() -> None:
    """A key that is written without a pause gets its burst of a second, and then its rate, in virtual time."""
    bench = Bench(steps=False)
    bench.network.limit(10)
    bench.spawn("hot", *[lambda: bench.add_one("a")] * 3000)
    bench.play()

    heard = Counter(bench.heard["hot"])
    assert set(heard) == {"done", REFUSED}
    assert bench.count("a") == heard["done"] == pytest.approx(10 + 10 * heard["done"] * LATENCY_S, abs=2)


def test_time_gives_units_back_and_other_keys_keep_theirs() -> None:
    """Refused, while another key is served; served again once time has passed."""
    bench = Bench(steps=False)
    bench.network.limit(1)
    bench.spawn(
        "hot",
        *[lambda: bench.add_one("a")] * 2,
        lambda: bench.add_one("b"),
        lambda: bench.get("a"),
        lambda: bench.sleep(1.5),
        lambda: bench.add_one("a"),
    )
    bench.play()

    assert bench.heard["hot"] == ["done", REFUSED, "done", 1, None, "done"]


@pytest.mark.parametrize("steps", [False, True])
def test_a_transaction_hears_which_action_it_was(steps: bool) -> None:
    """It is cancelled as a whole, and the reasons name the key that is hot."""
    bench = Bench(steps=steps)
    bench.network.limit(1)
    both = [{"Update": addition(key, 1)} for key in ("a", "b")]
    bench.spawn("hot", *[lambda: bench.add_one("b")] * 2, lambda: bench.send("TransactWriteItems", TransactItems=both))
    bench.play()

    assert bench.heard["hot"][-1] == ("None", "ThrottlingError")
    assert bench.network.image(place("a")) is None


@pytest.mark.parametrize("steps", [False, True])
def test_a_transaction_pays_twice(steps: bool) -> None:
    """Each of its actions takes two units, so that the next write has to wait for a second, and is served then."""
    bench = Bench(steps=steps)
    bench.network.limit(1)
    add = {"Update": addition("a", 1)}
    bench.spawn(
        "client",
        lambda: "done" if bench.send("TransactWriteItems", TransactItems=[add]) else "",
        lambda: bench.sleep(0.9),
        lambda: bench.add_one("a"),
        lambda: bench.sleep(0.2),
        lambda: bench.add_one("a"),
    )
    bench.play()

    assert bench.heard["client"] == ["done", None, REFUSED, None, "done"]


def test_a_partition_that_others_use_up_is_spent_for_a_while() -> None:
    """The fault refuses what it strikes and what follows, of that key alone, and botocore's waits may outlast it."""
    bench = Bench(fault=Fault.HOT, steps=False)
    bench.faults.operation = "UpdateItem"
    bench.spawn(
        "client",
        lambda: bench.add_one("a"),
        lambda: bench.add_one("a"),
        lambda: bench.add_one("b"),
        lambda: bench.get("a"),
        lambda: bench.sleep(0.5),
        lambda: bench.add_one("a"),
    )
    bench.play()

    assert bench.heard["client"] == [REFUSED, REFUSED, "done", 0, None, "done"]


@pytest.mark.parametrize("workload", ["embedded", "edit", "separate row", "modify", "transact write", "readers"])
def test_workloads_on_partitions_that_are_spent(workload: str) -> None:
    """Where most requests are refused for lack of units, late copies and crashes besides: nothing is violated."""
    happened = Counter[Fault]()
    for seed in range(SEEDS):
        chance = random.Random(f"partitions {workload} {seed}")
        faults = {Fault.LATE: 1, Fault.LOST_RESPONSE: 1, Fault.CRASH_AFTER: 1} if seed % 2 else {}
        plan = Plan(workload, 3, 3, 2, faults=faults, has_jitter=True, write_units=UNITS)
        strategy = STRATEGIES[tuple(STRATEGIES)[seed % len(STRATEGIES)]]
        result = run(plan, Seeded(chance, strategy(chance), {"fault": 0.1}), twice=True)
        assert result.error is None, f"{workload} {seed}: {result.error}"
        happened += result.happened
    assert happened[Fault.HOT] > 0, "nothing was throttled"
