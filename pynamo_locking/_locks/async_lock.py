"""Locks for asyncio: the same locks, acquired and released without blocking the event loop."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._io import event_stream, loops, runtime
from pynamo_locking._locks import held_entry, holding, reports, tasks
from pynamo_locking._locks.acquisition import Acquisition
from pynamo_locking._locks.several import in_order
from pynamo_locking._locks.target import M

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.transactions import TransactWrite

    from pynamo_locking._io.runtime import Event
    from pynamo_locking._locks.held_entry import HeldEntry
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._locks.options import LockOptions


class AsyncLock(Generic[M]):
    """A `Lock` for tasks of asyncio: the same queue, the same promises, and threads and tasks wait in it together.

    Made by `Model.alocked()` and `NamedLock.alocked()`. Use it in an ``async with`` statement, or call `aacquire()` and
    `arelease()` in pairs. Methods whose names begin with an "a" are awaited; the rest makes no request and never
    blocks. A task that acquires a lock it already holds gets the same ticket again; other tasks wait for it, also those
    that it began.

    PynamoDB blocks, so requests are made in threads, 32 at most; waiting for a lock does not occupy a thread. `save`
    and other methods of models block the event loop unless they are called through `asyncio.to_thread`; the lock guards
    them there as well.

    Guaranteed when a task is cancelled, however often, while it enters, waits, is granted the lock, holds or releases
    it: when the task has ended, none of its entries is in the queue, and nothing is held. For this it may go on for the
    time of the request that is under way, and of the request that removes the entry: 4 attempts of it at most, each no
    longer than the lock's `request_timeout` allows. If an event loop is closed under its tasks, threads do the same
    behind it. An async generator that is closed in the block releases the lock before `aclose` returns, if the task
    that acquired it closes it, or the loop does.

    Cost: that of `Lock`, and the start of a thread for each request, some 0.1 ms.
    """

    def __init__(self, lock: Lock[M]) -> None:
        self._lock = lock

    # Acquiring and releasing

    async def aacquire(self, wait: Duration | None = None) -> Self:
        """Acquire the lock, waiting for our turn while other tasks go on.

        Args:
            wait: as for `Lock.acquire`.

        Returns:
            The lock itself.

        Raises:
            LockTimeout, ItemNotFound, ConfigurationError, LockLost, OutcomeUnknown: as `Lock.acquire`.
            asyncio.CancelledError: the task was cancelled; nothing is held, and no entry of ours is left behind.
        """
        lock = self._lock
        options, before = lock._options_for(wait), None
        try:
            lock._begin()
            try:
                before = lock._before()
                own = lock._take_again(before)
                if own is None:
                    own = await self._take(options)
                else:
                    await self._keep_again(own)
                lock._note_take(own)
            except BaseException:
                lock._undo(before)
                before = None
                raise
            finally:
                lock._acquiring.release()
        except BaseException:  # an interrupt that came after all that
            lock._undo(before)
            raise
        return self

    async def _keep_again(self, own: HeldEntry) -> None:
        """As `holding.keep`, but make requests in a thread."""
        try:
            if not own.remaining:
                await loops.to_the_end(partial(holding.renew, own))
            self._lock._begin_heartbeat(own)
        except BaseException:
            own.give_back()
            raise

    async def _take(self, options: LockOptions) -> HeldEntry:
        party = runtime.current.party()
        row = self._lock._target.row
        attempt = self._lock._attempt = Acquisition(row, options)
        with reports.attempt(row, options) if event_stream.listeners else contextlib.nullcontext():
            own = await tasks.take(attempt.steps(), self._lock._hold)
        own.party = party  # not the thread of the last request
        held_entry.remember(own)
        return own

    async def arelease(self) -> None:
        """Release the lock; the last of several releases removes our entry from the queue.

        A task that is cancelled meanwhile releases it nevertheless, and hears of the cancellation then.

        Raises:
            LockLost, ConfigurationError: as `Lock.release`.
        """
        await leaving(self._lock, self._lock.release)

    async def __aenter__(self) -> Self:
        return await self._enter()

    async def _enter(self, wait: Duration | None = None) -> Self:
        self._lock._blocks += 1
        try:
            return await self.aacquire(wait)
        except BaseException:
            self._lock._blocks -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await leaving(self._lock, partial(self._lock.__exit__, kind, error, traceback), error)

    # What is known of it

    @property
    def name(self) -> str:
        """The lock's name: ``table/hash key/range key``, or the name of a `NamedLock`."""
        return self._lock.name

    @property
    def owner(self) -> str:
        """The label that names us to people: host, process and thread unless given."""
        return self._lock.owner

    @property
    def ticket(self) -> int:
        """Our place in the queue and fencing token, as `Lock.ticket`."""
        return self._lock.ticket

    @property
    def item(self) -> M:
        """The locked item, as `Lock.item` says. Makes no request.

        Raises:
            ConfigurationError: it has to be read first: the lock is in a row of its own, or the item was written before
                it was asked for here. ``await lock.aitem()`` reads it.
        """
        if self._must_read:
            raise ConfigurationError(
                f"the item of {self._lock._target.row.label} has to be read first, which would block the event loop: "
                f"use `await lock.aitem()`; after that, `lock.item` has it."
            )
        return self._lock.item

    @property
    def _must_read(self) -> bool:
        own = self._lock._last()
        is_known = self._lock._given is not None or own.entry.claim.is_ranged
        return not is_known and holding.must_read(own, self._lock._target)

    @property
    def is_held(self) -> bool:
        """Whether the lock is held, its lease has not ended, and no loss is proven."""
        return self._lock.is_held

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; 0 if it is not held."""
        return self._lock.remaining

    @property
    def lost(self) -> Event:
        """An event of `threading`, set once it is proven that the lock was lost. Its wait() blocks the event loop."""
        return self._lock.lost

    # Keeping it

    async def aitem(self) -> M:
        """Return the locked item, reading it if it has to be read, as `Lock.item` says. 0 or 1 read.

        Raises:
            DoesNotExist, ConfigurationError: as `Lock.item`.
        """
        if self._must_read:
            return await loops.call(lambda: self._lock.item)
        return self._lock.item

    async def arenew(self) -> None:
        """Renew the lease to its full length, counted from now. 1 write.

        Raises:
            LockLost, OutcomeUnknown, ConfigurationError: as `Lock.renew`.
        """
        await loops.to_the_end(self._lock.renew)

    async def aensure(self, remaining: Duration) -> None:
        """Make sure that so much of the lease is left, renewing it if not. 0 or 1 write.

        Args:
            remaining: as for `Lock.ensure`.

        Raises:
            LockLost, OutcomeUnknown, ConfigurationError: as `Lock.ensure`.
        """
        await loops.to_the_end(partial(self._lock.ensure, remaining))

    async def adowngrade(self) -> None:
        """Go on as one of the readers, as `Lock.downgrade`. 1 write.

        Raises:
            LockLost, OutcomeUnknown, ConfigurationError: as `Lock.downgrade`.
        """
        await loops.to_the_end(self._lock.downgrade)

    # Guards for writes of your own

    def condition(self) -> Condition:
        """Return the condition that holds as long as our entry is in the queue, as `Lock.condition`."""
        return self._lock.condition()

    def check(self, transaction: TransactWrite) -> None:
        """Add a ConditionCheck to a transaction on other items, as `Lock.check`; committing it blocks."""
        self._lock.check(transaction)

    def __repr__(self) -> str:
        return f"<Async{repr(self._lock)[1:]}"


async def leaving(lock: Lock[Any], leave: Callable[[], None], error: BaseException | None = None) -> None:
    """Release a lock in a thread by calling `leave`, and note that in this task's context."""
    own, is_last, left = lock._own, False, [leave]

    def leave_once() -> None:
        while left:
            left.pop()()

    try:
        own = lock._must_have_taken()
        is_last = lock._is_last_take
        if isinstance(error, GeneratorExit) and not tasks.can_wait(own):
            if not own.possession.is_over:
                tasks.leave_behind(leave, own)
        else:
            await loops.to_the_end(leave_once)
    except (Exception, loops.Cancelled):
        raise
    except BaseException:  # an interrupt, perhaps before a thread has begun
        if left:
            tasks.leave_behind(leave_once, own)
        raise
    finally:
        if own is not None and is_last:
            held_entry.forget(own)


