"""Rows of this package that another program has broken, each field of each kind of row in many ways.

What only reads an item shows it. What would have to trust the row is refused with `CorruptRow`, and writes nothing of
the item. Nothing raises anything but an error of this package or of PynamoDB.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.exceptions import AttributeDeserializationError, PynamoDBException

from pynamo_locking import LockSettings, transaction
from pynamo_locking.exceptions import ConfigurationError, Conflict, CorruptRow, LockingError, LockLost, OutcomeUnknown
from pynamo_locking.testing import VirtualClock
from pynamo_locking.transactions import Transaction
from tests.support.interval_models import Slot, SlotLocks
from tests.support.lengths import short_or_long
from tests.support.models import Locks
from tests.support.poisoned import (
    MOST_REQUESTS,
    RESOLVING,
    batch,
    document,
    edit,
    entry,
    header,
    locked,
    mark,
    name_of,
    native,
    native_check,
    participant,
    participants,
    place,
    put,
    save,
    tables_in,
    tx_for_update,
    tx_get,
    tx_query,
    tx_read_committed,
    tx_snapshot,
    update,
)
from tests.support.shell import Shell, prepared
from tests.support.transaction_models import (
    Entry,
    Purse,
    Session,
    Transactions,
    dying_after,
    existing,
    make_long_from,
    rows_of,
    stored,
)
from tests.support.wire import on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine

pytestmark = pytest.mark.long

#: So many cases of each operation.
CASES: Final = short_or_long(12, 200)

#: Few looks, since time is virtual and looks are not.
SELDOM: Final = LockSettings(min_poll_interval=1, poll_interval=2)

#: What may stand in the place of any value, in DynamoDB's form; None where nothing does.
WRONG: Final[list[dict[str, Any] | None]] = [
    *(None, {"S": "x"}, {"S": ""}, {"S": "1E400"}, {"N": "0"}, {"N": "-1"}, {"N": "1.5"}, {"N": "1" + "0" * 125}),
    *({"B": b"x"}, {"BOOL": True}, {"NULL": True}, {"L": []}, {"L": [{"S": "x"}]}, {"M": {}}, {"M": {"x": {"S": "x"}}}),
    *({"SS": ["x"]}, {"NS": ["5"]}),
]


def broken(row: dict[str, Any], *path: Any) -> Iterator[dict[str, Any]]:
    """The row with each wrong value in each of its places, from that path on."""
    inner: Any = row
    for name in path:
        inner = inner[name]
    kind, content = next(iter(inner.items()))
    for value in WRONG:
        changed = copy.deepcopy(row)
        place: Any = changed
        for name in path[:-1]:
            place = place[name]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        yield changed
    for name in content if kind == "M" else range(len(content)) if kind == "L" else ():
        yield from broken(row, *path, kind, name)


def documents() -> list[dict[str, Any]]:
    """Lock documents, each broken in one place, or of a strange value that is none of our business."""
    intent = {"op": {"S": "save"}, "set": {"M": {"balance": {"N": "6"}}}, "remove": {"L": [{"S": "note"}]}}
    marked = mark("T", name_of(Transactions), **intent)
    ranged = [entry(ticket, p={"N": "2"}, lo={"S": "a"}, hi={"S": "b"}) for ticket in (1, 2)]
    sound = (
        document(e=entry(n={"N": "3"})),
        document(e=ranged[0], f=ranged[1]),
        document(),
        document(marked),
        {"M": {"tx": marked}},
    )
    return [row["lock"] for each in sound for name in each["M"] for row in broken({"lock": each}, "lock", "M", name)]


def some(cases: list[Any]) -> list[Any]:
    """All, or some, the same in each run."""
    return cases if len(cases) <= CASES else random.Random(0).sample(cases, CASES)


@pytest.fixture
def clock(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Virtual time, a database, and long transactions of few items."""
    make_long_from(monkeypatch)
    memory.bind(Purse, Session, Transactions, Locks)
    with VirtualClock() as clock:
        yield clock


