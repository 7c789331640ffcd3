"""Rows of this package that another program has broken or forged: any operation, any attribute, any garbage.

The operation is done, or refused with an error of this package or of PynamoDB. With `CorruptRow` nothing was changed.
What only reads an item shows it. The cases with a name below are those in which a row can be read and must not be
believed, and what a person does by hand.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from pynamodb.exceptions import AttributeDeserializationError, PynamoDBException

from pynamo_locking import LockSettings, transaction
from pynamo_locking.exceptions import (
    Conflict,
    CorruptRow,
    LockingError,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    UnknownFormat,
)
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support.interval_models import Slot, SlotLocks
from tests.support.lengths import short_or_long
from tests.support.models import Locks
from tests.support.parties import SLOW_CLOCK, held_elsewhere
from tests.support.poisoned import (
    LOOKING,
    RESOLVING,
    Foreign,
    batch,
    break_lock,
    document,
    edit,
    entry,
    header,
    locked,
    mark,
    name_of,
    native,
    participant,
    participants,
    place,
    put,
    recover_one,
    save,
    sweep_all,
    tx_for_update,
    tx_get,
    tx_query,
    tx_read_committed,
    tx_snapshot,
    update,
)
from tests.support.shell import prepared
from tests.support.transaction_models import (
    Entry,
    Purse,
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

#: So many cases of each kind of row.
CASES: Final = short_or_long(40, 400)

#: No operation that is refused with `CorruptRow` makes more requests.
MOST_REQUESTS: Final = 50

#: What may stand in the place of any value, in DynamoDB's form; None where nothing does.
GARBAGE: Final[list[dict[str, Any] | None]] = [
    *(None, {"S": "x"}, {"S": ""}, {"S": "1E400"}, {"N": "0"}, {"N": "-1"}, {"N": "1.5"}, {"N": "1" + "0" * 125}),
    *({"B": b"x"}, {"BOOL": True}, {"NULL": True}, {"L": []}, {"L": [{"S": "x"}]}, {"M": {}}, {"M": {"x": {"S": "x"}}}),
    *({"SS": ["x"]}, {"NS": ["5"]}),
]


#: A sound row, and the path to a part of it.
Part = tuple[dict[str, Any], tuple[Any, ...]]


def parts_of(row: dict[str, Any], *path: Any) -> Iterator[Part]:
    """The part of a row at that path, and all parts of it."""
    inner: Any = row
    for name in path:
        inner = inner[name]
    yield row, path
    kind, content = next(iter(inner.items()))
    for name in content if kind == "M" else range(len(content)) if kind == "L" else ():
        yield from parts_of(row, *path, kind, name)


def with_garbage(part: Part, value: dict[str, Any] | None) -> dict[str, Any]:
    row = copy.deepcopy(part[0])
    *path, last = part[1]
    around: Any = row
    for name in path:
        around = around[name]
    if value is None:
        del around[last]
    else:
        around[last] = value
    return row


@pytest.fixture
def clock(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Virtual time, a database, and long transactions of few items."""
    make_long_from(monkeypatch)
    memory.bind(Purse, Transactions, Locks, Entry, Slot, SlotLocks, Foreign)
    with VirtualClock() as clock:
        yield clock


# Any operation, any attribute, any garbage


class Kind(NamedTuple):
    """A kind of row.

    Attributes:
        table: whose row it is.
        prepare: stores what is around it; returns the parts of the sound row, or of several.
        operations: that meet it.
    """

    table: Any
    prepare: Callable[[], list[Part]]
    operations: list[Callable[[], object]]


def locks() -> list[Part]:
    """An item with a lock document: with entries, with an intent, with both."""
    put(Transactions, header("T", "aborted"))
    put(Transactions, participants("T", participant()))
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
    return [part for each in sound for name in each["M"] for part in parts_of(place(each), "lock", "M", name)]


def records(state: str) -> list[Part]:
    """The record of a transaction that has an item."""
    put(Transactions, participants("T", participant()))
    place({"M": {"tx": mark("T", name_of(Transactions))}})
    sound = {**header("T", state), "f": {"N": "1"}}
    return [part for name in sound if name != "id" for part in parts_of(sound, name)]


