"""The public API as users write it. Never executed: mypy --strict and pyright check it."""

# PynamoDB's Model has a protocol called Meta, which no model's own Meta fulfils in full.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager  # noqa: TC003 - written as users write it
from datetime import datetime, timedelta, timezone
from threading import Event
from typing import Any, Literal, TypeVar

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import DoesNotExist, PutError
from pynamodb.expressions.condition import Condition
from pynamodb.models import Model
from pynamodb.pagination import ResultIterator
from typing_extensions import assert_type

import pynamo_locking_testing as testing
from pynamo_locking import (
    ExpiringMixin,
    Lock,
    LockableMixin,
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    TransactionTable,
    TransactWrite,
    TTLAttribute,
    VersionAttribute,
    VersionedMixin,
    locked_all,
    transaction,
    transactional,
)
from pynamo_locking.batches import BatchResult, GuardedBatch
from pynamo_locking.contrib.celery import TaskClaims, UniqueTask
from pynamo_locking.contrib.messages import partial_batch
from pynamo_locking.exceptions import (
    BatchError,
    CallAbandoned,
    ConfigurationError,
    Conflict,
    ItemLocked,
    ItemNotFound,
    LockingError,
    LockLost,
    LockTimeout,
    NotUnique,
    OutcomeUnknown,
    PayloadMismatch,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
)
from pynamo_locking.inspection import LockState, QueueEntry
from pynamo_locking.intervals import IntervalMixin, Intervals
from pynamo_locking.recipes import IdempotencyTable, IdempotentCall, idempotent
from pynamo_locking.transactions import CommitPlan, SweepReport, Transaction, current_transaction
from pynamo_locking.unique import UniqueProblem, UniqueReport, UniqueTable


class Account(LockableModel):
    class Meta:
        table_name = "accounts"
        lock_settings = LockSettings(wait=10, lease=30.5, max_clock_skew=None)

    account_id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Savings(Account):
    rate = NumberAttribute()


class Locks(NamedLock):
    class Meta:
        table_name = "locks"

    note = UnicodeAttribute(null=True)


class Existing(Model):
    key = UnicodeAttribute(hash_key=True)


class Mixed(LockableMixin, Existing):
    class Meta:
        table_name = "mixed"
        lock_table = Locks

    part = NumberAttribute(range_key=True)


class Office(VersionedMixin, Model):
    class Meta:
        table_name = "offices"
        write_id = "w"

    office_id = UnicodeAttribute(hash_key=True)
    name = UnicodeAttribute(null=True)
    version = VersionAttribute(attr_name="v")


class Session(ExpiringMixin, VersionedMixin, Model):
    class Meta:
        table_name = "sessions"

    session_id = UnicodeAttribute(hash_key=True)
    part = NumberAttribute(range_key=True)
    expires = TTLAttribute(null=True, default_for_new=timedelta(hours=1))
    version = VersionAttribute()


class Both(ExpiringMixin, LockableModel):
    class Meta:
        table_name = "both"

    key = UnicodeAttribute(hash_key=True)
    expires = TTLAttribute()
    version = VersionAttribute()
    lock = LockAttribute()


def modes() -> None:
    """Shared, counted and ranged locks, and taking what is free."""
    with Account.locked("a-1", shared=True) as lock:
        assert_type(lock, Lock[Account])
        assert_type(lock.item, Account)
    with Account.locked("a-1") as lock:
        assert_type(lock.downgrade(), None)
    with Locks.locked("api", permits=3, wait=5) as permit, Locks.locked_range("file", 0, None) as part:
        assert_type((permit, part), tuple[Lock[Locks], Lock[Locks]])
    with Mixed.locked_table(wait=5, shared=True) as table:
        table.renew()
    with Mixed.locked_range("k", None, 10, shared=True, wait=timedelta(seconds=1)) as ranged:
        assert_type(ranged, Lock[Mixed])
    with Account.try_locked("a-1") as tried:
        assert_type(tried, Lock[Account] | None)
    with Mixed.locked_first([("k", 1), ("k", 2)], lease=20) as first:
        assert_type(first, Lock[Mixed] | None)


