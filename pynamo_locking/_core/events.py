"""The events that subscribers get: of locks, writes and transactions. Pure facts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Event:
    """Something that happened in this process. The kinds are its subclasses.

    Attributes:
        time_ms: when, by this process's wall clock, in ms since the epoch.
        monotonic_s: when, by the clock that leases are counted on, in seconds; only differences mean anything.
    """

    time_ms: int
    monotonic_s: float

    def __eq__(self, other: object) -> bool:  # once for all events: Python makes one for each class at the import
        return isinstance(other, Event) and type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LockEvent(Event):
    """Something that happened to a lock.

    Attributes:
        name: the lock's name. It contains the key of what is locked, and no other value of the item.
        table: the table that the lock is kept in.
        model: the model of the item that carries the lock: of the locked item, or a `NamedLock`.
        owner: label of the lock owner whose entry this is about.
        entry_id: names one entry of the queue, from its arrival to its removal. Never used twice; empty in `TimedOut`.
        ticket: the entry's place in the queue and fencing token; None before it has one.
    """

    name: str
    table: str
    model: type[Any] | None
    owner: str
    entry_id: str
    ticket: int | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Waiting(LockEvent):
    """A wait begins: an earlier entry is in the way, or the queue is full. Emitted once an attempt to acquire.

    `Acquired` or `TimedOut` ends it. Neither follows if the attempt is cancelled, or fails for another reason.

    Attributes:
        queue_depth: how many entries are in the queue, ours included if it is there.
        ahead: how many of them block us, and how many callers of this process wait in line before us. 0 while a
            transaction has the item.
        holder: label of the first entry in the queue; empty while a transaction has the item.
        holder_ticket: ticket of that entry.
        holder_held_ms: how long it has held the lock, in ms; a hint, see `QueueEntry.held_for`.
    """

    queue_depth: int
    ahead: int
    holder: str
    holder_ticket: int | None
    holder_held_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Attempt(LockEvent):
    """An attempt to acquire a lock has ended.

    Attributes:
        waited_ms: from the call until now, in ms.
        queue_depth: how many entries were in the queue at the last poll, ours included if it was there.
        requests: how many requests the attempt sent, failed ones included.
        polls: how many of them were reads.
        consumed_units: read and write units of the requests that got a response, with those that complete another
            process's transaction; None if no response says. DynamoDB does not report what a refused request has
            consumed.
    """

    waited_ms: float
    queue_depth: int
    requests: int
    polls: int
    consumed_units: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Acquired(Attempt):
    """We hold a lock from now on.

    Attributes:
        lease_ms: how long the entry lives without a renewal, in ms.
        mode: ``"exclusive"`` or ``"shared"``.
    """

    lease_ms: int
    mode: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TimedOut(Attempt):
    """We did not acquire a lock within `wait`, and have left the queue.

    Attributes:
        wait_ms: how long we would have waited at most, in ms; 0 for ``wait=0``.
        holder: label of the first entry in the queue at the last poll; empty if there was none.
        holder_ticket: ticket of that entry.
        holder_held_ms: as in `Waiting`.
    """

    wait_ms: float
    holder: str
    holder_ticket: int | None
    holder_held_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Renewed(LockEvent):
    """The lease of a lock that we hold was renewed.

    Attributes:
        lease_ms: the length of the lease, in ms.
        took_ms: how long the request took, in ms.
        margin_ms: how much of the lease was left when the response came, in ms; negative if it had ended.
        consumed_units: as in `Attempt`.
        failed_ms: if the previous renewal failed: the time since the last one that succeeded, in ms.
    """

    lease_ms: int
    took_ms: float
    margin_ms: float
    consumed_units: float | None
    failed_ms: float | None = None

    @property
    def is_late(self) -> bool:
        """Whether the lease ended before it was renewed, so that a waiter could have evicted us."""
        return self.margin_ms < 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RenewalFailed(LockEvent):
    """A renewal got no response, or a response that proves nothing. The heartbeat tries again soon.

    Attributes:
        lease_ms: the length of the lease, in ms.
        remaining_ms: how much of it is left, in ms.
        error: the class of the error.
        failing_ms: the time since the last renewal that succeeded, in ms.
        should_log: whether it deserves a line in a log: the first failure, the first after the lease has ended, and
            then one after a minute, two, four, and so on, at least once an hour.
    """

    lease_ms: int
    remaining_ms: float
    error: str
    failing_ms: float = 0.0
    should_log: bool = True


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lost(LockEvent):
    """It is proven that we no longer hold a lock that we held, or we have given it up: see `reason`.

    Attributes:
        reason: ``"evicted"``, ``"deleted"``, ``"replaced"`` or ``"max_hold"``, as in `LockLost`.
        held_ms: since we acquired it, in ms; None if there was no subscriber then.
    """

    reason: str
    held_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evicted(LockEvent):
    """We removed another owner's entry, which `owner`, `ticket` and `entry_id` describe.

    Not emitted if the response was lost: another process may have removed the entry at the same time.

    Attributes:
        by: our own label.
        lease_ms: the lease that the entry's owner did not renew, in ms.
        is_forced: whether `break_lock` removed it; otherwise its lease had expired.
        queued_ms: since it entered the queue, in ms, by the wall clocks of its owner and this process: approximate.
    """

    by: str
    lease_ms: int
    is_forced: bool
    queued_ms: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Released(LockEvent):
    """We released a lock that we held, or detached it.

    Attributes:
        held_ms: since we acquired it, in ms; None if there was no subscriber then, or if it was released before the
            caller had it.
        renewals: how many renewals were sent, also while we waited.
        writes: how many guarded writes were made under it, including a write that released it, and the request of
            `Lock.detach`.
        is_confirmed: whether DynamoDB confirmed it. If not, waiters may have to wait until the lease ends.
        is_detached: whether it was detached (`Lock.detach`), so that whoever has its token holds it.
        consumed_units: as in `Attempt`; of the write of the item if that released the lock. None if the commit of
            several items did, since `TransactionCommitted` has it.
    """

    held_ms: float | None
    renewals: int
    writes: int
    is_confirmed: bool
    is_detached: bool
    consumed_units: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WriteEvent(Event):
    """Something that happened to a write of one item or many.

    Attributes:
        table: the table of the item; of a transaction, if no item is known to have refused it, that of its first item.
        model: the model of the item; None if none is known.
        name: table and key of the item, as in the name of a lock; the id of the transaction if no item is known.
        operation: ``"put"``, ``"update"``, ``"delete"`` or ``"transaction"``.
        error: the name of the error of this package that the caller gets.
        transaction_id: the id of the transaction; None for a single write.
    """

    table: str
    model: type[Any] | None
    name: str
    operation: str
    error: str
    transaction_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WriteRefused(WriteEvent):
    """A write was refused because of a conflict, and changed nothing. `error` is the name of a `Conflict`.

    Attributes:
        expected: of a `StaleVersion`: the version that was read.
        actual: of a `StaleVersion`: the version that is stored.
        holder: of an `ItemLocked`: the label of the holder.
        holder_ticket: of an `ItemLocked`: the holder's ticket.
        reason: of a `TransactionAborted`: ``"preempted"``, ``"lease_expired"`` or ``"requested"``.
    """

    expected: int | None = None
    actual: int | None = None
    holder: str | None = None
    holder_ticket: int | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WriteInDoubt(WriteEvent):
    """It is unknown whether a write was applied. `error` is ``"OutcomeUnknown"``.

    Attributes:
        write_id: names the write, or the transaction.
    """

    write_id: str | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Throttled(Event):
    """DynamoDB has throttled an attempt of a request; a later attempt may have succeeded.

    Emitted when the request ends, once for each reason: of every request that PynamoDB sends in this process. Only the
    last attempt is known of reads by PynamoDB (`get`, `query`, `scan`), and of all requests of plain models. That a
    batch leaves out items is not reported.

    Attributes:
        name: table and key of the item, as in the name of a lock; with commas, if DynamoDB does not tell which item of
            a transaction it is. The table alone for a query, a scan and a batch.
        table: the throttled table; the first one of a request about several, if DynamoDB does not tell which.
        index: the throttled index; None for the table itself, or without a reason.
        reason: DynamoDB's, such as ``"TableWriteKeyRangeThroughputExceeded"``; its error code if it gives none.
        operation: DynamoDB's name of the operation, such as ``"UpdateItem"``.
    """

    name: str
    table: str
    index: str | None
    reason: str
    operation: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TransactionEvent(Event):
    """Something that happened to a transaction.

    Attributes:
        transaction_id: its id, never used twice.
        owner: label of the process or caller whose transaction it is.
    """

    transaction_id: str
    owner: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TransactionEnded(TransactionEvent):
    """A transaction of ours has ended.

    Attributes:
        lasted_ms: from its beginning until now, in ms.
        items: how many items it has read or written.
        path: how it was committed: ``"nothing"``, ``"read"``, ``"single"``, ``"native"`` or ``"long"``; empty if there
            was no commit.
        consumed_units: as in `Attempt`: of the requests of the commit; None without one.
    """

    lasted_ms: float
    items: int
    path: str
    consumed_units: float | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TransactionCommitted(TransactionEnded):
    """A transaction was committed.

    Attributes:
        is_repeated: whether it had been committed before under the same idempotency key, and wrote nothing now.
    """

    is_repeated: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TransactionRolledBack(TransactionEnded):
    """A transaction ended, and is not known to be committed.

    Attributes:
        error: the name of the error that ended its commit; empty if the caller rolled it back. With
            ``"OutcomeUnknown"`` it may be committed.
    """

    error: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TransactionRecovered(TransactionEvent):
    """We completed or aborted another process's transaction, which was left open or kept an item busy.

    Attributes:
        table: the table of transactions.
        outcome: ``"finished"`` or ``"aborted"``.
        recovered_by: ``"recover"`` or ``"sweep"``: all of its items were completed. ``"reader"``: one item was in our
            way.
        reason: why we aborted it: ``"lease_expired"`` or ``"preempted"``; empty if it had been decided before.
    """

    table: str
    outcome: str
    recovered_by: str
    reason: str = ""
