"""The public lock: acquire, renew, release, in ``with`` and ``async with``."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import RENEW_AFTER, Duration, is_count, seconds
from pynamo_locking._core.lock_queue import EntryOwnership
from pynamo_locking._io import concurrency, event_stream, lock_record, runtime
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.stored_rows import Place, Stored, known_format, number
from pynamo_locking._locks import acquire, context, detach, heartbeat, held_lock, lock_events
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking._locks.context import entry_held_here
from pynamo_locking._locks.detach import Attachment
from pynamo_locking._locks.options import M
from pynamo_locking.exceptions import LockLost, add_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.transactions import TransactWrite

    from pynamo_locking._io.runtime import Event
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._locks.options import LockOptions, LockTarget


T = TypeVar("T")


class Chunks:
    """How records are put into lists.

    Args:
        lock: what is held.
        lease: its lease, in seconds.
        every: the most records of a list.
        remaining: how much of the lease has to be left when a list is handed out; None for two thirds of it.
    """

    def __init__(self, lock: Lock[Any], lease: float, every: int, remaining: Duration | None) -> None:
        if not is_count(every):
            raise ConfigurationError(f"every must be a whole number above 0, got {every!r}.")
        self._lock = lock
        self._every = every
        self._wanted = lease * (1 - RENEW_AFTER) if remaining is None else seconds(remaining, "remaining")
        if not self._wanted < lease:
            raise ConfigurationError(f"remaining ({self._wanted:g} s) must be less than the lease ({lease:g} s).")

    def of(self, records: Iterable[T]) -> Iterator[list[T]]:
        source = iter(records)
        while chunk := _collected(source, self._is_full):
            self._lock.ensure_remaining(self._wanted)
            yield chunk
            self._lock.renew()

    async def aof(self, records: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[list[T]]:
        """As `of`. An iterable that is not asynchronous may make requests, so it is read in a thread."""
        if isinstance(records, AsyncIterable):
            collect = partial(_acollected, aiter(records), self._is_full)
        else:
            collect = partial(concurrency.call, partial(_collected, iter(records), self._is_full))
        while chunk := await collect():
            await self._lock.aensure_remaining(self._wanted)
            yield chunk
            await self._lock.arenew()

    def _is_full(self, chunk: list[Any]) -> bool:
        return len(chunk) >= self._every or self._lock.remaining < self._wanted


def _collected(source: Iterator[T], is_full: Callable[[list[T]], bool]) -> list[T]:
    chunk = list[T]()
    for record in source:
        chunk.append(record)
        if is_full(chunk):
            break
    return chunk


async def _acollected(source: AsyncIterator[T], is_full: Callable[[list[T]], bool]) -> list[T]:
    chunk = list[T]()
    async for record in source:
        chunk.append(record)
        if is_full(chunk):
            break
    return chunk


class LockHandle(Generic[M]):
    """What the package itself uses of a `Lock`: its state, and the ways into it and out of it. See `handle_of`.

    Acquisitions are counted, here and in the entry, and what one has changed is noted until it has succeeded. So an
    interrupt, wherever it comes, leaves no acquisition behind.

    Attributes:
        target: what is locked.
        options: how.
        on_lost: is called when the lock is lost.
        entry: the entry of the last acquisition; None before the first.
        depth: how many acquisitions have not been released.
        is_awaited: whether it was acquired with ``async with`` or `aacquire`.
    """

    depth = 0  # not set in `__init__`: `__del__` runs also after an interrupt of that
    _blocks = 0  # `with` and `async with` statements that we are in
    _is_cut_short = False
    is_awaited = False  # acquired with `async with` or `aacquire`

    def __init__(self, target: LockTarget[M], options: LockOptions, on_lost: Callable[[str], object] | None) -> None:
        self.target = target
        self.options = options
        self.on_lost = on_lost
        self.entry: HeldEntry | None = None
        self._given: M | None = None  # the instance that `item` has returned since
        self._acquiring = runtime.current.exclusive()
        self._attempt: Acquisition | None = None
        self._again: HeldEntry | None = None  # what the acquisition under way has counted once more

    # Acquiring

    def acquire(self, wait: Duration | None) -> bool:
        """Acquire the lock; False if `LockOptions.peek` has stopped the attempt."""
        options, is_begun = self._options_for(wait), False
        self._begin()
        try:
            try:
                found, is_begun = self._before(is_awaited=False), True
                held = self._reenter(found)
                if held is None:
                    held = self._acquire_new(options)
                elif not held.remaining:
                    held_lock.renew(held)
                if held is not None:
                    self._count(held, is_awaited=False)
            except BaseException:
                self._undo(is_begun=is_begun)
                is_begun = False  # from here on another thread may acquire with this object
                raise
            else:
                return held is not None
            finally:
                self._acquiring.release()
        except BaseException:  # an interrupt that comes when all is done
            self._undo(is_begun=is_begun)
            raise

    async def aacquire(self, wait: Duration | None) -> bool:
        """As `acquire`, but make requests in threads."""
        options, is_begun = self._options_for(wait), False
        self._begin()
        try:
            try:
                found, is_begun = self._before(is_awaited=True), True
                held = self._reenter(found)
                if held is None:
                    held = await self._aacquire_new(options)
                elif not held.remaining:
                    await concurrency.to_the_end(partial(held_lock.renew, held))
                if held is not None:
                    self._count(held, is_awaited=True)
            except BaseException:
                self._undo(is_begun=is_begun)
                is_begun = False  # from here on another thread may acquire with this object
                raise
            else:
                return held is not None
            finally:
                self._acquiring.release()
        except BaseException:  # an interrupt that comes when all is done
            self._undo(is_begun=is_begun)
            raise

    def _options_for(self, wait: Duration | None) -> LockOptions:
        return self.options if wait is None else self.options._replace(wait=seconds(wait, "wait"))

    def _begin(self) -> None:
        if not self._acquiring.acquire(blocking=False):
            raise self._in_use()

    def _before(self, *, is_awaited: bool) -> HeldEntry | None:
        """Check that an acquisition may begin; return the entry that this thread or task has already."""
        runtime.check_threads()
        if not is_awaited:
            runtime.check_context_lasts()
        if self.depth and self.is_awaited is not is_awaited:
            raise ConfigurationError(
                f"this Lock object holds {self.target.row.label}, which was acquired {self.way}. Acquire it so "
                f"again, or make another Lock object."
            )
        held = entry_held_here(self.target.row, self.options.lock_mode, self.entry)
        if self.depth and (held is None or held is not self.entry):
            raise self._in_use()
        self._attempt = self._again = None
        return held

    def _reenter(self, held: HeldEntry | None) -> HeldEntry | None:
        """Acquire a lock that this thread or task holds already, or return None. Makes no request."""
        if held is None or (held.ownership.is_copied and not self.depth):
            return None
        token = self.options.token
        if token is not None and held.entry.token_id != token.id:
            raise ConfigurationError(
                f"this thread or task holds {self.target.row.label} already, by another entry than that of the token: "
                f"release it first, or attach the token in another thread or task."
            )
        held.refuse_if_lost()  # an outer block has lost it; acquiring it again would hide that
        if held.ownership.is_over:
            return None
        here = runtime.current.thread_or_task()
        with held.counting:
            if not held.depth or held.thread_or_task != here:  # another thread releases it
                return None
            # Together: no interrupt comes between.
            self._again, self.depth, held.depth = held, self.depth + 1, held.depth + 1
        if self.on_lost is not None and self.on_lost not in held.report.on_lost:
            held.report.on_lost.append(self.on_lost)
        return held

    def _attempt_with(self, options: LockOptions) -> Acquisition:
        row, token = self.target.row, options.token
        return Acquisition(row, options) if token is None else Attachment(row, options, token)

    def _acquire_new(self, options: LockOptions) -> HeldEntry | None:
        attempt = self._attempt = self._attempt_with(options)
        if self._is_cut_short:
            attempt.cut_short()
        with self._reported(options):
            if options.wait > 0:
                held_lock.refuse_blocked_loop(self.target.row, options.lock_mode)
            held = concurrency.run_steps(attempt.steps())
            return None if held is None else self._begin_hold(held)

    async def _aacquire_new(self, options: LockOptions) -> HeldEntry | None:
        await concurrency.begin_in_turn()
        here = runtime.current.thread_or_task()
        attempt = self._attempt = self._attempt_with(options)
        with self._reported(options):
            held = await acquire.acquire_in_task(attempt.steps(), partial(self._begin_hold_of, here))
        if held is not None:
            context.add(held)
        return held

    def _begin_hold_of(self, thread_or_task: tuple[object, ...], held: HeldEntry) -> HeldEntry:
        held.thread_or_task = thread_or_task  # not this thread, which has made the last request
        return self._begin_hold(held)

    def _reported(self, options: LockOptions) -> AbstractContextManager[Any]:
        """Count the requests of an attempt, and report if it times out."""
        return event_stream.scope(keeps=False, on_error=partial(lock_events.timed_out, self.target.row, options))

    def _begin_hold(self, held: HeldEntry) -> HeldEntry:
        try:
            held.item.refuse_expired(self.target)
            if self.on_lost is not None:
                held.report.on_lost.append(self.on_lost)
            lock_events.acquired(held, held.item.image)  # before any other event of it
            self._begin_heartbeat(held)
            context.add(held)
        except BaseException:
            held.drop()
            raise
        return held

    def _begin_heartbeat(self, held: HeldEntry) -> None:
        if self.options.heartbeat and not held.clock.has_heartbeat:
            heartbeat.heartbeat_thread.add(held)
            held.clock.has_heartbeat = True

    def _count(self, held: HeldEntry, *, is_awaited: bool) -> None:
        self.entry, self.is_awaited = held, is_awaited
        held.handles[self] = None
        if self._again is None:
            self.depth += 1
        else:  # it is counted, and an outer block may have no heartbeat
            self._begin_heartbeat(held)
        if self.depth == 1:
            self._given = None
        if held.ownership.stays:
            held.note(EntryOwnership.claimed)

    def _undo(self, *, is_begun: bool) -> None:
        """Undo a failed acquisition, however far it came; a thread removes what was granted."""
        if not is_begun:
            return
        again, left = self._again, None if self._attempt is None else self._attempt.held
        if again is not None:
            with again.counting:  # another thread may have released all others meanwhile
                self._again, self.depth, again.depth = None, self.depth - 1, again.depth - 1
                left = None if again.depth else again
        elif left is not None:
            self.depth = 0
        if left is not None and not left.ownership.is_over:
            left.leave_behind()

    def cut_short(self) -> None:
        """Let an `acquire` of another thread time out now, or as soon as it begins."""
        self._is_cut_short = True
        if self._attempt is not None:
            self._attempt.cut_short()

    def _in_use(self) -> ConfigurationError:
        return ConfigurationError(
            f"this Lock object is in use for {self.target.row.label} already: by another thread or task, by one whose "
            f"event loop was closed before it gave the lock back, or its item was deleted in the block. Make one Lock "
            f"object for each caller, and release it before you acquire it again."
        )

    # Releasing

    def _give_back(self) -> None:
        held, is_last = self.held_entry(), False
        try:
            with held.counting:
                # Together: no interrupt comes between.
                self.depth, held.depth, is_last = self.depth - 1, held.depth - 1, held.depth == 1
            if is_last:
                context.remove(held)
                if not held.ownership.is_over:
                    held.release()
        except LockingError:
            raise
        except BaseException:  # an interrupt, which may have come before anything was sent
            if is_last:
                held.leave_behind()
            raise
        finally:
            if is_last:  # no caller can release it any more, so nothing may renew it
                held.orphaned()
                held.item.instance = None  # it knows the entry

    # Blocks. An interrupt at the beginning or end of one may leave it open: the finalizer closes it.

    def begin_block(self, wait: Duration | None = None) -> None:
        self._blocks += 1
        try:
            if not self.acquire(wait):
                self._blocks -= 1
        except Exception:
            self._blocks -= 1
            raise

    def end_block(self, error: BaseException | None = None) -> None:
        """Release the lock at the end of a block, which ended with that error."""
        try:
            self._give_back_after(error)
        except Exception:
            self._blocks -= 1
            raise
        self._blocks -= 1

    def release(self) -> None:
        """Release one acquisition without a block: from here on it is a block that ends."""
        self._blocks += 1
        self.end_block()

    async def abegin_block(self, wait: Duration | None = None) -> None:
        self._blocks += 1
        try:
            if not await self.aacquire(wait):
                self._blocks -= 1
        except (Exception, concurrency.cancelled()):
            self._blocks -= 1
            raise

    async def aend_block(self, leave: Callable[[], None], error: BaseException | None = None) -> None:
        """Call `leave`, which releases the lock, in a thread, and note that in this task's context."""
        held = self.held_entry()
        is_last = self.is_outermost
        try:
            if not isinstance(error, GeneratorExit) or acquire.can_wait(held):
                await concurrency.to_the_end(leave)
            elif not held.ownership.is_over:
                acquire.release_later(leave, held)
        finally:
            if is_last:
                context.remove(held)

    async def arelease(self) -> None:
        if self.depth:
            self._blocks += 1
        await self.aend_block(self.end_block)

    def _give_back_after(self, error: BaseException | None) -> None:
        try:
            self._give_back()
        except LockingError as loss:  # also of a release that DynamoDB refuses: the lease ends without it
            if error is None:
                raise
            is_reported = isinstance(error, LockLost) and isinstance(loss, LockLost) and error.ticket == loss.ticket
            if not is_reported:
                logger.warning("%s (while leaving on %r)", loss, error)
                add_context(error, loss)

    def __del__(self) -> None:
        """Release it for a block that never ended: an interrupt came first, or its event loop is closed."""
        held = self.entry if self.depth else None
        if held is None or held.ownership.is_over:
            return
        if not self._blocks:
            warnings.warn(
                f"{self.target.row.label} was acquired, and is held for ever, since its Lock is gone: release it, or "
                f"use `with`.",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )
            return
        with held.counting:
            held.depth -= self.depth
            is_last = held.depth <= 0
        if is_last:
            held.leave_behind()

    # What is held

    def held_entry(self) -> HeldEntry:
        if self.entry is None or not self.depth:
            raise ConfigurationError(
                f"the lock {self.target.row.label} is not held by this Lock object; acquire it first."
            )
        return self.entry

    def entry_for(self, method: str, instead: str = "") -> HeldEntry:
        """Return our entry for a method that blocks; `instead` is what to write in a task.

        Raises:
            ConfigurationError: it would block the event loop of the task that has acquired the lock.
        """
        held = self.held_entry()
        if self.is_awaited and acquire.current_task() is not None:
            raise self.must_await(method, instead)
        return held

    def must_await(self, method: str, instead: str = "") -> ConfigurationError:
        return ConfigurationError(
            f"the lock {self.target.row.label} was acquired {self.way}, and `lock.{method}` would block the event "
            f"loop: use `{instead or f'await lock.a{method}()'}`."
        )

    @property
    def way(self) -> str:
        return "with `async with` or aacquire()" if self.is_awaited else "with `with` or acquire()"

    @property
    def is_outermost(self) -> bool:
        return self.held_entry().depth == 1

    @property
    def item_is_deleted(self) -> bool:
        held = self.held_entry()
        return held.ownership.is_over or held.item.is_deleted

    def forget_item(self) -> None:
        self.held_entry().item.forget()
        self._given = None

    def last_entry(self) -> HeldEntry:
        if self.entry is None:
            raise ConfigurationError(
                f"the lock {self.target.row.label} was never acquired by this Lock object; acquire it first."
            )
        return self.entry

    @property
    def must_read(self) -> bool:
        held = self.last_entry()
        is_known = self._given is not None or held.entry.lock_mode.is_ranged
        return not is_known and held.item.must_read(self.target)

    def current_item(self) -> M:
        held = self.last_entry()
        if self.options.lock_mode.is_ranged:
            raise ConfigurationError(
                f"{self.target.row.label} is locked as a range, which has no item: query what is in it."
            )
        if self._given is None:
            self._given = held.item.instance_of(self.target, held)
        return self._given


