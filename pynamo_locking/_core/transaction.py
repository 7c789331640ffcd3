"""Transactions of many items: what a header says about a mark, and which transaction may be wounded. Pure.

``docs/explanation/transactions.md`` explains the protocol, and what breaks without each of its rules.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any, Final

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import (
    IDLE_TTL_S,
    LONGEST_LEASE_S,
    believed,
    is_count,
    is_over_by_hint,
    is_silent_for_too_long,
)
from pynamo_locking._core.queue import Sighting

#: How long an older transaction waits before it wounds a younger one, so that most can finish.
GRACE_S: Final = 0.15


class State(str, enum.Enum):
    """The state of a transaction: pending, then committed and finished, or aborted."""

    PENDING = "pending"
    COMMITTED = "committed"  # decided; some marked items still wait to be finished
    FINISHED = "finished"  # committed, and nothing is left to do
    ABORTED = "aborted"

    @property
    def is_final(self) -> bool:
        """Whether it can never change again."""
        return self in (State.FINISHED, State.ABORTED)

    @property
    def is_committed(self) -> bool:
        """Whether readers see its writes, or are about to."""
        return self in (State.COMMITTED, State.FINISHED)


@dataclass(frozen=True)
class Keep:
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
    def of(cls, meta: Any) -> Keep:
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
KEEP: Final = Keep()


@dataclass(frozen=True)
class Header:
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
    state: State
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


class Fate(enum.Enum):
    """What is to be done with a mark."""

    DROP = "drop"  # the item stays what it is
    FINISH = "finish"  # the item becomes what the mark intends
    WAIT = "wait"  # the transaction is not decided


def fate(header: Header | None) -> Fate:
    """Return what is to be done with a mark of that transaction.

    A header outlives its marks, except for late copies. So the transaction of a missing header was aborted or finished
    long ago.
    """
    if header is None or header.state.is_final:
        return Fate.DROP
    return Fate.FINISH if header.state is State.COMMITTED else Fate.WAIT


def shows_committed(header: Header | None) -> bool:
    """Tell whether a reader that writes nothing may take the values beside a mark, by the header of that moment.

    They are the committed values while the transaction is pending, and after its abort. But a transaction that has
    checked its reads early comes before every later change of what it read. A reader that sees such a change and the
    values beside the mark would come after the change and before the transaction. So that reader waits.
    """
    if header is None or header.state.is_final:
        return True  # it was aborted, or this mark is a late copy
    return header.state is State.PENDING and not header.is_early


@dataclass(frozen=True)
class Meeting:
    """What a party that waits for a pending transaction has seen of it: when it met it first, and the newest beat."""

    first: float
    sighting: Sighting


def meet(before: Meeting | None, header: Header, now: float) -> Meeting:
    """Return what has been seen after a read of the header that ended at `now`."""
    if before is None:
        return Meeting(now, Sighting(header.beat, now))
    if header.beat > before.sighting.beat:
        return Meeting(before.first, Sighting(header.beat, now))
    return before


def reason_to_abort(
    header: Header, meeting: Meeting, *, now: float, now_ms: int, max_clock_skew: float | None, priority: str | None
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
