"""A lock that is lost or broken: who hears of it, once, and what can be done afterwards."""

from __future__ import annotations

import threading
from unittest.mock import AsyncMock

import pytest
from pynamodb.exceptions import TransactWriteError

from pynamo_locking import TransactWrite
from pynamo_locking._locks.release import evict_dead
from pynamo_locking.exceptions import ConfigurationError, LockLost
from tests.support.models import APART, Locks
from tests.support.parties import in_thread
from tests.support.wire import is_save, on

pytestmark = pytest.mark.core


def test_an_eviction_seen_from_an_old_image_leaves_its_trace(account):
    """A holder that was evicted as one of several entries learns it: its edit is not reported as saved."""
    ahead = account.locked("a", heartbeat=False, settings=APART).acquire()
    edit, old = account.edit("a", wait=60, heartbeat=False), []

    def edit_it():
        with edit as item:
            item.balance = 0
            evict_dead(edit.lock._handle.target.row, old[0].waiters, old[0])

    def let_it_in():
        old.append(account.lock_state("a"))
        ahead.release()

    with on("UpdateItem").after(let_it_in), on("UpdateItem", where=is_save).lose_request(), pytest.raises(LockLost):
        in_thread(edit_it)
    assert account.get("a").balance == 100


@pytest.mark.parametrize("end", [TransactWriteError, ZeroDivisionError], ids=["refused", "never-sent"])
def test_a_delete_that_was_not_applied_hides_no_loss(account, end):
    """After a transaction that was to delete the item has failed, a later deletion by others is a loss."""
    with pytest.raises(LockLost), account.locked("a", heartbeat=False) as lock:
        with pytest.raises(end), TransactWrite(connection=account._get_connection().connection) as write:
            write.delete(lock.item, condition=account.balance == 12345)
            if end is ZeroDivisionError:
                raise ZeroDivisionError
        client = account._get_connection().connection.client
        key = {"account_id": {"S": "a"}}
        client._make_api_call("DeleteItem", {"TableName": account.Meta.table_name, "Key": key})


def test_a_refresh_starts_afresh_after_a_loss(account):
    """Reading is never refused."""
    with pytest.raises(LockLost), account.locked("a", heartbeat=False) as lock:
        item = lock.item
        account.break_lock("a", ticket=lock.ticket)
        with pytest.raises(LockLost):
            item.save()
        item.refresh()
        assert item.balance == 100


def test_breaking_tells_what_it_did(account):
    """An answer that got lost does not turn a removed entry into one that was not there."""
    lock = account.locked("a", heartbeat=False).acquire()
    with on("UpdateItem", where=lambda body: "#e0" in body.get("UpdateExpression", "")).lose_response():
        assert account.break_lock("a", ticket=lock.ticket) is True
    assert account.break_lock("a", ticket=lock.ticket) is False
    with pytest.raises(LockLost):
        lock.release()


def test_every_listener_hears_of_the_loss_once(account):
    """Also one that was given when the lock was taken again, however often."""
    heard, all_heard = [], threading.Barrier(3)

    def listener(name):
        def on_lost(reason):
            heard.append((name, reason))
            all_heard.wait()

        return on_lost

    outer, inner = listener("outer"), listener("inner")
    with (
        pytest.raises(LockLost),
        account.locked("a", heartbeat=False, on_lost=outer) as lock,
        account.locked("a", on_lost=inner),
        account.locked("a", on_lost=outer),
    ):
        account.break_lock("a", ticket=lock.ticket)
        with pytest.raises(LockLost):
            lock.renew()
        all_heard.wait()
    assert sorted(heard) == [("inner", "evicted"), ("outer", "evicted")]


@pytest.mark.parametrize("on_lost", [AsyncMock(), "call me"], ids=["coroutine function", "text"])
def test_on_lost_can_be_called(account, on_lost):
    """A thread calls it: a coroutine function would never run, and the holder would not hear of the loss."""
    with pytest.raises(ConfigurationError, match="plain function"):
        account.locked("a", on_lost=on_lost)
    with pytest.raises(ConfigurationError, match="plain function"):
        Locks.locked_range("a", 0, 1, on_lost=on_lost)


def test_a_loss_is_told_once(account, caplog):
    """Leaving a block on the loss itself says nothing more; leaving it on something else does."""
    for error, others in ((None, 0), (ValueError("something else"), 1)):
        caplog.clear()
        with pytest.raises((LockLost, ValueError)), account.locked("a") as lock:
            account.break_lock("a", ticket=lock.ticket)
            if error is not None:
                raise error
            lock.item.save()
        assert [record.levelname for record in caplog.records if "while leaving" in record.message] == [
            "WARNING"
        ] * others
