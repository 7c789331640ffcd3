"""The public lock: one object, whether the lock is in an item or in a row of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic

from pynamodb.expressions.operand import Path
from pynamodb.models import Model
from typing_extensions import Self, TypeVar

from pynamo_locking._core.lease import Duration, LockSettings, check_lease, seconds
from pynamo_locking._io import local, records, runtime
from pynamo_locking._io.heartbeat import heart
from pynamo_locking._io.requests import Unavailable
from pynamo_locking._io.waiting import Acquisition, Wish
from pynamo_locking._io.writes import OWN_ENTRY
from pynamo_locking.exceptions import ConfigurationError, LockLost, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.transactions import TransactWrite

    from pynamo_locking._io.own import OwnEntry
    from pynamo_locking._io.requests import Row

M = TypeVar("M", bound=Model, default=Any)

logger = logging.getLogger("pynamo_locking")


class Target(Generic[M]):
    """What a lock protects: the item of a model, and the row that carries the lock.

    Args:
        model: the model of the item.
        row: the row with the lock document.
        carrier: the model of that row, and its key as given by the caller.
        read: reads the item when the row is another one.
    """

    def __init__(
        self, model: type[M], row: Row, carrier: tuple[type[Model], Any, Any], read: Callable[[], M] | None
    ) -> None:
        self.model = model
        self.row = row
        self.carrier = carrier
        self.read = read


class Lock(Generic[M]):
    """A first come, first served lock on one item or one name.

    Made by `Model.lock()`, `Model.locked()` and `NamedLock.lock()`. Use it in a ``with`` statement,
    or call `acquire()` and `release()` in pairs. The object can be used again after a release; each
    time it takes a new ticket. A context (thread or task) that takes a lock it already holds gets the
    same ticket again, and gives it back with the last release.

    Guaranteed under crashes, lost answers, pauses and clock skew: at most one unexpired holder in
    DynamoDB's own document, holders in the order of their tickets, and no guarded write (`save`,
    `update`, `delete` of the locked item) applied after another process has taken over.
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
            ItemNotFound: the lock is kept in an item that does not exist. Also `Model.DoesNotExist`.
            ConfigurationError: a table is missing, the item is full, or the key is wrong.
        """
        wish = self._wish if wait is None else _with_wait(self._wish, seconds(wait, "wait"))
        row = self._target.row
        if self._takes:
            own = self._own
            if own is None or own is not local.held_in_context(row):
                raise ConfigurationError(
                    f"this Lock object already holds {row.label} in another thread or task; "
                    f"make one Lock object for each."
                )
        else:
            own = local.held_in_context(row)
        if own is not None and own.lost.is_set():
            raise own.loss()  # what surrounds us has lost it; holding it anew would hide that
        if own is None or not own.take_again():
            own = self._take(wish)
        self._own = own
        self._takes += 1
        return self

    def _take(self, wish: Wish) -> OwnEntry:
        own = Acquisition(self._target.row, wish).run()
        if self._on_lost is not None:
            own.on_lost.append(self._on_lost)
        if wish.heartbeat:
            heart.add(own)
        local.remember(own)
        return own

    def release(self) -> None:
        """Give the lock back; the last of several takes removes our entry from the queue.

        Raises:
            LockLost: the lock was lost before, so what was done under it may not have been alone.
                Writes through the models were refused from that moment on.
            ConfigurationError: this object does not hold the lock.
        """
        own = self._must_have_taken()
        self._takes -= 1
        if not own.give_back():
            return
        local.forget(own)
        if own.ended:
            return
        try:
            own.release()
        finally:
            heart.remove(own)

    @property
    def _is_last_take(self) -> bool:
        """Whether the next release removes our entry, because the lock was taken only once."""
        return self._must_have_taken().depth == 1

    @property
    def _is_in_queue(self) -> bool:
        """Whether our entry was not removed by our own doing, such as deleting the item."""
        return not self._must_have_taken().ended

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except LockLost as loss:
            if error is None:
                raise
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

        Raises:
            ConfigurationError: the lock was never taken.
        """
        return self._last().entry.ticket

    @property
    def item(self) -> M:
        """The locked item, as it was in the very image that showed us in front.

        No request for an embedded lock; 1 transactional read, once, for a lock in a row of its own
        (a plain read could show the state before a dead holder's last transaction).

        Raises:
            DoesNotExist: there is no such item.
            ConfigurationError: the lock was never taken.
        """
        own = self._last()
        if own.item is None:
            read = self._target.read
            own.item = self._target.model.from_raw_data(own.image) if read is None else read()
            own.item.__dict__[OWN_ENTRY] = own
        item: M = own.item
        return item

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
        own = self._must_have_taken()
        try:
            own.renew()
        except Unavailable as error:
            raise OutcomeUnknown(
                f"no answer to the renewal of {own}; {own.remaining:.1f} s of the lease are certain. Try again.",
                write_id=own.entry.id,
                cause=error.cause,
            ) from error

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

    # Guards for writes of your own

    def condition(self) -> Condition:
        """Return the condition that holds as long as our entry is in the queue.

        For hand-written conditions on the row that carries the lock: the item itself for an embedded
        lock, the lock row otherwise.
        """
        own = self._must_have_taken()
        path = Path([own.row.attribute, records.TICKETS, own.entry.id])
        return path == own.entry.ticket

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


def make_wish(
    model: type[Model],
    *,
    wait: Duration | None,
    lease: Duration | None,
    heartbeat: bool | None,
    owner: str | None,
    settings: LockSettings | None,
) -> Wish:
    """Return the arguments of `locked()`, checked, with the model's settings where none is given."""
    settings = checked_settings(settings, getattr(model.Meta, "lock_settings", None))
    length = settings.lease if lease is None else seconds(lease, "lease")
    check_lease(length, settings)
    return Wish(
        wait=settings.wait if wait is None else seconds(wait, "wait"),
        lease=length,
        heartbeat=settings.heartbeat if heartbeat is None else heartbeat,
        owner=runtime.current.owner() if owner is None else str(owner),
        settings=settings,
        not_found=model.DoesNotExist,
    )


def checked_settings(*candidates: object) -> LockSettings:
    """Return the first settings that are given, or the defaults."""
    settings = next((given for given in candidates if given is not None), LockSettings())
    if not isinstance(settings, LockSettings):
        raise ConfigurationError(f"lock settings must be a LockSettings, not {settings!r}.")
    return settings


def _with_wait(wish: Wish, wait: float) -> Wish:
    return Wish(wait, wish.lease, wish.heartbeat, wish.owner, wish.settings, wish.not_found)
