"""Several locks over one write, and several writes under one lock: each is checked, and none is in the other's way."""

from __future__ import annotations

import contextlib
import time

import pytest
from pynamodb.attributes import UnicodeAttribute

from pynamo_locking import NamedLock, TransactWrite, locked_all, transaction
from pynamo_locking.exceptions import ConfigurationError, LockLost, LockTimeout, OutcomeUnknown, StaleVersion
from tests.support.models import Account, Document, declare
from tests.support.parties import held_elsewhere
from tests.support.transaction_models import Transactions
from tests.support.wire import count_requests, on

pytestmark = pytest.mark.core

Names = declare("Names", NamedLock)
Seat = declare("Seat", table_name="seats", hash_key="hall", range_key="number", numbers="value", lock_table=Names)
Chair = declare("Chair", hash_key="hall", range_key="number", version=True, numbers="value", lock_table=Names)


def with_seats(engine):
    engine.bind(Seat, Chair, Names)
    for number in range(10):
        Seat("h", number).save()
    Chair("h", 1).save()


@pytest.fixture
def seats(memory):
    with_seats(memory)


@pytest.fixture
def seats_anywhere(engine):
    with_seats(engine)


def by_edit(model):
    with model.edit("h", 1) as seat:
        seat.value += 1


def by_update(model):
    with model.locked("h", 1) as lock:
        lock.item.update([model.value.add(1)])


def by_transact_write(model):
    with model.locked("h", 1) as lock, transact() as transaction:
        transaction.update(lock.item, [model.value.add(1)])


def by_transaction(model):
    with transaction() as tx:
        seat = tx.get(model, "h", 1, for_update=True)
        tx.update(seat, [model.value.add(1)])


def transact(model=Seat):
    return TransactWrite(connection=model._get_connection().connection)


WAYS = [(Seat, by_edit), (Chair, by_edit), (Seat, by_update), (Seat, by_transact_write), (Chair, by_transaction)]


@pytest.mark.parametrize(("model", "write"), WAYS)
def test_a_range_and_the_lock_of_an_item_in_it(seats_anywhere, model, write):
    """Both are checked: nothing is written once the range is lost, although the item's own lock is held."""
    with pytest.raises(LockLost), model.locked_range("h", 0, 5, heartbeat=False) as lock:
        write(model)
        assert model.break_lock("h", ticket=lock.ticket)
        with pytest.raises(LockLost):
            write(model)
    assert model.get("h", 1).value == 1
    assert model.lock_state("h", 1).entries == ()


@pytest.mark.parametrize(("model", "write"), WAYS)
def test_an_item_in_a_shared_range(seats, model, write):
    """Under a shared range nothing is written, also under the item's own lock."""
    with model.locked_range("h", 0, 5, shared=True), pytest.raises(ConfigurationError, match="acquire it exclusively"):
        write(model)
    assert model.get("h", 1).value == 0
    assert model.lock_state("h", 1).entries == ()


def test_a_range_inside_the_lock_of_an_item(seats):
    """The order in which they were taken does not matter."""
    with Seat.locked("h", 1) as own:
        seat = own.item
        with pytest.raises(LockLost), Seat.locked_range("h", None, None, heartbeat=False) as lock:
            assert Seat.break_lock("h", ticket=lock.ticket)
            seat.save()
        seat.value = 7
        seat.save()
    assert Seat.get("h", 1).value == 7


def test_the_lock_of_an_item_is_lost_inside_a_range(seats):
    """The range alone is not enough, if the copy came out of the item's lock."""
    with Seat.locked_range("h", 0, 5), contextlib.suppress(LockLost), Seat.locked("h", 1, heartbeat=False) as own:
        assert Seat.break_lock("h", 1, ticket=own.ticket)
        own.item.value = 7
        with pytest.raises(LockLost):
            own.item.save()
    assert Seat.get("h", 1).value == 0


@pytest.mark.parametrize("write", [by_edit, by_update])
def test_a_lost_answer_under_two_locks(seats_anywhere, write):
    """The write is found by its number, by whichever row shows it, also where engines know no tokens."""
    with Seat.locked_range("h", 0, 5), on("TransactWriteItems").lose_response() as faults:
        write(Seat)
        assert faults.hits == 1
    assert Seat.get("h", 1).value == 1
    assert Seat.lock_state("h", 1).entries == Seat.lock_state("h").entries == ()


def test_the_cost_of_a_write_under_two_locks(seats):
    """One transaction of three actions."""
    with Seat.locked_range("h", 0, 5), Seat.locked("h", 1) as lock:
        seat = lock.item
        with count_requests() as counted:
            seat.save()
    [(operation, body)] = counted.bodies
    assert (operation, len(body["TransactItems"])) == ("TransactWriteItems", 3)


# Several writes under one lock


def test_a_write_between_a_transaction_and_its_commit(seats_anywhere):
    """The transaction counts as the later one, although its actions were added before."""
    with Seat.locked_range("h", 0, 10), transact() as transaction:
        transaction.save(Seat("h", 1, value=1), add_version_condition=False)
        Seat("h", 2, value=2).save(add_version_condition=False)
        with transact() as inner:
            inner.save(Seat("h", 3, value=3), add_version_condition=False)
    assert [seat.value for seat in Seat.query("h")] == [0, 1, 2, 3, 0, 0, 0, 0, 0, 0]


