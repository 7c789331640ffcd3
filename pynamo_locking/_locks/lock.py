"""The public lock: one object, whether the lock is in an item or in a row of its own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._io import loops
from pynamo_locking._locks import guards, holding, tasks
from pynamo_locking._locks.chunks import Chunks
from pynamo_locking._locks.taking import Taker
from pynamo_locking._locks.target import M

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.transactions import TransactWrite

    from pynamo_locking._io.runtime import Event
    from pynamo_locking._locks.held_entry import HeldEntry

T = TypeVar("T")


class Lock(Taker[M]):
    """A first come, first served lock on one item or one name, for threads and for tasks of asyncio.

    Made by `Model.lock()`, `Model.locked()` and `NamedLock.lock()`. Use it in a ``with`` or ``async with`` statement,
    or call `acquire()` and `release()`, or `aacquire()` and `arelease()`, in pairs. The object can be used again after
    a release; each time it takes a new ticket. A thread or task that acquires a lock it already holds gets the same
    ticket again, and the last release leaves the queue. Threads and tasks started inside a lock write under it if they
    inherit its context, but do not hold it: they wait like all other threads.

    Methods whose names begin with an "a" are awaited. PynamoDB blocks, so they make requests in threads, 32 at most;
    waiting for a lock does not occupy a thread. `save` and other methods of models block the event loop unless they are
    called through `asyncio.to_thread`; the lock guards them there as well. A lock that a task has acquired with ``async
    with`` or `aacquire()` refuses, in a task, to block the event loop: `ConfigurationError` names the method to await.

    Guaranteed under crashes, lost answers, pauses and clock skew (within `max_clock_skew`, or any with None): at most
    one unexpired holder in DynamoDB's own document, holders in the order of their tickets, and no guarded write
    (`save`, `update`, `delete` of the locked item) applied after another process has taken over. The threads and tasks
    of a process are served in the order in which they came; each may draw its ticket up to one block later than callers
    of other processes (`LockSettings.block`). Not guaranteed: exclusion of work outside DynamoDB. Pass the `ticket` to
    such systems, and let them refuse a smaller one than they have seen.

    Guaranteed when a task is cancelled, however often, while it enters, waits, is granted the lock, holds or releases
    it: when the task has ended, none of its entries is in the queue, and nothing is held. For this it may go on for the
    time of the request that is under way, and of the request that removes the entry: 4 attempts of it at most, each no
    longer than the lock's `request_timeout` allows. If an event loop is closed under its tasks, threads do the same
    behind it. An async generator that is closed in the block releases the lock before `aclose` returns, if the task
    that acquired it closes it, or the loop does.

    Cost: 1 write to acquire, 1 to release, no read. Waiting costs one eventually consistent read a look, and one write
    each third of the lease, for all callers of a process together. A request that is awaited also costs the start of a
    thread, some 0.1 ms.
    """

    # Acquiring and releasing

    def acquire(self, wait: Duration | None = None) -> Self:
        """Acquire the lock, waiting for our turn.

        Args:
            wait: seconds, or a timedelta, instead of the lock's own `wait`; 0 fails at once if another party is in the
                queue, ``math.inf`` waits for ever. One deadline for everything.

        Returns:
            The lock itself.

        Raises:
            LockTimeout: not our turn in time. No entry of ours is left behind.
            LockLost: this thread or task believed that it held the lock already, and has lost it.
            OutcomeUnknown: it holds the lock already, its lease had ended, and the renewal had no answer.
            ItemNotFound: the lock is kept in an item that does not exist. Also `Model.DoesNotExist`.
            ConfigurationError: a table is missing or has other keys, the item is full, the key is wrong, or another
                program has stored an item where the lock would be kept, which stays as it is.
        """
        self._acquire(wait)
        return self

    async def aacquire(self, wait: Duration | None = None) -> Self:
        """Acquire the lock as `acquire` does, while other tasks go on.

        Args:
            wait: as for `acquire`.

        Returns:
            The lock itself.

        Raises:
            LockTimeout, LockLost, OutcomeUnknown, ItemNotFound, ConfigurationError: as `acquire`.
            asyncio.CancelledError: the task was cancelled; nothing is held, and no entry of ours is left behind.
        """
        await self._aacquire(wait)
        return self

    def release(self) -> None:
        """Release the lock; the last of several releases removes our entry from the queue.

        Raises:
            LockLost: the lock was lost before, so another party may have worked at the same time. Writes through the
                models were refused from that moment on.
            ConfigurationError: this object does not hold the lock, or has acquired it with `aacquire`.
        """
        if self._takes and self._is_awaited:
            raise self._must_await("release")
        self._leave(blocks=0)

    async def arelease(self) -> None:
        """Release the lock, which was acquired with `aacquire`, as `release` does.

        A task that is cancelled meanwhile releases it nevertheless, and hears of the cancellation then.

        Raises:
            LockLost, ConfigurationError: as `release`.
        """
        if self._takes and not self._is_awaited:
            raise ConfigurationError(
                f"the lock {self._target.row.label} was acquired {self._way}: release it with `lock.release()`."
            )
        await self._aleave(partial(self._leave, blocks=0))

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aenter__(self) -> Self:
        await self._aenter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._aleave(partial(self._leave, error), error)

    # What is known of it

    @property
    def name(self) -> str:
        """The lock's name: ``table/hash key/range key``, or the name of a `NamedLock`."""
        return self._target.row.name

    @property
    def owner(self) -> str:
        """The label that names us to people: host, process and thread unless given."""
        return self._options.owner

    @property
    def ticket(self) -> int:
        """Our place in the queue and fencing token: larger than that of every earlier holder.

        Promised as long as the lock's document stays. Across a deletion of the item it depends on wall clocks: see
        "Tickets" in the documentation of the protocol.

        Raises:
            ConfigurationError: the lock was never acquired.
        """
        return self._last().entry.ticket

    @property
    def item(self) -> M:
        """The locked item, as it was in the very image that showed us in front.

        No request for an embedded lock, unless the item was written before it was asked for (then 1 read); 1
        transactional read, once, for a lock in a row of its own (a plain read could show the state before a dead
        holder's last transaction).

        It is the same instance each time, also in nested blocks with the lock. But if the item was written under the
        lock through another instance, an inner block reads it anew, and the old instance cannot be saved until it is
        refreshed: `StaleVersion`, with or without a version.

        Raises:
            DoesNotExist: there is no such item.
            ConfigurationError: the lock was never acquired, or is a range; or it was acquired with ``async with`` or
                `aacquire`, and the item has to be read. ``await lock.aitem()`` reads it.
        """
        if self._must_read and self._is_awaited and tasks.current() is not None:
            raise self._must_await("item")
        return self._item()

    async def aitem(self) -> M:
        """Return the locked item as `item` does, reading it if it has to be read. 0 or 1 read.

        Raises:
            DoesNotExist, ConfigurationError: as `item`.
        """
        return await loops.call(self._item) if self._must_read else self._item()

    @property
    def _must_read(self) -> bool:
        held = self._last()
        is_known = self._given is not None or held.entry.claim.is_ranged
        return not is_known and holding.must_read(held, self._target)

    def _item(self) -> M:
        held = self._last()
        if self._options.claim.is_ranged:
            raise ConfigurationError(
                f"{self._target.row.label} is locked as a range, which has no item: query what is in it."
            )
        if self._given is None:
            self._given = holding.item_of(held, self._target)
        return self._given

    @property
    def is_held(self) -> bool:
        """Whether the lock is held, its lease has not ended, and no loss is proven."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; 0 if it is not held."""
        return self._held.remaining if self._held is not None and self._takes else 0.0

    @property
    def lost(self) -> Event:
        """An event of `threading`, set once it is proven that the lock was lost. Its wait() blocks the event loop."""
        return self._last().lost

    # Keeping it

    def renew(self) -> None:
        """Renew the lease to its full length, counted from now. 1 write.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no answer came; the lease is at least what it was.
            ConfigurationError: this object does not hold the lock.
        """
        holding.renew(self._taken_for("renew"))

    async def arenew(self) -> None:
        """As `renew`, awaited."""
        await loops.to_the_end(partial(holding.renew, self._must_have_taken()))

    def progress(self) -> None:
        """Tell that the work under the lock goes on, from any thread or task. No request.

        With ``heartbeat="progress"`` the background renews the lease only if this was called since the last renewal. So
        call it in each round of a loop, at least once in two thirds of a lease. Work that was silent for so long has
        lost the lock, with the reason ``"stalled"``, while a third of its lease is left to stop. `renew` and `chunks`
        count as well: they renew the lease themselves. With another heartbeat a call only tells of a loss.

        Raises:
            LockLost: the lock is lost, so the work must stop.
            ConfigurationError: this object does not hold the lock.
        """
        holding.progress(self._must_have_taken())

    def ensure(self, remaining: Duration) -> None:
        """Make sure that so much of the lease is left, renewing it if not. 0 or 1 write.

        Args:
            remaining: seconds or a timedelta; less than the lease.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no answer came, and less is left.
            ConfigurationError: more was asked for than a lease is long, or the lock is not held.
        """
        wanted = seconds(remaining, "remaining")
        holding.ensure(self._taken_for("ensure"), wanted)

    async def aensure(self, remaining: Duration) -> None:
        """As `ensure`, awaited, with the same argument `remaining`."""
        wanted = seconds(remaining, "remaining")
        await loops.to_the_end(partial(holding.ensure, self._must_have_taken(), wanted))

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
            OutcomeUnknown: no answer came to a renewal.
            ConfigurationError: the lock is not held, or `every` is no number above 0.

        Cost: 1 write for each list. 1 write more if it took so long to read the records that less is left.
        """
        held = self._taken_for("chunks", "async for chunk in lock.achunks(...)")
        return Chunks(self, held.entry.lease, every, remaining).of(records)

    def achunks(
        self, records: Iterable[T] | AsyncIterable[T], every: int, *, remaining: Duration | None = None
    ) -> AsyncIterator[list[T]]:
        """As `chunks`, for ``async for``, with the same arguments `every` and `remaining`.

        The `records` may come from an asynchronous iterable. Another iterable is read in a thread.
        """
        return Chunks(self, self._must_have_taken().entry.lease, every, remaining).aof(records)

    def downgrade(self) -> None:
        """Go on as one of the readers: waiters that share the lock are granted it now, in their turn.

        From then on writes under the lock are refused, as if it had been acquired with ``shared=True``, and no late
        copy of an earlier guarded write can be applied any more. The ticket stays. There is no upgrade. A lock that was
        acquired with ``shared=True`` stays as it is, without a request.

        A thread or task that has acquired the lock several times has one entry, which all of its blocks share. So
        downgrading a range inside a range that it holds, or one of several that `locked_all` acquired together, is
        refused: more than that range would be shared.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no answer came; it may be shared already, so writes are refused. Repeating is safe.
            ConfigurationError: this object does not hold the lock, or only a part of what is held together, or the lock
                is a semaphore.

        Cost: 1 write.
        """
        holding.downgrade(self._taken_for("downgrade"), self._options.claim)

    async def adowngrade(self) -> None:
        """As `downgrade`, awaited."""
        await loops.to_the_end(partial(holding.downgrade, self._must_have_taken(), self._options.claim))

    # Guards for writes of your own

    def condition(self) -> Condition:
        """Return the condition that holds as long as our entry is in the queue.

        For hand-written conditions on the row that carries the lock: the item itself for an embedded
        lock, the lock row otherwise.
        """
        return guards.in_queue(self._must_have_taken())

    def check(self, transaction: TransactWrite) -> None:
        """Add a ConditionCheck to a transaction on other items, so that it fails once the lock is lost.

        For an embedded lock the transaction cannot write the locked item as well: DynamoDB allows one action an item,
        and `transaction.save(item)` already carries the guard.
        """
        model, hash_key, range_key = self._target.carrier
        transaction.condition_check(model, hash_key, range_key, condition=self.condition())

    # Inside

    def _last(self) -> HeldEntry:
        if self._held is None:
            raise ConfigurationError(
                f"the lock {self._target.row.label} was never acquired by this Lock object; acquire it first."
            )
        return self._held

    def __repr__(self) -> str:
        if self._held is None or not self._takes:
            return f"<Lock {self._target.row.label} not held>"
        return f"<Lock {self._target.row.label} ticket {self.ticket}, {self.remaining:.1f} s left>"
