"""Rows, lock documents and marks of a newer format, met by every operation: refused, and left as they are.

And those of older releases, without a number: they are read, and the next write of ours stores the number.
"""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.exceptions import DoesNotExist, TransactWriteError

from pynamo_locking import TransactWrite, transaction
from pynamo_locking._io import transaction_record, write_intents
from pynamo_locking._io.stored_rows import FORMAT
from pynamo_locking.exceptions import BatchError, Conflict, OutcomeUnknown, UnknownFormat
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support import poisoned
from tests.support.call_models import Calls
from tests.support.interval_models import Slot, SlotLocks, slots
from tests.support.models import Locks
from tests.support.own_rows import WAYS, bind
from tests.support.poisoned import document, entry, header, mark, name_of, participant, participants, place, put
from tests.support.shell import prepared
from tests.support.transaction_models import Purse, Transactions, existing, make_long_from, rows_of
from tests.support.unique_models import Uniques, User
from tests.support.wire import is_save, on

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from tests.engines.engine import Engine

NEWER: Final = {"N": "99"}
REFUSED: Final = (UnknownFormat, BatchError, TransactWriteError)


def rows(*models: type[Model]) -> dict[str, list[str]]:
    """All that is stored, byte for byte."""
    return {model.__name__: sorted(json.dumps(row, sort_keys=True) for row in rows_of(model)) for model in models}


def refuse(operation: Callable[[], object], *models: type[Model], of: Any = None, key: str = "") -> None:
    """The operation is refused, by an error that says why, and nothing was changed: in tables, and in a row."""
    before = rows(*models), None if of is None else row_of(of, key)
    with pytest.raises(REFUSED) as caught:
        operation()
    assert (rows(*models), None if of is None else row_of(of, key)) == before
    told = str(getattr(caught.value, "results", "")) + str(caught.value)
    is_ours = isinstance(caught.value, (UnknownFormat, BatchError))
    assert ("is stored in format 99" in told) is is_ours, told


# The lock of an item


def break_lock() -> None:
    Purse.break_lock("p0", ticket=1)


def save_what_was_read() -> None:
    purse = Purse.get("p0")
    purse.balance = 7
    purse.save(Purse.balance == 1)


def put_by_pynamodb() -> None:
    with TransactWrite(connection=Purse._get_connection().connection) as write:
        write.save(Purse.get("p0"))
        write.delete(Purse("p1"), add_version_condition=False)


def delete_whatever_is_there() -> None:
    Purse("p0").delete(add_version_condition=False)


def complete() -> None:
    """Each transaction, which is committed, and whose mark or participants have to be seen."""
    Transactions.recover("T")


def sweep_all() -> None:
    report = Transactions.sweep()
    assert "T" in report.failed  # and so may be the rows of its changes
    raise UnknownFormat(report.failed["T"])


OPERATIONS: Final[list[Callable[[], None]]] = [
    *(each for each in poisoned.RESOLVING if each is not poisoned.tx_snapshot_of_a_mark_that_came_later),
    *(break_lock, save_what_was_read, put_by_pynamodb, delete_whatever_is_there, complete, sweep_all),
]

#: Lock documents and marks: of a lock that is free, held, or held by a dead process; of a map that says nothing else.
DOCUMENTS: Final[dict[str, Any]] = {
    "free": lambda: numbered(document()),
    "held": lambda: numbered(document(e=entry())),
    "expired": lambda: numbered(document(e=entry(e={"N": "1000"}))),
    "bare": lambda: {"M": {"f": NEWER}},
    "strange": lambda: {"M": {"f": NEWER, "queue": {"L": []}, "next": {"S": "x"}}},
    "marked": lambda: numbered(document(mark("T", name_of(Transactions)))),
    "newer mark": lambda: document(numbered(mark("T", name_of(Transactions)))),
    "newer mark alone": lambda: {"M": {"tx": numbered(mark("T", name_of(Transactions)))}},
    "strange mark": lambda: document({"M": {"f": NEWER, "by": {"S": "T"}}}),
}


