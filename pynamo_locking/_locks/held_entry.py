"""Our own entry in one queue, from the grant until it is released or lost."""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.claims import SHARED
from pynamo_locking._core.error_codes import NO_TABLE
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import STALLED_AFTER
from pynamo_locking._core.naming import plain
from pynamo_locking._core.possession import MAX_HOLD, STALLED, Possession
from pynamo_locking._io import event_stream, lock_requests, retries, runtime
from pynamo_locking._io.retries import Refused, Unavailable
from pynamo_locking._locks import cohorts, heartbeat, mailboxes, removal, reports
from pynamo_locking._locks.instances import Copies
from pynamo_locking._locks.outages import Outage
from pynamo_locking.exceptions import LockLost, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pynamo_locking._core.claims import Bound
    from pynamo_locking._core.queue import LockState, QueueEntry
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.cohorts import Caller


def in_order(entries: Iterable[HeldEntry]) -> list[HeldEntry]:
    """Return entries in the order in which all writers lock them for writing, so that writers cannot deadlock."""
    return sorted(entries, key=lambda held: held.entry.id)


logger = logging.getLogger("pynamo_locking")

#: How a lock was lost, in words.
_LOST: Final = {
    MAX_HOLD: "was held for max_hold, and another party may hold the lock when the lease has ended",
    STALLED: (
        "belongs to work that has not called progress() for two thirds of its lease, and another party may hold the "
        "lock when the lease has ended"
    ),
    "evicted": (
        "is no longer in the queue: no renewal of it arrived for a whole lease (a pause, an outage), or an operator "
        "broke it; another party may hold the lock by now"
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
        beat: number of the last renewal that was sent; the image may show an older one.
        since: of the lock document that has it.
        image: the image that first showed us in front.
    """

    held_since_s: float | None = None  # known if there is a subscriber to events
    has_heartbeat = False
    ends_at = math.inf  # the end of `max_hold`, on our monotonic clock
    needs_progress = False  # the heartbeat waits for a sign of the work
    # The caller that leads those who wait in this process, if callers may wait behind this entry.
    caller: Caller | None = None
    # Entries that were next when it was granted.
    behind: tuple[str, ...] = ()

    def __init__(self, row: LockRow, entry: QueueEntry, started: float, beat: int, since: int, image: Image) -> None:
        self.row = row
        self.entry = entry
        self.image: Image | None = image
        self.possession = Possession(entry.id, entry.ticket, since)
        self.copies = Copies()
        self.party = runtime.current.party()
        self.pid = runtime.pid()
        self.depth = 1
        self.may_be_alone = False  # a downgrade was sent, and had no answer
        self.is_item_deleted = False  # under the lock, which is in another row
        self.lost = runtime.current.event()
        self.on_lost: list[Callable[[str], object]] = []
        self.outage = Outage()
        self.deadline = started + entry.lease
        self.progressed_at = started  # the last sign of the work: that it has begun
        self.last_beat = beat  # sent
        self.last_write = entry.writes  # made ready
        self._make_mutexes()
        all_held.add(self)

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
        return max(0.0, self.deadline - now) if self.possession.is_held and now < self.ends_at else 0.0

    def may_be_renewed(self) -> bool:
        """Tell whether the heartbeat may renew the lease now; note the loss if it may never do so again."""
        if self.needs_progress and runtime.current.monotonic() >= self.progressed_at + self.entry.lease * STALLED_AFTER:
            self.lose(STALLED)
        is_silent = self.needs_progress and self.progressed_at <= self.deadline - self.entry.lease
        return self.is_allowed() and not is_silent

    def leave_if_stalled(self) -> float | None:
        """Let a thread remove the entry of work that is given up as silent, a lease after its last sign.

        Returns when that is, if that is later. A renewal after that sign would keep the entry for longer. While a write
        under way may remove the entry, nothing else does: the absence of the entry would seem the effect of that write.
        """
        if self.possession.is_over or self.possession.reason != STALLED:
            return None
        leaves_at = self.progressed_at + self.entry.lease
        if runtime.current.monotonic() < leaves_at:
            return leaves_at
        if not self.possession.removals:
            removal.leave_behind(self.row, self.entry.id)
        return None

    def is_allowed(self) -> bool:
        """Tell whether it is held; note the loss if it was held for as long as it may be."""
        if runtime.current.monotonic() >= self.ends_at:
            self.lose(MAX_HOLD)
        return self.possession.is_held

    def renew(self) -> None:
        """Renew the lease.

        Raises:
            LockLost: our entry is gone.
            Unavailable: no answer; the lease is what it was.
        """
        with event_stream.scope(), self._renewing:
            if not self.is_allowed():
                raise self.loss()
            started, before = runtime.current.monotonic(), self.deadline
            self.last_beat += 1
            try:
                lock_requests.renew(self.row, self.entry, self.last_beat, want_image=False)
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
            cohorts.note_life(self.caller, started)
            failed_s = self.outage.ended(self)
            if event_stream.listeners:
                reports.renewed(self, started, before, failed_s)

    def downgrade(self) -> None:
        """Share the lock from now on.

        Raises:
            LockLost: our entry is gone.
            Unavailable: no answer; it may be shared already, so writes are refused. Repeating is safe.
        """
        with self.writing(is_last=True) as number:
            # Before the request, which may be applied whatever its answer.
            self.entry = replace(self.entry, claim=replace(self.entry.claim, mode=SHARED))
            self.may_be_alone = True
            image: Image | None
            try:
                image = retries.patiently(lambda: lock_requests.downgrade(self.row, self.entry, number))
            except Refused as refused:
                self._must_be_in(refused)
                image = refused.image  # DynamoDB has applied our first copy
            self.may_be_alone = False
        mailboxes.tell_waiters(self.row, image)

    def _must_be_in(self, refused: Refused) -> None:
        state = self.row.state(refused.image)
        if state.find(self.entry.id, self.entry.ticket) is None:
            raise self.absent_from(state) from refused

    def check_alone(self) -> None:
        """Refuse to write if other parties may hold the lock as well.

        Raises:
            ConfigurationError: they may.
        """
        if not self.entry.claim.may_write:
            raise ConfigurationError(
                f"{self.row.label} is held {self.entry.claim} here, so other parties may hold it too, and nothing may "
                f"be written under it. Release it, acquire it exclusively (locked() without shared or permits), and "
                f"read again."
            )

    @contextlib.contextmanager
    def writing(self, *, is_last: bool = False) -> Iterator[int]:
        """Number the next guarded write, one at a time; `is_last` if other parties may hold the lock after it."""
        with event_stream.scope(), self._writing:
            if not self.is_allowed() and self.possession.reason:
                raise self.loss()
            if not is_last:
                self.check_alone()  # also if this thread has waited here for the last write
            self.last_write += 1
            self.image = None  # the image from the grant is no longer the item
            yield self.last_write

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """Mark the time in which a request may remove the entry; it ends with a definite answer.

        Raises:
            LockLost: the lock was lost before, and the heartbeat may have removed the entry. Nothing was sent.
        """
        self._know(Possession.removing)
        try:
            if self.possession.reason:
                raise self.loss()  # noqa: TRY301 - as if a request had said so
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
        """Leave the queue.

        Raises:
            LockLost: we were no longer in it.
        """
        with event_stream.scope(keeps=False):
            self._release()

    def _release(self) -> None:
        if self.possession.reason:
            if self.possession.may_stand:
                removal.leave(self.row, self.entry.id)
            self.end()
            raise self.loss()
        try:
            self._know(Possession.removing)
            image = removal.release(self.row, self.entry.id, self.caller, self.entry)
            self.end()
            mailboxes.tell_waiters(self.row, image or None)
        except Unavailable:  # the log has it
            pass
        except Refused as refused:
            if refused.repeated:
                self._know(Possession.removing)
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

    def leave_behind(self) -> None:
        """Let a thread remove the entry, for a caller that was interrupted or is gone. Nothing renews it any more."""
        if self.possession.may_stand:
            removal.leave_behind(self.row, self.entry.id)
        self.end(is_confirmed=False)
        forget(self)

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

    def end(self, *, is_confirmed: bool = True) -> None:
        """Note that we have removed the entry, or will; nothing renews it any more."""
        self._know(Possession.over, is_confirmed=is_confirmed)

    def lose(self, reason: str) -> None:
        self._know(lambda known: known.lost(reason))

    def absent_from(self, state: LockState, *, is_removal: bool = False) -> LockLost:
        """Note that a document does not contain our entry, see `Possession.absent`; return the error that says so."""
        self._know(lambda known: known.absent(state, is_removal=is_removal))
        return self.loss()

    def expect_delete(self, *, expected: bool) -> None:
        """See `Possession.deleting`."""
        self._know(lambda known: known.deleting(expected))

    def _know(self, change: Callable[[Possession], Possession], *, is_confirmed: bool = True) -> None:
        """Note what is known from now on. The end is reported once, outside of the mutex."""
        with self._mutex:
            before, self.possession = self.possession, change(self.possession)
            now = self.possession
            if now.reason:
                self.lost.set()
        if now.is_over and not before.is_over:
            heartbeat.heart.remove(self)
        if not now.is_held:  # also if an interrupt has kept us from it the first time
            cohorts.pass_on(self.caller)
        if before.is_held and now.reason:
            self._tell_of_loss()
        elif before.is_held and now.is_over and event_stream.listeners:
            reports.released(self, is_confirmed=is_confirmed)

    def _tell_of_loss(self) -> None:
        reason = self.possession.reason
        if not event_stream.is_logged("Lost"):
            logger.warning("lost %s (holder %s): %s", self, plain(self.entry.owner), reason)
        for callback in self.on_lost:
            _call_back(callback, reason)
        if event_stream.listeners:
            reports.lost(self)

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
    """Call `on_lost` in a thread of its own."""
    try:
        runtime.current.spawn(lambda: on_lost(reason), name="pynamo-locking-on-lost")  # type: ignore[arg-type]
    except RuntimeError:  # no thread: better here than never; what it raises must not reach our caller
        try:
            on_lost(reason)
        except Exception:
            logger.exception("on_lost failed")


#: Our entries in all queues.
all_held: weakref.WeakSet[HeldEntry] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for held in tuple(all_held):
        held.leave_to_parent()


def _lose_all() -> None:
    """In a restored process: others may have been restored from the same snapshot, and have the same entries."""
    for held in tuple(all_held):
        held.lose("restored")


def _leave_at_exit() -> None:
    """Remove what the main thread holds. Other threads may still be at work."""
    thread = runtime.current.party()[:2]
    mine = [
        held
        for held in tuple(all_held)
        if held.party[:2] == thread and held.possession.may_stand and not held.possession.is_over
    ]
    for held in mine:
        held.end(is_confirmed=False)  # or a renewal that comes too late would report a loss
    removal.leave_at_exit({held.entry.id: held.row for held in mine})


runtime.after_fork(_leave_all_to_parent, restored=_lose_all)
runtime.at_exit(_leave_at_exit)

#: A context keeps its entries in so many parts, and a change copies one part: after n takes, a 256th of n.
_PARTS: Final = 256
_Held = Mapping[int, tuple["HeldEntry", ...]]
_held: ContextVar[_Held] = ContextVar("pynamo_locking_held", default={})  # noqa: B039 - never mutated


def remember(held: HeldEntry) -> None:
    parts, number = _parts_without(held), _number(held.row)
    _held.set({**parts, number: (*parts.get(number, ()), held)})


def forget(held: HeldEntry) -> None:
    if held in _held.get().get(_number(held.row), ()):
        _held.set(_parts_without(held))


def _number(row: LockRow) -> int:
    return hash(row.identity) % _PARTS


def _parts_without(held: HeldEntry) -> dict[int, tuple[HeldEntry, ...]]:
    """Return what this context holds, except one entry and those in its part and in the oldest part that have ended."""
    parts, number = dict(_held.get()), _number(held.row)
    for part in (next(iter(parts), number), number):
        kept = tuple(each for each in parts.pop(part, ()) if each is not held and not each.possession.is_over)
        if kept:
            parts[part] = kept
    return parts


def all_held_in_context(row: LockRow) -> tuple[HeldEntry, ...]:
    """Return our entries in that lock that this context has not released, the last one first."""
    part = reversed(_held.get().get(_number(row), ()))
    return tuple(held for held in part if held.row.identity == row.identity and not held.possession.is_over)


def held_in_context(row: LockRow, bound: Bound | None = None) -> HeldEntry | None:
    """Return our entry in that lock that this context has not released: of all of it, or of a range with `bound`."""
    mine = all_held_in_context(row) if _held.get() else ()
    return next(
        (held for held in mine if (held.entry.claim.contains(bound) if bound else not held.entry.claim.is_ranged)), None
    )


def holds_nothing() -> bool:
    return not _held.get()
