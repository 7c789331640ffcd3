"""What DynamoDB refuses and accepts inside, outside and after a lock."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from pynamodb.exceptions import DeleteError, PutError, TransactWriteError, UpdateError
from pynamodb.transactions import TransactWrite as StockTransactWrite

from pynamo_locking import TransactWrite, VersionedMixin
from pynamo_locking.exceptions import BatchError, ConfigurationError, Conflict, ItemLocked, LockLost, StaleVersion
from tests.support.models import APART, Account, Device, Document, Locks, declare
from tests.support.parties import abandoned, held_elsewhere, in_thread, shifted_clock
from tests.support.transaction_models import existing
from tests.support.wire import count_requests, is_save, on

pytestmark = pytest.mark.core

WRITES = {
    "save": lambda item: item.save(),
    "update": lambda item: item.update([Account.balance.add(1)]),
    "delete": lambda item: item.delete(),
}
ERRORS = {"save": PutError, "update": UpdateError, "delete": DeleteError}


@pytest.fixture
def account(engine):
    """An account with 100 in it."""
    engine.bind(Account)
    Account("a", balance=100).save()
    return Account


@pytest.mark.parametrize("write", WRITES)
def test_a_write_from_outside_is_refused_while_the_lock_is_held(account, write):
    """The error names the holder, is PynamoDB's as well, pickles, and nothing changed."""
    item = account.get("a")
    with held_elsewhere(account.locked("a", owner="holder")) as lock:
        with pytest.raises(ItemLocked, match="locked by holder") as caught:
            WRITES[write](item)
        error = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(error, ERRORS[write])
        assert isinstance(error, Conflict)
        assert error.cause_response_code == "ConditionalCheckFailedException"
        assert (error.holder, error.ticket) == ("holder", lock.ticket)
        assert account.get("a").balance == 100
    WRITES[write](item)


