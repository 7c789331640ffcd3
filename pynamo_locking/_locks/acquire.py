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
from typing import TYPE_CHECKING, Any, Final, NoReturn

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
from pynamo_locking._io.concurrency import TO_THREADS, Pause, call, cancelled, run_steps, spend, start, to_the_end
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


class Acquisition:
    """One attempt to acquire a lock."""

    def __init__(self, row: LockRow, options: LockOptions) -> None:
        self._row = row
        self._options = options
        self._deadline = runtime.current.monotonic() + options.wait
        self._seen: dict[str, HeartbeatObservation] = {}
        self._state = FREE
        self._failure: Unavailable | None = None
        self._new = self._name_entry()
        self._mailbox = wakeups.Mailbox(options.lock_mode, lambda image: lock_record.state_in(image, row.attribute))
        self._caller: LocalWaiter | None = None
        if options.may_share_an_entry:
            self._caller = LocalWaiter(
                row, self._new, self._mailbox, options.settings.max_callers_per_entry, release.remove_entry_later
            )
        self._patience = Deadline(self._deadline)
        self._resolver: Resolver | None = None
        self._entry: QueueEntry | None = None
        self._started, self._heartbeats = 0.0, 0
        self._may_be_in, self._forks = False, runtime.forks
        self._handed_over: Image | None = None
        self._pace: QueueProgress | None = None
        self._expects_no_row = options.peek is not None
        self._full_at: int | None = None  # the next ticket when the item was last found to have no room for our entry
        self.held: HeldEntry | None = None  # once it is granted: an interrupt may come before the caller has it

    def run(self) -> HeldEntry:
        """Acquire the lock, or leave nothing behind.

        Raises:
            LockTimeout: not our turn within `wait`.
            ItemNotFound: the item does not exist, or was deleted while we waited.
            ConfigurationError: DynamoDB refuses such requests.
        """
        return run_steps(self.steps())

    def steps(self) -> Steps[HeldEntry]:
        """As `run`, but yield the pauses. Steps that are closed early leave nothing behind either."""
        try:
            if self._caller is not None and not local_queue.enqueue_locally(self._caller):
                yield from self._wait_in_line(self._caller)
            yield TO_THREADS
            self._come_for_entry()
            self._be_known()
            wakeups.open_mailbox(self._row, self._mailbox)
            while True:
                image = self._handed_over if self._may_be_in else (yield from self._enter())
                held = yield from self._wait_for_turn(image)
                is_copied = self._forks != runtime.forks  # a restored process: its copies wait with the same entry
                if held is not None and is_copied:
                    held.lose("restored")
                elif held is not None:
                    wakeups.close_mailbox(self._row, self._mailbox)
                    self.held = held
                    return held
                logger.warning("our entry in %s was removed while we waited; entering again", self._row.label)
                self._leave_for_now()  # a late copy of the enter request may have brought it back
                if self._options.wait and runtime.current.monotonic() >= self._deadline:
                    self._time_out("our entry was removed")
        except BaseException:
            try:
                wakeups.close_mailbox(self._row, self._mailbox)  # or it would get the images for remaining waiters
            finally:
                self._give_up()
            raise

    def cut_short(self) -> None:
        """Let the wait time out now, from another thread."""
        self._deadline = self._patience.at = runtime.current.monotonic()
        self._mailbox.put(None)

    def _be_known(self) -> None:
        """Let a wake-up find the mailbox, even one that comes before the entry has been polled for."""
        self._mailbox.entry_id = self._new.id if self._options.settings.local_wakeups else ""

    def _name_entry(self) -> NewEntry:
        return NewEntry(runtime.current.entry_id(), self._options.owner, self._options.lease, self._options.lock_mode)

    def _wait_in_line(self, caller: LocalWaiter) -> Steps[None]:
        """Wait behind the other callers of this process until it is our turn to enter, or the lock is handed over.

        A task does that in its loop, since it takes no request. So tasks are in line in the order in which they came.
        """
        while not local_queue.is_leading(caller):
            left = self._deadline - runtime.current.monotonic()
            if left <= 0 and local_queue.leave_local_queue(caller):
                self._state, _ = local_queue.seen_ahead(caller)
                self._time_out("other callers of this process were first")
            lock_events.waiting_in_line(self._row, self._options, self._new.id, caller)
            longest = local_queue.time_to_look(caller, self._options.settings.max_poll_interval)
            pause_s = min(left, longest) if left > 0 else _CALLED_S
            yield Pause(pause_s, self._mailbox, leave=partial(local_queue.leave_local_queue, caller))

    def _come_for_entry(self) -> None:
        """Take over the entry that the caller before us has stored for us, if it has, or watch the one it has left."""
        if self._caller is None:
            return
        self._mailbox.clear()  # what has called it to lead tells nothing of its entry
        self._seen = self._caller.silent
        if (handed_over := local_queue.accept_handover(self._caller)) is not None:
            self._may_be_in = True
            self._started, self._handed_over = handed_over
            local_queue.note_alive(self._caller, self._started)

    # Entering

    def _enter(self) -> Steps[Image]:
        self._entry, self._started, self._heartbeats, self._may_be_in = None, 0.0, 0, False
        self._pace = None
        attempt, is_full = 0, False
        while True:
            try:
                is_full = is_full and self._is_full()
                image = None if is_full else self._enter_absent() or (yield from self._enter_once())
            except Unavailable as error:
                yield from self._not_answered(error, attempt)
            else:
                if image is not None and self._has_room(image):
                    return image
                is_full = True
                yield self._back_off(attempt)
            attempt += 1

    def _is_full(self) -> bool:
        """Look whether the queue is still full: to be refused again would cost as much as a write of the whole item."""
        image = lock_requests.read(self._row, consistent=False)
        state = self._state_in(image)
        has_room = len(state.entries) < self._options.capacity and not self._lacks(image)
        if has_room or state.find(self._new.id) is not None:
            return False
        return not self._make_room(state)

    def _lacks(self, image: Image | None) -> int:
        """Return how many bytes an item lacks for all that the entries in it, and our entry, grow by; 0 if it has room.

        An entry of ours that is not in it counts as the largest one.
        """
        if len(repr(image)) < _SURELY_SMALL:
            return 0
        state = self._state_in(image)
        ours = 0 if state.find(self._new.id) else LARGEST_ENTRY
        return max(0, item_size(image or {}) + ours + sum(map(lock_record.growth, state.entries)) - LARGEST_ITEM)

    def _has_room(self, image: Image) -> bool:
        """Tell whether an item with our entry has room for the renewals of all entries. If not, leave the queue.

        Raises:
            ConfigurationError: it has no room, though nothing but our entry takes any.
        """
        lacks = self._lacks(image)
        if not lacks:
            return True
        state = self._state_in(image)
        self._leave_for_now()
        self._full_at = state.next_ticket
        if len(state.entries) == 1 and state.intent is None:
            raise responses.no_room(self._row, f"an entry would need {lacks} bytes more as it grows")
        return False

    def _enter_once(self) -> Steps[Image | None]:
        """Return the image with us in it, or None if the queue is full, or changes faster than we can join it."""
        for _ in range(_ATTEMPTS_AT_ONCE):
            new = self._new.standing_for(local_queue.tickets_to_reserve(self._caller))
            image = self._attempt(lambda: lock_requests.enter(self._row, new, self._options.capacity))  # noqa: B023
            state = self._state_in(image)
            if state.find(self._new.id) is not None:
                if state.intent is None or not self._lacks(image):
                    return image
                self._leave_for_now()
                yield from self._resolve(state.intent)  # without the intent there may be room
                continue
            if state.exists and (state.entries or state.intent is None):
                if self._make_room(state):
                    continue
                return None
            if image is None and not self._row.may_create:
                self._no_such_item()
            if state.intent is not None:  # perhaps in a placeholder, which has no queue
                yield from self._resolve(state.intent)
                continue
            if image is not None:
                check_not_foreign(self._row, image)
            if (image := self._enter_first(new)) is not None:
                return image
            # Another newcomer has created the document: join it.
        return None

    def _enter_first(self, new: NewEntry) -> Image | None:
        """Create the document with us in it; return the image, or None if another one has created it."""
        image = self._attempt(lambda: lock_requests.enter_first(self._row, new))
        if image is None:
            self._no_such_item()
        return image if self._row.state(image).find(self._new.id) is not None else None

    def _enter_absent(self) -> Image | None:
        """Create the row with us in it, if none is expected; None if there is one."""
        if not self._expects_no_row:
            return None
        self._expects_no_row = False
        new = self._new.standing_for(local_queue.tickets_to_reserve(self._caller))
        image = self._attempt(lambda: lock_requests.enter_first(self._row, new))
        state = self._state_in(image)
        if len(state.entries) >= self._options.capacity and state.find(self._new.id) is None:
            self._make_room(state)
        return None if state.find(self._new.id) is None else image

    def _attempt(self, request: Callable[[], Image]) -> Image | None:
        """Send a request to enter; return the image it made, or the image that came with its refusal.

        From before the request until a refusal our entry may be there, also for an interrupt that arrives meanwhile. A
        refusal that shows us in the queue was meant for a second copy. A refusal for now leaves no doubt.
        """
        was_in_doubt, self._may_be_in = self._may_be_in, True
        local_queue.note_alive(self._caller, runtime.current.monotonic())
        if not was_in_doubt:  # the lease counts from before the first copy that may have been applied
            self._started = runtime.current.monotonic()
        try:
            return request()
        except Refused as refused:
            if self._row.state(refused.image).find(self._new.id) is None:
                self._may_be_in = was_in_doubt
            return refused.image
        except Unavailable as error:
            if not responses.is_ambiguous(error.cause):
                self._may_be_in = was_in_doubt
            raise
        except ConfigurationError as error:
            if not is_about_size(error.cause):
                raise
            self._may_be_in = was_in_doubt
            return self._check_room(error)

    def _check_room(self, error: ConfigurationError) -> Image | None:
        """The item has no room for our entry: return it as it is.

        Raises the error if neither an entry nor an intent of a transaction takes up room, nor one has come and gone.
        """
        image = lock_requests.read(self._row, consistent=True)
        state, before = self._state_in(image), self._full_at
        self._full_at = state.next_ticket
        if not state.entries and state.intent is None and before == state.next_ticket:
            raise error
        return image

    def _make_room(self, state: LockState) -> bool:
        """The queue or the item is full: evict the dead, and tell whether there were any, or no entry at all."""
        self._see(state)
        if not state.entries:
            return True
        dead = self._watch(state.entries)
        if dead and evict_dead(self._row, dead, state) is not None:
            return True
        self._options.must_fit(state.entries[0], self._row.label)
        if self._options.wait == 0:
            self._time_out()
        lock_events.waiting(self._row, self._options, self._new.id, None, state, len(state.entries))
        return False

    # Waiting

    def _wait_for_turn(self, image: Image | None) -> Steps[HeldEntry | None]:
        """Return our granted entry, or None if it vanished from the queue, or is not of this process alone."""
        attempt = 0
        while True:
            image = yield from self._with_us(image)
            if image is None or self._forks != runtime.forks:
                return None
            assert self._entry is not None  # noqa: S101 - set by _with_us
            ahead = self._state.ahead_of(self._entry)
            if not ahead and self._state.intent is None:
                return (yield from self._grant(image))
            dead = self._watch(ahead)
            lock_events.waiting(self._row, self._options, self._new.id, self._entry, self._state, len(ahead))
            try:
                if not ahead:
                    image = yield from self._wait_for_transaction()
                    continue
                self._options.must_fit(self._state.entries[0], self._row.label)
                image = evict_dead(self._row, dead, self._state) if dead else None
                if image is None:
                    image = yield from self._next_image(ahead)
                attempt = 0
            except Unavailable as error:
                yield from self._not_answered(error, attempt)
                attempt += 1

    def _wait_for_transaction(self) -> Steps[Image | None]:
        """We are first, and a transaction that came before us has the item."""
        assert self._state.intent is not None  # noqa: S101 - that is why
        yield from self._resolve(self._state.intent)
        if runtime.current.monotonic() >= next_renewal(self._started, self._options.lease):
            return self._renew()
        return lock_requests.read(self._row, consistent=True)

    def _resolve(self, intent: WriteIntent) -> Steps[None]:
        try:
            resolver = self._resolver = self._resolver or Resolver(deadline=self._patience)
            wait = resolver.begin(resolver.record(self._row, intent), [(self._row, intent)])
        except StillPending as pending:
            self._time_out(str(pending))
        if wait is not None:
            yield Pause(wait)

    def _with_us(self, image: Image | None) -> Steps[Image | None]:
        """Return an image that has our entry, or None if a consistent read proves that it is gone."""
        for consistent in (False, True):
            if consistent:
                image = yield from self._for_certain(lambda: lock_requests.read(self._row, consistent=True))
            self._see(self._state_in(image))
            # A late copy of our enter request may have revived the id under another ticket.
            found = self._state.find(self._new.id, None if self._entry is None else self._entry.ticket)
            if found is not None:
                self._entry, self._mailbox.ticket = found, found.ticket
                return image
        if image is None and not self._row.may_create:
            self._no_such_item()
        return None

    def _see(self, state: LockState) -> None:
        self._state, self._failure = state, None
        if self._caller is not None:
            self._caller.state = state

    def _state_in(self, image: Image | None) -> LockState:
        if image is not None and self._options.peek is not None:
            self._options.peek(image)
        return self._row.state(image)

    def _for_certain(self, request: Callable[[], Image | None]) -> Steps[Image | None]:
        attempt = 0
        while True:
            try:
                return request()
            except Unavailable as error:
                yield from self._not_answered(error, attempt)
                attempt += 1

    def _next_image(self, ahead: tuple[QueueEntry, ...]) -> Steps[Image | None]:
        """Sleep until the next poll is due, then poll; renewing our entry counts as a poll."""
        now = runtime.current.monotonic()
        if now >= self._deadline:
            self._time_out()
        renewal = next_renewal(self._started, self._options.lease)
        until = min(now + self._next_delay(ahead, now), self._deadline, renewal)
        told = yield from self._hear_until(until)
        now = runtime.current.monotonic()
        if now >= renewal:
            return self._renew()
        if told is not None:
            return told
        # An entry ahead of us can only leave, never arrive: an old image that shows us first is proof. After a
        # wake-up it would be too old.
        return lock_requests.read(self._row, consistent=now < until)

    def _next_delay(self, ahead: tuple[QueueEntry, ...], now: float) -> float:
        """Return the longest time until our next poll, after a poll that showed these entries ahead of us."""
        position = max(1, len(ahead) - self._options.lock_mode.permits + 1)
        self._pace = self._pace.seen(position, now) if self._pace else QueueProgress(position, now)
        settings, is_woken = self._options.settings, False
        if settings.local_wakeups:
            wakeups.listen(self._new.id)
            # A lock in another row may be released by a transaction, which does not show who is next.
            is_woken = not self._row.may_create and wakeups.are_listening([self._new.id, *(each.id for each in ahead)])
        return poll_delay(self._pace, now, settings, runtime.current.jitter(), is_woken=is_woken)

    def _hear_until(self, until: float) -> Steps[Image | None]:
        """Sleep until a release in this process wakes us; return the image it left."""
        assert self._entry is not None  # noqa: S101 - we are in the queue
        told = yield Pause(until - runtime.current.monotonic(), self._mailbox)
        if told is not None and self._row.state(told).next_ticket <= self._entry.ticket:
            # The image is older than our entry: it was left while our request to enter was under way.
            told = yield Pause(until - runtime.current.monotonic(), self._mailbox)
        return told

    def _renew(self) -> Image | None:
        assert self._entry is not None  # noqa: S101 - we are in the queue
        started = runtime.current.monotonic()
        self._heartbeats += 1
        try:
            image = lock_requests.renew(self._row, self._entry, self._heartbeats, want_image=True)
        except Refused as refused:
            if self._row.state(refused.image).find(self._new.id, self._entry.ticket) is None:
                return lock_requests.read(self._row, consistent=True)
            return refused.image
        self._started = started
        local_queue.note_alive(self._caller, started, self._heartbeats)
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

    def _grant(self, image: Image) -> Steps[HeldEntry | None]:
        """It is our turn. Renew the lease if it has ended, or if no heartbeat is sure to renew it later."""
        used = runtime.current.monotonic() - self._started
        if used >= self._options.lease * (1 if self._options.heartbeat is True else RATE_MARGIN):
            renewed = yield from self._with_us((yield from self._for_certain(self._renew)))
            if renewed is None:
                return None
            image = renewed
        assert self._entry is not None  # noqa: S101 - set by _with_us
        entry = replace(self._entry, granted_ms=runtime.current.time_ms())
        held = HeldEntry(self._row, entry, self._started, self._heartbeats, self._state.since, image)
        behind = [entry for entry in self._state.entries if entry.id != self._entry.id]
        held.behind = tuple(behind[i].id for i in front(entry.lock_mode for entry in behind))
        held.caller = self._caller
        held.ends_at = runtime.current.monotonic() + self._options.max_hold
        return held

    # Giving up

    def _not_answered(self, error: Unavailable, attempt: int) -> Steps[None]:
        logger.warning("request for %s not answered: %s", self._row.label, error)
        self._failure = error
        if self._options.wait == 0 and attempt + 1 >= _ATTEMPTS_WITHOUT_WAIT:
            self._time_out()
        yield self._back_off(attempt)

    def _back_off(self, attempt: int) -> Pause:
        left = self._deadline - runtime.current.monotonic() if self._options.wait else math.inf
        if left <= 0:
            self._time_out()
        return Pause(min(left, backoff(attempt, runtime.current.jitter())))

    def _time_out(self, reason: str = "") -> NoReturn:
        ahead = self._state.ahead_of(self._entry) if self._entry else self._state.entries
        if ahead:
            first = next((holder for holder in self._state.holders if holder in ahead), ahead[0])
            held = (
                f"{len(ahead)} ahead; held by {plain(first.owner)} (ticket {first.ticket}) for {first.held_for:.0f} s"
            )
            reason = f"{reason}; {held}" if reason else held
            if self._failure is not None:
                reason += f" when last seen, and DynamoDB has given no answer since: {self._failure}"
        reason = reason or f"no answer from DynamoDB: {self._failure}"
        if self._entry is None and self._full_at is not None:
            reason += "; the item is so close to DynamoDB's limit of 400 KB that no further entry of the queue fits"
        asked = self._options.wait if self._options.asked is None else self._options.asked
        raise LockTimeout(
            f"did not get the lock {self._row.label} within {round(asked, 3):g} s: {reason}. "
            f"Nothing is held; trying again is safe.",
            queue=self._state if self._state.exists else None,
            cause=None if self._failure is None else self._failure.cause,
        ) from self._failure

    def _no_such_item(self) -> NoReturn:
        raise also(ItemNotFound, self._options.not_found)(
            f"cannot lock {self._row.label}: there is no such item. Save it first, "
            f"or lock a name of your own with a NamedLock."
        )

    def _leave(self) -> None:
        """Remove our entry, if it is there or may still arrive."""
        if self._may_be_in and self._forks == runtime.forks:  # a forked child has no place in the queue
            release.remove_entry(self._row, self._new.id)

    def _leave_for_now(self) -> None:
        """Leave, to enter with another id."""
        self._leave()
        self._entry, self._may_be_in, self._forks = None, False, runtime.forks
        self._new, self._mailbox.ticket = self._name_entry(), None
        self._be_known()
        if self._caller is not None:
            self._caller.new = self._new

    def _give_up(self) -> None:
        """Let the next caller of this process have our entry, or remove it, if it is there or may still arrive."""
        if self._forks != runtime.forks:
            return
        try:
            if self._may_be_in or local_queue.was_handed_over(self._caller):
                release.remove_entry(self._row, self._new.id, self._caller, self._entry)
        finally:
            local_queue.abandon(self._caller)


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

    def __init__(self, steps: Steps[HeldEntry], hold: Callable[[HeldEntry], HeldEntry]) -> None:
        self._steps = steps
        self._hold = hold
        self._stepping = runtime.current.exclusive()
        self._forks = runtime.forks
        self.held: HeldEntry | None = None
        self.is_over = False
        _underway.add(self)

    def advance(self, told: Image | None) -> Pause | None:
        """Go on to the next pause; None: we hold the lock."""
        with self._stepping:
            if self.is_over:
                return None
            try:
                return self._steps.send(told)
            except StopIteration as done:
                _underway.discard(self)
                self.held = self._hold(done.value)
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
            held.end(is_confirmed=False)  # or the heartbeat would renew it for ever