@overload
def alocked_all(
    *locks: AsyncLock[M], wait: Duration | None = None
) -> AbstractAsyncContextManager[tuple[AsyncLock[M], ...]]: ...


@overload
def alocked_all(
    *locks: AsyncLock[Any], wait: Duration | None = None
) -> AbstractAsyncContextManager[tuple[AsyncLock[Any], ...]]: ...


@contextlib.asynccontextmanager
async def alocked_all(
    *locks: AsyncLock[Any], wait: Duration | None = None
) -> AsyncIterator[tuple[AsyncLock[Any], ...]]:
    """Acquire several locks, all or none, as `locked_all` does, and in the same order.

    Args:
        *locks: locks made by `Model.alocked()`, `Model.alocked_range()` and `NamedLock.alocked()`.
        wait: one deadline for all of them, as for `locked_all`.

    Yields:
        The locks, held, in the order of the arguments.

    Raises:
        LockTimeout, LockLost, ItemNotFound, ConfigurationError: as `locked_all`.

    Cost: that of each lock, one after the other; ranges of one hash key cost that of one.
    """
    limit = max((lock._lock._options.wait for lock in locks), default=0.0) if wait is None else seconds(wait, "wait")
    deadline = runtime.current.monotonic() + limit
    async with contextlib.AsyncExitStack() as held:
        for lock in in_order(lock._lock for lock in locks):
            left = max(0.0, deadline - runtime.current.monotonic())
            held.push_async_exit(await AsyncLock(lock)._enter(left))
        yield locks


@contextlib.asynccontextmanager
async def first_of(
    locks: Iterable[AsyncLock[M]], skipped: tuple[type[Exception], ...]
) -> AsyncIterator[AsyncLock[M] | None]:
    """Hold the first lock that can be acquired, or yield None; `skipped` are the reasons to try the next one."""
    async with contextlib.AsyncExitStack() as held:
        taken: AsyncLock[M] | None = None
        for lock in locks:
            with contextlib.suppress(*skipped):
                taken = await lock._enter()
                held.push_async_exit(taken)
                break
        yield taken
