"""A held lock: its entry, the instances read under it; ensure, renew, downgrade, read, succeed, leave.

A `HeldEntry` exists from the grant until its entry has been released or lost. It numbers the writes under the lock, and
knows by this process's own clock until when the lease lasts, counted from before the last renewal was sent. A loss is
noted once, with its reason, by whichever finds out first: the heartbeat, a refused write, or a call of the holder.

The held entries of a context are in a context variable. So threads and tasks that are started under a lock write under
it, although they do not hold it. An entry belongs to the thread or task that has acquired it, which may acquire the
lock again without a request.

Rejected: to believe the entry in an image that was read. It shows what was true once; only the condition of a write, or
this process's clock since its last renewal, says that the lock is still held.
"""

from __future__ import annotations

import contextlib
import copy
import math
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.dynamodb import NO_TABLE
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lock_modes import SHARED
from pynamo_locking._core.lock_queue import MAX_HOLD, EntryOwnership
from pynamo_locking._core.row_keys import plain
from pynamo_locking._io import client, event_stream, lock_requests, responses, runtime, wakeups
from pynamo_locking._io.client import Refused, Unavailable
from pynamo_locking._io.runtime import logger
from pynamo_locking._items import expiry, versions
from pynamo_locking._locks import heartbeat, local_queue, lock_events, release
from pynamo_locking._locks.lock_events import RenewalOutage
from pynamo_locking.exceptions import ItemNotFound, LockLost, OutcomeUnknown, also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.lock_queue import LockState, QueueEntry, RunRecord
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.runtime import Event
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.local_queue import LocalWaiter
    from pynamo_locking._locks.options import LockTarget, M


class EditUndo:
    """The values of an instance when an inner block began. If the block saved it, they are an old version again."""

    def __init__(self, item: Model) -> None:
        self._item = item
        self._values = copy.deepcopy(item.attribute_values)

    def restore(self) -> None:
        """Restore the instance."""
        self._item.attribute_values = self._values


def in_order(entries: Iterable[HeldEntry]) -> list[HeldEntry]:
    """Return entries in the order in which all writers lock them for writing, so that writers cannot deadlock."""
    return sorted(entries, key=lambda held: held.entry.id)


#: How a lock was lost, in words.
_LOST: Final = {
    MAX_HOLD: "was held for max_hold, and another owner may hold the lock when the lease has ended",
    "evicted": (
        "is no longer in the queue: no renewal of it arrived for a whole lease (a pause, an outage), an operator broke "
        "it, or another process has attached its token; another owner may hold the lock by now"
    ),
    "deleted": "is no longer in the queue: the item that carries it is gone",
    "restored": (
        "belongs to another process: this one was restored from a snapshot that was taken while it held the lock, and "
        "other processes may have been restored from it as well"
    ),
    "": "is no longer in the queue: it was released or its item deleted",
}


