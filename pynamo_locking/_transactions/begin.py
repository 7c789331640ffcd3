"""Begins transactions: for a ``with`` block, or around a function that is retried after a conflict."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, Final, TypeVar

from pynamodb.exceptions import TransactWriteError
from typing_extensions import ParamSpec, Unpack, overload, override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import backoff, is_count
from pynamo_locking._io import runtime
from pynamo_locking._io.concurrency import is_lazy
from pynamo_locking._items.keys import ItemKey, label_of
from pynamo_locking._locks.held_lock import refuse_retry_in_blocked_loop
from pynamo_locking._locks.locked_all import in_order
from pynamo_locking._models.edit import may_queue, retry_lock
from pynamo_locking._models.mixins import LockableMixin
from pynamo_locking._models.tables import OwnRows
from pynamo_locking._models.writes import open_here, warn_of_lost_writes
from pynamo_locking._pynamodb import connection_of, key_values_of
from pynamo_locking._transactions.group import Again, Member, check_combined
from pynamo_locking._transactions.options import TransactionKeywords
from pynamo_locking._transactions.transaction import Transaction
from pynamo_locking._transactions.transaction_doors import (
    commit_run_of,
    is_committed,
    is_over,
    items_of,
    next_attempt,
    options_of,
)
from pynamo_locking._writes.write import READ_FOR_UPDATE, locked_by
from pynamo_locking.exceptions import (
    WAIT_IS_OVER,
    ItemLocked,
    LockLost,
    LockTimeout,
    OutcomeUnknown,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
    gave_up,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.transaction_table import TransactionTable


_T = TypeVar("_T")
_P = ParamSpec("_P")
_current: ContextVar[Transaction | None] = ContextVar("pynamo_locking_transaction", default=None)

#: After these errors a new attempt may succeed.
_WORTH_ANOTHER = (StaleVersion, ItemLocked, TransactionConflict, TransactionAborted)

#: For so much of the time that is left a retry waits for each lock that only helps it; intents need the rest.
SHARE_OF_WAIT: Final = 0.5


@contextlib.contextmanager
def transaction(
    table: type[TransactionTable] | None = None, *, join: bool = False, **options: Unpack[TransactionKeywords]
) -> Iterator[Transaction]:
    """Commit what the ``with`` block does, all or nothing; roll back if it raises.

    Example::

        with transaction() as tx:
            source = tx.get(Account, "a-1")
            target = tx.get(Account, "a-2")
            source.balance -= 10
            target.balance += 10
            tx.save(source)
            tx.save(target)

    The block is not retried after a conflict: see `transactional`. For the guarantees, and for `table` and all other
    arguments except `join`, see `Transaction`.

    With `join`, a block inside another transaction of this context takes part in the outer transaction, with its
    options; the outer block commits it. Without `join`, the default, that is refused: two transactions would not be
    atomic together.

    Yields:
        The transaction.

    Raises:
        ConfigurationError: inside another transaction, without `join`; or arguments that cannot work.
        Conflict, OutcomeUnknown: on leaving, as `Transaction.commit`.

    Cost: see `Transaction.commit`.
    """
    outer = current_transaction()
    if outer is not None:
        check_join(options, join=join)
        yield outer
        return
    runtime.check_context_lasts()
    begun = Transaction(table, **options)
    try:
        with as_current(begun), begun:
            try:
                yield begun
            except GeneratorExit as end:
                warn_if_never_left(begun, end)
                raise
    finally:
        begun.rollback()  # if an interrupt came before the end of its block


def warn_if_never_left(begun: Transaction, end: GeneratorExit) -> None:
    """Warn of writes whose block was entered by `__enter__` and is gone; a generator around a block leaves it."""
    if end.__traceback__ is not None and end.__traceback__.tb_next is None:  # it was raised here, and not in the block
        written = [item.identity for item in items_of(begun).by_key.values() if item.plan.write is not None]
        warn_of_lost_writes(begun, written)


def check_join(options: Mapping[str, object], *, join: bool) -> None:
    """Refuse a transaction inside another one, unless the caller says that it takes part in it."""
    unknown = sorted(options.keys() - TransactionKeywords.__annotations__)
    if unknown:
        raise TypeError(f"a transaction has no option {unknown[0]!r}")
    if not join:
        raise ConfigurationError(
            "a transaction is open in this context already, and two would not be atomic together: use the open one, or "
            "pass join=True."
        )


@contextlib.contextmanager
def as_current(begun: Transaction) -> Iterator[None]:
    runtime.check_inheritance()
    outer, outer_items = _current.get(), open_here.get()
    try:
        open_here.set(items_of(begun).participation)
        _current.set(begun)  # in here: an interrupt right after it would leave the transaction open
        yield
    finally:
        if _current.get() is begun:  # not in the context of a collector
            _current.set(outer)
            open_here.set(outer_items)


def current_transaction() -> Transaction | None:
    """Return the transaction of the ``with`` block or function that this code runs in, None if there is none.

    A transaction that is over does not count: a callback of `Transaction.after_commit` can begin a new one.
    """
    found = _current.get()
    return None if found is None or is_over(found) else found


@overload
def transactional(function: Callable[Concatenate[Transaction, _P], _T], /) -> Callable[_P, _T]: ...
@overload
def transactional(
    *, attempts: int = 10, join: bool = False, combine: bool = False, **options: Any
) -> Callable[[Callable[Concatenate[Transaction, _P], _T]], Callable[_P, _T]]: ...
def transactional(
    function: Callable[..., Any] | None = None,
    /,
    *,
    attempts: int = 10,
    join: bool = False,
    combine: bool = False,
    **options: Any,
) -> Any:
    """Run a function as a transaction, and retry it from the start after a conflict.

    Example::

        @transactional()
        def move(tx: Transaction, source: str, target: str, amount: int) -> None:
            tx.update(tx.get(Account, source), [Account.balance.add(-amount)])
            tx.update(tx.get(Account, target), [Account.balance.add(amount)])

        move("a-1", "a-2", 10)

    The function gets the transaction as its first argument. It may run several times, so it should have no side
    effects: put those into `Transaction.after_commit`. All attempts have the age of the first: of two transactions of
    more than 100 actions that write one item, the older one wins. Age does not keep other writers from changing what an
    attempt has read.

    Therefore the next attempts first acquire, in one canonical order, the locks of the items that were to be written,
    have a `LockAttribute`, and had been changed or were locked. They read under these locks. So callers of hot items
    queue, first come, first served; other writers get ItemLocked meanwhile. An attempt that would write what others had
    locked at its read has no commit: the next one waits for the lock. A function that acquires a lock itself, other
    than by `for_update`, can wait for one that waits for these: acquire such locks around the call.

    No lock is acquired, and each attempt has a commit, after `wait`; if an attempt used `for_update` or `for_share`, or
    the caller holds a lock, since the order could be another one; if the call blocks an event loop; and with `combine`,
    since its callers would commit one by one.

    Pass keys, not instances: the function must read what it changes. An instance from outside would be as stale in each
    retry, so the second attempt with it is the last one: its `StaleVersion` says so. So is the second attempt that
    stores a new instance under a key that exists, unless it has looked for the item with `Transaction.get_or_none`.

    Args:
        function: the function, for ``@transactional`` without parentheses.
        attempts: so many conflicts end the call; 10 unless set. A lock that is held by others is no conflict, unless
            `attempts` is 1: then the function runs once. An attempt that has more locks to acquire begins at once. So
            does the second one after a native transaction (2 to 100 actions) in which an item was stale; without a lock
            the items that came with the refusal replace its reads. Before others there is a pause of full jitter: up to
            0.1 s, doubled each time, at most 2 s.
        join: as in `transaction`: inside another transaction the function is a part of it, and runs once.
        combine: commit together with other callers of this process that combine and want the same items, in one native
            transaction: for hot items. The function may read what those before it are about to commit. It runs again at
            once, which is no attempt, 100 times at most: if another caller, whose commit is under way, was faster, or
            another writer was faster than its group. After such a read it also runs again, on what is stored then, if
            it raises, rolls back, or goes on although its `Transaction.commit` was refused. Each such run is rolled
            back, and calls what `Transaction.after_rollback` was given. A transaction commits alone if it holds locks,
            writes what it has not read by its key, changes unique values, has intervals, guarded queries or items that
            expire, or has more than 100 actions. Not with `idempotency_key`, `record`, `read_only` or another isolation
            than ``"serializable"`` and ``"read_committed"``.
        **options: those of `transaction`. With an `idempotency_key` an unknown outcome is retried as well. `wait` is
            one deadline for all attempts; an attempt that begins after it does not wait, and acquires no lock.

    Returns:
        The function without its first argument. It returns what the last run returned.

    Raises:
        StaleVersion, ItemLocked, TransactionConflict, TransactionAborted: the error of the last attempt; its message
            says why there was no other one. ItemLocked ends the call when `wait` is over.
        Conflict: a condition of the caller was false; there is no retry.
        OutcomeUnknown: no response tells whether the transaction was committed; with `combine` each caller of the group
            has its own. With an `idempotency_key` it stands for all attempts, and is raised instead of any other error
            of a later attempt, unless `resolve` has found that no attempt was, or will be, applied.
        ConfigurationError: `attempts` is below 1, an option has a wrong value, or one does not go with `combine` (when
            the function is decorated); or the function is a coroutine or a generator; or a retry would wait for a lock
            that another task of the event loop of this thread holds.
        TypeError: there is no such option; when the function is decorated.

    Cost: that of `transaction`; of a retry also that of `for_update` for each lock. With `combine` that of
    `transaction` for a call whose items no other caller has in use. Else no read of what the calls before it leave, and
    one commit for the group; of a call that commits alone, its reads again.

    Source: full jitter, from the AWS Architecture Blog, Exponential Backoff and Jitter (2015).
    """
    if not is_count(attempts):
        raise ConfigurationError(f"transactional() needs at least one attempt, not {attempts!r}.")
    check_combined(options, combine=combine)
    Transaction(**options)  # for its errors, before the first call

    def decorate(function: Callable[Concatenate[Transaction, _P], _T]) -> Callable[_P, _T]:
        if is_lazy(function):
            raise ConfigurationError(
                f"transactional() would commit before {getattr(function, '__name__', function)} has run: it is a "
                f"coroutine or a generator. Use atransactional() for a coroutine."
            )

        @functools.wraps(function)
        def run(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
            if current_transaction() is not None:
                with transaction(join=join, **options) as outer:
                    return function(outer, *arguments, **keywords)
            loop = RetryLoop(attempts, options, combine=combine)
            return _run(lambda tx: function(tx, *arguments, **keywords), loop)

        vars(run)["_begins_transaction"] = True  # for idempotent()
        return run

    return decorate if function is None else decorate(function)


def _run(function: Callable[[Transaction], _T], loop: RetryLoop) -> _T:
    def attempt() -> _T:
        with as_current(loop.begun), loop.begun:
            with contextlib.suppress(*loop.excused):
                for lock in loop.locks():
                    items_of(loop.begun).locks.hold_if_there(lock, share=SHARE_OF_WAIT)
            loop.note_locks()
            return loop.checked(function(loop.begun))

    return run_attempts(loop, attempt)


class Attempts(ABC):
    """The attempts of one call, each with its own transaction; `begun` is that of the present one.

    A subclass says after which errors there is another attempt.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.begun = Transaction(**options)

    @abstractmethod
    def pause_after(self, error: Exception) -> float | None:
        """Return for how many seconds to pause before the next attempt; None if there is none."""

    def doubt_with(self, error: Exception) -> OutcomeUnknown | None:  # noqa: ARG002 - for subclasses
        """Return the error of an earlier attempt that may have been applied, although the last one was not."""
        return None

    def left(self) -> float:
        """Return how many seconds are left of the time to wait, which is one for all attempts."""
        return items_of(self.begun).locks.left()

    def begin_again(self) -> None:
        """Begin the transaction of the next attempt, with the age of the first."""
        self.begun = next_attempt(self.begun, Transaction(**{**self._options, "wait": self.left()}))


