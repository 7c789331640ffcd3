"""Copies of a locked item: which of them are saved, and what is said of the others."""

from __future__ import annotations

import copy
import pickle

import pytest

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import ItemLocked, StaleVersion
from tests.support.models import Account, Device, Locks
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


def test_a_copy_from_an_earlier_lock_is_saved_if_it_is_current(account, device):
    """The version tells, and nothing else: what another holder has written in between is not taken back."""
    for model, key in ((account, "a"), (device, "d")):
        with model.locked(key) as lock:
            copied = lock.item
        with model.locked(key):
            copied.save()
        in_thread(lambda model=model, key=key: model.get(key).save())
        with model.locked(key):
            with pytest.raises(StaleVersion):
                copied.save()
            copied.refresh()
            copied.save()


@pytest.mark.parametrize("model", [Account, Device], ids=["in-the-item", "in-a-row"])
def test_a_copy_from_before_the_lock_is_refused(memory, model):
    """Read, locked, changed, saved inside: 100 that another writer has added meanwhile stay."""
    memory.bind(Locks, Account, Device)
    name = "balance" if model is Account else "total"
    model("k").save()
    copied = model.get("k")
    model.get("k").update([getattr(model, name).add(100)])
    with model.locked("k"):
        setattr(copied, name, getattr(copied, name) + 1)
        with pytest.raises(StaleVersion):
            copied.save()
        copied.refresh()
        setattr(copied, name, getattr(copied, name) + 1)
        copied.save()
    assert getattr(model.get("k"), name) == 101


def test_an_item_that_gets_another_key_before_the_commit_is_the_one_that_was_given(account):
    """The transaction writes what it was given, under the lock of that."""
    with account.locked("a") as lock, TransactWrite(connection=account._get_connection().connection) as write:
        write.update(lock.item, [account.balance.add(1)])
        lock.item.account_id = "b"
    assert account.get("a").balance == 101
    with pytest.raises(account.DoesNotExist):
        account.get("b")
