"""The queue of one lock: who holds it, who may be evicted, how often to poll; what is known of our own entry. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._core.lease import LONGEST_LEASE_S, believed, is_over_by_hint, is_silent_for_too_long
from pynamo_locking._core.lock_modes import LockMode, blockers, front

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pynamo_locking._core.lease import LockSettings


#: How many evicted holders a lock document remembers, one per slot. See `LockState.was_evicted`.
EVICTION_SLOTS: Final = 8

#: The most entries removed by one request; keeps the expression far below DynamoDB's 4 KB.
EVICT_AT_ONCE: Final = 25


@dataclass(frozen=True)
class WriteIntent:
    """What a transaction of many items has left in an item, next to the untouched values.

    Attributes:
        id: of the transaction.
        table: where its record is.
        op: ``"save"``, ``"delete"``, or ``"keep"`` for an item that the decision itself writes.
        is_placeholder: whether the item is only a placeholder, made to carry the intent.
        set: the attributes that the item gets.
        remove: the attributes that it loses.
        changes_row: name of the row that has `set` and `remove`, if they did not fit here.
    """

    id: str
    table: str
    op: str
    is_placeholder: bool = False
    set: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    remove: tuple[str, ...] = ()
    changes_row: str = ""


@dataclass(frozen=True)
class QueueEntry:
    """One place in the queue of a lock, as stored.

    Attributes:
        id: the entry's name, never used twice.
        ticket: the place in the queue; also the fencing token.
        owner: label for people: host, process and thread unless given.
        lock_mode: the requested mode: exclusive, shared, permits, range.
        lease_ms: the lease: how long the entry is valid without a renewal, in ms.
        heartbeats: number of the last renewal.
        until_ms: end of the lease by the owner's wall clock, in ms since the epoch: approximate.
        writes: number of the last guarded write made under this entry.
        read_ms: when this image was read, by the reader's wall clock, in ms since the epoch.
        callers: how many callers of one process share it: they get this ticket and those that follow it.
        entered_ms: when it was stored in the queue, by the owner's wall clock, in ms since the epoch.
        granted_ms: when it was granted the lock, by that clock; None until a renewal has stored it.
        token_id: the id of the entry that was stored for a token (`Lock.detach`), if it is that or has taken its place.
    """

    id: str
    ticket: int
    owner: str
    lock_mode: LockMode
    lease_ms: int
    heartbeats: int
    until_ms: int
    writes: int
    read_ms: int
    callers: int = 1
    entered_ms: int = 0
    granted_ms: int | None = None
    token_id: str = ""

    @property
    def is_detached(self) -> bool:
        """Whether the lock was detached, and nobody has attached it since."""
        return self.token_id == self.id

    @property
    def last_ticket(self) -> int:
        """The ticket of the last caller that shares the entry."""
        return self.ticket + self.callers - 1

    @property
    def mode(self) -> str:
        """``"exclusive"`` or ``"shared"``."""
        return self.lock_mode.mode

    @property
    def lease(self) -> float:
        """How long the entry is valid without a renewal, in seconds."""
        return self.lease_ms / 1000

    @property
    def age(self) -> float:
        """Seconds since the last renewal, by the wall clocks of owner and reader: approximate."""
        return (self.read_ms - (self.until_ms - self.lease_ms)) / 1000

    @property
    def queued_for(self) -> float:
        """Seconds since it was stored in the queue, by the wall clocks of owner and reader: approximate.

        An entry that a caller has handed over to the next caller of its process was stored at that moment.
        """
        return max(0.0, (self.read_ms - self.entered_ms) / 1000)

    @property
    def held_for(self) -> float:
        """Seconds that one of `LockState.holders` has held the lock, by wall clocks of owner and reader: approximate.

        It is exact if there was no wait. Otherwise, before the first renewal under the lock, it counts from the last
        sign of life before the grant: too long by a third of the lease at most, and by 5 % of it without a heartbeat.
        """
        return max(0.0, self.age if self.granted_ms is None else (self.read_ms - self.granted_ms) / 1000)


@dataclass(frozen=True)
class RunRecord:
    """The last successful run of a job that runs once in a period: `NamedLock.once`.

    Attributes:
        ticket: under which it ran.
        owner: label of its process, for people.
        period_ms: when its period began, in ms since the epoch. Without a grid that is when it began itself.
        began_ms: when it began, by the wall clock of its process, in ms since the epoch.
        ended_ms: when it had succeeded, by the same clock.
    """

    ticket: int
    owner: str
    period_ms: int
    began_ms: int
    ended_ms: int


@dataclass(frozen=True)
class LockState:
    """A lock document at one moment: who holds it and who waits, in ticket order.

    Attributes:
        entries: all entries, by ticket.
        next_ticket: the ticket of the next entry; 0 if there never was a lock here.
        since: the first ticket of this document.
        evicted: tickets of holders that were evicted or broken, by slot.
        raw: the stored map, as DynamoDB returned it.
        intent: of the transaction that has the item; None if none has, or its values are decided and stored.
        success: the last successful run of the job that has this name; None if `NamedLock.once` has recorded none.
        unreadable: what is wrong with the document, such as ``"next is missing"``; empty if it is sound. Of a broken
            document only `raw` is known. Its queue is unknown too, so it is not free.
        is_item_without_lock: whether the item is there, and has no lock document.
    """

    entries: tuple[QueueEntry, ...] = ()
    next_ticket: int = 0
    since: int = 0
    evicted: Mapping[int, int] = field(default_factory=dict)
    raw: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    intent: WriteIntent | None = None
    success: RunRecord | None = None
    unreadable: str = field(default="", init=False)
    is_item_without_lock: bool = field(default=False, repr=False, compare=False)

    @property
    def holders(self) -> tuple[QueueEntry, ...]:
        """The entries that hold the lock now, by ticket; empty when it is free."""
        return tuple(self.entries[i] for i in front(entry.lock_mode for entry in self.entries))

    @property
    def waiters(self) -> tuple[QueueEntry, ...]:
        """The entries that wait, in the order of the queue."""
        holders = {entry.ticket for entry in self.holders}
        return tuple(entry for entry in self.entries if entry.ticket not in holders)

    @property
    def exists(self) -> bool:
        """Whether the item carries a lock document at all."""
        return self.next_ticket > 0

    def find(self, entry_id: str, ticket: int | None = None) -> QueueEntry | None:
        """Return one entry, None if it is not there.

        Args:
            entry_id: its id.
            ticket: its ticket, if the entry must have this ticket as well.
        """
        for entry in self.entries:
            if entry.id == entry_id:
                return entry if ticket is None or entry.ticket == ticket else None
        return None

    def ahead_of(self, entry: QueueEntry) -> tuple[QueueEntry, ...]:
        """Return the entries that must leave before this one holds the lock: the grant rule.

        For a semaphore all but ``permits - 1`` of them must.
        """
        before = [other for other in self.entries if other.ticket < entry.ticket]
        if not before:
            return ()
        return tuple(before[i] for i in blockers(entry.lock_mode, [other.lock_mode for other in before]))

    def was_evicted(self, ticket: int, since: int | None = None) -> bool | None:
        """Tell whether the holder with that ticket was evicted. None if the document cannot tell.

        A holder's entry leaves the document by its own release, by an eviction, or with the whole document. Evictions
        leave a trace. So once a holder's entry is gone, False proves that the holder's own request has removed it,
        whatever was its answer. Not of an entry that was attached: another attach takes its place without a trace.

        Args:
            ticket: of a holder.
            since: the first ticket of the document in which it was the holder; None to assume this document unless that
                began later. Tickets alone do not tell documents apart: a new one begins at another wall clock, which
                may be behind.
        """
        is_another = self.since > ticket if since is None else self.since != since
        if is_another or self.next_ticket <= ticket:
            return None
        trace = self.evicted.get(ticket % EVICTION_SLOTS, 0)
        return None if trace > ticket else trace == ticket


FREE: Final = LockState()
#: As `FREE`, of an item that is there.
ITEM_WITHOUT_LOCK: Final = LockState(is_item_without_lock=True)


def eviction_traces(entries: Sequence[QueueEntry], known: Mapping[int, int]) -> dict[int, int]:
    """Return what a document has to remember of an eviction: by slot, the ticket of a possible holder.

    Other entries ahead may have left meanwhile. The evicted ones were all there until now, so an entry that another of
    them blocks was no holder. Holders are not evicted in the order of their tickets; of two in one slot the larger
    ticket stays, so that no evicted holder is told that it was not evicted. `known` is what the document remembers, by
    slot.
    """
    holders = sorted(entries[i].ticket for i in front(entry.lock_mode for entry in entries))
    return {ticket % EVICTION_SLOTS: ticket for ticket in holders if ticket > known.get(ticket % EVICTION_SLOTS, 0)}


class HeartbeatObservation(NamedTuple):
    """The newest heartbeat of an entry that was seen, and when it was first seen (our monotonic clock)."""

    heartbeats: int
    since: float


def observe(
    seen: Mapping[str, HeartbeatObservation], entries: Iterable[QueueEntry], now: float
) -> dict[str, HeartbeatObservation]:
    """Return the sightings after a read that ended at `now`.

    A heartbeat that goes back comes from an older image (eventually consistent reads) and proves nothing.
    """
    result = {}
    for entry in entries:
        last = seen.get(entry.id)
        result[entry.id] = (
            last
            if last is not None and entry.heartbeats <= last.heartbeats
            else HeartbeatObservation(entry.heartbeats, now)
        )
    return result


def dead_among(
    entries: Iterable[QueueEntry],
    seen: Mapping[str, HeartbeatObservation],
    now: float,
    now_ms: int,
    max_clock_skew: float | None,
    max_lease: float = LONGEST_LEASE_S,
) -> tuple[QueueEntry, ...]:
    """Return the entries that may be evicted: silent for a whole lease, or long expired by the hint."""

    def is_dead(entry: QueueEntry) -> bool:
        lease, until_ms = believed(entry.lease_ms, entry.until_ms, max_lease)
        return is_over_by_hint(until_ms, now_ms, max_clock_skew) or (
            entry.id in seen and is_silent_for_too_long(seen[entry.id].since, now, lease)
        )

    return tuple(entry for entry in entries if is_dead(entry))


#: The first waiter is late by this part of the holder's turn at most, since it polls so often.
_LATE_BY: Final = 16


class QueueProgress(NamedTuple):
    """How fast a queue moves, as a waiter sees it. Times are of our monotonic clock.

    Attributes:
        position: number of entries that block us; 1 for the first waiter.
        changed: when we first saw this position.
        each: how long each turn before that took; 0 before we saw any.
    """

    position: int
    changed: float
    each: float = 0.0

    def seen(self, position: int, now: float) -> QueueProgress:
        """Return the pace after a poll that ended at `now`."""
        if position >= self.position:
            return self  # an older image
        return QueueProgress(position, now, (now - self.changed) / (self.position - position))

    def time_to_turn(self, now: float) -> float:
        """Return how long we have to wait at the pace that we saw; 0 before we saw any.

        The holder has had the lock for at least as long as we have seen no change; its turn may be half over. The first
        waiter expects the end of a turn as long as the last one, and then at any moment.
        """
        waited = now - self.changed
        if self.position == 1:
            return max((self.each - waited) / 2, waited / _LATE_BY)
        return (self.position - 0.5) * max(self.each, waited)


def poll_delay(
    pace: QueueProgress, now: float, settings: LockSettings, jitter: float, *, is_woken: bool = False
) -> float:
    """Return the time until the next poll: when our turn seems to come.

    So the first waiter is late only by a small part of its wait, waiters do not slow down a queue that moves fast, and
    waiters far back poll seldom. Never longer than `poll_interval` for each position, nor than
    `max_poll_interval`, unless it is woken.

    Args:
        pace: how fast the queue moves.
        now: on our monotonic clock.
        settings: gives `min_poll_interval`, `poll_interval` and `max_poll_interval`.
        jitter: a random number in [0, 1); the delay is between half and the whole of the interval.
        is_woken: whether all that are ahead wake it as they leave. Then a poll is only needed if a wake-up is lost.
    """
    longest = settings.poll_interval * pace.position
    if is_woken:
        interval = longest
    else:
        expected = max(pace.time_to_turn(now), settings.min_poll_interval)
        interval = min(expected, longest, settings.max_poll_interval)
    return interval * (0.5 + jitter / 2)


#: Why this process gives a lock up by itself, while its entry may still be in the queue: it was held for as long as it
#: may be.
MAX_HOLD: Final = "max_hold"


class MissingEntry(Enum):
    """Why our entry is not in a lock document."""

    LOST = "lost"  # evicted, or deleted with the document
    LEFT = "left"  # removed by a request of ours
    UNKNOWN = "unknown"  # lost or left


class HoldState(Enum):
    """What this process does with an entry that it was granted. It is over in the last four states."""

    HELD = "its holder works under it"
    KEPT = "its holder works under it; if that is interrupted, the entry stays, for whoever goes on with it"
    DOWNGRADING = "its holder has asked to share it, and DynamoDB has not answered"
    ENDED = "a request of ours has removed it, or it is known to be gone"
    ORPHANED = "its holder has given it up; a thread removes it, or its lease ends"
    LEFT = "its holder was interrupted; it stays until its lease ends, for whoever goes on with it"
    DETACHED = "another entry has taken its place, for whoever has the token"


_OVER: Final = HoldState.ENDED, HoldState.ORPHANED, HoldState.LEFT, HoldState.DETACHED


class EntryOwnership(NamedTuple):
    """What is known of an entry since it was granted: held until its loss is proven, or until it is released.

    Attributes:
        id: of the entry.
        ticket: of the entry. A late copy of the request to enter may revive the id under another ticket.
        since: the first ticket of its lock document, which may be deleted and created again.
        state: what this process does with it, also after a loss.
        reason: why it is lost, as in `LockLost`; empty unless that is proven.
        removals: how many copies of requests to remove it have no definite answer yet. While there is one, the absence
            of the entry proves no loss.
        may_delete: whether a transaction of ours may have deleted the item, and the entry with it.
        is_attached: whether it has taken the place of a detached entry. Another process may take its place in the same
            way, which leaves no trace in the document.
    """

    id: str
    ticket: int
    since: int
    state: HoldState = HoldState.HELD
    reason: str = ""
    removals: int = 0
    may_delete: bool = False
    is_attached: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it is neither renewed nor written under any more, whether it is lost or not."""
        return self.state in _OVER

    @property
    def is_held(self) -> bool:
        return not (self.reason or self.state in _OVER)

    @property
    def may_stand(self) -> bool:
        """Whether the entry may be in the queue."""
        return self.reason in ("", MAX_HOLD)

    @property
    def stays(self) -> bool:
        """Whether an interrupt of its holder leaves it in the queue."""
        return self.state in (HoldState.KEPT, HoldState.LEFT)

    @property
    def is_copied(self) -> bool:
        """Whether this process has a mere copy of it: it was forked, or restored from a snapshot, since the grant."""
        return self.reason in ("forked", "restored")

    def ended(self) -> EntryOwnership:
        return self if self.state in _OVER else self._replace(state=HoldState.ENDED)

    def orphaned(self) -> EntryOwnership:
        """Note that its holder has given it up, or is gone, and no request is known to have removed it."""
        state = HoldState.LEFT if self.state is HoldState.KEPT else HoldState.ORPHANED
        return self if self.state in _OVER else self._replace(state=state)

    def detached(self) -> EntryOwnership:
        return self if self.state in _OVER else self._replace(state=HoldState.DETACHED)

    def kept(self) -> EntryOwnership:
        """Note that it stays if its holder is interrupted."""
        return self._moved(HoldState.HELD, HoldState.KEPT)

    def claimed(self) -> EntryOwnership:
        """Note that its holder has it, and releases it."""
        return self._moved(HoldState.KEPT, HoldState.HELD)

    def downgrading(self) -> EntryOwnership:
        return self._moved(HoldState.HELD, HoldState.DOWNGRADING)

    def downgraded(self) -> EntryOwnership:
        return self._moved(HoldState.DOWNGRADING, HoldState.HELD)

    def _moved(self, before: HoldState, after: HoldState) -> EntryOwnership:
        return self._replace(state=after) if self.state is before else self

    def lost(self, reason: str) -> EntryOwnership:
        return self._replace(reason=reason) if self.is_held else self

    def forked(self) -> EntryOwnership:
        """Note that this process is a forked child: an entry that was not released belongs to the parent."""
        return self if self.is_over else self._replace(reason="forked")

    def removing(self, copies: int = 1) -> EntryOwnership:
        """Note that so many more requests to remove it may arrive; -1 once DynamoDB refused one of them."""
        return self._replace(removals=self.removals + copies)

    def deleting(self, *, expected: bool) -> EntryOwnership:
        """Note that a transaction may delete it with the item, or is known not to have done so."""
        return self._replace(may_delete=expected)

    def absent(self, state: LockState, *, is_removal: bool = False) -> EntryOwnership:
        """Note that a request (one of the `removals` if `is_removal`) was refused with a document without it."""
        is_deleted = state.since != self.since
        if self.may_delete and is_deleted:
            return self.ended()
        why = self.why_absent(state, is_removal=is_removal, in_doubt=self.removals > is_removal)
        gone = "replaced" if state.is_item_without_lock else "deleted"
        return self.lost(gone if is_deleted else "evicted") if why is MissingEntry.LOST else self

    def why_absent(self, state: LockState, *, is_removal: bool, in_doubt: bool) -> MissingEntry:
        """Return why a document does not contain it.

        Args:
            state: the document; `FREE` if the item is absent.
            is_removal: whether the document came with the refusal of a request to remove it. A proxy may have repeated
                that; a document that has not forgotten evictions shows such copies as well.
            in_doubt: whether another request to remove it, or an earlier copy of this one, may have been applied.
        """
        evicted = state.was_evicted(self.ticket, self.since)
        if evicted or not (is_removal or in_doubt):
            return MissingEntry.LOST
        if evicted is False and not self.is_attached:
            return MissingEntry.LEFT
        return MissingEntry.UNKNOWN if in_doubt else MissingEntry.LOST
