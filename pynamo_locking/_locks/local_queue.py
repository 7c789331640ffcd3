"""The callers of one process that wait for the same lock: they share one entry of its queue.

The first caller leads: it enters the queue, and draws a ticket for each caller that waits behind it. The write that
removes the entry of a caller stores the entry of the next caller, with the next ticket of the same draw. After the last
ticket of a draw the next caller's entry goes to the end of the queue, with a ticket for each caller that waits by then.
So a turn needs no pause, and for a lock in the item no read. It takes one write if the holder's last write is also its
release, as in `edit`.

Each entry is stored once, in the write that removes the one before it, and each has another id. A late copy of a
write by an earlier holder therefore finds no entry, and a late copy of the write that handed over finds none either.

`LocalQueue.settle` alone decides who leads and who is woken. Each function here changes one thing and lets it decide.

Rejected: one entry for all callers, which pass it on in memory, without a write. A late copy of a write by the caller
before would find that entry still there, and pass.

An idea of lock cohorting (Dice, Marathe, Shavit: ACM TOPC 1, 2, 2015).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._core.lock_modes import WHOLE
from pynamo_locking._core.lock_queue import FREE, HeartbeatObservation
from pynamo_locking._io import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._core.lock_queue import LockState, QueueEntry
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.lock_requests import NewEntry
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._io.wakeups import Mailbox

    #: Calls that are due after a change, once the mutex is free: a mailbox has another mutex.
    DueCalls = list[Callable[[], object]]


#: So much of a lease a caller has time to come once it leads. As often each waiting caller checks whether one leads.
_COMES_WITHIN: Final = 0.25


class Handover(NamedTuple):
    """What a write stores for the next caller: its entry, under the given ticket, or under the next one if None."""

    new: NewEntry
    ticket: int | None


class SignOfLife(NamedTuple):
    """The last that is known of a caller that leads.

    Attributes:
        at_s: when its last write began, or when it was chosen to lead.
        heartbeats: number of the renewal that was this write; None if it was chosen to lead, and has not come yet.
    """

    at_s: float
    heartbeats: int | None


class Inheritance(NamedTuple):
    """What a caller takes over from the one that led before it.

    Attributes:
        started: when the first write began that may have stored its entry; None if there was none.
        image: the item as that write left it, if known.
        silent: the id of the entry that a leader has left behind which does not act, with its last renewal.
    """

    started: float | None = None
    image: Image | None = None
    silent: tuple[str, HeartbeatObservation] | None = None


_NOTHING: Final = Inheritance()


class LocalWaiter:
    """One caller of this process that asks for a lock.

    Args:
        row: the item that carries the lock.
        new: what it stores in the queue.
        mailbox: where it sleeps.
        most: the most tickets that it draws at once.
        remove: lets a thread remove its entry from that row.

    Attributes:
        has_left: whether it neither waits nor leads any more.
        sign: of its life since it leads; None while it is in line.
        inherited: what it has taken over, or takes over once it leads.
        state: the queue as it last saw it, for the callers behind it.
    """

    def __init__(
        self, row: LockRow, new: NewEntry, mailbox: Mailbox, most: int, remove: Callable[[LockRow, str], object]
    ) -> None:
        self.row = row
        self.new = new
        self.mailbox = mailbox
        self.most = most
        self.remove = remove
        self.has_left = False
        self.sign: SignOfLife | None = None
        self.inherited = _NOTHING
        self.state: LockState = FREE

    @property
    def has_come(self) -> bool:
        """Whether it knows that it leads."""
        return self.sign is not None and self.sign.heartbeats is not None

    @property
    def acts_until(self) -> float:
        """The end of the lease that its last sign of life began; before it has come, until when it has time to come."""
        if self.sign is None:
            return 0.0
        return self.sign.at_s + self.new.lease * (1 if self.has_come else _COMES_WITHIN)

    @property
    def acts(self) -> bool:
        """Whether it has shown a sign of life within its lease, as a leader.

        A holder without a heartbeat may hang, and a task may wait in an event loop that is blocked.
        """
        return runtime.current.monotonic() < self.acts_until

    @property
    def silent(self) -> dict[str, HeartbeatObservation]:
        """The entry of a leader before it that does not act, by its id, with its last renewal."""
        return {} if self.inherited.silent is None else dict([self.inherited.silent])


def note_alive(caller: LocalWaiter | None, started: float, heartbeats: int = 0) -> None:
    """Note that a caller has entered, or has renewed its entry for that time, by a write that began then."""
    if caller is not None:
        caller.sign = SignOfLife(started, heartbeats)


class LocalQueue:
    """The callers of this process for one lock: one leads, the next one may be called, and the others wait.

    Attributes:
        waiting: the callers in line, in the order of arrival.
        called: the next caller, once a write may have stored its entry.
        watcher: the caller in line that often checks whether the leader acts, while the others sleep.
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[LocalWaiter, None] = OrderedDict()
        self.called: LocalWaiter | None = None
        self.watcher: LocalWaiter | None = None
        # Who was chosen to lead. The reference is weak, since an interrupt may keep that caller from leaving.
        self._chosen: weakref.ref[LocalWaiter] | None = None

    @property
    def leader(self) -> LocalWaiter | None:
        """The caller that acts for all: it enters the queue of the lock, waits there, or holds the lock."""
        leader = None if self._chosen is None else self._chosen()
        return None if leader is None or leader.has_left else leader

    @property
    def following(self) -> LocalWaiter | None:
        """The caller that leads next: the one that is called, else the first in line."""
        return self.called or next(iter(self.waiting), None)

    def settle(self, caller: LocalWaiter, image: Image | None = None) -> DueCalls:
        """Decide who leads, who watches and who is woken.

        This follows each change of the queue, and each look of a caller in line. It decides by what is true now. So
        the next call completes a change that an interrupt has cut short.

        Args:
            caller: who has made the change, or looks.
            image: the item as the last write of the leader left it, if that has left.

        Returns:
            The calls that are due once the mutex is free.
        """
        due: DueCalls = []
        leader = self._take_out_of_line()
        # Let the next caller lead if nobody acts, and the one after it if that caller has left meanwhile.
        while leader is None or not leader.acts:
            following = self._next_leader(leader, caller)
            if following is None:
                break
            following.inherited = Inheritance(following.inherited.started, image, _silent_entry(leader))
            following.sign = SignOfLife(runtime.current.monotonic(), 0 if following is caller else None)
            self._chosen = weakref.ref(following)
            leader = self._take_out_of_line()
            if leader is not None:  # it acts: this is a sign of its life
                break
            due += _removal(following)  # it has left
            image = None
        # Wake the leader if it does not know yet, as often as somebody looks: an interrupt may prevent a wake-up.
        if leader is not None and not leader.has_come:
            due.append(partial(leader.mailbox.put, None))
        # Let the last in line watch if the watcher has left the line: it is there for the longest time.
        if self.watcher not in self.waiting:
            called = None if self.called is None or self.called.has_left else self.called
            if self.watcher is None or self.watcher is not called:
                self.watcher = next(reversed(self.waiting), called)
                if self.watcher is not None and self.watcher is not caller:
                    due.append(partial(self.watcher.mailbox.put, None))
        # Without a leader nobody is left.
        if leader is None and local_queues.get(caller.row.identity) is self:
            del local_queues[caller.row.identity]
        return due

    def _take_out_of_line(self) -> LocalWaiter | None:
        """Whoever leads is neither called nor in line, and whoever is called is not in line; return the leader."""
        chosen = None if self._chosen is None else self._chosen()
        if chosen is not None:
            self.waiting.pop(chosen, None)
            if self.called is chosen:
                self.called = None
        if self.called is not None:
            self.waiting.pop(self.called, None)
        return None if chosen is None or chosen.has_left else chosen

    def _next_leader(self, leader: LocalWaiter | None, caller: LocalWaiter) -> LocalWaiter | None:
        """Return who leads in place of a leader that does not act; None if nobody is left."""
        if leader is not None and not leader.has_come and self.called is None and caller in self.waiting:
            # The leader is perhaps a task whose event loop is blocked or closed, and so may be the first in line, too.
            # The caller surely runs.
            return caller
        return self.following

    def call(self) -> LocalWaiter | None:
        """Choose the next caller, before a write that may store its entry."""
        following = self.following
        if following is not None and self.called is None:
            following.inherited = Inheritance(started=runtime.current.monotonic())
            self.called = following
            self._take_out_of_line()
        return following