def current() -> Any:
    """Return the task that calls this, or None."""
    place = runtime.current.party()[-1]
    return place() if isinstance(place, weakref.ref) else None


def can_wait(held: HeldEntry) -> bool:
    """Tell whether the task that is being closed can wait while it releases a lock.

    An async generator can, if it is closed by the task that acquired the lock, or by a task that the loop starts only
    for that. If the garbage collector closes it, it cannot: its loop is closed, and a task that runs is another one.
    """
    task = current()
    return task is not None and (held.party == runtime.current.party() or type(task.get_coro()).__name__ == _CLOSING)


async def _step(taking: TaskAcquisition, pause: Pause) -> Pause | None:
    """Let a pause pass, and go on to the next: in a thread, but for a caller in line, which makes no request."""
    if pause.leave is None:
        told = None if pause is TO_THREADS else await spend(pause)
        return await call(partial(taking.advance, told), is_urgent=False)
    try:
        told = await spend(pause)
    except cancelled():
        if pause.leave():
            taking.abandon()
        raise
    return taking.advance(told)


async def acquire_in_task(steps: Steps[HeldEntry], hold: Callable[[HeldEntry], HeldEntry]) -> HeldEntry:
    """Acquire a lock, or leave nothing behind, even if the task is cancelled or its loop is closed."""
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
    assert taking.held is not None  # noqa: S101 - `advance` has returned None
    return taking.held
