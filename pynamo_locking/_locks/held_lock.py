"""A held lock: its entry, what this process believes of it, and the requests that a holder makes.

A `HeldEntry` exists from the grant until its entry has been released or lost. It numbers the writes under the lock, and
knows by this process's own clock until when the lease lasts. A loss is noted once, with its reason, by whichever finds
out first: the heartbeat, a refused write, or a call of the holder.

Rejected: to believe the entry in an image that was read. It shows what was true once; only the condition of a write, or
this process's clock since its last renewal, says that the lock is still held.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from pynamo_locking._core.dynamodb import NO_TABLE
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import LeaseClock
from pynamo_locking._core.lock_modes import SHARED
from pynamo_locking._core.lock_queue import MAX_HOLD, EntryOwnership, HoldState
from pynamo_locking._io import client, event_stream, lock_requests, responses, runtime, wakeups
from pynamo_locking._io.client import Refused, Unavailable
from pynamo_locking._io.runtime import logger
from pynamo_locking._items import versions
from pynamo_locking._items.classes import shared_as
from pynamo_locking._locks import heartbeat, local_queue, lock_events, release
from pynamo_locking._locks.lock_events import HoldReport
from pynamo_locking.exceptions import ItemLocked, ItemNotFound, LockLost, OutcomeUnknown, also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Concatenate

    from typing_extensions import ParamSpec

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.lock_queue import LockState, QueueEntry
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.local_queue import LocalWaiter
    from pynamo_locking._locks.options import LockTarget, M

    _P = ParamSpec("_P")


#: How a lock was lost, in words.
_LOST: Final = {
    MAX_HOLD: "was held for max_hold, and another owner may hold the lock when the lease has ended",
    "evicted": (
        "is no longer in the queue: no renewal of it arrived for a whole lease (a pause, an outage), an operator broke "
        "it, or another process has attached its token; another owner may hold the lock by now"
    ),
    "deleted": "is no longer in the queue: the item that carries it is gone",
    "replaced": (
        "is no longer in the queue: another writer has replaced the item, and the new one has no lock. A process with "
        "plain PynamoDB does that at each save, such as the release before this one during a deployment: see "
        "docs/reference/compatibility.md, Mixed fleets and old data"
    ),
    "restored": (
        "belongs to another process: this one was restored from a snapshot that was taken while it held the lock, and "
        "other processes may have been restored from it as well"
    ),
    "": "is no longer in the queue: it was released or its item deleted",
}


class _Mutexes:
    """Of one held entry. A forked child replaces them together: a thread of its parent may have them."""

    def __init__(self) -> None:
        self.facts = runtime.current.mutex()
        self.counting = runtime.brief_mutex()
        self.renewing = runtime.current.mutex()
        self.writing = runtime.current.mutex()  # reentrant: a signal of PynamoDB may write as well


class Acquirer(Protocol):
    """What of a `LockHandle` its entry knows: which entry it has acquired last, and how often."""

    entry: HeldEntry | None
    depth: int


class LockedItem:
    """The item that a held entry guards, as far as this process knows it.

    The image shows the item as it was when the lock was granted, so an embedded lock needs no read. A write under the
    lock makes it old. One instance serves all nested blocks of a thread or task, so that none of them works on an old
    one.

    Attributes:
        image: as the grant showed it; None after a write.
        instance: what all blocks of the thread or task share; None before it was asked for.
        edits: how many blocks of `edit` are going to save it.
        is_deleted: whether it was deleted under the lock, which is in another row.
    """

    def __init__(self, image: Image | None) -> None:
        self.image = image
        self.instance: Any = None
        self.edits = 0
        self.is_deleted = False

    @property
    def is_current(self) -> bool:
        return self.instance is not None and not self.is_deleted and not versions.is_old(self.instance)

    def forget(self) -> None:
        """Let it be read again the next time."""
        self.image = self.instance = None

    def must_read(self, target: LockTarget[Any]) -> bool:
        """Tell whether `instance_of` makes a request."""
        return not self.is_current and (target.is_elsewhere or self.image is None)

    def instance_of(self, target: LockTarget[M], read_under: object) -> M:
        """Return the current instance, which all nested blocks share; read it if it is not known.

        Args:
            target: what is locked.
            read_under: the held entry, which is noted with the instance.

        Raises:
            DoesNotExist: there is no such item.
            ConfigurationError: the blocks share an instance of another class.
        """
        image, current = self.image, self.instance if self.is_current else None  # another thread may forget both
        if current is None:
            current = target.read() if image is None or target.is_elsewhere else target.model.from_raw_data(image)
            versions.note(versions.present(current), read_under)
            if not self.is_current:  # else another thread has read it meanwhile
                self.instance = current
            shared = self.instance
            current = current if shared is None else shared
        return shared_as(target.model, current, "by another block of its lock", "name one class in every block")

    def refuse_expired(self, target: LockTarget[M]) -> None:
        """Raise `ItemNotFound` for the lock in an item that has expired."""
        if not target.is_elsewhere and versions.shape_of(target.model).is_expired(self.image):
            raise also(ItemNotFound, target.model.DoesNotExist)(
                f"{target.row.label} has expired, and counts as absent: there is nothing to lock. Save it again first."
            )


class HeldEntry:
    """Our entry in the queue, and what this process believes of it.

    Args:
        row: the item that carries the lock.
        entry: our entry as stored when it was granted.
        started: when the write began that created or last renewed it, on our monotonic clock.
        heartbeats: number of the last renewal that was sent; the image may show an older one.
        since: of the lock document that has it.
        image: the image that first showed us in front.

    Attributes:
        row: the item that carries the lock.
        entry: our entry as it is stored, or as a request that was sent makes it.
        ownership: what is known of it. It changes by `note` and the verbs that call it.
        clock: until when the lease lasts.
        item: what is known of the locked item.
        report: what is told of it.
        thread_or_task: which has acquired it, or which commits the transaction that it is given back with.
        pid: of the process that has acquired it.
        depth: how many acquisitions of the thread or task have not been released.
        handles: by which it was acquired, in that order.
        caller: leads those who wait in this process; None if no caller may wait behind this entry.
        behind: the ids of the entries that were next when it was granted.
        last_write: number of the last guarded write that was prepared.
    """

    caller: LocalWaiter | None = None
    behind: tuple[str, ...] = ()

    def __init__(
        self, row: LockRow, entry: QueueEntry, started: float, heartbeats: int, since: int, image: Image
    ) -> None:
        self.row = row
        self.entry: QueueEntry = entry
        self.ownership: EntryOwnership = EntryOwnership(entry.id, entry.ticket, since, is_attached=bool(entry.token_id))
        self.clock: LeaseClock = LeaseClock(entry.lease, started, heartbeats)
        self.item: LockedItem = LockedItem(image)
        self.report: HoldReport = HoldReport()
        self.thread_or_task: tuple[object, ...] = runtime.current.thread_or_task()
        self.pid: int = runtime.pid()
        self._is_mocked = client.is_mocked()
        self.depth: int = 1
        self.handles: weakref.WeakKeyDictionary[Acquirer, None] = weakref.WeakKeyDictionary()
        self.last_write: int = entry.writes
        self._mutexes = _Mutexes()
        all_held[self] = None

    def __deepcopy__(self, memo: object) -> HeldEntry:
        """Copies of an item that came out of a lock are guarded by the same entry."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """An item that is unpickled, perhaps in another process, is outside of the lock."""
        return type(None), ()

    def __str__(self) -> str:
        return f"lock {self.row.label} ticket {self.entry.ticket}"

    # What is believed

    @property
    def counting(self) -> AbstractContextManager[object]:
        """The mutex of the numbers of acquisitions: of `depth`, and of those of its `handles`."""
        return self._mutexes.counting

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, 0 if it has ended."""
        return self.clock.remaining(runtime.current.monotonic()) if self.ownership.is_held else 0.0

    def is_allowed(self) -> bool:
        """Tell whether it is held; note the loss if `max_hold` has ended by now.

        A lock that has outlived its mock of AWS is over: its next request would be sent to AWS.
        """
        if self._is_mocked and not client.is_mocked() and self.ownership.is_held:
            logger.warning(
                "%s was held when its mock of AWS ended, so it is not renewed: release it in the block", self
            )
            self.orphaned()
        if runtime.current.monotonic() >= self.clock.ends_at:
            self.lose(MAX_HOLD)
        return self.ownership.is_held

    def refuse_if_lost(self) -> None:
        """Raise `LockLost` if it is lost, even if only the clock says so by now: the heartbeat may come later.

        It is a `ConfigurationError` if the lock was detached.
        """
        if not self.is_allowed() and self.ownership.reason:
            raise self.loss()
        if self.ownership.state is HoldState.DETACHED:
            raise ConfigurationError(f"{self} was detached: go on with `attach` and its token.")

    def refuse_if_shared(self) -> None:
        """Raise a `ConfigurationError` for a write if others may hold the lock, too."""
        if not self.entry.lock_mode.may_write:
            raise ConfigurationError(
                f"{self.row.label} is held {self.entry.lock_mode} here, so others may hold it too, and nothing "
                f"may be written under it. Release it, acquire it exclusively (locked() without shared or permits), "
                f"and read again."
            )

    def ended(self) -> None:
        self.note(EntryOwnership.ended)

    def orphaned(self) -> None:
        """Note that its holder has given it up, or is gone: nothing renews it, and a thread removes it, if anything."""
        self.note(EntryOwnership.orphaned)

    def detached(self) -> None:
        self.note(EntryOwnership.detached)

    def lose(self, reason: str) -> None:
        """Note that its loss is proven, for a reason as in `LockLost`."""
        self.note(EntryOwnership.lost, reason)

    def absent_from(self, state: LockState, *, is_removal: bool = False) -> LockLost:
        """Note that a document does not contain our entry, see `EntryOwnership.absent`; return the error for it."""
        self.note(EntryOwnership.absent, state, is_removal=is_removal)
        return self.loss()

    def note(
        self, change: Callable[Concatenate[EntryOwnership, _P], EntryOwnership], *args: _P.args, **kwargs: _P.kwargs
    ) -> None:
        """Note what is known from now on. An end or a loss is told once, outside of the mutex."""
        with self._mutexes.facts:
            before, self.ownership = self.ownership, change(self.ownership, *args, **kwargs)
            now = self.ownership
            if now.reason:
                self.report.lost.set()
        if now.is_held:
            return
        if now.state is not before.state and now.is_over:
            heartbeat.heartbeat_thread.remove(self)
        local_queue.let_next_lead(self.caller)  # even if an interrupt has kept us from it the first time
        if before.is_held:
            (lock_events.lost if now.reason else lock_events.released)(self)

    def loss(self) -> LockLost:
        """Return the error for a lock that is lost."""
        reason, what = self.ownership.reason, f"ticket {self.entry.ticket} of {self.row.label}"
        if reason == "forked":
            what += (
                f" belongs to process {self.pid}, which took it before this process {runtime.pid()} was forked, and "
                f"may still hold it. A child process has none of the locks of its parent: take one here, with locked() "
                f"or a new lock(), and read again."
            )
        else:
            what += (
                f" {_LOST[reason]}. Stop writing. Leave the `with` block (or release the lock), take it again, and "
                f"read again."
            )
        return LockLost(what, reason=reason or "deleted", ticket=self.entry.ticket)

    def leave_to_parent(self) -> None:
        """In a forked child: the parent holds it."""
        self._mutexes = _Mutexes()
        self.ownership = self.ownership.forked()
        if not self.ownership.is_over:
            getattr(self.report.lost, "_at_fork_reinit", lambda: None)()  # its mutex may be locked as well
            self.report.lost.set()

    # Under the lock

    def renew(self) -> None:
        """Renew the lease.

        Raises:
            LockLost: our entry is gone.
            Unavailable: no response; the lease is what it was.
        """
        with event_stream.scope(), self._mutexes.renewing:
            if not self.is_allowed():
                raise self.loss()
            started, before = runtime.current.monotonic(), self.clock.deadline
            self.clock.heartbeats += 1
            try:
                lock_requests.renew(self.row, self.entry, self.clock.heartbeats, want_image=False)
            except Refused as refused:
                _check_still_in(self, refused)  # DynamoDB has applied our first copy, which was sent after `started`
            except Unavailable as error:
                self.report.renewal_failed(self, error)
                raise
            except ConfigurationError as error:
                if error.cause_response_code != NO_TABLE:
                    raise
                self.lose("deleted")
                raise self.loss() from error
            self.clock.renewed(started)
            local_queue.note_alive(self.caller, started, self.clock.heartbeats)
            self.report.renewed(self, started, before)

    @contextlib.contextmanager
    def writing(self, *, is_last: bool = False) -> Iterator[int]:
        """Number the next guarded write, one at a time; `is_last` if others may hold the lock after it."""
        with event_stream.scope(), self._mutexes.writing:
            self.refuse_if_lost()
            if not is_last:
                self.refuse_if_shared()  # even if this thread has waited here for the last write
            self.last_write += 1
            self.item.image = None  # the image from the grant is no longer the item
            yield self.last_write

    @contextlib.contextmanager
    def removing(self) -> Iterator[None]:
        """Note the time in which a request may remove the entry; it ends with a definite answer."""
        self.note(EntryOwnership.removing)
        try:
            yield
        except OutcomeUnknown:
            raise
        except Exception:
            self.note(EntryOwnership.removing, -1)
            raise

    # Leaving

    def release(self) -> None:
        """Leave the queue, and wake the waiters.

        Raises:
            LockLost: the entry was no longer in the queue.
        """
        with event_stream.scope(keeps=False):
            if not self.is_allowed():
                if not self.ownership.reason:  # it has outlived its mock of AWS
                    return
                # What is lost to the clock of `max_hold` still has its entry, and waiters need not wait for its lease.
                if self.ownership.may_stand:
                    release.remove_entry(self.row, self.entry.id)
                self.ended()
                raise self.loss()
            try:
                # From before the request the absence of the entry proves no loss.
                self.note(EntryOwnership.removing)
                image = release.release(self.row, self.entry.id, self.caller, self.entry)
                self.ended()
                wakeups.tell_waiters(self.row, image or None)
            except Unavailable:  # the log has it, and a thread goes on
                pass
            except Refused as refused:
                # The entry is gone: by an earlier copy of the request, or it was lost.
                if refused.repeated:
                    self.note(EntryOwnership.removing)
                loss = self.absent_from(self.row.state(refused.image), is_removal=True)
                if self.ownership.reason:
                    raise loss from refused
                self.ended()
            except LockingError:
                raise
            except BaseException:  # also of a signal handler, which may be any
                self.leave_behind()
                raise
            finally:
                self.orphaned()  # unless it has ended: whatever happened, nothing renews it any more

    def drop(self) -> None:
        """Release it, since its caller does not get it, unless it stays."""
        if self.ownership.stays:
            self.orphaned()
        else:
            self.release()

    def leave_behind(self) -> None:
        """Let a thread remove the entry, for a caller that was interrupted or is gone. Nothing renews it any more."""
        if self.ownership.may_stand and not self.ownership.stays:
            release.remove_entry_later(self.row, self.entry.id)
        self.orphaned()