def is_broken(lock: dict[str, Any]) -> bool:
    return bool(Purse.from_raw_data({"purse_id": {"S": "p0"}, "lock": lock}).lock.unreadable)


def may_have_a_holder(lock: dict[str, Any]) -> bool:
    return lock["M"].get("queue", {"M": {}}) != {"M": {}} or "tx" in lock["M"]


def run(
    operation: Callable[[], object], monkeypatch: pytest.MonkeyPatch, clock: VirtualClock, most: int = MOST_REQUESTS
) -> Exception | None:
    """Its error, if it is one that a caller may expect."""
    began = clock.elapsed
    with dying_after(monkeypatch, most) as process:
        try:
            operation()
        except (LockingError, PynamoDBException, AttributeDeserializationError) as error:
            failure: Exception | None = error
        else:
            failure = None
    assert {table for _, kwargs in process.sent for table in tables_in(kwargs)} <= {
        name_of(Purse),
        name_of(Transactions),
    }
    assert clock.elapsed - began <= 31
    return failure


def without_lock(image: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (image or {}).items() if name != "lock"}


def get() -> None:
    assert Purse.get("p0", consistent_read=True).balance == 1


def refresh() -> None:
    purse = Purse("p0")
    purse.refresh(consistent_read=True)
    assert purse.balance == 1


def scan() -> None:
    assert [purse.balance for purse in Purse.scan(consistent_read=True)] == [1]


def query() -> None:
    assert [purse.balance for purse in Purse.query("p0", consistent_read=True)] == [1]


def lock_state() -> None:
    Purse.lock_state("p0")


def break_lock() -> None:
    Purse.break_lock("p0", ticket=77)


#: Those that act upon the whole document.
TRUSTING: Final = [locked, edit, tx_read_committed, tx_get, tx_snapshot, tx_query, tx_for_update, break_lock]


@pytest.mark.parametrize("operation", [get, refresh, scan, query, lock_state])
def test_reads(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None]) -> None:
    """They show the item, and that its lock is broken."""
    for lock in some(documents()):
        image = place(lock)
        assert run(operation, monkeypatch, clock) is None, lock
        state = Purse.get("p0", consistent_read=True).lock
        assert state == Purse.lock_state("p0")
        assert not (state.unreadable and (state.entries or state.intent or state.exists)), lock
        assert stored(Purse, "p0") == image, lock


@pytest.mark.parametrize("operation", [*RESOLVING, break_lock])
def test_what_has_to_trust_the_lock(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None]
) -> None:
    """It is refused. What writes from outside the lock needs to know only that no process is in the queue."""
    for lock in some(documents()):
        put(Transactions, header("T", "aborted"))
        image = place(lock)
        error = run(operation, monkeypatch, clock, MOST_REQUESTS if is_broken(lock) else 500)
        after = stored(Purse, "p0")
        if not is_broken(lock):
            continue
        if operation in TRUSTING:
            assert isinstance(error, CorruptRow), (lock, error)
        if may_have_a_holder(lock) and (operation is not native_check or "tx" in lock["M"]):
            told = str(error) if operation is not batch else str(getattr(error, "results", ""))
            assert "is broken" in told or isinstance(error, Conflict), (lock, error)
        if error is not None:
            assert without_lock(after) == without_lock(image), (lock, error)
            assert after is not None
            kept = {name: value for name, value in after["lock"]["M"].items() if name not in ("next", "tx")}
            assert kept == {name: value for name, value in lock["M"].items() if name not in ("next", "tx")}, lock


