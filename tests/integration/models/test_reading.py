"""Reads inside and beside locks."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import pytest

from pynamo_locking import LockableModel, transaction
from pynamo_locking.exceptions import ConfigurationError, LockLost, TransactionConflict
from pynamo_locking_testing import VirtualClock
from tests.integration.items.test_expiry import Session
from tests.support.deeds import dying_at
from tests.support.models import Account, Device, Locks
from tests.support.transaction_models import (
    Purse,
    Robot,
    RowLocks,
    Transactions,
    make_long_from,
    marked_rows,
    purses,
    survive,
)
from tests.support.wire import count_requests, on


def test_reads_of_other_models_inside_a_lock(account, engine):
    """A model without a place for locks, and a key that cannot be, read as they do outside."""

    class Plain(LockableModel):
        class Meta:
            table_name = "plain"

        account_id = Account.account_id

    engine.bind(Plain)
    with account.locked("a"):
        with pytest.raises(Plain.DoesNotExist):
            Plain.get("x")
        with pytest.raises(Exception) as caught:
            assert account.get("") is None
        assert not isinstance(caught.value, ConfigurationError)


def test_reads_beside_a_lock_are_transactional(device):
    """get() and refresh() of an item whose lock is in another row, inside that lock."""
    with device.locked("d"), count_requests() as counted:
        item = device.get("d")
        item.refresh()
    assert counted.by_operation == {"TransactGetItems": 2}


def test_reads_inside_a_lock_are_consistent(memory):
    """get() and refresh() show what the last holder has written, whole or in part, without being asked for it."""
    memory.bind(Locks, Device, Account)
    Device("d", state="off").save()
    Account("a").save()
    with Account.locked("a"), Device.locked("d"), count_requests() as counted:
        Account.get("a").refresh()
        Account.get("a", attributes_to_get=["balance"])
        Device.get("d", attributes_to_get=["state"])
    assert [operation for operation, _ in counted.bodies] == ["GetItem"] * 4
    are_consistent = [body.get("ConsistentRead", False) for _, body in counted.bodies]
    assert are_consistent == [True] * 4, "a read under a lock may come from a replica that lacks the last write"


def test_what_an_update_beside_a_lock_has_stored_is_read_consistently(memory):
    """The transaction returns no item, and a replica may not show it yet."""
    memory.bind(Locks, Device)
    Device("d").save()
    with Device.locked("d") as lock:
        item = lock.item
        with count_requests() as counted:
            item.update([Device.total.add(1)])
    operation, read = counted.bodies[-1]
    assert (item.total, operation, read.get("ConsistentRead")) == (1, "GetItem", True)


def test_a_read_that_comes_late_does_not_replace_the_item(memory):
    """A task was cancelled while it read, and read again: changes of the item it has then must not get lost."""
    memory.bind(Locks, Device)
    Device("d").save()
    with Device.locked("d") as lock:
        items = list[Any]()
        with on("TransactGetItems").before(lambda: items.append(lock.item)):
            items.append(lock.item)
        items[0].state = "changed"
        items[0].save()
    assert items[0] is items[1]
    assert Device.get("d").state == "changed"


def test_a_read_beside_a_lock_is_repeated_on_a_conflict(purses_and_entries, memory):
    """botocore does not repeat a TransactGetItems that another transaction has cancelled."""
    memory.bind(Robot, RowLocks)
    Robot("r").save()
    busy = "TransactionCanceledException", "TransactionConflict"
    with on("TransactGetItems").answer(busy) as sent, Robot.edit("r"):
        assert len(sent) == 2


def test_a_header_is_as_new_as_the_item_that_is_judged_by_it(memory, monkeypatch):
    """A transaction is decided while a reader waits for it, and its process dies: the reader sees what was decided."""
    memory.bind(Purse, Transactions)
    make_long_from(monkeypatch)
    names = [purse.purse_id for purse in purses(5)]

    def change() -> None:
        with transaction(lease=3600) as tx:
            for name in names:
                tx.update(tx.get(Purse, name), [Purse.balance.set(200)])

    with VirtualClock():
        with dying_at(monkeypatch, "decision") as process:
            assert not survive(change)
        decisions = [process.sent[-1]]

        def decide() -> None:
            if decisions:
                Purse._get_connection().connection.dispatch(*decisions.pop())

        told: Any = None
        marked = marked_rows(Purse)[0]["purse_id"]["S"]
        try:
            # The item and its header are read, and then the item again: the reader has waited.
            with on("GetItem", to=Purse, nth=2).before(decide), transaction() as tx:
                told = tx.get(Purse, marked).balance
        except TransactionConflict as conflict:
            told = conflict
    assert not decisions, "the reader has not waited"
    assert told == 200, "the reader has judged what it read again by the header that it had read before"


@pytest.mark.parametrize("is_locked", [False, True])
@pytest.mark.parametrize("model", [Account, Device])
def test_what_was_read_in_part_is_saved_after_a_refresh(memory, model, is_locked):
    """Before it a save would remove what was not read: it is refused."""
    memory.bind(Locks, Account, Device)
    model("a").save()
    with model.locked("a") if is_locked else nullcontext():
        item = model.get("a", attributes_to_get=[name for name in ("account_id", "device_id") if hasattr(model, name)])
        with count_requests() as counted, pytest.raises(ConfigurationError, match=r"Call refresh\(\) first"):
            item.save()
        assert counted.total == 0
        item.refresh()
        item.save()


def test_every_read_in_part_is_noted(memory):
    """Of a batch, a query, a scan, and an index that does not have all attributes."""
    memory.bind(Session)
    saved = Session("a", 1, group="g", n=7)
    saved.save()
    found = [
        *Session.batch_get([("a", 1)], attributes_to_get=["pk", "sk"]),
        *Session.query("a", attributes_to_get=["pk", "sk"]),
        *Session.scan(attributes_to_get=["pk", "sk"]),
        *Session.with_end.query("g"),
        *Session.query("g", index_name="with-end"),
        *Session.scan(index_name="with-end"),
    ]
    assert len(found) == 6
    for item in found:
        with pytest.raises(ConfigurationError, match=r"Call refresh\(\) first"):
            item.save(add_version_condition=False)
    for item in (*Session.batch_get([("a", 1)]), *Session.everything.query("g")):
        item.save(add_version_condition=False)
    assert Session.get("a", 1).n == 7


def test_a_refresh_inside_a_lock_leaves_the_item_in_its_transaction(memory):
    """A save of it would go past the transaction, as before."""
    memory.bind(RowLocks, Robot, Transactions)
    Robot("r").save()
    with Robot.locked("r"), transaction() as tx:
        robot = tx.get(Robot, "r")
        robot.refresh()
        with pytest.raises(ConfigurationError, match="would go past it"):
            robot.save()


def test_an_item_of_a_lock_that_was_lost_is_saved_after_a_refresh(memory):
    """It belongs to that lock no longer; before, the save is refused."""
    memory.bind(Locks, Device)
    Device("d").save()
    with suppress(LockLost), Device.locked("d", heartbeat=False) as lock:
        item = lock.item
        Device.break_lock("d", ticket=lock.ticket)
        with pytest.raises(LockLost):
            item.save()
    with pytest.raises(LockLost):
        item.save()
    item.refresh()
    item.save()
    assert Device.get("d").version == 2
