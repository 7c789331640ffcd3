"""Transactions that one process suspends and another process goes on with."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import ListAttribute, UnicodeAttribute
from pynamodb.exceptions import UpdateError
from pynamodb.expressions.operand import Path

from pynamo_locking import LockableModel, LockAttribute, VersionAttribute, atransaction, transaction
from pynamo_locking.exceptions import ConfigurationError, Conflict, CorruptRow, OutcomeUnknown, StaleVersion
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support import wire
from tests.support.models import meta
from tests.support.poisoned import put
from tests.support.transaction_helpers import units
from tests.support.transaction_models import (
    Animal,
    Blob,
    Dog,
    Entry,
    Plain,
    Purse,
    Robot,
    RowLocks,
    Session,
    Sheet,
    Transactions,
    ends_s,
    existing,
    make_long_from,
    purses,
    rows_of,
    stored,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


class Heap(LockableModel):
    """Any values."""

    Meta = meta("heaps", transaction_table=Transactions)

    key = UnicodeAttribute(hash_key=True)
    parts: Any = ListAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


@pytest.fixture(autouse=True)
def _tables(database: Engine) -> None:
    database.bind(Entry, Sheet, Plain, Robot, RowLocks, Animal, Blob, Session)


def go_on(id_: str, *models: Any, **options: Any) -> Transaction:
    """Begin a transaction that goes on with a suspended one."""
    tx = Transaction(Transactions, **options)
    tx.resume(id_, models or (Purse,))
    return tx


def suspended(*keys: str, **options: Any) -> str:
    """Suspend a transaction that has read some purses, and changes the first one."""
    tx = Transaction(Transactions, **options)
    first, *_ = [tx.get(Purse, key) for key in keys]
    first.balance -= 10
    tx.save(first)
    return tx.suspend()


def test_any_process_goes_on_with_it(engine: Engine) -> None:
    """What was read and what is to be written is as before; nothing of it is seen until the commit."""
    purses(3, note="old")
    with transaction(Transactions) as tx:
        first = tx.get(Purse, "p0")
        first.balance, first.note = 90, None
        tx.save(first)
        tx.delete(tx.get(Purse, "p1"))
        tx.save(Purse("new", balance=7))
        id_ = tx.suspend()
    assert Purse.get("p0", consistent_read=True).balance == 100

    with transaction(Transactions) as tx:
        tx.resume(id_, [Purse])
        first = tx.get(Purse, "p0")
        assert (first.balance, first.note, tx.get_or_none(Purse, "p1")) == (90, None, None)
        tx.update(tx.get(Purse, "p2"), [Purse.balance.add(1)])
        assert tx.suspend() == id_
    go_on(id_).commit()

    rows = {purse.purse_id: (purse.balance, purse.note, purse.version) for purse in Purse.scan(consistent_read=True)}
    assert rows == {"p0": (90, None, 2), "p2": (101, "old", 2), "new": (7, None, 1)}
    assert rows_of(Transactions) == []


def stale_by_another_write() -> None:
    Purse.get("p1").touch()


def stale_by_a_new_life() -> None:
    Purse.get("p1").delete()
    Purse("p1", balance=100, note="old").save()


def stale_by_a_delete() -> None:
    Purse.get("p1").delete()


def stale_by_a_new_item() -> None:
    Purse("absent").save()


def stale_by_a_row_in_the_query() -> None:
    with transaction(Transactions) as tx:
        tx.save(Entry("book", 7))


@pytest.mark.parametrize(
    "change",
    [
        stale_by_another_write,
        stale_by_a_new_life,
        stale_by_a_delete,
        stale_by_a_new_item,
        stale_by_a_row_in_the_query,
    ],
)
def test_what_was_read_has_changed_meanwhile(change: Callable[[], None]) -> None:
    """The commit refuses it if it was resumed before; else who goes on with it is refused, and the row stays."""
    purses(2)
    with transaction(Transactions) as tx:
        tx.get(Purse, "p1")
        assert tx.get_or_none(Purse, "absent") is None
        assert tx.query(Entry, "book") == []
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
        id_ = tx.suspend()
    early = go_on(id_, Purse, Entry)
    change()
    with pytest.raises(StaleVersion):
        early.commit()
    for _ in range(2):
        with pytest.raises(StaleVersion):
            go_on(id_, Purse, Entry)
    assert Purse.get("p0").balance == 100


@pytest.mark.parametrize("end", ["commit", "suspend"])
@pytest.mark.parametrize("isolation", ["serializable", "read_committed"])
def test_two_processes_go_on_with_it(end: str, isolation: str) -> None:
    """One of them commits, or suspends it again; the other is refused at its own end, whatever that is."""
    purses(2)
    id_ = suspended("p0", "p1", isolation=isolation)
    fast, slow, late = (go_on(id_, isolation=isolation) for _ in range(3))
    getattr(fast, end)()
    with pytest.raises(StaleVersion):
        slow.commit()
    with pytest.raises(StaleVersion):
        late.suspend()
    assert Purse.get("p0").balance == (90 if end == "commit" else 100)


def test_it_is_committed_once_though_all_is_as_before() -> None:
    """Also where its items are again what they were: what it has created was deleted."""
    with transaction(Transactions) as tx:
        tx.save(Purse("new"))
        id_ = tx.suspend()
    other = go_on(id_)
    go_on(id_).commit()
    Purse.get("new").delete()
    with pytest.raises(Transactions.DoesNotExist, match="is suspended: it was committed"):
        go_on(id_)
    with pytest.raises(StaleVersion):
        other.commit()
    assert stored(Purse, "new") is None


def everything(tx: Transaction) -> None:
    """Do to some items of each kind what can be done in a transaction."""
    tx.save(Sheet("f", 1, body="new"))
    tx.update(tx.get(Plain, "plain"), [Plain.value.add(5), Path("undeclared").set("kept")])
    tx.update(Robot("robot"), [Robot.total.add(5)], add_version_condition=False)
    tx.save(Dog("rex", tricks=3))
    tx.update(tx.get(Animal, "cat"), [Path("colour").remove()])
    tx.save(Blob(b"\x00\xff", data=b"\x01"))
    tx.touch(tx.get(Purse, "touched"))
    tx.delete(Purse("p0"), add_version_condition=False)
    tx.delete(Purse.get("unread"))
    tx.save(Purse("over", note="new"), add_version_condition=False)
    tx.save(Plain("over", value=9), add_version_condition=False)
    gone = Purse.get("gone")
    gone.delete()
    gone.version = 7
    tx.save(gone, add_version_condition=False)
    twice = tx.get(Purse, "p1")
    tx.delete(twice)
    tx.save(Purse("p1", tags={"again"}))
    assert tx.query(Entry, "book") == []
    tx.save(Entry("book", 1, amount=2))
    tx.check(tx.get(Purse, "checked"), Purse.balance > 1)


def prepare() -> None:
    purses(2, note="old")
    for item in (Plain("plain", value=1), Robot("robot", total=1), Dog("cat"), Purse("touched", tags={"a"})):
        item.save()
    Purse("checked", balance=2).save()
    for item in (Purse("unread"), Purse("gone"), Purse("over", tags={"b"}), Plain("over")):
        item.save()
        item.update([Path("undeclared").set("old")])
    Dog("cat").update([Path("colour").set("grey")], add_version_condition=False)


def contents() -> list[Any]:
    """All items without what differs from one write, or path, to another: write ids and empty locks."""
    models = (Purse, Entry, Sheet, Plain, Robot, Animal, Blob)
    return [
        sorted(
            repr({name: each[name] for name in sorted(each) if "write_id" not in name and each[name] != {"M": {}}})
            for each in rows_of(model)
        )
        for model in models
    ]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("is_long", [False, True])
def test_what_is_committed_is_what_would_have_been(
    memory: Engine, monkeypatch: pytest.MonkeyPatch, *, times: int, is_long: bool
) -> None:
    """Every operation on every kind of model has the result that it has in one piece, on both paths."""
    make_long_from(monkeypatch, 8 if is_long else 100)
    models = (Purse, Entry, Sheet, Plain, Robot, Animal, Dog, Blob)
    prepare()
    with transaction(Transactions) as tx:
        everything(tx)
    expected = contents()
    memory.bind(*models, Transactions)

    prepare()
    tx = Transaction(Transactions)
    everything(tx)
    id_ = tx.suspend()
    for _ in range(times - 1):
        assert go_on(id_, *models).suspend() == id_
    go_on(id_, *models).commit()
    assert contents() == expected


def test_conditions_are_checked_when_it_is_suspended() -> None:
    """What holds then holds at the commit, since the items are the same; what does not ends it."""
    purses(1)
    with pytest.raises(Conflict) as refused, transaction(Transactions) as tx:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(-200)], Purse.balance >= 200)
        tx.suspend()
    assert not isinstance(refused.value, StaleVersion)
    assert rows_of(Transactions) == []
    with transaction(Transactions) as tx:
        tx.update(Purse.get("p0"), [Purse.balance.add(-50)], Purse.balance >= 50)
        id_ = tx.suspend()
    go_on(id_).commit()
    assert Purse.get("p0").balance == 50


def test_instances_of_a_suspended_transaction_are_not_saved() -> None:
    """They show what was not committed."""
    purses(1)
    with transaction(Transactions) as tx:
        purse = tx.get(Purse, "p0")
        tx.update(purse, [Purse.balance.set(1)])
        tx.suspend()
    with pytest.raises(StaleVersion):
        purse.save()
    with pytest.raises(ConfigurationError, match="has ended"):
        tx.suspend()


def test_the_idempotency_key_goes_with_it() -> None:
    """A transaction under the same key that was committed meanwhile is the same work: nothing is written again."""
    purses(1)
    id_ = suspended("p0", idempotency_key="form-6")
    first, second = go_on(id_), go_on(id_)
    first.commit()
    second.commit()
    assert (first.is_repeated, second.is_repeated, Purse.get("p0").balance) == (False, True, 90)

    id_ = suspended("p0", idempotency_key="form-7")
    with transaction(Transactions, idempotency_key="form-7") as first:
        first.save(Purse("other"))
    tx = go_on(id_)
    tx.commit()
    assert tx.is_repeated
    assert Purse.get("p0").balance == 90


@pytest.mark.parametrize(
    "do",
    [
        lambda tx: tx.get(Purse, "p0", for_update=True),
        lambda tx: tx.after_commit(print),
        lambda tx: tx.after_rollback(print),
    ],
    ids=["a lock", "a callback", "another callback"],
)
def test_what_belongs_to_a_process_is_not_suspended(do: Callable[[Transaction], None]) -> None:
    """A lock is renewed by its holder, and a callback is a function; the transaction can still be committed."""
    purses(1)
    with transaction(Transactions) as tx:
        do(tx)
        with pytest.raises(ConfigurationError, match="with locks or callbacks, cannot be suspended"):
            tx.suspend()
        tx.save(Purse("new"))
    assert stored(Purse, "new") is not None


def test_a_transaction_that_only_reads() -> None:
    """It has nothing to hand over, and must not delete the row of another one."""
    purses(1)
    with (
        transaction(Transactions, read_only=True) as tx,
        pytest.raises(ConfigurationError, match="cannot be suspended"),
    ):
        tx.suspend()
    id_ = suspended("p0")
    with pytest.raises(ConfigurationError, match="read-only"):
        go_on(id_, read_only=True)
    go_on(id_).commit()


def test_the_guard_of_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller can name its model, so it is refused at once."""
    monkeypatch.setattr(Plain, "_is_guard", True, raising=False)  # as the guard's
    tx = Transaction(Transactions)
    tx.save(Plain("guard#slots/d"))
    with pytest.raises(ConfigurationError, match="places intervals cannot be suspended"):
        tx.suspend()


