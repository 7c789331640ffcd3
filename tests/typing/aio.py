"""The public API for asyncio as users write it. Never executed: mypy --strict and pyright check it."""

# PynamoDB's Model has a protocol called Meta, which no model's own Meta fulfils in full.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from contextlib import AbstractAsyncContextManager  # noqa: TC003 - written as users write it
from datetime import timedelta
from threading import Event
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI  # noqa: TC002 - written as users write it
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.expressions.condition import Condition
from starlette.applications import Starlette  # noqa: TC002
from starlette.requests import Request  # noqa: TC002
from starlette.responses import Response
from typing_extensions import assert_type

from pynamo_locking import (
    Lock,
    LockableMixin,
    LockableModel,
    LockAttribute,
    LockSettings,
    NamedLock,
    TransactionTable,
    TransactWrite,
    VersionAttribute,
    atransaction,
    atransactional,
    locked_all,
)
from pynamo_locking.contrib import fastapi, starlette
from pynamo_locking.inspection import LockState
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.recipes import IdempotencyTable, IdempotentCall, idempotent
from pynamo_locking.transactions import AsyncTransaction, SweepReport, Transaction
from pynamo_locking.unique import UniqueReport

_M = TypeVar("_M", bound=LockableMixin)


class Account(LockableModel):
    class Meta:
        table_name = "accounts"

    account_id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Locks(NamedLock):
    class Meta:
        table_name = "locks"


