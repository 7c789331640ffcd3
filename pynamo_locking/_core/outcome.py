"""What became of a write that DynamoDB refused: mine already, rejected, lost, or unknown. Pure.

botocore repeats a request whose answer got lost. The second attempt then meets the first one's
effect, and a success looks like a refusal. The image that DynamoDB returns with the refusal decides.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pynamo_locking._core.queue import LockState


class Outcome(Enum):
    """What is known of a refused write."""

    APPLIED = "applied"  # by an earlier attempt of the same request
    REJECTED = "rejected"  # our entry stands; another condition failed
    LOST = "lost"  # our entry is gone, and the write was not applied
    UNKNOWN = "unknown"  # our entry is gone, and an earlier attempt may have been applied before


class Kind(Enum):
    """What a guarded write does to the entry it names."""

    KEEP = "keep"  # counts `writes` up in it
    FINISH = "finish"  # removes it
    DELETE = "delete"  # deletes the item, in an embedded lock together with it


def judge(state: LockState, entry_id: str, ticket: int, number: int, *, kind: Kind, repeated: bool) -> Outcome:
    """Return what became of guarded write `number` of an entry, given the image it was refused with.

    Args:
        state: the lock document in the image; `FREE` if the item is absent.
        entry_id: our entry.
        ticket: our ticket. A late copy of an enter request may revive the entry under another one.
        number: the number of the write; numbers only grow under one entry.
        kind: what the write does to the entry.
        repeated: whether the request was sent more than once.
    """
    mine = state.find(entry_id, ticket)
    if mine is not None:
        return Outcome.APPLIED if mine.writes == number and repeated else Outcome.REJECTED
    if not repeated:
        return Outcome.LOST
    if kind is Kind.DELETE and not state.exists:
        return Outcome.APPLIED
    if kind is Kind.FINISH:
        evicted = state.was_evicted(ticket)
        if evicted is not None:
            return Outcome.LOST if evicted else Outcome.APPLIED
    return Outcome.UNKNOWN