def _check_still_in(held: HeldEntry, refused: Refused) -> None:
    """Return if a refusal shows our entry in the queue; otherwise note the loss, and raise it."""
    state = held.row.state(refused.image)
    if state.find(held.entry.id, held.entry.ticket) is None:
        raise held.absent_from(state) from refused


#: Our entries in all queues.
all_held: weakref.WeakKeyDictionary[HeldEntry, None] = weakref.WeakKeyDictionary()


def refuse_blocked_loop(row: LockRow, lock_mode: LockMode) -> None:
    """Refuse to wait in this thread for another task of its event loop, which could not go on meanwhile."""
    for held in _held_by_tasks():
        if held.row.identity == row.identity and held.entry.lock_mode.conflicts(lock_mode):
            raise _blocked_loop(held)


def refuse_retry_in_blocked_loop(conflict: Exception) -> None:
    """Refuse to wait in this thread until a task of its event loop releases the lock that has refused a write."""
    if not isinstance(conflict, ItemLocked):
        return
    for held in _held_by_tasks():
        if (held.row.model, held.row.key) == conflict.refused_by and held.entry.ticket == conflict.ticket:
            raise _blocked_loop(held) from conflict


def _held_by_tasks() -> Iterator[HeldEntry]:
    """Yield what tasks of the event loop hold that runs in this thread; nothing if none does."""
    *thread, task = runtime.current.thread_or_task()
    for held in () if task is None else runtime.living(all_held):
        *its_thread, its_task = held.thread_or_task
        if its_task is not None and its_thread == thread and not held.ownership.is_over:
            yield held


