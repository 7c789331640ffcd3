"""What docs/reference/permissions.md says: those actions are needed on those tables, and no others."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from celery import Celery
from pynamodb.connection import Connection

from pynamo_locking import TransactWrite, transaction, transactional
from pynamo_locking.cli import main
from pynamo_locking.contrib.celery import TaskClaims, UniqueTask
from pynamo_locking.recipes import IdempotencyTable, idempotent
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import MemoryDynamoDB, VirtualClock
from tests.support.deeds import dying_at
from tests.support.interval_models import Slot, SlotLocks
from tests.support.models import Device, Locks, declare
from tests.support.parties import in_thread
from tests.support.transaction_models import Entry, Purse, Session, Transactions, survive

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE: Final = Path(__file__).parents[3] / "docs/reference/permissions.md"
#: The permission that an action of a transaction takes.
ACTIONS: Final = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
    "Get": "GetItem",
}


class Recorder(MemoryDynamoDB):
    """Remembers which permissions were needed on which table."""

    def __init__(self) -> None:
        super().__init__()
        self.needed: dict[str, set[str]] = {}

    def handle(self, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        for action in kwargs.get("TransactItems", ()):
            ((kind, request),) = action.items()
            self.needed.setdefault(request["TableName"], set()).add(ACTIONS[kind])
        for statement in kwargs.get("Statements", ()):
            verb, table = re.match('(INSERT|UPDATE|DELETE) (?:INTO |FROM )?"([^"]*)"', statement["Statement"]).groups()  # type: ignore[union-attr]
            self.needed.setdefault(table, set()).add(f"PartiQL{verb.capitalize()}")
        for table in kwargs.get("RequestItems", ()):
            self.needed.setdefault(table, set()).add(operation)
        if "TableName" in kwargs:
            self.needed.setdefault(kwargs["TableName"], set()).add(operation)
        return super().handle(operation, kwargs)


def use_items(_: pytest.MonkeyPatch) -> None:
    """Locks in items, versions, expiry."""
    session = Session("s-1")
    session.save()
    session.update([Session.note.set("seen")])
    Session.modify("s-1", lambda item: setattr(item, "user", "ada"))
    with Session.edit("s-1") as held:
        held.user = "grace"
    with Session.locked("s-1") as lock:
        lock.item.save()
        lock.renew()
    Session.break_lock("s-1", ticket=1)
    assert Session.lock_state("s-1").holders == ()
    with TransactWrite(connection=Connection()) as native:
        native.save(Session("s-2"))
    Session.get("s-1").delete()


def use_batches(_: pytest.MonkeyPatch) -> None:
    """New items, known ones and deletes, in one request each."""
    sessions = [Session("s-3"), Session("s-4")]
    for operation in ("save", "save", "delete"):
        with Session.guarded_batch() as batch:
            for session in sessions:
                getattr(batch, operation)(session)


def check_items(_: pytest.MonkeyPatch) -> None:
    """What is checked and not written."""
    session = Session("s-1")
    session.save()
    with TransactWrite(connection=Connection()) as native:
        native.check(session)


def use_locks(_: pytest.MonkeyPatch) -> None:
    """Locks on names, and of items whose locks are in another table."""
    Device("d-1").save()
    with Locks.locked("nightly") as lock:
        lock.renew()
    with Device.locked("d-1") as lock:
        lock.item.save()
    assert Device.break_lock("d-1", ticket=1) is False


def check_locks(_: pytest.MonkeyPatch) -> None:
    """A transaction that depends on a lock and writes elsewhere."""
    with Locks.locked("nightly") as lock, TransactWrite(connection=Connection()) as native:
        lock.add_check_to(native)
        native.save(Session("s-1"))


def list_locks(_: pytest.MonkeyPatch) -> None:
    """The command line."""
    assert main(["locks", "list", "--table", "locks"]) == 0


def show_lock(_: pytest.MonkeyPatch) -> None:
    """One of them."""
    assert main(["locks", "show", "nightly", "--table", "locks"]) == 0


def break_lock(_: pytest.MonkeyPatch) -> None:
    """A held one."""
    in_thread(Locks.locked("stuck", heartbeat=False).acquire)
    ticket = str(Locks.lock_state("stuck").holders[0].ticket)
    assert main(["locks", "break", "stuck", "--ticket", ticket, "--yes", "--table", "locks"]) == 0


def prune_locks(_: pytest.MonkeyPatch) -> None:
    """A row that nobody has used for days."""
    with VirtualClock() as clock:
        with Locks.locked("old"):
            pass
        clock.sleep(3 * 86_400)
        assert "old" in Locks.prune()


def run_programs(_: pytest.MonkeyPatch) -> None:
    """Under a lock, and once in a period."""
    for options in ([], ["--once-per", "1d"]):
        assert main(["run", "--lock", "job", *options, "--table", "locks", "--", "true"]) == 0


def list_transactions(_: pytest.MonkeyPatch) -> None:
    """All of them."""
    assert main(["tx", "list", "--table", "transactions"]) == 0


def show_transaction(_: pytest.MonkeyPatch) -> None:
    """One that is not known."""
    assert main(["tx", "show", "none", "--table", "transactions"]) == 1


Calls = declare("Calls", IdempotencyTable, table_name="calls")
Claims = declare("Claims", TaskClaims, table_name="claims")


def call_once(_: pytest.MonkeyPatch) -> None:
    """Alone, and in a transaction."""

    @transactional()
    @idempotent(Calls, key="key")
    def store(tx: Transaction, key: str) -> int:
        tx.save(Session(key))
        return 1

    for key in ("s-1", "s-1"):
        assert store(key) == 1
        with Calls.call("alone") as call:
            if not call.is_repeated:
                call.result = 1


def settle_calls(_: pytest.MonkeyPatch) -> None:
    """Of processes that died."""
    with VirtualClock() as clock:
        for choice in (["--forget"], ["--result", "1"]):
            with suppress(KeyboardInterrupt), Calls.call("lost", on_abandoned="raise", heartbeat=False):
                raise KeyboardInterrupt
            clock.sleep(600)
            assert main(["calls", "settle", "lost", *choice, "--yes", "--table", "calls"]) == 0


def list_calls(_: pytest.MonkeyPatch) -> None:
    """Those without a result."""
    assert main(["calls", "list", "--table", "calls"]) == 0


def send_tasks(_: pytest.MonkeyPatch) -> None:
    """Two messages for one run."""
    app = Celery("shop", broker="memory://", set_as_current=False)

    @app.task(base=UniqueTask, claims=Claims)  # type: ignore[untyped-decorator]
    def work(number: int) -> int:
        return number

    assert work.apply_async((1,)).id == work.apply_async((1,)).id
    work.apply((1,))


def use_intervals(_: pytest.MonkeyPatch) -> None:
    """Rows that never overlap, in both forms."""
    Slot.intervals.insert_disjoint([Slot("blue", 9, end=11), Slot("red", 9, end=12)])
    Slot.intervals.insert_disjoint([Slot("blue", 11, end=12)], pessimistic=True)
    row = Slot.get("red", 9)
    row.end = 13
    row.save()
    Slot.intervals.move(row, 10, 14)
    assert Slot.intervals.free("blue", 8, 13) == [(8, 9), (12, 13)]
    Slot.get("blue", 9).delete()


def use_transactions(_: pytest.MonkeyPatch) -> None:
    """Native and long ones, recovered and swept."""
    for count in (2, 105):
        with transaction() as tx:
            for number in range(count):
                tx.save(Purse(f"o-{count}-{number}"))
            tx.get_or_none(Purse, "o-0")
    with transaction() as tx:
        for number in range(103):
            tx.delete(tx.get(Purse, f"o-105-{number}"))
    with transaction(Transactions, idempotency_key="once") as tx:
        tx.delete(tx.get(Purse, "o-2-0"))
    assert Transactions.outcome(tx.id) in {"finished", None}


def read_together(_: pytest.MonkeyPatch) -> None:
    """Many items by one request."""
    with transaction() as tx:
        assert tx.get_all(Purse, ["none", "none either"]) == [None, None]


def write_unread(_: pytest.MonkeyPatch) -> None:
    """Many items over whatever is stored."""
    with transaction() as tx:
        for number in range(105):
            tx.save(Purse(f"u-{number}"), add_version_condition=False)


def recover_one(monkeypatch: pytest.MonkeyPatch, deed: str) -> str | None:
    """One whose process died when it did this, with a change that is too large to stand beside its item."""
    Purse("big", note="x" * 300_000).save(add_version_condition=False)
    big = Purse.get("big")
    big.note = "y" * 300_000
    tx = Transaction(Transactions, workers=1)
    tx.save(big)
    for number in range(1, 105):
        tx.save(Purse(f"small-{deed}-{number}"))
    with dying_at(monkeypatch, deed):
        assert not survive(tx.commit)
    return Transactions.recover(tx.id, force=True)


def die_in_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the decision, and after it."""
    assert recover_one(monkeypatch, "decision") == "aborted"
    assert recover_one(monkeypatch, "finish big") == "finished"


