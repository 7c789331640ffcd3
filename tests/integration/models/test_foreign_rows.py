"""No row of this package is written into an item of another program: every public way, on every engine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.exceptions import AttributeDeserializationError, DoesNotExist

from pynamo_locking import LockAttribute, transaction
from pynamo_locking.exceptions import ConfigurationError, Conflict, LockingError
from pynamo_locking.transactions import Transaction
from tests.support import wire
from tests.support.interval_models import Slot, SlotLocks, slots
from tests.support.models import Account, Locks
from tests.support.own_rows import LOCKS, NAME, WAYS, Memo, bind
from tests.support.transaction_helpers import add_fillers
from tests.support.transaction_models import Entry, Purse, Transactions, make_long_from

if TYPE_CHECKING:
    from pynamodb.models import Model

    from tests.engines.engine import Engine


#: What a customer's row may look like; the last one has been written into by an earlier state of the package.
CUSTOMERS: dict[str, dict[str, Any]] = {
    "a customer": {"email": {"S": "a@example.com"}, "credit": {"N": "12.5"}},
    "a customer that expires": {"email": {"S": "a@example.com"}, "expires_s": {"N": "1"}},
    "nothing but a key": {},
    "a lock of its own": {"lock": {"S": "padlock"}, "note": {"S": "theirs"}},
}


def table_of(model: type[Model]) -> str:
    """The name of a model's table."""
    return model._get_connection().table_name


