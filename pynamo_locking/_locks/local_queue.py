"""The callers of one process that wait for the same lock: they share one entry of its queue.

The first caller leads: it enters the queue, and draws a ticket for each caller that waits behind it. The write that
removes the entry of a caller stores the entry of the next caller, with the next ticket of the same draw. After the last
ticket of a draw the next caller's entry goes to the end of the queue, with a ticket for each caller that waits by then.
So a turn needs no pause, and for a lock in the item no read. It takes one write if the holder's last write is also its
release, as in `edit`.

Each entry is stored once, in the write that removes the one before it, and each has another id. A late copy of a
write by an earlier holder therefore finds no entry, and a late copy of the write that handed over finds none either.

Rejected: one entry for all callers, which pass it on in memory, without a write. A late copy of a write by the caller
before would find that entry still there, and pass.

An idea of lock cohorting (Dice, Marathe, Shavit: ACM TOPC 1, 2, 2015).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import replace
from enum import Enum
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


#: So much of a lease a caller has time to lead once it is woken. As often each waiting caller checks whether one leads.
_COMES_WITHIN: Final = 0.25
_NOBODY: Final = None, 0.0


class WaiterStage(Enum):
    """Where a caller is."""

    WAITING = "in line"
    CALLED = "a write that stores its entry may be under way"
    LEADING = "it acts for the others: it enters the queue of the lock, waits there, or holds the lock"
    OVER = "it has left"


class Handover(NamedTuple):
    """What a write stores for the next caller: its entry, under the given ticket, or under the next one if None."""

    new: NewEntry
    ticket: int | None


class LocalWaiter:
    """One caller of this process that asks for a lock.

    Args:
        row: the item that carries the lock.
        new: what it stores in the queue.
        mailbox: where it sleeps.
        most: the most tickets that it draws at once.
        remove: lets a thread remove its entry from that row.

    Attributes:
        started: when the first write began that may have stored its entry; None if there was none.
        image: the item as that write left it, if known.
        acts_until: while it leads, the end of the lease that its last sign of life began; before that, until when it
            has time to come.
        heartbeats: number of the renewal that was this sign.
        has_come: whether it knows that it leads.
        silent: the entry of a leader before it that does not act, by its id, with its last sign of life.
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
        self.stage = WaiterStage.OVER
        self.has_left = False
        self.started: float | None = None
        self.image: Image | None = None
        self.acts_until: float = 0.0
        self.heartbeats = 0
        self.has_come = False
        self.silent: dict[str, HeartbeatObservation] = {}
        self.state: LockState = FREE


def note_alive(caller: LocalWaiter | None, started: float, heartbeats: int = 0) -> None:
    """Note that a caller has entered, or has renewed its entry for that time, by a write that began then."""
    if caller is not None:
        caller.acts_until = started + caller.new.lease  # first: see `is_leading`, which reads them in the other order
        caller.heartbeats = heartbeats


class LocalQueue:
    """The callers of this process for one lock. The last one in line watches the leader, and the others sleep."""

    def __init__(self, leader: LocalWaiter) -> None:
        self.waiting: OrderedDict[LocalWaiter, None] = OrderedDict()  # in the order of arrival
        self.called: LocalWaiter | None = None  # the next one, once a write may have stored its entry
        self.watcher: LocalWaiter | None = None
        self.asleep: LocalWaiter | None = None  # the watcher, until it knows that it watches
        self.woken: tuple[LocalWaiter | None, float] = _NOBODY  # the caller that is to lead, and since when
        self.lead(leader)

    @property
    def leader(self) -> LocalWaiter | None:
        """The caller that acts for all; None if it is gone."""
        return self._leader()

    @property
    def following(self) -> LocalWaiter | None:
        """The caller that leads next."""
        return self.called or next(iter(self.waiting), None)

    @property
    def is_led(self) -> bool:
        """Whether the leader acts: not if an interrupt kept it from leaving, or if it does not act for a lease.

        A holder without a heartbeat may hang, and a task may wait in an event loop that is blocked.
        """
        leader = self.leader
        if leader is None or leader.stage is not WaiterStage.LEADING:
            return False
        return runtime.current.monotonic() < leader.acts_until

    def wake_following(self) -> LocalWaiter | None:
        """Return the caller that is to lead, as nobody does. From the first call on, it has a time to come."""
        following = self.following
        if following is not self.woken[0]:
            self.woken = following, runtime.current.monotonic()
        return following

    def is_next(self, caller: LocalWaiter) -> bool:
        """Tell whether a caller in line leads now: the first one, or any other if that was woken and does not come.

        It may be a task whose event loop is blocked, or was closed.
        """
        following, since = self.woken
        is_late = runtime.current.monotonic() - since >= caller.new.lease * _COMES_WITHIN
        return following is caller or (is_late and self.called is None and caller in self.waiting)

    def is_led_by(self, caller: LocalWaiter) -> bool:
        return self.leader is caller and caller.stage is WaiterStage.LEADING

    def line_up(self, caller: LocalWaiter) -> None:
        caller.stage = WaiterStage.WAITING
        self.waiting[caller] = None
        self.watcher = self.watcher or caller

    def lead(self, caller: LocalWaiter) -> None:
        """Let a caller lead. An interrupt comes before that or after it."""
        now = runtime.current.monotonic()
        note_alive(caller, now)
        if not caller.has_come:  # it may be a task whose event loop was interrupted, and is closed
            caller.acts_until = now + caller.new.lease * _COMES_WITHIN
        leader = weakref.ref(caller)
        self._leader, caller.stage, self.called, self.woken = leader, WaiterStage.LEADING, None, _NOBODY
        self.leave_line(caller)

    def call(self) -> LocalWaiter | None:
        """Choose the next caller, before a write that may store its entry."""
        following = self.following
        if following is not None and self.called is None:
            following.started = runtime.current.monotonic()
            self.called, following.stage = following, WaiterStage.CALLED
            self.leave_line(following)
        return following

    def leave_line(self, caller: LocalWaiter) -> None:
        """Remove a caller from the line. If it was the watcher, another caller watches from now on: see `_wake`."""
        self.waiting.pop(caller, None)
        if caller is self.watcher and (caller is not self.called or caller.has_left):
            called = None if self.called is None or self.called.has_left else self.called
            self.watcher = self.asleep = next(reversed(self.waiting), called)