class HeldEntry:
    """Our place in the queue, with everything that this process knows about it.

    Args:
        row: the item that carries the lock.
        entry: our entry as stored when it was granted.
        started: when the write began that created or last renewed it, on our monotonic clock. The lease counts from
            there: from before the write, never from its answer.
        heartbeats: number of the last renewal that was sent; the image may show an older one.
        since: of the lock document that has it.
        image: the image that first showed us in front.
    """

    held_since_s: float | None = None  # known if there is a subscriber to events
    has_heartbeat = False
    is_detached: bool = False
    stays = False  # an interrupt, or the end of its caller, leaves the entry in the queue
    ends_at: float = math.inf  # the end of `max_hold`, on our monotonic clock
    # The caller that leads those who wait in this process, if callers may wait behind this entry.
    caller: LocalWaiter | None = None
    # Entries that were next when it was granted.
    behind: tuple[str, ...] = ()

    def __init__(
        self, row: LockRow, entry: QueueEntry, started: float, heartbeats: int, since: int, image: Image
    ) -> None:
        self.row = row
        self.entry: QueueEntry = entry
        self.image: Image | None = image
        self.possession: EntryOwnership = EntryOwnership(
            entry.id, entry.ticket, since, is_attached=bool(entry.token_id)
        )
        self.shared: Any = None  # the instance of its item that all blocks of one thread or task share
        self.edits = 0  # blocks of `edit` that are going to save it
        self.party: tuple[object, ...] = runtime.current.party()
        self.pid: int = runtime.pid()
        self._is_mocked = client.is_mocked()
        self.depth: int = 1
        self.may_be_alone: bool = False  # a downgrade was sent, and got no response
        self.is_item_deleted = False  # under the lock, which is in another row
        self.lost: Event = runtime.current.event()
        self.on_lost: list[Callable[[str], object]] = []
        self.outage: RenewalOutage = RenewalOutage()
        self.deadline: float = started + entry.lease
        self.heartbeats: int = heartbeats  # sent
        self.last_write: int = entry.writes  # made ready
        self._make_mutexes()
        all_held[self] = None

    def _make_mutexes(self) -> None:
        self._mutex = runtime.current.mutex()
        self._renewing = runtime.current.mutex()
        self._writing = runtime.current.mutex()  # reentrant: a signal of PynamoDB may write as well

    def __deepcopy__(self, memo: object) -> HeldEntry:
        """Copies of an item that came out of a lock are guarded by the same entry."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """An item that is unpickled, perhaps in another process, is outside of the lock."""
        return type(None), ()

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, 0 if it has ended."""
        now = runtime.current.monotonic()
        is_held = self.possession.is_held and now < self.ends_at
        return max(0.0, self.deadline - now) if is_held else 0.0

    def is_allowed(self) -> bool:
        """Tell whether it is held; note the loss if `max_hold` has ended by now.

        A lock that has outlived its mock of AWS is over: its next request would be sent to AWS.
        """
        if self._is_mocked is not client.is_mocked() and self.possession.is_held:
            logger.warning(
                "%s was held when its mock of AWS ended, so it is not renewed: release it in the block", self
            )
            self.end(is_confirmed=False)
        if runtime.current.monotonic() >= self.ends_at:
            self.lose(MAX_HOLD)
        return self.possession.is_held

    def refuse_if_lost(self) -> None:
        """Raise `LockLost` if it is lost, even if only the clock says so by now: the heartbeat may come later.

        It is a `ConfigurationError` if the lock was detached.
        """
        if not self.is_allowed() and self.possession.reason:
            raise self.loss()
        if self.is_detached:
            raise ConfigurationError(f"{self} was detached: go on with `attach` and its token.")

    def renew(self) -> None:
        """Renew the lease.

        Raises:
            LockLost: our entry is gone.
            Unavailable: no response; the lease is what it was.
        """
        with event_stream.scope(), self._renewing:
            if not self.is_allowed():
                raise self.loss()
            started, before = runtime.current.monotonic(), self.deadline
            self.heartbeats += 1
            try:
                lock_requests.renew(self.row, self.entry, self.heartbeats, want_image=False)
            except Refused as refused:
                self._must_be_in(refused)  # DynamoDB has applied our first copy, which was sent after `started`
            except Unavailable as error:
                self.outage.failed(self, error)
                raise
            except ConfigurationError as error:
                if error.cause_response_code != NO_TABLE:
                    raise
                self.lose("deleted")
                raise self.loss() from error
            self.deadline = started + self.entry.lease
            local_queue.note_alive(self.caller, started, self.heartbeats)
            self.outage.renewed(self, started, before)

    def downgrade(self) -> None:
        """Share the lock from now on.

        Raises:
            LockLost: our entry is gone.
            Unavailable: no response; it may be shared already, so writes are refused. Repeating is safe.
        """
        with self.writing(is_last=True) as number:
            # Before the request, which may be applied whatever its answer.
            self.entry = replace(self.entry, lock_mode=self.entry.lock_mode._replace(mode=SHARED))
            self.may_be_alone = True
            image: Image | None
            try:
                image = client.patiently(lambda: lock_requests.downgrade(self.row, self.entry, number))
            except Refused as refused:
                self._must_be_in(refused)
                image = refused.image  # DynamoDB has applied our first copy
            self.may_be_alone = False
        wakeups.tell_waiters(self.row, image)

    def _must_be_in(self, refused: Refused) -> None:
        state = self.row.state(refused.image)
        if state.find(self.entry.id, self.entry.ticket) is None:
            raise self.absent_from(state) from refused

    def check_alone(self) -> None:
        """Raise a `ConfigurationError` for a write if others may hold the lock, too."""
        if not self.entry.lock_mode.may_write:
            raise ConfigurationError(
                f"{self.row.label} is held {self.entry.lock_mode} here, so others may hold it too, and nothing "
                f"may be written under it. Release it, acquire it exclusively (locked() without shared or permits), "
                f"and read again."
            )

    @contextlib.contextmanager
    def writing(self, *, is_last: bool = False) -> Iterator[int]:
        """Number the next guarded write, one at a time; `is_last` if others may hold the lock after it."""
        with event_stream.scope(), self._writing:
            self.refuse_if_lost()
            if not is_last:
                self.check_alone()  # even if this thread has waited here for the last write
            self.last_write += 1
            self.image = None  # the image from the grant is no longer the item
            yield self.last_write

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """Note the time in which a request may remove the entry; it ends with a definite answer."""
        self._know(EntryOwnership.removing)
        try:
            yield
        except OutcomeUnknown:
            raise
        except Exception:
            self._know(lambda known: known.removing(-1))
            raise

    def write_id(self, number: int) -> str:
        """Return the name of a guarded write, for errors and logs."""
        return f"{self.entry.id}/{number}"

    def next_write(self) -> int:
        """Number a guarded write that a transaction sends later."""
        with self.writing() as number:
            return number

    def release(self) -> None:
        """Leave the queue; `LockLost` if we were no longer in it."""
        with event_stream.scope(keeps=False):
            self._release()

    def _release(self) -> None:
        if not self.is_allowed() and self.possession.reason:
            if self.possession.may_stand:
                release.remove_entry(self.row, self.entry.id)
            self.end()
            raise self.loss()
        try:
            self._know(EntryOwnership.removing)
            image = release.release(self.row, self.entry.id, self.caller, self.entry)
            self.end()
            wakeups.tell_waiters(self.row, image or None)
        except Unavailable:  # the log has it
            pass
        except Refused as refused:
            if refused.repeated:
                self._know(EntryOwnership.removing)
            loss = self.absent_from(self.row.state(refused.image), is_removal=True)
            if self.possession.reason:
                raise loss from refused
            self.end()
        except LockingError:
            raise
        except BaseException:  # also of a signal handler, which may be any
            self.leave_behind()
            raise
        finally:
            self.end(is_confirmed=False)  # whatever happened, nothing renews it any more

    def drop(self) -> None:
        """Release it, since its caller does not get it, unless it stays."""
        if self.stays:
            self.leave_behind()
        else:
            self.release()

    def leave_behind(self) -> None:
        """Let a thread remove the entry, for a caller that was interrupted or is gone. Nothing renews it any more."""
        if self.possession.may_stand and not self.stays:
            release.remove_entry_later(self.row, self.entry.id)
        self.end(is_confirmed=False)
        remove_from_context(self)

    def take_again(self) -> bool:
        """Count one more acquisition by the same context; False if the last one was released already."""
        with self._mutex:
            if self.possession.is_over or self.depth == 0:
                return False
            self.depth += 1
            return True

    def give_back(self) -> bool:
        """Count one acquisition less; True if that was the last."""
        with self._mutex:
            self.depth -= 1
            return self.depth == 0

    def end(self, *, is_confirmed: bool = True, is_detached: bool = False) -> None:
        """Note that we have removed the entry, or will, or have detached it; nothing renews it any more."""
        self.is_detached = self.is_detached or is_detached
        self._know(EntryOwnership.over, is_confirmed=is_confirmed)

    def lose(self, reason: str) -> None:
        self._know(lambda known: known.lost(reason))

    def absent_from(self, state: LockState, *, is_removal: bool = False) -> LockLost:
        """Note that a document does not contain our entry, see `EntryOwnership.absent`; return the error for it."""
        self._know(lambda known: known.absent(state, is_removal=is_removal))
        return self.loss()

    def expect_delete(self, *, expected: bool) -> None:
        """See `EntryOwnership.deleting`."""
        self._know(lambda known: known.deleting(expected))

    def _know(self, change: Callable[[EntryOwnership], EntryOwnership], *, is_confirmed: bool = True) -> None:
        """Note what is known from now on. The end is reported once, outside of the mutex."""
        with self._mutex:
            before, self.possession = self.possession, change(self.possession)
            now = self.possession
            if now.reason:
                self.lost.set()
        if now.is_over and not before.is_over:
            heartbeat.heartbeat_thread.remove(self)
        if not now.is_held:  # even if an interrupt has kept us from it the first time
            local_queue.let_next_lead(self.caller)
        if before.is_held and now.reason:
            self._tell_of_loss()
        elif before.is_held and now.is_over:
            lock_events.released(self, is_confirmed=is_confirmed)

    def _tell_of_loss(self) -> None:
        reason = self.possession.reason
        if not event_stream.is_logged("Lost"):
            logger.warning("lost %s (holder %s): %s", self, plain(self.entry.owner), reason)
        for callback in self.on_lost:
            _call_back(callback, reason)
        lock_events.lost(self)

    def loss(self) -> LockLost:
        reason, what = self.possession.reason, f"ticket {self.entry.ticket} of {self.row.label}"
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
        """In a forked child: the parent holds it. Mutexes may be locked forever here, so make new ones."""
        self._make_mutexes()
        self.possession = self.possession.forked()
        if not self.possession.is_over:
            getattr(self.lost, "_at_fork_reinit", lambda: None)()  # its mutex may be locked as well
            self.lost.set()

    def __str__(self) -> str:
        return f"lock {self.row.label} ticket {self.entry.ticket}"


