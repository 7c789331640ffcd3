"""A plan says the path of its commit, and so what the commit costs; the progress that a commit reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pynamo_locking import transaction
from pynamo_locking.transactions import Transaction
from tests.support.transaction_helpers import units
from tests.support.transaction_models import Purse, purses

if TYPE_CHECKING:
    from tests.engines.engine import Engine


#: Of nine items of each kind, where a native transaction holds four: the requests of the commit.
LONG = {"insert": 8, "update": 8, "save": 8, "delete": 8, "unread": 9, "mixed": 9}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize(("count", "path"), [(1, "single"), (3, "native"), (9, "long")])
def test_the_requests_of_each_path(
    dynoxide: Engine, kind: str, count: int, path: str, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, unless the transaction is long, for every operation."""
    if kind != "insert":
        purses(count, note="x" * 700)
    tx = Transaction()
    for i in range(count):
        each = list(LONG)[i % 5] if kind == "mixed" else kind
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
    assert tx.plan().path == path
    assert units(monkeypatch, tx.commit)[0] == (LONG[kind] if path == "long" else 1)


def test_a_plan_of_one_addition(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert tx.plan().path == path
        assert units(monkeypatch, tx.commit)[:2] == (1, 2 if path == "native" else 1)


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


@pytest.mark.parametrize(
    ("reads", "writes", "path", "requests"),
    [(1, 0, "read", 1), (9, 0, "read", 3), (1, 2, "native", 1), (7, 2, "long", 6), (1, 6, "long", 8)],
)
def test_a_plan_of_reads(
    dynoxide: Engine, reads: int, writes: int, path: str, requests: int, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for reads alone, and for many reads beside many writes."""
    purses(9, note="x" * 700)
    tx = Transaction()
    for i in range(reads):
        tx.get(Purse, f"p{i}")
    for i in range(writes):
        tx.save(Purse(f"n{i}"))
    plan = tx.plan()
    assert (plan.path, len(plan.direct) + len(plan.staged)) == (path, writes)
    assert len(plan.checked) + len(plan.validated) == reads
    assert units(monkeypatch, tx.commit)[0] == requests


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
