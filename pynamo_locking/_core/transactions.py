"""What a transaction decides: its state, whom it wounds, the path of its commit and what that costs. Pure.

``docs/explanation/transactions.md`` explains the protocol, and what breaks without each of its rules.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import assert_never

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import (
    IDLE_TTL_S,
    LONGEST_LEASE_S,
    believed,
    is_count,
    is_over_by_hint,
    is_silent_for_too_long,
)
from pynamo_locking._core.lock_queue import HeartbeatObservation

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


# Transactions of many items: what a header says about a mark, and which transaction may be wounded. Pure.


#: How long an older transaction waits before it wounds a younger one, so that most can finish.
GRACE_S: Final = 0.15


class TransactionStatus(str, enum.Enum):
    """The state of a transaction: pending, then committed and finished, or aborted."""

    PENDING = "pending"
    COMMITTED = "committed"  # decided; some marked items still wait to be finished
    FINISHED = "finished"  # committed, and nothing is left to do
    ABORTED = "aborted"

    @property
    def is_final(self) -> bool:
        """Whether it can never change again."""
        return self in (TransactionStatus.FINISHED, TransactionStatus.ABORTED)

    @property
    def is_committed(self) -> bool:
        """Whether readers see its writes, or are about to."""
        return self in (TransactionStatus.COMMITTED, TransactionStatus.FINISHED)


@dataclass(frozen=True)
class RetentionTimes:
    """After how many seconds DynamoDB's TTL may remove rows; each can be set longer in `Meta`, and not shorter.

    Attributes:
        keep_finished_s: headers and records of transactions with nothing left to do.
        keep_keys_s: idempotency keys.
        keep_rows_s: rows that only help to find marks, and headers of aborted transactions that may have left some.
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
        usual = asdict(cls())
        given = {name: getattr(meta, name, least) for name, least in usual.items()}
        for name, value in given.items():
            if not is_count(value) or value < usual[name]:
                raise ConfigurationError(
                    f"Meta.{name} is {value!r}: it must be a whole number of seconds, and at least {usual[name]:,}."
                )
        return cls(**given)


#: The usual times.
KEEP: Final = RetentionTimes()


@dataclass(frozen=True)
class TransactionRecord:
    """The row that decides a transaction, as stored.

    Attributes:
        id: names this attempt of the transaction, never used twice.
        state: what became of it.
        priority: when its first attempt began, kept by all attempts. The smaller one is older.
        owner: label for people.
        beat: number of the last renewal.
        lease_ms: how long it lives without a renewal, in ms.
        until_ms: end of the lease by the owner's wall clock, in ms since the epoch: a hint.
        by: why it was aborted: ``"wounded"``, ``"expired"`` or ``"asked"``; empty otherwise.
        items: how many items carry its mark.
        rows: how many participant rows it has.
        is_early: whether some of its reads are checked before the decision, and not by it.
    """

    id: str
    state: TransactionStatus
    priority: str = ""
    owner: str = ""
    beat: int = 0
    lease_ms: int = 0
    until_ms: int = 0
    by: str = ""
    items: int = 0
    rows: int = 0
    is_early: bool = False

    @property
    def lease(self) -> float:
        """How long it lives without a renewal, in seconds."""
        return self.lease_ms / 1000

    @property
    def renewed_ms(self) -> int:
        """When its owner has last begun or renewed it, by the owner's wall clock, in ms since the epoch."""
        return self.until_ms - self.lease_ms


class IntentResolution(enum.Enum):
    """What is to be done with a mark."""

    DROP = "drop"  # the item stays what it is
    FINISH = "finish"  # the item becomes what the mark intends
    WAIT = "wait"  # the transaction is not decided


def resolution_of_intent(header: TransactionRecord | None) -> IntentResolution:
    """Return what is to be done with a mark of that transaction.

    A header outlives its marks, except for late copies. So the transaction of a missing header was aborted or finished
    long ago.
    """
    if header is None:
        return IntentResolution.DROP
    match header.state:
        case TransactionStatus.PENDING:
            return IntentResolution.WAIT
        case TransactionStatus.COMMITTED:
            return IntentResolution.FINISH
        case TransactionStatus.FINISHED | TransactionStatus.ABORTED:
            return IntentResolution.DROP
        case _:
            assert_never(header.state)


