"""Distributed locks, optimistic locking and transactions for PynamoDB models, enforced by DynamoDB itself.

Errors are in `pynamo_locking.exceptions`. What fewer programs import is in the modules `transactions`, `recipes`,
`intervals`, `unique`, `batches` and `inspection`; each name has one home.
"""

import importlib as _importlib
import typing as _typing

from pynamo_locking._core.lease import LockSettings
from pynamo_locking._locks.lock import Lock
from pynamo_locking._locks.locked_all import locked_all
from pynamo_locking._models.attributes import LockAttribute, TTLAttribute, VersionAttribute
from pynamo_locking._models.mixins import ExpiringMixin, LockableMixin, LockableModel, VersionedMixin

if _typing.TYPE_CHECKING:
    from pynamo_locking._models.batch_writes import TransactWrite
    from pynamo_locking._recipes.named_lock import NamedLock
    from pynamo_locking._transactions.async_transaction import atransaction, atransactional
    from pynamo_locking._transactions.begin import transaction, transactional
    from pynamo_locking._transactions.transaction_table import TransactionTable

__all__ = [
    "ExpiringMixin",
    "Lock",
    "LockAttribute",
    "LockSettings",
    "LockableMixin",
    "LockableModel",
    "NamedLock",
    "TTLAttribute",
    "TransactWrite",
    "TransactionTable",
    "VersionAttribute",
    "VersionedMixin",
    "atransaction",
    "atransactional",
    "locked_all",
    "transaction",
    "transactional",
]

#: Loaded when they are first asked for: many programs have no named locks, or no transactions of several items.
_LATER = {
    "NamedLock": "_recipes.named_lock",
    "TransactWrite": "_models.batch_writes",
    "TransactionTable": "_transactions.transaction_table",
    **dict.fromkeys(("transaction", "transactional"), "_transactions.begin"),
    **dict.fromkeys(("atransaction", "atransactional"), "_transactions.async_transaction"),
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
