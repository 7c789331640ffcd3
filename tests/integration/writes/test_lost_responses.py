"""Answers that get lost after DynamoDB applied the write: every operation knows its own earlier copy."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import pytest
from botocore.exceptions import EndpointConnectionError
from pynamodb.exceptions import PutError, TransactWriteError, UpdateError

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import LockLost, LockTimeout, OutcomeUnknown, StaleVersion
from tests.support.models import APART, Account, Device, Document, Locks, declare
from tests.support.parties import abandoned, in_thread, shifted_clock, without_pauses
from tests.support.wire import ALL, Chosen, between_attempts, is_save, on
from tests.support.workers import until

pytestmark = pytest.mark.core

TIMES = 5

Page = declare("Page", lock=True, version=True, numbers="balance", texts="note")


@pytest.fixture(autouse=True)
def _no_pauses_between_attempts():
    """Back-off without the waiting: the order of events stays what it is."""
    with without_pauses():
        yield


def saying(text):
    """Select the requests whose update expression contains a text."""
    return lambda body: text in body.get("UpdateExpression", "")


ENTER = saying("#l.#n[0] + :callers")
RENEW = saying("#b = :beat")
RELEASE = saying("REMOVE #l.#q.#me")
EVICT = saying("#e0")


def test_entering(account):
    """A lost answer to the enter request: one entry, held at once, and gone after the block."""
    for _ in range(TIMES):
        with on("UpdateItem", where=ENTER).lose_response() as faults, account.locked("a", wait=0) as lock:
            assert faults.hits == 1
            assert [entry.ticket for entry in account.lock_state("a").entries] == [lock.ticket]
            lock.item.save()
        assert account.lock_state("a").entries == ()


def test_entering_takes_one_ticket_however_often_it_is_sent(account):
    """A second copy of the enter request neither moves us back nor uses up a ticket."""
    before = account.lock_state("a").next_ticket
    for n in range(TIMES):
        with on("UpdateItem", times=2, where=ENTER).lose_response(), account.locked("a", wait=60) as lock:
            assert lock.ticket == before + n
        assert account.lock_state("a").next_ticket == before + n + 1


def test_entering_with_no_document_yet(engine):
    """The same for the request that makes the document, of an item and of a name."""
    engine.bind(Account, Locks)
    for n in range(TIMES):
        Account(str(n)).save()
        for lock in (Account.locked(str(n), wait=0), Locks.locked(str(n), wait=0)):
            with on("UpdateItem", where=saying("#l = :map")).lose_response() as faults, lock:
                assert faults.hits == 1
                assert len(type(lock.item).lock_state(str(n)).entries) == 1
                assert lock.is_held


def test_entering_when_no_answer_ever_comes(account):
    """The lock is not taken, the error says so, and nothing is left in the queue."""
    with on("UpdateItem", times=100, where=ENTER).lose_response(), pytest.raises(LockTimeout, match="no answer"):
        account.locked("a", wait=0).acquire()
    assert account.lock_state("a").entries == ()
    with on("UpdateItem", times=10**6, where=ENTER).lose_request(), pytest.raises(LockTimeout):
        account.locked("a", wait=0.05).acquire()
    assert account.lock_state("a").entries == ()


def test_renewing(account):
    """A lost answer to a renewal is no loss; the next one goes on."""
    with account.locked("a", heartbeat=False) as lock:
        for _ in range(TIMES):
            with on("UpdateItem", where=RENEW).lose_response(), pytest.raises(OutcomeUnknown):
                lock.renew()
            lock.renew()
            assert not lock.lost.is_set()


def test_a_repeated_renewal_recognises_itself(account):
    """A copy of the same renewal that comes second is refused, and that is no loss."""
    with account.locked("a", heartbeat=False) as lock:
        with on("UpdateItem", where=RENEW).double() as faults:
            lock.renew()
        assert faults.hits == 1
        assert not lock.lost.is_set()
        assert account.lock_state("a").holders[0].heartbeats == 1


def test_a_late_copy_of_a_renewal_changes_nothing(account):
    """It can neither take a newer beat back, nor prolong an entry of the same id under another ticket."""
    client = account._get_connection().connection.client
    with account.locked("a", heartbeat=False) as lock:
        with on("UpdateItem", where=RENEW).watch() as sent:
            lock.renew()
        lock.renew()
        newest = account.lock_state("a").holders[0]
        late = sent.bodies[0]
        values = late["ExpressionAttributeValues"]
        other = {**values, ":beat": {"N": "9"}, ":ticket": {"N": str(lock.ticket + 1)}}
        for request in (late, {**late, "ExpressionAttributeValues": other}):
            with pytest.raises(client.exceptions.ConditionalCheckFailedException):
                client.update_item(**request)
        [entry] = account.lock_state("a").entries
        assert (entry.heartbeats, entry.until_ms) == (2, newest.until_ms)


def test_releasing(account):
    """A lost answer to the release: it is sent again, finds itself done, and no loss is reported."""
    for _ in range(TIMES):
        with on("UpdateItem", times=2, where=RELEASE).lose_response() as faults, account.locked("a") as lock:
            pass
        assert faults.hits == 2
        assert not lock.lost.is_set()
        assert account.lock_state("a").entries == ()


def test_releasing_when_no_answer_ever_comes(account):
    """A release without an answer is no error for the caller: after four requests a thread goes on with it."""
    with on("UpdateItem", times=6, where=RELEASE).lose_request() as lost:
        with account.locked("a"):
            pass
        until(lambda: account.lock_state("a").entries == (), "an answer to the thread")
    assert lost.hits == 6


def test_evicting(account):
    """A lost answer to an eviction: looking again shows that it worked."""
    for _ in range(TIMES):
        with shifted_clock() as clock:
            abandoned(account.locked("a", lease=6))
            clock.shift += 17
            with on("UpdateItem", where=EVICT).lose_response() as faults, account.locked("a", wait=10) as lock:
                assert faults.hits == 1
                assert len(account.lock_state("a").entries) == 1
                assert lock.is_held
                assert account.lock_state("a").holders[0].ticket == lock.ticket


GUARDED = {
    "save": lambda item: item.save(),
    "update": lambda item: item.update([Account.balance.add(1)]),
    # Only the number of the write tells its second copy.
    "update-without-version": lambda item: item.update([Account.balance.add(1)], add_version_condition=False),
}


@pytest.mark.parametrize("write", GUARDED)
@pytest.mark.parametrize("times", [1, 4], ids=["botocore-repeats", "all-attempts-of-botocore-lost"])
def test_guarded_writes(account, write, times):
    """A lost answer inside the lock is a success, applied exactly once."""
    with account.locked("a") as lock:
        for n in range(TIMES):
            lock.item.balance += write == "save"
            with on("UpdateItem", times=times, where=saying("SET ")).lose_response() as faults:
                GUARDED[write](lock.item)
            assert faults.hits == times
            assert account.get("a").balance == lock.item.balance == 101 + n
            assert account.lock_state("a").holders[0].writes == n + 1


def test_guarded_deletes(account):
    """A lost answer to a delete is a success and no loss of the lock."""
    with account.locked("a") as lock, on("DeleteItem").lose_response():
        lock.item.delete()
    assert not lock.lost.is_set()
    with pytest.raises(account.DoesNotExist):
        account.get("a")


def test_save_and_release(account):
    """A lost answer to the last request of an edit: saved once, released, no loss reported."""
    for n in range(TIMES):
        with on("UpdateItem", where=is_save).lose_response() as faults, account.edit("a") as item:
            item.balance += 1
        assert faults.hits == 1
        assert account.get("a").balance == 101 + n
        assert account.lock_state("a").entries == ()


def test_save_and_release_after_the_next_holder_has_come_and_gone(account):
    """Even if a successor was served before the request was repeated, the document knows that ours came first."""

    def successor():
        with account.edit("a", settings=APART) as item:
            item.balance += 1

    with (
        between_attempts(lambda: in_thread(successor)) as calls,
        on("UpdateItem", where=is_save).lose_response(),
        account.edit("a") as item,
    ):
        item.balance += 1
    assert calls
    assert account.get("a").balance == 102


def nobody(_edit):
    """No party comes between the two copies."""


def next_holder(edit):
    """The next one holds the lock, writes, and has gone."""

    def append():
        with edit(settings=APART) as item:
            item.note = "next"

    in_thread(append)


BETWEEN = pytest.mark.parametrize("between", [nobody, next_holder])


@BETWEEN
def test_releasing_twice_without_knowing_it(account, between):
    """Something on the way repeats the release and passes the second answer on: our own doing, and no loss."""
    come = partial(between, partial(account.edit, "a"))
    with on("UpdateItem", where=RELEASE).double(come) as faults, account.locked("a") as lock:
        pass
    assert faults.hits == 1
    assert not lock.lost.is_set()


@BETWEEN
@pytest.mark.parametrize("model", [Account, Page], ids=["plain", "versioned"])
def test_save_and_release_twice_without_knowing_it(engine, model, between):
    """The last request of an edit, repeated on the way: applied once, and said so."""
    engine.bind(model)
    model("a").save()
    edit = model.edit("a")
    come = partial(between, partial(model.edit, "a"))
    with on("UpdateItem", where=is_save).double(come) as faults, edit as item:
        item.balance += 1
    assert faults.hits == 1
    assert not edit.lock.lost.is_set()
    stored = model.get("a")
    assert stored.balance == item.balance == 1
    if model is Page:
        assert (item.version, stored.version) == (2, 2 + (between is next_holder))


@pytest.mark.parametrize("sent", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("way", ["release", "edit"])
def test_a_broken_lock_is_lost_however_often_the_request_is_sent(account, way, sent):
    """The document remembers that it was broken: neither the last write nor the release passes for applied."""
    edit = account.edit("a", heartbeat=False) if way == "edit" else account.locked("a", heartbeat=False)
    where = RELEASE if way == "release" else is_save
    with (
        pytest.raises(LockLost) as caught,
        on("UpdateItem", times=sent - 1, where=where).double() as faults,
        edit as given,
    ):
        lock = edit.lock if way == "edit" else edit
        account.break_lock("a", ticket=lock.ticket)
        if way == "edit":
            given.balance = -1
    assert (caught.value.reason, faults.hits) == ("evicted", sent - 1)
    assert lock.lost.is_set()
    assert account.get("a").balance == 100


@pytest.mark.parametrize("way", ["release", "edit", "renew"])
@pytest.mark.parametrize("hours", [-1, 1], ids=["behind", "ahead"])
def test_a_document_that_was_made_anew_knows_nothing(account, way, hours):
    """Its tickets prove nothing about those of the old one, wherever the wall clock was that they come from."""

    def break_and_make_anew():
        Account.break_lock("a", ticket=lock.ticket)
        Account.get("a").delete()
        Account("a", balance=7).save()
        clock.shift += hours * 3600
        with Account.locked("a", wait=0):
            pass
        clock.shift -= hours * 3600

    edit = account.edit("a", heartbeat=False) if way == "edit" else account.locked("a", heartbeat=False)
    lock = edit.lock if way == "edit" else edit
    with shifted_clock() as clock, pytest.raises(LockLost) as caught, edit as given:
        in_thread(break_and_make_anew)
        if way == "edit":
            given.balance = -1
        elif way == "renew":
            lock.renew()
    assert caught.value.reason == "deleted"
    assert lock.lost.is_set()
    assert account.get("a").balance == 7


def test_save_and_release_without_any_answer(account):
    """If every attempt stays without an answer, the outcome is unknown, and says so."""
    edit = account.edit("a")
    with (
        pytest.raises(OutcomeUnknown) as caught,
        on("UpdateItem", times=100, where=is_save).lose_response(),
        edit as item,
    ):
        item.balance = 7
    assert not edit.lock.lost.is_set()
    assert isinstance(caught.value, PutError)
    assert caught.value.cause_response_code is None
    assert account.get("a").balance == 7
    assert account.lock_state("a").entries == ()


def test_after_an_unknown_outcome_the_next_write_supersedes_it(account):
    """Whichever way the unknown write went, the next one of the same holder is applied once."""
    for losing in (Chosen.lose_request, Chosen.lose_response):
        with account.locked("a") as lock:
            before = account.get("a").balance
            with pytest.raises(OutcomeUnknown) as caught, losing(on("UpdateItem", times=100, where=is_save)):
                lock.item.update([account.balance.add(1)])
            assert isinstance(caught.value, UpdateError)
            landed = losing is Chosen.lose_response
            assert account.get("a").balance == before + landed
            lock.item.refresh()
            lock.item.update([account.balance.add(10)])
            assert lock.item.balance == before + landed + 10


def test_locks_in_a_row_of_their_own(engine):
    """The transaction's token, and the counter in the entry where an engine ignores it, make it once."""
    engine.bind(Locks, Device)
    Device("d").save()
    with Device.locked("d") as lock:
        for times in (1, 4):
            with on("TransactWriteItems", times=times).lose_response():
                lock.item.total += 1
                lock.item.save()
        assert Device.get("d").total == 2
        with on("TransactWriteItems").lose_response():
            lock.item.update([Device.total.add(1)])
        assert lock.item.total == 3
        with pytest.raises(OutcomeUnknown), on("TransactWriteItems", times=100).lose_response():
            lock.item.save()
    with on("TransactWriteItems").lose_response() as faults, Device.edit("d") as device:
        device.total += 1
    assert faults.hits == 1
    assert Device.get("d").total == 4
    assert Device.lock_state("d").entries == ()


