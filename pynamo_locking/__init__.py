"""Versions, locks and expiry for PynamoDB models, enforced by DynamoDB itself."""

from pynamo_locking._core.lease import LockSettings
from pynamo_locking._core.outcome import BatchResult
from pynamo_locking._core.queue import Entry, LockState
from pynamo_locking._core.transaction import Plan
from pynamo_locking.attributes import LockAttribute, TTLAttribute, VersionAttribute
from pynamo_locking.batches import GuardedBatch
from pynamo_locking.contexts import locked_all
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    Conflict,
    ItemLocked,
    ItemNotFound,
    LockingError,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
)
from pynamo_locking.expiring import ExpiringMixin
from pynamo_locking.locks import Lock
from pynamo_locking.models import LockableMixin, LockableModel
from pynamo_locking.named import NamedLock
from pynamo_locking.recovery import SweepReport, outcome, recover, sweep
from pynamo_locking.running import current_transaction, transaction, transactional
from pynamo_locking.transact_write import TransactWrite
from pynamo_locking.transaction_table import TransactionTable
from pynamo_locking.transactions import Transaction
from pynamo_locking.versioned import VersionedMixin

__all__ = [
    "BatchError",
    "BatchResult",
    "ConfigurationError",
    "Conflict",
    "Entry",
    "ExpiringMixin",
    "GuardedBatch",
    "ItemLocked",
    "ItemNotFound",
    "Lock",
    "LockAttribute",
    "LockLost",
    "LockSettings",
    "LockState",
    "LockTimeout",
    "LockableMixin",
    "LockableModel",
    "LockingError",
    "NamedLock",
    "OutcomeUnknown",
    "Plan",
    "StaleVersion",
    "SweepReport",
    "TTLAttribute",
    "TransactWrite",
    "Transaction",
    "TransactionAborted",
    "TransactionConflict",
    "TransactionTable",
    "VersionAttribute",
    "VersionedMixin",
    "current_transaction",
    "locked_all",
    "outcome",
    "recover",
    "sweep",
    "transaction",
    "transactional",
]
