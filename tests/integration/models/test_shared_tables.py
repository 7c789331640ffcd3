"""Rows of ours in a table of other items: what is done to that table, what is seen of it, and what commands show."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, NamedLock, TransactionTable, transaction
from pynamo_locking.cli import main
from pynamo_locking.exceptions import ConfigurationError, InvalidInput, LockingError
from tests.engines import one_table
from tests.integration.models.conftest import enable_ttl, ttl
from tests.support import one_table_models
from tests.support.deeds import dying_at
from tests.support.models import declare
from tests.support.one_table_models import (
    Locks,
    Order,
    Robot,
    Transactions,
    Uniques,
    assert_others_are_as_they_were,
    make,
    raw,
)
from tests.support.own_rows import WAYS, bind
from tests.support.transaction_models import make_long_from, marked_rows, survive

FEW = 30
OURS = [Locks, Transactions]

#: Locks whose names begin with the rest of a longer prefix.
Tenant = declare("Tenant", NamedLock, table_name="app", keys=("pk", "sk"), prefix="acme#")
#: Headers of a shorter prefix.
TenantTransactions = declare(
    "TenantTransactions", TransactionTable, table_name="app", keys=("pk", "sk"), prefix="acme#"
)
#: Orders that its transactions change.
TenantOrder = declare(
    *("TenantOrder", LockableModel),
    table_name="app",
    hash_key="pk",
    transaction_table=TenantTransactions,
    sk=UnicodeAttribute(range_key=True),
    numbers="total",
    lock=True,
    version=True,
)
#: The table as its own program sees it.
App = declare("App", Model, table_name="app", hash_key="pk", sk=UnicodeAttribute(range_key=True))


@pytest.mark.parametrize("own", OURS)
def test_a_table_that_is_missing_is_not_created(memory, own):
    """It belongs to another program."""
    table = memory.new_name()
    memory.bind_to(table, own)
    with pytest.raises(ConfigurationError, match="Create that table first"):
        own.create_table()
    assert table not in memory.client().list_tables()["TableNames"]


@pytest.mark.parametrize("own", OURS)
@pytest.mark.parametrize("others", [0, FEW])
def test_ttl_is_enabled_only_by_name(memory, own, others, caplog):
    """Also in a table that is empty: its program may use the attribute tomorrow."""
    table = make(memory, others)
    own.create_table()
    assert "TTL of the table" in caplog.text
    assert ttl(memory, Locks) is None
    own.create_table(enable_ttl=True)
    own.create_table()
    assert ttl(memory, Locks) == "ttl"
    assert_others_are_as_they_were(memory, table, others)


def test_ttl_of_another_attribute(memory):
    """The error says how to write that one."""
    make(memory, FEW)
    enable_ttl(memory, Locks, "gone")
    for own in OURS:
        with pytest.raises(ConfigurationError, match=r"Meta\.ttl_attribute = 'gone'"):
            own.create_table()
        with pytest.raises(ConfigurationError, match="Nothing was changed"):
            own.update_ttl(ignore_update_ttl_errors=False)
    assert ttl(memory, Locks) == "gone"


@pytest.mark.parametrize(("own", "name"), [(Locks, "lock"), (Locks, "lease_ends"), (Transactions, "owner")])
def test_an_index_of_an_attribute_of_ours(memory, own, name, capsys):
    """Our rows would appear in it, or be refused for their type."""
    table = memory.new_name()
    names = ("pk", "sk", name)
    memory.client().create_table(
        TableName=table,
        AttributeDefinitions=[{"AttributeName": each, "AttributeType": "S"} for each in names],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by",
                "KeySchema": [{"AttributeName": name, "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "ALL"},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
    )
    memory.bind_to(table, own)
    with pytest.raises(ConfigurationError, match=f"an index with the key {name}"):
        own.create_table()
    assert main(["tables", "check", f"{own.__module__}:{own.__name__}", "--json"]) == 1
    assert name in capsys.readouterr().out


@pytest.mark.parametrize("own", OURS)
def test_the_table_is_not_deleted(memory, own):
    """It has items of others."""
    table = make(memory, FEW)
    with pytest.raises(ConfigurationError, match="not deleted"):
        own.delete_table()
    assert_others_are_as_they_were(memory, table, FEW)


def test_prefixes_of_which_one_begins_the_other(memory, monkeypatch):
    """Their rows are apart: a sweep of the shorter one's would find no marks of a transaction, and finish it."""
    make_long_from(monkeypatch)
    table = make(memory, FEW)
    memory.bind_to(table, Tenant, TenantTransactions)
    key = {"pk": {"S": "acme#ours#dead"}, "sk": {"S": "transaction#dead"}}
    header = {**key, "state": {"S": "committed"}, "priority": {"S": "1-dead"}}
    memory.client().put_item(TableName=table, Item=header)
    assert TenantTransactions.sweep().examined == 0
    assert raw(memory, table)["acme#ours#dead", "transaction#dead"] == header
    assert Transactions.sweep().examined == 1
    with Tenant.locked("ours#nightly", wait=0) as short, Locks.locked("nightly", wait=0) as long_one:
        assert [each.name for each in Tenant.scan()] == ["ours#nightly"]
        assert [each.name for each in Locks.scan(attributes_to_get=["lock"])] == ["nightly"]
        assert short.ticket != long_one.ticket