def shows_committed(header: TransactionRecord | None) -> bool:
    """Tell whether a reader that writes nothing may take the values beside a mark, by the header of that moment.

    They are the committed values while the transaction is pending, and after its abort. But a transaction that has
    checked its reads early comes before every later change of what it read. A reader that sees such a change and the
    values beside the mark would come after the change and before the transaction. So that reader waits.
    """
    if header is None or header.state.is_final:
        return True  # it was aborted, or this mark is a late copy
    # R13: a transaction that has checked its reads early may come before what a reader has seen.
    return header.state is TransactionStatus.PENDING and not header.is_early


@dataclass(frozen=True)
class PendingObservation:
    """What a party that waits for a pending transaction has seen of it: when it met it first, and the newest beat."""

    first: float
    sighting: HeartbeatObservation


def observe_pending(before: PendingObservation | None, header: TransactionRecord, now: float) -> PendingObservation:
    """Return what has been seen after a read of the header that ended at `now`."""
    if before is None:
        return PendingObservation(now, HeartbeatObservation(header.beat, now))
    if header.beat > before.sighting.beat:
        return PendingObservation(before.first, HeartbeatObservation(header.beat, now))
    return before


def reason_to_abort(
    header: TransactionRecord,
    meeting: PendingObservation,
    *,
    now: float,
    now_ms: int,
    max_clock_skew: float | None,
    priority: str | None,
) -> str | None:
    """Return why another party may abort a pending transaction, None if it may not.

    Ages decide among live transactions, and survive retries: the oldest is never wounded, so one always gets through.
    Wrong clocks change who waits, not what is right.

    Args:
        header: the pending one.
        meeting: what has been seen of it.
        now: of the monotonic clock that `meeting` was made with, in seconds.
        now_ms: of the wall clock.
        max_clock_skew: as in `LockSettings`, in seconds; None trusts no wall clock.
        priority: of the transaction that waits for it; None if the waiting party is no transaction.

    Source: the wound-wait rule of Rosenkrantz, Stearns and Lewis (1978).
    """
    lease, until_ms = believed(header.lease_ms, header.until_ms, LONGEST_LEASE_S)
    if is_over_by_hint(until_ms, now_ms, max_clock_skew) or is_silent_for_too_long(meeting.sighting.since, now, lease):
        return "expired"
    if priority is not None and priority < header.priority and now - meeting.first >= GRACE_S:
        return "wounded"
    return None


def row_of_participants(header_id: str, index: int) -> str:
    return f"{header_id}#{index:04}"


def row_of_changes(header_id: str, index: int) -> str:
    """Return the name of a row with what did not fit into a mark."""
    return f"{header_id}!{index:05}"


def row_of_key(key: str) -> str:
    """Return the name of the row of an idempotency key."""
    return f"key#{key}"


# Which path the commit of a transaction takes, what happens to each item on it, and what that costs. Pure.


#: An item and its intent together must stay below DynamoDB's 400 KB, or the intent gets a row of its own.
SPILL_BYTES: Final = 390_000

#: The largest intent that fits into such a row.
LARGEST_SPILL_BYTES: Final = 409_000

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
    LONG = "long"  # header, marks, one native transaction that decides, finish


@dataclass(frozen=True)
class MemberFacts:
    """What the choice of the path, and its costs, have to know of one item. Sizes are in bytes.

    Attributes:
        is_write: False for an item that is only checked.
        is_absent: whether the item did not exist when it was read.
        can_be_marked: whether its model has a lock attribute.
        wants_direct: whether the deciding transaction should write it itself.
        needs_token: whether a second copy of its write, sent alone, would also be applied, with another result.
        size: of the item as it will be stored.
        mark: what the number of requests depends on, if it gets a write intent.
    """

    is_write: bool
    is_absent: bool = False
    can_be_marked: bool = True
    wants_direct: bool = False
    needs_token: bool = False
    size: int = 0
    mark: IntentFacts | None = None