def _call_back(on_lost: Callable[[str], object], reason: str) -> None:
    """Call `on_lost` in a separate thread."""
    try:
        runtime.current.spawn(lambda: on_lost(reason), name="pynamo-locking-on-lost")  # type: ignore[arg-type]
    except RuntimeError:  # no thread: better here than never; what it raises must not reach our caller
        try:
            on_lost(reason)
        except Exception:
            logger.exception("on_lost failed")


#: Our entries in all queues.
all_held: weakref.WeakKeyDictionary[HeldEntry, None] = weakref.WeakKeyDictionary()


def _leave_all_to_parent() -> None:
    for held in runtime.living(all_held):
        held.leave_to_parent()


def _lose_all() -> None:
    """In a restored process: others may have been restored from the same snapshot, and have the same entries."""
    for held in runtime.living(all_held):
        held.lose("restored")


def _leave_at_exit() -> None:
    """Remove what the main thread holds. Other threads may still be at work."""
    thread = runtime.current.party()[:2]
    mine = [
        held
        for held in runtime.living(all_held)
        if held.party[:2] == thread and held.possession.may_stand and not held.possession.is_over
    ]
    for held in mine:
        held.end(is_confirmed=False)  # or a renewal that comes too late would report a loss
    release.leave_at_exit({held.entry.id: held.row for held in mine if not held.stays})


