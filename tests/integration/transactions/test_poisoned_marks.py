"""Marks and rows of transactions that another writer has forged or broken: whom they lead where, and how it ends."""

from __future__ import annotations

import asyncio
import math
import os
import signal
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.exceptions import ConnectionClosedError

from pynamo_locking import LockSettings, events, transaction
from pynamo_locking._io import transaction_record
from pynamo_locking._io.transaction_record import record_table_of
from pynamo_locking._transactions import recovery
from pynamo_locking.exceptions import (
    ConfigurationError,
    Conflict,
    CorruptRow,
    ItemLocked,
    LockingError,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
)
from pynamo_locking.testing import VirtualClock
from tests.support.parties import held_elsewhere
from tests.support.poisoned import (
    LOOKING,
    MOST_REQUESTS,
    RESOLVING,
    Foreign,
    assert_bounded,
    batch,
    delete,
    edit,
    entry,
    header,
    locked,
    locked_at_once,
    mark,
    name_of,
    native,
    native_check,
    participant,
    participants,
    put,
    put_marked,
    put_transaction,
    recover_one,
    save,
    sweep_all,
    tables_in,
    tx_for_update,
    tx_get,
    tx_long,
    tx_native,
    tx_query,
    tx_read_committed,
    tx_snapshot,
    tx_snapshot_of_a_mark_that_came_later,
    update,
)
from tests.support.transaction_models import (
    Entry,
    Purse,
    Session,
    Transactions,
    dying_after,
    existing,
    make_long_from,
    purses,
    rows_of,
    stored,
)
from tests.support.wire import Answer, Forward, tapped

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.engines.engine import Engine


#: The same rule over many operations: `whole/test_broken_rows.py` has a part of it in `make test`.
pytestmark = pytest.mark.slow


