"""Writes that go past the open transaction of their instance, and changes that no `save` of it has said."""

from __future__ import annotations

import asyncio
import gc
import pickle
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import TransactWrite, transaction, transactional
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.transactions import Transaction
from tests.support.interval_models import Slot, SlotLocks
from tests.support.transaction_models import Purse, purses
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


def by(kind: Any) -> Callable[[Purse], None]:
    def save(purse: Purse) -> None:
        with kind(connection=Purse._get_connection().connection) as actions:
            actions.save(purse)

    return save


def batched(effect: str, **options: bool) -> Callable[[Purse], None]:
    def write(purse: Purse) -> None:
        with Purse.guarded_batch(**options) as batch:
            batch.save(Purse("another"))
            getattr(batch, effect)(purse)

    return write


def unguarded(effect: str) -> Callable[[Purse], None]:
    def write(purse: Purse) -> None:
        with Purse.batch_write(unguarded=True) as batch:
            getattr(batch, effect)(purse)

    return write


def edit(purse: Purse) -> None:
    with Purse.edit(purse.purse_id) as edited:
        edited.balance = 0


def modify(purse: Purse, **options: bool) -> None:
    Purse.modify(purse.purse_id, lambda mine: setattr(mine, "balance", 0), **options)


SINGLE: dict[str, Callable[[Purse], object]] = {
    "save": Purse.save,
    "update": lambda purse: purse.update([Purse.balance.set(0)]),
    "delete": Purse.delete,
    "touch": Purse.touch,
    "asave": lambda purse: asyncio.run(purse.asave()),
    "TransactWrite": by(TransactWrite),
    "batch.save": batched("save"),
    "batch.delete": batched("delete"),
    "batch in transactions": batched("save", transactions=True),
    "batch_write.save": unguarded("save"),
    "batch_write.delete": unguarded("delete"),
    "edit": edit,
    "modify": modify,
}


def read(tx: Transaction) -> Purse:
    return tx.get(Purse, "p0")


def given(write: str) -> Callable[[Transaction], Purse]:
    def give(tx: Transaction) -> Purse:
        purse = Purse.get("p0", consistent_read=True)
        getattr(tx, write)(purse)
        return purse

    return give


def new(tx: Transaction) -> Purse:
    purse = Purse("new")
    tx.save(purse)
    return purse


HELD = {"read": read, "saved": given("save"), "deleted": given("delete"), "new": new}


@pytest.mark.parametrize("hold", HELD.values(), ids=HELD.keys())
@pytest.mark.parametrize("write", SINGLE.values(), ids=SINGLE.keys())
def test_a_write_past_the_transaction_is_refused(
    cheap: Engine, write: Callable[[Purse], object], hold: Callable[[Transaction], Purse]
) -> None:
    """Before anything is sent, with the call that takes part; and each attempt would have done it again."""
    purses(1)
    attempts = []

    @transactional()
    def work(tx: Transaction) -> None:
        purse = hold(tx)
        attempts.append(purse)
        with count_requests() as counted, pytest.raises(ConfigurationError, match=r"Purse\('(p0|new)'\).*tx\.save"):
            write(purse)
        assert not counted.by_operation
        tx.rollback()

    work()
    assert len(attempts) == 1
    assert Purse.get("p0", consistent_read=True).balance == 100


