"""What a transaction decides: its state, which others it pre-empts, the path of its commit and what that costs. Pure.

``docs/explanation/transactions.md`` explains the protocol, and what breaks without each of its rules.
"""

from __future__ import annotations

import contextlib
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from typing_extensions import assert_never

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.lease import (
    IDLE_TTL_S,
    LONGEST_LEASE_S,
    believed,
    is_count,
    is_over_by_hint,
    is_silent_for_too_long,
)
from pynamo_locking._core.lock_queue import HeartbeatObservation
from pynamo_locking._core.row_keys import spelled

if TYPE_CHECKING:
    from collections.abc import Sequence


#: Why another process has aborted a transaction.
AbortReason: TypeAlias = Literal["preempted", "lease_expired", "requested"]

#: The same in the words in which it is stored.
_REASONS: Final[dict[str, AbortReason]] = {
    "wounded": "preempted",
    "expired": "lease_expired",
    "asked": "requested",
}


def public_reason(stored: str) -> AbortReason:
    """Return why a transaction was aborted; nobody else renews a lease, so it has expired if nothing is stored."""
    return _REASONS.get(stored, "lease_expired")


#: How long an older transaction waits before it pre-empts a younger one, so that most can finish.
GRACE_S: Final = 0.15


class TransactionStatus(str, enum.Enum):
    """The state of a transaction: pending, then committed and finished, or aborted."""

    PENDING = "pending"
    COMMITTED = "committed"  # decided; some items with an intent still wait to be finished
    FINISHED = "finished"  # committed, and nothing is left to do
    ABORTED = "aborted"

    @property
    def is_final(self) -> bool:
        return self in (TransactionStatus.FINISHED, TransactionStatus.ABORTED)

    @property
    def is_committed(self) -> bool:
        """Whether readers see its writes, or are about to."""
        return self in (TransactionStatus.COMMITTED, TransactionStatus.FINISHED)


class RetentionTimes(NamedTuple):
    """After how many seconds DynamoDB's TTL may remove rows; each can be set longer in `Meta`, and not shorter.

    Attributes:
        keep_finished_s: records of transactions with nothing left to do.
        keep_keys_s: idempotency keys.
        keep_rows_s: rows that only help to find intents, and records of aborted transactions that may have left some.
    """

    keep_finished_s: int = IDLE_TTL_S
    keep_keys_s: int = IDLE_TTL_S
    keep_rows_s: int = 30 * IDLE_TTL_S

    @classmethod
    def of(cls, meta: Any) -> RetentionTimes:
        """Return the times that the Meta of a table gives, or the usual ones.

        Raises:
            ConfigurationError: one is no whole number, or shorter than the usual time.
        """
        usual = cls()._asdict()
        given: dict[str, Any] = {name: getattr(meta, name, least) for name, least in usual.items()}
        for name, value in given.items():
            if not is_count(value) or value < usual[name]:
                raise ConfigurationError(
                    f"Meta.{name} is {value!r}: it must be a whole number of seconds, and at least {usual[name]:,}."
                )
        return cls(**given)


#: The usual times.
KEEP: Final = RetentionTimes()


class TransactionRecord(NamedTuple):
    """The row that decides a transaction, as stored.

    Attributes:
        id: names this attempt of the transaction, never used twice.
        state: what became of it.
        priority: when its first attempt began, kept by all attempts. The smaller one is older.
        owner: label for people.
        heartbeats: number of the last renewal.
        lease_ms: how long it is valid without a renewal, in ms.
        until_ms: end of the lease by the owner's wall clock, in ms since the epoch: a hint.
        by: why it was aborted: ``"wounded"``, ``"expired"`` or ``"asked"``; empty otherwise.
        items: how many items carry its intent.
        rows: how many participant rows it has.
        is_validated_early: whether some of its reads are checked before the decision, and not by it.
    """

    id: str
    state: TransactionStatus
    priority: str = ""
    owner: str = ""
    heartbeats: int = 0
    lease_ms: int = 0
    until_ms: int = 0
    by: str = ""
    items: int = 0
    rows: int = 0
    is_validated_early: bool = False

    @property
    def lease(self) -> float:
        return self.lease_ms / 1000

    @property
    def renewed_ms(self) -> int:
        """When its owner has last begun or renewed it, by the owner's wall clock, in ms since the epoch."""
        return self.until_ms - self.lease_ms


class CommitStage(enum.IntEnum):
    """How far a commit of many requests has come."""

    PLANNED = 0  # its record may be on its way, or stored
    BEGUN = 1  # the record is acknowledged, and intents may be stored
    SENT = 2  # the decision is on its way, or applied
    DECIDED = 3  # it is committed