def test_a_model_that_is_not_named() -> None:
    """The row names tables and not classes, so that it cannot lead a process into tables that it does not mean."""
    purses(1)
    id_ = suspended("p0")
    with pytest.raises(ConfigurationError, match=r"has items of .*: name their model"):
        go_on(id_, Plain)


def test_more_than_an_item_holds(engine: Engine) -> None:
    """DynamoDB refuses the row, and the transaction can still be committed."""
    with transaction(Transactions) as tx:
        for i in range(3):
            tx.save(Purse(f"n{i}", note="x" * 150_000))
        with pytest.raises(UpdateError):
            tx.suspend()
    assert Purse.get("n2", consistent_read=True).note is not None


def test_a_row_that_is_broken() -> None:
    """The error names it."""
    purses(1)
    id_ = suspended("p0")
    row = Transactions(f"suspended#{id_}")
    row.update([Path("content").set({"items": "none"})], add_version_condition=False)
    with pytest.raises(CorruptRow, match="row of the suspended transaction"):
        go_on(id_)


def test_a_transaction_that_is_suspended_again_is_kept_for_as_long_again() -> None:
    """DynamoDB's TTL would remove its row before the time that was asked for."""
    purses(1)
    with VirtualClock() as clock:
        id_ = suspended("p0")
        clock.jump(80_000)
        assert go_on(id_).suspend(expires_after=timedelta(days=2)) == id_
        assert ends_s(existing(Transactions, f"suspended#{id_}")) == clock.time_ms() // 1000 + 2 * 86_400