def put(engine: Engine, model: type[Model], key: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Store an item as another program does."""
    attribute = model._hash_key_attribute()
    item = {attribute.attr_name: {"S": key}, **attributes}
    engine.client().put_item(TableName=table_of(model), Item=item)
    return item


def stored(engine: Engine, model: type[Model], key: str) -> dict[str, Any] | None:
    """An item as DynamoDB has it."""
    attribute = model._hash_key_attribute()
    where = {"TableName": table_of(model), "Key": {attribute.attr_name: {"S": key}}, "ConsistentRead": True}
    return engine.client().get_item(**where).get("Item")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Each public way in turn."""
    make_long_from(monkeypatch)
    return WAYS[request.param]


def assert_left(engine, way, customer):
    """Go a way to a row of another program: it stays byte for byte, and the error names the table."""
    key = bind(engine, way)
    item = put(engine, way.table, key, CUSTOMERS[customer])

    with pytest.raises((way.error, AttributeDeserializationError)) as refused:  # by who reads a lock that is none
        way.act()

    assert stored(engine, way.table, key) == item
    if issubclass(refused.type, LockingError):
        assert table_of(way.table) in str(refused.value)
        assert "It was left as it is" in str(refused.value)


def test_a_row_of_another_program_stays_as_it_is(engine, way):
    """By every way, on every engine."""
    assert_left(engine, way, "a customer")


@pytest.mark.parametrize("customer", list(CUSTOMERS)[1:])
@pytest.mark.parametrize("name", ["`NamedLock.locked`", "`NamedLock.save`", "`NamedLock.update`", "`insert_disjoint`"])
def test_any_row_of_another_program_stays_as_it_is(cheap, name, customer):
    """One that expires, one that is nothing but its key, and one whose lock is none."""
    assert_left(cheap, WAYS[name], customer)


def test_where_nothing_is_every_way_works(memory, way):
    """The same call makes the row, or needs none."""
    key = bind(memory, way)
    with contextlib.suppress(Conflict, DoesNotExist):  # of what needs an item that is there
        way.act()
    item = stored(memory, way.table, key)
    if item is not None:
        assert {"lock", "version", "content"} & item.keys()


@pytest.mark.parametrize("name", LOCKS)
def test_a_refusal_costs_little(memory, name):
    """Two requests at most, whatever is asked for; and no entry stands in a queue."""
    way = LOCKS[name]
    key = bind(memory, way)
    put(memory, way.table, key, CUSTOMERS["a customer"])
    with wire.count_requests() as sent, pytest.raises(ConfigurationError):
        way.act()
    writes = sent.by_operation["UpdateItem"] + sent.by_operation["PutItem"]
    assert writes <= (4 if name == "`locked_all`" else 2), sent.by_operation


#: What looks at its row before it writes. The others are writes, which DynamoDB refuses by their key.
LOOKING = ("pessimistic=True", "idempotency_key")


@pytest.mark.parametrize("name", WAYS)
def test_a_table_of_other_keys(cheap, name, monkeypatch):
    """Nothing is written there: what locks or looks is refused by us, a write by DynamoDB."""
    make_long_from(monkeypatch)
    way = WAYS[name]
    bind(cheap, way)
    monkeypatch.setattr(way.table.Meta, "table_name", cheap.create_table("S", "S"))  # type: ignore[attr-defined]
    with pytest.raises(Exception) as refused:
        way.act()

    is_ours = name in LOCKS or any(word in name for word in LOOKING)
    assert isinstance(refused.value, ConfigurationError) is is_ours, refused.value
    assert cheap.client().scan(TableName=table_of(way.table))["Items"] == []


# Rows that are ours


@pytest.mark.parametrize("note", ["n", None], ids=["with a value", "with nothing but its key"])
@pytest.mark.parametrize("how", ["save", "update", "batch", "unguarded", "transact", "transaction", "long"])
def test_a_row_that_was_saved_before_it_was_ever_locked(engine, how, note, monkeypatch):
    """Is ours: it can be locked, saved in the lock and outside, and keeps its values."""
    make_long_from(monkeypatch)
    engine.bind(Memo, Transactions, Purse)
    memo = Memo(NAME, note=note)
    if how == "save":
        memo.save()
    elif how == "update":
        memo.update([Memo.note.set(note) if note else Memo.note.remove()])
    elif how == "batch":
        with Memo.guarded_batch() as batch:
            batch.save(memo)
    elif how == "unguarded":
        with Memo.batch_write(unguarded=True) as unguarded:
            unguarded.save(memo)
    elif how == "transact":
        WAYS["`TransactWrite.save` of a `NamedLock`"].act()
    else:
        with transaction() as tx:
            tx.save(memo)
            add_fillers(tx, {"transaction": "native"}.get(how, how))

    with Memo.locked(NAME, wait=0) as lock:
        assert lock.item.note == ("n" if how == "transact" else note)
        lock.item.note = "inside"
        lock.item.save()
    outside = Memo.get(NAME)
    outside.note = "outside"
    outside.save()
    assert Memo.get(NAME).note == "outside"


def test_a_row_without_its_lock(engine):
    """Is refused like any other, and says what to do; without the row the name can be locked again."""
    engine.bind(Locks)
    with Locks.locked(NAME):
        pass
    place = {"TableName": table_of(Locks), "Key": {"name": {"S": NAME}}}
    engine.client().update_item(**place, UpdateExpression="REMOVE #l", ExpressionAttributeNames={"#l": "lock"})
    with pytest.raises(ConfigurationError, match=r"no attribute 'lock'.*leftover, delete it"):
        Locks.locked(NAME, wait=0).acquire()
    engine.client().delete_item(**place)
    with Locks.locked(NAME, wait=0):
        pass


@pytest.mark.parametrize("value", [{"S": "padlock"}, {"BOOL": True}, {"M": {"by": {"S": "them"}}}], ids=str)
def test_an_attribute_of_that_name_that_is_no_lock(engine, value):
    """Is not written over, in an item of the model's table either."""
    engine.bind(Account)
    item = put(engine, Account, "a", {"lock": value, "balance": {"N": "1"}})
    with pytest.raises(ConfigurationError, match="something that is no lock"):
        Account.locked("a", wait=0).acquire()
    assert stored(engine, Account, "a") == item
    assert isinstance(Account.lock, LockAttribute)


def test_between_the_look_and_the_first_entry(memory):
    """Another program stores its item after the lock has found none."""
    memory.bind(Locks)
    items = list[Any]()

    def late() -> None:
        items.append(put(memory, Locks, NAME, CUSTOMERS["a customer"]))

    with (
        wire.on("UpdateItem", "PutItem", to=Locks).before(late),
        pytest.raises(ConfigurationError, match="no attribute 'lock'"),
    ):
        Locks.locked(NAME, wait=0).acquire()
    assert [stored(memory, Locks, NAME)] == items


def test_between_the_look_at_a_counter_and_the_commit(cheap):
    """Another program stores its item after a transaction has found no counter."""
    cheap.bind(Entry, Transactions)
    tx = Transaction()
    tx.save(Entry("b", 1, amount=1))
    key = f"guard#{table_of(Entry)}/b"
    item = put(cheap, Transactions, key, CUSTOMERS["a customer"])
    with pytest.raises(Conflict):
        tx.commit()
    assert stored(cheap, Transactions, key) == item
    assert list(Entry.scan(consistent_read=True)) == []


def test_between_the_look_at_a_guard_and_the_commit(cheap):
    """Another program stores its item after an interval has found no guard; the next attempt says so."""
    cheap.bind(Slot, SlotLocks)
    key, items = f"guard#{table_of(Slot)}/d", list[Any]()

    def late() -> None:
        items.append(put(cheap, SlotLocks, key, CUSTOMERS["a customer"]))

    with (
        wire.on("Query", to=Slot).before(late),
        pytest.raises(ConfigurationError, match="It was left as it is"),
    ):
        Slot.intervals.insert_disjoint(slots((1, 2)))
    assert [stored(cheap, SlotLocks, key)] == items


# Rows whose names no other program can know


@pytest.mark.parametrize(
    "row", ["{id}", "{id}#{number:04}", "{id}!{number:05}"], ids=["header", "participants", "spill"]
)
def test_rows_of_a_long_transaction(cheap, row, monkeypatch):
    """Its header, its participants, and what does not fit into a mark: nothing is written."""
    make_long_from(monkeypatch)
    cheap.bind(Purse, Transactions)
    tx = Transaction(workers=1)
    for number in range(9):
        tx.save(Purse(f"{number}", balance=1, note="n" * 395_000))
    keys = [row.format(id=tx.id, number=number) for number in range(9)]
    items = {key: put(cheap, Transactions, key, CUSTOMERS["a customer"]) for key in keys}
    with pytest.raises(ConfigurationError, match="left as it is"):
        tx.commit()
    assert {key: stored(cheap, Transactions, key) for key in keys} == items
    assert list(Purse.scan(consistent_read=True)) == []
