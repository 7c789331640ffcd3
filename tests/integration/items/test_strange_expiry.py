"""A time of expiry that other programs store: NULL (boto3's None), and what is no number; and strange versions."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.attributes import NumberAttribute
from pynamodb.exceptions import AttributeDeserializationError
from pynamodb.models import Model

from pynamo_locking import ExpiringMixin, LockableModel, TransactWrite, TTLAttribute, VersionedMixin, transaction
from pynamo_locking.exceptions import BatchError, Conflict
from pynamo_locking.intervals import IntervalMixin
from tests.support.interval_models import SlotLocks
from tests.support.models import Locks, declare
from tests.support.poisoned import put
from tests.support.transaction_models import Session, Transactions, empty, make_long_from, stored
from tests.support.unique_models import Uniques
from tests.support.versioned_models import connection_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

pytestmark = pytest.mark.core

NULL: Final = {"NULL": True}


def expiring(name: str, *bases: type[Any], **parts: Any) -> Any:
    """Return a model of items that may have an end; they are by a text and a number."""
    parts = {"hash_key": "pk", "range_key": "sk", "version": True, **parts}
    return declare(name, ExpiringMixin, *bases, numbers="n", expires=TTLAttribute(null=True, attr_name="exp"), **parts)


LONG: Final[dict[str, Any]] = {"transaction_table": Transactions}
KINDS: Final = {
    "a version": expiring("Versioned", VersionedMixin, Model, **LONG),
    "a lock": expiring("Locked", LockableModel, lock=True, **LONG),
    "a lock in a row": expiring("Beside", LockableModel, lock_table=Locks, **LONG),
    "unique values": expiring("Unique", VersionedMixin, Model, unique=("name",), unique_table=Uniques, texts="name"),
    "intervals": expiring(
        *("Stay", IntervalMixin, LockableModel),
        **{"lock": True, "end": NumberAttribute(), "interval": ("sk", "end"), "lock_table": SlotLocks, **LONG},
    ),
}


def place(engine: Engine, kind: str, end: dict[str, Any] | None) -> Any:
    """Store an item of that kind, and give it that end as another program would; return its model."""
    model = KINDS[kind]
    empty(model, Uniques, SlotLocks)
    parts = {"unique values": {"name": "ada"}, "intervals": {"end": 2}}.get(kind, {})
    model("a", 1, **parts).save()
    if end is not None:
        engine.client().update_item(
            TableName=model.Meta.table_name,
            Key={"pk": {"S": "a"}, "sk": {"N": "1"}},
            UpdateExpression="SET exp = :end",
            ExpressionAttributeValues={":end": end},
        )
    return model


def bind(engine: Engine, kind: str) -> None:
    engine.bind(KINDS[kind], Transactions, Locks, Uniques, SlotLocks)


async def each(found: Any) -> list[Any]:
    return [item async for item in found]


def in_transaction(read: Callable[[Any], Any], isolation: str = "serializable") -> Any:
    with transaction(isolation=isolation) as tx:
        return read(tx)


READS: Final[dict[str, Callable[[Any], Any]]] = {
    "get": lambda model: [model.get("a", 1)],
    "get, consistent": lambda model: [model.get("a", 1, consistent_read=True)],
    "get some": lambda model: [model.get("a", 1, attributes_to_get=["pk", "sk", "n"])],
    "aget": lambda model: [asyncio.run(model.aget("a", 1))],
    "refresh": lambda model: [item := model("a", 1), item.refresh()][:1],
    "query": lambda model: model.query("a"),
    "query with a limit": lambda model: model.query("a", limit=1),
    "query with a filter": lambda model: model.query("a", filter_condition=model.n == 0),
    "aquery": lambda model: asyncio.run(each(model.aquery("a"))),
    "scan": lambda model: model.scan(),
    "batch_get": lambda model: model.batch_get([("a", 1)]),
    "tx.get": lambda model: [in_transaction(lambda tx: tx.get(model, "a", 1))],
    "tx.get_all": lambda model: in_transaction(lambda tx: tx.get_all(model, [("a", 1)])),
    "tx.query": lambda model: in_transaction(lambda tx: tx.query(model, "a"), "read_committed"),
    "tx.scan": lambda model: in_transaction(lambda tx: tx.scan(model, at_most=9), "read_committed"),
}
COUNTS: Final[dict[str, Callable[[Any], Any]]] = {
    "count": lambda model: model.count("a"),
    "count with a filter": lambda model: model.count("a", filter_condition=model.n == 0),
    "acount": lambda model: asyncio.run(model.acount("a")),
}


def change(item: Any) -> Any:
    item.n += 1
    return item


def edit(model: Any) -> None:
    with model.edit("a", 1) as item:
        change(item)


def locked(model: Any) -> None:
    with model.locked("a", 1) as lock:
        change(lock.item).save()


def batch(model: Any, *, transactions: bool = False, others: int = 1) -> None:
    with model.guarded_batch(transactions=transactions) as batch:
        batch.save(change(model.get("a", 1)))
        for number in range(others):
            batch.save(
                model("bc"[transactions], 100 + number, **({"end": 101 + number} if hasattr(model, "end") else {}))
            )
    assert [str(result.error) for result in batch.results if result.error] == []


def native(write: Callable[[Any, Any], object], model: Any) -> None:
    with TransactWrite(connection=connection_of(model)) as transaction:
        write(transaction, model.get("a", 1))


def commit(write: Callable[[Any, Any], object], model: Any) -> None:
    with transaction() as tx:
        write(tx, tx.get(model, "a", 1))


def long(model: Any) -> None:
    with transaction() as tx:
        tx.save(change(tx.get(model, "a", 1)))
        for number in range(4):
            tx.save(model("d", 100 + number))


#: Each way to write the item, and to write it as it was read.
WRITES: Final[dict[str, Callable[[Any], Any]]] = {
    "save": lambda model: change(model.get("a", 1)).save(),
    "save with a condition": lambda model: change(model.get("a", 1)).save(model.n == 0),
    "asave": lambda model: asyncio.run(change(model.get("a", 1)).asave()),
    "blind save": lambda model: change(model.get("a", 1)).save(add_version_condition=False),
    "update": lambda model: model.get("a", 1).update([model.n.add(1)]),
    "update with a condition": lambda model: model.get("a", 1).update([model.n.add(1)], model.n == 0),
    "blind update": lambda model: model("a", 1).update([model.n.add(1)], add_version_condition=False),
    "modify": lambda model: model.modify("a", 1, change),
    "touch": lambda model: model.get("a", 1).touch(),
    "delete": lambda model: model.get("a", 1).delete(),
    "delete with a condition": lambda model: model.get("a", 1).delete(model.n == 0),
    "guarded_batch": batch,
    "guarded_batch in transactions": lambda model: batch(model, transactions=True),
    "TransactWrite.save": lambda model: native(lambda tx, item: tx.save(change(item)), model),
    "TransactWrite.update": lambda model: native(lambda tx, item: tx.update(item, [model.n.add(1)]), model),
    "TransactWrite.delete": lambda model: native(lambda tx, item: tx.delete(item), model),
    "TransactWrite.condition_check": lambda model: native(
        lambda tx, item: tx.condition_check(model, "a", 1, model.n == 0), model
    ),
    "tx.save": lambda model: commit(lambda tx, item: tx.save(change(item)), model),
    "tx.update": lambda model: commit(lambda tx, item: tx.update(item, [model.n.add(1)]), model),
    "tx.delete": lambda model: commit(lambda tx, item: tx.delete(item), model),
    "tx.check": lambda model: commit(lambda tx, item: tx.check(item), model),
}
LOCKS: Final[dict[str, Callable[[Any], Any]]] = {"edit": edit, "locked": locked}
ROWS: Final[dict[str, Callable[[Any], Any]]] = {
    "move": lambda model: model.intervals.move(model.get("a", 1), 1, 3),
    "insert_disjoint": lambda model: model.intervals.insert_disjoint([model("a", 5, end=6)]),
}
VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "save another value": lambda model: renamed(model.get("a", 1)).save(),
    "update the value": lambda model: model.get("a", 1).update([model.name.set("bob")]),
    "remove the value": lambda model: model.get("a", 1).update([model.name.remove()]),
    "tx.save another value": lambda model: commit(lambda tx, item: tx.save(renamed(item)), model),
    "tx.update the value": lambda model: commit(lambda tx, item: tx.update(item, [model.name.set("bob")]), model),
}


def renamed(item: Any) -> Any:
    item.name = "bob"
    return item


def left(model: Any) -> Any:
    """What is stored of the item, without what differs between any two writes."""
    image = stored(model, "a", 1)
    return image and {name: image[name] for name in ("n", "version", "end") if name in image}


def tried(way: Callable[[Any], Any], model: Any) -> Any:
    """Return what is stored afterwards, or the error."""
    try:
        way(model)
    except Exception as error:  # noqa: BLE001 - compared
        return f"{type(error).__name__}: {error}"
    return left(model)


@pytest.mark.parametrize("kind", KINDS)
def test_null_means_never_in_every_way(concurrent_engine: Engine, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Each read finds the item, and each write does what it does to an item without a time of expiry."""
    bind(concurrent_engine, kind)
    model = place(concurrent_engine, kind, NULL)
    wrong = dict[str, Any]()
    for way, read in READS.items():
        try:
            found: Any = [(int(item.sk), item.expires) for item in read(model)]
        except Exception as error:  # noqa: BLE001 - every way is looked at
            found = error
        if found != [(1, None)]:
            wrong[way] = found
    wrong |= {way: found for way, count in COUNTS.items() if (found := count(model)) != 1}
    writes = WRITES | (LOCKS if issubclass(model, LockableModel) else {})
    if kind == "a lock":
        make_long_from(monkeypatch)
        writes |= {"a long transaction": long}
    if kind == "unique values":
        writes = {way: write for way, write in writes.items() if way != "blind save"} | VALUES
    if kind == "intervals":
        writes = writes | ROWS
        del writes["guarded_batch in transactions"]  # it refuses new rows of intervals
        wrong |= {"overlapping": rows} if len(rows := model.intervals.overlapping("a", 1, 2)) != 1 else {}
    for way, write in writes.items():
        expected, found = (tried(write, place(concurrent_engine, kind, end)) for end in (None, NULL))
        if found != expected or (isinstance(expected, str)):
            wrong[way] = (found, expected)
    assert not wrong, "\n".join(f"{way}: {found}" for way, found in wrong.items())