def test_an_item_that_expires_meanwhile() -> None:
    """It counts as absent, so it is not the one that was read; the row is kept as long as asked."""
    with VirtualClock() as clock:
        Session("s", user="Ada", expires_at=timedelta(seconds=30)).save()
        with transaction(Transactions) as tx:
            tx.check(tx.get(Session, "s"))
            id_ = tx.suspend(expires_after=timedelta(minutes=1))
        row = existing(Transactions, f"suspended#{id_}")
        assert ends_s(row) == clock.time_ms() // 1000 + 60
        go_on(id_, Session)
        clock.jump(31)
        with pytest.raises(StaleVersion):
            go_on(id_, Session)


def test_a_sweep_passes_over_it(few: None) -> None:
    """It is no header, and nothing of it is marked."""
    purses(1)
    id_ = suspended("p0")
    assert Transactions.sweep().examined == 0
    go_on(id_).commit()


def test_an_item_without_a_version_that_is_gone() -> None:
    """Nothing is known of it but that it was there."""
    purses(1)
    put(Plain, {"plain_id": {"S": "old"}})
    with transaction(Transactions) as tx:
        tx.get(Plain, "old")
        tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
        id_ = tx.suspend()
    go_on(id_, Purse, Plain)
    Plain("old").delete(add_version_condition=False)
    with pytest.raises(Conflict):
        go_on(id_, Purse, Plain)


