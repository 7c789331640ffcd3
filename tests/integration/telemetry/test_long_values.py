"""Keys, names and values of 1,900 characters are cut where they become text: in messages, and in lines of the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import pytest

from pynamo_locking.exceptions import (
    CorruptRow,
    ItemLocked,
    ItemNotFound,
    LockingError,
    LockLost,
    LockTimeout,
    NotUnique,
    OutcomeUnknown,
    OverlapError,
    PayloadMismatch,
    StaleVersion,
)
from pynamo_locking.recipes import idempotent
from pynamo_locking.telemetry import logs
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import lost_responses
from tests.support.call_models import Calls
from tests.support.interval_models import Slot, SlotLocks
from tests.support.models import Account, Device, Document, Locks
from tests.support.parties import held_elsewhere
from tests.support.poisoned import put
from tests.support.transaction_models import Purse, Transactions
from tests.support.unique_models import Uniques, User

if TYPE_CHECKING:
    from collections.abc import Callable

LONG: Final = 1900 * "x"


@idempotent(Calls, key="key", payload="amount")
def pay(key: str, amount: int) -> int:
    return amount


def locked() -> None:
    Account(LONG).save()
    with held_elsewhere(Account.locked(LONG)):
        Account(LONG).save()


def waited() -> None:
    with held_elsewhere(Locks.locked(LONG)):
        Locks.locked(LONG, wait=0).acquire()


def lost() -> None:
    with Locks.locked(LONG, heartbeat=False) as lock:
        Locks.break_lock(LONG, ticket=lock.ticket)
        lock.renew()


def stale() -> None:
    document = Document(LONG, 1)
    document.save()
    document.version = 7
    document.save()


def in_doubt() -> None:
    account = Account(LONG)
    account.save()
    with lost_responses(Account, LONG):
        account.update([Account.balance.add(1)])


def taken() -> None:
    User("a", email=LONG).save()
    User("b", email=LONG).save()


def taken_by() -> None:
    User(LONG, email="e").save()
    User("b", email="e").save()


def overlapping() -> None:
    for begin in (1, 2):
        Slot.intervals.insert_disjoint([Slot(LONG, begin, end=5)])


def repeated() -> None:
    pay(LONG, amount=1)
    pay(LONG, amount=2)


def past_the_transaction() -> None:
    Purse(LONG).save()
    with Transaction() as tx:
        tx.get(Purse, LONG).save()


def broken() -> None:
    put(Account, {"account_id": {"S": LONG}, "lock": {"M": {"queue": {"S": LONG}}}})
    Account.locked(LONG).acquire()


ERRORS: Final[dict[Callable[[], Any], type[Exception]]] = {
    locked: ItemLocked,
    waited: LockTimeout,
    lost: LockLost,
    stale: StaleVersion,
    in_doubt: OutcomeUnknown,
    taken: NotUnique,
    taken_by: NotUnique,
    overlapping: OverlapError,
    repeated: PayloadMismatch,
    past_the_transaction: LockingError,
    lambda: Account.locked(LONG).acquire(): ItemNotFound,
    broken: CorruptRow,
}


@pytest.mark.parametrize("way", ERRORS, ids=lambda way: way.__name__)
def test_long_values_are_cut(memory: Any, caplog: pytest.LogCaptureFixture, way: Callable[[], Any]) -> None:
    """The facts of a record stay whole, for programs."""
    memory.bind(Account, Device, Document, Locks, SlotLocks, Slot, Calls, Purse, Transactions, Uniques, User)
    with caplog.at_level(logging.DEBUG, "pynamo_locking"), logs.install(), pytest.raises(ERRORS[way]) as raised:
        way()
    texts = [str(raised.value), *(record.getMessage() for record in caplog.records)]
    assert [text for text in texts if len(text) > 700] == []
    assert any("xxx" in text for text in texts)
