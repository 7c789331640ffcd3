"""Machines whose clocks differ by ten seconds run a job once in a period, also if a third of the runs are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.lengths import short_or_long
from tests.support.nightly import PERIOD_S, Jobs
from tests.support.nursery import ROOT
from tests.support.workers import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.engine import Engine

pytestmark = [
    pytest.mark.waits,
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

MACHINES: Final = short_or_long(6, 12)
PERIODS: Final = short_or_long(5, 15)


def play(engine: Engine, log: Path, seed: int, killed: float) -> list[dict[str, Any]]:
    """Let the machines work, and return what they have noted."""
    engine.bind(Jobs)
    names = ("table_name", "host", "region", *engine.credentials)
    meta = {name: getattr(Jobs.Meta, name) for name in names}
    given = {"meta": meta, "log": str(log), "seed": seed, "killed": killed, "machines": MACHINES, "periods": PERIODS}
    command = [sys.executable, "-m", "tests.support.nightly", json.dumps(given)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE * PERIODS)
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.timeout(60 * PERIODS)
@pytest.mark.parametrize("killed", [0.0, 1 / 3])
def test_each_period_has_one_success(dynoxide, tmp_path, killed):
    """None has two, and none has none; those that are behind skip the period that is over."""
    notes = play(dynoxide, tmp_path / "log", 7, killed)
    succeeded = Counter(note["period"] for note in notes if note["event"] == "succeeded")
    events = Counter(note["event"] for note in notes)
    tickets = [note["ticket"] for note in notes if note["event"] == "began"]
    first = max(succeeded) - (PERIODS - 1) * PERIOD_S

    assert [succeeded[first + number * PERIOD_S] for number in range(PERIODS)] == [1] * PERIODS
    assert set(succeeded.values()) == {1}, "nor in the period before the first, which machines that are behind may run"
    assert set(succeeded) <= {first + number * PERIOD_S for number in range(-1, PERIODS)}
    assert tickets == sorted(set(tickets)), "runs begin one after the other"
    assert (events["killed"] > 0) is (killed > 0)
    assert events["began"] == succeeded.total() + events["killed"] + events["lost"]
    assert events["done"] + events["began"] == MACHINES * PERIODS
    noted = Jobs.lock_state("nightly").success
    assert noted is not None
    assert noted.period_ms == max(succeeded) * 1000