runtime.after_fork(_leave_all_to_parent, restored=_lose_all)
runtime.at_exit(_leave_at_exit)

#: A context keeps its entries in so many parts, and a change copies one part: after n takes, a 256th of n.
_PARTS: Final = 256
_Held = Mapping[int, tuple["HeldEntry", ...]]
held_by_context: ContextVar[_Held] = ContextVar("pynamo_locking_held", default={})  # noqa: B039 - never mutated


def add_to_context(held: HeldEntry) -> None:
    parts, number = _parts_without(held), _number(held.row)
    held_by_context.set({**parts, number: (*parts.get(number, ()), held)})


def remove_from_context(held: HeldEntry) -> None:
    if held in held_by_context.get().get(_number(held.row), ()):
        held_by_context.set(_parts_without(held))


def _number(row: LockRow) -> int:
    return hash(row.identity) % _PARTS


def _parts_without(held: HeldEntry) -> dict[int, tuple[HeldEntry, ...]]:
    """Return what this context holds, except one entry and those in its part and in the oldest part that have ended."""
    parts, number = dict(held_by_context.get()), _number(held.row)
    for part in (next(iter(parts), number), number):
        kept = tuple(each for each in parts.pop(part, ()) if each is not held and not each.possession.is_over)
        if kept:
            parts[part] = kept
    return parts


