"""What a review of the transactions found, each once: none of it comes back."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError

from pynamo_locking import ConfigurationError, Conflict, StaleVersion, Transaction, transaction, transactional
from pynamo_locking.testing._botocore import client_error
from tests.support.transaction_models import Entry as Ledger
from tests.support.transaction_models import (
    Purse,
    Robot,
    RowLocks,
    Session,
    Transactions,
    make_long_from,
    purses,
    stored,
)

if TYPE_CHECKING:
    from tests.engines import Engine


@pytest.fixture(autouse=True)
def _tables(memory: Engine) -> None:
    memory.bind(Purse, Ledger, Transactions)


def balance(key: str) -> int:
    """What is stored."""
    return int(Purse.get(key, consistent_read=True).balance)


def test_a_committed_transaction_is_not_run_again() -> None:
    """Although a callback after the commit fails with what is worth another attempt before it."""
    purses(1)

    @transactional(attempts=3)
    def add(tx: Transaction) -> None:
        purse = tx.get(Purse, "p0")
        purse.balance += 1
        tx.save(purse)
        tx.after_commit(lambda: Purse("p0", note="new").save())

    with pytest.raises(StaleVersion):
        add()
    assert balance("p0") == 101


def test_what_is_read_after_an_unchecked_write_is_checked() -> None:
    """The value that was seen is the one that was written upon."""
    purses(1)
    with pytest.raises(StaleVersion), transaction() as tx:
        tx.update(Purse("p0"), [Purse.balance.add(5)], add_version_condition=False)
        assert tx.get(Purse, "p0").balance == 105
        Purse("p0").update([Purse.balance.set(1000)], add_version_condition=False)
    assert balance("p0") == 1000


def test_a_query_after_an_insert_is_guarded() -> None:
    """The guard row was counted without a check by the insert; the query relies on it."""
    Ledger("l", 1).save()
    with pytest.raises(StaleVersion), transaction() as tx:
        tx.save(Ledger("l", 2))
        assert len(tx.query(Ledger, "l")) == 2
        with Transaction() as other:
            other.save(Ledger("l", 3))
    assert Ledger.count("l") == 2


def test_two_copies_of_one_item_are_not_both_saved() -> None:
    """The second would undo what was done to the first."""
    purses(1)
    with pytest.raises(StaleVersion, match="another copy"), transaction() as tx:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
        tx.save(Purse.get("p0"))


def test_a_check_leaves_the_instance_that_get_has_given() -> None:
    """Everybody who asks the transaction gets the same one."""
    purses(1)
    with transaction() as tx:
        mine = tx.get(Purse, "p0")
        tx.check(Purse.get("p0"))
        assert tx.get(Purse, "p0") is mine


@pytest.mark.parametrize("long", [False, True])
def test_a_save_stores_what_was_saved(monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    """What is changed in the instance afterwards needs another save, also where the write is planned again."""
    make_long_from(monkeypatch)
    purse = purses(1)[0]
    with transaction() as tx:
        purse.balance = 1
        tx.save(purse, add_version_condition=False)
        purse.balance = 999
        for i in range(9 if long else 1):
            tx.save(Purse(f"other{i}"))
        assert tx.plan().path == ("long" if long else "native")
    assert balance("p0") == 1


def test_a_failed_long_commit_teaches_no_instance_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old instance that was to be saved whatever is stored is as old afterwards as it was."""
    make_long_from(monkeypatch)
    old, stale = purses(2)
    for purse in (Purse.get("p0"), Purse.get("p1")):
        purse.update([Purse.balance.set(500)])
    with pytest.raises(StaleVersion), transaction() as tx:
        tx.save(old, add_version_condition=False)
        tx.save(stale)
        for i in range(9):
            tx.save(Purse(f"other{i}"))
    with pytest.raises(PutError):
        old.save()
    assert balance("p0") == 500


def test_an_instance_does_not_carry_out_what_was_rolled_back() -> None:
    """It shows the result of an update that has not happened: to save it is refused."""
    purses(1)
    with transaction() as tx:
        purse = tx.get(Purse, "p0")
        tx.update(purse, [Purse.balance.add(1)])
        tx.rollback()
    with pytest.raises(StaleVersion):
        purse.save()
    assert balance("p0") == 100