def test_a_row_of_another_program() -> None:
    """Ids are random, so none should ever be there; it stays as it is."""
    purses(1)
    tx = Transaction(Transactions)
    tx.update(tx.get(Purse, "p0"), [Purse.balance.add(1)])
    row = {"id": {"S": f"suspended#{tx.id}"}, "note": {"S": "theirs"}}
    put(Transactions, row)
    with pytest.raises(Conflict):
        tx.suspend()
    with pytest.raises(ConfigurationError, match="It was left as it is"):
        go_on(tx.id)
    assert rows_of(Transactions) == [row]
    tx.commit()


def test_lost_answers(engine: Engine) -> None:
    """Suspended once, whatever is sent again; a commit without an answer has deleted the row, or not."""
    purses(1)
    with wire.on("UpdateItem").lose_response() as lost:
        id_ = suspended("p0")
    assert lost.hits == 1
    with wire.on("TransactWriteItems", times=99).lose_response(), pytest.raises(OutcomeUnknown):
        go_on(id_).commit()
    with pytest.raises(Transactions.DoesNotExist):
        go_on(id_)
    assert Purse.get("p0", consistent_read=True).balance == 90


def test_a_commit_that_was_not_applied_can_be_made_again() -> None:
    """`resolve` keeps late copies out by a change of the row, and leaves the items as the transaction needs them."""
    purses(2)
    id_ = suspended("p0", "p1")
    with wire.on("TransactWriteItems", times=wire.ALL).delay() as late, pytest.raises(OutcomeUnknown) as caught:
        go_on(id_).commit()
    assert caught.value.resolve() == "not applied"
    again = go_on(id_)
    for land in late:
        land()
    again.commit()
    assert Purse.get("p0").balance == 90


