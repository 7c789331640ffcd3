"""Transactions in tasks of asyncio: the same `Transaction`, whose steps are made in threads."""

from __future__ import annotations

import contextlib
import functools
import inspect
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, TypeVar

from typing_extensions import ParamSpec, Self, Unpack, overload

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import is_count
from pynamo_locking._io import concurrency, runtime
from pynamo_locking._io.concurrency import Pause
from pynamo_locking._locks import context
from pynamo_locking._locks.lock import handle_of
from pynamo_locking._models.awaited import in_place_of
from pynamo_locking._models.writes import GuardedMixin, inserted, moved
from pynamo_locking._transactions.begin import (
    SHARE_OF_WAIT,
    RetryLoop,
    as_current,
    check_join,
    current_transaction,
    is_kept_out,
    warn_if_never_left,
)
from pynamo_locking._transactions.group import check_combined
from pynamo_locking._transactions.items import locking
from pynamo_locking._transactions.options import values_of_key
from pynamo_locking._transactions.transaction import Transaction
from pynamo_locking._transactions.transaction_doors import (
    check_open,
    check_writable,
    hold_if_there,
    is_committed,
    items_of,
    options_of,
    step_of,
    transaction_of,
)
from pynamo_locking.exceptions import ItemNotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
    from types import TracebackType

    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._models.writes import Placed
    from pynamo_locking._transactions.items import HeldLocks, Locking
    from pynamo_locking._transactions.options import TransactionKeywords
    from pynamo_locking._transactions.transaction import Savepoint
    from pynamo_locking._transactions.transaction_table import TransactionTable


_M = TypeVar("_M", bound=GuardedMixin)
_T = TypeVar("_T")
_P = ParamSpec("_P")

_current: Final[ContextVar[AsyncTransaction | None]] = ContextVar("pynamo_locking_atransaction", default=None)


def _step(
    method: Callable[Concatenate[Transaction, _P], _T], *, is_urgent: bool = True
) -> Callable[[Callable[..., None]], Callable[Concatenate[AsyncTransaction, _P], Coroutine[Any, Any, _T]]]:
    """Make a step of a method of `Transaction`, awaited. What is decorated gives the name and the docstring."""

    def decorate(named: Callable[..., None]) -> Any:
        async def step(self: AsyncTransaction, *arguments: Any, **options: Any) -> Any:
            work = partial(getattr(self._transaction, method.__name__), *arguments, **options)
            return await self._do(work, is_urgent=is_urgent)

        return in_place_of(method, step, named)

    return decorate