def named_items(state: str) -> list[Part]:
    """The row that names the items of a transaction."""
    put(Transactions, header("T", state))
    place({"M": {}})
    return list(parts_of(participants("T", participant(spill={"S": "T!00000"})), "content"))


def changes() -> list[Part]:
    """What a committed transaction is to change, in a row beside the intent."""
    put(Transactions, header("T", "committed"))
    put(Transactions, participants("T", participant(spill={"S": "T!00000"})))
    place({"M": {"tx": mark("T", name_of(Transactions), op={"S": "save"}, spill={"S": "T!00000"})}})
    content = {"set": {"M": {"balance": {"N": "6"}}}, "remove": {"L": [{"S": "note"}]}}
    parts = parts_of({"id": {"S": "T!00000"}, "content": {"M": content}}, "content")
    return [part for part in parts if "balance" not in part[1]]  # a value is what it is


def keys() -> list[Part]:
    """The row of an idempotency key, of a transaction that was committed, or given up."""
    ends = {"N": "9999999999"}
    used = {"id": {"S": "key#k"}, "content": {"M": {"id": {"S": "T"}}}, "expires_s": ends}
    given_up = {"id": {"S": "key#k"}, "abandoned": {"SS": ["T"]}, "expires_s": ends}
    return [part for sound in (used, given_up) for name in sound if name != "id" for part in parts_of(sound, name)]


def again() -> None:
    """A second transaction with the key."""
    with transaction(Transactions, idempotency_key="k") as begun:
        begun.save(Purse("p1"))


def doubtful() -> None:
    """A second one, whose commit gets no answer."""
    begun = Transaction(Transactions, idempotency_key="k")
    begun.save(Purse("p1"))
    with on("TransactWriteItems", times=99).lose_request():
        try:
            begun.commit()
        except OutcomeUnknown as error:
            error.resolve()


def suspend() -> str:
    """Suspend a transaction that reads, changes, deletes and creates; return its id."""
    for name in ("p0", "p1", "p2"):
        Purse(name, balance=1, note="x").save(add_version_condition=False)
    with transaction(Transactions) as tx:
        tx.get(Purse, "p1")
        tx.update(tx.get(Purse, "p0"), [Purse.balance.set(5), Purse.note.remove()])
        tx.delete(tx.get(Purse, "p2"))
        tx.save(Purse("p3", balance=3))
        return tx.suspend()


def suspended_row() -> dict[str, Any]:
    [row] = [row for row in rows_of(Transactions) if row["id"]["S"].startswith("suspended#")]
    return row


def suspended() -> list[Part]:
    suspend()
    row = suspended_row()
    return [part for name in ("content", "expires_s", "version", "version_write_id") for part in parts_of(row, name)]


def go_on() -> None:
    """Resume the suspended transaction."""
    with transaction(Transactions, wait=1) as tx:
        tx.resume(suspended_row()["id"]["S"].partition("#")[2], [Purse])


def guards_of_queries() -> list[Part]:
    """Which items were created under a hash key."""
    with transaction() as tx:
        tx.save(Entry("b", 1), add_version_condition=False)
    [guard] = [row for row in rows_of(Transactions) if row["id"]["S"].startswith("guard#")]
    [named] = [name for name in guard if name.startswith("touched#")]
    return list(parts_of(guard, named))


def tx_query_entries() -> None:
    with transaction(read_only=True, wait=1) as tx:
        tx.query(Entry, "b")


def guards_of_intervals() -> list[Part]:
    Slot.intervals.insert_disjoint([Slot("d", 0, end=5)])
    [guard] = [row for row in rows_of(SlotLocks) if "touched" in row]
    return list(parts_of(guard, "touched"))


def insert() -> None:
    Slot.intervals.insert_disjoint([Slot("d", 10, end=15)])