def run_attempts(attempts: Attempts, attempt: Callable[[], _T]) -> _T:
    """Return the result of the first attempt that succeeds; the error of the last one if none does."""
    while True:
        try:
            return attempt()
        except Exception as error:
            pause, doubt = attempts.pause_after(error), attempts.doubt_with(error)
            if pause is None:
                if doubt is None or is_kept_out(doubt):
                    raise
                raise doubt from error
            if doubt is None:
                refuse_retry_in_blocked_loop(error)
        finally:
            attempts.begun.rollback()
        runtime.current.sleep(pause)
        attempts.begin_again()


class RetryLoop(Attempts):
    """The attempts of a function that is retried after a conflict.

    After an error that is `excused` an attempt begins without some of its `locks`: its commit checks all that it reads.
    """

    excused = (LockTimeout, ConfigurationError)

    def __init__(self, most: int, options: dict[str, Any], *, combine: bool = False, is_awaited: bool = False) -> None:
        super().__init__(options)
        items_of(self.begun).member = Member(options_of(self.begun).deadline) if combine else None
        self._most = most  # so many conflicts end the call
        self._conflicts = 0
        self._refusals = 0  # conflicts, and commits that a lock has refused
        self._worth = (*_WORTH_ANOTHER, OutcomeUnknown) if options.get("idempotency_key") else _WORTH_ANOTHER
        self._doubt: OutcomeUnknown | None = None
        self._refused: dict[ItemKey, Image] = {}  # with which the present attempt goes on at once
        self._contended: dict[ItemKey, LockableMixin] = {}  # which the present attempt locks
        self._locked = 0  # so many locks the present attempt has acquired for that
        self._last_items: Mapping[ItemKey, TransactionItem] = {}  # of the last attempt
        # Behind a lock the callers that combine would commit one by one.
        self._may_queue = not combine and may_queue(is_awaited=is_awaited)

    def locks(self) -> list[Lock[Any]]:
        """Return the locks of the items that were contended in earlier attempts, in one canonical order."""
        options, contended = options_of(self.begun), self._contended.values() if self.left() else ()
        found = [retry_lock(type(item), key_values_of(item), options.lease, owner=options.owner) for item in contended]
        return [*in_order(found)]

    def note_locks(self) -> None:
        self._locked = len(items_of(self.begun).locks.held)

    def checked(self, result: _T) -> _T:
        """Return the result of the function; `ItemLocked` if the commit would write what others had locked.

        They will most likely change it, so the commit would be in vain. It is tried nevertheless when `wait` is over.
        `Again` if the function has ended without a commit on what it has seen of others, which may never be committed.
        """
        member = self._misled()
        if member is not None and is_over(self.begun):
            raise member.go_alone()
        for item, _ in () if self._most == 1 or is_over(self.begun) else self._newly_contended():
            if item.row is not None:
                holder = item.row.state(item.stored).entries[0]
                raise locked_by(item.row, holder, TransactWriteError, advice=READ_FOR_UPDATE)
        return result

    def _misled(self) -> Member | None:
        """Return the member if it has read of others, and nothing of its own is, or may be, committed."""
        member, commit = items_of(self.begun).member, commit_run_of(self.begun)
        return member if member is not None and member.has_seen and (commit is None or member.is_refused) else None

    def _newly_contended(self) -> list[tuple[TransactionItem, LockableMixin]]:
        """Return what the next attempt has to lock as well; nothing if it may not, or `wait` is over."""
        commit, items = commit_run_of(self.begun), items_of(self.begun)
        if self._caller_locks() or not self.left():
            return []
        if commit is None:
            found = [item for item in items.by_key.values() if _is_locked_by_others(item)]
        else:
            found = commit.contended()
        new = [item for item in found if item.row is not None and item.identity not in self._contended]
        # A row of our own, such as that of an idempotent call, is locked by what the function calls.
        theirs = [item for item in new if not isinstance(item.instance, OwnRows)]
        return [(item, item.instance) for item in theirs if isinstance(item.instance, LockableMixin)]

    def _caller_locks(self) -> bool:
        """Tell whether the caller locks items: in another order, so that a retry must not."""
        return not self._may_queue or len(items_of(self.begun).locks.held) > self._locked

    @override
    def pause_after(self, error: Exception) -> float | None:
        commit = commit_run_of(self.begun)
        is_worth = isinstance(error, self._worth) or self._is_loss_of_ours(error)
        member, misled = items_of(self.begun).member, self._misled()
        if misled is not None and (commit is None or not is_worth):
            error = misled.go_alone()
        if member is not None and isinstance(error, Again):
            self._refused = {}
            return 0.0
        if isinstance(error, OutcomeUnknown) and commit is not None:
            self._doubt = error
        # An error that a callback or the function raises after the commit must not cause a retry.
        if is_committed(self.begun) or not is_worth:
            return None
        why_last = self._why_last(error)
        if why_last:
            gave_up(error, "transactional()", why_last)
            return None
        if self._caller_locks():
            self._contended.clear()
        contended = {item.identity: instance for item, instance in self._newly_contended()}
        self._contended |= contended
        # What came with the refusal is old when the locks are acquired, or were waited for in vain.
        is_fresh = self._refusals == 1 and not contended
        self._refused = commit.refused_items() if is_fresh and commit is not None else {}
        if contended or self._refused:
            return 0.0
        pause = backoff(self._refusals, runtime.current.jitter())
        return min(pause, self.left()) if isinstance(error, ItemLocked) else pause

    def _why_last(self, error: Exception) -> str:
        """Count a refusal; say why it is the last one, if it is. Conflicts are counted, locks are waited for."""
        is_locked = self._most > 1 and isinstance(error, ItemLocked)
        self._refusals += 1
        self._conflicts += not is_locked
        hopeless = self._stale_again(error)
        if is_locked:
            return "" if self.left() else WAIT_IS_OVER
        attempt = f"after attempt {self._conflicts} of {self._most}"
        if self._conflicts == self._most:
            return attempt
        return "" if hopeless is None else f"{attempt}: {hopeless}"

    def _stale_again(self, error: Exception) -> str | None:
        """Say why an item that was stale in the last attempt already will stay so: the function has not read it."""
        before, self._last_items = self._last_items, items_of(self.begun).by_key
        if not isinstance(error, StaleVersion) or error.refused_by is None:
            return None
        model, key = error.refused_by
        stale = ItemKey.of(connection_of(model).table_name, key)
        if stale not in before or stale not in self._last_items:
            return None
        then, now = before[stale], self._last_items[stale]
        name = label_of(now.model, key_values_of(now.instance))
        if then.instance is now.instance and then.before == now.before:
            return f"{name} is an instance from outside of the function: read it with tx.get() in each attempt"
        if then.is_blind_insert and now.is_blind_insert:
            return f"{name} is a new instance, and an item with this key exists: read it with tx.get_or_none() before"
        return None

    def _is_loss_of_ours(self, error: Exception) -> bool:
        """Tell whether a lock was lost that only helps the retry."""
        ours = items_of(self.begun).locks.held[: self._locked]
        return isinstance(error, LockLost) and error.ticket in {lock.ticket for lock in ours}

    @override
    def doubt_with(self, error: Exception) -> OutcomeUnknown | None:
        return None if self._doubt is error or is_committed(self.begun) else self._doubt

    @override
    def begin_again(self) -> None:
        member = items_of(self.begun).member
        super().begin_again()
        items_of(self.begun).member = None if member is None else member.again(options_of(self.begun).deadline)
        items_of(self.begun).refused = dict(self._refused)


def _is_locked_by_others(item: TransactionItem) -> bool:
    """Tell whether a transaction writes an item, and others were in the queue of its lock when it was read."""
    writer = item.plan.writer
    if writer is None or writer.held is not None or writer.row is None:
        return False
    return bool(writer.row.state(item.stored).entries)


def is_kept_out(doubt: OutcomeUnknown) -> bool:
    """Tell whether a transaction was not applied and never will be."""
    try:
        return doubt.resolve() == "not applied"
    except Exception:  # noqa: BLE001 - nothing was found out
        return False
