"""Writes, batches and tokens that would reach a table of the same name in another Region, host or account."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.connection import Connection
from pynamodb.models import Model

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import ConfigurationError, LockLost
from tests.support.interval_models import Slot, SlotLocks, SlotTransactions, slots
from tests.support.models import Account, Device, Locks, declare
from tests.support.parties import held_elsewhere
from tests.support.places import OTHER_PLACES, PLACES, another_place, inherit
from tests.support.wire import count_requests, on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine
    from tests.engines.servers import Servers

pytestmark = pytest.mark.core


@pytest.fixture(params=OTHER_PLACES, ids="-".join)
def place(request: pytest.FixtureRequest, servers: Servers) -> Iterator[dict[str, Any]]:
    """Where another table of the same name is."""
    with another_place(servers, *request.param, Account, Locks, Device, SlotLocks, SlotTransactions, Slot) as place:
        Account("a", balance=1).save()
        yield place


@pytest.fixture
def there(place: dict[str, Any]) -> Any:
    """A model of the table in the other place, where it has an item "a" as well."""
    model = inherit(Account, **place)
    model.create_table(billing_mode="PAY_PER_REQUEST")
    model("a", balance=5).save()
    return model


def plain_save(tx: TransactWrite) -> None:
    model = declare("Plain", Model, table_name=Account.Meta.table_name, hash_key="account_id")
    for name in ("region", "host", "aws_access_key_id", "aws_secret_access_key"):
        setattr(model.Meta, name, getattr(Account.Meta, name))
    tx.save(model("b"))


def device_check(tx: TransactWrite) -> None:
    with Locks.locked("name") as lock:
        lock.add_check_to(tx)


def move(tx: TransactWrite) -> None:
    [row] = slots((1, 2))
    row.save()
    tx.move(row, 3, 4)


USES: dict[str, Callable[[TransactWrite], Any]] = {
    "save": lambda tx: tx.save(Account("b")),
    "update": lambda tx: tx.update(Account("a"), [Account.balance.add(1)], add_version_condition=False),
    "delete": lambda tx: tx.delete(Account("a"), add_version_condition=False),
    "check": lambda tx: tx.check(Account("b")),
    "condition_check": lambda tx: tx.condition_check(Account, "a", condition=Account.balance == 1),
    "insert_disjoint": lambda tx: tx.insert_disjoint(Slot, slots((1, 2))),
    "move": move,
    "a plain model": plain_save,
    "a lock in a row of its own": lambda tx: tx.save(Device("d")),
    "a check of a lock": device_check,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_connection_to_another_place(there: Any, use: Callable[[TransactWrite], Any]) -> None:
    """The first use of a model is refused; nothing is written here or there."""
    with (
        pytest.raises(ConfigurationError, match=r"is in .*, and the connection of this transaction sends to"),
        TransactWrite(connection=there._get_connection().connection) as tx,
    ):
        try:
            use(tx)
        finally:
            with count_requests() as requests:
                tx._leave()
            assert requests.total == 0
    assert [(each.account_id, each.balance) for each in there.scan()] == [("a", 5)]
    assert [(each.account_id, each.balance) for each in Account.scan()] == [("a", 1)]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_without_a_connection(there: Any, use: Callable[[TransactWrite], Any]) -> None:
    """It is that of the first model, whatever is done with it: a model of another place is refused, nothing written."""
    with (
        pytest.raises(ConfigurationError, match=r"There is in .*, and the connection of this transaction sends to"),
        TransactWrite() as tx,
    ):
        use(tx)
        tx.save(there("b"))
    assert [each.account_id for each in there.scan()] == ["a"]
    assert [(each.account_id, each.balance) for each in Account.scan()] == [("a", 1)]


def test_each_place_has_the_writes_of_its_models(there: Any) -> None:
    """Transactions without a connection, one after the other."""
    for model in (Account, there):
        with TransactWrite() as tx:
            tx.save(model("new", balance=model.get("a").balance))
    assert {(each.account_id, each.balance) for each in Account.scan()} == {("a", 1), ("new", 1)}
    assert {(each.account_id, each.balance) for each in there.scan()} == {("a", 5), ("new", 5)}


def keys(model: Any) -> dict[str, Any]:
    names = ("aws_access_key_id", "aws_secret_access_key")
    return {name: getattr(model.Meta, name) for name in names}


def test_another_connection_to_the_same_place(there: Any) -> None:
    """One that the application has made."""
    for model in (Account, there):
        mine = Connection(region=model.Meta.region, host=model.Meta.host, **keys(model))
        with TransactWrite(connection=mine) as tx:
            tx.save(model("new"))
        assert model.get("new").account_id == "new"


def test_the_same_place_said_otherwise(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the Region and the key, or a role has got another key since."""
    engine.bind(Account)
    said = keys(Account)
    for name, value in {"default_region": engine.region, **said}.items():
        monkeypatch.setenv(f"AWS_{name.removeprefix('aws_')}".upper(), value)

    def save(name: str, **options: Any) -> None:
        with TransactWrite(connection=Connection(**{"region": engine.region, "host": engine.host, **options})) as tx:
            tx.save(Account(name))
        assert Account.get(name).account_id == name

    save("of the environment", region=None)
    save("of the Meta", **said)
    if engine.name == "memory":
        monkeypatch.setattr(Account.Meta, "aws_access_key_id", "rotated")
        save("of a later session", aws_access_key_id="rotated", aws_secret_access_key="x")