def sweep_all(_: pytest.MonkeyPatch) -> None:
    """For those that died."""
    assert Transactions.sweep().failed == {}


def query_in_transactions(_: pytest.MonkeyPatch) -> None:
    """Guarded queries."""
    with transaction() as tx:
        assert list(tx.query(Entry, "order-1")) == []
        tx.save(Entry("order-1", 1))
    with transaction() as tx:
        assert [*tx.query(Entry, "order-1")]
        tx.save(Entry("order-2", 1))


Seat = declare("Seat", hash_key="hall", range_key="number", lock_table=SlotLocks, enforce_locks="table")


def enforce_locks(_: pytest.MonkeyPatch) -> None:
    """Beside a lock of another range."""
    in_thread(Seat.locked_range("north", 10, 20, heartbeat=False).acquire)
    Seat("north", 5).save()
    assert Seat.lock_state("north").holders


def set_up(_: pytest.MonkeyPatch) -> None:
    """Tables."""
    assert main(["tables", "create", "--table", "more-locks", "--transaction-table", "more"]) == 0
    assert main(["tables", "check", "--table", "more-locks", "--transaction-table", "more"]) == 0


ROWS: Final = {
    (cells[0].strip(), cells[1]): set(re.findall(r"`(?:dynamodb:)?([A-Z]\w+)`", cells[2]))
    for cells in (line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.count(" | ") == 2)
}


