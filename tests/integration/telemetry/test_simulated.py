"""Events under the simulator: faults, crashes and pauses do not confuse them, and they change nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from pynamo_locking import events
from pynamo_locking.events import Acquired, Event, Lost, Released
from tests.simulation.explore import run_seed

LOCKS = ("embedded", "edit", "break lock")
OTHERS = ("bank", "long transactions")
SEEDS = range(2)


@pytest.mark.parametrize("workload", LOCKS + OTHERS)
def test_a_run_is_the_same_with_a_listener(workload: str) -> None:
    """Every request at the same time, with the same answer: listening costs no request and no turn."""
    for seed in SEEDS:
        alone = run_seed(workload, seed, twice=False)
        with events.subscribe(lambda _: None):
            heard = run_seed(workload, seed, twice=False)
        assert heard.error is alone.error is None
        assert heard.trace == alone.trace
        assert heard.choices == alone.choices


@pytest.mark.parametrize("workload", LOCKS)
def test_each_stay_is_told_whole(workload: str) -> None:
    """It is acquired once, and then released or lost once at most."""
    ends = 0
    for seed in SEEDS:
        told: list[Event] = []
        with events.subscribe(told.append, (Acquired, Released, Lost)):
            assert run_seed(workload, seed, twice=False).error is None
        taken = [event.entry_id for event in told if isinstance(event, Acquired)]
        ended = [event.entry_id for event in told if isinstance(event, (Released, Lost))]
        assert max(Counter(taken).values(), default=0) <= 1
        assert max(Counter(ended).values(), default=0) <= 1
        assert set(ended) <= set(taken)
        for entry_id in ended:
            kinds = [type(event) for event in told if event.entry_id == entry_id]  # type: ignore[attr-defined]
            assert kinds[0] is Acquired
        ends += len(ended)
    assert ends > len(SEEDS)