class AsyncTransaction:
    """A `Transaction` whose steps are awaited. Made by `atransaction`.

    Each method does what the method of that name of `Transaction` does, with its guarantees, errors and costs. A step
    takes place in a thread, 32 at most for all tasks of the process; waiting for a lock or between two attempts
    occupies none. Tasks that share a transaction take turns: a step begins when the step before it has ended.

    Guaranteed when a task is cancelled: when it has ended, no step is under way and the transaction holds no lock. If
    the task was cancelled before the commit, nothing is written. If it was cancelled during the commit, the commit runs
    to its end without waiting for other transactions any more, and `is_committed` tells the outcome. The task may take
    as long as the request that is under way, and a pause of 2 s at most.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._line = concurrency.SerialCalls()

    @property
    def id(self) -> str:
        """Names this attempt, never used twice."""
        return self._transaction.id

    @property
    def is_repeated(self) -> bool:
        """Whether the commit found that a transaction with this `idempotency_key` was committed before."""
        return self._transaction.is_repeated

    @property
    def is_committed(self) -> bool:
        """Whether the transaction is known to be committed."""
        return is_committed(self._transaction)

    # Reading

    async def get(
        self,
        model: type[_M],
        hash_key: Any,
        range_key: Any = None,
        *,
        for_update: bool = False,
        for_share: bool = False,
    ) -> _M:
        """Return an item as the transaction sees it. See `Transaction.get`."""
        read = partial(self._transaction.get, model, hash_key, range_key)
        wanted = locking(for_update=for_update, for_share=for_share, refuses_absent=False)
        return await self._read(read, model, [(hash_key, range_key)], wanted)

    async def get_or_none(
        self,
        model: type[_M],
        hash_key: Any,
        range_key: Any = None,
        *,
        for_update: bool = False,
        for_share: bool = False,
    ) -> _M | None:
        """Return an item, or None if it does not exist. See `Transaction.get_or_none`."""
        read = partial(self._transaction.get_or_none, model, hash_key, range_key)
        wanted = locking(for_update=for_update, for_share=for_share)
        return await self._read(read, model, [(hash_key, range_key)], wanted)

    async def get_all(
        self, model: type[_M], keys: Iterable[Any], *, for_update: bool = False, for_share: bool = False
    ) -> list[_M | None]:
        """Return the items of many keys, in their order, None for absent ones. See `Transaction.get_all`."""
        keys = list(keys)
        read = partial(self._transaction.get_all, model, keys)
        wanted = locking(for_update=for_update, for_share=for_share)
        return await self._read(read, model, (values_of_key(model, key) for key in keys), wanted)

    async def _read(
        self, read: Callable[[], _T], model: type[_M], values: Iterable[tuple[Any, Any]], wanted: Locking | None
    ) -> _T:
        """Read some items, after locking them until the end of the transaction."""
        async with self._line.turn():
            check_open(self._transaction)
            for lock in () if wanted is None else self._locks.missing(model, values, wanted):
                await self._hold_if_there(lock)
            return await self._in_thread(read, is_urgent=False)

    async def _hold_if_there(self, lock: Lock[Any], *, share: float = 1.0) -> None:
        with suppress(ItemNotFound):  # the read finds it absent, and the commit checks that
            await self._hold(lock, share=share)

    async def _hold(self, lock: Lock[Any], *, share: float = 1.0) -> None:
        await handle_of(lock).abegin_block(share * self._locks.left())
        self._locks.held.append(lock)

    @property
    def _locks(self) -> HeldLocks:
        return items_of(self._transaction).locks

    @_step(Transaction.query, is_urgent=False)
    def query(self) -> None:
        """Return the items of a hash key as the transaction sees them. See `Transaction.query`."""

    @_step(Transaction.scan, is_urgent=False)
    def scan(self) -> None:
        """Return the items of a small table as the transaction sees them. See `Transaction.scan`."""

    # Writing

    @_step(Transaction.save)
    def save(self) -> None:
        """Store an item as it is now, with the commit. See `Transaction.save`."""

    @_step(Transaction.update)
    def update(self) -> None:
        """Apply actions to an item, with the commit. See `Transaction.update`."""

    @_step(Transaction.delete)
    def delete(self) -> None:
        """Delete an item, with the commit. See `Transaction.delete`."""

    async def insert_disjoint(self, model: type[_M], new_rows: Sequence[_M], *, pessimistic: bool = False) -> None:
        """Store new rows of a model with intervals, with the commit. See `Transaction.insert_disjoint`."""
        await self._place(lambda: inserted(self._transaction, model, new_rows), pessimistic=pessimistic)

    async def move(self, row: GuardedMixin, begin: Any, end: Any, *, pessimistic: bool = False) -> None:
        """Give a row another interval, with the commit. See `Transaction.move`."""
        await self._place(lambda: moved(self._transaction, row, begin, end), pessimistic=pessimistic)

    async def _place(self, made: Callable[[], Placed], *, pessimistic: bool) -> None:
        async with self._line.turn():
            check_writable(self._transaction)
            placed = made()
            for lock in placed.locks() if pessimistic else ():
                await self._hold(lock)
            await self._in_thread(placed.stage)

    @_step(Transaction.check)
    def check(self) -> None:
        """Let the commit check that the stored item is the one that was read. See `Transaction.check`."""

    @_step(Transaction.touch)
    def touch(self) -> None:
        """Increment an item's version, with the commit. See `Transaction.touch`."""

    @_step(Transaction.plan)
    def plan(self) -> None:
        """Return how the transaction would be committed now. See `Transaction.plan`."""

    def savepoint(self) -> Savepoint:
        """Return the present state, to which `Savepoint.rollback` goes back; neither makes a request."""
        return self._transaction.savepoint()

    # The end

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Call back in a thread once the transaction is committed. See `Transaction.after_commit`."""
        self._transaction.after_commit(_plain(callback))

    def after_rollback(self, callback: Callable[[], object]) -> None:
        """Call back in a thread after a rollback. See `Transaction.after_rollback`."""
        self._transaction.after_rollback(_plain(callback))

    async def commit(self) -> None:
        """Commit: all writes are applied, or none. See `Transaction.commit`."""
        await self._end(self._transaction.commit)

    async def rollback(self) -> None:
        """Roll back: nothing is written. See `Transaction.rollback`."""
        await self._end(self._transaction.rollback)

    @_step(Transaction.suspend)
    def suspend(self) -> None:
        """Store the transaction for any process to `resume`, and roll back. See `Transaction.suspend`."""

    @_step(Transaction.resume)
    def resume(self) -> None:
        """Continue a suspended transaction. See `Transaction.resume`."""

    async def __aenter__(self) -> Self:
        check_open(self._transaction)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leave = partial(self._transaction.__exit__, kind, error, traceback)
        if isinstance(error, GeneratorExit):  # nothing can be awaited
            concurrency.start(partial(self._line.alone, leave))
            self._forget_locks()
        else:
            await self._end(leave)

    # Steps

    async def _do(self, work: Callable[[], _T], *, is_urgent: bool = True) -> _T:
        async with self._line.turn():
            return await self._in_thread(work, is_urgent=is_urgent)

    async def _end(self, work: Callable[[], None]) -> None:
        try:
            async with self._line.turn(self._stop_waiting):
                await self._in_thread(work)
        finally:
            self._forget_locks()

    async def _in_thread(self, work: Callable[[], _T], *, is_urgent: bool = True) -> _T:
        def under_locks() -> _T:
            for held in self._held():  # another task of the transaction may have acquired them
                context.add(held)
            return work()

        alone = partial(self._line.alone, under_locks)
        return await concurrency.to_the_end(alone, is_urgent=is_urgent, hurry=self._stop_waiting)

    def _held(self) -> list[HeldEntry]:
        handles = map(handle_of, self._locks.held)
        return [each.held_entry() for each in handles if each.depth]

    def _forget_locks(self) -> None:
        """Forget, in this task's context, the locks that a thread has released."""
        for held in [handle_of(lock).entry for lock in self._locks.held]:
            if held is not None:
                context.remove(held)

    def _stop_waiting(self) -> None:
        """Wait for no other transaction any more."""
        deadline = options_of(self._transaction).deadline
        deadline.at = min(deadline.at, runtime.current.monotonic())


