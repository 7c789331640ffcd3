"""Locks around SQL transactions."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from django.db import transaction

from pynamo_locking import locked_all
from pynamo_locking._facade import handle_of, logger
from pynamo_locking.exceptions import ConfigurationError, LockingError, LockLost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from pynamo_locking import Lock


#: The locks that `lock_in_transaction` has acquired in this request or block, and that were not released yet.
_Scope = list["Lock[Any]"]
_scope: ContextVar[_Scope | None] = ContextVar("pynamo_locking_django_scope", default=None)


@contextlib.contextmanager
def locked_atomic(
    *locks: Lock[Any], using: str | None = None, wait: float | timedelta | None = None
) -> Iterator[tuple[Lock[Any], ...]]:
    """Acquire locks, begin an SQL transaction, commit it, and release the locks.

    ::

        with locked_atomic(Stock.locked("book")) as [lock]:
            Order.objects.create(...)
            lock.item.save()

    If the block raises, SQL rolls back. It also rolls back if a lock is lost, which is checked right before the commit.
    The SQL database does not check the lock: if the process pauses for a whole lease between this check and the commit,
    two commits can overlap.

    Args:
        *locks: any number; see `locked_all`. `lock_in_transaction` can acquire more inside.
        using: the SQL database, by Django's alias.
        wait: one deadline for all locks, in seconds or as a timedelta.

    Yields:
        The locks, held.

    Raises:
        ConfigurationError: inside another `atomic`, which would commit after the locks are released.
        LockLost: a lock is lost; SQL has rolled back.
        LockTimeout, ItemNotFound: as `locked_all`; nothing was begun.

    Cost: that of the locks, and a renewal of each lock that has less than half of its lease left.
    """
    _refuse_atomic(using)
    inside: _Scope = []
    is_committed = False
    try:
        with locked_all(*locks, wait=wait) as held:
            try:
                with scope(inside), _atomic(using):
                    yield held
                    for lock in (*held, *inside):
                        # Not `_options.lease`: an outer block may have acquired it, with another lease.
                        lock.ensure_remaining(handle_of(lock).held_entry().entry.lease / 2)
                is_committed = True
            finally:
                release_all(inside)
    except LockLost as loss:
        if not is_committed:
            raise
        logger.warning("a lock was lost while SQL committed: %s", loss)


def lock_in_transaction(
    lock: Lock[Any], *, using: str | None = None, wait: float | timedelta | None = None
) -> Lock[Any]:
    """Acquire a lock inside `atomic`, and hold it until that SQL transaction has committed or rolled back.

    After a commit it is released at once, by `transaction.on_commit`. Django has no such hook for a rollback. After
    one, even of only the savepoint in which it was acquired, the lock is released at the end of the request or of the
    `locked_atomic` block. Where you can, prefer `locked_atomic`: while `lock_in_transaction` waits for the lock, other
    transactions wait for the rows that this one has written already.

    Args:
        lock: made by `Model.locked`.
        using: the SQL database, by Django's alias.
        wait: instead of the lock's own, in seconds or as a timedelta.

    Returns:
        The lock, held.

    Raises:
        ConfigurationError: outside of `atomic`; or there is neither the middleware nor a `locked_atomic` block, which
            release the lock.
        LockTimeout, ItemNotFound: as `Lock.acquire`.
    """
    held = _scope.get()
    if held is None:
        raise ConfigurationError(
            "lock_in_transaction() needs LocksMiddleware or a locked_atomic() block around it, which release the lock "
            "after a roll back. Use locked_atomic() here."
        )
    if not transaction.get_connection(using).in_atomic_block:
        raise ConfigurationError(
            "lock_in_transaction() is for the inside of atomic(): here no commit would release the lock. Use "
            "`with lock:`, or locked_atomic()."
        )
    lock.acquire(wait)
    held.append(lock)
    transaction.on_commit(lambda: _release(lock, held), using=using, robust=True)
    return lock


def _atomic(using: str | None) -> contextlib.AbstractContextManager[object]:
    begun: Any = transaction.atomic(using=using, durable=True)
    return begun  # type: ignore[no-any-return]


def _refuse_atomic(using: str | None) -> None:
    blocks = transaction.get_connection(using).atomic_blocks
    # Django has no public way to the exception that its own `durable=True` makes for tests.
    if blocks and not blocks[-1]._from_testcase:  # noqa: SLF001
        raise ConfigurationError(
            "locked_atomic() inside atomic(): the outer block would commit after the locks are released. Lock "
            "outside, or use lock_in_transaction() here."
        )


def _release(lock: Lock[Any], held: _Scope) -> None:
    """Release a lock once. SQL has ended, so a failure is only logged."""
    if lock in held:
        held.remove(lock)
        try:
            lock.release()
        except LockingError as error:
            logger.warning("%s was not released after an SQL transaction: %s", lock.name, error)


def release_all(held: _Scope) -> None:
    """Release the locks that `lock_in_transaction` has acquired and no commit has released."""
    for lock in reversed(tuple(held)):
        _release(lock, held)


@contextlib.contextmanager
def scope(held: _Scope) -> Iterator[None]:
    """Let `lock_in_transaction` acquire locks inside; `release_all` has to follow."""
    token = _scope.set(held)
    try:
        yield
    finally:
        _scope.reset(token)