def test_repairs(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any broken lock can be taken again, with a ticket above those it had; the values of the item stay."""
    for lock in some(documents()):
        image = place(lock)
        repaired = list[bool]()
        run(lambda repaired=repaired: repaired.append(Purse.break_lock("p0", force=True)), monkeypatch, clock)  # type: ignore[misc]
        after = stored(Purse, "p0")
        assert repaired == [is_broken(lock)], lock
        if not is_broken(lock):
            assert after == image
            continue
        assert without_lock(after) == without_lock(image)
        state = Purse.lock_state("p0")
        assert not state.unreadable, lock
        assert state.next_ticket >= 10**15
        put(Transactions, header("T", "aborted"))
        with Purse.locked("p0", wait=70, settings=SELDOM) as held:  # what can be read stays for its lease
            assert held.ticket is not None
            assert held.ticket >= state.next_ticket
        assert Purse.break_lock("p0", force=True) is False


def test_tickets_go_on(memory: Engine) -> None:
    """After the largest that can be read. Who held the lock cannot write any more, and is told that it is lost."""
    memory.bind(Purse, Transactions)
    Purse("p0", balance=1).save()
    with pytest.raises(LockLost), Purse.locked("p0", heartbeat=False) as held:
        image = existing(Purse, "p0")
        assert held.ticket is not None
        far = held.ticket + 10**6
        image["lock"]["M"] |= {"next": {"L": [{"N": str(far)}]}, "queue": {"S": "x"}}
        put(Purse, image)
        assert Purse.break_lock("p0", force=True) is True
        assert Purse.lock_state("p0").next_ticket == far + 1
        held.item.balance = 7
        held.item.save()
    assert Purse.get("p0").balance == 1


@pytest.mark.parametrize("arguments", [{}, {"ticket": 1, "force": True}], ids=str)
def test_a_repair_and_a_ticket(memory: Engine, arguments: dict[str, Any]) -> None:
    """One of both is asked for."""
    with pytest.raises(ConfigurationError, match="force=True"):
        Purse.break_lock("p0", **arguments)


def test_the_error(clock: VirtualClock) -> None:
    """It names the table, the key, the field, what is there, and what to do; it survives a pickle."""
    place(document(e=entry(o={"N": "5"})))
    with pytest.raises(CorruptRow, match="Remove that attribute") as caught:
        locked()
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.table, error.key) == (name_of(Purse), {"purse_id": {"S": "p0"}})
    assert (error.field, error.found) == ("queue.e.1.o", "{'N': '5'}")
    assert str(error) == str(caught.value)
    assert Purse.get("p0").lock.unreadable == "queue.e.1.o is {'N': '5'}"


@pytest.mark.parametrize("number", ["0", "-1", "1000001"])
def test_a_format_that_no_release_stores(clock: VirtualClock, number: str) -> None:
    """It is a mistake that can be repaired, and no newer format."""
    lock = document()
    lock["M"]["f"] = {"N": number}
    place(lock)
    with pytest.raises(CorruptRow):
        locked()
    assert Purse.break_lock("p0", force=True) is True


def test_a_newcomer_would_pass_by(clock: VirtualClock) -> None:
    """A next ticket below that of the holder: the lock would be held twice."""
    place(document(e=entry(12)))
    with pytest.raises(CorruptRow, match=r"next\.0 is"):
        locked()
    assert Purse.lock_state("p0").unreadable


@pytest.mark.parametrize("queue", [{"S": ""}, {"L": []}, {"B": b""}, {"N": "0"}, {"NULL": True}], ids=str)
def test_a_queue_that_is_empty_in_another_way(concurrent_engine: Engine, queue: dict[str, Any]) -> None:
    """It is none: writes from outside are refused, by each engine's conditions."""
    concurrent_engine.bind(Purse, Transactions)
    lock = document()
    lock["M"]["queue"] = queue
    image = place(lock)
    for operation in (update, save, native, locked):
        with pytest.raises(LockingError, match="is broken"):
            operation()
        assert stored(Purse, "p0") == image


# Headers, and what is kept beside them


def sweep_all() -> None:
    assert Transactions.sweep().failed == {}


def recover_one() -> None:
    Transactions.recover("T")


@pytest.mark.parametrize("operation", [update, locked, tx_get, tx_snapshot, sweep_all, recover_one])
@pytest.mark.parametrize("state", ["pending", "committed"])
def test_headers(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None], state: str
) -> None:
    """Each operation that meets a mark of theirs, or completes them."""
    sound = header("T", state)
    rows = [row for name in sound if name != "id" for row in broken(sound, name)]
    for row in some(rows):
        put(Transactions, participants("T", participant()))
        put(Transactions, row)
        place({"M": {"tx": mark("T", name_of(Transactions))}})
        try:
            Transactions.outcome("T")
        except CorruptRow:
            most = MOST_REQUESTS
        else:
            most = 500  # it may be waited for
        with suppress(AssertionError):  # some failed
            run(operation, monkeypatch, clock, most)


