"""Lets a release of the package store one of everything, and writes down the rows and the requests.

It uses the public API that all releases have, and says where theirs differ. To add a release::

    cd CHECKOUT && python THIS-FILE NAME > tests/integration/whole/stored/NAME.json

`tests.support.frozen_writer` gives today's tests what was written down.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import sys
import threading
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, TTLAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import (
    ExpiringMixin,
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    TransactionTable,
    VersionAttribute,
    VersionedMixin,
    transaction,
)
from pynamo_locking.exceptions import Conflict
from pynamo_locking_testing import MemoryDynamoDB, VirtualClock

try:
    from pynamo_locking.intervals import IntervalMixin
    from pynamo_locking.recipes import IdempotencyTable
    from pynamo_locking.unique import UniqueTable
except ImportError:  # before 0.1
    from pynamo_locking import IdempotencyTable, IntervalMixin, UniqueTable  # type: ignore[no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: When everything is stored.
BEGIN: Final = datetime(2026, 11, 28, 12, tzinfo=timezone.utc)
LEASE_S: Final = 30.0
#: Each caller has an entry of its own: it stands for a process.
ALONE: Final[Any] = {name: 1 for name in ("block", "max_callers_per_entry") if hasattr(LockSettings, name)}
SETTINGS: Final = LockSettings(lease=LEASE_S, heartbeat=False, request_timeout=1, **ALONE)
#: More actions are a long transaction.
FEW: Final = 3


def meta(table_name: str, **options: Any) -> Any:
    return type("Meta", (), {"table_name": table_name, "lock_settings": SETTINGS, **options})


class Names(NamedLock):
    Meta = meta("names")


class Transactions(TransactionTable):
    Meta = meta("transactions")


class Calls(IdempotencyTable):
    Meta = meta("calls")


class Uniques(UniqueTable):
    Meta = meta("uniques", transaction_table=Transactions)


class Counter(LockableModel):
    """The lock in the item, and a version. Recorded rows have none: they were stored before it was declared."""

    Meta = meta("counters")

    name = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Purse(LockableModel):
    """The lock in the item, and a version."""

    Meta = meta("purses", transaction_table=Transactions)

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    note = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Robot(LockableModel):
    """The lock in a row of its own."""

    Meta = meta("robots", lock_table=Names, transaction_table=Transactions)

    name = UnicodeAttribute(hash_key=True)
    total = NumberAttribute(default=0)
    version = VersionAttribute()


class Entry(LockableModel):
    """Others query while some are created."""

    Meta = meta("entries", transaction_table=Transactions, guard_queries=True)

    book = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Slot(IntervalMixin, LockableModel):
    Meta = meta("slots", lock_table=Names, interval=("begin", "end"))

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    version = VersionAttribute()


class Member(LockableModel):
    """Its address is its own."""

    Meta = meta("members", unique=("email",), unique_table=Uniques, transaction_table=Transactions)

    name = UnicodeAttribute(hash_key=True)
    email = UnicodeAttribute(null=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Session(ExpiringMixin, VersionedMixin, Model):
    Meta = meta("sessions")

    name = UnicodeAttribute(hash_key=True)
    expires = TTLAttribute(null=True)
    version = VersionAttribute()


MODELS: Final[dict[str, Any]] = {
    each.__name__: each
    for each in (Names, Transactions, Calls, Uniques, Counter, Purse, Robot, Entry, Slot, Member, Session)
}
#: These have other names in releases before 0.1, and the methods of intervals are the model's.
NEW_PROCESS: Final = "another_process" if hasattr(VirtualClock, "another_process") else "process"
STORE_ERRORS: Final[Any] = {"store_errors" if NEW_PROCESS == "another_process" else "final": (KeyError,)}
SLOTS: Final[Any] = getattr(Slot, "intervals", Slot)


class Dead(BaseException):
    """The process is dead: no handler catches this."""


class Database(MemoryDynamoDB):
    """Keeps what is sent, and lets a test do something before a request, or raise.

    Attributes:
        sent: operations and their arguments.
        before: is called with them, before they are served.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.before: Callable[[str, dict[str, Any]], None] = lambda *_: None

    def handle(self, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Serve a request."""
        self.before(operation, kwargs)
        self.sent.append((operation, kwargs))
        return super().handle(operation, kwargs)

    def put(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        """Store rows, by model."""
        for name, items in rows.items():
            for item in items:
                super().handle("PutItem", {"TableName": MODELS[name].Meta.table_name, "Item": item})

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Return all that is stored, by model."""
        found = {
            name: super(Database, self).handle("Scan", {"TableName": each.Meta.table_name})
            for name, each in MODELS.items()
        }
        return {name: answer["Items"] for name, answer in found.items() if answer["Items"]}


@contextmanager
def world(start: datetime = BEGIN) -> Iterator[tuple[Database, VirtualClock]]:
    """Make empty tables, at that time."""
    with Database() as database, VirtualClock(start) as clock:
        for model in MODELS.values():
            model._connection = None
            model.create_table(billing_mode="PAY_PER_REQUEST")
        database.sent.clear()
        yield database, clock


def party(clock: Any, act: Callable[[], object]) -> None:
    """Do something as another process, which may die of it."""
    error = list[BaseException]()

    def run() -> None:
        try:
            with getattr(clock, NEW_PROCESS)():
                act()
        except Dead:
            pass
        except BaseException as raised:  # noqa: BLE001 - raised again below
            error.append(raised)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if error:
        raise error[0]


@contextmanager
def dying(database: Database, is_last: Callable[[str, str], bool]) -> Iterator[None]:
    """Let the process die before the first request for which that is true of its operation and its text."""
    is_dead = False

    def before(operation: str, kwargs: dict[str, Any]) -> None:
        nonlocal is_dead
        is_dead = is_dead or is_last(operation, json.dumps(kwargs, default=repr))
        if is_dead:
            raise Dead

    database.before = before
    try:
        yield
    finally:
        database.before = lambda *_: None


# What is stored. Each is called with the database and the clock, and leaves rows behind.


kept: list[Any] = []
"""Locks that are held: they must not be released because nobody has them."""


def hold(lock: Any) -> Any:
    kept.append(lock)
    return lock.acquire()


def wait_and_die(database: Database, clock: Any, lock: Any) -> None:
    """Get into the queue, and die at the first look."""
    is_in = list[bool]()

    def is_last(operation: str, text: str) -> bool:
        was_in, entered = bool(is_in), operation == "UpdateItem" and "list_append" in text
        is_in.extend([True] * entered)
        return was_in

    with dying(database, is_last):
        party(clock, lambda: hold(lock))
        # The thread in which a process removes its entry would go on after the death, and succeed.
        for thread in threading.enumerate():
            if thread.name == "pynamo-locking-leaving":
                thread.join()


def free_locks(_database: Database, _clock: Any) -> None:
    Counter("a", value=1).save()
    Robot("r").save()
    for lock in (Counter.locked("a"), Names.locked("n"), Robot.locked("r")):
        with lock:
            pass


def never_locked(_database: Database, _clock: Any) -> None:
    Counter("a", value=1).save()
    Purse("p").save()
    Purse("p2").save()


def held_and_queued(database: Database, clock: Any) -> None:
    Counter("a", value=1).save()
    for model, key in ((Counter, "a"), (Names, "n")):
        party(clock, lambda: hold(model.locked(key)))  # noqa: B023
        wait_and_die(database, clock, model.locked(key, wait=99))


def renewed(_database: Database, clock: Any) -> None:
    """Held, renewed after ten seconds, and written under."""

    def renew() -> None:
        lock = hold(Counter.locked("a"))
        clock.jump(10)
        lock.renew()
        lock.item.save()

    Counter("a", value=1).save()
    party(clock, renew)


def evicted(_database: Database, clock: Any) -> None:
    """Its holder has died, and the next one has removed its entry and let go."""
    Counter("a", value=1).save()
    party(clock, lambda: hold(Counter.locked("a")))
    clock.jump(2 * LEASE_S)
    with Counter.locked("a"):
        pass


def shared(_database: Database, clock: Any) -> None:
    Counter("a", value=1).save()
    for _ in range(2):
        party(clock, lambda: hold(Counter.locked("a", shared=True)))


def permits(_database: Database, clock: Any) -> None:
    for _ in range(2):
        party(clock, lambda: hold(Names.locked("pool", permits=2)))


def ranges(_database: Database, clock: Any) -> None:
    party(clock, lambda: hold(Slot.locked_range("r", 10, 20)))


def in_lock_table(_database: Database, clock: Any) -> None:
    Robot("r", total=1).save()
    party(clock, lambda: hold(Robot.locked("r")))


def versions(_database: Database, _clock: Any) -> None:
    purse = Purse("p", balance=1, note="n")
    for balance in (1, 2, 3):
        purse.balance = balance
        purse.save()


def change_many(key: str | None = None, size: int = 3) -> None:
    """Change, delete and create, in a long transaction."""
    with transaction(wait=5, idempotency_key=key) as tx:
        for name in ("p0", "p1")[: size - 1]:
            purse = tx.get(Purse, name)
            purse.balance += 10
            tx.save(purse)
        tx.delete(tx.get(Purse, "p2"))
        tx.save(Purse("p3", balance=13, note="n" * 40))


def two_purses() -> None:
    for name in ("p0", "p1", "p2"):
        Purse(name, balance=1).save()


def pending(database: Database, clock: Any) -> None:
    two_purses()
    with dying(database, lambda operation, text: operation == "TransactWriteItems" and "committed" in text):
        party(clock, change_many)


def committed(database: Database, clock: Any) -> None:
    two_purses()
    is_decided = list[bool]()

    def is_last(operation: str, text: str) -> bool:
        if is_decided and operation != "TransactGetItems":
            return True
        is_decided.extend([True] * (operation == "TransactWriteItems" and "committed" in text))
        return False

    with dying(database, is_last):
        party(clock, change_many)


def aborted(database: Database, clock: Any) -> None:
    """It has given up, and has not taken its intents back."""
    two_purses()
    Purse("p3").save()
    is_aborted = list[bool]()

    def is_last(operation: str, text: str) -> bool:
        was_aborted, aborts = bool(is_aborted), operation == "UpdateItem" and '"aborted"' in text
        is_aborted.extend([True] * aborts)
        return was_aborted

    def fail() -> None:
        with transaction(wait=5) as tx:
            for name in ("p0", "p1", "p2", "p3"):
                purse = tx.get(Purse, name)
                purse.balance += 10
                tx.save(purse)
            Purse("p3").update([Purse.balance.set(2)], add_version_condition=False)

    with dying(database, is_last):
        party(clock, fail)


def changes_beside(database: Database, clock: Any) -> None:
    """Committed, and what it changes did not fit into the intents."""
    with lowered(SPILL, 1):
        committed(database, clock)


def finished(_database: Database, _clock: Any) -> None:
    two_purses()
    change_many(key="k")


def suspended(_database: Database, _clock: Any) -> None:
    two_purses()
    with transaction(Transactions, idempotency_key="k") as tx:
        purse = tx.get(Purse, "p0")
        purse.balance += 10
        tx.save(purse)
        tx.delete(tx.get(Purse, "p2"))
        tx.suspend()


def keyed(_database: Database, _clock: Any) -> None:
    with transaction(Transactions, idempotency_key="k") as tx:
        tx.save(Purse("p0", balance=1))


def calls(database: Database, clock: Any) -> None:
    """One with a result, one with a final error, and one whose process has died."""
    with Calls.call("result", payload=[1]) as call:
        call.result = {"n": 1}
    with contextlib.suppress(KeyError), Calls.call("error", **STORE_ERRORS):
        raise KeyError("never")

    def die() -> None:
        with Calls.call("dead"):
            raise Dead

    with dying(database, lambda operation, text: '"dead"' in text and "REMOVE" in text):
        party(clock, die)


def once(_database: Database, _clock: Any) -> None:
    with Names.once("nightly", period=3600) as run:
        assert run


def unique(_database: Database, _clock: Any) -> None:
    Member("m", email="a@example.com").save()


def unique_in_a_transaction(database: Database, clock: Any) -> None:
    """Its process has died before the decision."""

    def create() -> None:
        with transaction(wait=5) as tx:
            for name in ("m", "n"):
                tx.save(Member(name, email=f"{name}@example.com"))

    with dying(database, lambda operation, text: operation == "TransactWriteItems" and "committed" in text):
        party(clock, create)


def intervals(_database: Database, _clock: Any) -> None:
    SLOTS.insert_disjoint([Slot("r", 1, end=3), Slot("r", 5, end=8)])
    SLOTS.move(Slot.get("r", 1), 2, 4)


def queried(_database: Database, _clock: Any) -> None:
    with transaction() as tx:
        tx.query(Entry, "b")
        tx.save(Entry("b", 1))


def expiring(_database: Database, clock: Any) -> None:
    now = int(clock.now.timestamp())
    for name, seconds in (("short", 60), ("long", 360_000)):
        Session(name, expires=datetime.fromtimestamp(now + seconds, timezone.utc)).save()


SCENES: Final[dict[str, Callable[[Database, Any], None]]] = {
    each.__name__: each
    for each in (
        *(
            free_locks,
            never_locked,
            held_and_queued,
            renewed,
            evicted,
            shared,
            permits,
            ranges,
            in_lock_table,
            versions,
        ),
        *(pending, committed, changes_beside, aborted, finished, suspended, keyed, calls, once),
        *(unique, unique_in_a_transaction, intervals, queried, expiring),
    )
}


def record() -> dict[str, Any]:
    """Return the rows that each scene leaves behind."""
    return {name: rows_of(scene) for name, scene in SCENES.items()}


def rows_of(scene: Callable[[Database, Any], None]) -> dict[str, Any]:
    """Return what a scene leaves behind."""
    with lowered(ACTIONS, FEW), lowered(STATEMENTS, 1), world() as (database, clock):
        scene(database, clock)
        kept.clear()
        return database.rows()


# What is sent


def lock_an_item(_clock: Any) -> None:
    """Take a lock that is new, and a second time; renew it, write, let go."""
    for _ in range(2):
        with Counter.locked("a") as lock:
            lock.renew()
            lock.item.value += 1
            lock.item.save()


def lock_a_name(_clock: Any) -> None:
    for _ in range(2):
        with Names.locked("n") as lock:
            lock.renew()


def wait_for_a_lock(clock: Any) -> None:
    """Wait for locks whose holders are dead: renew meanwhile."""
    for model, key in ((Counter, "a"), (Names, "n")):
        party(clock, lambda: hold(model.locked(key)))  # noqa: B023
        with model.locked(key, wait=99):
            pass


def save_a_version(_clock: Any) -> None:
    purse = Purse.get("p0", consistent_read=True)
    purse.balance = 5
    purse.save()


def move_natively(_clock: Any) -> None:
    with transaction(wait=5) as tx:
        for name in ("p0", "p1"):
            purse = tx.get(Purse, name)
            purse.balance += 10
            tx.save(purse)


def move_in_a_long_one(_clock: Any) -> None:
    """Some items have a lock soon, which an earlier one has left."""
    for _ in range(3):
        change_four()


def abort_a_long_one(_clock: Any) -> None:
    with contextlib.suppress(Conflict):
        change_four(spoil=True)


def book(_clock: Any) -> None:
    SLOTS.insert_disjoint([Slot("r", 1, end=3)])
    SLOTS.insert_disjoint([Slot("r", 5, end=8)])


SENT: Final[dict[str, Callable[[Any], None]]] = {
    each.__name__: each
    for each in (
        *(lock_an_item, lock_a_name, wait_for_a_lock),
        *(save_a_version, move_natively, move_in_a_long_one, abort_a_long_one, book),
    )
}


def record_requests() -> dict[str, Any]:
    """Return what is sent for each of them."""
    found = {}
    for name, act in SENT.items():
        with lowered(ACTIONS, FEW), lowered(STATEMENTS, 1), world() as (database, clock):
            Counter("a").save()
            for number in range(4):
                Purse(f"p{number}", balance=1).save()
            database.sent.clear()
            act(clock)
            found[name] = [each for each, _ in itertools.groupby(database.sent)]  # a waiter looks a hundred times
    return found


def change_four(*, spoil: bool = False) -> None:
    with transaction(wait=5) as tx:
        for name in ("p0", "p1", "p2", "p3"):
            purse = tx.get(Purse, name)
            purse.balance += 10
            tx.save(purse)
        if spoil:
            Purse("p3").update([Purse.balance.set(2)], add_version_condition=False)


#: Where each release has its limits. With one statement in a batch, none is sent.
ACTIONS: Final = (("_core.limits", "MOST_ACTIONS"), ("_core.dynamodb", "MOST_ACTIONS"))
STATEMENTS: Final = (("_core.limits", "MOST_STATEMENTS"), ("_core.dynamodb", "MOST_STATEMENTS"))
SPILL: Final = (("_transactions.marking", "SPILL_BYTES"), ("_transactions.prepare", "MOST_BYTES_IN_ITEM"))


@contextmanager
def lowered(limit: tuple[tuple[str, str], ...], value: int) -> Iterator[None]:
    """Let a limit be another one."""
    for module_name, name in limit:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(f"pynamo_locking.{module_name}")
            if hasattr(module, name):
                before = getattr(module, name)
                setattr(module, name, value)
                try:
                    yield
                finally:
                    setattr(module, name, before)
                return
    raise LookupError(limit)


def in_lines(recorded: Any, depth: int = 3) -> str:
    """Return JSON with a line for each row and request."""
    if depth == 0 or not recorded or not isinstance(recorded, (dict, list)):
        return json.dumps(recorded)
    if isinstance(recorded, dict):
        parts, ends = [f"{json.dumps(name)}: {in_lines(each, depth - 1)}" for name, each in recorded.items()], "{}"
    else:
        parts, ends = [in_lines(each, 0) for each in recorded], "[]"
    return ends[0] + "\n" + ",\n".join(parts) + "\n" + ends[1]


if __name__ == "__main__":
    rows = record()
    number = int(rows["free_locks"]["Counter"][0]["lock"]["M"]["f"]["N"])
    recorded = {"release": sys.argv[1], "format": number, "rows": rows, "requests": record_requests()}
    print(in_lines(recorded))  # noqa: T201 - what this program is for
