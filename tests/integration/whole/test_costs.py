"""The cost table of the documentation: requests counted on the wire."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pynamo_locking import TransactWrite, transaction
from pynamo_locking.exceptions import StaleVersion
from tests.support.models import APART, Account, Device, Document, Locks
from tests.support.parties import held_elsewhere
from tests.support.wire import count_requests


@pytest.fixture(autouse=True)
def _tables(memory):
    memory.bind(Locks, Account, Device, Document)
    Account("a").save()
    Account("unlocked").save()
    Device("d").save()
    Document("f", 1).save()
    Document("f", 2).save()
    for lock in (
        Account.locked("a"),
        Device.locked("d"),
        Document.locked("f", 1),
        Document.locked("f", 2),
        Locks.locked("n"),
    ):
        with lock:
            pass


def take(lock):
    with lock:
        pass


def edit(of, name, value):
    with of as item:
        setattr(item, name, value)


def transact(add, item):
    with TransactWrite(connection=item._get_connection().connection) as transaction:
        getattr(transaction, add)(item)


def locked_save():
    with Account.locked("a") as lock:
        lock.item.balance += 1
        lock.item.save()


def change_in_turn(*numbers):
    with transaction() as tx:
        for document in tx.get_all(Document, [("f", number) for number in numbers], for_update=True):
            document.body = "new"
            tx.save(document)


def refused(held):
    with suppress(TimeoutError):
        held.acquire()


#: What is done to things that were made before, and the requests for it.
COSTS = {
    "a named lock": (lambda _: take(Locks.locked("n")), {"UpdateItem": 2}),
    "the first lock of a name": (lambda _: take(Locks.locked("new")), {"UpdateItem": 3}),
    "the first lock of an item": (lambda _: take(Account.locked("unlocked")), {"UpdateItem": 3}),
    "an edit": (lambda _: edit(Account.edit("a"), "balance", 7), {"UpdateItem": 2}),
    "an edit of a version": (lambda _: edit(Document.edit("f", 1), "body", "new"), {"UpdateItem": 2}),
    "locked() and a save": (lambda _: locked_save(), {"UpdateItem": 3}),
    "an edit, the lock in its own row": (
        lambda _: edit(Device.edit("d"), "total", 7),
        {"UpdateItem": 1, "TransactGetItems": 1, "TransactWriteItems": 1},
    ),
    "a save outside": (lambda items: items[0].save(), {"UpdateItem": 1}),
    "an update outside": (lambda items: items[0].update([Account.balance.add(1)]), {"UpdateItem": 1}),
    "a transaction outside": (lambda items: transact("save", items[0]), {"TransactWriteItems": 1}),
    "a delete outside": (lambda items: items[0].delete(), {"DeleteItem": 1}),
    "a save outside, the lock in its own row": (lambda items: items[1].save(), {"PutItem": 1}),
    "a delete outside, the lock in its own row": (lambda items: items[1].delete(), {"DeleteItem": 1}),
    "looking at a lock": (lambda _: Account.lock_state("a"), {"GetItem": 1}),
    "for_update of an item": (lambda _: change_in_turn(1), {"UpdateItem": 2}),
    "for_update of two items": (lambda _: change_in_turn(1, 2), {"UpdateItem": 2, "TransactWriteItems": 1}),
    "a touch": (lambda items: items[2].touch(), {"UpdateItem": 1}),
}


@pytest.mark.parametrize("what", COSTS)
def test_what_is_done_costs_so_much(what):
    """No request more, and none less."""
    act, expected = COSTS[what]
    items = Account.get("a"), Device.get("d"), Document.get("f", 1)
    with count_requests() as counted:
        act(items)
    assert counted.by_operation == expected


def test_under_a_lock():
    """To take it again and to have enough of its lease costs nothing; a save beside checks the row in its request."""
    with Account.locked("a", heartbeat=False) as lock, Device.locked("d") as beside:
        assert beside.item
        for act, expected in (
            (lambda: take(Account.locked("a")), {}),
            (lambda: lock.ensure_remaining(30), {}),
            (lock.renew, {"UpdateItem": 1}),
            (beside.item.save, {"TransactWriteItems": 1}),
        ):
            with count_requests() as counted:
                act()
            assert counted.by_operation == expected


def test_beside_a_holder():
    """`wait=0` enters no queue. A waiter enters once, looks with cheap reads, and leaves. To break is two requests."""
    with held_elsewhere(Account.locked("a", settings=APART)):
        with count_requests() as counted:
            refused(Account.locked("a", wait=0))
        assert counted.by_operation == {"UpdateItem": 1}
        with count_requests() as counted:
            refused(Account.locked("a", wait=0.1))
        looks = [body["ConsistentRead"] for operation, body in counted.bodies if operation == "GetItem"]
        assert looks
        assert not any(looks)
        assert counted.by_operation["UpdateItem"] == 2
    lock = Account.locked("a", heartbeat=False).acquire()
    with count_requests() as counted:
        Account.break_lock("a", ticket=lock.ticket)
    assert counted.by_operation == {"GetItem": 1, "UpdateItem": 1}


def test_a_refusal_brings_the_stored_item():
    """modify(wait=0) goes on from there: 1 read, and 1 write for each attempt."""
    stale, attempts = Document.get("f", 1), []
    Document.get("f", 1).touch()
    with count_requests() as counted, pytest.raises(StaleVersion) as caught:
        stale.save()
    assert caught.value.current.version == stale.version + 1
    assert counted.by_operation == {"UpdateItem": 1}

    def change(document):
        if not attempts:
            Document("f", 1).update([Document.body.set("theirs")], add_version_condition=False)
        attempts.append(document.body)
        document.body = "mine"

    with count_requests() as counted:
        Document.modify("f", 1, change, wait=0)
    assert counted.by_operation == {"GetItem": 1, "UpdateItem": 3}  # one of them is theirs
    assert attempts == [None, "theirs"]
