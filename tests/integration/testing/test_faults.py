"""The faults that tests of applications ask for: real ones, on every engine, and a test notices if none has come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.attributes import VersionAttribute as PlainVersion
from pynamodb.connection import Connection
from pynamodb.exceptions import GetError, PutError
from pynamodb.models import Model

from pynamo_locking import NamedLock, TransactionTable, TransactWrite, VersionedMixin, transaction, transactional
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    Conflict,
    ItemLocked,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    StaleVersion,
)
from pynamo_locking.recipes import IdempotencyTable
from pynamo_locking_testing import concurrent_write, held_by_other, lose_lock, lost_responses, throttled
from tests.support.models import declare
from tests.support.transaction_models import make_long_from

if TYPE_CHECKING:
    from tests.engines.engine import Engine


Account = declare("Account", hash_key="id", lock=True, version=True, numbers="balance")
Line = declare("Line", VersionedMixin, hash_key="order", range_key="number", version=True, texts="text")
Plain = declare("Plain", Model, hash_key="id", version=PlainVersion(), numbers="balance")
Headers = declare("Headers", TransactionTable)
Names = declare("Names", NamedLock)
Calls = declare("Calls", IdempotencyTable)


def balance(name: str = "a") -> int:
    return int(Account.get(name, consistent_read=True).balance)


@pytest.fixture
def everywhere(concurrent_engine: Engine) -> Engine:
    """An engine with an account."""
    concurrent_engine.bind(Account)
    Account("a", balance=100).save()
    return concurrent_engine


@pytest.fixture
def accounts(memory_dynamodb: Any) -> None:
    """The same in memory, with all models, where a second engine would show nothing more."""
    for model in (Account, Line, Plain, Headers, Names, Calls):
        model.create_table(billing_mode="PAY_PER_REQUEST")
    Account("a", balance=100).save()


def earn(amount: int = 1, **options: Any) -> None:
    Account.modify("a", lambda account: setattr(account, "balance", account.balance + amount), **options)


# Conflicts


def test_a_conflict_is_real(everywhere):
    """DynamoDB refuses the write, since another one came just before; the next one finds what that has written."""
    account = Account.get("a")
    account.balance = 0
    with (
        pytest.raises(StaleVersion) as stale,
        concurrent_write(Account, "a", by=lambda other: other.update([Account.balance.add(7)])) as strikes,
    ):
        account.save()
    assert (stale.value.expected, stale.value.actual, strikes.count) == (1, 2, 1)
    assert balance() == 107
    with concurrent_write(Account, "a", times=2) as strikes:
        earn(wait=0)  # else the second attempt holds the lock, and the other writer is refused
    assert (balance(), strikes.count) == (108, 2)


@transactional(attempts=3)
def move(tx: Any) -> None:
    account, line = tx.get(Account, "a"), tx.get(Line, "o-1", 1)
    account.balance -= 1
    tx.save(account)
    line.text = "moved"
    tx.save(line)


def in_a_transact_write(account: Any) -> None:
    with TransactWrite(connection=Account._get_connection().connection) as batch:
        batch.save(account)
        batch.save(Line("o-1", 1))


def checked_in_a_transaction(account: Any) -> None:
    with transaction() as tx:
        tx.check(tx.get(Account, account.id))
        tx.save(Line("o-1", 1))
        tx.save(Line("o-1", 2))


WRITES: Final = {
    "save": Account.save,
    "update": lambda account: account.update([Account.balance.set(1)]),
    "delete": Account.delete,
    "asave": lambda account: asyncio.run(account.asave()),
    "TransactWrite": in_a_transact_write,
    "check": checked_in_a_transaction,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_before_every_kind_of_write(accounts, write):
    """Also those of transactions, and the check of an item that was only read."""
    account = Account.get("a")
    with pytest.raises(Conflict), concurrent_write(Account, "a") as strikes:
        write(account)
    assert strikes.count == 1


def test_in_batches(accounts):
    """Of the item alone: the others are written."""
    with pytest.raises(BatchError) as failed, concurrent_write(Line, "o-1", 7), Line.guarded_batch() as batch:
        for number in range(30):
            batch.save(Line("o-1", number))
    assert [result.item.number for result in failed.value.results if result.error] == [7]


def test_transactions_run_again(accounts):
    """A conflict with one of their items: the last attempt succeeds. One with a lock is held by the second."""
    Line("o-1", 1).save()
    for model, key, times in ((Account, ("a",), 1), (Line, ("o-1", 1), 2)):
        with concurrent_write(model, *key, times=times) as strikes:
            move()
        assert strikes.count == times
    assert (balance(), Line.get("o-1", 1).text) == (98, "moved")
    with pytest.raises(StaleVersion), concurrent_write(Line, "o-1", 1, times=3):
        move()


def test_a_transaction_that_marks_its_items(accounts, monkeypatch):
    """More than a native one can have: the conflict comes before the mark, which keeps other writers out."""
    monkeypatch.setattr(Account.Meta, "transaction_table", Headers, raising=False)
    make_long_from(monkeypatch, 100, statements=1)
    keys = [str(number) for number in range(104)]
    with Account.guarded_batch() as batch:
        for key in keys:
            batch.save(Account(key))
    with pytest.raises(StaleVersion), concurrent_write(Account, "7") as strikes, transaction() as tx:
        for item in tx.get_all(Account, keys):
            tx.touch(item)
    assert strikes.count == 1


def test_what_the_other_writer_does(accounts):
    """It deletes, or creates what is absent; it is another party also inside of a transaction."""
    account = Account.get("a")
    with pytest.raises(StaleVersion) as gone, concurrent_write(Account, "a", by=Account.delete):
        account.save()
    assert gone.value.actual is None
    with pytest.raises(StaleVersion), concurrent_write(Account, "b"):
        Account("b", balance=3).save()
    assert balance("b") == 0


def test_a_model_of_pynamodb(accounts):
    """Whose own version refuses the write."""
    item = Plain("p")
    item.save()
    with pytest.raises(Exception, match="ConditionalCheckFailed"), concurrent_write(Plain, "p"):
        item.save()


def test_a_conflict_that_did_not_come(accounts):
    """Fails the test: nothing was written, or another item, or the lock keeps writers out."""
    with pytest.raises(AssertionError, match="did not write Account 'a'"), concurrent_write(Account, "a"):
        Account.get("a")
        Account("b").save()
        with Account.locked("a"):
            pass
    with (
        pytest.raises(AssertionError, match="holds its lock") as kept_out,
        concurrent_write(Account, "a"),
        Account.edit("a") as account,
    ):
        account.balance += 1
    assert isinstance(kept_out.value.__cause__, ItemLocked)
    assert balance() == 101
    with pytest.raises(ZeroDivisionError), concurrent_write(Account, "a"):
        raise ZeroDivisionError


@pytest.mark.parametrize("table", [Names, Calls])
def test_a_lock_that_creates_its_row_is_no_write(accounts, table):
    """Taking, renewing, handing over and giving up the lock of a name change nothing else."""
    for _ in range(2):  # the second time there is a row
        with (
            pytest.raises(AssertionError, match="did not write"),
            concurrent_write(table, "n"),
            table.locked("n") as lock,
        ):
            lock.renew()


def test_a_call_whose_result_meets_a_conflict(accounts):
    """The other writer comes when the result is stored, and not when the key is locked: it finds the holder there."""
    seen: list[int] = []

    def look(row: Calls) -> None:
        seen.append(len(row.lock.entries))

    with concurrent_write(Calls, "k", by=look) as strikes, Calls.call("k") as call:
        assert not strikes.count
        call.result = 1
    assert (strikes.count, seen) == (1, [1])


# Locks


def test_a_lock_is_lost(everywhere):
    """Now: its holder hears of it at once, and cannot write any more; the next one gets in."""
    told = []
    with pytest.raises(LockLost, match="no longer in the queue"), Account.locked("a", on_lost=told.append) as lock:
        assert not lock.lost.is_set()
        lose_lock(lock)
        assert (lock.lost.is_set(), told, lock.is_held) == (True, ["evicted"], False)
        lock.item.balance = 0
        with pytest.raises(LockLost):
            lock.item.save()
    assert balance() == 100
    with Account.locked("a", wait=0):
        pass


def test_a_lock_is_lost_before_the_write(everywhere):
    """The application has made the lock itself: what it has computed is not written."""

    def pay() -> None:
        with Account.edit("a") as account:
            account.balance -= 1

    with pytest.raises(LockLost), concurrent_write(Account, "a", by=lambda _: lose_lock(Account, "a")):
        pay()
    assert balance() == 100


def test_a_name_is_lost(accounts):
    """By its name; all that share it lose it; a lock that nobody holds cannot be lost."""
    mine = Names.locked("n", shared=True)
    with held_by_other(Names.locked("n", shared=True)) as other, pytest.raises(LockLost), mine as lock:
        lose_lock(Names, "n")
        assert other.lost.is_set()
        assert lock.lost.is_set()
    with pytest.raises(ConfigurationError, match="nobody holds"):
        lose_lock(Names, "n")


def test_a_lock_is_held_by_another_party(everywhere):
    """For who asks for it in the block, in the same thread as well; afterwards it is free."""
    with held_by_other(Account.locked("a", owner="another host")) as lock:
        with pytest.raises(LockTimeout) as busy, Account.locked("a", wait=0):
            raise AssertionError
        with pytest.raises(ItemLocked):
            Account.get("a").save()
    assert busy.value.queue.holders[0].owner == "another host"
    assert busy.value.queue.holders[0].ticket == lock.ticket
    with Account.locked("a", wait=0):
        pass


def test_a_holder_that_dies(accounts, virtual_clock):
    """Its lease ends, and the next one gets in."""
    with held_by_other(Account.locked("a", heartbeat=False, lease=60)) as dead, Account.locked("a", wait=300) as lock:
        assert lock.ticket > dead.ticket
    assert virtual_clock.elapsed >= 60


def test_a_holder_that_lives(accounts, virtual_clock):
    """Keeps its lock for five leases, by its heartbeat."""
    with held_by_other(Account.locked("a", lease=60)), pytest.raises(LockTimeout), Account.locked("a", wait=300):
        raise AssertionError
    assert virtual_clock.elapsed == pytest.approx(300, abs=1)


# Answers


def test_no_answer(everywhere):
    """The outcome is unknown, and the write was made; from the end of the block on there are answers again."""
    with pytest.raises(OutcomeUnknown) as unknown, lost_responses(Account, "a"):
        earn()
    assert (balance(), unknown.value.resolve()) == (101, "applied")


def test_no_request(accounts):
    """The same for who waits for an answer, and the write was not made."""
    with pytest.raises(OutcomeUnknown), lost_responses(Account, "a", is_applied=False):
        earn()
    assert balance() == 100


def test_one_lost_answer(everywhere):
    """The package finds out what became of the write."""
    with lost_responses(Account, "a", times=1) as strikes:
        earn()
        with Account.edit("a") as account:
            account.balance += 1
    assert (balance(), strikes.count) == (102, 1)
    with pytest.raises(AssertionError, match="no response was lost"), lost_responses(Account, "a"):
        Account.get("a")


def test_throttling(everywhere):
    """As DynamoDB says it, for each request to the table, and for no other one."""
    account = Account.get("a")
    with throttled(Account) as strikes, pytest.raises(PutError, match="ProvisionedThroughputExceeded"):
        account.save()
    assert strikes.count
    assert balance() == 100
    with throttled(Account, times=1, limit="KeyRangeThroughputExceeded", index="i"):
        with pytest.raises(GetError, match=r"IndexReadKeyRangeThroughputExceeded of .*/index/i"):
            Account.get("a")
        earn()
    assert balance() == 101


def test_outside_of_the_block(accounts):
    """PynamoDB sends its requests as ever."""
    with concurrent_write(Account, "a"), lost_responses(Account, "a", times=1), throttled(Line):
        earn()
    assert Connection._make_api_call.__module__ == "pynamodb.connection.base"
