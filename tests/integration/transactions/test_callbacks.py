"""What is called at the end of a transaction: when, in which context, and what becomes of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pynamo_locking import transaction, transactional
from pynamo_locking.exceptions import ConfigurationError, OutcomeUnknown, StaleVersion
from pynamo_locking.transactions import Transaction, current_transaction
from pynamo_locking_testing import VirtualClock
from tests.support.transaction_models import Purse, Transactions, purses, rows_of
from tests.support.wire import on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture(autouse=True)
def _two_purses(_purses: None) -> None:
    purses(2)


def fail() -> None:
    raise KeyError("of the callback")


def add(tx: Transaction, amount: int, key: str = "p0") -> None:
    tx.update(tx.get(Purse, key), [Purse.balance.add(amount)])


def balance(key: str = "p0") -> int:
    return int(Purse.get(key, consistent_read=True).balance)


# Errors


def test_a_callback_does_not_hide_that_the_outcome_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """The error of the commit is raised; that of the callback is logged; the others run, and locks are given back."""
    calls: list[int] = []
    with (
        pytest.raises(OutcomeUnknown),
        on("UpdateItem", times=99, where=lambda body: "version" in str(body)).lose_response(),
        transaction() as tx,
    ):
        add(tx, 1)
        tx.after_rollback(fail)
        tx.after_rollback(lambda: calls.append(1))
    assert calls == [1]
    [record] = [record for record in caplog.records if "callback" in record.message]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    assert "OutcomeUnknown" in record.message


def test_locks_are_given_back_although_a_callback_fails() -> None:
    """Also after a refusal."""
    with pytest.raises(StaleVersion), transaction() as tx:
        tx.get(Purse, "p0", for_update=True)
        add(tx, 1, "p1")
        Purse.get("p1").touch()
        tx.after_rollback(fail)
    assert Purse.lock_state("p0").entries == ()


@pytest.mark.parametrize("is_in_block", [False, True], ids=["refused at the commit", "in the block"])
def test_a_function_is_run_again_although_a_callback_fails(is_in_block: bool) -> None:
    """Its conflict is what counts, whether the commit has it or the function itself."""
    runs: list[int] = []

    @transactional()
    def pay(tx: Transaction) -> None:
        runs.append(1)
        tx.after_rollback(fail)
        add(tx, 1)
        if len(runs) == 1:
            Purse.get("p0").touch()
            if is_in_block:
                tx.commit()

    with VirtualClock():
        pay()
    assert len(runs) == 2
    assert balance() == 101


def test_a_callback_does_not_hide_the_error_of_the_block() -> None:
    """What the block raises comes out of it."""
    with pytest.raises(ZeroDivisionError), transaction() as tx:
        tx.after_rollback(fail)
        raise ZeroDivisionError


@pytest.mark.core
def test_the_error_of_a_callback_is_raised_if_there_is_no_other() -> None:
    """After a rollback that was asked for, and after a commit, which stays: the others run, and locks are free."""
    tx = Transaction()
    tx.after_rollback(fail)
    with pytest.raises(KeyError, match="of the callback"):
        tx.rollback()
    calls: list[int] = []
    with pytest.raises(KeyError, match="of the callback"), transaction() as tx:
        tx.get(Purse, "p0", for_update=True)
        add(tx, 1)
        tx.after_commit(fail)
        tx.after_commit(lambda: calls.append(1))
        tx.after_rollback(lambda: calls.append(2))
    assert calls == [1]
    assert balance() == 101
    assert Purse.lock_state("p0").entries == ()


# Transactions of their own


def in_block(*, join: bool) -> None:
    assert current_transaction() is None
    with transaction(join=join) as tx:
        assert current_transaction() is tx
        add(tx, 10)


def in_function(*, join: bool) -> None:
    @transactional(join=join)
    def work(tx: Transaction) -> None:
        add(tx, 10)

    work()


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize("begin", [in_block, in_function])
def test_a_callback_can_begin_a_transaction(begin: Callable[..., None], *, join: bool) -> None:
    """The one that it is called by is over: it is not in the way, and cannot be joined."""
    with transaction() as tx:
        add(tx, 1)
        tx.after_commit(lambda: begin(join=join))
    assert balance() == 111
    with pytest.raises(ZeroDivisionError), transaction() as tx:
        tx.after_rollback(lambda: begin(join=join))
        add(tx, 1)
        raise ZeroDivisionError
    assert balance() == 121
    assert current_transaction() is None


def test_callbacks_of_a_function_can_begin_transactions() -> None:
    """Those of each attempt of `transactional`, and callbacks of those transactions in turn."""
    runs: list[int] = []

    @transactional()
    def note(tx: Transaction, amount: int) -> None:
        add(tx, amount)
        if amount > 10:
            tx.after_commit(lambda: note(amount // 10))

    @transactional()
    def pay(tx: Transaction) -> None:
        runs.append(1)
        tx.after_rollback(lambda: note(1))
        tx.after_commit(lambda: note(1000))
        add(tx, 10_000)
        if len(runs) == 1:
            Purse.get("p0").touch()

    with VirtualClock():
        pay()
    assert balance() == 100 + 1 + 10_000 + 1000 + 100 + 10


def test_a_transaction_that_was_ended_in_its_block_is_in_no_ones_way() -> None:
    """After commit() or rollback() the rest of the block can begin another one."""
    for end in (Transaction.commit, Transaction.rollback):
        with transaction() as tx:
            end(tx)
            in_block(join=True)
            in_function(join=False)
    assert balance() == 140


# What cannot work


@pytest.mark.parametrize("end", [Transaction.commit, Transaction.rollback])
def test_a_callback_that_comes_too_late_is_refused(end: Callable[[Transaction], None]) -> None:
    """It would never be called; so in a callback."""
    tx = Transaction()
    late: list[Any] = []

    def register() -> None:
        for add_callback in (tx.after_commit, tx.after_rollback):
            with pytest.raises(ConfigurationError, match="has ended"):
                add_callback(lambda: late.append(1))

    tx.after_commit(register)
    tx.after_rollback(register)
    end(tx)
    register()
    assert late == []


def test_an_asynchronous_generator_is_refused() -> None:
    """It would be committed before it runs, as a coroutine or a generator would."""
    with pytest.raises(ConfigurationError, match="generator"):

        @transactional()
        async def numbers(tx: Transaction) -> AsyncIterator[int]:
            yield 1


@pytest.mark.parametrize("options", [{"read_only": True}, {"isolation": "snapshot"}])
def test_a_transaction_that_only_reads_has_no_idempotency_key(options: dict[str, Any]) -> None:
    """The key is a write; it is refused before there is any."""
    with pytest.raises(ConfigurationError, match="read only"):
        Transaction(Transactions, idempotency_key="k", **options)
    assert rows_of(Transactions) == []


def test_coroutines_are_refused() -> None:
    """They would run after the commit."""

    async def later(tx: Transaction) -> None: ...

    decorate: Any = transactional()
    with pytest.raises(ConfigurationError, match="coroutine"):
        decorate(later)
