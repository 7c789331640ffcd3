"""The bank: its accounts, without and with a lock, and the transfers between them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamo_locking import LockableModel, LockAttribute, LockSettings

NAMES: Final = ("alice", "bob", "carol", "dave")
START_BALANCE: Final = 10_000

#: A lease far shorter than the usual 60 s, so that the recovery from a crash fits into a demo. No clocks are
#: compared: those who wait watch a whole lease pass without a sign of life.
SETTINGS: Final = LockSettings(
    lease=3, request_timeout=0.5, max_clock_skew=None, poll_interval=0.02, max_poll_interval=0.2
)


class PlainAccount(Model):
    """An account as PynamoDB has it."""

    class Meta:
        table_name = "plain-accounts"
        region = "eu-west-1"
        host: str | None = None
        aws_access_key_id = "demo"
        aws_secret_access_key = "demo"  # noqa: S105 - nobody checks it

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=START_BALANCE)
    bookings = NumberAttribute(default=0)


class Account(LockableModel):
    """The same account with a lock in it."""

    class Meta:
        table_name = "accounts"
        region = "eu-west-1"
        host: str | None = None
        aws_access_key_id = "demo"
        aws_secret_access_key = "demo"  # noqa: S105 - nobody checks it
        lock_settings = SETTINGS

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=START_BALANCE)
    bookings = NumberAttribute(default=0)
    lock = LockAttribute()


AnyAccount = PlainAccount | Account


@dataclass(frozen=True)
class Transfer:
    """One order of a customer."""

    source: str
    target: str
    amount: int
    think_s: float


def plan(seed: int, number: int) -> list[Transfer]:
    """Return the same transfers for the same seed, so that both phases have the same work to do."""
    dice = random.Random(seed)
    pairs = [dice.sample(NAMES, 2) for _ in range(number)]
    return [Transfer(source, target, dice.randint(1, 100), dice.uniform(0.002, 0.008)) for source, target in pairs]


def book(account: AnyAccount, amount: int) -> None:
    """Change an account in memory; `bookings` counts the changes, and so betrays any that got lost."""
    account.balance += amount
    account.bookings += 1


def use(host: str) -> None:
    """Say where DynamoDB is."""
    PlainAccount.Meta.host = host
    Account.Meta.host = host


def open_accounts() -> None:
    """Create both tables and fill them."""
    models: tuple[Any, ...] = (PlainAccount, Account)
    for model in models:
        model.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
        for name in NAMES:
            model(name).save()