ITEMS: Final = ("items", "locks, versions, expiry")
TRANSACTIONS: Final = (("items", "transactions"), ("items", "transactions of more than 100 actions"))
LEFT: Final = "many intents that another process has left: for its readers, `recover()`, `sweep()`"
UNREAD: Final = ("items", "transactions of more than 100 actions that write items unread and unchecked")
CHECKS: Final = ("items", "`check()` and `condition_check()` of `TransactWrite`")
LOCKS: Final = ("locks", "`NamedLock`, `Meta.lock_table`")
CALLS: Final = ("calls", "`@idempotent`, `IdempotencyTable.call`; `settle()`, `forget()`, `calls settle`")
HEADERS: Final = ("transactions", "`Transaction`, `outcome()`, `recover()`")


@pytest.mark.parametrize(
    ("uses", "tables", "rows"),
    [
        ((use_items, use_locks), "sessions devices", [ITEMS]),
        ((use_items, use_batches, use_locks), "sessions devices", [ITEMS, ("items", "`guarded_batch`")]),
        ((use_items, check_items, use_locks), "sessions devices", [ITEMS, CHECKS]),
        ((use_intervals, use_items), "slots sessions", [ITEMS, ("items", "intervals")]),
        ((use_transactions, use_locks), "purses devices", [ITEMS, *TRANSACTIONS]),
        (
            (use_transactions, read_together, use_locks),
            "purses devices",
            [ITEMS, *TRANSACTIONS, ("items", "`tx.get_all`")],
        ),
        ((use_transactions, write_unread, use_locks), "purses devices", [ITEMS, *TRANSACTIONS, UNREAD]),
        ((use_transactions, die_in_transactions, use_locks), "purses devices", [ITEMS, *TRANSACTIONS, ("items", LEFT)]),
        ((use_locks,), "locks", [LOCKS]),
        ((check_locks, use_locks), "locks", [LOCKS, ("locks", "`lock.add_check_to()`")]),
        (
            (enforce_locks,),
            "slot-locks",
            [("locks", "`Meta.enforce_locks`"), ("locks", "`NamedLock`, `Meta.lock_table`")],
        ),
        ((use_intervals,), "slot-locks", [LOCKS, ("locks", "intervals")]),
        ((use_transactions, die_in_transactions), "transactions", [HEADERS]),
        ((use_transactions, die_in_transactions, sweep_all), "transactions", [HEADERS, ("transactions", "`sweep()`")]),
        (
            (query_in_transactions, use_items, use_locks),
            "entries sessions devices",
            [ITEMS, ("items", "transactions"), ("items", "`tx.query`")],
        ),
        (
            (query_in_transactions, use_transactions, die_in_transactions, sweep_all),
            "transactions",
            [HEADERS, ("transactions", "`tx.query`"), ("transactions", "`sweep()`")],
        ),
        ((list_locks,), "locks", [("any", "`locks list`, `locks watch`")]),
        ((show_lock,), "locks", [("any", "`locks show`")]),
        ((break_lock,), "locks", [("any", "`locks break`")]),
        ((use_locks, prune_locks), "locks", [LOCKS, ("locks", "`prune()`, `locks prune`")]),
        pytest.param((run_programs,), "locks", [("locks", "`run`")], marks=pytest.mark.processes),
        ((list_transactions,), "transactions", [("transactions", "`tx list`")]),
        ((show_transaction,), "transactions", [("transactions", "`tx show`")]),
        ((call_once, settle_calls), "calls", [CALLS]),
        ((settle_calls, list_calls), "calls", [CALLS, ("calls", "`calls list`")]),
        ((send_tasks,), "claims", [("claims", "`UniqueTask`")]),
        ((set_up,), "more-locks more", [("any", "`tables create`, `tables check`")]),
    ],
)
def test_the_actions_are_those_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
    uses: tuple[Callable[[pytest.MonkeyPatch], None], ...],
    tables: str,
    rows: list[tuple[str, str]],
) -> None:
    """Those that the page names are needed, all of them, and nothing else."""
    with Recorder() as database:
        for model in (Locks, Transactions, Session, Purse, Device, SlotLocks, Slot, Seat, Entry, Calls, Claims):
            model.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
        database.needed.clear()
        for use in uses:
            use(monkeypatch)
    needed = set().union(*(database.needed[table] for table in tables.split()))
    assert needed == set().union(*(ROWS[row] for row in rows))