@dataclass(frozen=True)
class IntentFacts:
    """What the number of requests for a mark depends on.

    Attributes:
        size: of the item while it carries the mark.
        key_size: of what a row of participants says of it.
        spill_size: of the row with its changes; 0 if they are in the mark.
        place: whose marks are sent together with it; "" if it is sent alone.
        is_placed_together: whether the mark can be sent together with others.
        is_finished_together: whether its finish can be.
        is_read_first: whether the item is read before it is marked.
    """

    size: int = 0
    key_size: int = 0
    spill_size: int = 0
    place: Hashable = ""
    is_placed_together: bool = True
    is_finished_together: bool = True
    is_read_first: bool = False


@dataclass(frozen=True)
class Plan:
    """How a transaction would be committed now, and in how many requests if no other writer interferes.

    Attributes:
        path: ``"nothing"``, ``"read"``, ``"single"``, ``"native"`` or ``"long"``.
        requests: how many requests the commit makes.
        direct: indexes of the members that the deciding transaction writes itself.
        staged: indexes of the members that are marked before the decision, and finished after it.
        checked: indexes of the members that the deciding transaction checks.
        validated: indexes of the members that transactional reads check before the decision.
        rows: how many participant rows there are.
    """

    path: CommitPath
    requests: int = 0
    direct: tuple[int, ...] = field(default=(), repr=False)
    staged: tuple[int, ...] = field(default=(), repr=False)
    checked: tuple[int, ...] = field(default=(), repr=False)
    validated: tuple[int, ...] = field(default=(), repr=False)
    rows: int = 0

    @property
    def marked(self) -> tuple[int, ...]:
        """Indexes of all members that get a mark: also the direct ones if reads are validated before the decision."""
        # R6: what is written is marked before what was read is checked.
        return tuple(sorted((*self.staged, *self.direct))) if self.validated else self.staged


class CannotBeStaged(ValueError):  # noqa: N818 - a finding
    """More items than the deciding transaction can hold cannot be marked."""


def choose_path(members: Sequence[MemberFacts], *, extra: int = 0, record: bool = False) -> Plan:
    """Return how a transaction is committed, without the number of its requests.

    `members` are in the order of their keys; `extra` counts the other actions of the deciding transaction: lock rows,
    the idempotency key. A native transaction has one more if it leaves a `record`.

    Raises:
        CannotBeStaged: too many of the items have no lock attribute.
    """
    writes = tuple(i for i, member in enumerate(members) if member.is_write)
    reads = tuple(i for i, member in enumerate(members) if not member.is_write)
    if not writes and not extra:
        return Plan(CommitPath.READ, validated=reads) if reads else Plan(CommitPath.NOTHING)
    if len(writes) == 1 and not reads and not extra and not record and not members[writes[0]].needs_token:
        return Plan(CommitPath.SINGLE, direct=writes)
    fits = sum(member.size for member in members) <= dynamodb.MOST_BYTES
    if len(members) + extra + record <= dynamodb.MOST_ACTIONS and fits:
        return Plan(CommitPath.NATIVE, direct=writes, checked=reads)
    return _long_path(members, writes, reads, extra)


def with_requests(plan: Plan, members: Sequence[MemberFacts]) -> Plan:
    """Return a plan with the number of its requests."""
    if plan.path is CommitPath.NOTHING:
        return plan
    sizes = [members[i].size for i in sorted(plan.validated, key=lambda i: not members[i].is_absent)]
    reads = len(chunks(sizes))
    if plan.path is CommitPath.LONG:
        return _with_requests_of_marks(replace(plan, requests=reads), members)
    return replace(plan, requests=reads or 1)


def chunks(sizes: Sequence[int]) -> list[range]:
    """Return which items are read together, within DynamoDB's limits of a native transaction."""
    return _packed(sizes, dynamodb.MOST_BYTES, dynamodb.MOST_ACTIONS)


