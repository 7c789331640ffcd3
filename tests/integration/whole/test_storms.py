"""Nothing may grow for ever: what is left after many operations of each kind."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import (
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    TransactWrite,
    VersionAttribute,
    VersionedMixin,
    transaction,
)
from pynamo_locking.exceptions import BatchError, LockLost
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.recipes import IdempotencyTable
from tests.support.models import declare, meta
from tests.support.transaction_models import Transactions, make_long_from, rows_of
from tests.support.unique_models import Uniques

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_long_transactions")]

#: Few polls, since time is virtual and polls are not.
CALM: Final = LockSettings(lease=6, poll_interval=0.5, max_poll_interval=1, request_timeout=1)
Guards: Final = declare("Guards", NamedLock, table_name="guards", lock_settings=CALM)
Jobs: Final = declare("Jobs", NamedLock, table_name="jobs", lock_settings=CALM)
Calls: Final = declare("Calls", IdempotencyTable, table_name="calls", lock_settings=CALM)
Purse: Final = declare(
    "Purse", lock=True, version=True, numbers="balance", transaction_table=Transactions, lock_settings=CALM
)
Member: Final = declare(
    *("Member", VersionedMixin),
    version=True,
    texts="email",
    unique=("email",),
    unique_table=Uniques,
)


class Stay(IntervalMixin, LockableModel):
    """A row that moves."""

    Meta = meta("stays", lock_table=Guards, transaction_table=Transactions, interval=("begin", "end"))

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    version = VersionAttribute()
    lock = LockAttribute()


@pytest.fixture
def _long_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    make_long_from(monkeypatch, 3)


# The operations


def save() -> None:
    purse = Purse.get("save")
    purse.balance += 1
    purse.save()


def update() -> None:
    Purse.get("update").update([Purse.balance.add(1)])


def edit() -> None:
    with Purse.edit("edit") as purse:
        purse.balance += 1


def locked() -> None:
    is_saved = False
    try:
        with Purse.locked("locked") as lock:
            lock.item.balance += 1
            lock.item.save()
            is_saved = True
    except LockLost:
        if not is_saved:  # else only the release was too late
            raise


def add_one(purse: Any) -> None:
    purse.balance += 1


def modify() -> None:
    Purse.modify("modify", add_one)


def transact_write() -> None:
    purse = Purse.get("transact_write")
    purse.balance += 1
    with TransactWrite(connection=Purse._get_connection().connection) as transact:
        transact.save(purse)


def in_transaction(name: str, *others: str) -> None:
    with transaction(Transactions) as tx:
        for each in (name, *others):
            purse = tx.get(Purse, each)
            purse.balance += 1
            tx.save(purse)


def native() -> None:
    in_transaction("native", "second")


def batch() -> None:
    purse = Purse.get("batch")
    purse.balance += 1
    try:
        with Purse.guarded_batch() as writes:
            writes.save(purse)
    except BatchError as error:  # it may say of its write that nobody knows
        [result] = error.results
        raise result.error from error


def unique() -> None:
    member = Member.get("unique")
    member.email = str(int(member.email) + 1)
    member.save()


def call() -> None:
    key = str(Purse.get("call", consistent_read=True).balance)
    with transaction(Transactions) as tx, Calls.call(key) as once:
        if not once.is_repeated:
            purse = tx.get(Purse, "call")
            purse.balance += 1
            tx.save(purse)
            once.result = key


def rows(room: str) -> list[Stay]:
    return list(Stay.query(room, consistent_read=True))


#: Each changes items that are there.
CHANGING: Final = (save, update, edit, locked, modify, transact_write, native, batch, call, unique)
PURSES: Final = [*(each.__name__ for each in CHANGING), "second"]


def bind(engine: Engine) -> None:
    """Store the items of all operations."""
    engine.bind(Purse, Transactions, Calls, Stay, Guards, Member, Uniques, Jobs)
    for name in PURSES:
        Purse(name).save()
    Member("unique", email="0").save()


def once(number: int) -> None:
    with Jobs.once(f"job {number}", period=timedelta(days=1)) as run:
        assert run


def hold_a_name(number: int) -> None:
    with Jobs.locked(f"name {number}"):
        pass


def book(number: int) -> None:
    """In a room of its own, which is deleted as well."""
    stay = Stay(f"room {number}", 0, end=1)
    Stay.intervals.insert_disjoint([stay])
    Stay.intervals.move(stay, 1, 2)
    [stay] = rows(f"room {number}")
    stay.delete()


def join_and_leave(number: int) -> None:
    member = Member(str(number), email=f"{number}@example.com")
    member.save()
    member.delete()


def make_or_delete(number: int) -> None:
    """Each second call deletes what the last one has made."""
    with transaction(Transactions, idempotency_key=str(number), record=True) as tx:
        for name in (f"{number // 2}/{i}" for i in range(4)):
            (tx.delete(tx.get(Purse, name)) if number % 2 else tx.save(Purse(name)))


TIMES: Final = 100
#: Operations on names of their own.
NAMED: Final = (once, hold_a_name, book, join_and_leave, make_or_delete)


@pytest.mark.parametrize("operation", [*CHANGING, *NAMED], ids=lambda each: each.__name__)
def test_only_rows_with_an_expiry_are_left(memory: Engine, operation: Callable[..., None]) -> None:
    """Of a hundred of each operation: the items of the application, and rows that DynamoDB's TTL deletes.

    One row for each hash key stays: the guard of its intervals. And one for each unique value that an item has.
    """
    bind(memory)
    for number in range(TIMES):
        operation(*([number] if operation in NAMED else []))
    lasting = Counter(
        table.__name__
        for table in (Transactions, Calls, Guards, Jobs, Uniques)
        for row in rows_of(table)
        if "expires_s" not in row
    )
    assert lasting == {"Uniques": 1} | ({"Guards": TIMES} if operation is book else {})
