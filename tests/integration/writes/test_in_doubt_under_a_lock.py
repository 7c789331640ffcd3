"""A write under a lock is in doubt, and then something else happens: what is said of the write, and of the lock.

Each of these tests fails by a mistake of one line that no other test of the real engines had found.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import Conflict, LockLost, OutcomeUnknown, StaleVersion
from tests.support.models import APART, Account, Device, Locks
from tests.support.parties import in_thread
from tests.support.wire import ALL, on, unanswered

#: So often a request goes out before its outcome is unknown: botocore's attempts, twice.
ALL_ATTEMPTS = 8


@pytest.fixture
def account(engine):
    """An account with 100 in it, and a lock document."""
    engine.bind(Account, Locks, Device)
    Account("a", balance=100).save()
    Device("d", total=100).save()
    for lock in (Account.locked("a"), Device.locked("d")):
        with lock:
            pass
    return Account


# Writing


def is_no_eviction(body):
    return "#e0" not in body.get("UpdateExpression", "")


def is_release(body):
    return body["UpdateExpression"].startswith("REMOVE #l.#q.#me")


WRITES = {
    "save": lambda item: item.save(),
    "update": lambda item: item.update([type(item).note.set("written")]),
    "delete": lambda item: item.delete(),
}


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("way", ["save", "update"])
def test_a_write_that_we_sent_again_may_have_been_applied_before_the_lock_was_lost(account, way, is_applied):
    """Botocore's attempts get no answer, the lock is broken, ours is refused: the write id tells, or it is unknown."""
    broken = []
    lock = account.locked("a", heartbeat=False).acquire()
    item = lock.item
    item.note = "written"
    with (
        unanswered(
            "UpdateItem",
            then=lambda: broken.append(account.break_lock("a", ticket=lock.ticket)),
            where=is_no_eviction,
            is_applied=is_applied,
        ) as sent,
        nullcontext() if is_applied else pytest.raises(OutcomeUnknown),
    ):
        WRITES[way](item)
    assert (len(sent), broken) == (5, [True])
    assert (account.get("a").note == "written") is is_applied
    with pytest.raises(LockLost):
        lock.release()
    assert lock.lost.is_set()


@pytest.mark.parametrize("is_applied", [True, False])
def test_the_same_with_the_lock_in_a_row_of_its_own(account, is_applied):
    """A copy that was applied is known by its token or id; if none was, the item, which was not refused, tells so."""
    lock = Device.locked("d", heartbeat=False).acquire()
    lock.item.state = "written"
    with unanswered(
        "TransactWriteItems", then=lambda: Device.break_lock("d", ticket=lock.ticket), is_applied=is_applied
    ) as sent:
        if is_applied:
            lock.item.save()
        else:
            with pytest.raises(LockLost):
                lock.item.save()
            assert lock.lost.is_set()
    assert len(sent) == 5
    assert (Device.get("d").state == "written") is is_applied
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.parametrize("way", [*WRITES, "edit"])
def test_a_deletion_by_others_is_noted_by_the_write_that_is_refused(engine, account, way):
    """No document is left to tell of it, and this write, which was refused, has not removed our entry."""
    edit = account.edit("a", heartbeat=False) if way == "edit" else account.locked("a", heartbeat=False)
    lock = edit.lock if way == "edit" else edit
    given = edit.__enter__()
    key = account._get_connection().connection.get_identifier_map(account.Meta.table_name, "a")
    engine.client().delete_item(TableName=account.Meta.table_name, **key)
    with pytest.raises(LockLost) as caught:
        edit.__exit__(None, None, None) if way == "edit" else WRITES[way](given.item)
    assert (lock.lost.is_set(), caught.value.reason) == (True, "deleted")
    if way != "edit":
        with pytest.raises(LockLost):
            lock.release()


@pytest.mark.parametrize("attempts", [0, 1, 4], ids=["sent once", "repeated by botocore", "sent again by us"])
@pytest.mark.parametrize("way", [*WRITES, "edit"])
def test_a_loss_is_noted_by_the_write_that_is_refused(account, way, attempts):
    """Whatever the write was, `lost` is set, and the caller called back, before any heartbeat.

    But for a delete in doubt, which may have taken our entry with it.
    """
    edit = account.edit("a", heartbeat=False) if way == "edit" else account.locked("a", heartbeat=False)
    lock = edit.lock if way == "edit" else edit
    operation = "DeleteItem" if way == "delete" else "UpdateItem"

    def break_it():
        assert account.break_lock("a", ticket=lock.ticket)

    def write(given):
        with unanswered(operation, then=break_it, where=is_no_eviction, attempts=attempts, is_applied=False):
            if way == "edit":
                edit.__exit__(None, None, None)
            else:
                WRITES[way](given.item)

    given = edit.__enter__()
    with pytest.raises((LockLost, OutcomeUnknown)) as caught:
        write(given)
    is_known = attempts == 0 or way == "edit"
    assert isinstance(caught.value, LockLost) is is_known
    assert lock.lost.is_set() is (is_known or way != "delete")
    if way != "edit":
        with pytest.raises(LockLost):
            lock.release()
        assert lock.lost.is_set()
    assert account.get("a").balance == 100