@pytest.mark.parametrize("model", [Account, Device], ids=["in-the-item", "in-a-row"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_inside_a_lost_lock_is_refused(account, device, model, write):
    """Once our entry is gone, nothing of ours is applied; the copy stays refused until it is read again."""
    key, number = ("a", Account.balance) if model is Account else ("d", Device.total)
    with pytest.raises(LockLost), model.locked(key, heartbeat=False) as lock:
        item = lock.item
        before = existing(model, key)
        model.break_lock(key, ticket=lock.ticket)
        with pytest.raises(LockLost) as caught:
            item.update([number.add(1)]) if write == "update" else WRITES[write](item)
        assert caught.value.ticket == lock.ticket
        assert lock.lost.is_set()
    assert {**existing(model, key), "lock": None} == {**before, "lock": None}
    if model is Account:
        with pytest.raises(LockLost):
            item.save()
    item.refresh()
    item.save()


def test_a_delete_keeps_the_lock_that_is_in_its_own_row(device):
    """Until the block ends no other caller has it, and the item may be saved anew."""
    with device.locked("d") as lock:
        lock.item.delete()
        assert [entry.ticket for entry in device.lock_state("d").entries] == [lock.ticket]
        device("d", state="anew").save()
    assert device.get("d").state == "anew"
    assert device.lock_state("d").entries == ()


def test_the_item_of_a_lock_is_guarded_in_other_threads(account):
    """`lock.item` remembers its lock wherever it is taken."""
    with account.locked("a") as lock:
        in_thread(lambda: lock.item.update([account.balance.add(1)]))
        assert lock.item.balance == 101


def test_a_save_leaves_waiters_alone(account):
    """A waiter that queued after the item was read is still in the queue after it is saved."""

    def balance_under_the_lock():
        with account.locked("a") as lock:
            return lock.item.balance

    with ThreadPoolExecutor(1) as pool, account.locked("a", settings=APART) as lock:
        taken = pool.submit(balance_under_the_lock)
        while not account.lock_state("a").waiters:
            pass
        lock.item.balance = 1
        lock.item.save()
        assert len(account.lock_state("a").waiters) == 1
    assert taken.result() == 1


def test_undeclared_attributes_survive_a_save(account, engine):
    """A save sets what the model declares; what others stored beside it stays."""
    engine.client().update_item(
        TableName=account.Meta.table_name,
        Key={"account_id": {"S": "a"}},
        UpdateExpression="SET foreign_note = :n",
        ExpressionAttributeValues={":n": {"S": "kept"}},
    )
    account.get("a").save()
    stored = engine.client().get_item(TableName=account.Meta.table_name, Key={"account_id": {"S": "a"}})["Item"]
    assert stored["foreign_note"] == {"S": "kept"}


def test_an_outsider_evicts_a_holder_that_died_long_ago(account):
    """A plain save waits for no holder whose lease ended longer ago than the clock skew."""
    with shifted_clock() as clock:
        abandoned(account.locked("a", lease=6))
        item = account.get("a")
        with pytest.raises(ItemLocked):
            item.save()
        clock.shift += 6 + 10.1
        item.balance = 5
        item.save()
    assert account.get("a").balance == 5
    assert account.lock_state("a").entries == ()


def test_an_outsider_evicts_once(engine, account):
    """Another program stores the dead holder before each attempt: the save is refused, and does not go on and on."""
    with shifted_clock() as clock:
        abandoned(account.locked("a", lease=6))
        clock.shift += 6 + 10.1
        image, attempts = existing(account, "a"), list[str]()

        def put_back(body):
            if is_save(body):
                if len(attempts) < 5:
                    engine.client().put_item(TableName=body["TableName"], Item=image)
                attempts.append(body["UpdateExpression"])
            return False

        item = account.get("a")
        item.balance = 5
        with on("UpdateItem", where=put_back).lose_request(), pytest.raises(ItemLocked):
            item.save()
    assert len(attempts) == 2
    assert existing(account, "a") == image


def test_conditions_compose(engine):
    """Version, lock and the caller's own condition all have to hold, each with its own error."""
    engine.bind(Document)
    Document("f", 1, body="x").save()
    with Document.locked("f", 1) as lock:
        item = lock.item
        with pytest.raises(PutError) as caught:
            item.save(Document.body == "y")
        assert caught.value.cause_response_code == "ConditionalCheckFailedException"
        assert isinstance(caught.value, Conflict)
        assert not isinstance(caught.value, (StaleVersion, ItemLocked))
        assert caught.value.current.body == "x"
        assert item.version == 1
        item.save(Document.body == "x")
        assert item.version == 2
        stale = Document.get("f", 1)
        item.save()
        with pytest.raises(PutError):
            stale.save()
        with pytest.raises(UpdateError):
            stale.update([Document.body.set("z")])
        with pytest.raises(DeleteError):
            stale.delete()
        actions = [Document.body.set("w")]
        stale.update(actions, add_version_condition=False)
        assert len(actions) == 1
        assert (stale.version, stale.body) == (4, "w")
        item.save(add_version_condition=False)
        assert (item.version, Document.get("f", 1).version) == (5, 5)
        stale.delete(add_version_condition=False)


def test_lock_operations_do_not_touch_the_version(engine):
    """A reader with versions and no locks is not disturbed by a lock that writes nothing."""
    engine.bind(Document)
    Document("f", 1).save()
    reader = Document.get("f", 1)
    with Document.locked("f", 1):
        pass
    reader.save()


def test_condition_and_check_guard_other_items(engine):
    """`lock.held_condition()` holds while the lock does; `lock.add_check_to()` takes it into a transaction."""
    engine.bind(Locks, Account, Device)
    Account("a").save()
    for model, key in ((Account, "a"), (Device, "d")):
        with pytest.raises(LockLost), model.locked(key, heartbeat=False) as lock:
            with TransactWrite(connection=Device._get_connection().connection) as transaction:
                lock.add_check_to(transaction)
                transaction.save(Device("other", state="guarded"))
            if model is Account:
                lock.item.save(lock.held_condition())
            assert model.break_lock(key, ticket=lock.ticket)
            with (
                pytest.raises(TransactWriteError),
                TransactWrite(connection=Device._get_connection().connection) as transaction,
            ):
                lock.add_check_to(transaction)
                transaction.save(Device("never"))
        Device.get("other").delete()
        with pytest.raises(Device.DoesNotExist):
            Device.get("never")


def test_actions_on_the_lock_itself_are_refused(account):
    """No caller changes the lock document through update()."""
    item = account.get("a")
    with pytest.raises(ConfigurationError, match="behind its back"):
        item.update([account.lock.remove()])
    with pytest.raises(TypeError, match="non-empty list"):
        item.update([])


Note = declare("Note", VersionedMixin, version=True, numbers="n")


def test_a_false_condition_refuses_a_new_item_of_a_batch(engine):
    """As it refuses one that is saved alone: it is not stored, and the others are."""
    engine.bind(Note)
    with pytest.raises(BatchError) as refused, Note.guarded_batch() as batch:
        for key in "abc":
            batch.save(Note(key), Note.n == 7 if key == "b" else None)
    assert [isinstance(result.error, Conflict) for result in refused.value.results] == [False, True, False]
    assert sorted(note.key for note in Note.scan(consistent_read=True)) == ["a", "c"]


def test_a_model_of_keys_alone(engine):
    """An item with nothing but its key and its lock is saved and locked like any other."""

    Flag = engine.bind(declare("Flag", hash_key="name", lock=True))  # noqa: N806 - a class
    Flag("up").save()
    with Flag.edit("up") as flag:
        assert flag.name == "up"
    assert Flag.get("up").lock.entries == ()


# Transactions


def test_our_transaction_guards_every_write(engine):
    """Inside locks everything is written; outside, one locked item refuses the whole transaction."""
    engine.bind(Locks, Account, Device)
    Account("a", balance=1).save()
    Account("b", balance=1).save()
    Device("d").save()
    connection = Account._get_connection().connection
    with Account.locked("a") as first, Account.locked("b") as second, Device.locked("d") as third:
        with TransactWrite(connection=connection) as transaction:
            first.item.balance = 10
            transaction.save(first.item)
            transaction.update(second.item, [Account.balance.add(9)])
            transaction.update(third.item, [Device.total.add(9)])
        assert Account.lock_state("a").holders[0].writes == 1
        assert Locks.lock_state(third.name).holders[0].writes == 1
        outsider = in_thread(lambda: Account.get("a"))

        def write_from_outside():
            with TransactWrite(connection=connection) as transaction:
                transaction.save(Account("new"))
                transaction.save(outsider)

        with pytest.raises(ItemLocked) as caught:
            in_thread(write_from_outside)
        assert isinstance(caught.value, TransactWriteError)
        assert caught.value.ticket == first.ticket
    assert [Account.get(name).balance for name in "ab"] == [10, 10]
    assert Device.get("d").total == 9
    with pytest.raises(Account.DoesNotExist):
        Account.get("new")


def test_our_transaction_after_a_loss(engine):
    """A lost lock refuses the transaction, wherever the lock is kept."""
    engine.bind(Locks, Account, Device)
    Account("a").save()
    Device("d").save()
    for model, key in ((Account, "a"), (Device, "d")):
        with pytest.raises(LockLost), model.locked(key, heartbeat=False) as lock:
            item = lock.item
            model.break_lock(key, ticket=lock.ticket)
            with pytest.raises(LockLost), TransactWrite(connection=model._get_connection().connection) as transaction:
                transaction.delete(item)
                transaction.save(Account("new"))
            assert lock.lost.is_set()
        model.get(key)
    with pytest.raises(Account.DoesNotExist):
        Account.get("new")


def test_deletes_in_our_transaction(engine):
    """A delete takes an embedded lock along, without a false loss, and leaves one in its own row."""
    engine.bind(Locks, Account, Device)
    Account("a").save()
    Device("d").save()
    with Account.locked("a") as lock, Device.locked("d") as other:
        with TransactWrite(connection=Account._get_connection().connection) as transaction:
            transaction.delete(lock.item)
            transaction.delete(other.item)
        assert not lock.lost.is_set()
    for model, key in ((Account, "a"), (Device, "d")):
        with pytest.raises(model.DoesNotExist):
            model.get(key)


@pytest.mark.parametrize("is_held", [False, True], ids=["free", "held"])
@pytest.mark.parametrize("model", [Account, Device], ids=["in-the-item", "in-a-row"])
def test_pynamodbs_transactions_are_refused(engine, model, is_held):
    """They check no lock, held or not: the first call says which class does, and nothing is sent."""
    engine.bind(Locks, Account, Device)
    model("x").save()
    with ExitStack() as stack:
        item = stack.enter_context(model.locked("x")).item if is_held else model.get("x")
        transaction = StockTransactWrite(connection=model._get_connection().connection)
        attribute = model.balance if model is Account else model.total
        with count_requests() as counted:
            for name, arguments in (("save", ()), ("update", ([attribute.add(1)],)), ("delete", ())):
                with pytest.raises(ConfigurationError, match=r"Use pynamo_locking\.TransactWrite"):
                    getattr(transaction, name)(item, *arguments)
    assert counted.total == 0


def test_a_late_write_of_a_revived_entry_is_refused(account):
    """Late copies of the enter request and of a write, after a release: the revived entry has another ticket.

    Found while writing the guard: existence of the entry and its counter are not enough.
    """
    client = account._get_connection().connection.client
    with account.locked("a"):
        pass
    with on("UpdateItem", where=lambda body: "#l.#n[0] + :callers" in body["UpdateExpression"]).watch() as entering:  # noqa: SIM117
        with account.locked("a") as lock:
            [before] = account.lock_state("a").entries
            sent = _recorded_write(lock)
    account("a", balance=7).save(add_version_condition=False)
    client.update_item(**entering.bodies[-1])  # the late copy of the enter request: the id is back, under a new ticket
    [entry] = account.lock_state("a").entries
    assert (entry.id, entry.writes) == (before.id, 0)
    assert entry.ticket > before.ticket
    with pytest.raises(client.exceptions.ConditionalCheckFailedException):
        client.update_item(**sent)
    assert account.get("a").balance == 7


def _recorded_write(lock):
    """Save the item, and return the request that did."""
    lock.item.balance = -1
    with count_requests() as counted:
        lock.item.save()
    [(_, sent)] = counted.bodies
    return sent


def test_a_late_write_cannot_pass_a_later_one(account):
    """A copy of the first write that arrives after the second is refused, version or not."""
    with account.locked("a") as lock:
        sent = _recorded_write(lock)
        lock.item.balance = 42
        lock.item.save()
        client = account._get_connection().connection.client
        with pytest.raises(client.exceptions.ConditionalCheckFailedException):
            client.update_item(**sent)
    assert account.get("a").balance == 42


def test_an_outsider_empties_a_queue_of_many_dead(account):
    """However many died in the queue, in as many requests as that takes."""
    with shifted_clock() as clock:
        for _ in range(30):  # readers, who hold it together
            abandoned(account.locked("a", shared=True, lease=6, settings=APART))
        assert len(account.lock_state("a").entries) == 30
        clock.shift += 6 + 10.1
        account.get("a").save()
    assert account.lock_state("a").entries == ()