def test_a_write_between_a_transaction_and_its_commit_with_the_lock_in_the_item(memory):
    """The same for an embedded lock."""
    memory.bind(Account, Document)
    account = Account("a", balance=1)
    account.save()
    with Account.locked("a") as lock, transact(Account) as transaction:
        transaction.update(lock.item, [Account.balance.add(1)], add_version_condition=False)
        Account.get("a").update([Account.balance.add(10)])
    assert Account.get("a").balance == 12


def test_transactions_of_a_batch_under_one_range(seats):
    """They are sent one after the other, so that none is taken for an old copy of another."""
    with Seat.locked_range("h", 0, 1000), Seat.guarded_batch(transactions=True) as batch:
        for number in range(400):
            batch.save(Seat("h", number, value=1), add_version_condition=False)
    assert sum(seat.value for seat in Seat.query("h")) == 400


def test_the_check_of_a_lock_under_which_the_transaction_writes(seats):
    """DynamoDB allows one action for each item, and the row of the lock is one: said when it is added."""
    with Seat.locked("h", 1) as lock:
        with transact() as transaction, pytest.raises(ConfigurationError, match="checks it already"):
            transaction.save(lock.item)
            lock.add_check_to(transaction)
        with transact() as transaction, pytest.raises(ConfigurationError, match="checks it already"):
            lock.add_check_to(transaction)
            transaction.save(lock.item)
    with Seat.locked("h", 1) as lock, transact() as transaction:
        lock.add_check_to(transaction)
        transaction.save(Seat("h", 2, value=5), add_version_condition=False)
    assert Seat.get("h", 2).value == 5


def test_numbers_that_are_one_number(seats):
    """2 and 2.0 are one key, so two actions for it are refused before anything is sent."""
    with transact() as transaction:
        transaction.save(Seat("h", 2, value=1), add_version_condition=False)
        with pytest.raises(ConfigurationError, match="two for"):
            transaction.save(Seat("h", 2.0, value=2), add_version_condition=False)
    assert Seat.get("h", 2).value == 1


@pytest.mark.parametrize("key", ["in the item", "beside"])
def test_a_transaction_in_doubt_of_an_item_that_was_read_by_itself(memory, key):
    """Whatever way the copy came from: what it may lack is not taken back by saving it."""
    memory.bind(Account, Seat, Chair, Names)
    Account("a").save()
    Seat("h", 1).save()
    model, keys, column = (Account, ("a",), "balance") if key == "in the item" else (Seat, ("h", 1), "value")
    with model.locked(*keys, heartbeat=False):
        item = model.get(*keys)
        with (
            on("TransactWriteItems", times=100).lose_response(),
            pytest.raises(OutcomeUnknown),
            transact() as transaction,
        ):
            transaction.update(item, [getattr(model, column).add(1)])
        with pytest.raises(StaleVersion):
            item.save()
        item.refresh()
        item.save()
    assert getattr(model.get(*keys), column) == 1


def test_a_key_that_changes_before_the_commit(memory):
    """What was added is written, though its request is made anew at the commit."""
    memory.bind(Account)
    Account("a", balance=1).save()
    with Account.locked("a") as lock, transact(Account) as transaction:
        account = lock.item
        account.balance = 5
        transaction.save(account)
        account.account_id = "b"
    assert Account.get("a").balance == 5
    assert Account.count() == 1


Keyed = declare("Keyed", NamedLock, name=UnicodeAttribute(hash_key=True, attr_name="pk"))
Desk = declare("Desk", hash_key="desk_id", numbers="value", lock_table=Keyed)


def test_a_lock_table_with_a_key_of_another_name(engine):
    """It carries the locks of others as it carries its own."""
    engine.bind(Keyed, Desk)
    Desk("d").save()
    with Keyed.locked("n"), Desk.edit("d") as desk:
        desk.value += 1
    assert Desk.get("d").value == 1
    assert Desk.lock_state("d").exists


def test_ranges_of_a_model_with_the_lock_in_the_item(memory):
    """They need a table of locks: that is what the error says, and not to declare what is declared."""
    memory.bind(Document)
    with pytest.raises(ConfigurationError, match=r"no place for locks of ranges: name a subclass of NamedLock"):
        Document.locked_range("f", None, None)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Account.locked("a"),
        lambda: Account.edit("a"),
        lambda: Account.try_locked("a"),
        lambda: locked_all(Account.locked("a")),
    ],
)
def test_no_decorator(made):
    """What would be made once for all calls says what to write in the function."""
    with pytest.raises(ConfigurationError, match=r"no decorator.*Write `with Model\.locked\(key\):`"):

        @made()
        def function() -> None: ...


def test_the_wait_that_an_error_names(memory):
    """Is how long the lock was waited for: what was left of the transaction's wait, in whole milliseconds."""
    memory.bind(Account, Transactions)
    Account("a").save()
    with (
        held_elsewhere(Account.locked("a")),
        pytest.raises(LockTimeout, match=r" within 0(\.0[0-3]\d?)? s: "),
        transaction(Transactions, wait=0.05) as tx,
    ):
        time.sleep(0.02)
        tx.get(Account, "a", for_update=True)
