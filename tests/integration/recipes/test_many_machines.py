"""Machines whose clocks differ by ten seconds run a job once in a period, also if a third of the runs are killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Final

import pytest

from tests.support.crew import places_of
from tests.support.nightly import PERIOD_S, Jobs, play

pytestmark = [
    pytest.mark.waits,
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

MACHINES: Final = 8
PERIODS: Final = 10


@pytest.mark.timeout(60 * PERIODS)
@pytest.mark.parametrize("killed", [0.0, 1 / 3])
def test_each_period_has_one_success(dynoxide, tmp_path, killed):
    """None has two, and none has none; those that are behind skip the period that is over."""
    dynoxide.bind(Jobs)
    log = tmp_path / "log"
    play(places_of(dynoxide, [Jobs]), log, 7, MACHINES, PERIODS, killed)
    notes = [json.loads(line) for line in log.read_text().splitlines()]
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
