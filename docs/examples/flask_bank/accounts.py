"""The accounts of the bank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamo_locking import LockableModel, LockAttribute, VersionAttribute, transactional

if TYPE_CHECKING:
    from pynamo_locking.transactions import Transaction


class Account(LockableModel):
    """An account; its lock is in the item itself."""

    class Meta:
        table_name = "accounts"

    account_id = UnicodeAttribute(hash_key=True)
    owner = UnicodeAttribute()
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class NotEnoughMoneyError(Exception):
    """The account has less than that."""


@transactional(wait=5)  # seconds, for all attempts together
def transfer(tx: Transaction, source_id: str, target_id: str, amount: int) -> None:
    """Move money from one account to another: both change, or neither. Runs again after a conflict."""
    source, target = tx.get(Account, source_id), tx.get(Account, target_id)
    if source.balance < amount:
        raise NotEnoughMoneyError
    source.balance -= amount
    target.balance += amount
    tx.save(source)
    tx.save(target)
