"""What the package asks of a transaction behind its public methods: the doors to the private names of `Transaction`.

Users hold a `Transaction`, so its public names are theirs. What other modules ask besides is here, once and with its
type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pynamo_locking._io.transaction_record import record_table_of
from pynamo_locking._transactions import commit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.commit import CommitRun
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.items import TransactionItems
    from pynamo_locking._transactions.options import TransactionOptions
    from pynamo_locking._transactions.transaction import Transaction


_T = TypeVar("_T")


# Its state


def items_of(transaction: Transaction) -> TransactionItems:
    return transaction._items


def options_of(transaction: Transaction) -> TransactionOptions:
    return transaction._options


def idempotency_key_of(transaction: Transaction) -> str | None:
    return options_of(transaction).idempotency_key


def commit_run_of(transaction: Transaction) -> CommitRun | None:
    """Return the run of its commit; None before it."""
    return transaction._commit


def is_over(transaction: Transaction) -> bool:
    return transaction._is_over


def is_committed(transaction: Transaction) -> bool:
    return transaction._is_committed


def is_done_before(transaction: Transaction, model: type[GuardedMixin]) -> bool:
    """Tell whether a transaction with this idempotency key was committed; if so, this one writes nothing."""
    if transaction._options.idempotency_key is not None and not transaction._was_done:
        table = record_table_of(transaction._items.table(model))
        transaction._was_done = commit.is_done(replace(transaction._options, record_table=table))
    return transaction._was_done


def check_open(transaction: Transaction) -> None:
    """Raise `ConfigurationError` if it has ended."""
    transaction._check_open()


def check_writable(transaction: Transaction) -> None:
    transaction._check_writable()


# Its steps


def count_in_guard(transaction: Transaction, item: TransactionItem) -> None:
    transaction._count_in_guard(item)


def note_end(transaction: Transaction) -> None:
    """Note that it has ended: a `TransactWrite` has taken over its writes."""
    transaction._is_over = True


def next_attempt(transaction: Transaction, successor: Transaction) -> Transaction:
    """Give another attempt the age of the first one, so that it is not pre-empted for ever; return it."""
    options = transaction._options
    earlier = (*options.earlier, transaction.id)
    successor._options = replace(successor._options, priority=options.priority, earlier=earlier)
    successor._items.reader.priority = options.priority
    return successor


# Those of an `AsyncTransaction`, which is above this module


def transaction_of(awaited: Any) -> Transaction:
    transaction: Transaction = awaited._transaction
    return transaction


def step_of(awaited: Any, work: Callable[[], _T]) -> Awaitable[_T]:
    """Do some work in a thread, when the step before it has ended."""
    step: Awaitable[_T] = awaited._do(work)
    return step


def hold_if_there(awaited: Any, lock: Lock[Any], *, share: float) -> Awaitable[None]:
    """Acquire the lock of an item until the end, for that share of the time that is left; nothing if it is absent."""
    step: Awaitable[None] = awaited._hold_if_there(lock, share=share)
    return step