def test_a_connection_that_sends_to_two_accounts(memory: Engine) -> None:
    """The key of the environment is not the one of the model."""
    memory.bind(Account)
    model = inherit(Account, aws_access_key_id="of the model", aws_secret_access_key="x")
    with pytest.raises(ConfigurationError, match="with the credentials 'of the model'"):
        TransactWrite(connection=Connection(region=memory.region)).save(model("b"))


def test_a_guarded_batch_of_two_places(there: Any) -> None:
    """Each write goes to its own place, also if both have the same key."""
    here, other = Account.get("a"), there.get("a")
    here.balance, other.balance = 11, 55
    with Account.guarded_batch() as batch:
        batch.save(here)
        batch.save(other)
        batch.save(there("b", balance=6))
        batch.save(Account("b", balance=2))
        with pytest.raises(ConfigurationError, match="has two for"):
            batch.save(there("a"))
    assert {(each.account_id, each.balance) for each in Account.scan()} == {("a", 11), ("b", 2)}
    assert {(each.account_id, each.balance) for each in there.scan()} == {("a", 55), ("b", 6)}


def test_a_batch_of_transactions_of_two_places(there: Any) -> None:
    """The second place is refused when it is added."""
    with pytest.raises(ConfigurationError, match=r"Account is in .*, and There in"):  # noqa: SIM117 - the block is left
        with Account.guarded_batch(transactions=True) as batch:
            batch.save(Account("b"))
            batch.delete(there.get("a"))
    assert [each.account_id for each in Account.scan()] == ["a"]


@pytest.mark.parametrize("add", ["save", "delete"])
def test_a_batch_write_of_two_places(there: Any, add: str) -> None:
    """PynamoDB would send it to the place of the batch."""
    batch = Account.batch_write(unguarded=True)
    with pytest.raises(ConfigurationError, match=r"Account is in .*, and There in"):
        getattr(batch, add)(there("b"))
    batch.commit()
    assert [each.account_id for each in Account.scan()] == ["a"]


def test_statements_that_one_place_refuses(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another account may be allowed to send them."""
    memory.bind(Account)
    model = inherit(Account, **PLACES["account"])

    def save_some(model: Any, name: str) -> int:
        with count_requests() as requests, model.guarded_batch() as batch:
            for number in range(3):
                batch.save(model(f"{name}{number}"))
        return requests.by_operation["BatchExecuteStatement"]

    with on("BatchExecuteStatement").answer("AccessDeniedException"):
        save_some(Account, "a")
    assert [save_some(Account, "b"), save_some(model, "c")] == [0, 1]


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_token_of_another_place(there: Any, place: dict[str, Any], is_locked: bool) -> None:
    """The error names both Regions, also if a lock there has the same ticket; the token can be attached here."""
    with Account.locked("a") as lock:
        token = lock.detach()
    with contextlib.ExitStack() as ends:
        if is_locked:
            ends.enter_context(held_elsewhere(there.locked("a")))
        with pytest.raises(LockLost) as lost:
            there.attach(token, wait=0).acquire()
    if "region" in place:
        assert isinstance(lost.value, ConfigurationError)
        assert "not in the queue in eu-west-3, and its token was made in us-east-1" in str(lost.value)
    else:
        assert "or it is of a table of this name at another host or in another account" in str(lost.value)
    with Account.attach(token) as attached:
        assert attached.is_held


def test_a_token_in_a_replica(engine: Engine) -> None:
    """A global table with strong consistency has the entry in each of its Regions."""
    engine.bind(Account)
    Account("a").save()
    with Account.locked("a") as lock:
        token = lock.detach()
    if engine.name == "memory":  # one table for all Regions
        with inherit(Account, region="eu-west-3").attach(token) as attached:
            attached.item.update([Account.balance.add(1)])
        assert Account.get("a").balance == 1


def test_a_token_of_the_region_of_the_environment(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process names the Region in its `Meta`, and the other one does not."""
    engine.bind(Account)
    monkeypatch.setenv("AWS_DEFAULT_REGION", engine.region)
    Account("a").save()
    other = inherit(Account, region=None)
    with Account.locked("a") as lock:
        token = lock.detach()
    with other.attach(token) as attached:
        token = attached.detach()
    with Account.attach(token) as attached:
        assert attached.is_held
