"""Faults that an adversarial review of the first version found, each as it was shown."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
import threading
from contextlib import contextmanager

import botocore.endpoint
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError
from pynamodb.exceptions import TransactWriteError
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import (
    ConfigurationError,
    ItemLocked,
    LockableModel,
    LockingError,
    LockLost,
    LockSettings,
    LockTimeout,
    OutcomeUnknown,
    Transaction,
    TransactWrite,
    sweep,
    transactional,
)
from pynamo_locking._io import attempts, local, requests, runtime
from pynamo_locking._io.heartbeat import heart
from pynamo_locking._io.waiting import evict_dead
from tests.support import faults
from tests.support.faults import lost_requests, lost_responses
from tests.support.models import Account, Device, Document, Locks
from tests.support.parties import in_thread
from tests.support.transaction_models import Purse, Transactions, make_long_from, purses


@pytest.fixture
def account(engine):
    """An account with 100 in it, and a lock document."""
    engine.bind(Account)
    Account("a", balance=100).save()
    with Account.locked("a"):
        pass
    return Account


@pytest.fixture
def device(engine):
    """A device whose lock is in a row of its own."""
    engine.bind(Locks, Device)
    Device("d", state="off").save()
    return Device


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LockingError("expired token")])
def test_who_failed_to_release_does_not_go_on_renewing(account, error):
    """Whatever interrupts a release, the heartbeat of that entry ends, and its lease with it."""
    lock = account.lock("a").acquire()

    def fail(*arguments, **options):
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "release", fail)
        with pytest.raises(type(error)):
            lock.release()
    assert lock._own.possession.is_over
    with pytest.raises(LockLost):
        lock._own.renew()


def test_a_lock_that_cannot_get_a_heartbeat_is_not_taken(account):
    """If no thread can be started, the entry is removed again and nobody renews it."""

    class Crowded(runtime.Runtime):
        def spawn(self, target, name):
            raise RuntimeError("can't start new thread")

    real, threads = runtime.current, heart._threads
    runtime.install(Crowded())
    heart._threads, heart._idle, idle = 0, 0, heart._idle
    try:
        with pytest.raises(RuntimeError, match="new thread"):
            account.locked("a").acquire()
    finally:
        runtime.install(real)
        heart._threads, heart._idle = threads, idle
    assert account.lock_state("a").entries == ()


def test_an_eviction_seen_from_an_old_image_leaves_its_trace(account):
    """A holder that was evicted as one of several entries learns it: its edit is not reported as saved."""
    ahead = account.lock("a", heartbeat=False).acquire()
    edit = account.edit("a", wait=60, heartbeat=False)
    thread_lock = edit.lock
    old_images = []

    def edit_it():
        with edit as item:
            item.balance = 0
            evict_dead(thread_lock._target.row, old_images[0].waiters, old_images[0])

    with pytest.MonkeyPatch.context() as patch:
        original = requests.enter

        def enter(row, entry, capacity):
            image = original(row, entry, capacity)
            old_images.append(row.state(image))
            ahead.release()
            return image

        patch.setattr(requests, "enter", enter)
        with pytest.raises(LockLost), lost_requests("UpdateItem", where=_saves):
            in_thread(edit_it)
    assert account.get("a").balance == 100


def _saves(body):
    return body.get("UpdateExpression", "")[:6][5:].isdigit()


@contextmanager
def _cut_off_after_the_first():
    """Let one request through, lose its answer, and refuse all connections afterwards."""
    applied = []

    def tap(endpoint, request, operation, forward):
        if not applied:
            applied.append(forward())
            return None, ConnectionClosedError(endpoint_url=request.url, request=request)
        return None, EndpointConnectionError(endpoint_url=request.url)

    with pytest.MonkeyPatch.context() as patch, faults._tapped(tap):
        patch.setattr(botocore.endpoint, "time", type("Time", (), {"sleep": staticmethod(lambda seconds: None)}))
        yield


def test_no_connection_after_a_lost_answer_is_no_refusal(account):
    """botocore shows the last of its attempts; the first may have been applied."""
    with account.locked("a") as lock:
        lock.item.balance = 99
        with _cut_off_after_the_first(), pytest.raises(OutcomeUnknown):
            lock.item.save()
        assert account.get("a").balance == 99
        connection = account._get_connection().connection
        with _cut_off_after_the_first(), pytest.raises(OutcomeUnknown), TransactWrite(connection=connection) as write:
            write.update(lock.item, [account.balance.add(1)])
        assert account.get("a").balance == 100
        assert not lock.lost.is_set()


def test_who_inherits_a_context_does_not_hold_the_lock(account):
    """A thread or task started inside a lock writes under it, and waits for it like everybody else."""
    with account.locked("a") as lock:
        context = contextvars.copy_context()
        with pytest.raises(LockTimeout):
            in_thread(lambda: context.run(account.locked("a", wait=0).acquire))
        in_thread(lambda: context.run(account.get("a").save))
        assert account.lock_state("a").holders[0].writes == 1

        async def in_a_task():
            account.locked("a", wait=0).acquire()

        with pytest.raises(LockTimeout):
            asyncio.run(in_a_task())
        assert lock.is_held


def test_tasks_of_one_thread_exclude_each_other(account):
    """asyncio tasks that share a thread and inherited a context are different parties."""

    async def party(entered, done):
        with account.locked("a", wait=0):
            entered.set()
            await done.wait()

    async def both():
        entered, done = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(party(entered, done))
        await entered.wait()
        with pytest.raises(LockTimeout):
            await asyncio.create_task(party(entered, done))
        done.set()
        await first

    asyncio.run(both())


def test_an_aborted_edit_is_not_saved_by_the_next(account):
    """Inside an outer lock the item is shared; what an edit changed before it failed is forgotten."""
    with account.locked("a"):
        with pytest.raises(ZeroDivisionError), account.edit("a") as item:
            item.balance -= 100 / 0
        with pytest.raises(ValueError, match="no"), account.edit("a") as item:
            item.balance -= 100
            raise ValueError("no")
        with account.edit("a") as item:
            item.note = "only this"
    assert (account.get("a").balance, account.get("a").note) == (100, "only this")


def test_the_item_is_asked_for_after_a_write(account):
    """`lock.item` is never older than the last write under the lock."""
    with account.locked("a") as lock:
        other = account.get("a")
        other.balance = 50
        other.save()
        assert lock.item.balance == 50


@pytest.mark.parametrize("how", ["delete", "our transaction", "stock transaction"])
@pytest.mark.parametrize("model", [Account, Device], ids=["in-the-item", "in-a-row"])
def test_an_edit_that_deletes_does_not_save(engine, model, how):
    """However the block deleted the item, it stays deleted, and the lock was not lost."""
    if model is Device and how == "stock transaction":
        return  # refused: see test_guarded_writes
    engine.bind(Locks, Account, Device)
    model("x").save()
    edit = model.edit("x")
    with edit as item:
        if how == "delete":
            item.delete()
        else:
            kind = TransactWrite if how == "our transaction" else StockTransactWrite
            with kind(connection=model._get_connection().connection) as write:
                write.delete(item)
    assert not edit.lock.lost.is_set()
    with pytest.raises(model.DoesNotExist):
        model.get("x")
    assert model.lock_state("x").entries == ()


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


def test_an_item_that_got_another_key_is_another_item(account):
    """It is written from outside; the lock of the first key stays what it is."""
    with account.locked("a") as lock:
        lock.item.account_id = "b"
        lock.item.save()
        assert not lock.lost.is_set()
        assert account.lock_state("a").holders[0].writes == 0
    assert account.get("b").balance == 100


def test_transactions_survive_a_conflict(account):
    """A heartbeat that touches an item at the same moment does not fail the transaction."""
    original = account._get_connection().connection.dispatch
    refusals = []

    def dispatch(operation, kwargs):
        if operation == "TransactWriteItems" and not refusals:
            refusals.append(kwargs["ClientRequestToken"])
            response = {
                "Error": {"Code": "TransactionCanceledException", "Message": "conflict"},
                "CancellationReasons": [{"Code": "TransactionConflict"}],
            }
            raise ClientError(response, operation)
        return original(operation, kwargs)

    connection = account._get_connection().connection
    with account.locked("a") as lock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "dispatch", dispatch)
        with TransactWrite(connection=connection) as write:
            write.update(lock.item, [account.balance.add(1)])
        assert write._client_request_token != refusals[0]
        refusals.clear()
        with TransactWrite(connection=connection, client_request_token=f"mine-{account.Meta.table_name}") as write:
            write.update(account.get("a"), [account.balance.add(1)])
        assert write._client_request_token == refusals[0], "a caller's own token is kept"
    assert account.get("a").balance == 102


def test_a_write_from_outside_that_was_repeated_is_not_called_refused(account):
    """Applied, answer lost, somebody locks, the repetition is refused: nobody knows what to call that."""
    item = account.get("a")
    item.balance = 77
    lock = account.lock("a")

    class Time:
        @staticmethod
        def sleep(seconds):
            if not lock._takes:
                in_thread(lock.acquire)

    with pytest.MonkeyPatch.context() as patch, lost_responses("UpdateItem", where=_saves):
        patch.setattr(botocore.endpoint, "time", Time)
        with pytest.raises(OutcomeUnknown):
            item.save()
    assert account.get("a").balance == 77
    lock.release()


def test_an_interrupt_after_an_applied_save_is_no_loss(account):
    """Ctrl-C while the answer to the last request of an edit is on its way."""
    reasons = []
    edit = account.edit("a", on_lost=reasons.append)
    original = type(account._get_connection().connection).dispatch

    def dispatch(self, operation, kwargs):
        answer = original(self, operation, kwargs)
        if _saves(kwargs):
            raise KeyboardInterrupt
        return answer

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt), edit as item:
        item.balance = 1
        patch.setattr(type(account._get_connection().connection), "dispatch", dispatch)
    assert account.get("a").balance == 1
    assert not edit.lock.lost.is_set()
    assert reasons == []


def test_a_lock_object_is_taken_by_one_thread_at_a_time(account):
    """A second thread is refused also while the first one still waits."""
    lock = account.lock("a")
    holder = account.lock("a").acquire()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    while not account.lock_state("a").waiters:
        pass
    with pytest.raises(ConfigurationError, match="in use"):
        in_thread(lock.acquire)
    holder.release()
    thread.join()
    lock.release()


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


def test_a_refresh_starts_afresh_after_a_loss(account):
    """Reading is never refused."""
    with pytest.raises(LockLost), account.locked("a", heartbeat=False) as lock:
        item = lock.item
        account.break_lock("a", ticket=lock.ticket)
        with pytest.raises(LockLost):
            item.save()
        item.refresh()
        assert item.balance == 100


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


def test_reads_beside_a_lock_are_transactional(device):
    """get() and refresh() of an item whose lock is in another row, inside that lock."""
    from tests.support.faults import count_requests

    with device.locked("d"), count_requests() as counted:
        item = device.get("d")
        item.refresh()
    assert counted.by_operation == {"TransactGetItems": 2}


def test_breaking_tells_what_it_did(account):
    """An answer that got lost does not turn a removed entry into one that was not there."""
    lock = account.lock("a", heartbeat=False).acquire()
    with lost_responses("UpdateItem", where=lambda body: "#e0" in body.get("UpdateExpression", "")):
        assert account.break_lock("a", ticket=lock.ticket) is True
    assert account.break_lock("a", ticket=lock.ticket) is False
    with pytest.raises(LockLost):
        lock.release()


def test_every_listener_hears_of_the_loss(account):
    """Also one that was given when the lock was taken again."""
    heard, both = [], threading.Barrier(3)

    def listener(name):
        def on_lost(reason):
            heard.append((name, reason))
            both.wait()

        return on_lost

    with (
        pytest.raises(LockLost),
        account.locked("a", heartbeat=False, on_lost=listener("outer")) as lock,
        account.locked("a", on_lost=listener("inner")),
    ):
        account.break_lock("a", ticket=lock.ticket)
        with pytest.raises(LockLost):
            lock.renew()
        both.wait()
    assert sorted(heard) == [("inner", "evicted"), ("outer", "evicted")]


def test_saving_a_lock_row_keeps_its_expiry(engine):
    """The copy of the expiry that was loaded long ago does not replace the one of the last renewal."""
    engine.bind(Locks)
    with Locks.locked("n", heartbeat=False) as lock:
        item = lock.item
        client = Locks._get_connection().connection.client
        later = {
            "TableName": Locks.Meta.table_name,
            "Key": {"name": {"S": "n"}},
            "UpdateExpression": "SET expires_s = :later",
            "ExpressionAttributeValues": {":later": {"N": "4102444800"}},
        }
        client._make_api_call("UpdateItem", later)
        item.save()
        assert Locks.get("n").expires.timestamp() == 4102444800


def test_a_lock_table_elsewhere_is_refused(engine):
    """No transaction could include both tables."""
    engine.bind(Locks, Document)

    class Far(Document):
        class Meta:
            table_name = "far"
            region = "eu-central-1"
            host = "http://127.0.0.1:9"
            lock_settings = LockSettings()
            lock_table = Locks

        mutex = None

    with pytest.raises(ConfigurationError, match=r"same Meta\.region"):
        Far.locked("f", 1)


def test_a_copy_that_was_read_after_the_loss_says_so_in_a_stock_transaction(account):
    """The simulator's finding: it was told that its copy was too old, and not that the lock was lost."""
    lock = account.lock("a").acquire()
    account.break_lock("a", ticket=lock.ticket)
    copied = account.get("a", consistent_read=True)
    connection = account._get_connection().connection
    with pytest.raises(LockLost, match="no longer in the queue"), StockTransactWrite(connection=connection) as write:
        write.save(copied)
    assert lock.lost.is_set()
    with pytest.raises(LockLost):
        lock.release()