def numbered(stored_map: dict[str, Any]) -> dict[str, Any]:
    return {"M": {**stored_map["M"], "f": NEWER}}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_the_lock_of_an_item(concurrent_engine: Engine, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation that would write the item, or has to trust its lock."""
    make_long_from(monkeypatch)
    concurrent_engine.bind(Purse, Transactions)
    for operation in OPERATIONS:
        put(Transactions, header("T", "committed"))
        put(Transactions, participants("T", participant()))
        place(DOCUMENTS[kind]())
        refuse(operation, Purse, Transactions)


# Rows of our own


def with_number(row: dict[str, Any]) -> dict[str, Any]:
    """The same row of a newer format: its lock, or the whole."""
    if "lock" in row and not {"holder", "kept_until_ms"} & row.keys():
        return {**row, "lock": numbered(row["lock"])}
    return {**row, "f": NEWER}


def row_of(model: Any, key: str) -> dict[str, Any] | None:
    return next((row for row in rows_of(model) if {"S": key} in row.values()), None)


@pytest.mark.parametrize("seen", ["as it was", "bare"])
@pytest.mark.parametrize("name", WAYS)
def test_rows_of_our_own(concurrent_engine: Engine, name: str, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every public way to a row, which is of a newer format by now."""
    make_long_from(monkeypatch)
    way = WAYS[name]
    key = bind(concurrent_engine, way)
    row: dict[str, Any] | None = None
    if seen == "as it was" and name != "`tx.get(for_update=True)`":  # which creates an item first
        with suppress(Conflict, DoesNotExist):
            way.act()
        row = row_of(way.table, key)
    if row is None:
        of_lock = {"lock": {"M": {"f": NEWER}}, "f": NEWER}
        row = {way.table._own_keys.hash_name: {"S": key}, **of_lock}  # type: ignore[attr-defined]
    put(way.table, with_number(row))
    refuse(way.act, key=key, of=way.table)


def bump(model: Any, key: str) -> None:
    """Let a newer release store a row anew."""
    row = row_of(model, key)
    assert row is not None
    put(model, with_number(row))


def test_a_row_of_a_unique_value(concurrent_engine: Engine) -> None:
    """It is neither taken, nor given up, nor mended, nor taken over once it has expired."""
    concurrent_engine.bind(User, Uniques, Transactions)
    User("u", email="a@example.com").save()
    [row] = rows_of(Uniques)
    for more in ({}, {"expires_s": {"N": "1"}}, {"holder": {"S": "x"}}):
        put(Uniques, {**row, **more, "f": NEWER})
        stored_user = User.get("u")
        stored_user.email = "b@example.com"
        for operation in (
            lambda: User("v", email="a@example.com").save(),
            stored_user.save,
            stored_user.delete,
            lambda: User.get("u").update([User.email.set("c@example.com")]),
            lambda: in_transaction(lambda tx: tx.save(User("v", email="a@example.com"))),
            lambda: in_transaction(lambda tx: (tx.save(User("v", email="a@example.com")), tx.save(User("w")))),
            lambda: in_transaction(lambda tx: tx.delete(tx.get(User, "u"))),
            *([User.repair_unique] if more else []),  # which finds nothing wrong with the first one
        ):
            refuse(operation, User, Uniques)


def in_transaction(act: Callable[[Transaction], object]) -> None:
    with transaction(wait=3) as tx:
        act(tx)


def call() -> None:
    with Calls.call("k") as made:
        made.result = 2


def call_in_a_transaction() -> None:
    with transaction(), Calls.call("k") as made:
        made.result = 2


def delete_the_call() -> None:
    Calls("k").delete(add_version_condition=False)


def save_the_call() -> None:
    Calls("k", result="2").save(add_version_condition=False)


@pytest.mark.parametrize("operation", [call, call_in_a_transaction, delete_the_call, save_the_call])
@pytest.mark.parametrize("where", ["row", "lock", "both", "expired", "alone"])
def test_the_row_of_a_call(concurrent_engine: Engine, operation: Callable[[], None], where: str) -> None:
    """Neither its result is returned, nor another one stored, also if the result counts no more."""
    concurrent_engine.bind(Calls)
    with Calls.call("k") as made:
        made.result = 1
    row = row_of(Calls, "k")
    assert row is not None
    if where in ("lock", "both"):
        row["lock"] = numbered(row["lock"])
    if where != "lock":
        row["f"] = NEWER
    if where == "expired":
        row["kept_until_ms"] = {"N": "1"}
    put(Calls, row if where != "alone" else {"name": {"S": "k"}, "f": NEWER})
    refuse(operation, Calls)


def test_a_guard_of_intervals(concurrent_engine: Engine) -> None:
    """Moves, deletes and inserts, also in transactions."""
    concurrent_engine.bind(Slot, SlotLocks)
    Slot.intervals.insert_disjoint(slots((1, 3)))
    bump(SlotLocks, f"guard#{name_of(Slot)}/d")
    for operation in (
        lambda: Slot.intervals.insert_disjoint(slots((5, 6))),
        lambda: Slot.intervals.move(Slot.get("d", 1), 5, 6),
        lambda: in_transaction(lambda tx: tx.insert_disjoint(Slot, slots((5, 6)))),
    ):
        refuse(operation, Slot, SlotLocks)


# Under a lock that is held


def test_a_document_that_is_raised_under_a_lock(concurrent_engine: Engine) -> None:
    """The holder can neither write nor renew nor hand over; the entry stays until its lease is over."""
    concurrent_engine.bind(Purse, Transactions)
    Purse("p0", balance=1).save()
    with pytest.raises(UnknownFormat), Purse.locked("p0", heartbeat=False) as lock:
        item = lock.item
        image = existing(Purse, "p0")
        put(Purse, {**image, "lock": numbered(image["lock"])})
        item.balance = 5
        for operation in (
            item.save,
            lambda: item.update([Purse.balance.set(5)]),
            item.delete,
            lambda: in_transaction(lambda tx: tx.update(item, [Purse.balance.set(6)])),
            lock.renew,
            lock.downgrade,
        ):
            refuse(operation, Purse, Transactions)
        before = rows(Purse)
    assert rows(Purse) == before


def test_a_success_under_a_lock(concurrent_engine: Engine) -> None:
    """`once` notes none."""
    concurrent_engine.bind(Locks)
    with pytest.raises(UnknownFormat), Locks.once("job", period=3600) as run:
        assert run
        bump(Locks, "job")
        before = rows(Locks)
    assert rows(Locks) == before


# The rows of a transaction


def test_headers_and_what_is_beside_them(concurrent_engine: Engine) -> None:
    """Each in turn is of a newer format, of transactions that are pending, committed and aborted."""
    concurrent_engine.bind(Purse, Transactions)
    changes_rows = {"id": {"S": "T!00000"}, "content": {"M": {"set": {"M": {"balance": {"N": "6"}}}}}}
    named = participants("T", participant(spill={"S": "T!00000"}))
    marked = mark("T", name_of(Transactions), op={"S": "save"}, spill={"S": "T!00000"})
    for state in ("pending", "committed", "aborted"):
        sound = {"header": header("T", state), "participants": named, "spill": changes_rows}
        for newer in sound if state == "committed" else ("header",):
            operations: list[Callable[[], object]] = [complete, sweep_all]
            if newer == "header":
                operations += [
                    lambda: Transactions.recover("T", force=True),
                    lambda: Transactions.outcome("T"),
                ]
            if newer in ("header", "spill"):  # what meets the mark does not ask for the participants
                operations += [poisoned.update, poisoned.locked, poisoned.tx_get, poisoned.tx_snapshot]
            for operation in operations:
                for name, row in sound.items():
                    put(Transactions, {**row, "f": NEWER} if name == newer else row)
                place({"M": {"tx": marked}})
                if operation is poisoned.tx_snapshot and newer == "spill":
                    continue  # it looks past the mark, or waits for it
                refuse(operation, Transactions, of=Purse, key="p0")


def test_a_header_without_anything_else(concurrent_engine: Engine) -> None:
    """It does not count as missing, which would mean that the transaction was aborted."""
    concurrent_engine.bind(Purse, Transactions)
    put(Transactions, {"id": {"S": "T"}, "f": NEWER})
    place({"M": {"tx": mark("T", name_of(Transactions))}})
    for operation in (poisoned.update, poisoned.locked, complete):
        refuse(operation, Purse, Transactions)


def test_requests_after_a_look(concurrent_engine: Engine) -> None:
    """A newer release has stored the row since it was read: DynamoDB refuses what is sent then."""
    concurrent_engine.bind(Purse, Transactions)
    table = transaction_record.record_table_of(Transactions)
    for state in ("pending", "committed", "aborted"):
        put(Transactions, header("T", state))
        read = transaction_record.read(table, "T")
        assert read is not None
        put(Transactions, {**header("T", state), "f": NEWER, "expires_s": {"N": "1"}})
        put(Transactions, {**participants("T", participant()), "f": NEWER})
        for operation in {
            "pending": [
                lambda: transaction_record.renew(table, read, 7),  # noqa: B023
                lambda: transaction_record.abort(table, "T", "asked"),
                lambda: transaction_record.abort(table, "T", "asked", heartbeats=0),
            ],
            "committed": [lambda: transaction_record.finish(table, "T")],
            "aborted": [
                lambda: transaction_record.clean(table, "T", is_certain=True),
                lambda: transaction_record.delete_row(table, "T#0000"),
            ],
        }[state]:
            refuse(operation, Transactions)
    sound = mark("T", name_of(Transactions))
    image = place({"M": {"tx": sound}})
    row = Purse._lock_target("p0", None, Purse.lock_settings()).row
    found = row.state(image).intent
    assert found is not None
    place({"M": {"f": NEWER, "tx": sound}})
    for act in (write_intents.finish_all, write_intents.drop_all):
        refuse(lambda: act(table, [(row, found)]), Purse)  # noqa: B023
        put(Purse, {**image, "purse_id": {"S": "p1"}})
        both = [(row, found), (Purse._lock_target("p1", None, Purse.lock_settings()).row, found)]
        refuse(lambda: act(table, both), of=Purse, key="p0")  # noqa: B023


@pytest.mark.parametrize("row", ["committed", "given up", "expired"])
def test_the_row_of_a_key(concurrent_engine: Engine, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither stored anew nor given up."""
    concurrent_engine.bind(Purse, Transactions)
    ends = {"N": "1" if row == "expired" else "9999999999"}
    content = {"abandoned": {"SS": ["T"]}} if row == "given up" else {"content": {"M": {"id": {"S": "T"}}}}
    put(Transactions, {"id": {"S": "key#k"}, "f": NEWER, "expires_s": ends, **content})

    def doubtful() -> None:
        begun = Transaction(Transactions, idempotency_key="k")
        begun.save(Purse("p1"))
        with on("TransactWriteItems", times=99).lose_request(), pytest.raises(OutcomeUnknown) as caught:
            begun.commit()
        caught.value.resolve()

    operations = (
        lambda: Transactions.outcome(idempotency_key="k"),
        lambda: keyed(lambda tx: tx.save(Purse("p1"))),
        lambda: keyed(lambda tx: [tx.save(Purse(f"p{i}")) for i in range(6)]),
    )
    make_long_from(monkeypatch)
    for operation in operations:
        refuse(operation, of=Transactions, key="key#k")
    assert rows(Purse) == {"Purse": []}
    with VirtualClock():
        refuse(doubtful, Purse, Transactions)


def keyed(act: Callable[[Transaction], object]) -> None:
    with transaction(Transactions, idempotency_key="k", wait=3) as tx:
        act(tx)


def test_a_suspended_transaction(concurrent_engine: Engine) -> None:
    """It is neither resumed nor stored anew."""
    concurrent_engine.bind(Purse, Transactions)
    Purse("p0", balance=1).save()
    with transaction(Transactions) as tx:
        tx.update(tx.get(Purse, "p0"), [Purse.balance.set(5)])
        id_ = tx.suspend()
    with transaction(Transactions) as other, pytest.raises(UnknownFormat):
        other.resume(id_, [Purse])
        bump(Transactions, f"suspended#{id_}")
        before = rows(Purse, Transactions)
        other.commit()
    assert rows(Purse, Transactions) == before
    refuse(lambda: in_transaction(lambda tx: tx.resume(id_, [Purse])), Purse, Transactions)


# People


def test_commands(memory: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks shows the format; what would change something refuses."""
    memory.bind(Purse, Transactions, Locks)
    shell = prepared(memory, capsys, monkeypatch)
    with pytest.raises(UnknownFormat), Locks.locked("n"):
        bump(Locks, "n")
        image = row_of(Locks, "n")
        assert image is not None
    [one] = image["lock"]["M"]["queue"]["M"].values()
    names = ("--model", "tests.support.models:Locks")
    for words in (("locks", "list"), ("locks", "show", "n"), ("tables", "check", "tests.support.models:Locks")):
        _, out, err = shell.run(*words, *(names if words[0] == "locks" else ()))
        assert "format 99" in out + err, (words, out, err)
    assert shell.answer("locks", "show", "n", *names, code=1)["format"] == 99
    ticket = one["L"][0]["N"]
    code, _, err = shell.run("locks", "break", "n", "--ticket", ticket, "--yes", *names)
    assert code != 0
    assert "format 99" in err
    assert row_of(Locks, "n") == image


def test_the_error(memory: Engine) -> None:
    """It names the row, both numbers, and what to do; it survives a pickle."""
    memory.bind(Purse, Transactions)
    place(numbered(document()))
    with pytest.raises(UnknownFormat, match=r"in format 99, .* up to 1: .* Upgrade pynamo_locking here") as caught:
        poisoned.update()
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.table, error.key) == (name_of(Purse), {"purse_id": {"S": "p0"}})
    assert (error.found, error.known, str(error)) == (99, FORMAT, str(caught.value))
    assert Purse.get("p0").lock.unreadable.startswith("format 99 is newer")


# Of older releases


def without_numbers(model: Any) -> None:
    """Let an older release have stored all rows of a table."""
    for row in rows_of(model):
        old = {name: value for name, value in copy.deepcopy(row).items() if name != "f"}
        if "lock" in old:
            old["lock"]["M"].pop("f", None)
        put(model, old)


def numbers_in(model: Any) -> set[str]:
    """The numbers that rows of a table have, "" for none."""
    found = [row["lock"]["M"] if "lock" in row and "f" not in row else row for row in rows_of(model)]
    return {each.get("f", {"N": ""})["N"] for each in found}


def test_older_documents(concurrent_engine: Engine) -> None:
    """They are read, and the next request that enters or renews stores the number."""
    concurrent_engine.bind(Locks, Purse, Transactions)
    with Locks.locked("n") as lock:
        without_numbers(Locks)
        assert Locks.lock_state("n").entries[0].ticket == lock.ticket
        lock.renew()
        assert numbers_in(Locks) == {"1"}
        without_numbers(Locks)
    assert numbers_in(Locks) == {""}
    with Locks.locked("n") as again:
        assert again.ticket == (lock.ticket or 0) + 1
        assert numbers_in(Locks) == {"1"}
    place({"M": {"tx": {"M": {k: v for k, v in mark("T", name_of(Transactions))["M"].items() if k != "f"}}}})
    put(Transactions, header("T", "committed"))
    poisoned.update()
    assert Purse.get("p0").balance == 7


def test_older_rows(concurrent_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls, unique values, intervals and transactions."""
    make_long_from(monkeypatch)
    concurrent_engine.bind(Calls, User, Uniques, Slot, SlotLocks, Purse, Transactions)
    call()
    User("u", email="a@example.com").save()
    Slot.intervals.insert_disjoint(slots((1, 3)))
    with transaction(Transactions) as tx:
        tx.update(Purse("p0", balance=1), [Purse.balance.set(5)], add_version_condition=False)
        id_ = tx.suspend()
    keyed(lambda tx: tx.save(Purse("p9")))
    for model in (Calls, Uniques, SlotLocks, Transactions):
        assert numbers_in(model) == {"1"}, model
        without_numbers(model)
        assert numbers_in(model) == {""}
    with Calls.call("k") as made:
        assert made.is_repeated
    delete = Calls("k")
    delete.update([Calls.result.set("3")], add_version_condition=False)
    user = User.get("u")
    user.email = "b@example.com"
    user.save()
    Slot.intervals.insert_disjoint(slots((5, 6)))
    in_transaction(lambda tx: tx.resume(id_, [Purse]))
    assert Transactions.outcome(idempotency_key="k") == "committed"
    keyed(lambda tx: tx.save(Purse("p10")))  # is done already
    for model in (Calls, Uniques, SlotLocks):
        assert numbers_in(model) == {"1"}, model
    assert Purse.count() == 2


# While a write of ours is in doubt


def test_a_write_in_doubt_stays_in_doubt(concurrent_engine: Engine) -> None:
    """It was applied, its answer is lost, and a newer release has stored the lock: it is not told as refused."""
    concurrent_engine.bind(Purse, Locks, Transactions)
    Purse("p0", balance=1).save()

    def edit() -> None:
        with Purse.edit("p0") as purse:
            purse.balance = 5

    def run_once() -> None:
        with Locks.once("job", period=3600) as due:
            assert due

    def is_success(body: dict[str, Any]) -> bool:
        return "#l.#success = " in body["UpdateExpression"]

    for operation, model, is_last in ((edit, Purse, is_save), (run_once, Locks, is_success)):

        def bump_all(model: Any = model) -> None:
            for row in rows_of(model):
                put(model, {**row, "lock": numbered(row["lock"])})

        with on("UpdateItem", where=is_last).lose_response(bump_all) as faults, pytest.raises(OutcomeUnknown):
            operation()
        assert faults.hits
    assert Purse.get("p0").balance == 5


def test_the_error_of_a_block_goes_on(concurrent_engine: Engine) -> None:
    """The release that is refused after it is logged, and does not take its place."""
    concurrent_engine.bind(Locks)
    with pytest.raises(KeyError), Locks.locked("job"):
        bump(Locks, "job")
        raise KeyError