@pytest.mark.parametrize("end", [{"S": "tomorrow"}, {"B": b"1"}, {"BOOL": True}, {"M": {}}], ids=str)
@pytest.mark.parametrize("kind", ["a version", "a lock"])
def test_what_is_no_number_is_refused_by_every_read(concurrent_engine: Engine, kind: str, end: dict[str, Any]) -> None:
    """The item does not expire, by DynamoDB's TTL neither: counts and writes find it, reads name what is wrong."""
    bind(concurrent_engine, kind)
    model = place(concurrent_engine, kind, end)
    for way, read in READS.items():
        with pytest.raises(AttributeDeserializationError, match="exp"):
            pytest.fail(f"{way} returned {list(read(model))}")
    assert {way: count(model) for way, count in COUNTS.items()} == dict.fromkeys(COUNTS, 1)
    with TransactWrite(connection=connection_of(model)) as tx:
        tx.update(model("a", 1), [model.n.add(1)], add_version_condition=False)
    assert left(model) == {"n": {"N": "1"}, "version": {"N": "2"}}


#: Each way to write an item that was read, with a check of its version.
CHECKED: Final = {way: write for way, write in WRITES.items() if "blind" not in way and "condition_check" not in way}
BY_KEY: Final[dict[str, Callable[[Any], Any]]] = {
    "save by key": lambda model: model("a", 1).save(),
    "update by key": lambda model: model("a", 1).update([model.n.add(1)]),
}