def locked() -> None:
    with Account.locked("a-1", wait=10, lease=timedelta(minutes=1), heartbeat=False, owner="me") as lock:
        assert_type(lock, Lock[Account])
        assert_type(lock.item, Account)
        assert_type(lock.ticket, int)
        assert_type(lock.owner, str)
        assert_type(lock.name, str)
        assert_type(lock.is_held, bool)
        assert_type(lock.remaining, float)
        assert_type(lock.lost, Event)
        lock.ensure_remaining(5)
        lock.ensure_remaining(timedelta(seconds=5))
        assert_type(lock.chunks([1, 2], 10), Iterator[list[int]])
        for chunk in lock.chunks(iter("ab"), every=10, remaining=timedelta(seconds=5)):
            assert_type(chunk, list[str])
        lock.renew()
        assert_type(lock.held_condition(), Condition)
        account = lock.item
        account.balance -= 10
        assert_type(account.balance, float)
        assert_type(account.save(), dict[str, Any])
        account.save(Account.balance > 0, add_version_condition=False)
        account.update([Account.balance.set(0)], condition=lock.held_condition(), add_version_condition=False)
        account.delete(add_version_condition=False)
        account.refresh(consistent_read=True)

    assert_type(Savings.locked("s").acquire().item, Savings)
    assert_type(Mixed.locked("k", 1, wait=math.inf).acquire().item, Mixed)


def lost(reason: str) -> None: ...


def callbacks() -> Lock[Account]:
    def count(reason: str) -> int:
        return len(reason)

    Account.locked("a-1", on_lost=lost)
    Account.locked("a-1", on_lost=print)
    return Account.locked("a-1", on_lost=count, settings=LockSettings(lease=20))


def by_hand() -> None:
    lock = Account.locked("a-1")
    assert_type(lock.acquire(wait=timedelta(seconds=1)), Lock[Account])
    lock.release()


def the_attribute() -> None:
    assert_type(Account.lock, LockAttribute)
    condition: Condition = Account.lock.exists()
    Account("a-1").save(condition)


def edited() -> None:
    with Account.edit("a-1", wait=5) as account:
        assert_type(account, Account)
        account.balance += 1
    with Savings.edit("s-1") as savings:
        assert_type(savings, Savings)
    use(Account.edit("a-1"))


def use(editing: AbstractContextManager[Account]) -> None: ...


def named() -> None:
    with Locks.locked("nightly-report", wait=0) as lock:
        assert_type(lock, Lock[Locks])
        assert_type(lock.item, Locks)
        assert_type(lock.item.note, str)
    Locks.create_table()
    Locks.create_table(wait=False, billing_mode="PAY_PER_REQUEST")


def several() -> None:
    with locked_all(
        Account.locked("a-1"), Locks.locked("x"), Account.locked("a-2"), wait=timedelta(seconds=3)
    ) as locks:
        assert_type(locks, tuple[Lock[Account], Lock[Locks], Lock[Account]])


def states() -> None:
    state = Account.lock_state("a-1")
    assert_type(state, LockState)
    assert_type(state.holders, tuple[QueueEntry, ...])
    assert_type(state.waiters, tuple[QueueEntry, ...])
    assert_type(state.next_ticket, int)
    assert_type(state.exists, bool)
    assert_type(state.evicted, Mapping[int, int])
    for entry in (*state.holders, *state.waiters):
        assert_type(entry.owner, str)
        assert_type(entry.ticket, int)
        assert_type(entry.lease, float)
        assert_type(entry.age, float)
        assert_type((entry.queued_for, entry.held_for), tuple[float, float])
        assert_type(Account.break_lock("a-1", ticket=entry.ticket), bool)
    account = Account.get("a-1", consistent_read=True)
    assert_type(account, Account)
    assert_type(account.lock, LockState)
    assert_type(Account().lock.holders, tuple[QueueEntry, ...])


