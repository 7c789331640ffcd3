"""What became of a write that DynamoDB refused or did not answer: applied, rejected, lost, or unknown. Pure.

botocore repeats a request whose answer was lost. The second attempt then finds the effect of the first, and a success
looks like a refusal. The item image that DynamoDB returns with the refusal decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from typing_extensions import assert_never

from pynamo_locking._core.lock_queue import MissingEntry

if TYPE_CHECKING:
    from collections.abc import Collection

    from pynamo_locking._core.lock_queue import EntryOwnership, LockState


#: What `OutcomeUnknown.resolve` answers.
Resolution: TypeAlias = Literal["applied", "not applied", "unknown"]


class Outcome(Enum):
    """What is known of a refused write."""

    APPLIED = "applied"  # by an earlier attempt of the same request
    REJECTED = "rejected"  # our entry is there; another condition failed
    LOST = "lost"  # our entry is gone, and the write was not applied
    UNKNOWN = "unknown"  # our entry is gone, and an earlier attempt may have been applied before


class EntryEffect(Enum):
    """What a guarded write does to the entry it names."""

    KEEP = "keep"  # increments `writes` in it
    FINISH = "finish"  # removes it
    DELETE = "delete"  # deletes the item, in an embedded lock together with it


def judge(state: LockState, ours: EntryOwnership, number: int, *, kind: EntryEffect, repeated: bool) -> Outcome:
    """Return what became of guarded write `number` of an entry, given the image that came with the refusal.

    Args:
        state: the lock document in the image; `FREE` if the item is absent.
        ours: what was known of our entry.
        number: the number of the write; numbers only grow under one entry.
        kind: what the write does to the entry.
        repeated: whether the request is known to have been sent more than once. A proxy may have repeated it unnoticed.
    """
    mine = state.find(ours.id, ours.ticket)
    if mine is not None:
        return Outcome.APPLIED if mine.writes == number else Outcome.REJECTED  # only this write has that number
    in_doubt = Outcome.UNKNOWN if repeated else Outcome.LOST
    match kind:
        case EntryEffect.FINISH:
            why = ours.why_absent(state, is_removal=True, in_doubt=repeated)
            return Outcome.APPLIED if why is MissingEntry.LEFT else Outcome(why.value)
        case EntryEffect.DELETE:
            return Outcome.APPLIED if repeated and not state.exists else in_doubt
        case EntryEffect.KEEP:
            return in_doubt
        case _:
            assert_never(kind)


class Known(NamedTuple):
    """What is known of a stored item: its version, and the id of the write that stored it.

    Attributes:
        version: None if there is no item, or it has no version.
        write_id: None if it is not known: another program wrote the item last, or only a part of it was read.
    """

    version: int | None = None
    write_id: str | None = None

    def may_be(self, stored: Known) -> bool:
        """Tell whether the stored item can be the one that was read."""
        return self.version == stored.version and self.write_id in (None, stored.write_id)

    def is_gone_for_good(self, stored: Known) -> bool:
        """Tell whether what was read can never be stored again: a version may recur, a write id does not."""
        return self.write_id is not None and not self.may_be(stored)

    def is_same_life(self, other: Known) -> bool:
        """Tell whether both are known to be states of one item that was not deleted between them."""
        mine, others = incarnation(self.write_id), incarnation(other.write_id)
        return mine is not None and mine == others


def next_write_id(before: Known, token: str) -> str:
    """Return the id of a write: the life of the item, and a token that is never used twice.

    A writer that checks the version keeps the life. A writer that creates the item, has not read it or does not check
    the version begins a new one. Two equal lives therefore prove that the item was not deleted and created again.

    Args:
        before: what the writer knows of the item that it replaces.
        token: at least eight characters, unique.
    """
    return f"{incarnation(before.write_id) or token[:8]}-{token}"


def incarnation(write_id: str | None) -> str | None:
    """Return the part of a write id that stays the same for as long as the item exists."""
    return write_id.partition("-")[0] if write_id else None


def judge_by_id(
    seen: Known | None, before: Known, write_ids: Collection[str], *, kind: EntryEffect, repeated: bool
) -> Outcome:
    """Return what became of a refused write of an item that carries write ids.

    Args:
        seen: the stored item that came with the refusal; None if there is none.
        before: what the writer knew of the item.
        write_ids: the ids under which the write was sent. An id is stored at most once: a write that could be applied
            twice gets another id each time it is sent.
        kind: what the write does.
        repeated: whether the request was sent more than once.
    """
    if seen is not None and seen.write_id in write_ids:
        return Outcome.APPLIED
    if not repeated:
        return Outcome.REJECTED
    if seen is None:
        return Outcome.APPLIED if kind is EntryEffect.DELETE else Outcome.UNKNOWN
    if before.write_id is not None and seen.write_id == before.write_id:
        return Outcome.REJECTED  # ours would have replaced it
    # Each write of one life increments the version by one. Another writer made the next version, so we did not.
    if before.is_same_life(seen) and before.version is not None and seen.version == before.version + 1:
        return Outcome.REJECTED
    return Outcome.UNKNOWN


def resolve_by_id(
    seen: Known | None, before: Known, write_ids: Collection[str], *, is_checked: bool, is_delete: bool
) -> Outcome | None:
    """Return the final outcome of a write that got no response; None if a copy may still be applied.

    In that case any other write of the item as it was seen prevents that: the copy names the id that was read, and an
    id is never stored again.

    Args:
        seen: the stored item; None if there is none.
        before: what the writer knew of the item.
        write_ids: the ids under which the write was sent.
        is_checked: whether the write names the version, and the id if it is known.
        is_delete: whether the item's absence is what was asked for.
    """
    if is_checked and before.write_id is not None:
        if seen is not None and seen.write_id == before.write_id:
            return None
        kind = EntryEffect.DELETE if is_delete else EntryEffect.KEEP
        return judge_by_id(seen, before, write_ids, kind=kind, repeated=True)
    if seen is None:
        return Outcome.APPLIED if is_delete else Outcome.UNKNOWN
    # It began a new incarnation, and nothing keeps a copy out for ever.
    return (
        Outcome.APPLIED if incarnation(seen.write_id) in set(map(incarnation, write_ids)) - {None} else Outcome.UNKNOWN
    )


@dataclass(frozen=True)
class BatchResult:
    """What became of one write of a guarded batch.

    Attributes:
        item: the model instance.
        operation: ``"save"`` or ``"delete"``.
        error: why it was not applied; None if it was. After an `OutcomeUnknown` it may have been.
    """

    item: Any
    operation: str
    error: Exception | None = None

    @property
    def is_applied(self) -> bool:
        """Whether the write was applied, for certain."""
        return self.error is None
