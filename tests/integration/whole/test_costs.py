"""The cost table of the documentation: requests counted on the wire."""

from __future__ import annotations

import pytest

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import StaleVersion
from tests.support.models import APART, Account, Device, Document, Locks
from tests.support.parties import held_elsewhere
from tests.support.wire import count_requests


@pytest.fixture(autouse=True)
def _tables(memory):
    memory.bind(Locks, Account, Device, Document)
    Account("a").save()
    Device("d").save()
    Document("f", 1).save()
    for lock in (Account.locked("a"), Device.locked("d"), Document.locked("f", 1), Locks.locked("n")):
        with lock:
            pass


def test_a_named_lock_is_two_writes():
    """1 write to enter, 1 to leave, no read."""
    with count_requests() as counted, Locks.locked("n"):
        pass
    assert counted.by_operation == {"UpdateItem": 2}


def test_the_first_lock_of_a_name_or_item_is_one_write_more():
    """The first enter finds no document, the second request makes it."""
    Account("new").save()
    for lock in (Locks.locked("new"), Account.locked("new")):
        with count_requests() as counted, lock:
            pass
        assert counted.by_operation == {"UpdateItem": 3}


@pytest.mark.parametrize("edit", [lambda: Account.edit("a"), lambda: Document.edit("f", 1)], ids=["plain", "version"])
def test_an_edit_is_two_writes(edit):
    """2 requests, the same as an unprotected get and save."""
    with count_requests() as counted, edit():
        pass
    assert counted.by_operation == {"UpdateItem": 2}


def test_locked_and_one_save_are_three_writes():
    """Enter, save, leave; reading `lock.item` is free."""
    with count_requests() as counted, Account.locked("a") as lock:
        lock.item.balance += 1
        lock.item.save()
    assert counted.by_operation == {"UpdateItem": 3}


def test_reentry_is_free():
    """Taking a lock that this context holds makes no request."""
    with Account.locked("a"), count_requests() as counted, Account.locked("a") as lock:
        assert lock.item
    assert counted.total == 0


def test_an_edit_with_the_lock_in_its_own_row():
    """1 write to enter, 1 transactional read, 1 transaction that saves and leaves."""
    with count_requests() as counted, Device.edit("d") as device:
        device.total += 1
    assert counted.by_operation == {"UpdateItem": 1, "TransactGetItems": 1, "TransactWriteItems": 1}


def test_a_guarded_save_with_the_lock_in_its_own_row_is_one_transaction():
    """The check of the lock's row comes along in the same request."""
    with Device.locked("d") as lock:
        assert lock.item
        with count_requests() as counted:
            lock.item.save()
    assert counted.by_operation == {"TransactWriteItems": 1}


def test_writes_outside_cost_what_they_did():
    """save, update, delete and a transaction from outside: one request each."""
    account, device = Account.get("a"), Device.get("d")
    with count_requests() as counted:
        account.save()
        account.update([Account.balance.add(1)])
        device.save()
        device.delete()
        with TransactWrite(connection=Account._get_connection().connection) as transaction:
            transaction.save(account)
        account.delete()
    assert counted.by_operation == {"UpdateItem": 2, "PutItem": 1, "DeleteItem": 2, "TransactWriteItems": 1}


def test_a_renewal_is_one_write_and_enough_lease_costs_nothing():
    """renew() is one write; ensure() none while enough is left."""
    with Account.locked("a", heartbeat=False) as lock:
        with count_requests() as counted:
            lock.renew()
        assert counted.by_operation == {"UpdateItem": 1}
        with count_requests() as counted:
            lock.ensure_remaining(30)
        assert counted.total == 0


def test_a_lock_that_does_not_wait_is_one_write_when_it_is_taken():
    """`wait=0` on a held lock enters no queue, so there is nothing to leave."""
    with held_elsewhere(Account.locked("a")), count_requests() as counted, pytest.raises(TimeoutError):
        Account.locked("a", wait=0).acquire()
    assert counted.by_operation == {"UpdateItem": 1}


def test_a_poll_is_one_eventually_consistent_read():
    """A waiter enters once, looks with cheap reads, and leaves."""
    with held_elsewhere(Account.locked("a", settings=APART)), count_requests() as counted, pytest.raises(TimeoutError):
        Account.locked("a", wait=0.1).acquire()
    looks = [body["ConsistentRead"] for operation, body in counted.bodies if operation == "GetItem"]
    assert looks
    assert not any(looks)
    assert counted.by_operation["UpdateItem"] == 2


def test_looking_and_breaking():
    """lock_state() is one read, break_lock() a read and a write."""
    lock = Account.locked("a", heartbeat=False).acquire()
    with count_requests() as counted:
        Account.lock_state("a")
    assert counted.by_operation == {"GetItem": 1}
    with count_requests() as counted:
        Account.break_lock("a", ticket=lock.ticket)
    assert counted.by_operation == {"GetItem": 1, "UpdateItem": 1}


def test_versioned_writes_are_one_write_each():
    """Accepted or refused; the refusal brings the stored item, and modify() goes on from there."""
    stale = Document.get("f", 1)
    with count_requests() as counted:
        Document.get("f", 1).touch()
    assert counted.by_operation == {"GetItem": 1, "UpdateItem": 1}
    with count_requests() as counted, pytest.raises(StaleVersion) as caught:
        stale.save()
    assert caught.value.current.version == stale.version + 1
    assert counted.by_operation == {"UpdateItem": 1}


def test_a_modify_that_meets_others_reads_once():
    """1 read, and 1 write for each attempt."""
    attempts = []

    def change(document):
        if not attempts:
            Document("f", 1).update([Document.body.set("theirs")], add_version_condition=False)
        attempts.append(document.body)
        document.body = "mine"

    with count_requests() as counted:
        Document.modify("f", 1, change)
    assert counted.by_operation == {"GetItem": 1, "UpdateItem": 3}  # one of them is theirs
    assert attempts == [None, "theirs"]
