"""Locks around SQL transactions: given back only when SQL has committed or rolled back, never before."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from django.db import transaction

from pynamo_locking import ConfigurationError, LockingError, LockLost, locked_all
from pynamo_locking.contrib._http import logger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from pynamo_locking import Lock

#: What `hold` has taken and nobody has given back, of the request or block that this code runs in.
_Scope = list["Lock[Any]"]
_scope: ContextVar[_Scope | None] = ContextVar("pynamo_locking_django_scope", default=None)


@contextlib.contextmanager
def locked_atomic(
    *locks: Lock[Any], using: str | None = None, wait: float | timedelta | None = None
) -> Iterator[tuple[Lock[Any], ...]]:
    """Take locks, begin an SQL transaction, commit it, and give the locks back: lock outside, atomic inside.

    ::

        with locked_atomic(Stock.lock("book")) as [lock]:
            Order.objects.create(...)
            lock.item.save()

    If the block raises, SQL rolls back; so it does if a lock is lost, which is looked at right before the commit. The
    SQL database itself knows nothing of locks: after a pause of a whole lease between that look and the commit, two
    commits could overlap.

    Args:
        *locks: any number; see `locked_all`. More can be taken inside by `hold`.
        using: the SQL database, by Django's alias.
        wait: one deadline for all locks, in seconds or as a timedelta.

    Yields:
        The locks, held.

    Raises:
        ConfigurationError: inside another `atomic`: that would commit after the locks are given back.
        LockLost: a lock is lost; SQL has rolled back.
        LockTimeout, ItemNotFound: as `locked_all`; nothing was begun.

    Cost: that of the locks; a renewal of each of which less than half of the lease is left.
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
                        # Not `_options.lease`: a block further out may have taken it, for another lease.
                        lock.ensure(lock._must_have_taken().entry.lease / 2)
                is_committed = True
            finally:
                give_all_back(inside)
    except LockLost as loss:
        if not is_committed:
            raise
        logger.warning("a lock was lost while SQL committed: %s", loss)


def hold(lock: Lock[Any], *, using: str | None = None, wait: float | timedelta | None = None) -> Lock[Any]:
    """Take a lock inside of `atomic`, and keep it until that SQL transaction has committed or rolled back.

    After a commit it is given back at once, by `transaction.on_commit`. Django has no such hook for a roll back: then,
    and if only the savepoint is rolled back in which it was taken, that comes at the end of the request or of the
    `locked_atomic` block. Where you can, prefer `locked_atomic`: who waits here keeps others waiting for the
    rows that the transaction has written already.

    Args:
        lock: made by `Model.lock` or `NamedLock.lock`.
        using: the SQL database, by Django's alias.
        wait: instead of the lock's own, in seconds or as a timedelta.

    Returns:
        The lock, held.

    Raises:
        ConfigurationError: outside of `atomic`, or where neither the middleware nor `locked_atomic` is around, so that
            nobody would give the lock back.
        LockTimeout, ItemNotFound: as `Lock.acquire`.
    """
    held = _scope.get()
    if held is None:
        raise ConfigurationError(
            "hold() needs LocksMiddleware or a locked_atomic() block around it, which give the lock back after a roll "
            "back. Use locked_atomic() here."
        )
    if not transaction.get_connection(using).in_atomic_block:
        raise ConfigurationError(
            "hold() is for the inside of atomic(): here no commit would give the lock back. Use `with lock:`, or "
            "locked_atomic()."
        )
    lock.acquire(wait)
    held.append(lock)
    transaction.on_commit(lambda: _give_back(lock, held), using=using, robust=True)
    return lock


def _atomic(using: str | None) -> contextlib.AbstractContextManager[object]:
    begun: Any = transaction.atomic(using=using, durable=True)
    return begun  # type: ignore[no-any-return]


def _refuse_atomic(using: str | None) -> None:
    blocks = transaction.get_connection(using).atomic_blocks
    if blocks and not blocks[-1]._from_testcase:  # the same exception as Django's own `durable=True`
        raise ConfigurationError(
            "locked_atomic() inside of atomic(): the outer block would commit after the locks are given back. Lock "
            "outside, or use hold() here."
        )


def _give_back(lock: Lock[Any], held: _Scope) -> None:
    """Release a lock once; SQL is done, so nothing depends on how that goes."""
    if lock in held:
        held.remove(lock)
        try:
            lock.release()
        except LockingError as error:
            logger.warning("%s was not given back after an SQL transaction: %s", lock.name, error)


def give_all_back(held: _Scope) -> None:
    """Give back what `hold` has taken and no commit has given back."""
    for lock in reversed(tuple(held)):
        _give_back(lock, held)


@contextlib.contextmanager
def scope(held: _Scope) -> Iterator[None]:
    """Let `hold` take locks inside; `give_all_back` comes after it."""
    token = _scope.set(held)
    try:
        yield
    finally:
        _scope.reset(token)
