"""The auditor over the records of streams: nothing is found in what this package writes, and what others write is."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    NamedLock,
    TransactWrite,
    TTLAttribute,
    VersionAttribute,
    locked_all,
    transaction,
)
from pynamo_locking._core.lock_queue import WriteIntent
from pynamo_locking._core.transactions import TransactionRecord, TransactionStatus
from pynamo_locking._io import lock_record, transaction_record
from pynamo_locking._io.stored_rows import number
from pynamo_locking.contrib.streams import Auditor, lambda_handler
from pynamo_locking.exceptions import Conflict, LockLost, OverlapError
from pynamo_locking.recipes import IdempotencyTable, idempotent
from tests.engines.engine import running
from tests.support.interval_models import Slot, SlotLocks
from tests.support.models import declare, meta
from tests.support.streams import Stream, record_of, stream_of
from tests.support.transaction_models import FEW, Purse, Transactions, make_long_from
from tests.support.unique_models import Uniques, User

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.servers import Servers


Names = declare("Names", NamedLock)
Calls = declare("Calls", IdempotencyTable)
Ship = declare("Ship", hash_key="ship_id", numbers="load", lock_table=Names)


class Session(ExpiringMixin, LockableModel):
    """It expires, and a new one takes its place."""

    Meta = meta("sessions")

    session_id = UnicodeAttribute(hash_key=True)
    hits = NumberAttribute(default=0)
    expires = TTLAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


MODELS = (Purse, Transactions, Names, Calls, Ship, Session, User, Uniques, Slot, SlotLocks)


@pytest.fixture
def real_stream(servers: Servers) -> Iterator[Stream]:
    """The stream of an engine that has one."""
    with running("dynamodb-local", servers) as engine, stream_of(engine) as stream:
        yield stream


@pytest.fixture
def memory_stream(servers: Servers) -> Iterator[Stream]:
    """That of the engine in memory, for what does not depend on the engine."""
    with running("memory", servers) as engine, stream_of(engine) as stream:
        yield stream


# What this package writes


def use_versions() -> None:
    """Every way to write a version."""
    Purse("v").save()
    purse = Purse.get("v")
    purse.balance += 1
    purse.save()
    purse.update([Purse.balance.add(5)])
    purse.update([Purse.note.set("x")], add_version_condition=False)
    Purse.get("v").save(add_version_condition=False)
    Purse.modify("v", change=lambda found: setattr(found, "tags", {"a", "b"}))
    Purse("new").update([Purse.balance.set(1)], add_version_condition=False)
    with Purse.guarded_batch() as batch:
        for i in range(4):
            batch.save(Purse(f"b{i}", balance=i))
    Purse.get("v").delete()
    Purse("v").save()


def use_locks() -> None:
    """Queues, writes under locks, evictions, a broken lock, a row of its own, tickets for several callers."""
    Purse("l").save()

    def work(times: int = 3) -> None:
        for _ in range(times):
            with Purse.locked("l", wait=30) as lock:
                lock.item.balance += 1
                lock.item.save()
                lock.renew()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Purse.edit("l") as purse:
        purse.balance += 1
    with Purse.locked("l") as lock:
        lock.downgrade()
    broken = Purse.locked("l", heartbeat=False)
    broken.acquire()
    Purse.break_lock("l", ticket=broken.ticket)
    with pytest.raises(LockLost):
        broken.release()
    with Purse.locked("l") as lock:
        lock.item.delete()
    Ship("s").save()
    with Ship.locked("s") as ship, Names.locked("a job"):
        ship.item.load += 1
        ship.item.save()
    with locked_all(Names.locked("x"), Names.locked("y")):
        pass


def use_transactions() -> None:
    """Native, long with all kinds of marks, and one that is rolled back after it has begun."""
    keys = [f"t{i}" for i in range(3 * FEW)]
    for key in keys:
        Purse(key, balance=1).save()
    with TransactWrite(connection=Purse._get_connection().connection) as native:
        native.update(Purse.get("t0"), [Purse.balance.add(1)])
        native.save(Purse("t-new"))
    with Purse.locked("t1"), transaction(Transactions) as tx:
        for key in keys[: 2 * FEW]:
            purse = tx.get(Purse, key)
            purse.balance += 1
            tx.save(purse)
        for key in keys[2 * FEW :]:
            tx.delete(tx.get(Purse, key))
        tx.save(Purse("large", note="x" * 100_000))
        for i in range(FEW):
            tx.save(Purse(f"made{i}"))
    with pytest.raises(Conflict), transaction(Transactions) as tx:
        purses = [tx.get(Purse, key) for key in keys[: 2 * FEW]]
        Purse.get(keys[0]).save()
        for i in range(FEW):
            tx.save(Purse(f"never{i}"))
        for purse in purses:
            purse.balance += 1
            tx.save(purse)


def use_the_rest() -> None:
    """Jobs, calls, unique values, intervals, expiry."""
    for _ in range(2):
        with Names.once("nightly", period=timedelta(days=1)) as run:
            bool(run)
    user = User("u", email="a@b", tenant="t", name="n")
    user.save()
    user.email = "c@d"
    user.save()
    user.delete()
    slots = [Slot("d", i * 10, end=i * 10 + 10) for i in range(3)]
    for slot in slots:
        slot.save()
    with pytest.raises(OverlapError):
        Slot("d", 5, end=15).save()
    slots[0].delete()
    charge = idempotent(Calls, key="order")(_charge)
    assert charge("o-1") == charge("o-1") == {"receipt": "o-1"}
    past = datetime.now(timezone.utc) - timedelta(hours=1)
    for _ in range(3):
        session = Session("s", expires=past)
        session.save()


def _charge(order: str) -> dict[str, str]:
    return {"receipt": order}


USES: dict[str, Callable[[], None]] = {
    "versions": use_versions,
    "locks": use_locks,
    "transactions": use_transactions,
    "the rest": use_the_rest,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_nothing_is_found_in_our_own_writes(memory_stream: Stream, monkeypatch: pytest.MonkeyPatch, use: Any) -> None:
    """Whatever this package does to items, locks, marks and headers."""
    make_long_from(monkeypatch)
    memory_stream.bind(*MODELS)
    use()
    assert_nothing_is_found(memory_stream.new_records())


@pytest.mark.other_engine
def test_nothing_is_found_in_a_real_stream(real_stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the streams of DynamoDB Local."""
    make_long_from(monkeypatch)
    real_stream.bind(Purse, Transactions, Names, Ship)
    for use in (use_versions, use_locks, use_transactions):
        use()
    assert_nothing_is_found(real_stream.new_records())