def all_held_in_context(row: LockRow) -> tuple[HeldEntry, ...]:
    """Return our entries in that lock that this context has not released, the last one first."""
    part = reversed(held_by_context.get().get(_number(row), ()))
    return tuple(held for held in part if held.row.identity == row.identity and not held.possession.is_over)


def held_in_context(row: LockRow, *extents: LockMode) -> HeldEntry | None:
    """Return our entry in that lock that this context has not released: of all of it, or of a part of the extents."""
    mine = all_held_in_context(row) if held_by_context.get() else ()
    return next(
        (
            held
            for held in mine
            if (
                any(held.entry.lock_mode.intersects(extent) for extent in extents)
                if extents
                else not held.entry.lock_mode.is_ranged
            )
        ),
        None,
    )


def holds_nothing() -> bool:
    """Tell whether this context knows of no entry. It may know some that have ended: see `holds_a_lock`."""
    return not held_by_context.get()


def holds_a_lock() -> bool:
    """Tell whether this context holds a lock that it has neither released nor lost."""
    return any(held.possession.is_held for part in held_by_context.get().values() for held in part)


# Which locks this context holds, and under which entry an item is written.


def read_under(item: Model) -> HeldEntry | None:
    """Return the entry under which an instance was read; None if it was read outside of a lock."""
    return versions.noted(item, HeldEntry)


def held_entry_for_write(item: Model, row: LockRow) -> HeldEntry | None:
    """Return the entry under which an item is written: the one it was read under, or the context's.

    Raises:
        LockLost: that entry is known to be lost.
    """
    held = read_under(item)
    if held is not None and held.row is not row and held.row.identity != row.identity:
        held = None  # the item got another key since it was read
    if held is None or (held.possession.is_over and not held.possession.reason):
        held = held_in_context(row)
    return usable(held)


def held_by_this_context(row: LockRow, lock_mode: LockMode, last: HeldEntry | None) -> HeldEntry | None:
    """Return the entry of this thread or task that covers a mode; `last` if that does.

    Raises:
        ConfigurationError: an entry of this thread or task conflicts, behind which it would wait for ever.
    """
    if holds_nothing():
        return None
    party = runtime.current.party()
    mine = [held for held in all_held_in_context(row) if held.party == party]
    covering = [held for held in mine if held.entry.lock_mode.covers(lock_mode)]
    found = last if last in covering else next(iter(covering), None)
    in_the_way = next((held for held in mine if held.entry.lock_mode.conflicts(lock_mode)), None)
    if found is None and in_the_way is not None and not in_the_way.possession.is_copied:
        raise ConfigurationError(
            f"{row.label} is held {in_the_way.entry.lock_mode} here, and {lock_mode} was asked for: a lock is not "
            f"upgraded, since two holders that tried would wait for each other for ever. Acquire the whole lock from "
            f"the start, or release it, acquire it again, and read again."
        )
    return found


def usable(held: HeldEntry | None) -> HeldEntry | None:
    """Return an entry that a write may name, None if it has been released.

    Raises:
        LockLost: it is known to be lost.
        ConfigurationError: others may hold the lock, too, so it does not protect writes.
    """
    if held is None:
        return None
    if held.possession.reason:
        raise held.loss()
    if held.possession.is_over:
        return None
    held.check_alone()
    return held


# Operations on a held entry: keep, renew, downgrade, read, leave.


_NOTE: Final = "request to note a success"
_MAY_BE_NOTED: Final = "the success may or may not be noted. If it is not, the job runs again in this period."


def note_left(held: HeldEntry, image: Image | None) -> None:
    """Note that a write removed our entry, and wake waiters. A transaction returns no image: then those we know of."""
    local_queue.let_next_lead(held.caller, image)
    held.end()
    wakeups.tell_waiters(held.row, image)
    if image is None and held.behind and held.entry.members == 1:  # else the next caller is in this process
        wakeups.send_wakeup(held.behind)


def renew(held: HeldEntry) -> None:
    """Renew the lease: what `Lock.renew` does, and raises."""
    held.refuse_if_lost()
    try:
        held.renew()
    except Unavailable as error:
        certain = f"{held.remaining:.1f} s of the lease are certain. Try again."
        raise _unanswered(held, "renewal", error, certain) from error


