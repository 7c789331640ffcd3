"""First come, first served locks for PynamoDB models, enforced by DynamoDB itself."""

from pynamo_locking._core.lease import LockSettings
from pynamo_locking._core.queue import Entry, LockState
from pynamo_locking.attributes import LockAttribute
from pynamo_locking.contexts import locked_all
from pynamo_locking.exceptions import (
    ConfigurationError,
    Conflict,
    ItemLocked,
    ItemNotFound,
    LockingError,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
)
from pynamo_locking.locks import Lock
from pynamo_locking.models import LockableMixin, LockableModel
from pynamo_locking.named import NamedLock
from pynamo_locking.transactions import TransactWrite

__all__ = [
    "ConfigurationError",
    "Conflict",
    "Entry",
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
    "TransactWrite",
    "locked_all",
]