@pytest.mark.parametrize("version", [NULL, {"N": "1.5"}, {"S": "one"}], ids=str)
@pytest.mark.parametrize("kind", ["a version", "a lock", "a lock in a row", "unique values"])
def test_a_version_that_is_none_is_named(concurrent_engine: Engine, kind: str, version: dict[str, Any]) -> None:
    """Each checked write says what is stored; nothing is written. A text cannot be read, so it is written by key."""
    bind(concurrent_engine, kind)
    model = place(concurrent_engine, kind, None)
    concurrent_engine.client().update_item(
        TableName=model.Meta.table_name,
        Key={"pk": {"S": "a"}, "sk": {"N": "1"}},
        UpdateExpression="SET version = :version REMOVE version_write_id",
        ExpressionAttributeValues={":version": version},
    )
    before = stored(model, "a", 1)
    writes = (CHECKED | (LOCKS if issubclass(model, LockableModel) else {})) if "S" not in version else {}
    for way, write in (writes | BY_KEY).items():
        with pytest.raises((Conflict, BatchError), match=re.escape(f"version = {version!r}")):
            pytest.fail(f"{way} returned {write(model)}")
    after = stored(model, "a", 1)
    assert after is not None
    assert {**after, "lock": None} == {**(before or {}), "lock": None}


@pytest.mark.parametrize(("end", "year"), [("1" + "0" * 125, 9999), ("-1" + "0" * 30, 1970)], ids=["late", "early"])
def test_an_end_that_no_calendar_has(memory: Engine, end: str, year: int) -> None:
    """The item can be read: it never expires, or has."""
    memory.bind(Session)
    put(Session, {"session_id": {"S": "s"}, "expires_at": {"N": end}})
    assert [each.expires_at.year for each in Session.scan(include_expired=True)] == [year]
