"""Rows, lock documents and marks of a newer format, met by every operation: refused, and left as they are.

And those of older releases, without a number: they are read, and the next write of ours stores the number.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.exceptions import DoesNotExist, TransactWriteError

from pynamo_locking import (
    BatchError,
    Conflict,
    OutcomeUnknown,
    Transaction,
    TransactWrite,
    UnknownFormat,
    recover,
    sweep,
    transaction,
)
from tests.support import poisoned
from tests.support.call_models import Calls
from tests.support.faults import is_save, lost_responses
from tests.support.interval_models import Slot, SlotLocks, slots
from tests.support.models import Locks
from tests.support.own_rows import WAYS, bind
from tests.support.poisoned import document, entry, header, mark, name_of, participant, participants, place, put
from tests.support.transaction_models import Purse, Transactions, make_long_from, rows_of
from tests.support.unique_models import Uniques, User

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


def repair() -> None:
    Purse.break_lock("p0", force=True)


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
    recover(Transactions, "T")


def sweep_all() -> None:
    report = sweep(Transactions)
    assert list(report.failed) == ["T"]
    raise UnknownFormat(report.failed["T"])


OPERATIONS: Final[list[Callable[[], None]]] = [
    *(each for each in poisoned.RESOLVING if each is not poisoned.tx_snapshot_of_a_mark_that_came_later),
    *(break_lock, repair, save_what_was_read, put_by_pynamodb, delete_whatever_is_there, complete, sweep_all),
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
    return next((row for row in rows_of(model) if row[model._own_keys.hash_name] == {"S": key}), None)


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
            lambda: User("u").update([User.email.set("c@example.com")], add_version_condition=False),
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
    Slot.insert_disjoint(slots((1, 3)))
    bump(SlotLocks, f"guard#{name_of(Slot)}/d")
    for operation in (
        lambda: Slot.insert_disjoint(slots((5, 6))),
        lambda: Slot.move(Slot.get("d", 1), 5, 6),
        lambda: in_transaction(lambda tx: tx.insert_disjoint(Slot, slots((5, 6)))),
    ):
        refuse(operation, Slot, SlotLocks)


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

        with lost_responses("UpdateItem", where=is_last, meanwhile=bump_all) as faults, pytest.raises(OutcomeUnknown):
            operation()
        assert faults.hits
    assert Purse.get("p0").balance == 5


def test_the_error_of_a_block_goes_on(concurrent_engine: Engine) -> None:
    """The release that is refused after it is logged, and does not take its place."""
    concurrent_engine.bind(Locks)
    with pytest.raises(KeyError), Locks.locked("job"):
        bump(Locks, "job")
        raise KeyError