def transactions() -> None:
    account = Account("a-1")
    with Account.locked("a-1") as lock, TransactWrite() as transaction:
        assert_type(transaction, TransactWrite)
        transaction.save(account, Account.balance > 0, add_version_condition=False)
        transaction.update(account, [Account.balance.add(1)], add_version_condition=False)
        transaction.delete(account, add_version_condition=False)
        transaction.condition_check(Existing, "k", condition=Existing.key.exists())
        lock.add_check_to(transaction)
    with TransactWrite("token", "SIZE", connection=Connection(), return_consumed_capacity="TOTAL") as transaction:
        transaction.save(Existing("k"))
    TransactWrite(Connection())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def batches() -> None:
    with Account.batch_write(unguarded=True) as batch:
        batch.save(Account("a-1"))


def read_sets() -> None:
    office = Office.get("o")
    with TransactWrite() as transaction:
        transaction.check(office)
        transaction.save(Office("p"))


def versions() -> None:
    office = Office("o", name="x", version=3)
    assert_type(office, Office)
    assert_type(office.version, int)
    assert_type(Office.version, VersionAttribute)
    office.version = 4
    condition: Condition = Office.version == 4
    office.save(condition)
    assert_type(office.save(add_version_condition=False), dict[str, Any])
    office.update([Office.name.set("y")], condition, add_version_condition=False)
    office.delete(Office.name.exists(), add_version_condition=False)
    office.touch()
    office.touch(condition, add_version_condition=False)


def rename(office: Office) -> None:
    office.name = "new"


def modified() -> None:
    assert_type(Office.modify("o", change=rename), Office)
    assert_type(Office.modify("o", None, rename, attempts=3, condition=Office.name.exists(), create=True), Office)
    assert_type(Office.modify("o", change=lambda office: office.touch()), Office)
    assert_type(Savings.modify("s", change=lambda savings: savings.rate + 1, consistent_read=False), Savings)
    assert_type(Session.modify("s", 1, lambda session: None), Session)
    Office.modify("o", rename)


def told(done: int, total: int) -> None: ...


def guarded_batches() -> None:
    with Office.guarded_batch(transactions=True, workers=4, on_progress=told) as batch:
        assert_type(batch, GuardedBatch[Office])
        batch.save(Office("a"))
        batch.save(Office("a"), Office.name.exists(), add_version_condition=False)
        batch.delete(Office("b"), condition=Office.name.exists(), add_version_condition=False)
    assert_type(batch.results, tuple[BatchResult, ...])
    for result in batch.results:
        assert_type(result.operation, str)
        assert_type(result.error, "Exception | None")
        assert_type(result.is_applied, bool)
    with Savings.guarded_batch(on_progress=print) as savings:
        assert_type(savings, GuardedBatch[Savings])


def expiring() -> None:
    session = Session.get("s", 1, consistent_read=True, include_expired=True)
    assert_type(session, Session)
    assert_type(session.expires, datetime)
    session.expires = datetime.now(timezone.utc) + timedelta(minutes=5)
    session.refresh(include_expired=True)
    assert_type(Session.query("s", Session.part > 1, include_expired=True), ResultIterator[Session])
    assert_type(Session.query("s", None, Session.expires.exists(), limit=5), ResultIterator[Session])
    assert_type(Session.scan(Session.part > 1, page_size=5, include_expired=True), ResultIterator[Session])
    assert_type(Session.count("s", include_expired=True), int)
    assert_type(Session.batch_get([("s", 1)], include_expired=True), Iterator[Session])
    assert_type(Both.get("b"), Both)
    assert_type(Both.locked("b").acquire(), Lock[Both])
    assert_type(Both.modify("b", change=lambda both: both.touch()), Both)


def settings() -> LockSettings:
    settings = LockSettings(
        wait=math.inf,
        lease=60,
        heartbeat=True,
        max_clock_skew=5,
        max_waiters=10,
        poll_interval=0.05,
        max_poll_interval=1,
        request_timeout=0.5,
        max_lease=3600,
        max_hold=timedelta(hours=1),
    )
    assert_type(settings.max_hold, float)
    assert_type(settings.wait, float)
    assert_type(settings.max_lease, float)
    assert_type(settings.max_clock_skew, "float | None")
    assert_type(Account.lock_settings(), LockSettings)
    return settings