def assert_nothing_is_found(records: list[dict[str, Any]]) -> None:
    """There are records of many kinds, and all are ours."""
    assert len(records) > 10
    assert {record["eventName"] for record in records} >= {"INSERT", "MODIFY"}
    assert [*map(str, Auditor(MODELS, reads_records=True).audit(records))] == []


# What others write


class Case:
    """A purse with a queue, or a mark, and a client that knows nothing of this package."""

    def __init__(self, stream: Stream, name: str = "p") -> None:
        self.client = stream.engine.client()
        self.table = Purse.Meta.table_name
        self.key = {"purse_id": {"S": name}}
        self.transaction = f"t-{name}"

    def image(self) -> dict[str, Any]:
        image: dict[str, Any] = self.client.get_item(TableName=self.table, Key=self.key, ConsistentRead=True)["Item"]
        return image

    def put(self, **changes: Any) -> None:
        """Replace the item; None leaves an attribute out."""
        item = {**self.image(), **changes}
        self.client.put_item(TableName=self.table, Item={name: value for name, value in item.items() if value})

    def update(self, expression: str, names: dict[str, str] | None = None, **values: Any) -> None:
        arguments = (
            {"ExpressionAttributeValues": {f":{name}": value for name, value in values.items()}} if values else {}
        )
        more = {"ExpressionAttributeNames": names} if names else {}
        self.client.update_item(TableName=self.table, Key=self.key, UpdateExpression=expression, **arguments, **more)

    def change_lock(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the lock document as a program does that reads and puts items."""
        image = self.image()
        change(image["lock"]["M"])
        self.client.put_item(TableName=self.table, Item=image)

    def mark(self, **intent: Any) -> None:
        """Store what a pending transaction leaves in an item."""
        table = transaction_record.record_table_of(Transactions)
        header = TransactionRecord(
            self.transaction, TransactionStatus.PENDING, "1-a", "me", heartbeats=3, lease_ms=60_000, until_ms=1, items=1
        )
        transaction_record.begin(table, header)
        mark = WriteIntent(
            self.transaction, table.place, "save", set={"balance": number(7), "version": number(3)}, **intent
        )
        self.update("SET #l.tx = :mark", {"#l": "lock"}, mark=lock_record.stored_intent(mark))


def with_queue(case: Case) -> None:
    """Let three entries be in the queue."""

    def change(lock: dict[str, Any]) -> None:
        first = int(lock["next"]["L"][0]["N"])
        for i in range(3):
            entry = lock_record.new_entry("me", lock_record.WHOLE, 60.0, 1, ticket=first + i)
            lock["queue"]["M"][f"entry{i}"] = entry
        lock["next"] = {"L": [number(first + 3)]}

    case.change_lock(change)


def facts_of(lock: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the first entry."""
    facts: dict[str, Any] = lock["queue"]["M"]["entry0"]["L"][1]["M"]
    return facts


LOCK = {"#l": "lock"}
MINE = number(2)
FOREIGN: dict[str, tuple[str, Callable[[Case], object], set[str]]] = {
    "put without the lock": ("", lambda c: c.put(lock=None), {"lock_lost"}),
    "put without the lock, in use": (
        "queue",
        lambda c: c.put(lock=None, balance=number(9)),
        {"lock_lost", "version_unchanged"},
    ),
    "put with another lock": ("", lambda c: c.change_lock(lambda m: m.update(since=number(5))), {"lock_lost"}),
    "no map": ("", lambda c: c.put(lock={"S": "mine"}), {"lock_lost"}),
    "broken": ("", lambda c: c.update("REMOVE #l.#n", {"#l": "lock", "#n": "next"}), {"lock_broken"}),
    "version back": ("", lambda c: c.update("SET version = :v", v=number(1)), {"version_back"}),
    "version removed": ("", lambda c: c.update("REMOVE version"), {"version_lost"}),
    "version jumps": ("", lambda c: c.update("SET version = :v", v=number(9)), {"version_jumped"}),
    "value without version": ("", lambda c: c.update("SET balance = :b", b=number(9)), {"version_unchanged"}),
    "version without id": ("", lambda c: c.update("ADD version :one", one=number(1)), {"write_id_lost"}),
    "id alone": ("", lambda c: c.update("SET version_write_id = :id", id={"S": "x"}), {"write_id_changed"}),
    "queue emptied": ("queue", lambda c: c.update("SET #l.queue = :none", LOCK, none={"M": {}}), {"queue_changed"}),
    "entry forged": (
        "queue",
        lambda c: c.change_lock(
            lambda m: m["queue"]["M"].update(
                me=lock_record.new_entry("x", lock_record.WHOLE, 60.0, 1, ticket=m_first(m))
            )
        ),
        {"queue_changed"},
    ),
    "ticket taken": (
        "queue",
        lambda c: c.update("SET #l.#n[0] = #l.#n[0] + :two", {"#l": "lock", "#n": "next"}, two=number(2)),
        {"queue_changed"},
    ),
    "tickets back": (
        "",
        lambda c: c.update("SET #l.#n[0] = :one", {"#l": "lock", "#n": "next"}, one=number(1)),
        {"tickets_back"},
    ),
    "renewal back": (
        "queue",
        lambda c: c.change_lock(lambda m: facts_of(m).update(o={"S": "thief"})),
        {"entry_changed"},
    ),
    "value past the holder": (
        "queue",
        lambda c: c.update(
            "SET balance = :b, version_write_id = :id ADD version :one", b=number(9), id={"S": "y"}, one=number(1)
        ),
        {"lock_ignored"},
    ),
    "mark removed": ("mark", lambda c: c.update("REMOVE #l.tx", LOCK), {"intent_lost"}),
    "mark replaced by values": (
        "mark",
        lambda c: c.update("SET balance = :b REMOVE #l.tx", LOCK, b=number(9)),
        {"intent_lost", "version_unchanged"},
    ),
    "value past the mark": (
        "mark",
        lambda c: c.update("SET balance = :b", b=number(9)),
        {"intent_ignored", "version_unchanged"},
    ),
    "item with a mark deleted": ("mark", lambda c: c.client.delete_item(TableName=c.table, Key=c.key), {"intent_lost"}),
}


def m_first(lock: dict[str, Any]) -> int:
    """Return a ticket that was never given out: before the first."""
    return int(lock["since"]["N"]) - 1


def prepared(stream: Stream, name: str, case: str) -> Case:
    """Return a purse of that name, ready for the foreign write of a case."""
    Purse(name, balance=1).save()
    with Purse.locked(name) as lock:
        lock.item.save()
    made = Case(stream, name)
    for prepare in {"": [], "queue": [with_queue], "mark": [Case.mark]}[FOREIGN[case][0]]:
        prepare(made)
    return made


@pytest.mark.parametrize("name", FOREIGN)
def test_a_write_of_another_program_is_found(memory_stream: Stream, name: str) -> None:
    """Each kind, by its word, and with the item that it was about; the writes before it are ours."""
    memory_stream.bind(Purse, Transactions)
    case = prepared(memory_stream, "p", name)
    memory_stream.new_records()
    FOREIGN[name][1](case)
    records = memory_stream.new_records()
    assert len(records) == 1
    found = Auditor([Purse], reads_records=True).audit(records)
    assert {finding.kind for finding in found} == FOREIGN[name][2]
    for finding in found:
        assert (finding.table, finding.key) == (Purse.Meta.table_name, {"purse_id": "p"})
        assert finding.sequence == records[0]["dynamodb"]["SequenceNumber"]
        assert finding.text in str(finding)


@pytest.mark.other_engine
def test_writes_of_another_program_are_found_in_a_real_stream(real_stream: Stream) -> None:
    """All of them in one stream, each at its item, and nothing at the others."""
    real_stream.bind(Purse, Transactions)
    cases = {f"p{number}": name for number, name in enumerate(FOREIGN)}
    ready = {key: prepared(real_stream, key, name) for key, name in cases.items()}
    Purse("untouched").save()
    real_stream.new_records()
    for key, name in cases.items():
        FOREIGN[name][1](ready[key])
    found: dict[str, set[str]] = {}
    for finding in Auditor([Purse], reads_records=True).audit(real_stream.new_records()):
        found.setdefault(finding.key["purse_id"], set()).add(finding.kind)
    assert found == {key: FOREIGN[name][2] for key, name in cases.items()}


def test_headers_are_watched(memory_stream: Stream) -> None:
    """A pending one that is deleted, one that is decided twice, and renewals that go back."""
    memory_stream.bind(Purse, Transactions)
    case = prepared(memory_stream, "p", "mark removed")
    case.table, case.key = Transactions.Meta.table_name, {"id": {"S": "t-p"}}
    memory_stream.new_records()
    case.update("SET beat = :b", b=number(1))
    case.update("SET #s = :s", {"#s": "state"}, s={"S": "committed"})
    case.update("SET #s = :s", {"#s": "state"}, s={"S": "aborted"})
    case.update("REMOVE #s, priority", {"#s": "state"})
    case.update("SET #s = :s, priority = :p", {"#s": "state"}, s={"S": "committed"}, p={"S": "1-a"})
    case.client.delete_item(TableName=case.table, Key=case.key)
    records = memory_stream.new_records()
    by_ttl = {**records[-1], "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}
    auditor = Auditor([Purse])
    assert [[finding.kind for finding in auditor.audit_record(record)] for record in records] == [
        ["record_changed"],
        [],
        ["record_changed"],
        ["record_changed"],
        [],
        ["record_lost"],
    ]
    assert auditor.audit_record(by_ttl) == []


def test_what_ttl_removes_with_a_mark_is_no_finding(memory_stream: Stream) -> None:
    """DynamoDB has removed what had expired. The same record of another program is a finding."""
    memory_stream.bind(Purse, Transactions)
    case = prepared(memory_stream, "p", "item with a mark deleted")
    old = case.image()
    told = [
        [
            finding.kind
            for finding in Auditor([Purse]).audit_record(record_of(case.table, [*case.key], old, None, **how))
        ]
        for how in ({"is_by_ttl": True}, {"is_by_ttl": False})
    ]
    assert told == [[], ["intent_lost"]], "a removal by DynamoDB's TTL is no write of another program"


def test_a_dropped_mark_is_judged_by_its_header(memory_stream: Stream) -> None:
    """Right for an aborted transaction; not judged without `reads_records`, nor where the header cannot be read."""
    memory_stream.bind(Purse, Transactions)
    case = prepared(memory_stream, "p", "mark removed")
    memory_stream.new_records()
    case.update("REMOVE #l.tx", LOCK)
    records = memory_stream.new_records()
    assert [finding.kind for finding in Auditor([Purse], reads_records=True).audit(records)] == ["intent_lost"]
    assert Auditor([Purse]).audit(records) == []
    transaction_record.abort(transaction_record.record_table_of(Transactions), "t-p", "asked")
    assert Auditor([Purse], reads_records=True).audit(records) == []
    case.client.delete_table(TableName=Transactions.Meta.table_name)
    assert Auditor([Purse], reads_records=True).audit(records) == []


def kinds_of(old: dict[str, Any], new: dict[str, Any], model: Any = Purse, **how: Any) -> list[str]:
    """What is found in one change of an item."""
    [key] = [name for name in ("purse_id", "session_id") if name in old]
    found = Auditor([model]).audit_record(record_of(model.Meta.table_name, [key], old, new, **how))
    return [finding.kind for finding in found]


def test_members_of_sets_come_in_any_order() -> None:
    """The streams have them in another order than before, and nothing has changed."""
    sets = {"s": {"SS": ["a", "b"]}, "n": {"NS": ["1", "2"]}, "b": {"BS": ["YQ==", "Yg=="]}}
    turned = {name: {kind: value[::-1] for kind, value in each.items()} for name, each in sets.items()}
    rest = {"purse_id": {"S": "p"}, "version": number(2)}
    assert kinds_of({**rest, "in": {"M": sets}}, {**rest, "in": {"M": turned}}) == []
    assert kinds_of({**rest, **sets}, {**rest, "s": {"SS": ["a", "c"]}}) == ["version_unchanged"]


def test_an_expired_item_may_begin_again() -> None:
    """Also if the clock of its writer is a minute ahead of the stream's."""
    old, new = ({"session_id": {"S": "s"}, "version": number(version)} for version in (5, 1))
    found = [kinds_of({**old, "expires": number(at)}, new, Session, at_s=1000.0) for at in (990, 1060, 1061)]
    assert found == [[], [], ["version_back"]]


def test_a_header_that_is_deleted_before_its_time(memory_stream: Stream) -> None:
    """An aborted transaction may have left marks, which are judged by it: until it has a time to expire it stays."""
    memory_stream.bind(Purse, Transactions)
    case = prepared(memory_stream, "p", "mark removed")
    transaction_record.abort(transaction_record.record_table_of(Transactions), "t-p", "asked")
    case.table, case.key = Transactions.Meta.table_name, {"id": {"S": "t-p"}}
    header = case.image()
    assert header.pop("expires_s")
    kinds = [
        [finding.kind for finding in Auditor([Purse]).audit_record(record_of(case.table, ["id"], old, None))]
        for old in (header, {**header, "expires_s": number(1)})
    ]
    assert kinds == [["record_lost"], []]


# The handler


def changed(value: int, sequence_of: str = "notes") -> dict[str, Any]:
    """Return a record of a value that was changed without its version."""
    old = {"purse_id": {"S": "p"}, "version": number(2), "balance": number(1)}
    return record_of(sequence_of, ["purse_id"], old, {**old, "balance": number(value)})


def test_the_handler_goes_on_after_a_record_that_it_cannot_read(memory_stream: Stream) -> None:
    """It tells of it, and of those that follow; records of other tables are left out."""
    memory_stream.bind(Purse, Transactions)
    told: list[str] = []
    handle = lambda_handler(Auditor([Purse]), on_finding=lambda finding: told.append(finding.kind))
    keys_only = changed(3, Purse.Meta.table_name)
    keys_only["dynamodb"]["StreamViewType"] = "KEYS_ONLY"
    odd_key = changed(3, Purse.Meta.table_name)
    odd_key["dynamodb"]["Keys"] = {"purse_id": "p"}
    no_images = {**changed(3, Purse.Meta.table_name), "eventName": "MODIFY", "dynamodb": {}}
    bad = [{}, {"dynamodb": 5}, no_images, keys_only, odd_key]
    records = [*bad, changed(2, Purse.Meta.table_name), changed(2, "another")]
    assert handle({"Records": records}, None) == {"batchItemFailures": []}
    assert told == [*["unreadable"] * len(bad), "version_unchanged"]


def test_the_handler_lets_lambda_send_again_what_could_not_be_told(memory_stream: Stream) -> None:
    """From that record on; an error of the callback is not raised."""
    memory_stream.bind(Purse, Transactions)

    def fail(_: object) -> None:
        raise OSError

    records = [changed(1, Purse.Meta.table_name), changed(2, Purse.Meta.table_name), changed(3, Purse.Meta.table_name)]
    records[0]["dynamodb"]["NewImage"] = records[0]["dynamodb"]["OldImage"]
    answer = lambda_handler(Auditor([Purse]), on_finding=fail)({"Records": records})
    assert answer == {"batchItemFailures": [{"itemIdentifier": records[1]["dynamodb"]["SequenceNumber"]}]}
    assert lambda_handler(Auditor([Purse]))({"Records": records}) == {"batchItemFailures": []}
