"""Storms: a quarter of all requests is spoilt, clocks jump, 64 processes want one item, and nothing may grow for ever.

Every operation adds one to a number that it reads first. An operation that returns has added it once; one that raises
has not, unless its error is `OutcomeUnknown`, and then `resolve` says so, or that it cannot tell.
"""

from __future__ import annotations

import contextvars
import random
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.exceptions import ConnectionClosedError
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException

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
from pynamo_locking.exceptions import BatchError, ItemLocked, LockingError, LockLost, OutcomeUnknown
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.recipes import IdempotencyTable
from pynamo_locking.testing import VirtualClock
from tests.support.faults import Fault, serve
from tests.support.models import declare, meta
from tests.support.transaction_models import Transactions, make_long_from, rows_of
from tests.support.unique_models import Uniques
from tests.support.wire import Forward, tapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from botocore.awsrequest import AWSPreparedRequest

    from tests.engines.engine import Engine
    from tests.support.wire import Answer

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


def long() -> None:
    in_transaction("long", "third", "fourth", "fifth", "sixth")


def batch() -> None:
    purse = Purse.get("batch")
    purse.balance += 1
    try:
        with Purse.guarded_batch() as writes:
            writes.save(purse)
    except BatchError as error:  # it may say of its write that nobody knows
        [result] = error.results
        raise result.error from error


def insert() -> None:
    begin = sum(1 for _ in Stay.query("insert", consistent_read=True))
    Stay.intervals.insert_disjoint([Stay("insert", begin, end=begin + 1)])


def move() -> None:
    [row] = Stay.query("move", consistent_read=True)
    Stay.intervals.move(row, row.begin + 1, row.begin + 2)


def unique() -> None:
    member = Member.get("unique")
    member.email = str(int(member.email) + 1)
    member.save()


def call() -> None:
    key = str(TOTALS[call]())
    with transaction(Transactions) as tx, Calls.call(key) as once:
        if not once.is_repeated:
            purse = tx.get(Purse, "call")
            purse.balance += 1
            tx.save(purse)
            once.result = key


def balance(name: str) -> Callable[[], int]:
    return lambda: int(Purse.get(name, consistent_read=True).balance)


def rows(room: str) -> list[Stay]:
    return list(Stay.query(room, consistent_read=True))


TOTALS: Final[dict[Callable[[], None], Callable[[], int]]] = {
    **{
        each: balance(each.__name__)
        for each in (save, update, edit, locked, modify, transact_write, native, long, batch, call)
    },
    insert: lambda: len(rows("insert")),
    move: lambda: int(rows("move")[0].begin),
    unique: lambda: int(Member.get("unique", consistent_read=True).email or 0),
}
#: Items of other operations, which have to keep up with the first item of theirs.
FOLLOWERS: Final = {"native": ("second",), "long": ("third", "fourth", "fifth", "sixth")}


PURSES: Final = [*(each.__name__ for each in TOTALS), *(each for names in FOLLOWERS.values() for each in names)]


def bind(engine: Engine) -> None:
    """Store the items of all operations."""
    engine.bind(Purse, Transactions, Calls, Stay, Guards, Member, Uniques, Jobs)
    for name in PURSES:
        Purse(name).save()
    Stay("move", 0, end=1).save()
    Member("unique", email="0").save()


