"""A plan predicts the path and the costs of its commit, and the progress that it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pynamo_locking import Transaction, transaction
from tests.support.transaction_helpers import units
from tests.support.transaction_models import Purse, Transactions, make_long_from, purses

if TYPE_CHECKING:
    from tests.engines.engine import Engine


KINDS = ["insert", "update", "save", "delete", "mixed"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 9], ids=["single", "native", "long"])
def test_a_plan_costs_what_it_says(dynoxide: Engine, kind: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """plan() predicts the path, the requests and the units that DynamoDB counts, for every path and operation."""
    dynoxide.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    if kind != "insert":
        purses(count, note="x" * 700)
    tx = Transaction()
    for i in range(count):
        each = KINDS[i % 4] if kind == "mixed" else kind
        if each == "insert":
            tx.save(Purse(f"n{i}", note="x" * 700))
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
    requests, written, read = units(monkeypatch, tx.commit)
    assert (plan.requests, plan.read_units) == (requests, read)
    assert plan.write_units == written


def test_a_plan_of_one_addition_costs_what_it_says(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a version check it needs a token, for twice the units; a value that is set, or a check, needs none."""
    dynoxide.bind(Purse, Transactions)
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
        assert (plan.requests, plan.write_units) == (requests, written) == (1, 2 if path == "native" else 1)


def test_one_addition_under_its_lock_costs_one_unit(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock counts the write, and so refuses a second copy; and the instance is what is stored then."""
    dynoxide.bind(Purse, Transactions)
    purses(1)
    with Purse.locked("p0") as lock:
        tx = Transaction()
        tx.update(lock.item, [Purse.balance.add(1)], add_version_condition=False)
        assert (tx.plan().path, tx.plan().write_units) == ("single", 1)
        assert units(monkeypatch, tx.commit)[:2] == (1, 1)
        lock.item.save()
    assert Purse.get("p0").balance == 101


def test_a_plan_of_reads_costs_what_it_says(dynoxide: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for reads alone, and for many reads beside many writes."""
    dynoxide.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    purses(9, note="x" * 700)
    for reads, writes in ((1, 0), (9, 0), (1, 2), (7, 2), (1, 6)):
        tx = Transaction()
        for i in range(reads):
            tx.get(Purse, f"p{i}")
        for i in range(writes):
            tx.save(Purse(f"{reads} {writes} {i}"))
        plan = tx.plan()
        requests, written, read = units(monkeypatch, tx.commit)
        assert (plan.requests, plan.write_units, plan.read_units) == (requests, written, read), (reads, writes, plan)


def test_a_plan_counts_the_rows_of_the_transaction_to_the_byte(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the keys are that its row of participants names: a byte more can be a unit more."""
    memory.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    found = set[float]()
    for longer in range(0, 140, 3):
        tx = Transaction()
        for i in range(3):
            tx.save(Purse(f"direct{longer}{i}", note="x" * 700))
        for i in range(7):
            tx.save(Purse(f"{i}{longer:03}" + "x" * (75 + (longer if i == 0 else 0))))
        plan = tx.plan()
        assert (plan.path, plan.rows) == ("long", 1)
        requests, written, _ = units(monkeypatch, tx.commit)
        assert (plan.requests, plan.write_units) == (requests, written), longer
        found.add(written)
    assert len(found) == 2  # the border was among them


@pytest.mark.parametrize("count", [2, 9], ids=["native", "long"])
def test_a_plan_counts_a_long_idempotency_key(memory: Engine, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Its row is as long as the key, and that of a record as the label of the owner."""
    memory.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    for length in (1, 900, 960, 1_000):
        tx = Transaction(idempotency_key="k" * length, record=True, owner="o" * 256)
        for i in range(count):
            tx.save(Purse(f"{length} {i}"))
        plan = tx.plan()
        requests, written, _ = units(monkeypatch, tx.commit)
        assert (plan.requests, plan.write_units) == (requests, written), length


def test_progress(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """on_progress counts up to the number of all, and ends there."""
    memory.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    calls: list[tuple[int, int]] = []
    with transaction(on_progress=lambda done, of: calls.append((done, of))) as tx:
        for i in range(10):
            tx.save(Purse(f"n{i}"))
        plan = tx.plan()
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == calls[-1][1]
    assert {of for _, of in calls} == {2 * len(plan.staged)}