class Ending(enum.Enum):
    """What a commit of many requests does after an error before it knows the decision."""

    CONCLUDE = "conclude"  # it is committed: go on as if there had been no error
    UNDO = "undo"  # drop the intents, and raise the error
    ABORTED = "aborted"  # drop the intents, and say that another process has aborted the transaction
    EXPIRE = "expire"  # leave the record, whose lease ends, to others, and raise the error
    UNKNOWN = "unknown"  # say that nobody can tell whether it is committed


class Endings(NamedTuple):
    """What a commit does at one stage, by what its record says once the commit has tried to abort it."""

    committed: Ending
    aborted_here: Ending
    aborted_elsewhere: Ending
    silent: Ending


#: Until the record is acknowledged, the error of that request is what the caller has to know.
#: R11: once the decision was sent, no response is no failure.
ENDINGS: Final = {
    CommitStage.PLANNED: Endings(Ending.CONCLUDE, Ending.UNDO, Ending.UNDO, Ending.EXPIRE),
    CommitStage.BEGUN: Endings(Ending.CONCLUDE, Ending.UNDO, Ending.ABORTED, Ending.EXPIRE),
    CommitStage.SENT: Endings(Ending.CONCLUDE, Ending.UNDO, Ending.ABORTED, Ending.UNKNOWN),
}

#: Why a record was aborted: by the transaction itself.
BY_ITSELF: Final = "itself"


def ending_at(stage: CommitStage, record: TransactionRecord | None) -> Ending:
    """Return what a commit does after an error, with its record after its abort; None if no response tells that."""
    endings = ENDINGS[stage]
    if record is None:
        return endings.silent
    if record.state.is_committed:
        return endings.committed
    return endings.aborted_here if record.by in (BY_ITSELF, "") else endings.aborted_elsewhere


class IntentResolution(enum.Enum):
    """What is to be done with an intent."""

    DROP = "drop"  # the item stays what it is
    FINISH = "finish"  # the item becomes what the intent says
    WAIT = "wait"  # the transaction is not decided


def resolution_of_intent(record: TransactionRecord | None) -> IntentResolution:
    """Return what is to be done with an intent of that transaction.

    A record outlives its intents, except for late copies. So the transaction of a missing record was aborted or
    finished long ago.
    """
    if record is None:
        return IntentResolution.DROP
    match record.state:
        case TransactionStatus.PENDING:
            return IntentResolution.WAIT
        case TransactionStatus.COMMITTED:
            return IntentResolution.FINISH
        case TransactionStatus.FINISHED | TransactionStatus.ABORTED:
            return IntentResolution.DROP
        case _:
            assert_never(record.state)


def shows_committed(record: TransactionRecord | None) -> bool:
    """Tell by the record of that moment whether a read-only reader may take the committed values of an item.

    The values in the item are the committed ones while the transaction is pending, and after its abort. But a
    transaction that has checked its reads early precedes every later change of what it read. A reader that sees such a
    change and the committed values would come after the change and before the transaction. So that reader waits.
    """
    if record is None or record.state.is_final:
        return True  # it was aborted, or this intent is a late copy
    # R13: a transaction that has checked its reads early may come before what a reader has seen.
    return record.state is TransactionStatus.PENDING and not record.is_validated_early


class PendingObservation(NamedTuple):
    """What a process has seen that waits for a pending transaction: when it first saw it, and the last heartbeat."""

    first: float
    observation: HeartbeatObservation


def observe_pending(before: PendingObservation | None, record: TransactionRecord, now: float) -> PendingObservation:
    """Return what has been seen after a read of the record that ended at `now`."""
    if before is None:
        return PendingObservation(now, HeartbeatObservation(record.heartbeats, now))
    if record.heartbeats > before.observation.heartbeats:
        return PendingObservation(before.first, HeartbeatObservation(record.heartbeats, now))
    return before


