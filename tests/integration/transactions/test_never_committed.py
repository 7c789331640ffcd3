"""Writes that were planned and never sent: a warning says so when the object that has them is gone."""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import TransactWrite, atransaction, transaction
from pynamo_locking.transactions import AsyncTransaction, Transaction
from tests.support.interval_models import Slot, SlotLocks, SlotTransactions, slots
from tests.support.transaction_models import Entry, Purse, Transactions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.engines.engine import Engine


def native() -> TransactWrite:
    return TransactWrite(connection=Purse._get_connection().connection)


def saved(tx: Any) -> None:
    tx.save(Purse("p", balance=1))


def many(tx: Any) -> None:
    for number in range(7):
        tx.save(Purse(f"p{number}", balance=1))


def asaved() -> None:
    async def save() -> None:
        await AsyncTransaction(Transaction(Transactions)).save(Purse("p", balance=1))

    asyncio.run(save())


def entered() -> None:
    block = transaction(Transactions)
    saved(block.__enter__())


def aentered() -> None:
    async def save() -> None:
        block = atransaction(Transactions)
        await (await block.__aenter__()).save(Purse("p", balance=1))
        del block
        await asyncio.sleep(0.01)  # the loop closes what is gone

    asyncio.run(save())


def left_by_a_generator(*, is_async: bool = False) -> None:
    """The block is in a generator that is closed: the program has rolled back."""

    def numbers() -> Iterator[int]:
        with transaction(Transactions) as tx:
            saved(tx)
            yield 1

    async def anumbers() -> AsyncIterator[int]:
        async with atransaction(Transactions) as tx:
            await tx.save(Purse("p", balance=1))
            yield 1

    async def close() -> None:
        found = anumbers()
        await found.__anext__()
        await found.aclose()

    if is_async:
        asyncio.run(close())
        return
    found = numbers()
    next(found)
    found.close()


def auto_committed() -> None:
    batch = Purse.batch_write(unguarded=True)
    batch.save(Purse("q", balance=1))
    batch.commit()
    Purse.get("q").delete()


def batch_refused() -> None:
    with pytest.raises(Exception, match="purse_id"), Purse.batch_write(unguarded=True) as batch:
        batch.save(Purse(balance=1))


def warned(forget: Callable[[], Any]) -> list[str]:
    """Let go of what the function makes, and return what is said."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        forget()
        gc.collect()
    assert all(each.category is ResourceWarning for each in found)
    return [str(each.message) for each in found]


@pytest.mark.parametrize(
    ("forget", "named"),
    [
        (
            lambda: saved(Transaction(Transactions)),
            "a Transaction is gone .*nothing was written of test-.*purses\\('p'\\): use it in a `with`",
        ),
        (lambda: many(Transaction(Transactions)), "'p4'\\) and 2 more"),
        (lambda: Transaction(Transactions).update(Purse("p"), [Purse.balance.add(1)]), "'p'"),
        (lambda: Transaction(Transactions).delete(Purse("p"), add_version_condition=False), "'p'"),
        (lambda: Transaction(Transactions).insert_disjoint(Slot, slots((1, 2))), "slots\\('d', '1'\\)"),
        (asaved, "'p'"),
        (lambda: saved(native()), "a TransactWrite is gone .*purses\\('p'\\)"),
        (lambda: many(native()), "'p4'\\) and 2 more"),
        (lambda: native().insert_disjoint(Slot, slots((1, 2))), "a TransactWrite .*slots\\('d', '1'\\)"),
        (lambda: saved(Purse.guarded_batch()), "a GuardedBatch is gone .*purses\\('p'\\)"),
        (lambda: many(Purse.guarded_batch(transactions=True)), "'p4'\\) and 2 more"),
        (lambda: saved(Purse.batch_write(unguarded=True)), "a PlainBatchWrite is gone .*Purse\\('p'\\)"),
        (lambda: many(Purse.batch_write(unguarded=True)), "'p4'\\) and 2 more"),
        (lambda: Purse.batch_write(unguarded=True).delete(Purse("p")), "of Purse\\('p'\\)"),
        (entered, "a Transaction is gone .*purses\\('p'\\)"),
        (aentered, "a Transaction is gone .*purses\\('p'\\)"),
    ],
)
def test_what_was_never_committed_is_named(memory: Engine, forget: Callable[[], Any], named: str) -> None:
    """Once, by its items; nothing is written."""
    memory.bind(Purse, Transactions, Slot, SlotLocks, SlotTransactions)
    [said] = warned(forget)
    assert re.search(named, said)
    assert list(Purse.scan()) == []


def in_a_block(make: Callable[[], Any], *, error: type[Exception] | None = None) -> None:
    with suppress(ZeroDivisionError), make() as tx:
        saved(tx)
        if error is not None:
            raise error


async def ain_a_block(*, error: type[Exception] | None = None) -> None:
    with suppress(ZeroDivisionError):
        async with atransaction(Transactions) as tx:
            await tx.save(Purse("p", balance=1))
            if error is not None:
                raise error


def rolled_back() -> None:
    tx = Transaction(Transactions)
    saved(tx)
    tx.rollback()


def suspended() -> None:
    tx = Transaction(Transactions)
    saved(tx)
    tx.suspend()


def refused() -> None:
    Purse("p", balance=1).save()
    tx = Transaction(Transactions)
    saved(tx)
    with pytest.raises(Exception, match="version"):
        tx.commit()


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
@pytest.mark.parametrize(
    "make",
    [
        lambda: transaction(Transactions),
        lambda: Transaction(Transactions),
        native,
        Purse.guarded_batch,
        lambda: Purse.guarded_batch(transactions=True),
    ],
)
def test_a_block_has_ended_it(memory: Engine, make: Callable[[], Any], error: type[Exception] | None) -> None:
    """With an error as well."""
    memory.bind(Purse, Transactions)
    assert warned(lambda: in_a_block(make, error=error)) == []


@pytest.mark.parametrize(
    "end",
    [
        lambda: asyncio.run(ain_a_block()),
        lambda: asyncio.run(ain_a_block(error=ZeroDivisionError)),
        rolled_back,
        suspended,
        refused,
        lambda: Transaction(Transactions).get_or_none(Purse, "p"),
        lambda: Transaction(isolation="chaos"),
        lambda: Purse.guarded_batch(workers=0),
        lambda: in_a_block(lambda: Purse.batch_write(unguarded=True)),
        auto_committed,
        batch_refused,
        Purse.batch_write,
        left_by_a_generator,
        lambda: left_by_a_generator(is_async=True),
        lambda: Slot.intervals.insert_disjoint(slots((1, 2))),
    ],
)
def test_what_has_ended_or_has_no_writes_says_nothing(memory: Engine, end: Callable[[], Any]) -> None:
    """Nor does what was never made."""
    memory.bind(Purse, Entry, Transactions, Slot, SlotLocks, SlotTransactions)
    with suppress(ValueError):
        assert warned(end) == []
