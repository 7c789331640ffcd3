"""The public lock: one object, whether the lock is in an item or in a row of its own."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Generic

from typing_extensions import Self

from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._io import events, guards, handed, local, runtime
from pynamo_locking._io.heartbeat import heart
from pynamo_locking._io.locked import taken_here
from pynamo_locking._io.target import M
from pynamo_locking._io.waiting import Acquisition
from pynamo_locking.exceptions import ConfigurationError, LockLost

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.transactions import TransactWrite

    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.target import Target
    from pynamo_locking._io.wish import Wish

logger: logging.Logger = logging.getLogger("pynamo_locking")


class Lock(Generic[M]):
    """A first come, first served lock on one item or one name.

    Made by `Model.lock()`, `Model.locked()` and `NamedLock.lock()`. Use it in a ``with`` statement,
    or call `acquire()` and `release()` in pairs. The object can be used again after a release; each
    time it takes a new ticket. A thread or asyncio task that takes a lock it already holds gets the
    same ticket again, and gives it back with the last release. Threads and tasks started inside a lock
    write under it if they inherit its context, but do not hold it: they wait like everybody else.

    Guaranteed under crashes, lost answers, pauses and clock skew (within `max_clock_skew`, or any with
    None): at most one unexpired holder in DynamoDB's own document, holders in the order of their
    tickets, and no guarded write (`save`, `update`, `delete` of the locked item) applied after another
    process has taken over.
    Not guaranteed: exclusion of work outside DynamoDB. Hand the `ticket` to such systems, and let
    them refuse a smaller one than they have seen.

    Cost: 1 write to acquire, 1 to release, no read. Waiting costs one eventually consistent read
    a look, and one write each third of the lease.
    """

    def __init__(self, target: Target[M], wish: Wish, on_lost: Callable[[str], object] | None) -> None:
        self._target = target
        self._wish = wish
        self._on_lost = on_lost
        self._own: OwnEntry | None = None
        self._takes = 0
        self._given: M | None = None  # the instance that `item` has returned since
        self._acquiring = runtime.current.exclusive()

    # Taking and giving back

    def acquire(self, wait: Duration | None = None) -> Self:
        """Take the lock, waiting for our turn.

        Args:
            wait: seconds, or a timedelta, instead of the lock's own `wait`; 0 fails at once if
                anybody is in the queue, ``math.inf`` waits for ever. One deadline for everything.

        Returns:
            The lock itself.

        Raises:
            LockTimeout: not our turn in time. No entry of ours is left behind.
            LockLost: this thread or task holds it already, or so it believed: it has lost it.
            OutcomeUnknown: it holds it already, and no answer came when the lease, which is over, was renewed.
            ItemNotFound: the lock is kept in an item that does not exist. Also `Model.DoesNotExist`.
            ConfigurationError: a table is missing or has other keys, the item is full, the key is wrong, or another
                program has stored an item where the lock would be kept, which stays as it is.
        """
        wish = self._wish if wait is None else replace(self._wish, wait=seconds(wait, "wait"))
        if not self._acquiring.acquire(blocking=False):
            raise self._in_use()
        try:
            own = self._take_again()
            if own is None:
                own = self._take(wish)
            else:
                handed.keep(own, self._begin_heartbeat)
            self._note_take(own)
        finally:
            self._acquiring.release()
        return self

    def _take_again(self) -> OwnEntry | None:
        """Take the lock that this thread or task holds already, or return None. Makes no request."""
        own = taken_here(self._target.row, self._wish.claim, self._own)
        if self._takes and (own is None or own is not self._own):
            raise self._in_use()
        if own is None or own.lost_reason == "forked":
            return None
        if own.lost.is_set():
            raise own.loss()  # what surrounds us has lost it; holding it anew would hide that
        if not own.take_again():
            return None
        if self._on_lost is not None and self._on_lost not in own.on_lost:
            own.on_lost.append(self._on_lost)
        return own

    def _begin_heartbeat(self, own: OwnEntry) -> None:
        if self._wish.heartbeat and not own.has_heartbeat:
            heart.add(own)
            own.has_heartbeat = True

    def _note_take(self, own: OwnEntry) -> None:
        if not self._takes:
            self._given = None
        self._own = own
        self._takes += 1

    def _in_use(self) -> ConfigurationError:
        return ConfigurationError(
            f"this Lock object is in use for {self.name} already, by another thread or task, or its item was "
            f"deleted in the block. Make one Lock object for each party, and release it before it is taken anew."
        )

    def _take(self, wish: Wish) -> OwnEntry:
        take = Acquisition(self._target.row, wish).run
        return self._hold(events.tell.taking(self._target.row, wish, take) if events.listeners else take())

    def _hold(self, own: OwnEntry) -> OwnEntry:
        try:
            handed.refuse_expired(own, self._target)
            if self._on_lost is not None:
                own.on_lost.append(self._on_lost)
            if events.listeners:
                events.tell.acquired(own)  # before anything else can be told of it
            self._begin_heartbeat(own)
            local.remember(own)
        except BaseException:
            own.release_and_count()
            heart.remove(own)
            raise
        return own

    def release(self) -> None:
        """Give the lock back; the last of several takes removes our entry from the queue.

        Raises:
            LockLost: the lock was lost before, so what was done under it may not have been alone.
                Writes through the models were refused from that moment on.
            ConfigurationError: this object does not hold the lock.
        """
        own = self._must_have_taken()
        is_last = own.depth == 1
        try:
            self._takes, is_last = self._takes - 1, own.give_back()
            if is_last:
                local.forget(own)
                if not own.ended:
                    own.release_and_count()
        finally:
            if is_last:  # whatever interrupts this, nobody renews what nobody can give back any more
                own.end(is_confirmed=False)
                heart.remove(own)

    @property
    def _is_last_take(self) -> bool:
        """Whether the next release removes our entry, because the lock was taken only once."""
        return self._must_have_taken().depth == 1

    @property
    def _is_item_deleted(self) -> bool:
        """Whether the item was deleted under the lock."""
        own = self._must_have_taken()
        return own.ended or own.is_item_deleted

    def _forget_item(self) -> None:
        """Let `item` be read anew the next time somebody asks for it."""
        own = self._must_have_taken()
        own.copies.forget()
        own.image = self._given = None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockLost as loss:
            if error is None:
                raise
            if not (isinstance(error, LockLost) and error.ticket == loss.ticket):  # else it is said already
                logger.warning("%s (while leaving on %r)", loss, error)

    # What is known of it

    @property
    def name(self) -> str:
        """The lock's name: ``table/hash key/range key``, or the name of a `NamedLock`."""
        return self._target.row.label

    @property
    def owner(self) -> str:
        """The label that names us to people: host, process and thread unless given."""
        return self._wish.owner

    @property
    def ticket(self) -> int:
        """Our place in the queue and fencing token: larger than that of every earlier holder.

        That is promised as long as the lock's document stays. Across a deletion of the item it rests on wall clocks:
        see "Tickets" in the documentation of the protocol.

        Raises:
            ConfigurationError: the lock was never taken.
        """
        return self._last().entry.ticket

    @property
    def item(self) -> M:
        """The locked item, as it was in the very image that showed us in front.

        No request for an embedded lock, unless the item was written before it was asked for (then 1 read);
        1 transactional read, once, for a lock in a row of its own (a plain read could show the state before
        a dead holder's last transaction).

        Each time it is the same instance, and that of the block around it as well, if that has the lock too. But if
        the item was written under the lock through another instance, an inner block reads it anew, and the old
        instance cannot be saved until it is refreshed: `StaleVersion`, with or without a version.

        Raises:
            DoesNotExist: there is no such item.
            ConfigurationError: the lock was never taken.
        """
        own = self._last()
        if self._wish.claim.is_ranged:
            raise ConfigurationError(f"{self.name} is locked as a range, which has no item: query what is in it.")
        if self._given is None:
            self._given = handed.item_of(own, self._target)
        return self._given

    @property
    def is_held(self) -> bool:
        """Whether the lock is taken, its lease not over, and no loss proven."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed; 0 if it is not held."""
        return self._own.remaining if self._own is not None and self._takes else 0.0

    @property
    def lost(self) -> Event:
        """An event that is set once it is proven that the lock was lost while we held it."""
        return self._last().lost

    # Keeping it

    def renew(self) -> None:
        """Prolong the lease to its full length, counted from now. 1 write.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no answer came; the lease is at least what it was.
            ConfigurationError: this object does not hold the lock.
        """
        handed.renew(self._must_have_taken())

    def ensure(self, remaining: Duration) -> None:
        """Make sure that so much of the lease is left, renewing it if it is not. 0 or 1 write.

        Args:
            remaining: seconds or a timedelta; less than the lease.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no answer came, and less is left.
            ConfigurationError: more was asked for than a lease is long, or the lock is not held.
        """
        wanted = seconds(remaining, "remaining")
        own = self._must_have_taken()
        if wanted >= own.entry.lease:
            raise ConfigurationError(
                f"ensure({wanted:g} s) can never hold: the lease is {own.entry.lease:g} s. Take a longer lease."
            )
        if own.lost.is_set():
            raise own.loss()
        if own.remaining < wanted:
            self.renew()

    def downgrade(self) -> None:
        """Go on as one of the readers: those who wait to share the lock get it now, in their turn.

        From then on writes under the lock are refused, as if it had been taken with ``shared=True``, and no
        late copy of an earlier guarded write can land any more. The ticket stays. There is no upgrade. A lock that
        was taken with ``shared=True`` stays what it is, without a request.

        A thread or task that has taken the lock several times has one entry, which is shared in all of its blocks
        then. So a range inside a range that it holds, or one of several that `locked_all` took together, is refused:
        more than that range would be shared.

        Raises:
            LockLost: our entry is gone.
            OutcomeUnknown: no answer came; it may be shared already, so writes are refused. Doing it again is safe.
            ConfigurationError: this object does not hold the lock, or only a part of what is held together, or the
                lock is a semaphore.

        Cost: 1 write.
        """
        handed.downgrade(self._must_have_taken(), self._wish.claim)

    # Guards for writes of your own

    def condition(self) -> Condition:
        """Return the condition that holds as long as our entry is in the queue.

        For hand-written conditions on the row that carries the lock: the item itself for an embedded
        lock, the lock row otherwise.
        """
        return guards.in_queue(self._must_have_taken())

    def check(self, transaction: TransactWrite) -> None:
        """Add a ConditionCheck to a transaction on other items, so that it fails once the lock is lost.

        For an embedded lock the transaction cannot write the locked item as well: DynamoDB allows
        one action an item, and `transaction.save(item)` already carries the guard.
        """
        model, hash_key, range_key = self._target.carrier
        transaction.condition_check(model, hash_key, range_key, condition=self.condition())

    # Inside

    def _must_have_taken(self) -> OwnEntry:
        if self._own is None or not self._takes:
            raise ConfigurationError(f"the lock {self.name} is not held by this Lock object; acquire it first.")
        return self._own

    def _last(self) -> OwnEntry:
        if self._own is None:
            raise ConfigurationError(f"the lock {self.name} was never taken by this Lock object; acquire it first.")
        return self._own

    def __repr__(self) -> str:
        if self._own is None or not self._takes:
            return f"<Lock {self.name} not held>"
        return f"<Lock {self.name} ticket {self.ticket}, {self.remaining:.1f} s left>"