local_queues: dict[tuple[Any, ...], LocalQueue] = {}
_mutex = runtime.current.mutex()


def _wake(queue: LocalQueue | None, *others: LocalWaiter | None) -> None:
    """Wake a new watcher, and other callers. Not under the mutex: a mailbox has another one."""
    if queue is not None:
        asleep, queue.asleep = queue.asleep, None
        others = (*others, asleep)
    for caller in others:
        if caller is not None:
            caller.mailbox.put(None)


def enqueue_locally(caller: LocalWaiter) -> bool:
    """Let a caller lead, or line up behind the callers that came before it; tell whether it leads."""
    with _mutex:
        queue = local_queues.get(caller.row.identity)
        if queue is None or not (queue.is_led or queue.following):
            caller.has_come = True
            local_queues[caller.row.identity] = LocalQueue(caller)
            return True
        queue.line_up(caller)
        return False


def is_leading(caller: LocalWaiter) -> bool:
    """Tell whether it is the turn of the caller to act for the others; wake a caller that does not know of its own."""
    gone = sleeping = None
    with _mutex:
        queue = local_queues.get(caller.row.identity)
        if queue is not None and not queue.is_led:
            if queue.called is not None and queue.called.has_left:
                gone, queue.called = queue.called, None
            sleeping = queue.wake_following()
            if queue.is_next(caller):
                still = queue.leader
                if still is not None and still.state.find(still.new.id):  # else it may enter only now
                    began_s = still.acts_until - still.new.lease
                    caller.silent = {still.new.id: HeartbeatObservation(still.heartbeats, began_s)}
                queue.lead(caller)
                sleeping = None
        elif queue is not None:
            queue.woken = _NOBODY
            if (leader := queue.leader) is not caller and leader is not None:
                sleeping = None if leader.has_come else leader  # an interrupt may have kept the one before it from that
    _wake(queue, sleeping)
    if gone is not None:
        _remove_handed_over(gone)
    caller.has_come = caller.stage is WaiterStage.LEADING
    return caller.has_come


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
    started, image = caller.started, caller.image
    caller.started = caller.image = None
    return None if started is None else (started, image)


def was_handed_over(caller: LocalWaiter | None) -> bool:
    """Let a leader that gives up come for its entry; tell whether there is one."""
    return caller is not None and caller.stage is WaiterStage.LEADING and accept_handover(caller) is not None


def leave_local_queue(caller: LocalWaiter) -> bool:
    """Give up for a caller in line without a request; False if its entry is stored, or a write may be storing it."""
    with _mutex:
        is_leading = caller.stage is WaiterStage.LEADING
        if caller.stage is WaiterStage.CALLED or (is_leading and (caller.has_come or caller.started is not None)):
            return False
    abandon(caller)
    return True


def tickets_to_reserve(caller: LocalWaiter | None) -> int:
    """Return how many tickets the caller draws: one for each caller in line, and its own."""
    with _mutex:
        queue = None if caller is None else local_queues.get(caller.row.identity)
        if caller is None or queue is None or not queue.is_led_by(caller):
            return 1
        return _drawing(caller, queue)


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
        queue = local_queues.get(caller.row.identity)
        following = queue.call() if queue is not None and queue.is_led_by(caller) else None
        drawn = 1 if queue is None or following is None else _drawing(following, queue)
    _wake(queue)
    if following is None:
        return None
    if entry.callers > 1:
        return Handover(following.new.standing_for(entry.callers - 1), entry.ticket + 1)
    return Handover(following.new.standing_for(drawn), None)


def let_next_lead(caller: LocalWaiter | None, image: Image | None = None) -> None:
    """Let the next caller lead, with the image that the leader's last write left. Without effect the second time."""
    while caller is not None:
        with _mutex:
            queue = local_queues.get(caller.row.identity)
            if queue is None or not queue.is_led_by(caller):
                return
            following = queue.following
            if following is None:
                del local_queues[caller.row.identity]
            else:
                following.image = image
                queue.lead(following)
            caller.stage = WaiterStage.OVER
        _wake(queue)
        if following is None:
            return
        if not following.has_left:
            following.mailbox.put(image)
            return
        caller, image = following, None
        _remove_handed_over(caller)


def abandon(caller: LocalWaiter | None) -> None:
    """Leave the local queue, wherever the caller is in it."""
    if caller is None:
        return
    with _mutex:
        queue = local_queues.get(caller.row.identity)
        caller.has_left = True
        if caller.stage is WaiterStage.WAITING:
            caller.stage = WaiterStage.OVER
        if queue is not None:
            queue.leave_line(caller)
        is_leading = caller.stage is WaiterStage.LEADING
    _wake(queue)
    if is_leading:
        _remove_handed_over(caller)
        let_next_lead(caller)


def _remove_handed_over(caller: LocalWaiter) -> None:
    """Remove the entry that was stored for a caller that did not come for it."""
    if caller.started is not None:
        caller.remove(caller.row, caller.new.id)


def _forget_after_fork() -> None:
    global _mutex  # noqa: PLW0603 - the parent may have held it at the moment of the fork
    _mutex = runtime.current.mutex()
    local_queues.clear()


runtime.after_fork(_forget_after_fork)