def test_a_copy_from_before_the_lock_is_still_refused_as_such(account):
    """It does not show our entry because it is older: no loss, and the way out is named."""
    old = account.get("a", consistent_read=True)
    connection = account._get_connection().connection
    with (
        account.locked("a") as lock,
        pytest.raises(ConfigurationError, match="loaded before the lock was taken"),
        StockTransactWrite(connection=connection) as write,
    ):
        write.save(old)
    assert not lock.lost.is_set()


def _interrupted(function):
    """Return a function that does its work, and is interrupted before it returns."""

    def act(*arguments, **options):
        function(*arguments, **options)
        raise KeyboardInterrupt

    return act


@pytest.mark.parametrize("name", ["open_mailbox", "close_mailbox"])
def test_an_interrupt_around_the_way_to_a_lock_leaves_nothing_behind(account, name):
    """Ctrl-C right before the first request, and between the grant and its use: no entry, and nobody who listens."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        original = getattr(local, name)
        first = iter([_interrupted(original)])

        def interrupted_once(*arguments):
            return next(first, original)(*arguments)

        patch.setattr(local, name, interrupted_once)
        account.lock("a").acquire()
    assert account.lock_state("a").entries == ()
    assert not local.has_waiters(account.lock("a")._target.row)


@pytest.mark.parametrize("name", ["forget", "has_waiters"])
def test_an_interrupt_of_a_release_ends_the_heartbeat(account, name):
    """Ctrl-C before its request was sent: the entry would have been renewed for as long as the process lives."""
    lock = account.lock("a").acquire()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(local, name, _interrupted(getattr(local, name)))
        lock.release()
    assert lock._own.possession.is_over
    assert local.held_in_context(lock._target.row) is None


@contextmanager
def _silence_after_the_decision():
    """Apply what carries the idempotency key without an answer; nothing is answered then until somebody reads."""
    original, silent = attempts.dispatch, []

    def dispatch(connection, operation, kwargs):
        if operation == "GetItem":
            silent.clear()
        if silent:
            raise ReadTimeoutError(endpoint_url="engine")
        answer = original(connection, operation, kwargs)
        if operation == "TransactWriteItems" and "key#once" in repr(kwargs):
            silent.append(True)
            raise ReadTimeoutError(endpoint_url="engine")
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "dispatch", dispatch)
        yield


@pytest.mark.parametrize("others", [1, 9])
def test_a_commit_that_is_known_by_its_key_alone_teaches_the_instances(memory, monkeypatch, others):
    """No answer said that it was committed, the idempotency key did: what was saved can be saved again."""
    make_long_from(monkeypatch)
    memory.bind(Purse, Transactions)
    purse = purses(1)[0]
    with _silence_after_the_decision(), Transaction(idempotency_key="once", table=Transactions) as tx:
        purse.balance = 1
        tx.save(purse)
        for i in range(others):
            tx.save(Purse(f"other{i}"))
        assert tx.plan().path == ("native" if others == 1 else "long")
    assert not tx.is_repeated
    purse.balance = 2
    purse.save()
    assert Purse.get("p0", consistent_read=True).balance == 2


async def _never_awaited(reason):
    raise AssertionError(reason)


@pytest.mark.parametrize("on_lost", [_never_awaited, "call me"])
def test_on_lost_can_be_called(account, on_lost):
    """A thread calls it: a coroutine function would never run, and nobody would hear of the loss."""
    with pytest.raises(ConfigurationError, match="plain function"):
        account.lock("a", on_lost=on_lost)
    with pytest.raises(ConfigurationError, match="plain function"):
        Locks.locked_range("a", 0, 1, on_lost=on_lost)


@pytest.mark.parametrize("number", [0, -1, 2.5, "3", True, None])
def test_numbers_of_things_are_checked(memory, number):
    """Bad input is a ConfigurationError, before anything is sent."""
    memory.bind(Purse, Transactions)
    for call in (
        lambda: Purse.modify("p0", lambda purse: None, attempts=number),
        lambda: Purse.guarded_batch(workers=number),
        lambda: transactional(attempts=number)(lambda tx: None),
        lambda: sweep(Transactions, segments=number),
        lambda: Transaction(workers=number),
    ):
        with pytest.raises(ConfigurationError, match="not "):
            call()


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


def test_a_read_that_comes_late_does_not_replace_the_item(memory):
    """A task was cancelled while it read, and read again: changes of the item it has then must not get lost."""
    memory.bind(Locks, Device)
    Device("d").save()
    with Device.locked("d") as lock:
        read, items = lock._target.read, []

        def read_late():
            lock._target.read = read
            items.append(lock.item)
            return read()

        lock._target.read = read_late
        items.append(lock.item)
        items[0].state = "changed"
        items[0].save()
    assert items[0] is items[1]
    assert Device.get("d").state == "changed"
