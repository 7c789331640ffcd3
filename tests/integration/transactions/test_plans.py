"""A plan predicts the path and the requests of its commit, and the progress that it reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pynamo_locking import transaction
from pynamo_locking.transactions import Transaction
from tests.support.transaction_helpers import units
from tests.support.transaction_models import Purse, purses

if TYPE_CHECKING:
    from tests.engines.engine import Engine


KINDS = ["insert", "update", "save", "delete", "unread", "mixed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 9], ids=["single", "native", "long"])
def test_a_plan_costs_what_it_says(
    dynoxide: Engine, kind: str, count: int, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plan() predicts the path and the requests, for every path and operation."""
    if kind != "insert":
        purses(count, note="x" * 700)
    tx = Transaction()
    for i in range(count):
        each = KINDS[i % 5] if kind == "mixed" else kind
        if each == "insert":
            tx.save(Purse(f"n{i}", note="x" * 700))
            continue
        if each == "unread":
            tx.update(Purse(f"p{i}"), [Purse.balance.set(1)], add_version_condition=False)
            continue
        item = tx.get(Purse, f"p{i}")
        if each == "update":
            tx.update(item, [Purse.balance.add(1)])
        elif each == "save":
            item.balance = 1
            tx.save(item)
        else:
            tx.delete(item)
    plan = tx.plan()
    assert plan.path == ("single" if count == 1 else "native" if count <= 4 else "long")
    requests, *_ = units(monkeypatch, tx.commit)
    assert plan.requests == requests


@pytest.mark.parametrize(
    ("count", "requests"), [(1, 1), (2, 1), (10, 1), (99, 1), (100, 1), (101, 6), (250, 13), (1000, 51)]
)
def test_the_requests_that_the_page_of_costs_states(count: int, requests: int) -> None:
    """docs/reference/costs.md: of a commit of one item, of up to 100 actions, and of more."""
    text = (Path(__file__).parents[3] / "docs/reference/costs.md").read_text(encoding="utf-8")
    assert "1,000 inserts 51" in text
    tx = Transaction()
    for i in range(count):
        tx.save(Purse(f"n{i}"))
    assert tx.plan().requests == requests


def test_a_plan_of_one_addition_costs_what_it_says(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a version check it needs a token, for twice the units; a value that is set, or a check, needs none."""
    [item] = purses(1)
    for action, is_blind, path in (
        (Purse.balance.add(1), True, "native"),
        (Purse.balance.set(1), True, "single"),
        (Purse.balance.add(1), False, "single"),
    ):
        item.refresh()
        tx = Transaction()
        tx.update(item, [action], add_version_condition=not is_blind)
        plan = tx.plan()
        assert plan.path == path
        requests, written, _ = units(monkeypatch, tx.commit)
        assert (plan.requests, requests, written) == (1, 1, 2 if path == "native" else 1)


def test_one_addition_under_its_lock_costs_one_unit(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock counts the write, and so refuses a second copy; and the instance is what is stored then."""
    purses(1)
    with Purse.locked("p0") as lock:
        tx = Transaction()
        tx.update(lock.item, [Purse.balance.add(1)], add_version_condition=False)
        assert tx.plan().path == "single"
        assert units(monkeypatch, tx.commit)[:2] == (1, 1)
        lock.item.save()
    assert Purse.get("p0").balance == 101


def test_a_plan_of_reads_costs_what_it_says(dynoxide: Engine, few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for reads alone, and for many reads beside many writes."""
    purses(9, note="x" * 700)
    for reads, writes in ((1, 0), (9, 0), (1, 2), (7, 2), (1, 6)):
        tx = Transaction()
        for i in range(reads):
            tx.get(Purse, f"p{i}")
        for i in range(writes):
            tx.save(Purse(f"{reads} {writes} {i}"))
        plan = tx.plan()
        requests, *_ = units(monkeypatch, tx.commit)
        assert plan.requests == requests, (reads, writes, plan)


def test_progress(few: None) -> None:
    """on_progress counts up to the number of all, and ends there."""
    calls: list[tuple[int, int]] = []
    with transaction(on_progress=lambda done, of: calls.append((done, of))) as tx:
        for i in range(10):
            tx.save(Purse(f"n{i}"))
        plan = tx.plan()
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == calls[-1][1]
    assert {of for _, of in calls} == {2 * len(plan.staged)}