def test_a_mark_of_another_prefix_is_not_judged(memory, monkeypatch):
    """Its header is not under the prefix of this model, so it would seem to be aborted."""
    make_long_from(monkeypatch)
    table = make(memory, FEW)
    memory.bind_to(table, TenantTransactions, TenantOrder)
    for number in range(6):
        Order("o", str(number), total=1).save()

    def change() -> None:
        with transaction(TenantTransactions, lease=3600) as tx:
            for number in range(6):
                tx.update(tx.get(TenantOrder, "o", str(number)), [TenantOrder.total.set(7)])

    with dying_at(monkeypatch, "decision"):
        assert not survive(change)
    mark = marked_rows(TenantOrder)[0]["lock"]["M"]["tx"]["M"] | {"id": {"S": "t"}}
    Order("p", "1").save()
    memory.client().update_item(
        TableName=table,
        Key={"pk": {"S": "p"}, "sk": {"S": "1"}},
        UpdateExpression="SET #l = :lock",
        ExpressionAttributeNames={"#l": "lock"},
        ExpressionAttributeValues={":lock": {"M": {"tx": {"M": mark}}}},
    )
    with pytest.raises(LockingError, match="was not asked"):
        Order("p", "1").update([Order.total.set(2)], add_version_condition=False)


class Parcel(Order, discriminator=None):
    """Has an owner, as a row of a transaction has."""

    class Meta(Order.Meta):
        unique = ("owner",)
        unique_table = Uniques

    owner = UnicodeAttribute(null=True)


def test_our_rows_are_no_items_of_a_model(memory):
    """`repair_unique` writes no rows for what they have in attributes of the same names."""
    table = make(memory, 0)
    memory.bind_to(table, Parcel)
    with transaction(record=True, owner="bob") as tx:
        tx.save(Parcel("p", "1", owner="ann"))
    assert raw(memory, table)["acme#ours#" + tx.id, "transaction#" + tx.id]["owner"] == {"S": "bob"}
    report = Parcel.repair_unique()
    assert (report.items, report.rows, report.problems) == (1, 1, ())