KINDS: Final[dict[str, Kind]] = {
    "lock": Kind(Purse, locks, [*RESOLVING, *LOOKING, break_lock, recover_one, sweep_all]),
    **{
        f"{state} record": Kind(Transactions, lambda state=state: records(state), [*RESOLVING, recover_one, sweep_all])  # type: ignore[misc]
        for state in ("pending", "committed", "aborted")
    },
    **{
        f"items of a {state} transaction": Kind(
            Transactions,
            lambda state=state: named_items(state),  # type: ignore[misc]
            [recover_one, sweep_all],
        )
        for state in ("committed", "aborted")
    },
    "changes": Kind(Transactions, changes, [*RESOLVING, recover_one, sweep_all]),
    "key": Kind(Transactions, keys, [again, doubtful, lambda: Transactions.outcome(idempotency_key="k"), sweep_all]),
    "suspended": Kind(Transactions, suspended, [go_on, sweep_all]),
    "guard of queries": Kind(Transactions, guards_of_queries, [tx_query_entries]),
    "guard of intervals": Kind(SlotLocks, guards_of_intervals, [insert]),
}

#: Of the operations on a lock, those that have to believe the whole document.
TRUSTING: Final = {
    locked,
    edit,
    tx_read_committed,
    tx_get,
    tx_snapshot,
    tx_query,
    tx_for_update,
    break_lock,
    recover_one,
}

TABLES: Final[list[Any]] = [Purse, Transactions, Entry, Slot, SlotLocks]


def key_of(model: Any, row: dict[str, Any]) -> dict[str, Any]:
    attributes = model.get_attributes().values()
    return {each.attr_name: row[each.attr_name] for each in attributes if each.is_hash_key or each.is_range_key}


def all_rows() -> dict[str, dict[str, Any]]:
    """What is stored. Of a lock without its next ticket: a request to enter draws one, and is taken back."""
    found = {}
    for model in TABLES:
        for row in rows_of(model):
            lock = row.get("lock", {}).get("M")
            rest = row if lock is None else {**row, "lock": {k: v for k, v in lock.items() if k != "next"}}
            found[f"{model.__name__} {key_of(model, row)}"] = rest
    return found


def empty() -> None:
    for model in TABLES:
        for row in list(rows_of(model)):
            kwargs = {"TableName": name_of(model), "Key": key_of(model, row)}
            model._get_connection().connection.dispatch("DeleteItem", kwargs)


