"""Transactions in annotations, what they tell of themselves, and the transaction that is open here.

Transactions are begun by `pynamo_locking.transaction` and its relatives.
"""

from pynamo_locking._core.transactions import CommitPlan
from pynamo_locking._transactions.async_transaction import AsyncTransaction
from pynamo_locking._transactions.begin import current_transaction
from pynamo_locking._transactions.recovery import SweepReport
from pynamo_locking._transactions.transaction import Savepoint, Transaction

__all__ = ["AsyncTransaction", "CommitPlan", "Savepoint", "SweepReport", "Transaction", "current_transaction"]
