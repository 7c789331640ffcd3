"""Every public way that creates or writes a row of this package, and which row: for items of others in its place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking import NamedLock, TransactWrite, locked_all, transaction
from pynamo_locking.exceptions import BatchError, ConfigurationError
from tests.support.interval_models import Slot, SlotLocks, slots
from tests.support.models import Device, Locks, declare
from tests.support.transaction_helpers import add_fillers
from tests.support.transaction_models import Entry, Purse, Robot, RowLocks, Seat, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.connection import Connection
    from pynamodb.models import Model

    from tests.engines.engine import Engine

#: The key of the customer, and the name of the lock.
NAME: Final = "customer-1"

#: Of a commit.
PATHS: Final = ("single", "native", "long")


#: A lock with an attribute of its own, and a version, so that transactions can write it.
Memo: Any = declare("Memo", NamedLock, version=True, texts="note", transaction_table=Transactions)


@dataclass(frozen=True)
class Way:
    """A way to a row.

    Attributes:
        table: the model of the table that the row is in.
        key: of the row.
        act: goes the way.
        models: others that it needs.
        error: what is raised where the row is an item of another program.
    """

    table: type[Model]
    key: str
    act: Callable[[], Any]
    models: tuple[type[Model], ...] = ()
    error: type[Exception] = ConfigurationError


def take(lock: Any) -> None:
    """Take a lock, and give it back."""
    with lock as taken:
        bool(taken)


def by_hand() -> None:
    """Take one and give it back by hand."""
    lock = Locks.locked(NAME)
    lock.acquire()
    lock.release()


async def atake() -> None:
    """Take one as a task."""
    async with Locks.locked(NAME, wait=0):
        pass


def atransaction(path: str, act: Callable[[Any], Any]) -> None:
    """Do something in a transaction of that path."""
    with transaction() as tx:
        act(tx)
        add_fillers(tx, path)


def transacted(act: Callable[[Any], Any]) -> None:
    """Do something in a TransactWrite."""
    connection: Connection = Memo._get_connection().connection
    with TransactWrite(connection=connection) as tx:
        act(tx)


def batched(*, transactions: bool) -> None:
    """Save in a batch."""
    with Memo.guarded_batch(transactions=transactions) as batch:
        batch.save(Memo(NAME, note="n"))


def for_update() -> None:
    """Take a lock in a transaction."""
    Robot("r").save()
    with transaction() as tx:
        tx.get(Robot, "r", for_update=True)


def for_update_of_nothing() -> None:
    """Take the lock of the name of an absent item."""
    with transaction() as tx:
        tx.get_or_none(Seat, "a", for_update=True)


def keyed(path: str) -> None:
    """Commit a transaction with a key."""
    with transaction(idempotency_key="order-1") as tx:
        tx.save(Purse("p", balance=1))
        add_fillers(tx, path)


def counted() -> None:
    """Create an item where others query."""
    with transaction() as tx:
        tx.save(Entry("b", 1, amount=1))


def queried() -> None:
    """Query them."""
    with transaction() as tx:
        tx.query(Entry, "b")


def change(memo: Memo) -> None:
    """Change a row."""
    memo.note = "n"


def tx_save(path: str) -> Way:
    """Save a row in a transaction of that path."""
    return Way(Memo, NAME, lambda: atransaction(path, lambda tx: tx.save(Memo(NAME, note="n"))), (Transactions, Purse))


def tx_update(path: str) -> Way:
    """Update a row in a transaction of that path, whatever is there."""
    actions = [Memo.note.set("n")]
    act: Any = lambda tx: tx.update(Memo(NAME), actions, add_version_condition=False)  # noqa: E731
    return Way(Memo, NAME, lambda: atransaction(path, act), (Transactions, Purse))


def tx_keyed(path: str) -> Way:
    """Commit a transaction of that path with a key."""
    return Way(Transactions, "key#order-1", lambda: keyed(path), (Purse,))


LOCKS: Final[dict[str, Way]] = {
    "`NamedLock.locked`": Way(Locks, NAME, lambda: take(Locks.locked(NAME, wait=0))),
    "`NamedLock.locked(shared=True)`": Way(Locks, NAME, lambda: take(Locks.locked(NAME, shared=True))),
    "`NamedLock.locked(permits=2)`": Way(Locks, NAME, lambda: take(Locks.locked(NAME, permits=2))),
    "`NamedLock.locked_range`": Way(Locks, NAME, lambda: take(Locks.locked_range(NAME, 1, 2))),
    "`NamedLock.locked().acquire()`": Way(Locks, NAME, by_hand),
    "`NamedLock.try_locked`": Way(Locks, NAME, lambda: take(Locks.try_locked(NAME))),
    "`NamedLock.locked_first`": Way(Locks, NAME, lambda: take(Locks.locked_first([NAME]))),
    "`NamedLock.once`": Way(Locks, NAME, lambda: take(Locks.once(NAME, period=3600))),
    "`NamedLock.edit`": Way(Memo, NAME, lambda: take(Memo.edit(NAME)), (Transactions,)),
    "`async with NamedLock.locked`": Way(Locks, NAME, lambda: asyncio.run(atake())),
    "`locked_all`": Way(Locks, NAME, lambda: take(locked_all(Locks.locked("a"), Locks.locked(NAME)))),
    "`Model.locked` with `Meta.lock_table`": Way(Locks, "{items}/d", lambda: take(Device.locked("d")), (Device,)),
    "`Model.edit` with `Meta.lock_table`": Way(Locks, "{items}/d", lambda: take(Device.edit("d")), (Device,)),
    "`Model.locked_range`": Way(SlotLocks, "{items}/d", lambda: take(Slot.locked_range("d", 1, 2)), (Slot,)),
    "`tx.get(for_update=True)`": Way(RowLocks, "{items}/r", for_update, (Robot, Transactions)),
    "`tx.get(for_update=True)` of an absent item": Way(
        RowLocks, "{items}/a", for_update_of_nothing, (Seat, Transactions)
    ),
}


def memo(act: Callable[[], Any], error: type[Exception] = ConfigurationError, *models: type[Model]) -> Way:
    """Return a way to a row of `Memo`."""
    return Way(Memo, NAME, act, (Transactions, *models), error)


def guard(act: Callable[[], Any]) -> Way:
    """Return a way to the row that guards the intervals of a hash key."""
    return Way(SlotLocks, "guard#{items}/d", act, (Slot,))


def by_transact_write(*, saves: bool) -> Callable[[], Any]:
    """Save or update a row in a TransactWrite."""
    if saves:
        return lambda: transacted(lambda tx: tx.save(Memo(NAME, note="n")))
    return lambda: transacted(lambda tx: tx.update(Memo(NAME), [Memo.note.set("n")]))


ROWS: Final[dict[str, Way]] = {
    "`NamedLock.save`": memo(lambda: Memo(NAME, note="n").save()),
    "`NamedLock.save(add_version_condition=False)`": memo(
        lambda: Memo(NAME, note="n").save(add_version_condition=False)
    ),
    "`NamedLock.update`": memo(lambda: Memo(NAME).update([Memo.note.set("n")])),
    "`NamedLock.touch`": memo(lambda: Memo(NAME).touch()),
    "`NamedLock.modify(create=True)`": memo(lambda: Memo.modify(NAME, change=change, create=True)),
    "`NamedLock.delete`": memo(lambda: Memo(NAME).delete()),
    "`NamedLock.guarded_batch`": memo(lambda: batched(transactions=False), BatchError),
    "`NamedLock.guarded_batch(transactions=True)`": memo(lambda: batched(transactions=True), BatchError),
    "`TransactWrite.save` of a `NamedLock`": memo(by_transact_write(saves=True)),
    "`TransactWrite.update` of a `NamedLock`": memo(by_transact_write(saves=False)),
    **{f"`tx.save` of a `NamedLock`, {path}": tx_save(path) for path in PATHS},
    **{f"`tx.update(add_version_condition=False)` of a `NamedLock`, {path}": tx_update(path) for path in PATHS},
}

OTHERS: Final[dict[str, Way]] = {
    "`insert_disjoint`": guard(lambda: Slot.intervals.insert_disjoint(slots((1, 2)))),
    "`insert_disjoint(pessimistic=True)`": guard(
        lambda: Slot.intervals.insert_disjoint(slots((1, 2)), pessimistic=True)
    ),
    "`save` of an interval": guard(lambda: [slot.save() for slot in slots((1, 2))]),
    **{f"`transaction(idempotency_key=...)`, {path}": tx_keyed(path) for path in PATHS[1:]},
    "`tx.save` with `Meta.guard_queries`": Way(Transactions, "guard#{items}/b", counted, (Entry,)),
    "`tx.query` with `Meta.guard_queries`": Way(Transactions, "guard#{items}/b", queried, (Entry,)),
}

WAYS: Final = LOCKS | ROWS | OTHERS


def bind(engine: Engine, way: Way) -> str:
    """Make the tables of a way; return the key of the row that it means."""
    for model in (way.table, *way.models):
        engine.bind(model)
    items = way.models[0].Meta.table_name if way.models else ""
    return way.key.format(items=items)
