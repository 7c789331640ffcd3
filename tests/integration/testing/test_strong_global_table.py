"""A table that answers as a global table with strong consistency between Regions does."""

from __future__ import annotations

import pytest
from pynamodb.exceptions import TableError, TransactWriteError

from pynamo_locking import TransactWrite, transaction
from pynamo_locking.cli import tables as tables_module
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing import strong_global_table
from tests.support.interval_models import Slot
from tests.support.models import Locks, declare
from tests.support.parties import without_pauses
from tests.support.transaction_models import FEW, Purse, Transactions, make_long_from
from tests.support.unique_models import User

Account = declare("Account", hash_key="account_id", lock=True, version=True, numbers="balance")
Ship = declare("Ship", hash_key="ship_id", version=True, lock_table=Locks)


@pytest.fixture(autouse=True)
def _no_pauses():
    with without_pauses():
        yield


def saved():
    """Return an item of the table."""
    item = Account("a", balance=0)
    item.save()
    return item


def act_on(item):
    """Return everything that is done with single requests, by name."""

    def under_lock():
        with Account.locked("a") as lock:
            lock.item.balance += 1
            lock.item.save()

    def beside():
        with Account.guarded_batch() as batch:
            batch.save(item)
            batch.save(Account("b"))

    def on_a_name():
        with Locks.locked("job"):
            pass

    return {
        "save": item.save,
        "save unchecked": lambda: item.save(add_version_condition=False),
        "update": lambda: item.update([Account.balance.set(1)]),
        "update unchecked": lambda: item.update([Account.balance.add(1)], add_version_condition=False),
        "delete": item.delete,
        "under the lock": under_lock,
        "modify": lambda: Account.modify("a", change=lambda found: setattr(found, "balance", 7)),
        "batch": beside,
        "a name": on_a_name,
    }


NAMES = ["save", "save unchecked", "update", "update unchecked", "delete"]
NAMES += ["under the lock", "modify", "batch", "a name"]


@pytest.mark.parametrize("name", NAMES)
def test_each_operation_meets_writes_of_other_regions(memory, name, monkeypatch):
    """Several times: it succeeds, and was applied once."""
    conflicts = 4
    make_long_from(monkeypatch, 100, statements=1)
    memory.bind(Account, Locks)
    item = saved()
    act = act_on(item)[name]
    with strong_global_table(Locks if name == "a name" else Account, conflicts=conflicts) as met:
        act()
    assert met.count == conflicts
    found = next(iter(Account.query("a", consistent_read=True)), None)
    assert getattr(found, "version", None) == {"delete": None, "a name": 1}.get(name, 2)


def transactions(item):
    """Return everything that is a transaction of DynamoDB, by name."""

    def native():
        with TransactWrite(connection=Account._get_connection().connection) as tx:
            tx.save(item)

    def together():
        with transaction() as tx:
            tx.update(tx.get(Account, "a"), [Account.balance.set(1)])
            tx.save(Account("b"))

    def read():
        with transaction() as tx:
            tx.get_all(Account, ["a"])

    return {"TransactWrite": native, "Transaction": together, "reads": read}


@pytest.mark.parametrize("name", ["TransactWrite", "Transaction", "reads"])
def test_transactions_are_refused(memory, name):
    """The error says what the table is, and what works there."""
    memory.bind(Account)
    item = saved()
    act = transactions(item)[name]
    with (
        strong_global_table(Account),
        pytest.raises(ConfigurationError, match="strong consistency between Regions, which has no transactions") as no,
    ):
        act()
    assert isinstance(no.value, TransactWriteError)
    assert no.value.cause_response_code == "ValidationException"
    assert [found.account_id for found in Account.scan(consistent_read=True)] == ["a"]
    assert Account.get("a", consistent_read=True).version == 1


def test_a_lock_in_another_row_is_refused(memory):
    """With the first write under it; the lock is given back."""
    memory.bind(Ship, Locks)
    ship = Ship("s")
    ship.save()
    with strong_global_table(Locks), pytest.raises(ConfigurationError, match="which has no transactions"):  # noqa: SIM117
        with Ship.locked("s") as lock:
            lock.item.save()
    assert Ship.lock_state("s").entries == ()
    assert Ship.get("s", consistent_read=True).version == 1


@pytest.mark.parametrize("table", [Purse, Transactions])
def test_a_long_transaction_is_refused_and_leaves_nothing(memory, monkeypatch, table):
    """Whether the items or the headers are there: its marks are dropped, and its header is aborted."""
    make_long_from(monkeypatch)
    memory.bind(Purse, Transactions)
    keys = [f"k{number}" for number in range(FEW + 1)]
    for key in keys:
        Purse(key, balance=0).save()
    with (
        strong_global_table(table),
        pytest.raises(ConfigurationError, match="has no transactions"),
        transaction(Transactions) as tx,
    ):
        for key in keys:
            tx.update(tx.get(Purse, key), [Purse.balance.set(1)])
    assert [Purse.get(key, consistent_read=True).balance for key in keys] == [0] * len(keys)
    assert not any(Purse.lock_state(key).intent for key in keys)
    Purse.get(keys[0]).save()


def test_ttl_cannot_be_enabled(memory):
    """As on such a table of DynamoDB; the description says what the table is."""
    memory.bind(Account)
    with strong_global_table(Account):
        description = describe(memory)
        with pytest.raises(TableError, match="UpdateTimeToLive is not supported"):
            Account._get_connection().update_time_to_live("expires")
    assert description["MultiRegionConsistency"] == "STRONG"
    assert "MultiRegionConsistency" not in describe(memory)


def describe(engine):
    return Account._get_connection().connection.dispatch("DescribeTable", {"TableName": Account.Meta.table_name})[
        "Table"
    ]


@pytest.mark.parametrize(
    ("model", "level", "needs"),
    [
        (Account, "warning", None),
        (Locks, "warning", None),
        (Ship, "problem", "Meta.lock_table"),
        (Purse, "problem", "Meta.transaction_table"),
        (Transactions, "problem", "Transactions"),
        (User, "problem", "Meta.unique"),
        (Slot, "problem", "Meta.lock_table, intervals"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_check_says_what_does_not_work_there(memory, model, level, needs):
    """What needs transactions is a problem; the rest is a warning."""
    memory.bind(model)
    with strong_global_table(model):
        (found,) = [each for each in tables_module.findings(model) if each.check == "regions"]
    assert found.level == level
    assert "us-east-2" in found.detail
    assert found.detail.partition("these need transactions: ")[2] == (needs or "")
    assert found.remedy