def without_lock(image: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (image or {}).items() if name != "lock"}


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_any_garbage_in_any_attribute(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is refused, or done, in few requests and to no other table; what is refused has changed nothing."""
    kind, chosen, refusals = KINDS[name], random.Random(0), 0
    for i in range(CASES):
        empty()
        operation = kind.operations[i % len(kind.operations)]
        row = with_garbage(chosen.choice(kind.prepare()), chosen.choice(GARBAGE))
        put(kind.table, row)
        before, values, began = all_rows(), without_lock(stored(Purse, "p0")), clock.elapsed
        case = (getattr(operation, "__name__", ""), row)
        failure: Exception | None = None
        with dying_after(monkeypatch, None) as process:
            try:
                operation()
            except (LockingError, PynamoDBException, AttributeDeserializationError) as error:
                failure = error
        told = str(failure) + str(getattr(failure, "results", ""))
        others = tables_in(process.sent) - {name_of(model) for model in TABLES}
        named_tables = {"", "x", "1E400"} if name.startswith("items of") else set()
        assert others <= named_tables, case
        assert clock.elapsed - began <= 31, case
        if isinstance(failure, CorruptRow):
            refusals += 1
            assert len(process.sent) <= MOST_REQUESTS, case
            assert failure.field, case
            assert failure.field in told, case
            after = all_rows()
            assert {key: after.get(key) for key in before} == before, case
        if failure is not None and "Purse" in str(before.keys()):
            committed = {**values, "balance": {"N": "6"}} if name == "committed record" else values
            assert without_lock(stored(Purse, "p0")) in (values, committed), (case, failure)
        if name == "lock":
            check_lock(operation, row["lock"], failure, told)
    assert refusals


def check_lock(operation: Callable[[], object], lock: dict[str, Any], failure: Exception | None, told: str) -> None:
    """A broken lock is not believed, and who could hold it is not passed by; a look shows it."""
    if not is_broken(lock):
        return
    case = (operation.__name__, lock, failure)
    if operation in LOOKING or operation is sweep_all:
        assert operation not in LOOKING or failure is None, case
    elif operation in TRUSTING:
        assert isinstance(failure, (CorruptRow, UnknownFormat)), case
    elif (lock["M"].get("queue", {"M": {}}) != {"M": {}} or "tx" in lock["M"]) and "check" not in operation.__name__:
        assert "is broken" in told or "is stored in format" in told or isinstance(failure, Conflict), case


def is_broken(lock: dict[str, Any]) -> bool:
    return bool(Purse.from_raw_data({"purse_id": {"S": "p0"}, "lock": lock}).lock.unreadable)


def tables_in(sent: list[tuple[str, dict[str, Any]]]) -> set[str]:
    """The tables that requests name."""
    named = set[str]()
    for _, kwargs in sent:
        named |= {kwargs["TableName"]} if "TableName" in kwargs else set(kwargs.get("RequestItems", ()))
        for action in kwargs.get("TransactItems", ()):
            named |= {inner["TableName"] for inner in action.values()}
    return named


# What the error says, and what a person does


def test_the_error(clock: VirtualClock) -> None:
    """It names the table, the key, the part, what is there, and what to do; it survives a pickle."""
    place(document(e=entry()) | {"M": {**document()["M"], "queue": {"S": "x"}}})
    with pytest.raises(CorruptRow, match="Set that attribute of the item to an empty map by hand") as caught:
        locked()
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.table, error.key) == (name_of(Purse), {"purse_id": {"S": "p0"}})
    assert (error.field, error.found, str(error)) == ("queue", "{'S': 'x'}", str(caught.value))
    assert Purse.get("p0").lock.unreadable == "queue is {'S': 'x'}"


def test_a_lock_that_is_emptied_by_hand(clock: VirtualClock) -> None:
    """Its next ticket is above those that it had. Who held it cannot write any more, and is told that it is lost."""
    Purse("p0", balance=1).save()
    with pytest.raises(LockLost), held_elsewhere(Purse.locked("p0", heartbeat=False)) as holder:
        image = existing(Purse, "p0")
        image["lock"]["M"]["queue"] = {"S": "x"}
        put(Purse, image)
        with pytest.raises(CorruptRow):
            Purse.break_lock("p0", ticket=holder.ticket or 0)
        put(Purse, image | {"lock": {"M": {}}})
        clock.sleep(1)
        with Purse.locked("p0", wait=0) as lock:
            assert (lock.ticket or 0) > (holder.ticket or 0)
            with pytest.raises(LockLost):
                holder.renew()


@pytest.mark.parametrize("name", ["beat", "lease_ms", "until_ms"])
@pytest.mark.parametrize(("state", "value"), [("pending", 1), ("committed", 6), ("aborted", 1)])
def test_a_number_of_a_record_that_is_removed_by_hand(clock: VirtualClock, name: str, state: str, value: int) -> None:
    """The transaction can be completed then: one that is pending is aborted as soon as its lease is over."""
    put(Transactions, participants("T", participant()))
    put(Transactions, header("T", state, **{name: {"N": "1.5"}}))
    place({"M": {"tx": mark("T", name_of(Transactions))}})
    with pytest.raises(CorruptRow, match=f"'T' of '{name_of(Transactions)}' is broken: {name} is "):
        Transactions.recover("T")
    assert name in Transactions.sweep().failed["T"]
    put(Transactions, header("T", state, **{name: None}))
    assert Transactions.recover("T") == ("finished" if state == "committed" else "aborted")
    assert Purse.get("p0").balance == value


@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_format_that_no_release_stores(clock: VirtualClock, number: str) -> None:
    """It is a mistake, and no newer format."""
    lock = document()
    lock["M"]["f"] = {"N": number}
    place(lock)
    with pytest.raises(CorruptRow, match="f is"):
        locked()


# Tickets


@pytest.mark.parametrize("entries", [{"e": entry(12)}, {"e": entry(2), "f": entry(2)}], ids=["passed by", "twice"])
def test_a_lock_that_would_be_held_twice(clock: VirtualClock, entries: dict[str, Any]) -> None:
    """By a newcomer with a ticket below that of the holder, or by two with one ticket."""
    image = place(document(**entries))
    for operation in (locked, update, save, native):
        with pytest.raises(LockingError, match="is broken: "):
            operation()
    assert without_lock(stored(Purse, "p0")) == without_lock(image)


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


# Forged times


DAY: Final = 86_400


@pytest.mark.parametrize("longest", [DAY, 7200])
def test_a_waiter_outlives_a_lease_without_an_end(clock: VirtualClock, longest: float) -> None:
    """It watches the entry for the longest lease that the model allows, and 5 % more."""
    settings = LockSettings(lease=7200, poll_interval=600, min_poll_interval=600, max_poll_interval=600)
    place(document(e=entry(l={"N": str(10**30)}, e={"N": str(10**31)})))
    with Purse.locked("p0", wait=3 * DAY, settings=replace(settings, max_lease=longest)):
        assert SLOW_CLOCK * longest <= clock.elapsed <= SLOW_CLOCK * longest + 700


def test_a_sweep_meets_a_lease_without_an_end(clock: VirtualClock) -> None:
    """It aborts what counts as over, and does not watch the other for a day."""
    for tx_id, since_s in (("T", DAY + 11), ("U", DAY - 1)):
        until_ms = clock.time_ms() - since_s * 1000 + 10**30
        put(Transactions, header(tx_id, "pending", lease_ms={"N": str(10**30)}, until_ms={"N": str(until_ms)}))
        put(Transactions, participants(tx_id, participant()))
    place({"M": {"tx": mark("T", name_of(Transactions))}})
    report = Transactions.sweep()
    assert (report.aborted, list(report.failed)) == (1, ["U"])
    assert clock.elapsed < 60
    assert "tx" not in existing(Purse, "p0")["lock"]["M"]


@pytest.mark.parametrize("facts", [{"e": 10**37}, {"r": 10**37}, {"g": 10**37}, {"g": -(10**37)}], ids=str)
def test_times_that_no_calendar_has(clock: VirtualClock, facts: dict[str, int]) -> None:
    """They are shown as well as possible, and change nothing: who waits sees that the entry is not renewed."""
    numbers: dict[str, Any] = {name: {"N": str(value)} for name, value in facts.items()}
    place(document(e=entry(l={"N": "5000"}, **numbers)))
    (holder,) = Purse.lock_state("p0").holders
    assert min(holder.queued_for, holder.held_for) >= 0
    with pytest.raises(LockTimeout, match=r"held by o \(ticket 1\) for \d+ s"):
        Purse.locked("p0", wait=1).acquire()
    with Purse.locked("p0", wait=30):
        assert 4 < clock.elapsed < 12


@pytest.mark.parametrize("beat", [None, {"S": "5"}, {"NULL": True}], ids=str)
def test_a_beat_that_is_no_number(concurrent_engine: Engine, beat: dict[str, Any] | None) -> None:
    """It cannot be renewed, so the transaction is aborted when its lease is over: by each engine's conditions."""
    concurrent_engine.bind(Purse, Transactions)
    put(Transactions, header("T", "pending", beat=beat))
    put(Transactions, participants("T"))
    assert Transactions.sweep().aborted == 1
    assert Transactions.outcome("T") == "aborted"


# Rows that name other rows


@pytest.mark.parametrize("op", ["save", "delete", "keep"])
def test_an_intent_that_names_another_table(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """No request goes there, the item stays, and the error says which item and which table."""
    put(Foreign, header("T", "pending"))
    for operation in RESOLVING:
        image = place({"M": {"tx": mark("T", name_of(Foreign), op={"S": op}, set={"M": {"balance": {"N": "6"}}})}})
        with dying_after(monkeypatch, MOST_REQUESTS) as process, pytest.raises(LockingError) as caught:
            operation()
        told = str(caught.value) if operation is not batch else str(caught.value.results)  # type: ignore[attr-defined]
        assert name_of(Foreign) in told
        assert f"{name_of(Purse)}/p0" in told
        assert name_of(Foreign) not in tables_in(process.sent)
        assert without_lock(stored(Purse, "p0")) == without_lock(image)
    assert rows_of(Foreign) == [header("T", "pending")]


@pytest.mark.parametrize(
    "table", ["arn:aws:dynamodb:eu-west-1:123456789012:table/victim", "", "y" * 300, "a\nb"], ids=range(4)
)
def test_an_intent_that_names_a_table_of_any_kind(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Also one of another account, or none; or the item's model declares no table."""
    place({"M": {"tx": mark("T", table)}})
    with pytest.raises(LockingError, match="its model declares") as told:
        update()
    assert len(str(told.value)) < 1200
    assert "\n" not in str(told.value)
    monkeypatch.delattr(Purse.Meta, "transaction_table")
    with pytest.raises(LockingError, match="no table of transactions"):
        update()


@pytest.mark.parametrize("spill", ["V", "V!00000", "V#0000", "T!x", "T", "T!1", "T!" + "1" * 5000], ids=range(7))
def test_an_intent_that_names_a_row_of_another_transaction(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, spill: str
) -> None:
    """What the row has does not get into the item; nor is it deleted for those who name it among their items."""
    put(Transactions, {"id": {"S": "V!00000"}, "content": {"M": {"set": {"M": {"balance": {"N": "6"}}}}}})
    put(Transactions, header("V", "pending"))
    put(Transactions, header("T", "committed"))
    put(Transactions, participants("T", participant(spill={"S": spill})))
    before = {row["id"]["S"]: row for row in rows_of(Transactions)}
    for operation in (*RESOLVING, recover_one):
        place({"M": {"tx": mark("T", name_of(Transactions), op={"S": "save"}, spill={"S": spill})}})
        with dying_after(monkeypatch, MOST_REQUESTS) as process, pytest.raises(LockingError):
            operation()
        asked = {str(kwargs["Key"]) for _, kwargs in process.sent if kwargs.get("TableName") == name_of(Transactions)}
        assert not any("V" in key for key in asked)
        assert existing(Purse, "p0")["balance"] == {"N": "1"}
    after = {row["id"]["S"]: row for row in rows_of(Transactions)}
    assert {name: after.get(name) for name in before} == before
    assert "row of its own" in Transactions.sweep().failed["T"]


def test_items_in_another_account(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not asked for."""
    table = "arn:aws:dynamodb:eu-west-1:123456789012:table/victim"
    put(Transactions, header("T", "aborted"))
    put(Transactions, participants("T", participant(table=table)))
    with dying_after(monkeypatch, None) as process, pytest.raises(LockingError, match="123456789012"):
        Transactions.recover("T")
    assert table not in tables_in(process.sent)


@pytest.mark.parametrize("lock", ["lock", "note", "balance", "purse_id"])
def test_items_of_another_transaction(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, lock: str) -> None:
    """No more of them is read than that attribute, and nothing is written, whatever it is."""
    image = place({"M": {"tx": mark("V", name_of(Transactions))}})
    for state in ("aborted", "committed"):
        put(Transactions, header("T", state))
        put(Transactions, participants("T", participant(lock={"S": lock})))
        with dying_after(monkeypatch, None) as process:
            Transactions.recover("T")
        sent = [(operation, kwargs) for operation, kwargs in process.sent if kwargs["TableName"] == name_of(Purse)]
        assert [(operation, kwargs.get("ProjectionExpression")) for operation, kwargs in sent] == [("GetItem", "#l")]
    assert stored(Purse, "p0") == image


@pytest.mark.parametrize(
    ("op", "key"),
    [("update", "T"), ("delete", "T"), ("delete", "key#k"), ("update", "suspended#other"), ("purge", "p0")],
)
def test_a_suspended_transaction_that_names_rows_of_its_own_table(clock: VirtualClock, op: str, key: str) -> None:
    """It relies on such rows, as on guards, and writes none of them."""
    id_ = suspend()
    put(Transactions, header("T", "pending"))
    row = suspended_row()
    item = row["content"]["M"]["items"]["L"][0]["M"]
    if key != "p0":
        item |= {"table": {"S": name_of(Transactions)}, "key": {"M": {"id": {"S": key}}}}
    item |= {"op": {"S": op}, "set": {"M": {"state": {"S": "committed"}}}, "remove": {"L": []}}
    put(Transactions, row)
    before = sorted(rows_of(Transactions), key=repr)
    with pytest.raises(CorruptRow, match="Delete the row"), transaction(Transactions) as tx:
        tx.resume(id_, [Purse])
    assert sorted(rows_of(Transactions), key=repr) == before


@pytest.mark.parametrize("name", ["purse_id", "version", "version_write_id", "lock"])
def test_a_suspended_transaction_that_sets_what_is_ours(clock: VirtualClock, name: str) -> None:
    """Keys, versions, write ids and locks are no values of the item."""
    id_ = suspend()
    row, before = suspended_row(), rows_of(Purse)
    for each in row["content"]["M"]["items"]["L"]:
        if "set" in each["M"]:
            each["M"]["set"]["M"][name] = {"S": "x"} if "id" in name else {"N": "7"} if name != "lock" else {"M": {}}
    put(Transactions, row)
    with pytest.raises((LockingError, PynamoDBException)), transaction(Transactions) as tx:
        tx.resume(id_, [Purse])
    assert rows_of(Purse) == before


def test_a_guard_that_names_items_of_another_hash_key(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked for under its own."""
    guards_of_queries()
    [guard] = [row for row in rows_of(Transactions) if row["id"]["S"].startswith("guard#")]
    [named] = [name for name in guard if name.startswith("touched#")]
    guard[named]["L"][0]["M"]["book"] = {"S": "other"}
    put(Transactions, guard)
    with dying_after(monkeypatch, None) as process, transaction(read_only=True) as tx:
        assert [entry.number for entry in tx.query(Entry, "b")] == [1]
    asked = [kwargs for operation, kwargs in process.sent if operation == "TransactGetItems"]
    assert [action["Get"]["Key"]["book"] for action in asked[0]["TransactItems"]] == [{"S": "b"}]


# What is missing


def test_changes_that_are_gone(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried some times, with pauses, and not for longer than allowed; the error names all that it is about.

    Nor is the transaction finished by those who complete it: as that of a finished one its intent would be dropped.
    """
    changes()
    image = existing(Purse, "p0")
    for operation in RESOLVING:
        put(Purse, image)
        began = clock.elapsed
        with dying_after(monkeypatch, MOST_REQUESTS), pytest.raises(LockingError) as caught:
            operation()
        assert clock.elapsed - began <= 4
        told = str(caught.value) if operation is not batch else str(caught.value.results)  # type: ignore[attr-defined]
        for name in (f"{name_of(Purse)}/p0", "T!00000", "remove tx"):
            assert name in told
        assert without_lock(stored(Purse, "p0")) == without_lock(image)
    assert "T!00000" in Transactions.sweep().failed["T"]
    with pytest.raises(LockingError, match="T!00000"):
        Transactions.recover("T")
    assert Transactions.outcome("T") == "committed"


@pytest.mark.parametrize("wait", [0, 0.2, 60])
def test_the_deadline_of_what_cannot_be_finished(clock: VirtualClock, wait: float) -> None:
    """No operation passes its own, nor takes all of a long one."""
    changes()
    for begin in (lambda: Purse.locked("p0", wait=wait).acquire(), lambda: transaction(wait=wait)):
        began = clock.elapsed
        with pytest.raises(LockingError), begin() as tx:
            tx.get(Purse, "p0")
        assert clock.elapsed - began <= min(wait, 5) + 0.01


@pytest.mark.parametrize("changed", [{"rows": None}, {"rows": {"N": "0"}}, {"items": {"N": "2"}}], ids=str)
def test_a_committed_record_without_all_of_its_items(clock: VirtualClock, changed: dict[str, Any]) -> None:
    """It is not finished, or their intents would be dropped, and what is committed would be lost."""
    put(Transactions, header("T", "committed", **changed))
    put(Transactions, participants("T", participant("p9")))
    place({"M": {"tx": mark("T", name_of(Transactions))}})
    with pytest.raises(LockingError, match="not known whether all are finished"):
        Transactions.recover("T")
    assert "T" in Transactions.sweep().failed
    assert Transactions.outcome("T") == "committed"
    tx_get()
    assert Purse.get("p0").balance == 6


def test_a_record_that_promises_many_rows(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there is not looked for, row by row."""
    for state in ("pending", "committed", "aborted"):
        put(Transactions, header("T", state, rows={"N": "100000000"}))
        put(Transactions, participants("T"))
        with dying_after(monkeypatch, 10):
            Transactions.sweep()


# One bad row does not stop the operator

#: Rows of a transaction that a sweep cannot read or believe, and a word of the reason.
BAD: Final[dict[str, tuple[list[dict[str, Any]], str]]] = {
    "a": ([header("a", "pending", beat={"N": "1.5"})], "1.5"),
    "b": ([header("b", "committed", rows={"N": "0.5"})], "0.5"),
    "c": ([header("c", "pending", lease_ms={"N": "1000000000000"}, until_ms={"N": "9999999999999"})], "too long"),
    "d": ([header("d", "committed"), {"id": {"S": "d#0000"}, "content": {"S": "x"}}], "d#0000"),
    "e": ([header("e", "confused")], "confused"),
    "f": ([header("f", "committed", rows={"N": "100000000"}, items={"N": "5"})], "gone"),
    "g": ([header("g", "aborted"), participants("g", participant(table="nowhere"))], "nowhere"),
}


@pytest.mark.parametrize("segments", [1, 3])
def test_a_sweep_goes_on_past_bad_rows(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, segments: int) -> None:
    """Each is in the report with a reason; all others are completed; nothing waits for a lease of years."""
    for rows, _ in BAD.values():
        for row in rows:
            put(Transactions, row)
    put(Transactions, header("T", "committed"))
    put(Transactions, participants("T", participant()))
    place({"M": {"tx": mark("T", name_of(Transactions))}})
    with dying_after(monkeypatch, 5 * len(BAD)):
        report = Transactions.sweep(segments=segments)
    assert report.failed.keys() == BAD.keys()
    for tx_id, (_, why) in BAD.items():
        assert why in report.failed[tx_id]
    assert (report.examined, report.finished) == (len(BAD) + 1, 1)
    assert Purse.get("p0").balance == 6
    assert clock.elapsed < 60


def test_commands_show_broken_rows(
    memory: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad row of each kind does not hide the others: it is listed as well, and the exit code says so."""
    shell = prepared(memory, capsys, monkeypatch)
    memory.bind(Purse, Locks, Transactions)
    for name, part in (("bad", {"queue": {"S": "x"}}), ("worse", {"next": {"N": "5"}}), ("fine", {})):
        put(Locks, {"name": {"S": name}, "lock": {"M": {**document()["M"], **part}}})
    table = ("--table", name_of(Locks))
    with Locks.locked("job"):
        for command in (("list", "--all"), ("watch", "--once", "--all")):
            code, out, _ = shell.run("locks", *command, *table, "--json")
            shown = json.loads(out)
            assert (code, shown["unreadable"].keys()) == (1, {"bad", "worse"})
            assert {each["name"] for each in shown["locks"]} == {"job", "fine"}
    code, out, _ = shell.run("locks", "list", *table)
    assert (code, "broken" in out) == (1, True)
    for arguments in (("show", "bad"), ("show", "bad", "--json"), ("break", "bad", "--ticket", "1", "--yes")):
        assert shell.run("locks", *arguments, *table)[0] == 1
    code, out, _ = shell.run("tables", "check", *table, "--json")
    (finding,) = [each for each in json.loads(out)["tables"][0]["findings"] if each["check"] == "broken"]
    assert (code, finding["level"]) == (1, "problem")
    put(Transactions, header("T", "pending", beat={"N": "1.5"}))
    code, out, _ = shell.run("tx", "list", "--table", name_of(Transactions), "--json")
    assert (code, list(json.loads(out)["unreadable"])) == (1, ["T"])


def test_a_commit_whose_record_breaks(clock: VirtualClock) -> None:
    """It tells its process as little as silence does."""
    tx = Transaction(Transactions, workers=1)
    for i in range(6):
        tx.save(Purse(f"new{i}"))

    def break_it() -> None:
        [row] = [row for row in rows_of(Transactions) if "priority" in row]
        put(Transactions, {**row, "beat": {"N": "1.5"}})

    decision = on("TransactWriteItems", where=lambda body: "committed" in str(body), times=99)
    with decision.lose_response(break_it) as faults, pytest.raises(OutcomeUnknown) as caught:
        tx.commit()
    assert faults.hits
    assert caught.value.write_id == tx.id