def _silent_entry(leader: LocalWaiter | None) -> tuple[str, HeartbeatObservation] | None:
    """Return the entry of a leader that does not act, with its last renewal; None if it has no entry that it knows."""
    if leader is None or leader.sign is None or leader.sign.heartbeats is None:
        return None
    if leader.state.find(leader.new.id) is None:  # it may enter only now
        return None
    return leader.new.id, HeartbeatObservation(leader.sign.heartbeats, leader.sign.at_s)


def _removal(caller: LocalWaiter) -> DueCalls:
    """Return what removes the entry that may be stored for a caller that leads and does not come for it."""
    return [] if caller.inherited.started is None else [partial(caller.remove, caller.row, caller.new.id)]


local_queues: dict[tuple[Any, ...], LocalQueue] = {}
_mutex = runtime.current.mutex()


def _led_by(caller: LocalWaiter | None) -> LocalQueue | None:
    queue = None if caller is None else local_queues.get(caller.row.identity)
    return queue if queue is not None and queue.leader is caller else None


def _do(due: DueCalls) -> None:
    for call in due:
        call()


def enqueue_locally(caller: LocalWaiter) -> bool:
    """Let a caller lead, or line up behind the callers that came before it; tell whether it leads."""
    with _mutex:
        queue = local_queues.get(caller.row.identity)
        if queue is None:
            queue = local_queues[caller.row.identity] = LocalQueue()
        queue.waiting[caller] = None
    return is_leading(caller)