def _blocked_loop(held: HeldEntry) -> ConfigurationError:
    return ConfigurationError(
        f"{held.row.label} is held by another task of the event loop of this thread. To wait for it here would block "
        f"the loop, so the task could never release it: use `async with`, or the awaited method."
    )


def _leave_all_to_parent() -> None:
    for held in runtime.living(all_held):
        held.leave_to_parent()


def _lose_all() -> None:
    """In a restored process: others may have been restored from the same snapshot, and have the same entries."""
    for held in runtime.living(all_held):
        held.lose("restored")


def _leave_at_exit() -> None:
    """Remove what the main thread holds. Other threads may still be at work."""
    thread = runtime.current.thread_or_task()[:2]
    here = [
        held
        for held in runtime.living(all_held)
        if held.thread_or_task[:2] == thread and held.ownership.may_stand and not held.ownership.is_over
    ]
    for held in here:
        held.orphaned()  # or a renewal that comes too late would report a loss
    release.leave_at_exit({held.entry.id: held.row for held in here if not held.ownership.stays})


runtime.after_fork(_leave_all_to_parent, restored=_lose_all)
runtime.at_exit(_leave_at_exit)

# Requests of a holder


def next_write(held: HeldEntry) -> int:
    """Number a guarded write that a transaction sends later."""
    with held.writing() as number:
        return number