class Lock(Generic[M]):
    """A first come, first served lock on one item or one name, for threads and for tasks of asyncio.

    Made by `Model.locked()` and `NamedLock.locked()`. Use it in a ``with`` or ``async with`` statement, or call
    `acquire()` and `release()`, or `aacquire()` and `arelease()`, in pairs. After a release the object can be used
    again, with a new ticket.

    Example::

        lock = Account.locked("a-1", wait=5)
        lock.acquire()
        try:
            lock.item.update([Account.balance.add(10)])
        finally:
            lock.release()

    A thread or task that acquires a lock it already holds gets the same ticket again; the last release leaves the
    queue. Threads and tasks started inside a lock write under it if they inherit its context. They do not hold it: to
    acquire it they wait like all other callers.

    Methods whose names begin with an "a" are awaited. PynamoDB blocks, so they make requests in threads, 32 at most;
    waiting for a lock occupies no thread. `save` and other methods of models block the event loop unless they are
    called through `asyncio.to_thread`; the lock guards them there as well. If a task has acquired the lock with ``async
    with`` or `aacquire()`, a method that would block the event loop raises `ConfigurationError`, which names the method
    to await.

    Guaranteed under crashes, lost responses, pauses and clock skew (within `max_clock_skew`, or any with None):
    DynamoDB's own record of the lock has at most one unexpired holder; holders follow in the order of their tickets; no
    guarded write (`save`, `update`, `delete` of the locked item) is applied after another process has acquired the
    lock. The threads and tasks of a process are served in the order of arrival, and up to one shared entry later than
    callers of other processes (`LockSettings.max_callers_per_entry`). Not guaranteed: exclusion of work outside
    DynamoDB. Pass the `ticket` to such systems as a fencing token, and let them refuse a smaller one than they have
    seen.

    Guaranteed when a task is cancelled, however often, while it enters, waits, is granted the lock, holds or releases
    it: when the task has ended, it has no entry in the queue and holds nothing. It may take as long as the request that
    is under way, and the request that removes the entry: 4 attempts at most, each within the lock's `request_timeout`.
    If an event loop is closed under its tasks, threads do the same afterwards. An async generator that is closed in the
    block releases the lock before `aclose` returns, if the task that acquired the lock closes it, or the loop does.

    Cost: 1 write to acquire, 1 to release, no read. Waiting costs one eventually consistent read for each poll, and one
    write each third of the lease, for all callers of a process together. A request that is awaited also costs the start
    of a thread, some 0.1 ms.
    """

    #: A value for the item that is set on its lock by mistake is an error.
    __slots__ = ("__weakref__", "_handle")

    def __init__(self, target: LockTarget[M], options: LockOptions, on_lost: Callable[[str], object] | None) -> None:
        self._handle = LockHandle(target, options, on_lost)

    if not TYPE_CHECKING:  # to a type checker it cannot be called

        def __call__(self, *_: object) -> NoReturn:
            """Refuse to be a decorator."""
            raise no_decorator("A lock")

    # Acquiring and releasing

    def acquire(self, wait: Duration | None = None) -> Self:
        """Acquire the lock, waiting for the turn of this caller.

        Example::

            lock = Account.locked("a-1").acquire(wait=5)
            try:
                lock.item.update([Account.balance.add(1)])
            finally:
                lock.release()

        Args:
            wait: seconds, or a timedelta, instead of the lock's own `wait`; 0 does not wait: it fails if a live
                entry excludes this one. ``math.inf`` waits for ever. One deadline for everything.

        Returns:
            The lock itself.

        Raises:
            LockTimeout: the lock was not acquired in time. No entry of this caller is left in the queue.
            LockLost: this thread or task believed that it held the lock already, and has lost it.
            OutcomeUnknown: it holds the lock already, its lease had ended, and the renewal got no response.
            ItemNotFound: the lock is kept in an item that does not exist. Also `Model.DoesNotExist`.
            ConfigurationError: a table is missing or has other keys, the item is full, or another
                program has stored an item where the lock would be kept, which stays as it is.
        """
        self._handle.acquire(wait)
        return self

    async def aacquire(self, wait: Duration | None = None) -> Self:
        """Acquire the lock as `acquire` does, while other tasks run.

        Tasks begin one by one, in the order in which they came; `wait` counts from then on.

        Args:
            wait: as for `acquire`.

        Returns:
            The lock itself.

        Raises:
            LockTimeout, LockLost, OutcomeUnknown, ItemNotFound, ConfigurationError: as `acquire`.
            asyncio.CancelledError: the task was cancelled; nothing is held, and no entry of ours is left behind.
        """
        await self._handle.aacquire(wait)
        return self

    def release(self) -> None:
        """Release the lock; the last of several releases removes our entry from the queue.

        Raises:
            LockLost: the lock was lost before, so another owner may have worked at the same time. Writes through the
                models were refused from that moment on.
            ConfigurationError: this object does not hold the lock, or has acquired it with `aacquire`.
        """
        if self._handle.depth and self._handle.is_awaited:
            raise self._handle.must_await("release")
        self._handle.release()

    async def arelease(self) -> None:
        """Release the lock, which was acquired with `aacquire`, as `release` does.

        If the task is cancelled meanwhile, the lock is released first; then the cancellation is raised.

        Raises:
            LockLost, ConfigurationError: as `release`.
        """
        if self._handle.depth and not self._handle.is_awaited:
            raise ConfigurationError(
                f"the lock {self._handle.target.row.label} was acquired {self._handle.way}: release it with "
                f"`lock.release()`."
            )
        await self._handle.arelease()

    def __enter__(self) -> Self:
        self._handle.begin_block()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handle.end_block(error)

    async def __aenter__(self) -> Self:
        await self._handle.abegin_block()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._handle.aend_block(partial(self._handle.end_block, error), error)

    # What is known of it

    @property
    def name(self) -> str:
        """The lock's name: ``table/hash key/range key``, or the name of a `NamedLock`."""
        return self._handle.target.row.name

    @property
    def owner(self) -> str:
        """The label that names us to people: host, process and thread unless given."""
        return self._handle.options.owner

    @property
    def ticket(self) -> int:
        """Our place in the queue and fencing token: larger than that of every earlier holder.

        Promised as long as the lock's document stays. Across a deletion of the item it depends on wall clocks: see
        "Tickets" in the documentation of the protocol.

        Raises:
            ConfigurationError: the lock was never acquired.
        """
        return self._handle.last_entry().entry.ticket

    @property
    def item(self) -> M:
        """The locked item, as it was when the lock was acquired.

        For an embedded lock it comes with the response to the request that acquired the lock: no request, or 1 read if
        the item was written before it was asked for. For a lock in a separate row it costs 1 transactional read, once;
        a plain read could show the state before a dead holder's last transaction.

        Nested blocks with the lock get the same instance, so they ask for the item in one class. If the item was
        written under the lock through another instance, a save of this one raises `StaleVersion` until it is refreshed.

        Raises:
            DoesNotExist: there is no such item.
            ConfigurationError: the lock was never acquired, or is a range; or another block has an instance of another
                class; or it was acquired with ``async with`` or `aacquire`, and the item has to be read. ``await
                lock.aitem()`` reads it.
        """
        if self._handle.is_awaited and self._handle.must_read and acquire.current_task() is not None:
            raise self._handle.must_await("item")
        return self._handle.current_item()

    async def aitem(self) -> M:
        """Return the locked item as `item` does, reading it if it has to be read. 0 or 1 read.

        Raises:
            DoesNotExist, ConfigurationError: as `item`.
        """
        read = self._handle.current_item
        return await concurrency.call(read) if self._handle.must_read else read()

    @property
    def is_held(self) -> bool:
        """Whether the lock is held, its lease has not ended, and no loss is proven."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; 0 if it is not held."""
        return self._handle.entry.remaining if self._handle.entry is not None and self._handle.depth else 0.0

    @property
    def lost(self) -> Event:
        """An event of `threading`, set once it is proven that the lock was lost. Its wait() blocks the event loop."""
        return self._handle.last_entry().report.lost

    # Keeping it

    def renew(self) -> None:
        """Renew the lease to its full length, counted from now. 1 write.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no response came; the lease is at least what it was.
            ConfigurationError: this object does not hold the lock.
        """
        held_lock.renew(self._handle.entry_for("renew"))

    async def arenew(self) -> None:
        """As `renew`, awaited."""
        await concurrency.to_the_end(partial(held_lock.renew, self._handle.held_entry()))

    def ensure_remaining(self, remaining: Duration) -> None:
        """Renew the lease unless at least this much of it is left; with 0, unless any of it is left. 0 or 1 write.

        Args:
            remaining: seconds or a timedelta; less than the lease.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no response came, and less is left.
            ConfigurationError: more was asked for than a lease is long, or the lock is not held.
        """
        wanted = seconds(remaining, "remaining")
        held_lock.ensure(self._handle.entry_for("ensure_remaining"), wanted)

    async def aensure_remaining(self, remaining: Duration) -> None:
        """As `ensure_remaining`, awaited, with the same argument `remaining`."""
        wanted = seconds(remaining, "remaining")
        await concurrency.to_the_end(partial(held_lock.ensure, self._handle.held_entry(), wanted))

    def chunks(self, records: Iterable[T], every: int, *, remaining: Duration | None = None) -> Iterator[list[T]]:
        """Yield the records in lists, for long work in small parts, and renew the lease after each of them.

        The renewal shows that the lock was held all the time. If it was lost, no further list is yielded. The records
        are read when they are needed; a generator that is left early has read no record beyond the list.

        Args:
            records: what to work on.
            every: the most records of a list.
            remaining: seconds or a timedelta, less than the lease: when less of the lease is left, a list is handed out
                although it has fewer records. Two thirds of the lease. With a heartbeat so much is always left.

        Raises:
            LockLost: the lock was lost: while the records of the last list were worked on, or while more were read.
            OutcomeUnknown: no response came to a renewal.
            ConfigurationError: the lock is not held, or `every` is no number above 0.

        Cost: 1 write for each list. 1 write more if it took so long to read the records that less is left.
        """
        held = self._handle.entry_for("chunks", "async for chunk in lock.achunks(...)")
        return Chunks(self, held.entry.lease, every, remaining).of(records)

    def achunks(
        self, records: Iterable[T] | AsyncIterable[T], every: int, *, remaining: Duration | None = None
    ) -> AsyncIterator[list[T]]:
        """As `chunks`, for ``async for``, with the same arguments `every` and `remaining`.

        The `records` may come from an asynchronous iterable. Another iterable is read in a thread.
        """
        return Chunks(self, self._handle.held_entry().entry.lease, every, remaining).aof(records)

    def downgrade(self) -> None:
        """Turn the exclusive lock into a shared one: waiters that share the lock acquire it now, in their turn.

        From then on writes under the lock are refused, as if it had been acquired with ``shared=True``, and no late
        copy of an earlier guarded write can be applied any more. The ticket stays. A shared lock cannot be upgraded; on
        a lock that was acquired with ``shared=True`` this does nothing, without a request.

        A thread or task that has acquired the lock several times has one entry, which all of its blocks share. So
        downgrading a range inside a range that it holds, or one of several that `locked_all` acquired together, is
        refused: more than that range would be shared.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no response came; it may be shared already, so writes are refused. Repeating is safe.
            ConfigurationError: this object does not hold the lock, or only a part of what is held together, or the lock
                is a semaphore or was attached.

        Cost: 1 write.
        """
        held_lock.downgrade(self._handle.entry_for("downgrade"), self._handle.options.lock_mode)

    async def adowngrade(self) -> None:
        """As `downgrade`, awaited."""
        held, lock_mode = self._handle.held_entry(), self._handle.options.lock_mode
        await concurrency.to_the_end(partial(held_lock.downgrade, held, lock_mode))

    def detach(self, lease: Duration | None = None) -> str:
        """Keep the lock without this process, and return a token: whoever has it goes on with `LockableModel.attach`.

        Example::

            with Account.locked("a-1") as lock:
                lock.item.update([Account.balance.add(10)])
                token = lock.detach(lease=3600)  # and send it to the next step

        The lease begins again, and nothing renews it until the lock is attached. If that does not come in time, the
        next waiter acquires the lock. After the answer DynamoDB refuses late copies of a write, a renewal or a release
        that was sent under the lock before. `release`, or the end of the block, has nothing left to do.

        Other callers of this process that wait for the lock enter the queue after those of other processes. A token is
        text of some 100 characters, and four thirds of the key and its names. DynamoDB asks for the permissions of the
        process that attaches it, as for each write.

        Args:
            lease: how long the lock survives from now on, in seconds or as a timedelta. The lease of the lock.

        Returns:
            The token, for JSON, a message or a URL.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: DynamoDB has not confirmed it. The lock is given up, as nobody has a token for it. It is
                given up as well after an interrupt, or if the task is cancelled meanwhile.
            ConfigurationError: this object does not hold the lock, or holds a range or a table; this thread or task has
                acquired the lock more than once; it is inside of an `edit()`, which has not saved yet; or the item has
                no room. Nothing has changed.

        Cost: 1 write.
        """
        return detach.detach(
            self._handle.entry_for("detach"), self._handle.target, self._handle.options.settings, lease
        )

    async def adetach(self, lease: Duration | None = None) -> str:
        """As `detach`, awaited, with the same argument `lease`."""
        return await detach.adetach(
            self._handle.held_entry(), self._handle.target, self._handle.options.settings, lease
        )

    # Guards for writes of your own

    def held_condition(self) -> Condition:
        """Return the condition that holds as long as our entry is in the queue.

        For hand-written conditions on the row that carries the lock: the item itself for an embedded
        lock, the lock row otherwise.
        """
        held = self._handle.held_entry()
        ticket = Place(held.row.attribute, lock_record.QUEUE, held.entry.id)[lock_record.TICKET]
        ours: Condition = (ticket == Stored(number(held.entry.ticket))) & known_format(held.row.attribute)
        return ours

    def add_check_to(self, transaction: TransactWrite) -> None:
        """Add a ConditionCheck to a transaction on other items, so that it fails once the lock is lost.

        For an embedded lock the transaction cannot write the locked item as well: DynamoDB allows one action an item,
        and `transaction.save(item)` already carries the guard.

        Example::

            with Locks.locked("nightly") as lock, TransactWrite() as writes:
                lock.add_check_to(writes)
                writes.save(Account("a-3"))
        """
        model, hash_key, range_key = self._handle.target.carrier
        transaction.condition_check(model, hash_key, range_key, condition=self.held_condition())

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to copy or pickle it: two objects would share one hold, and release it twice."""
        raise ConfigurationError(f"{self!r} cannot be copied or pickled: make another one by Model.locked().")

    def __repr__(self) -> str:
        if self._handle.entry is None or not self._handle.depth:
            return f"<Lock {self._handle.target.row.label} not held>"
        return f"<Lock {self._handle.target.row.label} ticket {self.ticket}, {self.remaining:.1f} s left>"


def no_decorator(what: str) -> ConfigurationError:
    """Return the error for what is written as a decorator, or called."""
    return ConfigurationError(
        f"{what} is no decorator: it would be made once, and all calls of the function would share it. Write `with "
        f"Model.locked(key):` (or `edit`, `locked_all`) in the function. A job that is to run once in a period: "
        f"`@Locks.once(name, period=...)`."
    )


def handle_of(lock: Lock[M]) -> LockHandle[M]:
    """Return what the package itself uses of a lock."""
    return lock._handle  # noqa: SLF001 - the one door to it