def _plain(callback: Callable[[], object]) -> Callable[[], object]:
    if inspect.iscoroutinefunction(callback):
        raise ConfigurationError(
            f"{getattr(callback, '__name__', callback)} is a coroutine, and callbacks of a transaction are called in a "
            f"thread: pass a plain function, or await the coroutine after the block, if `is_committed`."
        )
    return callback


@contextlib.asynccontextmanager
async def atransaction(
    table: type[TransactionTable] | None = None, *, join: bool = False, **options: Unpack[TransactionKeywords]
) -> AsyncIterator[AsyncTransaction]:
    """Commit what the ``async with`` block does, all or nothing; roll back if it raises or is cancelled.

    Example::

        async with atransaction() as tx:
            source = await tx.get(Account, "a-1")
            target = await tx.get(Account, "a-2")
            source.balance -= 10
            target.balance += 10
            await tx.save(source)
            await tx.save(target)

    As `transaction`, with the same arguments, for a task of asyncio. Plain functions that the block calls through
    `asyncio.to_thread`, and that begin a ``transaction(join=True)``, take part in it.

    Yields:
        The transaction; see `AsyncTransaction` for what happens when the task is cancelled.

    Raises:
        ConfigurationError, Conflict, OutcomeUnknown: as `transaction`.

    Cost: that of `transaction`, and the start of a thread for each step, some 0.1 ms.
    """
    outer = current_transaction()
    if outer is not None:
        check_join(options, join=join)
        known = _current.get()
        yield known if known is not None and transaction_of(known) is outer else AsyncTransaction(outer)
        return
    async with _run_in(Transaction(table, **options)) as begun:
        try:
            yield begun
        except GeneratorExit as end:
            warn_if_never_left(transaction_of(begun), end)
            raise