@pytest.fixture
def clock(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Virtual time, a database, and long transactions of few items."""
    make_long_from(monkeypatch)
    memory.bind(Session, Foreign)
    with VirtualClock() as clock:
        yield clock


# A mark names another table


@pytest.mark.parametrize("op", ["save", "delete", "keep"])
@pytest.mark.parametrize("operation", [*RESOLVING, *LOOKING])
def test_a_mark_that_names_another_table(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None], op: str
) -> None:
    """No request goes there, the item stays, and the error says which item and which table."""
    put(Foreign, header("T", "pending"))
    put_marked(mark("T", name_of(Foreign), op={"S": op}, set={"M": {"balance": {"N": "6"}}}))
    before, began = (rows_of(Foreign), stored(Purse, "p0")), clock.elapsed

    with dying_after(monkeypatch, None) as process:
        if operation in RESOLVING:
            with pytest.raises(LockingError) as caught:
                operation()
            told = str(caught.value) if operation is not batch else str(caught.value.results)  # type: ignore[attr-defined]
            assert name_of(Foreign) in told
            assert f"{name_of(Purse)}/p0" in told
        else:
            operation()

    assert_bounded(process, clock, began)
    assert (rows_of(Foreign), _without_lock(stored(Purse, "p0"))) == (before[0], _without_lock(before[1]))


def _without_lock(image: dict[str, Any] | None) -> dict[str, Any]:
    assert image is not None, "the item with the poisoned mark is gone"
    assert "tx" in image["lock"]["M"]
    return {name: value for name, value in image.items() if name != "lock"}


@pytest.mark.parametrize(
    "table", ["arn:aws:dynamodb:eu-west-1:123456789012:table/victim", "x", "", "y" * 300, "a\nb"], ids=range(5)
)
def test_a_mark_that_names_a_table_of_any_kind(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Also one of another account, or none."""
    put_marked(mark("T", table))
    with dying_after(monkeypatch, None) as process, pytest.raises(LockingError, match="its model declares") as told:
        update()
    assert_bounded(process, clock, clock.elapsed)
    assert len(str(told.value)) < 1200
    assert "\n" not in str(told.value)


def test_an_item_whose_model_declares_no_table(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older program does not know the table: it says so, and the table's own recovery completes the item."""
    put_transaction("T", "committed")
    with monkeypatch.context() as patch:
        patch.delattr(Purse.Meta, "transaction_table")
        with dying_after(patch, None) as process, pytest.raises(LockingError, match="no table of transactions"):
            update()
        assert {table for _, kwargs in process.sent for table in tables_in(kwargs)} == {name_of(Purse)}
        assert Transactions.recover("T") == "finished"
    assert Purse.get("p0").balance == 6


def test_only_items_of_models_that_declare_the_table_are_marked(
    clock: VirtualClock,
) -> None:
    """A transaction that is given another table says so, before anything is written."""
    items = purses(6)
    with pytest.raises(ConfigurationError, match=r"Meta\.transaction_table"), transaction(Foreign) as tx:
        for item in items:
            tx.touch(item)
    assert rows_of(Foreign) == []
    assert {item.version for item in Purse.scan(consistent_read=True)} == {1}


@pytest.mark.parametrize("operation", ["UpdateItem", "TransactWriteItems"])
def test_a_write_of_which_nothing_is_known(cheap: Engine, operation: str) -> None:
    """If an earlier copy of it may still be applied, it does not say that nothing was written."""
    cheap.bind(Foreign)
    purses(1)
    foreign = mark("T", name_of(Foreign))

    def tap(endpoint: object, request: Any, tapped: str, forward: Forward) -> Answer:
        if tapped != operation or stored(Purse, "p0") == marked:
            return forward()
        put(Purse, marked)
        return None, ConnectionClosedError(endpoint_url=request.url, request=request)

    image = existing(Purse, "p0")
    marked = {**image, "lock": {"M": {"tx": foreign}}}
    with tapped(tap), pytest.raises(OutcomeUnknown):
        update() if operation == "UpdateItem" else native()


def test_on_an_engine(concurrent_engine: Engine, few: None) -> None:
    """The same where conditions are evaluated by others: the header of the other table stays pending."""
    concurrent_engine.bind(Foreign)
    put(Foreign, header("T", "pending"))
    put_marked(mark("T", name_of(Foreign)))
    before = rows_of(Foreign)
    for operation in (update, locked, tx_get, tx_native, tx_long, native):
        with pytest.raises(LockingError, match="foreign"):
            operation()
    assert rows_of(Foreign) == before


# Rows that name rows


def put_victim() -> None:
    """A committed transaction of another writer, whose item has to become 6."""
    put_transaction("V", "committed")


@pytest.mark.parametrize(
    "spill",
    ["V", "V#0000", "key#once", "V!00000", "T", "T!", "T!1", "T!" + "1" * 5000, "T!00001x", "T!00000!00000"],
    ids=range(10),
)
@pytest.mark.parametrize("state", ["pending", "committed", "aborted"])
def test_participants_that_name_a_row_of_another_transaction(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, state: str, spill: str
) -> None:
    """Neither recovery nor sweep deletes it, and a committed balance of 6 is 6."""
    put_victim()
    put(Transactions, {"id": {"S": "key#once"}, "content": {"M": {"id": {"S": "x"}}}})
    put(Transactions, header("T", state))
    put(Transactions, participants("T", participant("p9", spill={"S": spill})))
    before = {row["id"]["S"] for row in rows_of(Transactions)}
    with dying_after(monkeypatch, None) as process:
        with pytest.raises(LockingError, match="row of its own"):
            Transactions.recover("T")
        report = Transactions.sweep()

    assert "row of its own" in report.failed["T"]
    assert "DeleteItem" not in [operation for operation, _ in process.sent]
    assert {row["id"]["S"] for row in rows_of(Transactions)} == before
    assert Purse.get("p0").balance == 6


@pytest.mark.parametrize("spill", ["V", "V!00000", "V#0000", "T!x"])
@pytest.mark.parametrize("operation", RESOLVING)
def test_a_mark_that_names_a_row_of_another_transaction(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None], spill: str
) -> None:
    """What the row has does not get into the item."""
    put(Transactions, {"id": {"S": "V!00000"}, "content": {"M": {"set": {"M": {"balance": {"N": "6"}}}}}})
    put(Transactions, header("V", "pending"))
    put(Transactions, header("T", "committed"))
    put_marked(mark("T", name_of(Transactions), op={"S": "save"}, spill={"S": spill}))
    before, began = rows_of(Transactions), clock.elapsed
    with dying_after(monkeypatch, None) as process, pytest.raises(LockingError):
        operation()
    asked = {str(kwargs["Key"]) for _, kwargs in process.sent if kwargs.get("TableName") == name_of(Transactions)}
    assert not any("V" in key for key in asked)
    assert_bounded(process, clock, began)
    image = existing(Purse, "p0")
    assert image["balance"] == {"N": "1"}
    assert [row for row in rows_of(Transactions) if row["id"]["S"] in "V!00000"] == [
        row for row in before if row["id"]["S"] in "V!00000"
    ]


def test_participants_in_another_account(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are not asked for."""
    table = "arn:aws:dynamodb:eu-west-1:123456789012:table/victim"
    put(Transactions, header("T", "aborted"))
    put(Transactions, participants("T", participant(table=table)))
    with dying_after(monkeypatch, None) as process, pytest.raises(LockingError, match="123456789012"):
        Transactions.recover("T")
    assert table not in {table for _, kwargs in process.sent for table in tables_in(kwargs)}


@pytest.mark.parametrize("lock", ["lock", "note", "balance", "purse_id"])
def test_participants_that_name_an_item_of_another_transaction(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    """No more of it is read than that attribute, and nothing is written, whatever it is."""
    put_marked(mark("V", name_of(Transactions)))
    before = stored(Purse, "p0")
    for state in ("aborted", "committed"):
        put(Transactions, header("T", state))
        put(Transactions, participants("T", participant(lock={"S": lock})))
        with dying_after(monkeypatch, None) as process:
            Transactions.recover("T")
        sent = [(operation, kwargs) for operation, kwargs in process.sent if kwargs["TableName"] == name_of(Purse)]
        assert [(operation, kwargs.get("ProjectionExpression")) for operation, kwargs in sent] == [("GetItem", "#l")]
    assert stored(Purse, "p0") == before


def test_a_mark_of_the_same_id_in_another_table(clock: VirtualClock) -> None:
    """Is not that transaction's."""
    put_marked(mark("T", name_of(Foreign)))
    put(Transactions, header("T", "committed"))
    put(Transactions, participants("T", participant()))
    before = stored(Purse, "p0")
    Transactions.recover("T")
    assert stored(Purse, "p0") == before


@pytest.mark.parametrize(
    "changes", [{"rows": None}, {"rows": {"N": "0"}}, {"items": {"N": "2"}}, {"rows": {"N": "2"}, "items": {"N": "2"}}]
)
def test_a_committed_header_without_all_of_its_items(clock: VirtualClock, changes: dict[str, Any]) -> None:
    """It is not finished, or their marks would count as dropped, and what is committed would be lost."""
    put(Transactions, header("T", "committed", **changes))
    put(Transactions, participants("T", participant("p9")))
    put_marked(mark("T", name_of(Transactions)))
    with pytest.raises(LockingError, match="not known whether all are finished"):
        Transactions.recover("T")
    assert "T" in Transactions.sweep().failed
    assert Transactions.outcome("T") == "committed"
    tx_get()
    assert Purse.get("p0").balance == 6


def test_a_header_that_promises_many_rows(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there is not looked for, row by row."""
    for state in ("pending", "committed", "aborted"):
        put(Transactions, header("T", state, rows={"N": "100000000"}))
        put(Transactions, participants("T"))
        with dying_after(monkeypatch, None) as process:
            Transactions.sweep()
        assert len(process.sent) <= 10


def test_a_guard_that_names_items_of_another_hash_key(memory: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked for under its own."""
    memory.bind(Entry)
    with transaction() as tx:
        tx.save(Entry("b", 1))
    [guard] = [row for row in rows_of(Transactions) if row["id"]["S"].startswith("guard#")]
    [named] = [name for name in guard if name.startswith("touched#")]
    guard[named]["L"][0]["M"]["book"] = {"S": "other"}
    put(Transactions, guard)
    with dying_after(monkeypatch, None) as process, transaction(read_only=True) as tx:
        assert [entry.number for entry in tx.query(Entry, "b")] == [1]
    asked = [kwargs for operation, kwargs in process.sent if operation == "TransactGetItems"]
    assert [action["Get"]["Key"]["book"] for action in asked[0]["TransactItems"]] == [{"S": "b"}]


# What could go on for ever

#: Those of `RESOLVING` that only read what is committed at the moment.
SHOWING: Final = [tx_read_committed, tx_snapshot, tx_snapshot_of_a_mark_that_came_later, tx_query]


@pytest.mark.parametrize("beat", [None, {"S": "5"}, {"S": "x"}, {"NULL": True}, {"L": []}, {"M": {}}], ids=str)
@pytest.mark.parametrize("operation", [*RESOLVING, sweep_all, recover_one])
def test_a_pending_header_whose_beat_is_no_number(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None], beat: dict[str, Any] | None
) -> None:
    """It cannot be renewed, so it is aborted when its lease is over, and all get through."""
    put_transaction("T", "pending", beat=beat)
    began = clock.elapsed
    with dying_after(monkeypatch, MOST_REQUESTS) as process:
        if operation in (save, delete, edit, native_check):
            with suppress(Conflict):  # of an instance that was read with the mark
                operation()
        else:
            operation()
    assert_bounded(process, clock, began)
    if operation not in SHOWING:
        assert Transactions.outcome("T") == "aborted"


def test_a_header_without_a_beat_on_an_engine(real_engine: Engine) -> None:
    """The condition of the abort is understood by other engines."""
    for beat, state in ((None, "aborted"), ({"S": "0"}, "aborted"), ({"N": "0"}, "aborted"), ({"N": "7"}, "pending")):
        put(Transactions, header("T", "pending", beat=beat))
        record_table = record_table_of(Transactions)
        assert transaction_record.abort(record_table, "T", "expired", heartbeats=0).state.value == state
    put(Transactions, header("T", "pending", beat=None))
    put(Transactions, participants("T"))
    assert Transactions.sweep().aborted == 1


def put_spilled() -> None:
    """A purse with the mark of a committed transaction, whose row of changes is gone."""
    put(Transactions, header("T", "committed"))
    put_marked(mark("T", name_of(Transactions), op={"S": "save"}, spill={"S": "T!00000"}))


@pytest.mark.parametrize("operation", RESOLVING)
def test_a_committed_transaction_whose_changes_are_gone(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None]
) -> None:
    """It is tried some times, with pauses, and not for longer than allowed; the error names all that it is about."""
    put_spilled()
    before, began, recovered = stored(Purse, "p0"), clock.elapsed, list[events.TransactionRecovered]()
    with (
        dying_after(monkeypatch, MOST_REQUESTS) as process,
        events.subscribe(recovered.append, events.TransactionRecovered),
        pytest.raises(LockingError) as caught,
    ):
        operation()
    assert_bounded(process, clock, began)
    assert recovered == []
    told = str(caught.value) if operation is not batch else str(caught.value.results)  # type: ignore[attr-defined]
    for name in (f"{name_of(Purse)}/p0", "T!00000", "remove tx"):
        assert name in told
    assert _values(stored(Purse, "p0")) == _values(before)


def test_a_committed_transaction_whose_changes_are_gone_is_not_finished(clock: VirtualClock) -> None:
    """Nor by those who complete it: as that of a finished one its mark would be dropped, and the values lost."""
    put_spilled()
    put(Transactions, participants("T", participant(spill={"S": "T!00000"})))
    before = stored(Purse, "p0")
    assert "T!00000" in Transactions.sweep().failed["T"]
    with pytest.raises(LockingError, match="T!00000"):
        Transactions.recover("T")
    assert (Transactions.outcome("T"), stored(Purse, "p0")) == ("committed", before)


def _values(image: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (image or {}).items() if name != "lock"}


@pytest.mark.parametrize("wait", [0, 0.2, 60])
def test_the_deadline_of_what_cannot_be_finished(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    """No operation passes its own, nor takes all of a long one."""
    put_spilled()
    for begin in (lambda: Purse.locked("p0", wait=wait).acquire(), lambda: transaction(wait=wait)):
        began = clock.elapsed
        with dying_after(monkeypatch, MOST_REQUESTS), pytest.raises(LockingError):
            made = begin()
            with made as tx:
                tx.get(Purse, "p0")
        assert clock.elapsed - began <= min(wait, 5) + 0.01


def test_changes_that_are_gone_since_all_is_finished(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The item was finished by another process between the two looks: nothing is wrong, and there is no pause."""
    put_spilled()
    image = existing(Purse, "p0")
    original = transaction_record.get_row

    def get_row(*arguments: Any) -> Any:
        put(Purse, {**_values(image), "balance": {"N": "6"}})
        return original(*arguments)

    monkeypatch.setattr(transaction_record, "get_row", get_row)
    began = clock.elapsed
    with transaction() as tx:
        assert tx.get(Purse, "p0").balance == 6
    assert clock.elapsed == began


def put_lock(queue: dict[str, Any], next_ticket: int) -> None:
    """Give the purse p0 a lock document."""
    content = {
        "since": {"N": "1"},
        "next": {"L": [{"N": str(next_ticket)}]},
        "evicted": {"M": {}},
        "queue": {"M": queue},
    }
    put(Purse, {**existing(Purse, "p0"), "lock": {"M": content}})


def _entries(count: int) -> dict[str, Any]:
    return {f"e{i}": entry(i + 1) for i in range(count)}


def _without_tickets(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: {"L": stored["L"][1:]} for name, stored in entries.items()}


@pytest.mark.parametrize("next_ticket", [0, -5, -(10**37)])
@pytest.mark.parametrize("entries", [0, 150])
@pytest.mark.parametrize("has_tickets", [True, False])
@pytest.mark.parametrize("operation", [locked, locked_at_once, edit, tx_for_update])
def test_a_lock_that_gives_out_no_tickets(
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    operation: Callable[[], None],
    next_ticket: int,
    entries: int,
    *,
    has_tickets: bool,
) -> None:
    """It is not taken, and the error says what to do. Nothing of the caller is left."""
    queue = _entries(entries) if has_tickets else _without_tickets(_entries(entries))
    purses(1)
    put_lock(queue, next_ticket)
    began = clock.elapsed
    with dying_after(monkeypatch, MOST_REQUESTS) as process, pytest.raises(LockingError) as caught:
        operation()
    assert_bounded(process, clock, began)
    assert "broken" in str(caught.value)
    assert "Remove that attribute" in str(caught.value)
    after = existing(Purse, "p0")
    assert after["lock"]["M"]["queue"]["M"].keys() == queue.keys()


def test_a_queue_of_entries_without_tickets(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is full, and none of them can be waited for."""
    purses(1)
    with Purse.locked("p0"):
        pass
    image = existing(Purse, "p0")
    image["lock"]["M"]["queue"]["M"] = _without_tickets(_entries(150))
    put(Purse, image)
    for operation in (locked, locked_at_once):
        with dying_after(monkeypatch, MOST_REQUESTS), pytest.raises(CorruptRow, match=r"queue\.e0 is {'L': "):
            operation()


# One bad row does not stop the operator

#: Rows of a transaction that a sweep cannot read or believe, and a word of the reason.
BAD: Final[dict[str, tuple[list[dict[str, Any]], str]]] = {
    "a": ([header("a", "pending", beat={"N": "1.5"})], "1.5"),
    "b": ([header("b", "committed", rows={"N": "0.5"})], "0.5"),
    "c": ([header("c", "pending", lease_ms={"N": "1000000000000"}, until_ms={"N": "9999999999999"})], "too long"),
    "d": ([header("d", "committed"), {"id": {"S": "d#0000"}, "content": {"S": "x"}}], "d#0000"),
    "e": ([header("e", "aborted"), {"id": {"S": "e#0000"}}], "e#0000"),
    "f": ([header("f", "aborted"), participants("f", {"table": {"S": "x"}})], "f#0000"),
    "g": ([header("g", "aborted"), participants("g", participant(table="purses") | {"key": {"M": {}}})], "g#0000"),
    "h": ([header("h", "committed", rows={"N": "100000000"}, items={"N": "5"})], "gone"),
    "i": ([header("i", "aborted"), participants("i", participant(table="nowhere"))], "nowhere"),
}


@pytest.mark.parametrize("segments", [1, 3])
def test_a_sweep_goes_on_past_bad_rows(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, segments: int) -> None:
    """Each is in the report with a reason; all others are completed; nothing waits for a lease of years."""
    for rows, _ in BAD.values():
        for row in rows:
            put(Transactions, row)
    put_transaction("T", "committed")
    with dying_after(monkeypatch, None) as process:
        report = Transactions.sweep(segments=segments)
    assert report.failed.keys() == BAD.keys()
    for tx_id, (_, why) in BAD.items():
        assert why in report.failed[tx_id]
    assert (report.examined, report.finished) == (len(BAD) + 1, 1)
    assert Purse.get("p0").balance == 6
    assert clock.elapsed < 60
    assert len(process.sent) <= 5 * len(BAD)


@pytest.mark.parametrize("tx_id", sorted(BAD.keys() - {"c"}))
def test_bad_rows_that_are_recovered(clock: VirtualClock, tx_id: str) -> None:
    """The error names the row."""
    rows, why = BAD[tx_id]
    for row in rows:
        put(Transactions, row)
    with pytest.raises(LockingError, match=why.replace("+", r"\+")):
        Transactions.recover(tx_id)


def test_an_item_whose_lock_is_broken(clock: VirtualClock) -> None:
    """Recovery says which it is."""
    put(Transactions, header("T", "aborted"))
    put(Transactions, participants("T", participant()))
    put_marked(mark("T", name_of(Transactions)), next={"N": "5"})
    with pytest.raises(LockingError, match=f"{name_of(Purse)}/p0 is broken"):
        Transactions.recover("T")
    assert f"{name_of(Purse)}/p0 is broken" in Transactions.sweep().failed["T"]


@pytest.mark.processes
def test_an_interrupt_ends_a_sweep() -> None:
    """Although it watches a transaction that is alive, and has others before it."""
    for i in range(5):
        put(Transactions, header(f"T{i}", "pending", until_ms={"N": "9999999999999"}, lease_ms={"N": "30000"}))
    looks = list[str]()

    def tap(endpoint: object, request: Any, operation: str, forward: Forward) -> Answer:
        if operation == "GetItem":
            looks.append(operation)
            if len(looks) == 1:
                os.kill(os.getpid(), signal.SIGINT)
        return forward()

    with tapped(tap), pytest.raises(KeyboardInterrupt):
        Transactions.sweep()
    assert len(looks) == 1


@pytest.mark.parametrize(
    "broken",
    [{"state": {"S": "confused"}}, {"state": {"N": "5"}}, {"beat": {"N": "1.5"}}, {"rows": {"N": "1E-5"}}],
    ids=str,
)
@pytest.mark.parametrize("operation", RESOLVING)
def test_a_header_that_cannot_be_read(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], None], broken: dict[str, Any]
) -> None:
    """The error names the transaction, whatever meets its mark."""
    put(Transactions, {**header("T", "pending"), **broken})
    put_marked(mark("T", name_of(Transactions)))
    before, began = rows_of(Transactions), clock.elapsed
    with dying_after(monkeypatch, MOST_REQUESTS) as process, pytest.raises(LockingError) as caught:
        operation()
    assert_bounded(process, clock, began)
    assert "'T' is broken" in (str(caught.value) if operation is not batch else str(caught.value.results))  # type: ignore[attr-defined]
    assert [row for row in rows_of(Transactions) if row["id"]["S"] == "T"] == before


# Leases that cannot be asked for

DAY: Final = 86_400


def poisoned_lease(clock: VirtualClock, since_s: float) -> dict[str, Any]:
    """A lease of 1e30 ms that began so long ago, of an entry."""
    return {"l": {"N": str(10**30)}, "e": {"N": str(clock.time_ms() - int(since_s * 1000))}}


def poisoned_header(tx_id: str, clock: VirtualClock, since_s: float) -> dict[str, Any]:
    """The header of a transaction with a lease of 1e30 ms that was renewed so long ago."""
    until_ms = clock.time_ms() - int(since_s * 1000) + 10**30
    return header(tx_id, "pending", lease_ms={"N": str(10**30)}, until_ms={"N": str(until_ms)})


def put_held(**facts: Any) -> None:
    """A purse whose lock has a holder that is not alive."""
    purses(1)
    put_lock({"e0": entry(**facts)}, 2)


@pytest.mark.parametrize("longest", [None, 7200])
def test_a_waiter_outlives_a_poisoned_lease(clock: VirtualClock, longest: float | None) -> None:
    """Its end by the wall clock is of no use; the waiter watches it for the longest lease, and 5 % more."""
    own = {} if longest is None else {"max_lease": longest}
    settings = LockSettings(lease=7200, poll_interval=600, min_poll_interval=600, max_poll_interval=600, **own)
    put_held(l={"N": str(10**30)}, e={"N": str(10**31)})
    began = clock.elapsed
    with Purse.locked("p0", wait=3 * DAY, settings=settings):
        waited = clock.elapsed - began
    assert 1.05 * (longest or DAY) <= waited <= 1.05 * (longest or DAY) + 700


@pytest.mark.parametrize("heartbeat", [True, False])
def test_a_longer_lease_beside_those_who_believe_a_day(clock: VirtualClock, *, heartbeat: bool) -> None:
    """Its heartbeat renews it in time. Without one its holder is evicted, and its writes are refused."""
    longer = LockSettings(lease=2 * DAY, max_lease=2 * DAY, heartbeat=heartbeat)
    patient = LockSettings(lease=DAY, poll_interval=3600, min_poll_interval=3600, max_poll_interval=3600)
    purses(1)
    ends = nullcontext() if heartbeat else pytest.raises(LockLost)
    with ends, held_elsewhere(Purse.locked("p0", settings=longer)) as holder:
        waiter = Purse.locked("p0", wait=3 * DAY, settings=patient)
        if heartbeat:
            with pytest.raises(LockTimeout):
                waiter.acquire()
            assert holder.is_held
        else:
            with waiter, pytest.raises(LockLost):
                holder.renew()


@pytest.mark.parametrize("mode", [{}, {"p": {"N": "2"}}], ids=str)
def test_a_waiter_looks_at_the_end_that_it_believes(clock: VirtualClock, mode: dict[str, Any]) -> None:
    """It does not wait, and does not take a lock for one of another kind by a holder that is dead."""
    put_held(**poisoned_lease(clock, DAY + 11), **mode)
    began = clock.elapsed
    with Purse.locked("p0", wait=60):
        assert clock.elapsed == began


@pytest.mark.parametrize("longest", [DAY, 3600])
def test_a_write_outside_of_a_poisoned_lease(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, longest: float
) -> None:
    """Is refused until the longest lease is over that the model's settings say."""
    monkeypatch.setattr(Purse.Meta, "lock_settings", replace(Purse.Meta.lock_settings, max_lease=longest))
    put_held(**poisoned_lease(clock, longest + 9))
    purse = Purse.get("p0")
    with pytest.raises(ItemLocked):
        purse.update([Purse.note.set("x")])
    clock.jump(2)
    purse.update([Purse.note.set("y")])
    assert Purse.get("p0").note == "y"


def test_a_write_that_meets_a_transaction_of_a_poisoned_lease(clock: VirtualClock) -> None:
    """It is aborted once its lease counts as over, and nothing of it is applied."""
    put(Transactions, poisoned_header("T", clock, DAY + 11))
    put_marked(mark("T", name_of(Transactions)))
    purse, began = Purse.get("p0"), clock.elapsed
    purse.update([Purse.note.set("x")])
    assert clock.elapsed - began < 1
    assert (Purse.get("p0").note, Purse.get("p0").balance) == ("x", 1)
    assert Transactions.outcome("T") == "aborted"


def test_a_sweep_meets_a_poisoned_lease(clock: VirtualClock) -> None:
    """It completes what counts as over, and still does not watch the other for a day."""
    for tx_id, since_s in (("T", DAY + 11), ("U", DAY - 1)):
        put(Transactions, poisoned_header(tx_id, clock, since_s))
        put(Transactions, participants(tx_id, participant()))
    put_marked(mark("T", name_of(Transactions)))
    report = Transactions.sweep()
    assert (report.aborted, list(report.failed)) == (1, ["U"])
    assert clock.elapsed < 60
    lock = (stored(Purse, "p0") or {})["lock"]["M"]
    assert "tx" not in lock


def test_the_recovery_of_a_poisoned_lease_ends(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It watches for a day and 5 %, where the stored end is of no use."""
    monkeypatch.setattr(recovery, "_POLL_S", 3600.0)
    put_transaction("T", "pending", lease_ms={"N": str(10**30)}, until_ms={"N": str(10**31)})
    began = clock.elapsed
    with dying_after(monkeypatch, MOST_REQUESTS):
        assert Transactions.recover("T") == "aborted"
    assert 1.05 * DAY <= clock.elapsed - began <= 1.05 * DAY + 3600


def test_labels_and_leases_that_are_refused(memory: Engine) -> None:
    """When a lock is made, in each of its forms, and before any request."""
    for make in (Purse.locked, Purse.edit):
        for options in ({"lease": 1e27}, {"lease": DAY + 1}, {"lease": math.inf}, {"owner": "x" * 257}, {"owner": 7}):
            with pytest.raises(ConfigurationError, match=r"max_lease|finite|owner"):
                make("p0", **options)
    with pytest.raises(ConfigurationError, match="permits must be at most 400"):
        Purse.locked("p0", permits=401)


# The asynchronous forms


async def take() -> None:
    async with Purse.locked("p0", wait=1):
        pass


async def change() -> None:
    async with Purse.edit("p0", wait=1) as purse:
        purse.balance = 5


@pytest.mark.parametrize("operation", [take, change])
@pytest.mark.parametrize("poison", ["another table", "changes that are gone", "no tickets"])
def test_asynchronous_locks(
    memory: Engine, monkeypatch: pytest.MonkeyPatch, operation: Callable[[], Coroutine[Any, Any, None]], poison: str
) -> None:
    """They take the same steps: an error, few requests, and no other table."""
    memory.bind(Foreign)
    put(Transactions, header("T", "committed"))
    put(Foreign, header("T", "pending"))
    forged = mark("T", name_of(Foreign if poison == "another table" else Transactions), spill={"S": "T!00000"})
    forged["M"]["intent"]["M"]["op"] = {"S": "save"}
    put_marked(forged)
    if poison == "no tickets":
        put_lock(_without_tickets(_entries(150)), 0)
    with dying_after(monkeypatch, MOST_REQUESTS) as process, pytest.raises(LockingError) as caught:
        asyncio.run(operation())
    assert f"{name_of(Purse)}/p0" in str(caught.value)
    assert {table for _, kwargs in process.sent for table in tables_in(kwargs)} <= {
        name_of(Purse),
        name_of(Transactions),
    }
    assert len(process.sent) <= MOST_REQUESTS