def reason_to_abort(
    record: TransactionRecord,
    meeting: PendingObservation,
    *,
    now: float,
    now_ms: int,
    max_clock_skew: float | None,
    priority: str | None,
) -> str | None:
    """Return why another process may abort a pending transaction, None if it may not.

    Ages decide among live transactions, and survive retries: the oldest is never pre-empted. What has no intent yet is
    not protected by age. Wrong clocks change who waits, not what is right.

    Args:
        record: the pending one.
        meeting: what has been seen of it.
        now: of the monotonic clock that `meeting` was made with, in seconds.
        now_ms: of the wall clock.
        max_clock_skew: as in `LockSettings`, in seconds; None trusts no wall clock.
        priority: of the transaction that waits for it; None if the waiter is no transaction.

    Source: the wound-wait rule of Rosenkrantz, Stearns and Lewis (1978).
    """
    lease, until_ms = believed(record.lease_ms, record.until_ms, LONGEST_LEASE_S)
    if is_over_by_hint(until_ms, now_ms, max_clock_skew) or is_silent_for_too_long(
        meeting.observation.since, now, lease
    ):
        return "expired"
    if priority is not None and priority < record.priority and now - meeting.first >= GRACE_S:
        return "wounded"
    return None


def row_of_participants(transaction_id: str, index: int) -> str:
    return f"{transaction_id}#{index:04}"


def row_of_changes(transaction_id: str, index: int) -> str:
    """Return the name of a row with what did not fit into an intent."""
    return f"{transaction_id}!{index:05}"


_LONGEST_KEY: Final = 2000


def row_of_key(key: object) -> str:
    """Return the name of the row of an idempotency key; `InvalidInput` if it is none."""
    if isinstance(key, str):
        text = spelled(key)
        with contextlib.suppress(UnicodeEncodeError):
            if 0 < len(text.encode()) <= _LONGEST_KEY:
                return f"key#{text}"
    raise InvalidInput(f"an idempotency key is a text of 1 to {_LONGEST_KEY:,} bytes, not {key!r:.80}.")


#: An item and its intent together must stay below DynamoDB's 400 KB, or the intent gets a separate row.
MOST_BYTES_IN_ITEM: Final = 390_000

#: The largest intent that fits into such a row.
MOST_BYTES_OF_CHANGES: Final = 409_000

#: An item as large as this is better written by the decision itself.
LARGE_BYTES: Final = 380_000

#: How much a participant row holds.
ROW_BYTES: Final = 350_000


class CommitPath(str, enum.Enum):
    """How a transaction is committed."""

    NOTHING = "nothing"  # it neither wrote nor has to check anything
    READ = "read"  # what it read is checked in transactional reads
    SINGLE = "single"  # one conditional write
    NATIVE = "native"  # one native transaction
    LONG = "long"  # record, intents, one native transaction that decides, finish


class ItemFacts(NamedTuple):
    """What the choice of the path has to know of one item. Sizes are in bytes.

    Attributes:
        is_write: False for an item that is only checked.
        is_absent: whether the item did not exist when it was read.
        can_have_intent: whether its model has a lock attribute.
        wants_direct: whether the deciding transaction should write it itself.
        needs_token: whether a second copy of its write, sent alone, would also be applied, with another result.
        is_locked: whether this transaction holds its lock.
        needs_read: whether the item would be read right before it gets an intent.
        size: of the item as it will be stored.
    """

    is_write: bool
    is_absent: bool = False
    can_have_intent: bool = True
    wants_direct: bool = False
    needs_token: bool = False
    is_locked: bool = False
    needs_read: bool = False
    size: int = 0


@dataclass(frozen=True)
class CommitPlan:
    """How a transaction would be committed now.

    Attributes:
        path: ``"nothing"``, ``"read"``, ``"single"``, ``"native"`` or ``"long"``.
        direct: indexes of the items that the deciding transaction writes itself.
        staged: indexes of the items that get an intent before the decision, and are finished after it.
        checked: indexes of the items that the deciding transaction checks.
        validated: indexes of the items that transactional reads check before the decision.
    """

    path: CommitPath
    direct: tuple[int, ...] = field(default=(), repr=False)
    staged: tuple[int, ...] = field(default=(), repr=False)
    checked: tuple[int, ...] = field(default=(), repr=False)
    validated: tuple[int, ...] = field(default=(), repr=False)

    @property
    def with_intents(self) -> tuple[int, ...]:
        """Indexes of the items that get an intent: the direct ones too if reads are validated before the decision."""
        # R6: what is written gets its intent before what was read is checked.
        return tuple(sorted((*self.staged, *self.direct))) if self.validated else self.staged


class CannotBeStaged(ValueError):  # noqa: N818 - a finding
    """More items than the deciding transaction can hold cannot have an intent."""


