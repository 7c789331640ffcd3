"""A new item may take the place of what has expired when it is sent; other writes of a transaction ignore the time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import ExpiringMixin, TransactWrite, TTLAttribute, VersionedMixin, transaction
from pynamo_locking.exceptions import StaleVersion
from pynamo_locking_testing import VirtualClock
from tests.support.models import declare
from tests.support.transaction_helpers import add_fillers
from tests.support.transaction_models import Purse, Session, Transactions
from tests.support.wire import on

if TYPE_CHECKING:
    from pynamo_locking.transactions import Transaction

SOON = timedelta(seconds=10)
LATER = timedelta(hours=1)


#: Expires, and carries no lock.
Token = declare(
    "Token",
    ExpiringMixin,
    VersionedMixin,
    hash_key="session_id",
    texts="note",
    numbers="number",
    expires_at=TTLAttribute(null=True),
    version=True,
    transaction_table=Transactions,
)


MODELS = pytest.mark.parametrize("model", [Token, Session])


@pytest.fixture
def clock(memory):
    """Tables in memory, and time that the test moves."""
    memory.bind(Token, Session, Purse, Transactions)
    with VirtualClock() as clock:
        yield clock


def save(write: Any, item: Any) -> None:
    item.expires_at = LATER
    write.save(item)


def update(write: Any, item: Any) -> None:
    write.update(item, [type(item).expires_at.set(LATER)])


def touch(tx: Transaction, item: Any) -> None:
    tx.touch(item)


def update_unchecked(tx: Transaction, item: Any) -> None:
    """Of an instance that the transaction has not read."""
    tx.update(type(item)(item.session_id), [type(item).expires_at.set(LATER)], add_version_condition=False)


def transact() -> TransactWrite:
    return TransactWrite(connection=Token._get_connection().connection)


# Transactions


@MODELS
@pytest.mark.parametrize("is_read", [True, False], ids=["read in it", "from outside"])
@pytest.mark.parametrize("write", [save, update, touch])
def test_what_a_transaction_has_read_may_expire_before_its_commit(clock, path, model, write, *, is_read):
    """It counted when it was read, and a write ignores the time: it may last for longer afterwards."""
    model("a", expires_at=SOON).save()
    found = model.get("a")
    with transaction() as tx:
        write(tx, tx.get(model, "a") if is_read else found)
        add_fillers(tx, path)
        clock.jump(20)
    assert model.count("a") == (write is not touch)
    assert model.get("a", include_expired=True).version == 2


@MODELS
def test_a_transaction_takes_the_place_of_what_expires_before_its_commit(clock, path, model):
    """A new item was not possible yet when it was asked for, and is when it is sent."""
    model("a", note="old", expires_at=SOON).save()
    with transaction() as tx:
        tx.save(model("a", expires_at=LATER))
        add_fillers(tx, path)
        clock.jump(20)
    found = model.get("a", consistent_read=True)
    assert (found.note, found.version) == (None, 1)


def test_a_transaction_in_time_prolongs(clock, path):
    """Nothing is refused that has not expired by the commit."""
    for write in (save, update):
        Session("a", expires_at=SOON).save(add_version_condition=False)
        with transaction() as tx:
            write(tx, tx.get(Session, "a"))
            add_fillers(tx, path)
            clock.jump(5)
        clock.jump(20)
        assert Session.get("a")


@pytest.mark.parametrize("path", ["single", "native"])
def test_copies_of_one_creation_are_equal(clock, path):
    """DynamoDB refuses another request under the token of a transaction. Alone, each has a write id of its own."""
    Token("a", expires_at=-SOON).save()

    def lose(_: Any) -> bool:
        clock.jump(1)
        return True

    operation = "PutItem" if path == "single" else "TransactWriteItems"
    with on(operation, times=3, where=lose).lose_request() as lost, transaction() as tx:
        tx.save(Token("a", note="new"))
        add_fillers(tx, path)
    assert lost.hits == 3
    assert path == "single" or all(body == lost.bodies[0] for body in lost.bodies)
    assert (Token.get("a").note, Token.get("a").version) == ("new", 1)


# TransactWrite.check


@MODELS
def test_reading_an_expired_item_as_absent(engine, model):
    """An instance that was never stored is checked to be absent, as an expired item is."""
    engine.bind(Token, Session)
    model("a", expires_at=-SOON).save()
    with transact() as together:
        together.check(model("a"))
        together.save(Token("done"))
    assert Token.get("done")
    model("b", expires_at=LATER).save()
    with pytest.raises(StaleVersion), transact() as together:
        together.check(model("b"))
        together.save(Token("not done"))
    assert Token.count("not done") == 0


@MODELS
def test_reading_an_instance_that_has_expired(engine, model):
    """Is the one that was read, whatever its time; one that another writer has changed is not."""
    engine.bind(Token, Session)
    model("a", expires_at=-SOON).save()
    model("b", expires_at=LATER).save()
    model("c").save()
    with transact() as together:
        for key in "abc":
            together.check(model.get(key, include_expired=True))
        together.save(Token("done"))
    old = model.get("a", include_expired=True)
    model.get("a", include_expired=True).touch()
    with pytest.raises(StaleVersion) as caught, transact() as together:
        together.check(old)
        together.save(Token("not done"))
    assert (caught.value.actual, caught.value.current) == (2, None)
    assert Token.count("not done") == 0
    assert Token.count("done") == 1
