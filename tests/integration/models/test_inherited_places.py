"""A class and its base with one table name in two places: PynamoDB would hand on the connection of the base."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.connection.table import TableConnection
from pynamodb.models import Model
from pynamodb.transactions import TransactGet

from pynamo_locking import NamedLock, TransactWrite, transaction
from pynamo_locking.cli import main
from pynamo_locking.contrib._frameworks import configure, reset
from tests.support.models import Account, Locks, declare
from tests.support.places import OTHER_PLACES, another_place, inherit
from tests.support.transaction_models import Plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers

pytestmark = pytest.mark.core


@pytest.fixture(params=OTHER_PLACES, ids="-".join)
def place(request: pytest.FixtureRequest, servers: Servers) -> Iterator[dict[str, Any]]:
    """Where the class is; its base has an item "a" with 1 here."""
    with another_place(servers, *request.param, Account, Locks, Plain) as place:
        Account("a", balance=1).save()
        yield place


@pytest.fixture
def there(place: dict[str, Any]) -> Any:
    """The class, with an item "a" that has 5."""
    model = inherit(Account, **place)
    model.create_table(billing_mode="PAY_PER_REQUEST")
    with model.batch_write(unguarded=True) as batch:
        batch.save(model("a", balance=5, version=1))
    return model


def in_transaction(model: Any) -> None:
    with transaction() as tx:
        item = tx.get(model, "a")
        item.balance += 4
        tx.save(item)
        tx.save(model("b"))


def by_native_transaction(model: Any) -> None:
    with TransactWrite(connection=model._get_connection().connection) as tx:
        tx.update(model.get("a"), [model.balance.add(4)])


def in_edit(model: Any) -> None:
    with model.edit("a") as item:
        item.balance += 4


def in_batch(model: Any) -> None:
    item = model.get("a")
    item.balance += 4
    with model.guarded_batch() as batch:
        batch.save(item)


def by_save(model: Any) -> None:
    item = next(iter(model.batch_get(["a"])))
    item.balance += 4
    item.save()
    item.refresh()


WRITES: dict[str, Callable[[Any], Any]] = {
    "save": by_save,
    "update": lambda model: model.get("a").update([model.balance.add(4)]),
    "modify": lambda model: model.modify("a", lambda item: setattr(item, "balance", item.balance + 4)),
    "edit": in_edit,
    "transaction": in_transaction,
    "TransactWrite": by_native_transaction,
    "guarded_batch": in_batch,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes(there: Any, write: Callable[[Any], Any]) -> None:
    """The item of the class is written, and that of its base is not."""
    before = Account.get("a").version
    write(there)
    assert there.get("a").balance == 9
    assert {(each.account_id, each.balance, each.version) for each in Account.scan()} == {("a", 1, before)}


def test_reads(there: Any) -> None:
    """By PynamoDB's own methods of the class, and by a `TransactGet` with its connection."""
    assert there.get("a").balance == 5
    assert [each.balance for each in there.scan()] == [5]
    assert [each.balance for each in there.query("a")] == [5]
    assert [each.balance for each in there.batch_get(["a"])] == [5]
    assert there.count() == 1
    assert there.exists()
    there("b").save()
    assert (there.count(), Account.count()) == (2, 1)
    with TransactGet(connection=there._get_connection().connection) as read:
        found: Any = read.get(there, "b")
    assert found.get().account_id == "b"
    there.get("a").delete()
    assert Account.get("a").balance == 1
    there.delete_table()
    assert Account.exists()
    assert not there.exists()


def test_locks(there: Any) -> None:
    """The lock of an item of the class is another one than that of the base."""
    with there.locked("a"), Account.locked("a", wait=0):
        assert [len(model.lock_state("a").entries) for model in (there, Account)] == [1, 1]
    there("new").save()
    there.locked("new").acquire().release()
    assert [each.account_id for each in Account.scan()] == ["a"]


def test_a_class_of_the_class(there: Any) -> None:
    """It has the connection of the next class with a `Meta` of its place; and so does one that says the same again."""
    for further in (type("Further", (there,), {}), inherit(there)):
        assert further._get_connection() is there._get_connection()
        further("f").save(add_version_condition=False)
        assert there.get("f").account_id == "f"
    assert inherit(Account)._get_connection() is Account._get_connection()


def test_a_connection_that_was_set(place: dict[str, Any]) -> None:
    """Whoever sets the connection of a class has decided where it is, whatever its `Meta` says."""
    model = inherit(Account, **place)
    model._connection = mine = TableConnection(Account.Meta.table_name, region="eu-north-1")
    assert model._get_connection() is mine
    assert Account._get_connection() is not mine


def test_a_place_that_is_named_later(place: dict[str, Any]) -> None:
    """A program may complete its `Meta` after the class was made, before its first use."""
    model = inherit(Account)
    for name, value in place.items():
        setattr(model.Meta, name, value)
    assert model._get_connection() is not Account._get_connection()


def test_a_configuration(place: dict[str, Any]) -> None:
    """A class whose base has been used can be configured by a framework: no request of its own was made."""
    model = inherit(Account, **place)
    configure([model], {"CONNECT_TIMEOUT": 7})
    assert model._get_connection().connection._connect_timeout_seconds == 7
    reset([model])


def test_a_plain_model_in_a_transaction_of_ours(place: dict[str, Any]) -> None:
    """A class of PynamoDB's, written by `TransactWrite` over a connection to its place."""
    base = declare("Base", Model, table_name=Account.Meta.table_name, hash_key="account_id")
    for name in ("region", "host", "aws_access_key_id", "aws_secret_access_key"):
        setattr(base.Meta, name, getattr(Account.Meta, name))
    base._get_connection()
    model, ours = inherit(base, **place), inherit(Account, **place)
    ours.create_table(billing_mode="PAY_PER_REQUEST")
    with TransactWrite(connection=ours._get_connection().connection) as tx:
        tx.save(model("plain"))
    assert [each.account_id for each in ours.scan()] == ["plain"]
    assert [each.account_id for each in Account.scan()] == ["a"]


def test_tables_of_two_places(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line checks both, although they have one name."""
    named = {"Here": Locks, "There": inherit(Locks, **place)}
    for name, model in named.items():
        monkeypatch.setattr(sys.modules[__name__], name, model, raising=False)
    assert main(["tables", "check", *(f"{__name__}:{name}" for name in named), "--json"]) == 1
    checked = json.loads(capsys.readouterr().out)["tables"]
    assert [each["table"] for each in checked] == [Locks.Meta.table_name] * 2
    assert ["no such table" in str(each["findings"]) for each in checked] == [False, True]


def test_rows_of_two_prefixes_in_one_table(engine: Engine) -> None:
    """A class of locks with another prefix finds its own rows, and not those of its base."""
    table = engine.create_table(range_type="S")
    locks = declare("Locks", NamedLock, table_name="locks", keys=("pk", "sk"), prefix="one#")
    engine.bind_to(table, locks)
    other = inherit(locks, prefix="two#")
    for model in (locks, other):
        with model.locked(model.__name__):
            pass
    assert [each.name for each in other.scan()] == ["There"]
    assert [each.name for each in locks.scan()] == ["Locks"]