def test_names_that_are_too_long(memory):
    """Are refused before a request; those of items get a digest."""
    make(memory, 0)
    with pytest.raises(InvalidInput, match="1 to 1019 bytes, and it has 1020"):
        Locks.locked("n" * 1020).acquire()
    for act in (lambda: Locks.locked(""), Locks("").save, Locks("").delete):
        with pytest.raises(InvalidInput, match="bytes, and it has 0"):  # DynamoDB would allow the prefix alone
            act()
    with pytest.raises(InvalidInput, match="at most 1012 bytes"), transaction(idempotency_key="k" * 1500) as tx:
        tx.save(Order("o", "1"))
    with Robot.locked("r" * 1200, "1"):
        assert Robot.lock_state("r" * 1200, "1").holders


@pytest.mark.parametrize("name", WAYS)
def test_an_item_of_another_program_in_the_place_of_a_row(memory, monkeypatch, name):
    """Every way to a row refuses it, as in a table of its own, and it stays what it is."""
    monkeypatch.setenv(one_table.VARIABLE, "1")
    way = WAYS[name]
    if name.endswith("long"):
        make_long_from(monkeypatch)
    key = way.table, bind(memory, way)
    item = {**way.table._own_keys.of(key[1]), "note": {"S": "of another program"}}  # type: ignore[attr-defined]
    memory.client().put_item(TableName=way.table.Meta.table_name, Item=item)
    with pytest.raises(way.error):
        way.act()
    assert item in one_table_models.raw(memory, way.table.Meta.table_name).values()


def test_commands(memory, monkeypatch, capsys):
    """A class stands for its table: `--table module:Class`."""
    table = make(memory, FEW)
    module = "tests.support.one_table_models"
    monkeypatch.setattr(sys, "path", [*sys.path])

    def said(*arguments: str, code: int = 0) -> Any:
        assert main([*arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    where = ("--table", f"{module}:Locks")
    with Locks.locked("nightly") as lock:
        listed = said("locks", "list", *where)
        assert [(each["name"], each["key"]["hash"]) for each in listed["locks"]] == [("nightly", "nightly")]
        assert said("locks", "show", "nightly", *where)["holders"][0]["ticket"] == lock.ticket
        assert said("locks", "list", "--prefix", "night", *where)["locks"]
        assert not said("locks", "list", "--prefix", "acme", *where)["locks"]
    with transaction(Transactions, record=True) as tx:
        tx.save(Order("o", "1"))
    [found] = said("tx", "list", "--table", f"{module}:Transactions")["transactions"]
    assert found["id"] == tx.id
    checked = said("tables", "check", *where, "--transaction-table", f"{module}:Transactions")
    rows = [finding for each in checked["tables"] for finding in each["findings"] if finding["check"] == "rows"]
    assert [finding["level"] for finding in rows] == ["ok", "ok"]
    assert all(f"{FEW + 3} items were looked at" in finding["detail"] for finding in rows)
    assert main(["locks", "list", "--table", f"{module}:Transactions"]) == 2
    said("tables", "create", *where)
    assert ttl(memory, Locks) is None
    said("tables", "create", *where, "--enable-ttl")
    assert ttl(memory, Locks) == "ttl"
    assert_others_are_as_they_were(memory, table, FEW)


def test_commands_make_no_table_of_others(memory, capsys):
    """They make that of the items, if its model is named as well."""
    table = memory.new_name()
    memory.bind_to(table, *OURS, App)
    module = "tests.support.one_table_models"
    assert main(["tables", "create", f"{module}:Locks", "--json"]) == 1
    assert "there is no such table" in capsys.readouterr().out
    assert main(["tables", "create", f"{module}:Locks", f"{__name__}:App", "--json"]) == 0
    assert table in memory.client().list_tables()["TableNames"]


# Mistakes on purpose


def test_scans(memory):
    """Show our rows alone."""
    make(memory, FEW)
    with Locks.locked("nightly"), transaction(Transactions, record=True) as tx:
        tx.save(Order("o", "1"))
    assert [each.name for each in Locks.scan()] == ["nightly"]
    assert [each.id for each in Transactions.scan()] == [tx.id]
    assert Locks.count("nightly") == 1