def _long_path(members: Sequence[MemberFacts], writes: Sequence[int], reads: Sequence[int], extra: int) -> Plan:
    room = dynamodb.MOST_ACTIONS - 1 - extra
    # The decision checks the reads if that leaves most of its places to writes, each of which saves a request. It
    # also does if some items cannot be marked, because those cannot wait for a check before the decision.
    without_mark = sum(not members[i].can_be_marked for i in writes)
    size = sum(members[i].size for i in reads)
    is_checked_inside = (
        len(reads) <= (room - without_mark if without_mark else room // 2) and size <= dynamodb.MOST_BYTES // 2
    )
    checked, validated = (tuple(reads), ()) if is_checked_inside else ((), tuple(reads))
    taken = size if is_checked_inside else 0
    direct = _direct(members, writes, room - len(checked), dynamodb.MOST_BYTES - taken)
    decided = set(direct)
    staged = [i for i in writes if i not in decided]
    stuck = [i for i in (staged if is_checked_inside else writes) if not members[i].can_be_marked]
    if stuck:
        raise CannotBeStaged(_why_stuck(members, writes, len(reads), room))
    return Plan(CommitPath.LONG, 0, tuple(direct), tuple(staged), checked, validated)


def _why_stuck(members: Sequence[MemberFacts], writes: Sequence[int], reads: int, room: int) -> str:
    sizes = [members[i].size for i in writes if not members[i].can_be_marked]
    items, size, most = f"{len(sizes)} of {len(writes)} items", sum(sizes), f"{room}"
    if len(sizes) <= room and size > dynamodb.MOST_BYTES:
        items, most = f"{items}, of {size:,} bytes together,", f"{dynamodb.MOST_BYTES:,} bytes"
    beside = f", and the {reads} items that are only read must be checked together with them" if reads else ""
    return f"{items} have no place for a mark{beside}: one native transaction has room for {most}"


def _direct(members: Sequence[MemberFacts], writes: Sequence[int], room: int, most_bytes: int) -> list[int]:
    """Choose the items that the decision writes itself: those that cannot be marked first."""

    def rank(i: int) -> tuple[bool, bool, bool, int]:
        member = members[i]
        # The mark of an absent item would be a placeholder, and costs twice.
        return (member.can_be_marked, not member.wants_direct, not member.is_absent, -member.size)

    chosen, total = list[int](), 0
    for i in sorted(writes, key=rank):
        if len(chosen) < room and total + members[i].size <= most_bytes:
            chosen.append(i)
            total += members[i].size
    return sorted(chosen)


def _with_requests_of_marks(plan: Plan, members: Sequence[MemberFacts]) -> Plan:
    marks = {i: members[i].mark or IntentFacts() for i in plan.marked}
    rows = keys_in_rows([mark.key_size for mark in marks.values()])
    new = {i for i, mark in marks.items() if members[i].is_absent and not mark.is_read_first}
    ghosts = placeholders([mark.size for i, mark in marks.items() if i in new])
    placing = _batches([(marks[i].place, marks[i].is_placed_together) for i in marks if i not in new])
    finishing = _batches([(marks[i].place, marks[i].is_finished_together) for i in plan.staged])
    spilled = sum(mark.spill_size > 0 for mark in marks.values())
    read = sum(mark.is_read_first for mark in marks.values())
    last = 1 if plan.staged else 0
    requests = plan.requests + 2 + read + len(rows) + 2 * spilled + len(ghosts) + placing + finishing + last
    return replace(plan, requests=requests, rows=len(rows))


def _batches(writes: Sequence[tuple[Hashable, bool]]) -> int:
    """Return how many requests writes take: by place, and whether each can be sent together with others of its place.

    A batch is made by place; of it one request has what can be sent together, if that is more than one write.
    """
    places: dict[Hashable, list[bool]] = {}
    for place, is_together in writes:
        places.setdefault(place, []).append(is_together)
    count = len(places.pop("", ()))
    for together in places.values():
        for start in range(0, len(together), dynamodb.MOST_STATEMENTS):
            batch = together[start : start + dynamodb.MOST_STATEMENTS]
            count += len(batch) - max(0, sum(batch) - 1)
    return count


def placeholders(sizes: Sequence[int]) -> list[range]:
    """Return which placeholders of new items are created together, beside the check of the header."""
    return _packed(sizes, dynamodb.MOST_BYTES, dynamodb.MOST_ACTIONS - 1)


def keys_in_rows(sizes: Sequence[int]) -> list[range]:
    """Return which keys go into which participant row, by their sizes."""
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