def settings_with_timedeltas() -> LockSettings:
    # Documented: "all durations are float seconds or timedelta when given".
    return LockSettings(wait=timedelta(seconds=10), lease=timedelta(minutes=1))


def errors() -> None:  # noqa: C901, PLR0912 - one handler for each error
    try:
        locked()
    except ItemLocked as error:
        assert_type(error.holder, "str | None")
        assert_type(error.ticket, "int | None")
        assert_type(error.current, Any)
    except StaleVersion as error:
        assert_type(error.expected, "int | None")
        assert_type(error.actual, "int | None")
        assert_type(error.current, Any)
    except TransactionConflict as error:
        assert_type(error.reasons, "tuple[str | None, ...]")
    except BatchError as error:
        assert_type(error.results, tuple[BatchResult, ...])
    except Conflict as error:
        assert_type(error.cause, "Exception | None")
    except LockTimeout as error:
        assert_type(error.queue, "LockState | None")
        handle_timeout(error)
    except LockLost as error:
        assert_type(error.reason, str)
    except OutcomeUnknown as error:
        assert_type(error.write_id, "str | None")
        assert_type(error.resolve(), Literal["applied", "not applied", "unknown"])
    except ItemNotFound as error:
        assert_type(error.cause, "Exception | None")
    except DoesNotExist:
        pass
    except ConfigurationError as error:
        handle_value_error(error)
    except LockingError as error:
        assert_type(error.cause_response_code, "str | None")
    except PutError as error:
        assert_type(error.cause_response_code, "str | None")


def handle_timeout(error: TimeoutError) -> None: ...


def handle_value_error(error: ValueError) -> None: ...


class Transactions(TransactionTable):
    class Meta:
        table_name = "transactions"


class Stay(IntervalMixin, LockableModel):
    class Meta:
        table_name = "stays"
        interval = ("begin", "end")

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    version = VersionAttribute()


class LongStay(Stay):
    """Rows of the same table."""


_S = TypeVar("_S", bound=IntervalMixin)


def generic_intervals(model: type[_S], row: _S) -> list[_S]:
    """The class stays known where it is a variable."""
    model.intervals.move(row, 2, 3)
    return model.intervals.overlapping("r", 1, None)