@contextlib.asynccontextmanager
async def _run_in(begun: Transaction) -> AsyncIterator[AsyncTransaction]:
    awaited = AsyncTransaction(begun)
    before = _current.get()
    _current.set(awaited)
    try:
        with as_current(begun):
            async with awaited:
                yield awaited
    finally:
        if _current.get() is awaited:  # not in the context of a collector
            _current.set(before)


async def as_step(work: Callable[[], _T]) -> _T:
    """Return what a step of the transaction that is open in this context returns."""
    async with atransaction(join=True) as tx:
        return await step_of(tx, work)


@overload
def atransactional(
    function: Callable[Concatenate[AsyncTransaction, _P], Awaitable[_T]], /
) -> Callable[_P, Coroutine[Any, Any, _T]]: ...
@overload
def atransactional(
    *,
    attempts: int = 10,
    join: bool = False,
    combine: bool = False,
    table: type[TransactionTable] | None = None,
    **options: Unpack[TransactionKeywords],
) -> Callable[[Callable[Concatenate[AsyncTransaction, _P], Awaitable[_T]]], Callable[_P, Coroutine[Any, Any, _T]]]: ...
def atransactional(
    function: Callable[..., Any] | None = None,
    /,
    *,
    attempts: int = 10,
    join: bool = False,
    combine: bool = False,
    table: type[TransactionTable] | None = None,
    **options: Unpack[TransactionKeywords],
) -> Any:
    """Run a coroutine function as a transaction, and retry it from the start after a conflict.

    Example::

        @atransactional()
        async def move(tx: AsyncTransaction, source: str, target: str, amount: int) -> None:
            await tx.update(await tx.get(Account, source), [Account.balance.add(-amount)])
            await tx.update(await tx.get(Account, target), [Account.balance.add(amount)])

        await move("a-1", "a-2", 10)

    See `transactional` for `attempts`, `join`, `combine`, the other arguments and the errors. The pauses between two
    attempts and the waits for locks pass in the event loop. With `combine` a task waits for the commit of its group in
    a thread, even if it is cancelled while that is being sent. At most 32 tasks of a process do so at once; meanwhile
    others of their steps, such as reads, wait for a thread.

    Raises:
        ConfigurationError: the function is no coroutine function, or as `transactional`.
    """
    if not is_count(attempts):
        raise ConfigurationError(f"atransactional() needs at least one attempt, not {attempts!r}.")
    check_combined({"table": table, **options}, combine=combine)
    Transaction(**options)  # for its errors, before the first call

    def decorate(
        function: Callable[Concatenate[AsyncTransaction, _P], Awaitable[_T]],
    ) -> Callable[_P, Coroutine[Any, Any, _T]]:
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"atransactional() runs coroutine functions, which {getattr(function, '__name__', function)} is not: "
                f"write `async def`, or use transactional()."
            )

        @functools.wraps(function)
        async def run(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
            if current_transaction() is not None:
                async with atransaction(table, join=join, **options) as outer:
                    return await function(outer, *arguments, **keywords)
            attempt = RetryLoop(attempts, {"table": table, **options}, combine=combine, is_awaited=True)
            return await _run(lambda tx: function(tx, *arguments, **keywords), attempt)

        vars(run)["_begins_transaction"] = True  # for idempotent()
        return run

    return decorate if function is None else decorate(function)


async def _run(function: Callable[[AsyncTransaction], Awaitable[_T]], attempt: RetryLoop) -> _T:
    while True:
        try:
            async with _run_in(attempt.begun) as awaited:
                with suppress(*attempt.excused):
                    for lock in attempt.locks():
                        await hold_if_there(awaited, lock, share=SHARE_OF_WAIT)
                attempt.note_locks()
                return attempt.checked(await function(awaited))
        except Exception as error:
            pause, doubt = attempt.pause_after(error), attempt.doubt_with(error)
            if pause is None:
                if doubt is None or await concurrency.to_the_end(functools.partial(is_kept_out, doubt)):
                    raise
                raise doubt from error
        await concurrency.spend(Pause(pause))
        attempt.begin_again()
