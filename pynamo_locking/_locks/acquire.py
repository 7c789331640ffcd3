"""The way to a lock: enqueue, poll, evict, be granted; in a thread or in a task of asyncio.

One write enqueues and draws the ticket, so tickets have the order in which DynamoDB applied these writes. The grant
needs no write: an entry holds the lock once an image shows no conflicting entry ahead of it. An old image is proof as
well, since entries ahead of ours can leave and never arrive. So waiters poll with eventually consistent reads. Only
where an image lacks our own entry, a consistent read comes before any conclusion.

An entry ahead is dead if its heartbeat counter has not changed for its lease and 5 % more on this process's own clock.
The stored end of a lease is a hint for newcomers. An eviction names the counters that were seen, so DynamoDB refuses it
if an entry was renewed meanwhile.

The steps are one generator, which yields its pauses: a thread sleeps them, a task awaits them. Rejected: the same steps
written twice, for threads and for tasks; a write that notes the grant, which each waiter would have to make in turn.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from pynamo_locking._core.dynamodb import LARGEST_ENTRY, LARGEST_ITEM, MOST_WAITERS
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import RATE_MARGIN, Deadline, backoff, next_renewal
from pynamo_locking._core.lock_modes import front
from pynamo_locking._core.lock_queue import (
    FREE,
    HeartbeatObservation,
    LockState,
    QueueEntry,
    QueueProgress,
    dead_among,
    observe,
    poll_delay,
)
from pynamo_locking._core.row_keys import plain
from pynamo_locking._core.values import item_size
from pynamo_locking._io import lock_record, lock_requests, responses, runtime, wakeups
from pynamo_locking._io.client import Refused, Unavailable
from pynamo_locking._io.concurrency import TO_THREADS, Pause, call, cancelled, spend, start, to_the_end
from pynamo_locking._io.lock_requests import NewEntry
from pynamo_locking._io.responses import check_not_foreign, is_about_size
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.write_intents import Resolver, StillPending
from pynamo_locking._locks import local_queue, lock_events, release
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking._locks.local_queue import LocalWaiter
from pynamo_locking._locks.release import evict_dead
from pynamo_locking.exceptions import ItemNotFound, LockTimeout, also

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.lock_queue import WriteIntent
    from pynamo_locking._io.concurrency import Steps
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.options import LockOptions


#: Unanswered requests in a row before a lock that does not wait gives up.
_ATTEMPTS_WITHOUT_WAIT: Final = 4

#: Attempts to enter without a pause between, while others make room or create the document.
_ATTEMPTS_AT_ONCE: Final = 4

#: An image whose text is shorter has room for all entries and renewals: no character takes more than four bytes.
_SURELY_SMALL: Final = (LARGEST_ITEM - (MOST_WAITERS + 1) * LARGEST_ENTRY) // 4

#: How long a caller whose time is over waits at a time for the write that may store its entry.
_CALLED_S: Final = 0.05


class OurEntry(NamedTuple):
    """What an attempt knows of its own entry. It is replaced as a whole, so an interrupt finds the old or the new one.

    Attributes:
        new: what the attempt stores.
        may_be_stored: whether a request that stores it may have been applied, or may still be.
        started: when the write began that stored it or renewed it last, on our monotonic clock: there the lease begins.
        heartbeats: number of the last renewal that was sent.
        stored: the entry as it was last seen in the queue; None before that.
    """

    new: NewEntry
    may_be_stored: bool = False
    started: float = 0.0
    heartbeats: int = 0
    stored: QueueEntry | None = None


class Acquisition:
    """One attempt to acquire a lock."""

    def __init__(self, row: LockRow, options: LockOptions) -> None:
        self._row = row
        self._options = options
        self._patience = Deadline(runtime.current.monotonic() + options.wait)
        self._seen: dict[str, HeartbeatObservation] = {}
        self._state = FREE
        self._failure: Unavailable | None = None
        self._entry = OurEntry(_new_entry(options))
        self._mailbox = wakeups.Mailbox(options.lock_mode, lambda image: lock_record.state_in(image, row.attribute))
        self._caller: LocalWaiter | None = None
        if options.may_share_an_entry:
            self._caller = LocalWaiter(
                row,
                self._entry.new,
                self._mailbox,
                options.settings.max_callers_per_entry,
                release.remove_entry_later,
            )
        self._resolver: Resolver | None = None  # once an intent is found
        self._forks = runtime.forks
        self._pace: QueueProgress | None = None
        self._full_at: int | None = None  # the next ticket when the item was last found to have no room for our entry
        self.held: HeldEntry | None = None  # once it is granted: an interrupt may come before the caller has it

    def steps(self) -> Steps[HeldEntry | None]:
        """Acquire the lock, or leave nothing behind, also if the steps are closed early. Yields the pauses.

        Returns:
            The granted entry, or None if `peek` has stopped the attempt.

        Raises:
            LockTimeout: not our turn within `wait`.
            ItemNotFound: the item does not exist, or was deleted while we waited.
            ConfigurationError: DynamoDB refuses such requests.
        """
        try:
            # The callers of this process take turns; the one before us may have stored our entry with its last write.
            if self._caller is not None and not local_queue.enqueue_locally(self._caller):
                yield from self._wait_in_line(self._caller)
            yield TO_THREADS
            image, attempt = self._take_over_handed_entry(), 0
            self._accept_wakeups()
            wakeups.open_mailbox(self._row, self._mailbox)
            while True:
                # Enter: one write stores our entry and draws its ticket. So entries ahead can leave, but never arrive.
                if not self._entry.may_be_stored:
                    image = yield from self._enter()
                image, entry = yield from self._image_with_our_entry(image)
                if entry is None and self._options.is_stopped_by(image):
                    self._give_up()
                    return None
                if image is None or entry is None or self._forks != runtime.forks:
                    self._start_over()
                    continue
                # Am I granted? Yes once an image, however old, shows nothing in our way: that needs no write.
                ahead = self._state.ahead_of(entry)
                if not ahead and self._state.intent is None:
                    # Verify that the lease is ours to the end of this, then return.
                    held = yield from self._grant(image, entry)
                    if held is None:
                        self._start_over()
                        continue
                    wakeups.close_mailbox(self._row, self._mailbox)
                    self.held = held
                    return held
                # Wait for those ahead, or for the transaction that has the item, and look at the image that follows.
                try:
                    image, attempt = (yield from self._wait_for(entry, ahead)), 0
                except Unavailable as error:
                    yield self._back_off(attempt, error)
                    image, attempt = None, attempt + 1
        except BaseException:
            self._give_up()
            raise

    def cut_short(self) -> None:
        """Let the wait time out now, from another thread."""
        self._patience.at = runtime.current.monotonic()
        self._mailbox.put(None)

    def _accept_wakeups(self) -> None:
        """Let a wake-up find the mailbox, even one that comes before the entry has been polled for."""
        self._mailbox.entry_id = self._entry.new.id if self._options.settings.local_wakeups else ""

    def _wait_in_line(self, caller: LocalWaiter) -> Steps[None]:
        """Wait behind the other callers of this process until it is our turn to enter, or the lock is handed over.

        A task does that in its loop, since it takes no request. So tasks are in line in the order in which they came.
        """
        while not local_queue.is_leading(caller):
            left = self._patience.at - runtime.current.monotonic()
            if left <= 0 and local_queue.leave_local_queue(caller):
                self._state, _ = local_queue.seen_ahead(caller)
                self._time_out("other callers of this process were first")
            lock_events.waiting_in_line(self._row, self._options, caller.new.id, caller)
            longest = local_queue.time_to_look(caller, self._options.settings.max_poll_interval)
            pause_s = min(left, longest) if left > 0 else _CALLED_S
            yield Pause(pause_s, self._mailbox, leave=partial(local_queue.leave_local_queue, caller))

    def _take_over_handed_entry(self) -> Image | None:
        """Take over the entry that the caller before us has stored for us, or watch the one that it has left.

        Returns:
            The image that its write has left, if known.
        """
        if self._caller is None:
            return None
        self._mailbox.clear()  # what has called it to lead tells nothing of its entry
        self._seen, before = self._caller.silent, self._entry
        self._entry = before._replace(may_be_stored=True)  # an interrupt may come once it is accepted
        handed_over = local_queue.accept_handover(self._caller)
        if handed_over is None:
            self._entry = before
            return None
        started, image = handed_over
        self._entry = self._entry._replace(started=started)
        local_queue.note_alive(self._caller, started)
        return image

    # Entering

    def _enter(self) -> Steps[Image]:
        """Return an image with our entry in it, or one that stops the attempt."""
        attempt, is_full, image = 0, False, None
        expects_no_row = self._options.peek is not None
        while True:
            try:
                is_full = is_full and self._is_full()
                if expects_no_row:
                    expects_no_row, image = False, self._create(None)
                if image is None and not is_full:
                    image = yield from self._enter_once()
            except Unavailable as error:
                yield self._back_off(attempt, error)
            else:
                if image is not None and (self._options.is_stopped_by(image) or self._has_room(image)):
                    return image
                is_full, image = True, None
                yield self._back_off(attempt)
            attempt += 1

    def _is_full(self) -> bool:
        """Look whether the queue is still full: to be refused again would cost as much as a write of the whole item."""
        image = lock_requests.read(self._row, consistent=False)
        if self._options.is_stopped_by(image):
            return False
        state = self._row.state(image)
        has_room = len(state.entries) < self._options.capacity and not _lacking(self._row, image, self._entry.new.id)
        if has_room or state.find(self._entry.new.id) is not None:
            return False
        return not self._make_room(state)

    def _has_room(self, image: Image) -> bool:
        """Tell whether an item with our entry has room for the renewals of all entries. If not, leave the queue.

        Raises:
            ConfigurationError: it has no room, though nothing but our entry takes any.
        """
        lacking = _lacking(self._row, image, self._entry.new.id)
        if not lacking:
            return True
        state = self._row.state(image)
        self._leave_for_now()
        self._full_at = state.next_ticket
        if len(state.entries) == 1 and state.intent is None:
            raise responses.no_room(
                f"cannot lock {self._row.label}", f"an entry would need {lacking} bytes more as it grows"
            )
        return False

    def _enter_once(self) -> Steps[Image | None]:
        """Return an image with our entry, or one that stops the attempt.

        None: the queue is full, or changes faster than we can join it.
        """
        for _ in range(_ATTEMPTS_AT_ONCE):
            image = self._attempt(lambda new: lock_requests.enter(self._row, new, self._options.capacity))
            if self._options.is_stopped_by(image):
                return image
            state = self._row.state(image)
            if state.find(self._entry.new.id) is not None:
                if state.intent is None or not _lacking(self._row, image, self._entry.new.id):
                    return image
                self._leave_for_now()
                yield from self._resolve(state.intent)  # without the intent there may be room
            elif state.exists and (state.entries or state.intent is None):
                if not self._make_room(state):
                    return None
            elif state.intent is not None:  # perhaps in a placeholder, which has no queue
                yield from self._resolve(state.intent)
            elif (image := self._create(image)) is not None:
                return image
        return None

    def _create(self, found: Image | None) -> Image | None:
        """Create the lock document with our entry in it, in an item that was found, or in a new row.

        Returns:
            The image, or one that stops the attempt; None if another newcomer has created the document: join it.
        """
        if found is not None:
            check_not_foreign(self._row, found)
        elif not self._row.may_create:
            raise _no_such_item(self._row, self._options)
        image = self._attempt(partial(lock_requests.enter_first, self._row))
        if image is None:
            raise _no_such_item(self._row, self._options)
        if self._options.is_stopped_by(image):
            return image
        state = self._row.state(image)
        if state.find(self._entry.new.id) is not None:
            return image
        if len(state.entries) >= self._options.capacity:
            self._make_room(state)
        return None

    def _attempt(self, request: Callable[[NewEntry], Image]) -> Image | None:
        """Send a request to enter; return the image it made, or the image that came with its refusal."""
        new = self._entry.new.standing_for(local_queue.tickets_to_reserve(self._caller))
        local_queue.note_alive(self._caller, runtime.current.monotonic())
        before = self._entry
        # Noted before the request: an interrupt may come while it is under way. The lease counts from before the first
        # copy that may have been applied.
        started = before.started if before.may_be_stored else runtime.current.monotonic()
        self._entry = before._replace(may_be_stored=True, started=started)
        try:
            return request(new)
        except Refused as refused:
            if self._row.state(refused.image).find(new.id) is None:  # else a second copy was refused
                self._entry = before
            return refused.image
        except Unavailable as error:
            if not responses.is_ambiguous(error.cause):
                self._entry = before
            raise
        except ConfigurationError as error:
            if not is_about_size(error.cause):
                raise
            self._entry = before
            return self._check_room(error)

    def _check_room(self, error: ConfigurationError) -> Image | None:
        """The item has no room for our entry: return it as it is.

        Raises the error if neither an entry nor an intent of a transaction takes up room, nor one has come and gone.
        """
        image = lock_requests.read(self._row, consistent=True)
        state, before = self._row.state(image), self._full_at
        self._full_at = state.next_ticket
        if not state.entries and state.intent is None and before == state.next_ticket:
            raise error
        return image

    def _make_room(self, state: LockState) -> bool:
        """The queue or the item is full: evict the dead, and tell whether there were any, or no entry at all."""
        self._note_state(state)
        if not state.entries:
            return True
        dead = self._watch(state.entries)
        if dead and evict_dead(self._row, dead, state) is not None:
            return True
        self._options.must_fit(state.entries[0], self._row.label)
        if self._options.wait == 0:
            self._time_out()
        lock_events.waiting(self._row, self._options, self._entry.new.id, None, state, len(state.entries))
        return False

    # Waiting

    def _image_with_our_entry(self, image: Image | None) -> Steps[tuple[Image | None, QueueEntry | None]]:
        """Return an image that has our entry, and the entry, or one that stops the attempt.

        An entry that is None is gone, as a consistent read has proved.
        """
        for consistent in (False, True):
            if consistent:
                image = yield from self._for_certain(lambda: lock_requests.read(self._row, consistent=True))
            if self._options.is_stopped_by(image):
                return image, None
            self._note_state(self._row.state(image))
            # A late copy of our enter request may have revived the id under another ticket.
            stored = self._entry.stored
            found = self._state.find(self._entry.new.id, None if stored is None else stored.ticket)
            if found is not None:
                self._entry, self._mailbox.ticket = self._entry._replace(stored=found), found.ticket
                return image, found
        if image is None and not self._row.may_create:
            raise _no_such_item(self._row, self._options)
        return image, None

    def _wait_for(self, entry: QueueEntry, ahead: tuple[QueueEntry, ...]) -> Steps[Image | None]:
        """Return the next image; it may show that the entries ahead, or the transaction that has the item, are gone."""
        dead, intent = self._watch(ahead), self._state.intent
        lock_events.waiting(self._row, self._options, entry.id, entry, self._state, len(ahead))
        if not ahead and intent is not None:  # the transaction came before us
            yield from self._resolve(intent)
            if runtime.current.monotonic() >= next_renewal(self._entry.started, self._options.lease):
                return self._renew(entry)
            return lock_requests.read(self._row, consistent=True)
        self._options.must_fit(self._state.entries[0], self._row.label)
        image = evict_dead(self._row, dead, self._state) if dead else None
        if image is None:
            image = yield from self._next_image(entry, ahead)
        return image

    def _resolve(self, intent: WriteIntent) -> Steps[None]:
        try:
            resolver = self._resolver = self._resolver or Resolver(deadline=self._patience)
            wait = resolver.begin(resolver.record(self._row, intent), [(self._row, intent)])
        except StillPending as pending:
            self._time_out(str(pending))
        if wait is not None:
            yield Pause(wait)

    def _note_state(self, state: LockState) -> None:
        self._state, self._failure = state, None
        if self._caller is not None:
            self._caller.state = state

    def _for_certain(self, request: Callable[[], Image | None]) -> Steps[Image | None]:
        attempt = 0
        while True:
            try:
                return request()
            except Unavailable as error:
                yield self._back_off(attempt, error)
                attempt += 1

    def _next_image(self, entry: QueueEntry, ahead: tuple[QueueEntry, ...]) -> Steps[Image | None]:
        """Sleep until a release in this process wakes us, or the next poll is due; renewing our entry is a poll."""
        now = runtime.current.monotonic()
        if now >= self._patience.at:
            self._time_out()
        renewal = next_renewal(self._entry.started, self._options.lease)
        until = min(now + self._next_delay(ahead, now), self._patience.at, renewal)
        image = yield Pause(until - runtime.current.monotonic(), self._mailbox)
        if image is not None and self._row.state(image).next_ticket <= entry.ticket:
            # The image is older than our entry: it was left while our request to enter was under way.
            image = yield Pause(until - runtime.current.monotonic(), self._mailbox)
        now = runtime.current.monotonic()
        if now >= renewal:
            return self._renew(entry)
        if image is not None:
            return image
        # An old image that shows us first is proof. After a wake-up it would be too old.
        return lock_requests.read(self._row, consistent=now < until)

    def _next_delay(self, ahead: tuple[QueueEntry, ...], now: float) -> float:
        """Return the longest time until our next poll, after a poll that showed these entries ahead of us."""
        position = max(1, len(ahead) - self._options.lock_mode.permits + 1)
        self._pace = self._pace.seen(position, now) if self._pace else QueueProgress(position, now)
        settings, is_woken, ours = self._options.settings, False, self._entry.new.id
        if settings.local_wakeups:
            wakeups.listen(ours)
            # A lock in another row may be released by a transaction, which does not show who is next.
            is_woken = not self._row.may_create and wakeups.are_listening([ours, *(each.id for each in ahead)])
        return poll_delay(self._pace, now, settings, runtime.current.jitter(), is_woken=is_woken)

    def _renew(self, entry: QueueEntry) -> Image | None:
        started, heartbeats = runtime.current.monotonic(), self._entry.heartbeats + 1
        self._entry = self._entry._replace(heartbeats=heartbeats)
        try:
            image = lock_requests.renew(self._row, entry, heartbeats, want_image=True)
        except Refused as refused:
            if self._row.state(refused.image).find(entry.id, entry.ticket) is None:
                return lock_requests.read(self._row, consistent=True)
            return refused.image
        self._entry = self._entry._replace(started=started)
        local_queue.note_alive(self._caller, started, heartbeats)
        return image

    def _watch(self, entries: tuple[QueueEntry, ...]) -> tuple[QueueEntry, ...]:
        """Note what was just read, and return the entries that are dead."""
        now = runtime.current.monotonic()
        self._seen = observe(self._seen, entries, now)
        now_ms, settings = runtime.current.time_ms(), self._options.settings
        dead = dead_among(entries, self._seen, now, now_ms, settings.max_clock_skew, settings.max_lease)
        if (tell := self._options.on_dead_holder) is not None:
            for entry in {*dead} & {*self._state.holders}:
                tell(entry)
        return dead

    def _grant(self, image: Image, entry: QueueEntry) -> Steps[HeldEntry | None]:
        """It is our turn. Renew the lease if it has ended, or if no heartbeat is sure to renew it later.

        Returns:
            What we hold; None if the entry is gone, or is not of this process alone.
        """
        used = runtime.current.monotonic() - self._entry.started
        if used >= self._options.lease * (1 if self._options.heartbeat is True else RATE_MARGIN):
            renewal = yield from self._for_certain(partial(self._renew, entry))
            renewed, found = yield from self._image_with_our_entry(renewal)
            if renewed is None or found is None:
                return None
            image, entry = renewed, found
        entry = replace(entry, granted_ms=runtime.current.time_ms())
        held = HeldEntry(self._row, entry, self._entry.started, self._entry.heartbeats, self._state.since, image)
        behind = [other for other in self._state.entries if other.id != entry.id]
        if behind:
            held.behind = tuple([behind[i].id for i in front([other.lock_mode for other in behind])])
        held.caller = self._caller
        held.clock.ends_at = runtime.current.monotonic() + self._options.max_hold
        if self._forks != runtime.forks:  # a restored process: its copies wait with the same entry
            held.lose("restored")
            return None
        return held

    # Giving up

    def _start_over(self) -> None:
        """Our entry is gone, or is not of this process alone: enter again, as another one."""
        logger.warning("our entry in %s was removed while we waited; entering again", self._row.label)
        self._leave_for_now()  # a late copy of the enter request may have brought it back
        if self._options.wait and runtime.current.monotonic() >= self._patience.at:
            self._time_out("our entry was removed")

    def _back_off(self, attempt: int, error: Unavailable | None = None) -> Pause:
        """Return the pause before the next attempt, after one without an answer if there is an error."""
        if error is not None:
            logger.warning("request for %s not answered: %s", self._row.label, error)
            self._failure = error
            if self._options.wait == 0 and attempt + 1 >= _ATTEMPTS_WITHOUT_WAIT:
                self._time_out()
        left = self._patience.at - runtime.current.monotonic() if self._options.wait else math.inf
        if left <= 0:
            self._time_out()
        return Pause(min(left, backoff(attempt, runtime.current.jitter())))

    def _time_out(self, reason: str = "") -> NoReturn:
        stored = self._entry.stored
        ahead = self._state.ahead_of(stored) if stored else self._state.entries
        if ahead:
            first = next((holder for holder in self._state.holders if holder in ahead), ahead[0])
            held = (
                f"{len(ahead)} ahead; held by {plain(first.owner)} (ticket {first.ticket}) for {first.held_for:.0f} s"
            )
            reason = f"{reason}; {held}" if reason else held
            if self._failure is not None:
                reason += f" when last seen, and DynamoDB has given no answer since: {self._failure}"
        reason = reason or f"no answer from DynamoDB: {self._failure}"
        if stored is None and self._full_at is not None:
            reason += "; the item is so close to DynamoDB's limit of 400 KB that no further entry of the queue fits"
        raise LockTimeout(
            f"did not get the lock {self._row.label} within {round(self._options.wait, 3):g} s: {reason}. "
            f"Nothing is held; trying again is safe.",
            queue=self._state if self._state.exists else None,
            cause=None if self._failure is None else self._failure.cause,
        ) from self._failure

    def _leave(self) -> None:
        """Remove our entry, if it is there or may still arrive."""
        if self._entry.may_be_stored and self._forks == runtime.forks:  # a forked child has no place in the queue
            release.remove_entry(self._row, self._entry.new.id)

    def _leave_for_now(self) -> None:
        """Leave, to enter with another id."""
        self._leave()
        self._entry, self._forks = OurEntry(_new_entry(self._options)), runtime.forks
        self._pace = self._mailbox.ticket = None
        self._accept_wakeups()
        if self._caller is not None:
            self._caller.new = self._entry.new

    def _give_up(self) -> None:
        """Let the next caller of this process have our entry, or remove it, if it is there or may still arrive."""
        try:
            wakeups.close_mailbox(self._row, self._mailbox)  # or it would get the images for remaining waiters
        finally:
            if self._forks == runtime.forks:
                try:
                    if self._entry.may_be_stored or local_queue.was_handed_over(self._caller):
                        release.remove_entry(self._row, self._entry.new.id, self._caller, self._entry.stored)
                finally:
                    local_queue.abandon(self._caller)


def _new_entry(options: LockOptions) -> NewEntry:
    token_id = "" if options.token is None else options.token.id
    return NewEntry(runtime.current.entry_id(), options.owner, options.lease, options.lock_mode, token_id=token_id)


def _lacking(row: LockRow, image: Image | None, entry_id: str) -> int:
    """Return how many bytes an item lacks for all that the entries in it, and our entry, grow by; 0 if it has room.

    An entry of ours that is not in it counts as the largest one.
    """
    if len(repr(image)) < _SURELY_SMALL:
        return 0
    state = row.state(image)
    ours = 0 if state.find(entry_id) else LARGEST_ENTRY
    return max(0, item_size(image or {}) + ours + sum(map(lock_record.growth, state.entries)) - LARGEST_ITEM)


def _no_such_item(row: LockRow, options: LockOptions) -> Exception:
    return also(ItemNotFound, options.not_found)(
        f"cannot lock {row.label}: there is no such item. Save it first, or lock a name of your own with a NamedLock."
    )


#: The class of what `aclose` of an async generator returns; Python has no public name for it.
_CLOSING: Final = "async_generator_athrow"

#: Attempts that have not ended. Kept here, or the garbage collector would close them at any moment.
_underway: set[TaskAcquisition] = set()


class TaskAcquisition:
    """An attempt to acquire a lock, made step by step in threads, one at a time.

    Args:
        steps: the attempt.
        hold: called with the entry once it is granted, and returns it; releases it if it raises.
    """

    def __init__(self, steps: Steps[HeldEntry | None], hold: Callable[[HeldEntry], HeldEntry]) -> None:
        self._steps = steps
        self._hold = hold
        self._stepping = runtime.current.exclusive()
        self._forks = runtime.forks
        self.held: HeldEntry | None = None
        self.is_over = False
        _underway.add(self)

    def advance(self, image: Image | None) -> Pause | None:
        """Go on to the next pause; None: the attempt has ended, with the lock or without it."""
        with self._stepping:
            if self.is_over:
                return None
            try:
                return self._steps.send(image)
            except StopIteration as done:
                _underway.discard(self)
                self.held = None if done.value is None else self._hold(done.value)
                return None
            except BaseException:
                # An interrupt between two steps leaves them open: `abandon` closes them.
                self.is_over = inspect.getgeneratorstate(self._steps) == inspect.GEN_CLOSED
                if self.is_over:
                    _underway.discard(self)
                raise

    def abandon(self) -> None:
        """Leave nothing behind, after the step that is under way."""
        with self._stepping:
            self.is_over = True
            self._steps.close()
            _underway.discard(self)
            held, self.held = self.held, None
            if held is None:
                return
            try:
                held.drop()
            except Exception as error:  # noqa: BLE001 - the cancellation is the error to raise
                logger.warning("%s (after its task was cancelled)", error)

    def leave_behind(self) -> None:
        """Abandon it in a thread, because no task can wait for it; in a forked child it is the parent's."""
        if self._forks == runtime.forks:
            release_later(self.abandon, self.held)