def note_left(held: HeldEntry, image: Image | None) -> None:
    """Note that a write removed our entry, and wake waiters. A transaction returns no image that shows who is next."""
    local_queue.let_next_lead(held.caller, image)
    held.ended()
    wakeups.tell_waiters(held.row, image)
    if image is None and held.entry.callers == 1:  # else the next caller is in this process
        if held.behind:
            wakeups.send_wakeup(held.behind)
        else:
            wakeups.call_next(held.row)


def renew(held: HeldEntry) -> None:
    """Renew the lease: what `Lock.renew` does, and raises."""
    held.refuse_if_lost()
    try:
        held.renew()
    except Unavailable as error:
        certain = f"{held.remaining:.1f} s of the lease are certain. Try again."
        raise unanswered(held, "renewal", error, certain) from error


def ensure(held: HeldEntry, wanted: float) -> None:
    """Renew the lease unless so many seconds are left: what `Lock.ensure_remaining` does, and raises."""
    if wanted >= held.entry.lease:
        raise ConfigurationError(
            f"ensure_remaining({wanted:g} s) can never hold: the lease is {held.entry.lease:g} s. Use a longer lease."
        )
    held.refuse_if_lost()
    remaining = held.remaining
    if remaining < wanted or not remaining:
        renew(held)