async def locked(transaction: TransactWrite) -> None:
    async with Account.locked("a-1", wait=10, lease=timedelta(minutes=1), heartbeat=False, owner="me") as lock:
        assert_type(lock, Lock[Account])
        assert_type(lock.item, Account)
        assert_type(await lock.aitem(), Account)
        assert_type(lock.ticket, int)
        assert_type(lock.owner, str)
        assert_type(lock.name, str)
        assert_type(lock.is_held, bool)
        assert_type(lock.remaining, float)
        assert_type(lock.lost, Event)
        assert_type(lock.held_condition(), Condition)
        lock.add_check_to(transaction)
        await lock.aensure_remaining(timedelta(seconds=5))
        async for chunk in lock.achunks([1, 2], every=10, remaining=5):
            assert_type(chunk, list[int])
        await lock.arenew()
        await lock.adowngrade()
    assert_type(await Account.locked("a-1").aacquire(wait=3), Lock[Account])
    await Account.locked("a-1", permits=3, settings=LockSettings(), on_lost=print).arelease()
    Account.locked("a-1", waits=10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Account.locked("a-1", wait="long")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Locks.locked_range("a-1", 0, 1, permits=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def other_ways() -> None:
    async with Account.edit("a-1", wait=5) as account:
        assert_type(account, Account)
    use(Account.edit("a-1"))
    async with Locks.locked("nightly") as named, Locks.locked_range("file", 0, None, shared=True) as part:
        assert_type((named, part), tuple[Lock[Locks], Lock[Locks]])
    async with Account.try_locked("a-1") as tried:
        assert_type(tried, Lock[Account] | None)
    async with Account.locked_first(["a-1", "a-2"], lease=20) as first:
        assert_type(first, Lock[Account] | None)
    async with locked_all(Account.locked("a-1"), Locks.locked("x"), wait=timedelta(seconds=3)) as both:
        assert_type(both, tuple[Lock[Account], Lock[Locks]])
    async with locked_all(Account.locked("a-1"), Account.locked("a-2")) as locks:
        assert_type(locks, tuple[Lock[Account], ...])
    Account.edit("a-1", wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Account.try_locked("a-1", wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Account.locked_first(["a-1"], wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def use(editing: AbstractAsyncContextManager[Account]) -> None: ...


async def models() -> None:
    account = await Account.aget("a-1", consistent_read=True)
    assert_type(account, Account)
    await account.asave(Account.balance > 1, add_version_condition=False)
    await account.aupdate([Account.balance.add(1)])
    await account.arefresh()
    assert_type(await Account.amodify("a-1", change=lambda found: found.lock), Account)
    async for found in Account.aquery("a-1", limit=3):
        assert_type(found, Account)
    async for found in Account.ascan(Account.balance > 1, limit=3):
        assert_type(found, Account)
    async for found in Account.abatch_get(["a-1", "a-2"], consistent_read=True):
        assert_type(found, Account)
    assert_type(await Account.acount("a-1", consistent_read=True), int)
    assert_type(await account.atouch(Account.balance > 1), None)
    assert_type(await Account.alock_state("a-1"), LockState)
    assert_type(await Account.abreak_lock("a-1", ticket=3), bool)
    assert_type(await Account.acheck_unique(), UniqueReport)
    assert_type(await Account.arepair_unique(), UniqueReport)
    assert_type(await account.asave(), dict[str, Any])
    await account.adelete()
    await Account.aget("a-1", consistent=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await account.asave(version_condition=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await Account.abreak_lock("a-1", ticket="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def generic(model: type[_M], key: str) -> _M:
    """The class stays known where it is a variable."""
    async for item in model.aquery(key):
        return item
    return await model.aget(key)


class Stay(IntervalMixin, LockableModel):
    class Meta:
        table_name = "stays"
        lock_table = Locks
        interval = ("begin", "end")

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    version = VersionAttribute()


async def intervals(stay: Stay) -> None:
    assert_type(await Stay.intervals.ainsert_disjoint([stay, Stay("red", 1, end=2)], pessimistic=True, wait=5), None)
    assert_type(await Stay.intervals.amove(stay, 3, 4, wait=timedelta(seconds=5)), None)
    assert_type(await Stay.intervals.aclose_at(stay, 4), None)
    assert_type(await Stay.intervals.aoverlapping("red", 1, None), list[Stay])
    assert_type(await Stay.intervals.afree("red", 1, None), list[tuple[Any, Any]])
    async for found in Stay.intervals.aoverlapping_in(["red"], 1, None, limit=3):
        assert_type(found, Stay)
    async for gap in Stay.intervals.afree_in(["red"], 1, None):
        assert_type(gap, tuple[Any, Any, Any])
    await Stay.intervals.ainsert_disjoint(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await Stay.intervals.aclose_at(Account("a-1"), 4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Transactions(TransactionTable):
    class Meta:
        table_name = "transactions"


async def transactions_of_others() -> None:
    assert_type(await Transactions.aoutcome(idempotency_key="k"), str | None)
    assert_type(await Transactions.arecover("t", force=True), str | None)
    assert_type(await Transactions.asweep(segments=2), SweepReport)


@atransactional(attempts=3, wait=timedelta(seconds=5))
async def transfer(tx: AsyncTransaction, key: str, amount: int = 1) -> int:
    account = await tx.get(Account, key, for_update=True)
    await tx.get_or_none(Account, key, for_share=True)
    await tx.scan(Account, at_most=5)
    assert_type(account, Account)
    assert_type(await tx.get_or_none(Account, key), Account | None)
    assert_type(await tx.query(Account, key), list[Account])
    account.balance += amount
    await tx.save(account)
    return amount


@atransactional
async def bare(tx: AsyncTransaction, key: str) -> int:
    return len(key)


async def transactions() -> None:
    assert_type(await transfer("a-1", amount=3), int)
    assert_type(await bare("a-1"), int)
    await transfer(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with atransaction(isolation="snapshot", wait=3) as tx:
        assert_type(tx, AsyncTransaction)
        await tx.insert_disjoint(Account, [Account("a-1")], pessimistic=True)
        await tx.insert_disjoint(Account, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await tx.move(Account("a-1"), 2, 3)
        assert_type(tx.is_committed, bool)
        assert_type(await tx.suspend(), str)
        await tx.resume("b1f0", [Account])
    async with atransaction(record=True):
        pass
    atransaction(wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Calls(IdempotencyTable):
    class Meta:
        table_name = "calls"


@idempotent(Calls, key="order_id", payload="amount")
async def charge(order_id: str, amount: int) -> dict[str, int]:
    return {order_id: amount}


async def called() -> None:
    assert_type(await charge("o-1", 5), dict[str, int])
    async with Calls.call("o-2") as call:
        assert_type(call, IdempotentCall)
        call.result = 5


Tx = Annotated[Transaction, fastapi.transaction_dependency(wait=3)]
AsyncTx = Annotated[AsyncTransaction, fastapi.atransaction_dependency(isolation="snapshot", join=True)]
fastapi.transaction_dependency(wayt=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def framework(app: FastAPI, inner: Starlette, request: Request, tx: Tx, awaited: AsyncTx) -> None:
    locking = fastapi.PynamoLocking(models=[Account])
    locking.init_app(app, region="eu-central-1", lock_settings={"wait": 3})
    starlette.PynamoLocking().init_app(inner, problem_type="https://example.com/")
    locking.reset()
    assert_type(tx.get(Account, "a-1"), Account)
    account = await awaited.get(Account, "a-1")
    assert_type(account, Account)
    assert_type(starlette.if_match(request, account), Account)
    assert_type(await fastapi.aif_match(request, Account, "a-1"), Account)
    assert_type(fastapi.conditional(request, {"id": "a-1"}, account), Response)
    assert_type(starlette.etag(account), str)