def release_later(work: Callable[[], object], held: HeldEntry | None) -> None:
    """Release a lock in a thread, for a task that cannot wait; without a thread its lease ends by itself."""
    try:
        start(work)
    except RuntimeError:
        if held is not None:
            held.orphaned()  # or the heartbeat would renew it for ever


def current_task() -> Any:
    """Return the task that calls this, or None."""
    place = runtime.current.thread_or_task()[-1]
    return place() if isinstance(place, weakref.ref) else None


def can_wait(held: HeldEntry) -> bool:
    """Tell whether the task that is being closed can wait while it releases a lock.

    An async generator can, if it is closed by the task that acquired the lock, or by a task that the loop starts only
    for that. If the garbage collector closes it, it cannot: its loop is closed, and a task that runs is another one.
    """
    task = current_task()
    is_its = held.thread_or_task == runtime.current.thread_or_task()
    return task is not None and (is_its or type(task.get_coro()).__name__ == _CLOSING)


async def _step(taking: TaskAcquisition, pause: Pause) -> Pause | None:
    """Let a pause pass, and go on to the next: in a thread, but for a caller in line, which makes no request."""
    if pause.leave is None:
        image = None if pause is TO_THREADS else await spend(pause)
        return await call(partial(taking.advance, image), is_urgent=False)
    try:
        image = await spend(pause)
    except cancelled():
        if pause.leave():
            taking.abandon()
        raise
    return taking.advance(image)


async def acquire_in_task(steps: Steps[HeldEntry | None], hold: Callable[[HeldEntry], HeldEntry]) -> HeldEntry | None:
    """Acquire a lock, or leave nothing behind, even if the task is cancelled or its loop is closed.

    Returns:
        The entry; None if the attempt has stopped without it: see `Acquisition.steps`.
    """
    taking = TaskAcquisition(steps, hold)
    try:
        pause = taking.advance(None)  # makes no request
        while pause is not None:
            pause = await _step(taking, pause)
    except BaseException as error:
        try:
            if isinstance(error, GeneratorExit):
                taking.leave_behind()
            elif not taking.is_over:
                with contextlib.suppress(cancelled()):  # cancelled once more
                    await to_the_end(taking.abandon)
        except BaseException:  # another interrupt, perhaps before a thread has begun
            taking.leave_behind()
            raise
        raise
    return taking.held