@pytest.mark.parametrize("operation", [sweep_all, recover_one])
def test_participants(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None]) -> None:
    """The rows that name the items of a transaction."""
    sound = participants("T", participant(spill={"S": "T!00000"}))
    item = participant(spill={"S": "T!00000"})
    rows = [*broken(sound, "content"), *(participants("T", row) for name in item for row in broken(item, name))]
    for row in some(rows):
        put(Transactions, header("T", "committed"))
        put(Transactions, row)
        image = place({"M": {}})
        with suppress(AssertionError):
            run(operation, monkeypatch, clock)
        assert stored(Purse, "p0") == image, row


@pytest.mark.parametrize("operation", [update, locked, tx_get, recover_one])
def test_changes_beside_a_mark(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None]
) -> None:
    """What a committed transaction intends is not made up."""
    changes = {"set": {"M": {"balance": {"N": "6"}}}, "remove": {"L": [{"S": "note"}]}}
    sound = {"id": {"S": "T!00000"}, "content": {"M": changes}}
    for row in some(list(broken(sound, "content"))):
        put(Transactions, header("T", "committed"))
        put(Transactions, participants("T", participant(spill={"S": "T!00000"})))
        put(Transactions, row)
        place({"M": {"tx": mark("T", name_of(Transactions), op={"S": "save"}, spill={"S": "T!00000"})}})
        run(operation, monkeypatch, clock)


# Suspended transactions, keys and records


def suspended() -> tuple[str, dict[str, Any]]:
    """The id of a transaction that reads, changes, deletes and creates, and its row."""
    with transaction(Transactions) as tx:
        tx.get(Purse, "p1")
        tx.update(tx.get(Purse, "p0"), [Purse.balance.set(5), Purse.note.remove()])
        tx.delete(tx.get(Purse, "p2"))
        tx.save(Purse("p3", balance=3))
        id_ = tx.suspend()
    [row] = [row for row in rows_of(Transactions) if row["id"]["S"].startswith("suspended#")]
    return id_, row


def all_rows() -> list[dict[str, Any]]:
    return sorted(map(without_lock, rows_of(Purse)), key=repr)


def empty(model: Any) -> None:
    for row in rows_of(model):
        model._get_connection().connection.dispatch(
            "DeleteItem",
            {"TableName": name_of(model), "Key": {name: row[name] for name in ("purse_id", "id") if name in row}},
        )