def use_intervals(account: Account, stay: Stay, long: LongStay) -> None:
    assert_type(Stay.intervals, Intervals[Stay])
    assert_type(long.intervals, Intervals[LongStay])
    assert_type(Stay.intervals.free("r", 9, 12), list[tuple[Any, Any]])
    assert_type(LongStay.intervals.overlapping("r", 9, None), list[LongStay])
    assert_type(next(Stay.intervals.overlapping_in(["r"], 9, 12, limit=1)), Stay)
    assert_type(next(Stay.intervals.free_in(["r"], 9, 12)), tuple[Any, Any, Any])
    assert_type(generic_intervals(LongStay, long), list[LongStay])
    Stay.intervals.insert_disjoint([stay, long], pessimistic=True, wait=5)
    Stay.intervals.close_at(long, 11)
    Stay.intervals.insert_disjoint([account])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Stay.intervals.move(account, 2, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    LongStay.intervals.move(stay, 2, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def use_transactions(account: Account) -> None:
    with transaction(Transactions, isolation="serializable", wait=timedelta(seconds=5), on_progress=print) as tx:
        assert_type(tx, Transaction)
        assert_type(tx.get(Account, "a-1", for_update=True), Account)
        assert_type(tx.get_or_none(Account, "a-1", for_share=True), "Account | None")
        assert_type(tx.get_or_none(Account, "a-1"), "Account | None")
        assert_type(tx.get_all(Account, ["a-1"], for_update=True), "list[Account | None]")
        assert_type(tx.get_all(Account, ["a-1"], for_share=True), "list[Account | None]")
        assert_type(tx.scan(Account, Account.balance > 1, at_most=5), "list[Account]")
        assert_type(next(Account.query("a-1", consistent_read=True)), Account)
        assert_type(next(Account.scan(consistent_read=True)), Account)
        assert_type(Account.batch_get(["a-1"], consistent_read=True), Iterator[Account])
        assert_type(Account.count("a-1", consistent_read=True), int)
        assert_type(tx.query(Account, "a-1"), list[Account])
        tx.save(account, Account.balance >= 0)
        tx.update(account, [Account.balance.add(1)])
        tx.delete(account, add_version_condition=False)
        tx.check(account)
        tx.touch(account)
        tx.insert_disjoint(Stay, [Stay("r", 1, end=2)], pessimistic=True)
        tx.insert_disjoint(Stay, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        tx.move(Stay("r", 1, end=2), 2, 3, pessimistic=True)
        TransactWrite().insert_disjoint(Stay, [Stay("r", 1, end=2)])
        TransactWrite().move(Stay("r", 1, end=2), 2, 3)
        tx.savepoint().rollback()
        tx.after_commit(lambda: None)
        assert_type(tx.suspend(expires_after=timedelta(hours=1)), str)
        tx.resume("b1f0", [Account])
        tx.resume("b1f0", Account)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert_type(tx.plan(), CommitPlan)
        assert_type(len(tx.plan().staged), int)

    @transactional(attempts=3, idempotency_key="k")
    def move(tx: Transaction, source: str, amount: int) -> bool:
        return bool(amount and tx.get(Account, source))

    assert_type(move("a-1", amount=10), bool)
    assert_type(current_transaction(), "Transaction | None")
    assert_type(Transactions.outcome("id"), "str | None")
    assert_type(Transactions.recover("id", force=True), "str | None")
    assert_type(Transactions.outcome(idempotency_key="k"), "str | None")
    with transaction(record=True):
        pass
    assert_type(Transactions.sweep(segments=2, dry_run=True, older_than=timedelta(hours=1)), SweepReport)
    assert_type(Transactions.outcome("id"), "str | None")
    assert_type(Transactions.recover("id", force=True), "str | None")
    assert_type(Transactions.sweep(segments=2, dry_run=True), SweepReport)
    assert_type(Account.get("a-1", consistent_read=True), Account)
    try:
        move("a-1", 10)
    except TransactionAborted as error:
        assert_type(error.reason, Literal["preempted", "lease_expired", "requested"])


def options() -> None:
    """Those of `locked` are known wherever they are handed on: a slip is an error before the program runs."""
    Account.edit("k", wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Account.edit("k", heartbeat="work")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Account.edit("k", wait="long")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Mixed.locked("k", 1, wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Account.locked("k", wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Account.try_locked("k", wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Account.locked_first(["k"], leese=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    with Account.edit("k", wait=3, lease=timedelta(minutes=1), heartbeat=False, max_hold=90) as account:
        assert_type(account, Account)
    with Account.edit("k", settings=LockSettings(), shared=False, permits=1) as account:
        assert_type(account, Account)


def locked_together(keys: list[str]) -> None:
    """Of one model they stay locks of that model; of several ones they are locks of any."""
    with locked_all(Account.locked("a-1"), Account.locked("a-2"), wait=3) as locks:
        assert_type(locks, tuple[Lock[Account], ...])
        assert_type(locks[0].item, Account)
    with locked_all(*[Account.locked(key) for key in keys]) as locks:
        assert_type(locks, tuple[Lock[Account], ...])
    with locked_all(Account.locked("a-1"), Locks.locked("x")) as (account, name):
        assert_type(account.item, Account)
        assert_type(name.item, Locks)
    four = locked_all(Account.locked("a-1"), Locks.locked("x"), Locks.locked("y"), Account.locked("a-2"))
    with four as (_, x, y, last):
        assert_type((x, y, last), tuple[Lock[Locks], Lock[Locks], Lock[Account]])
    mixed: list[Lock[Any]] = [Account.locked("a-1"), Locks.locked("x")]
    with locked_all(*mixed) as any_number:
        assert_type(any_number, tuple[Lock[Any], ...])


class Uniques(UniqueTable):
    class Meta:
        table_name = "uniques"


class Person(VersionedMixin, Model):
    class Meta:
        table_name = "people"
        unique = ("email", ("first", "last"))
        unique_table = Uniques

    id = UnicodeAttribute(hash_key=True)
    email = UnicodeAttribute(null=True)
    first = UnicodeAttribute(null=True)
    last = UnicodeAttribute(null=True)
    version = VersionAttribute()


def unique_values() -> None:
    try:
        Person("p-1", email="a@example.com").save()
    except NotUnique as error:
        assert_type(error.fields, tuple[str, ...])
        assert_type(error.values, tuple[Any, ...])
        assert_type(error.holder, dict[str, Any] | None)
        assert_type(error.cause, Exception | None)
    report = Person.check_unique()
    assert_type(report, UniqueReport)
    assert_type(report.is_sound, bool)
    assert_type(report.problems, tuple[UniqueProblem, ...])
    assert_type(Person.repair_unique(), UniqueReport)
    for problem in report.problems:
        assert_type(problem.kind, str)
        assert_type(problem.items, tuple[dict[str, Any], ...])
        assert_type(problem.is_repaired, bool)
    Uniques.create_table(wait=True)


class Calls(IdempotencyTable):
    class Meta:
        table_name = "calls"


class Declined(Exception):  # noqa: N818
    pass


@idempotent(Calls, key="order_id", payload=lambda order_id, amount: [amount], expires_after=timedelta(days=2), wait=0)
def charge(order_id: str, amount: int) -> dict[str, int]:
    return {order_id: amount}


@transactional
def bare(tx: Transaction, order_id: str) -> str:
    return order_id


assert_type(bare("o-1"), str)


@transactional()
@idempotent(
    Calls, key="order_id", key_prefix="ship", store_errors=(Declined,), serializer=json, lease=30, heartbeat=False
)
def ship(tx: Transaction, order_id: str) -> str:
    return order_id


def called(lambda_context: Any) -> None:
    assert_type(charge("o-1", 5), dict[str, int])
    assert_type(ship("o-1"), str)
    with Calls.call("o-2", payload={"amount": 5}, lambda_context=lambda_context, owner="me") as call:
        assert_type(call, IdempotentCall)
        assert_type(call.is_repeated, bool)
        assert_type(call.key, str)
        assert_type(call.lock, Lock[IdempotencyTable])
        call.result = 5
        call.complete({"a": 1})
    try:
        charge("o-1", amount=6)
    except (PayloadMismatch, CallAbandoned) as error:
        assert_type(error.key, str)
        Calls.settle(error.key, {"a": 1}, expires_after=60)
        Calls.forget(error.key)
    Calls.call("o-2", on_abandoned="raise")
    Calls.call("o-2", on_abandoned="wait")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def faults() -> None:
    with testing.concurrent_write(Account, "a-1", by=lambda other: assert_type(other, Account), times=2) as strikes:
        assert_type(strikes.count, int)
    with (
        testing.concurrent_write(Account, "a-1", by=Account.delete),
        testing.throttled(Account, times=1),
    ):
        pass
    with testing.throttled(Account, limit="KeyRangeThroughputExceeded", index="by_owner") as refused:
        assert_type(refused, testing.FaultCount)
    with testing.lost_responses(Account, "a-1", 3, times=1, is_applied=False) as lost:
        assert_type(lost, testing.FaultCount)
    with testing.strong_global_table(Account, conflicts=2) as met:
        assert_type(met.count, int)
    with testing.held_by_other(Account.locked("a-1", wait=0)) as lock:
        assert_type(lock.item, Account)
        testing.lose_lock(lock)
    testing.lose_lock(Locks, "x")
    testing.held_by_other(Account)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def messages(event: dict[str, Any]) -> None:
    assert_type(partial_batch(event, print), dict[str, Any])


def tasks_of_celery(task: UniqueTask, claims: type[TaskClaims]) -> None:
    assert_type(task.lock, Lock[TaskClaims])
    assert_type(task.lock.ticket, int)
    assert_type(claims.get("a").task_id, str)
