"""Tables that are there already: they are compared first, and nothing is changed that could harm what is in them."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import TTLAttribute, UnicodeAttribute
from pynamodb.exceptions import DoesNotExist, PutError, TableError, TransactWriteError
from pynamodb.models import Model

from pynamo_locking import LockableModel, LockAttribute, NamedLock, TransactionTable, transaction
from pynamo_locking.cli import main
from pynamo_locking.exceptions import ConfigurationError, Conflict
from pynamo_locking.transactions import Transaction
from tests.integration.models.conftest import enable_ttl, ttl
from tests.support.interval_models import SlotLocks
from tests.support.models import Locks, declare
from tests.support.own_rows import WAYS, Memo
from tests.support.transaction_models import Purse, RowLocks, Transactions, make_long_from
from tests.support.wire import on

if TYPE_CHECKING:
    from tests.engines.engine import Engine


TableLocks = declare("TableLocks", NamedLock)
TableTransactions = declare("TableTransactions", TransactionTable)
#: An application's own model that expires.
Ticket = declare("Ticket", Model, hash_key="name", ends=TTLAttribute(null=True, attr_name="expires_s"))


OWN = [TableLocks, TableTransactions]


@pytest.fixture(params=OWN, ids=["locks", "transactions"])
def own(request, engine):
    """A class with a table of its own, which is not there yet."""
    return elsewhere(engine, request.param)


def elsewhere(engine: Engine, model: type[Model]) -> type[Model]:
    """Let a model be in a table that is not there yet."""
    engine.bind(model)
    model.Meta.table_name = engine.new_name()  # type: ignore[attr-defined]
    return model


def name_of(model: Any) -> str:
    return model.Meta.table_name


def make(engine: Engine, model: type[Model], *keys: tuple[str, str]) -> None:
    """Make the table of a model by hand, with other keys if they are given."""
    if not keys:
        attribute: Any = model._hash_key_attribute()
        keys = ((attribute.attr_name, "S"),)
    engine.client().create_table(
        TableName=name_of(model),
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in keys],
        KeySchema=[
            {"AttributeName": name, "KeyType": role} for (name, _), role in zip(keys, ("HASH", "RANGE"), strict=False)
        ],
        BillingMode="PAY_PER_REQUEST",
    )


def put(engine: Engine, model: type[Model], key: str, **attributes: Any) -> None:
    """Store a customer."""
    attribute: Any = model._hash_key_attribute()
    engine.client().put_item(TableName=name_of(model), Item={attribute.attr_name: {"S": key}, **attributes})


OTHER_KEYS = {
    "pk and sk": (("pk", "S"), ("sk", "S")),
    "another name": (("key", "S"),),
    "another type": (("{hash}", "N"),),
    "a range key": (("{hash}", "S"), ("sk", "S")),
}


@pytest.mark.parametrize("how", ["create_table", "update_ttl", "enable_ttl"])
@pytest.mark.parametrize("keys", OTHER_KEYS)
def test_other_keys(engine, own, keys, how):
    """Are an error that says what is there and what is needed; TTL stays off."""
    name = own._hash_key_attribute().attr_name
    given = [(key.format(hash=name), kind) for key, kind in OTHER_KEYS[keys]]
    make(engine, own, *given)
    call = {
        "create_table": own.create_table,
        "update_ttl": lambda: own.update_ttl(ignore_update_ttl_errors=True),
        "enable_ttl": lambda: own.create_table(enable_ttl=True, ignore_update_ttl_errors=True),
    }
    with pytest.raises(ConfigurationError) as refused:
        call[how]()

    assert ", ".join(f"{key} ({kind})" for key, kind in given) in str(refused.value)
    assert f"needs {name} (S)" in str(refused.value)
    assert ttl(engine, own) is None


def test_items_of_others(engine, own, caplog):
    """The keys happen to be the same: nothing is changed, and a warning says so, until TTL is asked for by name."""
    make(engine, own)
    put(engine, own, "customer-1", email={"S": "a@example.com"})
    with caplog.at_level(logging.WARNING, "pynamo_locking"), on("Scan").watch() as looks:
        own.create_table()
    assert ttl(engine, own) is None
    assert "was left off" in caplog.text
    assert [look["ConsistentRead"] for look in looks.bodies] == [True], "a replica may show no item yet"

    own.create_table(enable_ttl=True)
    assert ttl(engine, own) == "expires_s"
    own.create_table()
    own.update_ttl(ignore_update_ttl_errors=False)


@pytest.mark.parametrize("makes", [True, False], ids=["made here", "made empty by hand"])
def test_a_new_table(engine, own, makes):
    """Has TTL, however it was made, if nothing is in it; twice is as good as once."""
    if not makes:
        make(engine, own)
    own.create_table()
    own.create_table()
    assert ttl(engine, own) == "expires_s"
    table = engine.client().describe_table(TableName=name_of(own))["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"


def test_ttl_of_another_attribute(engine, own):
    """Is an error that names both attributes, unless errors of TTL are to be ignored; it stays what it is."""
    make(engine, own)
    enable_ttl(engine, own, "ends")
    for call in (
        own.create_table,
        lambda: own.create_table(enable_ttl=True),
        lambda: own.update_ttl(ignore_update_ttl_errors=False),
    ):
        with pytest.raises(ConfigurationError, match=r"enabled for the attribute 'ends'.*needs it for 'expires_s'"):
            call()
    own.create_table(ignore_update_ttl_errors=True)
    assert ttl(engine, own) == "ends"


def test_several_at_once(concurrent_engine):
    """All return, one has made the table, and TTL is on."""
    locks: Any = elsewhere(concurrent_engine, TableLocks)
    locks._get_connection()
    barrier = threading.Barrier(6)

    def create() -> None:
        barrier.wait(60)
        locks.create_table()

    with ThreadPoolExecutor(6) as pool:
        for created in [pool.submit(create) for _ in range(6)]:
            created.result()
    assert ttl(concurrent_engine, locks) == "expires_s"


def test_another_process_makes_it_meanwhile(engine, own):
    """Between the look and CreateTable, and has an item in it at once: it is as new as one of ours."""

    def make_with_an_item() -> None:
        make(engine, own)
        put(engine, own, "first", email={"S": "a@example.com"})

    with on("CreateTable").before(make_with_an_item):
        own.create_table()
    assert ttl(engine, own) == "expires_s"


@pytest.mark.parametrize("looks", [1, 2])
def test_another_program_makes_another_table_meanwhile(engine, own, looks):
    """It is compared as well, whenever it comes."""
    with (
        on("DescribeTable", nth=looks).after(lambda: make(engine, own, ("pk", "S"))),
        pytest.raises(ConfigurationError, match=r"its keys are pk \(S\)"),
    ):
        own.create_table()
    assert ttl(engine, own) is None


def test_what_may_not_be_seen(memory):
    """Without the permission to scan, a table is not taken for an empty one; without that to look at TTL, an error."""
    locks: Any = elsewhere(memory, TableLocks)
    make(memory, locks)
    denied = "AccessDeniedException"
    with on("Scan").answer(denied, always=True):
        locks.create_table()
    assert ttl(memory, locks) is None
    with on("Scan", "DescribeTimeToLive").answer(denied, always=True):
        with pytest.raises(TableError, match="AccessDenied"):
            locks.create_table()
        locks.create_table(ignore_update_ttl_errors=True)
    with (
        on("DescribeTable", "DescribeTimeToLive").answer(denied, always=True),
        pytest.raises(TableError, match="AccessDenied"),
    ):
        locks.update_ttl(ignore_update_ttl_errors=False)


def test_what_is_refused_for_another_reason(memory):
    """Than that the table exists, or that TTL is enabled, comes through."""
    locks: Any = elsewhere(memory, TableLocks)
    with on("CreateTable").answer("ValidationException"), pytest.raises(TableError, match="ValidationException"):
        locks.create_table()
    with pytest.raises(TableError, match="ResourceNotFoundException"):
        locks.update_ttl(ignore_update_ttl_errors=False)


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


def test_a_model_of_the_application_keeps_what_pynamodb_does(engine):
    """Its TTL is enabled, whatever is in the table."""
    ticket: Any = elsewhere(engine, Ticket)
    make(engine, ticket)
    put(engine, ticket, "t", ends={"N": "1"})
    ticket.create_table(wait=True)
    assert ttl(engine, ticket) == "expires_s"


# The table of others is used


class Unplaced(NamedLock):
    """Does not say where."""


class Nowhere(LockableModel):
    """Nor does this."""

    name = UnicodeAttribute(hash_key=True)
    lock = LockAttribute()


@pytest.mark.parametrize("model", [NamedLock, Unplaced, Nowhere, TransactionTable], ids=lambda model: model.__name__)
def test_no_place(model):
    """A class without a table says so, whatever it is asked for."""
    calls: list[Any] = [] if model is Nowhere else [model.create_table]
    if issubclass(model, LockableModel):
        calls += [
            lambda: model.locked("a"),
            lambda: model.edit("a"),
            lambda: model.try_locked("a"),
            lambda: model.lock_state("a"),
            lambda: model.break_lock("a", ticket=1),
        ]
    for call in calls:
        with pytest.raises(ConfigurationError, match=rf"{model.__name__} does not say which table"):
            call()


@pytest.mark.parametrize("keys", OTHER_KEYS)
def test_a_lock_in_a_table_of_other_keys(engine, keys):
    """Says which keys it needs, when it is taken, looked at, and used by a long transaction."""
    locks: Any = elsewhere(engine, TableLocks)
    make(engine, locks, *[(key.format(hash="name"), kind) for key, kind in OTHER_KEYS[keys]])
    calls = [lambda: locks.locked("a", wait=0).acquire(), lambda: locks.lock_state("a")]
    for call in calls[: 1 if engine.is_moto else 2]:  # moto reads by keys of another type
        with pytest.raises(ConfigurationError) as refused:
            call()
        if not (engine.is_moto and keys == "a range key"):  # where moto says no more than "Validation Exception"
            assert "does not have the keys that its model says, name (S)" in str(refused.value)


def test_transactions_in_a_table_of_other_keys(engine, monkeypatch):
    """Say the same, and nothing is written."""
    make_long_from(monkeypatch)
    engine.bind(Purse)
    table: Any = elsewhere(engine, TableTransactions)
    monkeypatch.setattr(Purse.Meta, "transaction_table", table)
    make(engine, table, ("pk", "S"), ("sk", "N"))
    with pytest.raises(ConfigurationError, match=r"does not have the keys that its model says, id \(S\)"):  # noqa: SIM117
        with transaction(table) as tx:
            for number in range(9):
                tx.save(Purse(f"{number}"))
    assert list(Purse.scan(consistent_read=True)) == []


# The command line


def reach(engine: Engine) -> list[str]:
    """Options that lead to the engine."""
    return [] if engine.host is None else ["--endpoint", engine.host, "--region", engine.region]


def test_tables_create_changes_nothing_where_keys_differ(memory, capsys):
    """Neither that table nor others that are named with it."""
    other: Any = elsewhere(memory, TableLocks)
    make(memory, other, ("pk", "S"))
    missing = memory.new_name()
    tables = ["--table", name_of(other), "--transaction-table", missing]
    assert main(["tables", "create", *reach(memory), *tables, "--json"]) == 1
    assert "the table has pk (S), the model name (S)" in capsys.readouterr().out
    assert ttl(memory, other) is None
    assert missing not in memory.client().list_tables()["TableNames"]


def test_tables_create_asks_before_items_of_others(memory, capsys):
    """TTL is enabled with ``--enable-ttl`` only, which the warning names."""
    locks: Any = elsewhere(memory, TableLocks)
    make(memory, locks)
    put(memory, locks, "customer-1", email={"S": "a@example.com"})
    where = [*reach(memory), "--table", name_of(locks)]
    assert main(["tables", "create", *where]) == 0
    assert ttl(memory, locks) is None
    assert "--enable-ttl" in capsys.readouterr().out
    assert main(["tables", "create", *where, "--enable-ttl"]) == 0
    assert ttl(memory, locks) == "expires_s"


def test_tables_check_sees_ttl_of_another_attribute(memory, capsys):
    """A problem, since the locks would never be removed, and others by what a lock writes."""
    locks: Any = elsewhere(memory, TableLocks)
    make(memory, locks)
    enable_ttl(memory, locks, "ends")
    for command in ("check", "create"):
        assert main(["tables", command, *reach(memory), "--table", name_of(locks), "--json"]) == 1
        assert "by ends, while the model has expires_s" in capsys.readouterr().out
    assert ttl(memory, locks) == "ends"


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> dict[str, str]:
    """What ``tables check`` says of the rows of a table."""
    capsys.readouterr()
    assert main(["tables", "check", *arguments, "--json"]) == code
    table, *_ = json.loads(capsys.readouterr().out)["tables"]
    (found,) = [each for each in table["findings"] if each["check"] == "rows"]
    return found


def test_tables_check_finds_rows_of_others(memory, capsys):
    """And what earlier releases have written into them: a lock, and when DynamoDB deletes them."""
    locks: Any = elsewhere(memory, TableLocks)
    locks.create_table()
    where = [*reach(memory), "--table", name_of(locks)]
    with locks.locked("ours"):
        assert rows_of(capsys, *where, code=0)["level"] == "ok"

    put(memory, locks, "customer-1", email={"S": "a@example.com"})
    found = rows_of(capsys, *where, code=0)
    assert found["level"] == "warning"
    assert found["detail"].startswith("all 2 items were looked at; 1 are of other programs")
    assert "'customer-1'. 0 of them carry a lock, and 0 the attribute expires_s" in found["detail"]

    put(memory, locks, "customer-2", email={"S": "b@example.com"}, expires_s={"N": "1"})
    assert "and 1 the attribute expires_s, by which DynamoDB deletes them" in rows_of(capsys, *where, code=1)["detail"]

    key = {"TableName": name_of(locks), "Key": {"name": {"S": "customer-1"}}}
    document = memory.client().get_item(**{**key, "Key": {"name": {"S": "ours"}}})["Item"]["lock"]
    memory.client().update_item(
        **key,
        UpdateExpression="SET #l = :l",
        ExpressionAttributeNames={"#l": "lock"},
        ExpressionAttributeValues={":l": document},
    )
    assert "1 of them carry a lock, and 1 the" in rows_of(capsys, *where, code=1)["detail"]


def test_tables_check_knows_all_rows_of_ours(memory, capsys, monkeypatch):
    """Those of locks, ranges, intervals, long transactions, keys, and counters; and the attributes of a class."""
    make_long_from(monkeypatch)
    models = {model for way in WAYS.values() for model in (way.table, *way.models)}
    for model in sorted(models, key=lambda model: model.__name__):
        memory.bind(model)
    for way in WAYS.values():
        with contextlib.suppress(Conflict, DoesNotExist, PutError, TransactWriteError):
            way.act()
    suspended = Transaction(Transactions)
    suspended.get_or_none(Purse, "absent")
    suspended.suspend()
    for model in (Locks, SlotLocks, RowLocks, Memo, Transactions):
        found = rows_of(capsys, *reach(memory), f"{model.__module__}:{model.__name__}", code=0)
        assert "none is of another program" in found["detail"]
        assert "all 0" not in found["detail"]


def test_tables_check_looks_at_the_first_thousand(memory, capsys):
    """And says so."""
    locks: Any = elsewhere(memory, TableLocks)
    locks.create_table()
    for number in range(1001):
        put(memory, locks, f"customer-{number}")
    detail = rows_of(capsys, "--table", name_of(locks), code=0)["detail"]
    assert detail.startswith("the first 1,000 items were looked at; 1,000 are of other programs")
    assert ", ..." in detail
