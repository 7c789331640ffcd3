"""Copies of a locked item: which of them are saved, and what is said of the others."""

from __future__ import annotations

import copy
import pickle

import pytest

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import ConfigurationError, ItemLocked, StaleVersion
from tests.support.models import Account, Device, Locks, declare
from tests.support.parties import in_thread

pytestmark = pytest.mark.core


def test_items_of_a_lock_can_be_copied_and_pickled(account):
    """A copy writes under the same lock; what is unpickled is outside of it."""
    with account.locked("a") as lock:
        copied = copy.deepcopy(lock.item)
        unpickled = pickle.loads(pickle.dumps(lock.item))
        copied.balance = 3
        copied.save()
        assert account.lock_state("a").holders[0].writes == 1
        assert unpickled.balance == 100
        with pytest.raises(ItemLocked):
            in_thread(unpickled.save)


def test_a_copy_from_an_earlier_lock_is_not_saved(account, device):
    """It could undo what others wrote in between; an update of it is fine, and so is a fresh read."""
    for model, key, action in ((account, "a", Account.balance.add(1)), (device, "d", Device.total.add(1))):
        with model.locked(key) as lock:
            stale = lock.item
        with model.locked(key):
            with pytest.raises(ConfigurationError, match="earlier lock"):
                stale.save()
            stale.update([action])
            stale.refresh()
            stale.save()


Loose = declare("Loose", numbers="n", lock_table=Locks)


def test_a_copy_from_before_an_update_of_another_one_is_not_saved(memory):
    """Both are of the same lock, in a row of its own; there is no version by which DynamoDB would refuse it."""
    memory.bind(Locks, Loose)
    Loose("k").save()
    with Loose.locked("k") as lock:
        item = lock.item
        Loose.get("k").update([Loose.n.add(1)])
        with pytest.raises(StaleVersion):
            item.save()
        item.refresh()
        item.save()
    assert Loose.get("k").n == 1


def test_an_item_that_gets_another_key_before_the_commit_is_the_one_that_was_given(account):
    """The transaction writes what it was given, under the lock of that."""
    with account.locked("a") as lock, TransactWrite(connection=account._get_connection().connection) as write:
        write.update(lock.item, [account.balance.add(1)])
        lock.item.account_id = "b"
    assert account.get("a").balance == 101
    with pytest.raises(account.DoesNotExist):
        account.get("b")