def test_one_at_a_time() -> None:
    """Each has its own row and key, of which a third transaction could keep only one."""
    purses(2)
    ids = [suspended("p0", idempotency_key="first"), suspended("p1")]
    tx = go_on(ids[0])
    with pytest.raises(ConfigurationError, match="can resume one"):
        tx.resume(ids[1], [Purse])
    with pytest.raises(ConfigurationError, match="leave out 'second'"):
        go_on(ids[0], idempotency_key="second")
    tx.commit()
    go_on(ids[1], idempotency_key="second").commit()
    assert {purse.balance for purse in Purse.scan()} == {90}


def test_a_refused_resume_takes_nothing() -> None:
    """Who catches the error and commits something else leaves the suspended transaction to others."""
    purses(1)
    id_ = suspended("p0", idempotency_key="first")
    with transaction(Transactions, idempotency_key="second") as tx:
        with pytest.raises(ConfigurationError, match="leave out 'second'"):
            tx.resume(id_, [Purse])
        tx.save(Purse("new"))
    go_on(id_).commit()
    assert (Purse.get("p0").balance, Purse.get("new").balance) == (90, 0)


@pytest.mark.parametrize("end", ["suspend", "commit"])
def test_a_resumption_that_was_rolled_back(end: str) -> None:
    """What is suspended after it gets a row of its own, and the first row stays; a commit stores no key of its work."""
    purses(2)
    id_ = suspended("p0", idempotency_key="form-8")
    tx = Transaction(Transactions)
    before = tx.savepoint()
    tx.resume(id_, [Purse])
    before.rollback()
    tx.update(tx.get(Purse, "p1"), [Purse.balance.add(1)])
    if end == "suspend":
        assert tx.suspend() == tx.id
    else:
        tx.commit()
    go_on(id_).commit()
    assert (Purse.get("p0").balance, Purse.get("p1").balance) == (90, 101 if end == "commit" else 100)


def test_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 write to suspend; 1 read and 1 request for each model to go on; 1 action more in the commit."""
    purses(120)
    tx = Transaction(Transactions)
    for purse in tx.get_all(Purse, [f"p{i}" for i in range(120)]):
        assert purse is not None
        tx.update(purse, [Purse.balance.add(1)])
    assert units(monkeypatch, tx.suspend)[0] == 1
    again = Transaction(Transactions)
    assert units(monkeypatch, lambda: again.resume(tx.id, [Purse]))[0] == 3
    again.commit()
    assert {purse.balance for purse in Purse.scan()} == {101}

    small = suspended("p0", "p1")
    again = go_on(small)
    requests, written, read = units(monkeypatch, again.commit)
    assert (requests, written, read) == (1, 6, 0)  # an item that is written, one that is checked, and the row


async def test_in_tasks() -> None:
    """The same, awaited."""
    purses(1)
    async with atransaction(Transactions) as tx:
        purse = await tx.get(Purse, "p0")
        purse.balance -= 10
        await tx.save(purse)
        id_ = await tx.suspend()
    async with atransaction(Transactions) as tx:
        await tx.resume(id_, [Purse])
        assert (await tx.get(Purse, "p0")).balance == 90
    assert Purse.get("p0").balance == 90


def nested(depth: int, inner: Any) -> Any:
    """Return a value in so many lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize("depth", [26, 27, 28, 30, 31])
def test_an_item_as_deep_as_dynamodb_takes_it(engine: Engine, depth: int) -> None:
    """With all types of values, also binary ones: it is suspended, again, and committed as it was to be."""
    engine.bind(Heap)
    value = nested(depth - 1, [1, "x", b"\x00\xff", None, True, {"m": "B"}] if depth < 31 else [b"\x00\xff", "B"])
    with transaction(Transactions) as tx:
        tx.save(Heap("flat", parts=[1]))
    tx = Transaction(Transactions)
    for key in ("deep", "flat"):
        tx.save(Heap(key, parts=value) if key == "deep" else tx.get(Heap, key))
    found = go_on(go_on(tx.suspend(), Heap).suspend(), Heap)
    found.commit()
    assert Heap.get("deep").parts == value
