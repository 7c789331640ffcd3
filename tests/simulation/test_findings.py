"""What the simulator has found in the library and is not mended yet. Each becomes a regression once it is."""

from __future__ import annotations

import json

import pytest

from tests.simulation.engine.choices import Listed
from tests.simulation.engine.faults import Fault
from tests.simulation.plans import Plan
from tests.simulation.run import run
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.doubt import IdleHolders, LockedCreate, TransactCheck, TransactCreate

#: Workload, rounds, choices: the first copy of a write is late, the second one is refused, then the first one lands.
FOUND = [
    (IdleHolders, 1, [1, 0, 0, 0, 1, 1, 0, 1]),
    (IdleHolders, 2, [0, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1]),
    (TransactCreate, 1, [1, 1, 0, 1]),
    (TransactCheck, 1, [1, 1, 0, 1]),
    (LockedCreate, 1, [0, 0, 1, 1, 0, 1]),
]


@pytest.mark.xfail(reason="refused while an earlier copy may still be applied", strict=True)
@pytest.mark.parametrize(
    ("workload", "rounds", "choices"), FOUND, ids=["save", "transaction", "create", "check", "locked create"]
)
def test_refused_means_never_applied(workload, rounds, choices, monkeypatch):
    """Where a copy is on its way, and what refuses the other one can pass, the outcome is unknown, not refused."""
    monkeypatch.setitem(WORKLOADS, workload.name, workload)
    result = run(Plan(workload.name, rounds=rounds, faults={Fault.LATE: 1}), Listed(choices))
    assert result.error is None, f"{json.dumps(choices)}: {result.error}"