def test_the_error_ends_the_work_at_once(cheap: Engine) -> None:
    """Nothing is written, and nothing is retried: with ten attempts, 100 became 0."""
    purses(1)

    @transactional()
    def withdraw(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        purse.balance -= 10
        purse.save()

    with pytest.raises(ConfigurationError, match="nothing was sent"):
        withdraw()
    assert Purse.get("p0", consistent_read=True).balance == 100


def drop(_: Transaction) -> None:
    """Neither commit nor roll back."""


ENDS: dict[str, Callable[[Transaction], object]] = {
    "commit": Transaction.commit,
    "rollback": Transaction.rollback,
    "error": lambda tx: tx.__exit__(ValueError, ValueError(), None),
    "suspend": Transaction.suspend,
    "resume": lambda tx: Transaction().resume(tx.suspend(), [Purse]),
    "drop": drop,
}


@pytest.mark.parametrize("hold", [read, given("save")], ids=["read", "saved"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_after_the_end_it_is_an_ordinary_instance(
    cheap: Engine, end: Callable[[Transaction], object], hold: Callable[[Transaction], Purse]
) -> None:
    """However the transaction has ended, even if nobody ended it."""
    purses(1)
    tx = Transaction()
    purse = hold(tx)
    with pytest.raises(ConfigurationError):
        purse.save()
    end(tx)
    del tx
    gc.collect()
    purse.balance = 7
    purse.save()
    assert Purse.get("p0", consistent_read=True).balance == 7


def test_other_instances_are_ordinary(cheap: Engine) -> None:
    """Another instance of the same item, one of another transaction, and one that was sent to another process."""
    purses(3)
    outer = Transaction(isolation="read_committed")
    first, second, third = (outer.get(Purse, f"p{i}") for i in range(3))
    Purse.get("p0").update([Purse.balance.set(1)])
    with transaction() as tx:
        second.balance = 2
        tx.save(second)
    copy: Purse = pickle.loads(pickle.dumps(third))
    copy.balance = 3
    copy.save()
    outer.rollback()
    assert [Purse.get(f"p{i}", consistent_read=True).balance for i in range(3)] == [1, 2, 3]
    assert first.balance == 100


def test_rows_with_intervals(cheap: Engine) -> None:
    """Their own ways to be stored are transactions of other instances of `Transaction`, and go past it as well."""
    cheap.bind(Slot, SlotLocks)
    old = Slot("d", 1, end=3)
    old.save()
    with transaction() as tx:
        row, new = tx.get(Slot, "d", 1), Slot("d", 5, end=6)
        tx.insert_disjoint(Slot, [new])
        ways: list[Callable[[], object]] = [
            *(new.save, lambda: Slot.intervals.insert_disjoint([new]), lambda: Slot.intervals.move(row, 1, 4)),
            *(lambda: Slot.intervals.close_at(row, 2), lambda: row.update([Slot.end.set(4)])),
        ]
        for way in ways:
            with pytest.raises(ConfigurationError, match=r"tx\.save"):
                way()
        tx.move(row, 1, 2)
    row.save()
    writes = TransactWrite(connection=Slot._get_connection().connection)
    with writes:
        writes.move(new, 7, 8)
    new.save()
    assert [(slot.begin, slot.end) for slot in Slot.query("d", consistent_read=True)] == [(1, 2), (7, 8)]


# Changes without a save


def test_a_change_that_is_not_saved_is_told(cheap: Engine) -> None:
    """The commit names the item and what was changed, and commits the rest."""
    purses(2)
    tx = Transaction()
    forgotten, saved = (tx.get(Purse, f"p{i}") for i in range(2))
    for purse in (forgotten, saved):
        purse.balance, purse.note = 7, "changed"
    tx.save(saved)
    with pytest.warns(UserWarning, match=r"Purse\('p0'\).*\(balance, note\).*tx\.save") as told:
        tx.commit()
    assert len(told) == 1
    assert [Purse.get(f"p{i}", consistent_read=True).balance for i in range(2)] == [100, 7]


def changed_back(tx: Transaction) -> None:
    purse = tx.get(Purse, "p0")
    purse.balance, purse.tags = 7, {"b"}
    purse.balance, purse.tags = 100, {"a"}


def rolled_back(tx: Transaction) -> None:
    tx.get(Purse, "p0").balance = 7
    tx.rollback()


def savepoint(tx: Transaction) -> None:
    purse, point = tx.get(Purse, "p0"), tx.savepoint()
    purse.balance = 7
    tx.save(purse)
    point.rollback()


def read_later(tx: Transaction) -> None:
    purse = Purse("p0", balance=7)
    tx.check(Purse.get("p0"))
    assert tx.get(Purse, "p0") is not purse


def refreshed(tx: Transaction) -> None:
    purse = tx.get(Purse, "p0")
    purse.balance = 7
    purse.refresh(consistent_read=True)


def updated(tx: Transaction) -> None:
    tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])


@pytest.mark.parametrize("work", [changed_back, rolled_back, savepoint, read_later, refreshed, updated])
def test_nothing_is_told_without_a_reason(memory: Engine, work: Callable[[Transaction], None]) -> None:
    purses(1, tags={"a"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tx = Transaction()
        work(tx)
        with suppress(ConfigurationError):  # rolled back
            tx.commit()
    assert not told


def test_a_warning_that_is_an_error_commits_nothing(memory: Engine) -> None:
    """As in a test run with such a filter, which would else notice it too late."""
    purses(2)
    with pytest.raises(UserWarning, match="not saved"), transaction() as tx:
        tx.get(Purse, "p0").balance = 7
        tx.delete(tx.get(Purse, "p1"))
    assert Purse.get("p1", consistent_read=True).balance == 100