def test_an_update_beside_that_cannot_be_read_afterwards(engine):
    """A transaction returns no item. What was written stays written, and the old copy cannot be saved over it."""
    engine.bind(Locks, Device)
    Device("d").save()
    with Device.locked("d", heartbeat=False) as lock:
        assert lock.item.total == 0
        with on("GetItem", times=ALL).lose_request():
            lock.item.update([Device.total.add(1)])
        with pytest.raises(StaleVersion, match="does not have the result"):
            lock.item.save()
        lock.item.refresh()
        assert lock.item.total == Device.get("d").total == 1


def test_our_transaction(engine):
    """A lost answer to a transaction of several items: applied once, versions right."""
    engine.bind(Document, Account)
    Document("f", 1).save()
    Account("a").save()
    connection = Account._get_connection().connection
    with Document.locked("f", 1) as first, Account.locked("a") as second:
        for times in (1, 4):
            with (
                on("TransactWriteItems", times=times).lose_response(),
                TransactWrite(connection=connection) as transaction,
            ):
                transaction.save(first.item)
                transaction.update(second.item, [Account.balance.add(1)])
        assert first.item.version == Document.get("f", 1).version == 3
        assert Account.get("a").balance == 2
        with (
            pytest.raises(OutcomeUnknown) as caught,
            on("TransactWriteItems", times=100).lose_response(),
            TransactWrite(connection=connection) as transaction,
        ):
            transaction.update(second.item, [Account.balance.add(1)])
        assert isinstance(caught.value, TransactWriteError)
        assert caught.value.write_id


@contextmanager
def _cut_off_after_the_first():
    """Let one request through, lose its answer, and refuse all connections afterwards."""
    with on().lose_response(), on(nth=2).answer(EndpointConnectionError, always=True):
        yield


def test_no_connection_after_a_lost_answer_is_no_refusal(account):
    """botocore shows the last of its attempts; the first may have been applied."""
    with account.locked("a") as lock:
        lock.item.balance = 99
        with _cut_off_after_the_first(), pytest.raises(OutcomeUnknown):
            lock.item.save()
        assert account.get("a").balance == 99
        lock.item.refresh()
        connection = account._get_connection().connection
        with _cut_off_after_the_first(), pytest.raises(OutcomeUnknown), TransactWrite(connection=connection) as write:
            write.update(lock.item, [account.balance.add(1)])
        assert account.get("a").balance == 100
        assert not lock.lost.is_set()