def downgrade(held: HeldEntry, lock_mode: LockMode) -> None:
    """Share a lock, acquired with that mode, unless it is shared already: what `Lock.downgrade` does, and raises."""
    have = held.entry.lock_mode
    if held.ownership.is_attached:
        raise ConfigurationError(
            f"{held.row.label} was attached here, and may be attached again as {have}: a lock that is shared from some "
            f"point on cannot be. Downgrade it before it is detached."
        )
    if have.permits > 1:
        raise ConfigurationError(f"{held.row.label} is a semaphore, which has no readers.")
    is_in_doubt = held.ownership.state is HoldState.DOWNGRADING
    if lock_mode.mode == SHARED or (have.mode == SHARED and not is_in_doubt):
        return
    if not lock_mode._replace(mode=have.mode).covers(have):
        raise ConfigurationError(
            f"{held.row.label} is held {have} here, and {lock_mode} is only a part of that: all of it would be shared. "
            f"Downgrade the lock that has all of it, or acquire them one by one."
        )
    with held.writing(is_last=True) as number:
        # Before the request, which may be applied whatever its answer: nothing is written under it any more.
        held.entry = replace(held.entry, lock_mode=held.entry.lock_mode._replace(mode=SHARED))
        held.note(EntryOwnership.downgrading)
        image: Image | None
        try:
            image = client.patiently(lambda: lock_requests.downgrade(held.row, held.entry, number))
        except Refused as refused:
            _check_still_in(held, refused)
            image = refused.image  # DynamoDB has applied our first copy
        except Unavailable as error:  # the state stays, and repeating is safe
            raise unanswered(held, "downgrade", error, "doing it again is safe.") from error
        held.note(EntryOwnership.downgraded)
    wakeups.tell_waiters(held.row, image)


def unanswered(held: HeldEntry, request: str, error: Unavailable, advice: str) -> OutcomeUnknown:
    """Return the error for a request that got no answer, or was refused for now."""
    said = "no answer to" if responses.is_ambiguous(error.cause) else "DynamoDB has refused for now"
    return OutcomeUnknown(f"{said} the {request} of {held}; {advice}", write_id=held.entry.id, cause=error.cause)
