"""Whether an item has expired is asked when a write is sent, however long ago it was asked for."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import ExpiringMixin, TransactWrite, TTLAttribute, VersionedMixin, transaction
from pynamo_locking.exceptions import Conflict, StaleVersion
from pynamo_locking.testing import VirtualClock
from tests.support.models import declare
from tests.support.poisoned import header, mark, name_of, put
from tests.support.transaction_helpers import add_fillers
from tests.support.transaction_models import Purse, Session, Transactions, existing
from tests.support.wire import on

if TYPE_CHECKING:
    from collections.abc import Callable

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
def test_a_transaction_does_not_prolong_what_expires_before_its_commit(clock, path, model, write, *, is_read):
    """By then others take the item for gone."""
    model("a", expires_at=SOON).save()
    found = model.get("a")
    with pytest.raises(StaleVersion), transaction() as tx:
        write(tx, tx.get(model, "a") if is_read else found)
        add_fillers(tx, path)
        clock.jump(20)
    with pytest.raises(model.DoesNotExist):
        model.get("a")
    assert Purse.count() == 0


@MODELS
def test_an_update_without_a_version_does_not_bring_an_expired_item_back(clock, path, model):
    """It begins with an absent item, or is refused where that cannot be."""
    model("a", note="old", expires_at=SOON).save()
    with suppress(Conflict), transaction() as tx:
        update_unchecked(tx, model("a"))
        add_fillers(tx, path)
        clock.jump(20)
    assert [found.note for found in model.scan(consistent_read=True)] in ([], [None])


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


def test_an_update_of_what_a_transaction_has_let_expire(clock):
    """Its intent is still in the item: once that is applied, the item has expired, and the update begins afresh."""
    Session("a", note="old", expires_at=LATER).save()
    intent = {"op": {"S": "save"}, "set": {"M": {"expires_at": {"N": str(int(clock.now.timestamp()))}}}}
    put(Session, {**existing(Session, "a"), "lock": {"M": {"tx": mark("T", name_of(Transactions), **intent)}}})
    put(Transactions, header("T", "committed"))
    Session("a").update([Session.user.set("new")], add_version_condition=False)
    found = Session.get("a")
    assert (found.note, found.user, found.version) == (None, "new", 1)


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


@MODELS
@pytest.mark.parametrize("write", [save, update])
def test_a_transact_write_does_not_prolong_what_expires_before_its_end(clock, model, write):
    """Although its actions are made when they are added."""
    model("a", expires_at=SOON).save()
    with pytest.raises(StaleVersion), transact() as together:
        write(together, model.get("a"))
        clock.jump(20)


# One request is of one second


@pytest.mark.parametrize(("operation", "path"), [("UpdateItem", "single"), ("TransactWriteItems", "native")])
def test_copies_of_one_write_are_of_one_second(clock, operation, path):
    """Else the first copy could be accepted after the second was refused as too late, and its refusal was told.

    And DynamoDB refuses another request under the token of a transaction.
    """
    Token("a", expires_at=LATER).save()

    def lose(_: Any) -> bool:
        clock.jump(1)
        return True

    with on(operation, times=5, where=lose).lose_request() as lost, transaction() as tx:
        update(tx, tx.get(Token, "a"))
        add_fillers(tx, path)
    assert lost.hits == 5  # four of botocore's, and one of ours
    assert all(body == lost.bodies[0] for body in lost.bodies)
    assert Token.get("a").version == 2


@pytest.mark.parametrize("operation", ["save", "update", "check"])
def test_an_action_is_of_the_second_in_which_it_is_sent(clock, operation):
    """Nothing else of it changes, not even the same number in a condition of the caller's."""
    Token("a").save()
    now = int(clock.now.timestamp())
    other = Token.number != now
    acts: dict[str, Callable[[TransactWrite, Any], None]] = {
        "save": lambda together, item: together.save(item, other),
        "update": lambda together, item: together.update(item, [Token.note.set("x")], other),
        "check": lambda together, item: together.check(item),
    }
    with on("TransactWriteItems").watch() as sent, transact() as together:
        acts[operation](together, Token.get("a"))
        clock.jump(20)
    [[action]] = [body["TransactItems"] for body in sent.bodies]
    [kwargs] = action.values()
    times = [value["N"] for value in kwargs["ExpressionAttributeValues"].values() if len(value.get("N", "")) == 10]
    assert sorted(times) == [str(now)] * (operation != "check") + [str(now + 20)]


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
    """It is not as it was read: it is absent; one that has not expired is."""
    engine.bind(Token, Session)
    model("a", expires_at=-SOON).save()
    model("b", expires_at=LATER).save()
    model("c").save()
    with pytest.raises(StaleVersion) as caught, transact() as together:
        together.check(model.get("a", include_expired=True))
        together.save(Token("not done"))
    assert caught.value.actual is None
    with transact() as together:
        together.check(model.get("b"))
        together.check(model.get("c"))
        together.save(Token("done"))
    assert Token.count("not done") == 0
    assert Token.count("done") == 1
