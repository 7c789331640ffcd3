"""The bank: its accounts, the transfers between them, and the three ways to make one."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, LockAttribute, LockSettings, VersionAttribute, transactional

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking.transactions import Transaction

NAMES: Final = ("alice", "bob", "carol", "dave", "erin", "frank")
START_BALANCE: Final = 10_000

#: A lease far shorter than the usual 60 s, so that the recovery from a crash fits into a demo. No clocks are
#: compared: those who wait watch a whole lease pass without a sign of life.
SETTINGS: Final = LockSettings(
    lease=3, request_timeout=0.5, max_clock_skew=None, poll_interval=0.03, max_poll_interval=0.2
)


class Local:
    """Where DynamoDB is; nobody checks the keys."""

    region = "eu-west-1"
    host: str | None = None
    aws_access_key_id = "demo"
    aws_secret_access_key = "demo"  # noqa: S105 - see above


class PlainAccount(Model):
    """An account as PynamoDB has it."""

    class Meta(Local):
        table_name = "plain-accounts"

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=START_BALANCE)
    bookings = NumberAttribute(default=0)


class Account(LockableModel):
    """The same account with a version and a lock in it."""

    class Meta(Local):
        table_name = "accounts"
        lock_settings = SETTINGS

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=START_BALANCE)
    bookings = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


@dataclass(frozen=True)
class Transfer:
    """One order of a customer."""

    source: str
    target: str
    amount: int
    think_s: float


def plan(seed: int, number: int) -> list[Transfer]:
    """Return the same transfers for the same seed, so that all phases have the same work to do."""
    dice = random.Random(seed)
    pairs = [dice.sample(NAMES, 2) for _ in range(number)]
    return [Transfer(source, target, dice.randint(1, 100), dice.uniform(0.002, 0.008)) for source, target in pairs]


def use(host: str) -> None:
    """Say where DynamoDB is."""
    PlainAccount.Meta.host = Account.Meta.host = host


def open_accounts(model: Any) -> None:
    """Create a table anew and fill it."""
    if model.exists():
        model.delete_table()
    model.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
    for name in NAMES:
        model(name).save()


# Three ways to move money


def move_unprotected(transfer: Transfer) -> None:
    source, target = (PlainAccount.get(name) for name in (transfer.source, transfer.target))
    _book(transfer, source, target)
    source.save()
    target.save()


@transactional(attempts=100)  # all want the same few accounts, so many are refused and begin again
def move_in_transaction(tx: Transaction, transfer: Transfer) -> None:
    source, target = (tx.get(Account, name) for name in (transfer.source, transfer.target))
    _book(transfer, source, target)
    tx.save(source)
    tx.save(target)


def move_under_locks(transfer: Transfer) -> None:
    first, second = sorted((transfer.source, transfer.target))  # all in one order: no deadlock
    with edit(first) as a, edit(second) as b:
        _book(transfer, *((a, b) if first == transfer.source else (b, a)))


def edit(name: str) -> Any:
    """Hold the account's lock as the worker that this process is; save the account at the end."""
    return Account.edit(name, owner=current_process().name)


def _book(transfer: Transfer, source: PlainAccount | Account, target: PlainAccount | Account) -> None:
    """Change both in memory; `bookings` counts the changes, and so betrays any that got lost."""
    time.sleep(transfer.think_s)
    source.balance -= transfer.amount
    target.balance += transfer.amount
    source.bookings += 1
    target.bookings += 1


UNPROTECTED: Final = "unprotected"
IN_TRANSACTIONS: Final = "in transactions"
UNDER_LOCKS: Final = "under locks"
WAYS: Final[dict[str, Callable[[Transfer], None]]] = {
    UNPROTECTED: move_unprotected,
    IN_TRANSACTIONS: move_in_transaction,
    UNDER_LOCKS: move_under_locks,
}
