"""Seed 001, From CD to ACID: what its sections say of the fate of a transaction, by the public names."""

from __future__ import annotations

import pytest

from pynamo_locking import transaction
from pynamo_locking.exceptions import OutcomeUnknown, TransactionAborted
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from tests.support.transaction_models import Purse, Transactions, make_long_from, purses
from tests.support.wire import Chosen, on


@pytest.fixture(autouse=True)
def _tables(memory):
    memory.bind(Purse, Transactions)
    purses(6)
    with VirtualClock():
        yield


def pay(count, **options):
    """Begin a transaction that pays into so many purses."""
    tx = Transaction(Transactions, **options)
    for item in tx.get_all(Purse, [f"p{n}" for n in range(count)]):
        item.balance += 1
        tx.save(item)
    return tx


def balances():
    return [int(Purse.get(f"p{n}", consistent_read=True).balance) for n in range(6)]


def test_seed_001_cleaning_up_the_caller_determines_the_fate(monkeypatch):
    """ "the initiator can determine if their transaction was rolled back or successfully committed": of any size."""
    make_long_from(monkeypatch)
    for count in (1, 3, 6):
        with transaction(Transactions, record=True, idempotency_key=f"k{count}") as tx:
            for item in tx.get_all(Purse, [f"p{n}" for n in range(count)]):
                item.balance += 1
                tx.save(item)
        assert Transactions.outcome(tx.id) == "finished"
        assert Transactions.outcome(idempotency_key=f"k{count}") == "committed"
    assert balances() == [103, 102, 102, 101, 101, 101]


def test_seed_001_contention_the_creator_of_the_conflicting_transaction_asks(monkeypatch):
    """ "The creator of the conflicting transaction can use the TX record to determine" how it ended."""
    make_long_from(monkeypatch)
    tx = pay(6, on_progress=lambda done, total: Transactions.recover(tx.id, force=True) if done == 1 else None)
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert Transactions.outcome(tx.id) == "aborted"
    assert balances() == [100] * 6


@pytest.mark.parametrize(("lose", "fate"), [(Chosen.lose_response, "applied"), (Chosen.lose_request, "not applied")])
def test_seed_001_no_contention_the_key_moment_is_not_heard_of(lose, fate, monkeypatch):
    """ "commit. This is the key moment": whose answer is lost, with that to the look that follows."""
    tx = pay(3, record=True)
    with (
        lose(on("TransactWriteItems", times=99)),
        on("GetItem", times=99).lose_request(),
        pytest.raises(OutcomeUnknown) as caught,
    ):
        tx.commit()
    assert caught.value.resolve() == fate
    assert Transactions.outcome(tx.id) == ("finished" if fate == "applied" else "aborted")
    assert balances() == [101 if fate == "applied" else 100] * 3 + [100] * 3


def test_seed_001_cleaning_up_only_what_is_old_enough(monkeypatch):
    """ "transaction records deemed old enough": those that have not been updated for some configured time."""
    make_long_from(monkeypatch)

    def dies(done, total):
        raise KeyboardInterrupt

    tx = pay(6, on_progress=dies)
    with on("UpdateItem", times=99).lose_request(), pytest.raises(KeyboardInterrupt):
        tx.commit()  # nor can it say that it has ended
    assert Transactions.sweep(older_than=3600).examined == 0
    assert Transactions.outcome(tx.id) == "pending"
    assert Transactions.sweep().aborted == 1
    assert balances() == [100] * 6