def test_an_item_without_a_version_is_known_to_exist(memory: Engine) -> None:
    """One that stock PynamoDB has written, and that is deleted meanwhile, is not created again."""
    memory.client().put_item(TableName=Purse.Meta.table_name, Item={"purse_id": {"S": "old"}, "balance": {"N": "1"}})
    with pytest.raises(Conflict), transaction() as tx:
        purse = tx.get(Purse, "old")
        memory.client().delete_item(TableName=Purse.Meta.table_name, Key={"purse_id": {"S": "old"}})
        tx.save(purse)
    assert stored(Purse, "old") is None


@pytest.mark.parametrize("option", ["attributes_to_get", "last_evaluated_key", "index_name"])
def test_queries_read_whole_items(option: str) -> None:
    """A part of an item would be taken for all of it by the next save."""
    with transaction(isolation="read_committed") as tx, pytest.raises(ConfigurationError):
        tx.query(Ledger, "l", **{option: ["amount"]})


def test_coroutines_are_refused() -> None:
    """They would run after the commit."""

    async def later(tx: Transaction) -> None: ...

    decorate: Any = transactional()
    with pytest.raises(ConfigurationError, match="coroutine"):
        decorate(later)


def test_an_interrupt_after_the_decision_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what has to follow a commit follows it."""
    make_long_from(monkeypatch)
    done: list[str] = []

    def stop(finished: int, _: int) -> None:
        if finished > 6:
            raise KeyboardInterrupt

    tx = Transaction(on_progress=stop)
    tx.after_commit(lambda: done.append("committed"))
    tx.after_rollback(lambda: done.append("rolled back"))
    saved = [Purse(f"n{i}", balance=7) for i in range(9)]
    for purse in saved:
        tx.save(purse)
    with pytest.raises(KeyboardInterrupt):
        tx.commit()
    assert done == ["committed"]
    assert [purse.version for purse in saved] == [1] * 9
    assert {Purse.get(f"n{i}", isolation="read_committed").balance for i in range(9)} == {7}


def test_items_that_expire_soon_get_no_mark(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """DynamoDB could delete one together with a mark that is decided: too many of them are refused, unwritten."""
    memory.bind(Session)
    make_long_from(monkeypatch)
    for i in range(6):
        Session(f"s{i}", user="before", expires_at=timedelta(hours=1)).save()
    with pytest.raises(ConfigurationError, match="expire"), transaction(Transactions) as tx:
        for i in range(6):
            tx.update(tx.get(Session, f"s{i}"), [Session.user.set("after")])
    assert {session.user for session in Session.scan()} == {"before"}


def test_an_upsert_without_a_check_counts_in_the_guard() -> None:
    """It may create the item, which a query has to notice."""
    row = Ledger("l", 1)
    row.save()
    Ledger.get("l", 1).delete()
    with pytest.raises(StaleVersion), transaction() as tx:
        assert tx.query(Ledger, "l") == []
        tx.save(Purse("noted"))
        with Transaction() as other:
            other.update(row, [Ledger.amount.add(5)], add_version_condition=False)


def test_a_lock_that_is_lost_without_a_write_does_not_undo_a_commit() -> None:
    """What was read under it is checked by its write id; the commit says what it has done."""
    purses(2)
    with transaction() as tx:
        tx.get(Purse, "p0", for_update=True)
        tx.update(tx.get(Purse, "p1"), [Purse.balance.add(1)])
        [holder] = Purse.lock_state("p0").holders
        Purse.break_lock("p0", ticket=holder.ticket)
    assert balance("p1") == 101


def test_a_read_beside_a_lock_is_repeated_on_a_conflict(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore does not repeat a TransactGetItems that another transaction has cancelled."""
    memory.bind(Robot, RowLocks)
    Robot("r").save()
    send, left = Connection.dispatch, [True]

    def busy(self: Any, operation: str, kwargs: Any) -> Any:
        if operation == "TransactGetItems" and left:
            left.clear()
            reasons = {"CancellationReasons": [{"Code": "TransactionConflict", "Message": "made up"}]}
            raise client_error(operation, "TransactionCanceledException", "made up", reasons)
        return send(self, operation, kwargs)

    monkeypatch.setattr(Connection, "dispatch", busy)
    with Robot.edit("r"):
        assert not left
