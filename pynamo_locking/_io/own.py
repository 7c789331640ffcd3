"""Our own entry in one queue, from the grant until it is released or lost."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.claims import SHARED
from pynamo_locking._core.error_codes import NO_TABLE
from pynamo_locking._core.naming import plain
from pynamo_locking._io import events, leaving, local, losses, requests, runtime
from pynamo_locking._io.callbacks import call_back
from pynamo_locking._io.copies import Copies
from pynamo_locking._io.outages import Outage
from pynamo_locking._io.requests import Refused, Unavailable
from pynamo_locking.exceptions import ConfigurationError, LockingError, LockLost, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking._core.queue import Entry, LockState
    from pynamo_locking._io.requests import Image, Row
    from pynamo_locking.exceptions import LockLost

logger = logging.getLogger("pynamo_locking")


class OwnEntry:
    """Our place in the queue, with everything this process knows about it.

    Args:
        row: the item that carries the lock.
        entry: our entry as stored when it was granted.
        started: when the write began that created or last renewed it, on our monotonic clock. The
            lease counts from there: from before the write, never from its answer.
        beat: number of the last renewal that was sent; the image may show an older one.
        image: the image that first showed us in front.
    """

    # What it took, and since when we hold it: known if somebody has subscribed to events.
    taking: events.Scope | None = None
    held_since_s: float | None = None
    has_heartbeat = False

    def __init__(self, row: Row, entry: Entry, started: float, beat: int, image: Image) -> None:
        self.row = row
        self.entry = entry
        self.image: Image | None = image
        self.since = row.state(image).since  # of the document that we are in: it may be deleted, and made anew
        self.copies = Copies()
        self.party = runtime.current.party()
        self.pid = runtime.pid()
        self.depth = 1
        self.ended = False
        # A request that removes the entry is on its way, or was and nobody knows what became of it:
        # until that is known, the absence of the entry proves no loss.
        self.may_be_gone = False
        self._was_in_doubt = False  # before the write that may remove it and is on its way
        # A transaction that we do not see was to delete the item, and the entry with it.
        self.may_delete = False
        # The lock was to be shared, and nobody knows whether it is.
        self.may_be_alone = False
        # The item, which is not the row of the lock, was deleted under the lock.
        self.is_item_deleted = False
        self.lost = runtime.current.event()
        self.lost_reason = ""
        self.on_lost: list[Callable[[str], object]] = []
        self.outage = Outage()
        self.deadline = started + entry.lease
        self._beat = beat
        self._writes = entry.writes
        self._make_mutexes()
        _alive.add(self)

    def _make_mutexes(self) -> None:
        self._mutex = runtime.current.mutex()
        self._renewing = runtime.current.mutex()
        self._writing = runtime.current.mutex()  # reentrant: a signal of PynamoDB may write as well

    def __deepcopy__(self, memo: object) -> OwnEntry:
        """Copies of an item that came out of a lock are guarded by the same entry."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """An item that is unpickled, perhaps in another process, is outside of the lock."""
        return type(None), ()

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, 0 if it is over."""
        if self.ended or self.lost.is_set():
            return 0.0
        return max(0.0, self.deadline - runtime.current.monotonic())

    def renew(self) -> None:
        """Prolong the lease.

        Raises:
            LockLost: our entry is gone.
            Unavailable: no answer; the lease is what it was.
        """
        with events.scope(), self._renewing:
            if self.ended or self.lost.is_set():
                raise self.loss()
            started, before = runtime.current.monotonic(), self.deadline
            self._beat += 1
            try:
                requests.renew(self.row, self.entry, self._beat, want_image=False)
            except Refused as refused:
                state = self.row.state(refused.image)
                if state.find(self.entry.id, self.entry.ticket) is None:
                    self.lose_to(state)
                    raise self.loss() from refused
                # Our own first copy was here before: it was sent after `started`.
            except Unavailable as error:
                self.outage.failed(self, error)
                raise
            except ConfigurationError as error:
                if error.cause_response_code != NO_TABLE:
                    raise
                self.lose("deleted")
                raise self.loss() from error
            self.deadline = started + self.entry.lease
            failed_s = self.outage.ended(self)
            if events.listeners:
                events.tell.renewed(self, started, before, failed_s)

    def downgrade(self) -> None:
        """Share the lock from now on.

        Raises:
            LockLost: our entry is gone.
            Unavailable: no answer; it may be shared already, so nothing is written any more. Doing it again is safe.
        """
        with self.writing(is_last=True) as number:
            # From before the request: it may arrive, whatever we hear of it.
            self.entry = replace(self.entry, claim=replace(self.entry.claim, mode=SHARED))
            self.may_be_alone = True
            image = self._share(number)
            self.may_be_alone = False
        local.tell_waiters(self.row, image)

    def _share(self, number: int) -> Image | None:
        try:
            return requests.patiently(lambda: requests.downgrade(self.row, self.entry, number))
        except Refused as refused:
            state = self.row.state(refused.image)
            if state.find(self.entry.id, self.entry.ticket) is None:
                self.lose_to(state)
                raise self.loss() from refused
            return refused.image  # our own first copy was here before

    def check_alone(self) -> None:
        """Refuse to write where others may hold the lock as well.

        Raises:
            ConfigurationError: they may.
        """
        if not self.entry.claim.may_write:
            raise ConfigurationError(
                f"{self.row.label} is held {self.entry.claim} here, so others may hold it too, and nothing may be "
                f"written under it. Release it, take it exclusively (locked() without shared or permits), and read "
                f"again."
            )

    @contextlib.contextmanager
    def writing(self, *, is_last: bool = False) -> Iterator[int]:
        """Number the next guarded write. One at a time, so that numbers arrive in order.

        Args:
            is_last: whether it is the one after which others may hold the lock too.
        """
        with events.scope(), self._writing:
            if self.lost.is_set():
                raise self.loss()
            if not is_last:
                self.check_alone()  # also who has waited here for the last one
            self._writes += 1
            self.image = None  # the image from the grant is no longer the item
            yield self._writes

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        """Mark the time in which a request may remove the entry; it ends with a definite answer."""
        self._was_in_doubt, self.may_be_gone = self.may_be_gone, True
        try:
            yield
        except OutcomeUnknown:
            raise
        except Exception:
            self.may_be_gone = self._was_in_doubt
            raise

    def write_id(self, number: int) -> str:
        """Return the name of a guarded write, in errors and logs."""
        return f"{self.entry.id}/{number}"

    @property
    def last_beat(self) -> int:
        """The number of the last renewal that was sent."""
        return self._beat

    @property
    def last_write(self) -> int:
        """The number of the last guarded write that was made ready."""
        return self._writes

    def next_write(self) -> int:
        """Number a guarded write that is sent later, as part of a transaction."""
        with self.writing() as number:
            return number

    def release_and_count(self) -> None:
        """Do the same as `release`, and count what that consumes if anybody wants to hear of it."""
        events.tell.releasing(self) if events.listeners else self.release()

    def release(self) -> None:
        """Leave the queue.

        Raises:
            LockLost: we were no longer in it.
        """
        if self.lost.is_set():
            self.end()
            raise self.loss()
        try:
            in_doubt, self.may_be_gone = self.may_be_gone, True
            self._leave(in_doubt=in_doubt)
        except Unavailable as error:
            logger.warning("gave up releasing %s; others wait until its lease is over: %s", self, error)
        except LockingError:
            raise
        except BaseException:  # also of a signal handler, which may be any
            self.leave_behind()
            raise
        finally:
            self.end(is_confirmed=False)  # whatever happened: who has let go must not go on renewing

    def leave_behind(self) -> None:
        """Let a thread remove the entry, for a caller that was interrupted or has gone. Nothing renews it any more."""
        if not self.lost.is_set():
            leaving.leave_behind(self.row, self.entry.id)
        self.end(is_confirmed=False)

    def _leave(self, *, in_doubt: bool) -> None:
        row = self.row
        try:
            image = requests.patiently(lambda: requests.release(row, self.entry.id, want_image=local.has_waiters(row)))
        except Refused as refused:
            state = self.row.state(refused.image)
            # A document that has not forgotten also knows of copies that something on the way has made.
            evicted = state.was_evicted(self.entry.ticket, self.since)
            if evicted or (evicted is None and not (in_doubt or refused.repeated)):
                self.may_be_gone = False  # no request of ours has removed it
                self.lose_to(state)
            if self.lost.is_set():
                raise self.loss() from refused
            self.end()
            return
        self.end()
        local.tell_waiters(row, image or None)

    def take_again(self) -> bool:
        """Count one more take by the same context; False if the last one is already given back."""
        with self._mutex:
            if self.ended or self.depth == 0:
                return False
            self.depth += 1
            return True

    def give_back(self) -> bool:
        """Count one take less; True if that was the last."""
        with self._mutex:
            self.depth -= 1
            return self.depth == 0

    def end(self, *, is_confirmed: bool = True) -> None:
        """Note that the entry is gone by our own doing, or will be; nothing is renewed any more."""
        with self._mutex:
            is_news = bool(events.listeners) and not (self.ended or self.lost.is_set())
            self.ended = True
        if is_news:
            events.tell.released(self, is_confirmed=is_confirmed)

    def lose_to(self, state: LockState, *, is_going: bool = False) -> None:
        """Note a loss, given the document without our entry; it is none if a request of ours may have removed it.

        Args:
            state: the document.
            is_going: it came with the refusal of a write that was to remove the entry: only earlier ones may have.
        """
        is_deleted = state.since != self.since  # the document that we were in, whatever there is now
        in_doubt = self._was_in_doubt if is_going else self.may_be_gone
        if self.may_delete and is_deleted:
            self.end()
        elif not in_doubt or state.was_evicted(self.entry.ticket, self.since):
            self.lose("deleted" if is_deleted else "evicted")

    def lose(self, reason: str) -> None:
        """Note a proven loss: set the event and call back, once, off this thread."""
        with self._mutex:
            if self.ended or self.lost.is_set():
                return
            self.lost_reason = reason
            self.lost.set()
        if not events.is_logged("Lost"):
            logger.warning("lost %s (holder %s): %s", self, plain(self.entry.owner), reason)
        for callback in self.on_lost:
            call_back(callback, reason)
        if events.listeners:
            events.tell.lost(self)

    def loss(self) -> LockLost:
        """Return the error that says what happened."""
        return losses.loss(self.row.label, self.entry.ticket, self.lost_reason, self.pid)

    def leave_to_parent(self) -> None:
        """In a forked child: whatever the parent holds is not ours. Mutexes may be mid-flight, so anew."""
        self._make_mutexes()
        if not self.ended:
            self.lost_reason = "forked"
            reinit = getattr(self.lost, "_at_fork_reinit", lambda: None)  # its mutex may be mid-flight as well
            reinit()
            self.lost.set()

    def __str__(self) -> str:
        return f"lock {self.row.label} ticket {self.entry.ticket}"


_alive = leaving.held


def _leave_all_to_parent() -> None:
    for own in tuple(_alive):
        own.leave_to_parent()


runtime.after_fork(_leave_all_to_parent)