def test_suspended_transactions(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that goes on with one is told what is broken, and writes all that the row says, or nothing."""
    for name in ("p0", "p1", "p2"):
        Purse(name, balance=1, note="x").save()
    before = all_rows()
    id_, sound = suspended()

    def go_on() -> None:
        with transaction(Transactions, wait=1) as tx:
            tx.resume(id_, [Purse])

    errors = list[Exception | None]()
    names = ("content", "expires_s", "version", "version_write_id")
    for row in some([row for name in names for row in broken(sound, name)]):
        put(Transactions, row)
        errors.append(error := run(go_on, monkeypatch, clock))
        if error is not None:
            assert all_rows() == before, (row, error)
            continue
        empty(Purse)
        for image in before:
            put(Purse, image)
    assert any(isinstance(error, CorruptRow) and error.table == name_of(Transactions) for error in errors)


@pytest.mark.parametrize(
    ("op", "key"),
    [("update", "T"), ("delete", "T"), ("delete", "key#k"), ("update", "suspended#other"), ("purge", "p0")],
)
def test_a_suspended_transaction_that_is_led_elsewhere(clock: VirtualClock, op: str, key: str) -> None:
    """It relies on rows of its own table, such as guards, and writes none of them."""
    Purse("p0", balance=1).save()
    Purse("p2").save()
    Purse("p1").save()
    id_, row = suspended()
    put(Transactions, header("T", "pending"))
    entry_ = row["content"]["M"]["items"]["L"][0]["M"]
    if key != "p0":
        entry_ |= {"table": {"S": name_of(Transactions)}, "key": {"M": {"id": {"S": key}}}}
    entry_ |= {"op": {"S": op}, "set": {"M": {"state": {"S": "committed"}}}, "remove": {"L": []}}
    put(Transactions, row)
    before = sorted(rows_of(Transactions), key=repr)
    with pytest.raises(CorruptRow, match="Delete the row"), transaction(Transactions) as tx:
        tx.resume(id_, [Purse])
    assert sorted(rows_of(Transactions), key=repr) == before


@pytest.mark.parametrize("name", ["purse_id", "version", "version_write_id", "lock"])
def test_a_suspended_transaction_that_sets_what_is_ours(clock: VirtualClock, name: str) -> None:
    """Keys, versions, write ids and locks are no values of the item."""
    for purse in ("p0", "p1", "p2"):
        Purse(purse, balance=1).save()
    id_, row = suspended()
    before = all_rows()
    for each in row["content"]["M"]["items"]["L"]:
        if "set" in each["M"]:
            each["M"]["set"]["M"][name] = {"S": "x"} if "id" in name else {"N": "7"} if name != "lock" else {"M": {}}
    put(Transactions, row)
    with pytest.raises((LockingError, PynamoDBException)), transaction(Transactions) as tx:
        tx.resume(id_, [Purse])
    assert all_rows() == before


def test_keys_and_records(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of a key, committed or given up, and a record: asked by `outcome`, a commit and `resolve`."""
    with transaction(Transactions, idempotency_key="k", record=True) as tx:
        tx.save(Purse("p0"))
    found = {row["id"]["S"]: row for row in rows_of(Transactions)}
    given_up = {"id": {"S": "key#k"}, "abandoned": {"SS": ["T"]}, "expires_s": found["key#k"]["expires_s"]}
    kinds = [(found["key#k"], ("content", "expires_s")), (given_up, ("abandoned", "expires_s"))]
    rows = [row for sound, names in kinds for name in names for row in broken(sound, name)]
    record = found[tx.id]
    rows += [row for name in record if name != "id" for row in broken(record, name)]

    def again() -> None:
        with transaction(Transactions, idempotency_key="k") as begun:
            begun.save(Purse("p1"))

    def doubtful() -> None:
        begun = Transaction(Transactions, idempotency_key="k")
        begun.save(Purse("p1"))
        with on("TransactWriteItems", times=99).lose_request():
            try:
                begun.commit()
            except OutcomeUnknown as error:
                error.resolve()

    asked = (
        lambda: Transactions.outcome(idempotency_key="k"),
        lambda: Transactions.outcome(tx.id),
        lambda: Transactions.recover(tx.id),
        Transactions.sweep,
        again,
        doubtful,
    )
    for row in some(rows):
        for operation in asked:
            put(Transactions, row)
            run(operation, monkeypatch, clock, 500)


# Guards


def test_guards_of_queries(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which items were created is not made up: those who query in a transaction are told."""
    memory.bind(Entry, Transactions)
    with transaction() as tx:
        tx.save(Entry("b", 1))
    [guard] = [row for row in rows_of(Transactions) if row["id"]["S"].startswith("guard#")]
    [named] = [name for name in guard if name.startswith("touched#")]
    rows = [*broken(guard, named), *broken(guard, named, "L", 0)]
    errors = list[Exception]()
    for row in rows:
        put(Transactions, row)
        try:
            with transaction(read_only=True, wait=1) as tx:
                tx.query(Entry, "b")
        except (LockingError, PynamoDBException) as error:
            errors.append(error)
    assert any(isinstance(error, CorruptRow) and error.table == name_of(Transactions) for error in errors)


def test_guards_of_intervals(memory: Engine) -> None:
    """The same for those who insert an interval."""
    memory.bind(Slot, SlotLocks)
    Slot.intervals.insert_disjoint([Slot("d", 0, end=5)])
    [guard] = [row for row in rows_of(SlotLocks) if "touched" in row]
    errors = list[Exception]()
    for i, row in enumerate([*broken(guard, "touched"), *broken(guard, "touched", "L", 0)], 1):
        put(SlotLocks, row)
        try:
            Slot.intervals.insert_disjoint([Slot("d", 10 * i, end=10 * i + 5)])
        except (LockingError, PynamoDBException, AttributeDeserializationError) as error:
            errors.append(error)
    assert any(isinstance(error, CorruptRow) and error.table == name_of(SlotLocks) for error in errors)


# The command line


@pytest.fixture
def shell(memory: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The program, on the database in memory."""
    return prepared(memory, capsys, monkeypatch)


def test_commands(memory: Engine, shell: Shell) -> None:
    """One bad row of each kind does not hide the others: it is listed as well, and the exit code says so."""
    memory.bind(Locks, Transactions)
    locks = {f"l{i:03}": lock for i, lock in enumerate(documents()[::4])}
    for name, lock in locks.items():
        put(Locks, {"name": {"S": name}, "lock": lock})
    bad = {name for name, lock in locks.items() if is_broken(lock) and "next" in lock["M"]}
    assert len(bad) > 50
    table = ("--table", name_of(Locks))
    with Locks.locked("job"):
        for command in (("list", "--all"), ("watch", "--once", "--all")):
            code, out, _ = shell.run("locks", *command, *table, "--json")
            shown = json.loads(out)
            assert code == 1
            assert bad <= shown["unreadable"].keys()
            assert "job" in {each["name"] for each in shown["locks"]}
            assert not shown["unreadable"].keys() & {each["name"] for each in shown["locks"]}
    code, out, _ = shell.run("locks", "list", *table)
    assert (code, "broken" in out) == (1, True)
    one = min(bad)
    for arguments in (("show", one), ("show", one, "--json"), ("break", one, "--ticket", "1", "--yes")):
        assert shell.run("locks", *arguments, *table)[0] == 1
    for was_broken in (True, False):
        code, out, _ = shell.run("locks", "repair", one, "--yes", *table, "--json")
        assert (code, json.loads(out)["repaired"], bool(json.loads(out)["was"])) == (0, was_broken, was_broken)
    assert shell.run("locks", "show", one, *table)[0] == 0
    code, out, _ = shell.run("tables", "check", *table, "--json")
    (finding,) = [each for each in json.loads(out)["tables"][0]["findings"] if each["check"] == "broken"]
    assert (code, finding["level"]) == (1, "problem")


def test_an_expiry_that_no_calendar_has(memory: Engine) -> None:
    """The item can be read: it never expires, or has."""
    memory.bind(Session)
    for far, year in (("1" + "0" * 125, 9999), ("-1" + "0" * 30, 1970)):
        put(Session, {"session_id": {"S": "s"}, "expires_at": {"N": far}})
        found = [each.expires_at.year for each in Session.scan(include_expired=True)]
        assert found == [year]
