"""Many processes at once: no update is lost, and they are served in the order of their tickets."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from tests.integration.locks.conftest import bind
from tests.support.workers import Beside, Increment, Plain, Versioned, Worker, crew

pytestmark = [pytest.mark.alone, pytest.mark.processes]

PROCESSES = 8
#: Increments of each process.
TIMES = 50


def work(workers: list[Worker], action: str, model: Any, keys: list[list[str]]) -> list[Increment]:
    """Let all workers increment their keys, from one start signal on; return what they report."""
    for worker, share in zip(workers, keys, strict=True):
        worker.start(action, model, share)
    return [increment for worker in workers for increment in worker.result()]


def assert_served_in_order(increments: list[Increment]) -> None:
    """In the order of the tickets of an item, its values are 1, 2, 3 and so on."""
    by_key = defaultdict(list)
    for increment in increments:
        by_key[increment.key].append(increment)
    for served in by_key.values():
        served.sort(key=lambda increment: increment.ticket)
        assert [increment.value for increment in served] == list(range(1, len(served) + 1))


@pytest.mark.parametrize(
    ("model", "action", "times"), [(Plain, "edit", TIMES), (Versioned, "edit", TIMES), (Beside, "lock_and_save", 10)]
)
def test_increments_of_one_item(real_engine, model, action, times):
    """8 processes increment one item so many times each: no increment is lost, and they are in ticket order."""
    models = bind(real_engine, model, "a")
    with crew(real_engine, PROCESSES, *models) as workers:
        done = work(workers, action, model, [["a"] * times] * PROCESSES)
    assert len(done) == PROCESSES * times
    assert_served_in_order(done)
    assert model.get("a", consistent_read=True).value == PROCESSES * times
    assert model.lock_state("a").entries == ()


def test_increments_of_twenty_items(real_engine):
    """8 processes make 50 increments each on 20 items, in an order of their own: the sum is 400."""
    real_engine.bind(Plain)
    names = [f"item-{i}" for i in range(20)]
    for name in names:
        Plain(name).save()
    orders = [random.sample(names * 3, TIMES) for _ in range(PROCESSES)]
    with crew(real_engine, PROCESSES, Plain) as workers:
        done = work(workers, "edit", Plain, orders)
    assert_served_in_order(done)
    assert sum(Plain.get(name, consistent_read=True).value for name in names) == PROCESSES * TIMES
    assert all(Plain.lock_state(name).entries == () for name in names)
