"""Versions, locks, intervals, transactions and expiry for PynamoDB models, enforced by DynamoDB itself."""

import importlib as _importlib
import typing as _typing

from pynamo_locking._core.lease import LockSettings
from pynamo_locking._core.lock_queue import LockState, QueueEntry, RunRecord
from pynamo_locking._core.write_outcome import BatchResult
from pynamo_locking._locks.lock import Lock
from pynamo_locking._locks.locked_all import locked_all
from pynamo_locking._models.attributes import LockAttribute, TTLAttribute, VersionAttribute
from pynamo_locking._models.batch_writes import GuardedBatch, TransactWrite
from pynamo_locking._models.mixins import ExpiringMixin, LockableMixin, LockableModel, VersionedMixin
from pynamo_locking._models.unique_audit import UniqueProblem, UniqueReport
from pynamo_locking._models.unique_table import UniqueTable
from pynamo_locking._recipes.leader_election import LeaderElection, LeaderTerm
from pynamo_locking._recipes.named_lock import NamedLock
from pynamo_locking._recipes.once import OnceRun
from pynamo_locking._transactions.recovery import SweepReport
from pynamo_locking._transactions.transaction_table import TransactionTable, outcome, recover, sweep
from pynamo_locking.exceptions import (
    BatchError,
    ConfigurationError,
    Conflict,
    CorruptRow,
    InvalidInput,
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
    TransactionAborted,
    TransactionConflict,
    UnknownFormat,
)

if _typing.TYPE_CHECKING:
    from pynamo_locking._core.transactions import CommitPlan
    from pynamo_locking._intervals.interval_mixin import IntervalMixin
    from pynamo_locking._recipes.idempotency import IdempotencyTable, IdempotentCall, idempotent
    from pynamo_locking._transactions.async_transaction import AsyncTransaction, atransaction, atransactional
    from pynamo_locking._transactions.begin import current_transaction, transaction, transactional
    from pynamo_locking._transactions.transaction import Transaction

__all__ = [
    "AsyncTransaction",
    "BatchError",
    "BatchResult",
    "Campaign",
    "ConfigurationError",
    "Conflict",
    "CorruptRow",
    "ExpiringMixin",
    "GuardedBatch",
    "IdempotencyTable",
    "IdempotentCall",
    "IntervalMixin",
    "InvalidInput",
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
    "NotUnique",
    "OutcomeUnknown",
    "OverlapError",
    "PayloadMismatch",
    "Plan",
    "QueueEntry",
    "Run",
    "StaleVersion",
    "Success",
    "SweepReport",
    "TTLAttribute",
    "Term",
    "TransactWrite",
    "Transaction",
    "TransactionAborted",
    "TransactionConflict",
    "TransactionTable",
    "UniqueProblem",
    "UniqueReport",
    "UniqueTable",
    "UnknownFormat",
    "VersionAttribute",
    "VersionedMixin",
    "atransaction",
    "atransactional",
    "current_transaction",
    "idempotent",
    "locked_all",
    "outcome",
    "recover",
    "sweep",
    "transaction",
    "transactional",
]

#: Loaded when they are first asked for: transactions evaluate DynamoDB's expressions, which most programs do not need.
_LATER = {
    **dict.fromkeys(("current_transaction", "transaction", "transactional"), "_transactions.begin"),
    **dict.fromkeys(("AsyncTransaction", "atransaction", "atransactional"), "_transactions.async_transaction"),
    **dict.fromkeys(("IdempotencyTable", "IdempotentCall"), "_recipes.idempotency"),
    "idempotent": "_recipes.idempotency",
    "Plan": "_core.transactions",
    "Transaction": "_transactions.transaction",
    "IntervalMixin": "_intervals.interval_mixin",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
