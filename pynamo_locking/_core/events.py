"""What is told of locks, writes and transactions to those who listen. Pure facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened in this process. The kinds are its subclasses.

    Attributes:
        time_ms: when, by this process's wall clock, in ms since the epoch.
        monotonic_s: when, by the clock that leases are counted on, in seconds; only differences mean anything.
    """

    time_ms: int
    monotonic_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LockEvent(Event):
    """Something that happened to a lock.

    Attributes:
        name: the lock's name. It contains the key of what is locked, and never anything else of it.
        table: the table that the lock is kept in.
        model: the model of the item that carries the lock: of the locked item, or a `NamedLock`.
        owner: label of the party whose entry this is about.
        entry_id: names one stay of one party in the queue. Never used twice; empty in `TimedOut`.
        ticket: its place in the queue and fencing token; None while there is none.
    """

    name: str
    table: str
    model: type[Any] | None
    owner: str
    entry_id: str
    ticket: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting(LockEvent):
    """A wait begins: somebody is ahead, or the queue is full. Told once for each attempt to take a lock.

    `Acquired` or `TimedOut` tells its end. Nothing does if it is cancelled, or fails for another reason.

    Attributes:
        queue_depth: how many are in the queue, ourselves included if we are in it.
        ahead: how many of them are in our way. 0 while a transaction has the item.
        holder: label of the first in the queue; empty while a transaction has the item.
        holder_ticket: its ticket.
    """

    queue_depth: int
    ahead: int
    holder: str
    holder_ticket: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt(LockEvent):
    """An attempt to take a lock is over.

    Attributes:
        waited_ms: from the call until now, in ms.
        queue_depth: how many were in the queue when it was last seen, ourselves included if we are in it.
        requests: how many requests it took, also those that failed.
        looks: how many of them were reads.
        consumed_units: read and write units of those that were answered; None if none of them says.
            DynamoDB does not say what a refused request has consumed.
    """

    waited_ms: float
    queue_depth: int
    requests: int
    looks: int
    consumed_units: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Acquired(Attempt):
    """We hold a lock from now on.

    Attributes:
        lease_ms: how long the lock lives without a renewal, in ms.
        mode: ``"exclusive"`` or ``"shared"``.
    """

    lease_ms: int
    mode: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOut(Attempt):
    """We did not get a lock within `wait`, and are in the queue no more.

    Attributes:
        wait_ms: what we would have waited at most, in ms; 0 for ``wait=0``.
    """

    wait_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Renewed(LockEvent):
    """The lease of a lock that we hold was renewed.

    Attributes:
        lease_ms: the length of the lease, in ms.
        took_ms: how long the request took, in ms.
        margin_ms: what was left of the lease when the answer came, in ms; negative if it was over already.
        consumed_units: as in `Attempt`.
        failed_ms: if the renewal before it failed: the time since the last one that succeeded, in ms.
    """

    lease_ms: int
    took_ms: float
    margin_ms: float
    consumed_units: float | None
    failed_ms: float | None = None

    @property
    def is_late(self) -> bool:
        """Whether the lease was over before it was renewed: somebody could have taken the lock away."""
        return self.margin_ms < 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RenewalFailed(LockEvent):
    """A renewal got no answer, or one that proves nothing. The heartbeat tries again soon.

    Attributes:
        lease_ms: the length of the lease, in ms.
        remaining_ms: what is left of it, in ms.
        error: the class of the error that came instead.
        failing_ms: the time since the last renewal that succeeded, in ms.
        is_news: whether it is worth a line in a log: the first failure, the first after the lease has ended, and
            then one after a minute, two, four, and so on, at least once an hour.
    """

    lease_ms: int
    remaining_ms: float
    error: str
    failing_ms: float = 0.0
    is_news: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost(LockEvent):
    """It is proven that a lock that we held is ours no more.

    Attributes:
        reason: ``"evicted"`` or ``"deleted"``, as in `LockLost`.
        held_ms: from the moment we got it, in ms; None if nobody had subscribed by then.
    """

    reason: str
    held_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evicted(LockEvent):
    """We removed an entry of somebody else, who `owner`, `ticket` and `entry_id` are about.

    Not told if the answer to that was lost: somebody else may have removed it at the same time.

    Attributes:
        by: our own label.
        lease_ms: the lease that the entry did not renew, in ms.
        is_forced: whether somebody asked for it with `break_lock`; else it was dead.
    """

    by: str
    lease_ms: int
    is_forced: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Released(LockEvent):
    """A lock that we held was given back.

    Attributes:
        held_ms: from the moment we got it, in ms; None if nobody had subscribed by then, or if it was given
            back before the caller had it.
        renewals: how many renewals were sent, those while we waited included.
        writes: how many guarded writes were made under it, the one that gave it back included.
        is_confirmed: whether an answer said so. Else others may have to wait until its lease is over.
        consumed_units: as in `Attempt`; None as well if a write of the item gave it back.
    """

    held_ms: float | None
    renewals: int
    writes: int
    is_confirmed: bool
    consumed_units: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteEvent(Event):
    """Something that happened to a write of an item, or of many.

    Attributes:
        table: the table of the item; of a transaction that of its first item.
        model: the model of the item; None for a transaction.
        name: table and key of the item, as in the name of a lock; of a transaction its id.
        operation: ``"put"``, ``"update"``, ``"delete"`` or ``"transaction"``.
        error: the name of the error of this package that the caller gets.
    """

    table: str
    model: type[Any] | None
    name: str
    operation: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteRefused(WriteEvent):
    """A write met a conflict, and changed nothing. `error` is the name of a `Conflict`.

    Attributes:
        expected: of a `StaleVersion`: the version that was read.
        actual: of a `StaleVersion`: the version that is stored.
        holder: of an `ItemLocked`: the label of who holds the lock.
        holder_ticket: of an `ItemLocked`: the ticket of that.
        by: of a `TransactionAborted`: ``"wounded"``, ``"expired"`` or ``"asked"``.
    """

    expected: int | None = None
    actual: int | None = None
    holder: str | None = None
    holder_ticket: int | None = None
    by: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteInDoubt(WriteEvent):
    """Nobody knows whether a write was applied. `error` is ``"OutcomeUnknown"``.

    Attributes:
        write_id: names the write, or the transaction.
    """

    write_id: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionEvent(Event):
    """Something that happened to a transaction.

    Attributes:
        transaction_id: its id, never used twice.
        owner: label of the party whose transaction it is.
    """

    transaction_id: str
    owner: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionEnded(TransactionEvent):
    """A transaction of ours is over.

    Attributes:
        lasted_ms: from its beginning until now, in ms.
        items: how many items it has read or written.
        path: how it was committed: ``"nothing"``, ``"read"``, ``"single"``, ``"native"`` or ``"long"``; empty if
            it did not come to that.
    """

    lasted_ms: float
    items: int
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionCommitted(TransactionEnded):
    """A transaction was committed.

    Attributes:
        is_repeated: whether it was committed before, under the same idempotency key, and wrote nothing now.
    """

    is_repeated: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionRolledBack(TransactionEnded):
    """A transaction ended without being committed, or at least without our knowing that it is.

    Attributes:
        error: the name of the error that ended its commit; empty if the caller rolled it back. With
            ``"OutcomeUnknown"`` it may be committed.
    """

    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionRecovered(TransactionEvent):
    """We did something about a transaction of somebody else that was left open, or was in our way.

    Attributes:
        table: the table of transactions.
        outcome: ``"finished"`` or ``"aborted"``.
        by: ``"recover"`` or ``"sweep"``: all of its items were seen to. ``"reader"``: one item was in our way.
        reason: why we aborted it: ``"expired"`` or ``"wounded"``; empty if it was decided already.
    """

    table: str
    outcome: str
    by: str
    reason: str = ""
