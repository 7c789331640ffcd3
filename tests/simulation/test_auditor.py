"""The auditor of streams beside the simulator: whatever goes wrong, nothing is found in what this package writes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking.contrib.streams import Auditor
from pynamo_locking_simulator._engine.choices import Seeded
from pynamo_locking_simulator._engine.strategies import STRATEGIES
from tests.simulation.models import ALL
from tests.simulation.plans import random_plan
from tests.simulation.run import Run
from tests.simulation.workloads import WORKLOADS
from tests.support.streams import record_of

if TYPE_CHECKING:
    from pynamo_locking_simulator._engine.network import Change, Request

AUDITOR = Auditor(ALL)


def found_in(workload: str, seed: int) -> tuple[int, list[str]]:
    """Return how many records a run has made, and what was found in them."""
    plan = random_plan(workload, seed)
    chance = random.Random(f"audited {workload} {seed}")
    run = Run(plan.plan, Seeded(chance, STRATEGIES[plan.strategy](chance), {"fault": plan.rate}))
    found, count = list[str](), 0

    def see(request: Request, changes: list[Change]) -> None:
        nonlocal count
        purpose: Any = request.purpose
        for change in changes:
            if change.before != change.after and not (purpose is not None and purpose.is_stock):
                count += 1
                keys = [
                    each["AttributeName"]
                    for each in run.network._store.table(change.place.table).description["KeySchema"]
                ]
                is_by_ttl, at_s = request.operation == "TTL", run.network.time_ms() / 1000
                record = record_of(
                    change.place.table, keys, change.before, change.after, at_s=at_s, is_by_ttl=is_by_ttl
                )
                found.extend(map(str, AUDITOR.audit([record])))

    run.network.on_changes.append(see)
    result = run.execute()
    assert result.error is None
    if plan.plan.has_skew:  # an item that has expired by such a clock has not by that of DynamoDB
        found = [each for each in found if "version_back" not in each]
    return count, found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_nothing_is_found_in_any_workload(part: int) -> None:
    """Locks, versions, transactions, intervals, unique values, jobs and calls, under random faults."""
    counts = 0
    for workload in sorted(WORKLOADS)[part::4]:
        count, found = found_in(workload, part)
        assert found == [], workload
        counts += count
    assert counts > 100