# Deleting


def test_a_delete_in_doubt_stays_so_when_the_next_one_is_refused(account):
    """The first delete is on its way, the second one is refused, then the first one arrives: that is no loss."""
    with account.locked("a", heartbeat=False) as lock:
        with on("DeleteItem", times=ALL).delay() as kept, pytest.raises(OutcomeUnknown):
            lock.item.delete()
        assert len(kept) == ALL_ATTEMPTS
        with pytest.raises(Conflict):
            lock.item.delete(account.balance == 999)
        kept[0]()
        with pytest.raises(account.DoesNotExist):
            account.get("a")
        with pytest.raises(LockLost):  # the entry is gone, so nothing can be renewed
            lock.renew()
        assert not lock.lost.is_set()
    assert not lock.lost.is_set()


@pytest.mark.parametrize("way", ["save", "delete", "downgrade", "transaction"])
def test_a_delete_in_doubt_and_a_write_that_finds_it_done_is_no_loss(account, way):
    """The next request of the holder is refused, since its own delete has taken the entry away."""

    def write(lock, item):
        if way == "transaction":
            with TransactWrite(connection=account._get_connection().connection) as transaction:
                transaction.update(item, actions=[account.balance.set(1)])
        elif way == "downgrade":
            lock.downgrade()
        else:
            getattr(item, way)()

    with account.locked("a", heartbeat=False) as lock:
        item = lock.item
        with on("DeleteItem", times=ALL_ATTEMPTS).lose_response(), pytest.raises(OutcomeUnknown):
            item.delete()
        with pytest.raises(LockLost):
            write(lock, item)
        assert not lock.lost.is_set()
    assert not lock.lost.is_set()


@pytest.mark.parametrize("way", ["release", "renew"])
def test_a_delete_in_doubt_and_a_break_is_a_loss(account, way):
    """The document remembers who was thrown out, whatever else may have removed the entry."""
    lock = account.locked("a", heartbeat=False).acquire()
    with on("DeleteItem", times=ALL).delay(), pytest.raises(OutcomeUnknown):
        lock.item.delete()
    account.break_lock("a", ticket=lock.ticket)
    with pytest.raises(LockLost) as caught:
        getattr(lock, way)()
    assert caught.value.reason == "evicted"
    assert lock.lost.is_set()
    assert account.get("a").balance == 100


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_release_in_doubt_and_a_deletion_is_no_loss(account, is_made_anew):
    """The release was applied and its answer lost; then the item is deleted, and the document forgets with it."""

    def delete():
        account.get("a").delete()
        if is_made_anew:
            account("a").save()
            with account.locked("a", settings=APART):
                pass

    with (
        unanswered("UpdateItem", then=lambda: in_thread(delete), where=is_release, attempts=1) as sent,
        account.locked("a", heartbeat=False) as lock,
    ):
        pass
    assert len(sent) >= 2
    assert not lock.lost.is_set()


def test_a_write_while_the_lock_is_given_back_is_refused_and_no_loss(account):
    """A thread that writes under the lock comes too late: after the release, which is not answered yet."""
    lock = account.locked("a", heartbeat=False).acquire()
    item, refused = lock.item, []

    def save():
        with pytest.raises(LockLost) as caught:
            item.save()
        refused.append(caught.value.reason)

    with on("UpdateItem", where=is_release).after(lambda: in_thread(save)):
        lock.release()
    assert refused == ["deleted"]
    assert not lock.lost.is_set()


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_transaction_that_deletes_the_locked_item_is_no_loss(account, is_made_anew):
    """The transaction gets no answer, the item is gone, perhaps another one is in its place: the entry was ours."""

    def make_anew():
        account("a").save()
        with account.locked("a", settings=APART):
            pass

    with account.locked("a", heartbeat=False) as lock:
        item = lock.item
        with (
            on("TransactWriteItems", times=ALL_ATTEMPTS * 2).lose_response(),
            pytest.raises(OutcomeUnknown),
            TransactWrite(connection=account._get_connection().connection) as transaction,
        ):
            transaction.delete(item)
        if is_made_anew:
            in_thread(make_anew)
        with pytest.raises(LockLost):
            lock.renew()
        assert not lock.lost.is_set()
    assert not lock.lost.is_set()


def test_an_update_in_doubt_by_a_transaction_is_not_undone_by_the_next_save(memory):
    """The instance may lack it, and has no version by which DynamoDB would refuse it: it is to be read again."""
    memory.bind(Account)
    Account("a", balance=100).save()
    with Account.locked("a") as lock:
        transaction = TransactWrite(connection=Account._get_connection().connection)
        with on("TransactWriteItems", times=99).lose_response(), pytest.raises(OutcomeUnknown), transaction:
            transaction.update(lock.item, [Account.balance.add(5)])
        with pytest.raises(StaleVersion):
            lock.item.save()
        lock.item.refresh()
        lock.item.save()
    assert Account.get("a").balance == 105