def choose_path(items: Sequence[ItemFacts], *, extra: int = 0, record: bool = False) -> CommitPlan:
    """Return how a transaction is committed.

    `items` are in the order of their keys; `extra` counts the other actions of the deciding transaction: lock rows,
    the idempotency key. A native transaction has one more if it leaves a `record`.

    Raises:
        CannotBeStaged: too many of the items have no lock attribute.
    """
    writes = tuple([i for i, item in enumerate(items) if item.is_write])
    reads = tuple([i for i, item in enumerate(items) if not item.is_write])
    if not writes and not extra:
        return CommitPlan(CommitPath.READ, validated=reads) if reads else CommitPlan(CommitPath.NOTHING)
    if len(writes) == 1 and not reads and not extra and not record and not items[writes[0]].needs_token:
        return CommitPlan(CommitPath.SINGLE, direct=writes)
    fits = sum(item.size for item in items) <= dynamodb.MOST_BYTES
    if len(items) + extra + record <= dynamodb.MOST_ACTIONS and fits:
        return CommitPlan(CommitPath.NATIVE, direct=writes, checked=reads)
    return _long_path(items, writes, reads, extra)


def chunks(sizes: Sequence[int]) -> list[range]:
    """Return which items are read together, within DynamoDB's limits of a native transaction."""
    return _packed(sizes, dynamodb.MOST_BYTES, dynamodb.MOST_ACTIONS)


def _long_path(items: Sequence[ItemFacts], writes: Sequence[int], reads: Sequence[int], extra: int) -> CommitPlan:
    room = dynamodb.MOST_ACTIONS - 1 - extra
    # The decision checks the reads if that leaves most of its places to writes, each of which saves a request. It
    # also does if some items cannot have an intent, because those cannot wait for a check before the decision.
    without_intent = sum(not items[i].can_have_intent for i in writes)
    size = sum(items[i].size for i in reads)
    is_checked_inside = (
        len(reads) <= (room - without_intent if without_intent else room // 2) and size <= dynamodb.MOST_BYTES // 2
    )
    checked, validated = (tuple(reads), ()) if is_checked_inside else ((), tuple(reads))
    taken = size if is_checked_inside else 0
    direct = _direct(items, writes, room - len(checked), dynamodb.MOST_BYTES - taken)
    decided = set(direct)
    staged = [i for i in writes if i not in decided]
    stuck = [i for i in (staged if is_checked_inside else writes) if not items[i].can_have_intent]
    if stuck:
        raise CannotBeStaged(_why_stuck(items, writes, len(reads), room))
    return CommitPlan(CommitPath.LONG, tuple(direct), tuple(staged), checked, validated)


def _why_stuck(items: Sequence[ItemFacts], writes: Sequence[int], reads: int, room: int) -> str:
    sizes = [items[i].size for i in writes if not items[i].can_have_intent]
    stuck, size, most = f"{len(sizes)} of {len(writes)} items", sum(sizes), f"{room}"
    if len(sizes) <= room and size > dynamodb.MOST_BYTES:
        stuck, most = f"{stuck}, of {size:,} bytes together,", f"{dynamodb.MOST_BYTES:,} bytes"
    beside = f", and the {reads} items that are only read must be checked together with them" if reads else ""
    return f"{stuck} have no place for an intent{beside}: one native transaction has room for {most}"


def _direct(items: Sequence[ItemFacts], writes: Sequence[int], room: int, most_bytes: int) -> list[int]:
    """Choose the items that the decision writes itself: those that cannot have an intent first."""

    def rank(i: int) -> tuple[int, ...]:
        one = items[i]
        # The intent of an absent item would be a placeholder, and costs twice. One that is locked, or was read, may be
        # wanted by others, who would wait for its intent.
        is_new = one.is_absent and not one.needs_read
        return (one.can_have_intent, not one.wants_direct, not one.is_locked, not is_new, one.needs_read, -one.size)

    chosen, total = list[int](), 0
    for i in sorted(writes, key=rank):
        if len(chosen) < room and total + items[i].size <= most_bytes:
            chosen.append(i)
            total += items[i].size
    return sorted(chosen)


def placeholders(sizes: Sequence[int]) -> list[range]:
    """Return which placeholders of new items are created together, with the check of the record."""
    return _packed(sizes, dynamodb.MOST_BYTES, dynamodb.MOST_ACTIONS - 1)


def keys_in_rows(sizes: Sequence[int]) -> list[range]:
    return _packed(sizes, ROW_BYTES, len(sizes))


def _packed(sizes: Sequence[int], most_bytes: int, most: int) -> list[range]:
    """Divide a sequence into parts of at most so many bytes, and so many elements."""
    parts, start, total = list[range](), 0, 0
    for i, size in enumerate(sizes):
        if i > start and (total + size > most_bytes or i - start >= most):
            parts.append(range(start, i))
            start, total = i, 0
        total += size
    if sizes:
        parts.append(range(start, len(sizes)))
    return parts