def is_leading(caller: LocalWaiter) -> bool:
    """Tell whether it is the turn of a caller to act for the others; if nobody acts, let the next caller lead."""
    due: DueCalls = []
    with _mutex:
        queue = local_queues.get(caller.row.identity)
        if queue is not None:
            if queue.leader is caller:  # it may come late, and nobody leads in its place
                note_alive(caller, runtime.current.monotonic())
            due = queue.settle(caller)
        leads = caller.sign is not None
    _do(due)
    return leads


def time_to_look(caller: LocalWaiter, poll_s: float) -> float:
    """Return how long the caller may sleep before it checks whether the leader still acts: the watcher checks often."""
    queue = local_queues.get(caller.row.identity)
    is_watching = queue is None or queue.watcher is caller
    return poll_s if is_watching else max(poll_s, caller.new.lease * _COMES_WITHIN)


def seen_ahead(caller: LocalWaiter) -> tuple[LockState, int]:
    """Return the queue as the leader of a caller last saw it, and how many callers were in line before the last."""
    with _mutex:
        queue = local_queues.get(caller.row.identity)
        leader = None if queue is None else queue.leader
        return (FREE, 0) if queue is None or leader is None else (_known_now(leader), max(0, len(queue.waiting) - 1))


def _known_now(leader: LocalWaiter) -> LockState:
    """Return the queue as a leader last saw it, with its own entry as it is now, if it holds the lock."""
    held = leader.state.find(leader.new.id)
    if held is None or held not in leader.state.holders:
        return leader.state
    now_ms, left_s = runtime.current.time_ms(), leader.acts_until - runtime.current.monotonic()
    now = replace(
        held,
        read_ms=now_ms,
        until_ms=now_ms + int(left_s * 1000),
        granted_ms=held.until_ms - held.lease_ms if held.granted_ms is None else held.granted_ms,
    )
    return replace(leader.state, entries=tuple(now if each is held else each for each in leader.state.entries))


def accept_handover(caller: LocalWaiter) -> tuple[float, Image | None] | None:
    """Let a leader come for the entry that was handed over to it, if one was; return when that began, and the image."""
    started, image, _ = caller.inherited
    caller.inherited = _NOTHING
    return None if started is None else (started, image)


def was_handed_over(caller: LocalWaiter | None) -> bool:
    """Let a leader that gives up come for its entry; tell whether there is one."""
    return caller is not None and caller.sign is not None and accept_handover(caller) is not None


def leave_local_queue(caller: LocalWaiter) -> bool:
    """Give up for a caller in line without a request; False if its entry is stored, or a write may be storing it."""
    with _mutex:
        if caller.has_come or caller.inherited.started is not None:
            return False
    abandon(caller)
    return True


def tickets_to_reserve(caller: LocalWaiter | None) -> int:
    """Return how many tickets the caller draws: one for each caller in line, and its own."""
    with _mutex:
        queue = _led_by(caller)
        return 1 if caller is None or queue is None else _drawing(caller, queue)


def _drawing(caller: LocalWaiter, queue: LocalQueue) -> int:
    return min(len(queue.waiting) + 1, caller.most)


def handover_to_next(caller: LocalWaiter | None, entry: QueueEntry | None) -> Handover | None:
    """Return what the write that removes the entry of a leader stores for the next caller; None if there is none.

    A holder that has shared its lock hands nothing over: others may hold the lock by now, and would not see an
    exclusive entry that comes ahead of theirs.
    """
    if caller is None or entry is None or entry.lock_mode != WHOLE:
        return None
    with _mutex:
        queue = _led_by(caller)
        following = None if queue is None else queue.call()
        if queue is None or following is None:
            return None
        drawn = _drawing(following, queue)
        due = queue.settle(caller)
    _do(due)
    if entry.callers > 1:
        return Handover(following.new.standing_for(entry.callers - 1), entry.ticket + 1)
    return Handover(following.new.standing_for(drawn), None)


def let_next_lead(caller: LocalWaiter | None, image: Image | None = None) -> None:
    """Let the next caller lead, with the image that the leader's last write left. Without effect the second time."""
    if caller is None or caller.has_left:
        return
    with _mutex:
        queue = _led_by(caller)
        if queue is None:
            return
        caller.has_left = True
        due = queue.settle(caller, image)
    _do(due)


def abandon(caller: LocalWaiter | None) -> None:
    """Leave the local queue, wherever the caller is in it."""
    if caller is None:
        return
    with _mutex:
        caller.has_left = True
        due = [] if caller.sign is None else _removal(caller)
        queue = local_queues.get(caller.row.identity)
        if queue is not None:
            queue.waiting.pop(caller, None)
            due += queue.settle(caller)
    _do(due)


def _forget_after_fork() -> None:
    global _mutex  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _mutex = runtime.current.mutex()
    local_queues.clear()


runtime.after_fork(_forget_after_fork)