class Storm:
    """Spoils a share of all requests; late copies, and writes of another party, come before some later request."""

    KINDS: Final = (Fault.LOST_REQUEST, Fault.LOST_RESPONSE, Fault.LATE, Fault.DUPLICATED)

    def __init__(self, draw: random.Random, share: float) -> None:
        self._draw = draw
        self._late: list[Forward] = []
        self._is_rival = False
        self.share = share
        self.struck: Counter[Fault] = Counter()

    def __call__(self, endpoint: object, request: AWSPreparedRequest, operation: str, forward: Forward) -> Answer:
        if self._is_rival:
            return forward()
        self.deliver(0.2)
        if self.share and self._draw.random() < 0.1:
            contextvars.Context().run(self._write_elsewhere)
        fault = self._draw.choice(self.KINDS) if self._draw.random() < self.share else None
        answer = serve(fault, forward, lambda: self._late.append(forward))
        if fault is not None:
            self.struck[fault] += 1
        if answer is not None and fault in (None, Fault.DUPLICATED):
            return answer
        return None, ConnectionClosedError(endpoint_url=request.url, request=request)

    def _write_elsewhere(self) -> None:
        """Let another party write an item, and change no number."""
        purse, self._is_rival = Purse(self._draw.choice(PURSES)), True
        try:
            with suppress(ItemLocked):
                purse.update([Purse.balance.add(0)], add_version_condition=False)
        finally:
            self._is_rival = False

    def deliver(self, share: float) -> None:
        """Let late copies arrive."""
        arriving = [each for each in self._late if self._draw.random() < share]
        for each in arriving:
            self._late.remove(each)
            each()


def outcome(operation: Callable[[], None], storm: Storm) -> str:
    """Do an operation in a storm, and ask in the calm what became of it if the error does not say."""
    try:
        operation()
    except OutcomeUnknown as error:
        share, storm.share = storm.share, 0
        try:
            return error.resolve()
        finally:
            storm.share = share
    except (LockingError, PynamoDBException):
        return "not applied"
    return "applied"


#: What the wall clock of a process may show: so many seconds more, or less.
SKEWS: Final = (-86_400, -30, -1, 0, 0, 1, 30, 86_400)


@pytest.mark.parametrize(
    ("seed", "share", "skews", "pause_s"),
    [(0, 0.25, (0,), 0), (1, 0.25, (0,), 0), (2, 0.05, SKEWS, 4), (3, 0.25, SKEWS, 4)],
    ids=["faults-0", "faults-1", "clocks", "faults and clocks"],
)
def test_the_numbers_are_what_the_outcomes_say(
    memory: Engine, seed: int, share: float, skews: Sequence[int], pause_s: int
) -> None:
    """Nothing is lost, and nothing happens twice, with a quarter of all requests spoilt, and clocks that jump."""
    bind(memory)
    draw = random.Random(seed)
    told: dict[Callable[[], None], Counter[str]] = {each: Counter() for each in TOTALS}
    with VirtualClock() as clock, tapped(storm := Storm(draw, share)):
        for _ in range(60):
            for each in draw.sample(list(TOTALS), len(TOTALS)):
                with clock.another_process(skew_s=draw.choice(skews)):
                    told[each][outcome(each, storm)] += 1
                clock.sleep(draw.random() * pause_s)
        storm.share = 0
        storm.deliver(1)
        for each, total in TOTALS.items():
            applied, unknown = told[each]["applied"], told[each]["unknown"]
            assert applied <= total() <= applied + unknown, (each, told[each])
            for other in FOLLOWERS.get(each.__name__, ()):
                with transaction(Transactions) as tx:
                    assert tx.get(Purse, other).balance == tx.get(Purse, each.__name__).balance
    assert set(storm.struck) == set(Storm.KINDS)
    assert sum(each["applied"] for each in told.values()) > len(TOTALS) * 30


# What is left after many operations


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


TIMES: Final = 2_000
#: Operations on names of their own; the others, but for two that these include, and the rows that are meant to last.
NAMED: Final = (once, hold_a_name, book, join_and_leave, make_or_delete)


@pytest.mark.parametrize(
    "operation",
    [*(each for each in TOTALS if each not in (insert, move, long)), *NAMED],
    ids=lambda each: each.__name__,
)
def test_only_rows_with_an_expiry_are_left(memory: Engine, operation: Callable[..., None]) -> None:
    """Of two thousand of each operation: the items of the application, and rows that DynamoDB's TTL deletes.

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
    assert lasting == {"Guards": 1 + (TIMES if operation is book else 0), "Uniques": 1}