def record_success(held: HeldEntry, success: RunRecord, kept_s: int) -> None:
    """Leave the queue, and note in the same request that the job has succeeded; see `lock_requests.succeed`.

    Raises:
        LockLost: the entry is gone, and nothing was noted.
        OutcomeUnknown: no response. The entry is still to be removed.
    """
    with held.writing(), held.going():
        try:
            image: Image | None = client.patiently(
                lambda: lock_requests.succeed(
                    held.row, held.entry, success, kept_s, want_image=wakeups.has_waiters(held.row)
                )
            )
        except Refused as refused:
            image = refused.image
            try:
                state = held.row.state(image)
            except LockingError as reason:  # broken, or of a newer release: nothing shows what became of a first copy
                if not refused.repeated:
                    raise
                first = f"no answer to the first {_NOTE} of {held}; {_MAY_BE_NOTED} Since then: {reason}"
                raise OutcomeUnknown(first, write_id=held.entry.id, cause=reason) from reason
            is_noted = state.success is not None and state.success.ticket == held.entry.ticket  # by a first copy
            # Or a later run has noted its own since: only that copy, or an eviction, can have removed our entry.
            if not is_noted and state.was_evicted(held.entry.ticket, held.possession.since) is not False:
                raise held.absent_from(state, is_removal=True) from refused
        except Unavailable as error:
            raise _unanswered(held, _NOTE, error, _MAY_BE_NOTED) from error
    note_left(held, image or None)


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


def _unanswered(held: HeldEntry, request: str, error: Unavailable, advice: str) -> OutcomeUnknown:
    said = "no answer to" if responses.is_ambiguous(error.cause) else "DynamoDB has refused for now"
    return OutcomeUnknown(f"{said} the {request} of {held}; {advice}", write_id=held.entry.id, cause=error.cause)


def refuse_expired(held: HeldEntry, target: LockTarget[M]) -> None:
    """Raise `ItemNotFound` for the lock in an item that has expired."""
    if not target.is_elsewhere and expiry.is_expired(target.model, held.image):
        raise also(ItemNotFound, target.model.DoesNotExist)(
            f"{target.row.label} has expired, and counts as absent: there is nothing to lock. Save it again first."
        )


def must_read(held: HeldEntry, target: LockTarget[M]) -> bool:
    """Tell whether `item_of` makes a request."""
    is_known = _has_current(held) and not held.is_item_deleted
    return not is_known and (target.is_elsewhere or held.image is None)


def item_of(held: HeldEntry, target: LockTarget[M]) -> M:
    """Return the current instance of the locked item, shared by all nested blocks; read it if it is not known.

    Raises:
        DoesNotExist: there is no such item.
    """
    if must_read(held, target):
        found = target.read()
    else:
        if _has_current(held):
            return held.shared  # type: ignore[no-any-return]
        assert held.image is not None  # noqa: S101 - else it must be read
        found = target.model.from_raw_data(held.image)
    versions.note(expiry.present(found), held)
    if not _has_current(held):  # else another thread has read it meanwhile
        held.shared = found
    return held.shared  # type: ignore[no-any-return]


def _has_current(held: HeldEntry) -> bool:
    return held.shared is not None and not versions.is_old(held.shared)


def downgrade(held: HeldEntry, lock_mode: LockMode) -> None:
    """Share a lock, acquired with that mode, unless it is shared already: what `Lock.downgrade` does, and raises."""
    have = held.entry.lock_mode
    if held.possession.is_attached:
        raise ConfigurationError(
            f"{held.row.label} was attached here, and may be attached again as {have}: a lock that is shared from some "
            f"point on cannot be. Downgrade it before it is detached."
        )
    if have.permits > 1:
        raise ConfigurationError(f"{held.row.label} is a semaphore, which has no readers.")
    if lock_mode.mode == SHARED or (have.mode == SHARED and not held.may_be_alone):
        return
    if not lock_mode._replace(mode=have.mode).covers(have):
        raise ConfigurationError(
            f"{held.row.label} is held {have} here, and {lock_mode} is only a part of that: all of it would be shared. "
            f"Downgrade the lock that has all of it, or acquire them one by one."
        )
    try:
        held.downgrade()
    except Unavailable as error:
        raise _unanswered(held, "downgrade", error, "doing it again is safe.") from error
