"""What is known of an entry of ours, and why a lock document does not have it: lost, left or unknown. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pynamo_locking._core.queue import LockState


class Absence(Enum):
    """Why our entry is not in a lock document."""

    LOST = "lost"  # evicted, or deleted with the document
    LEFT = "left"  # removed by a request of ours
    UNKNOWN = "unknown"  # one of these


def absence(state: LockState, ticket: int, since: int, *, is_removal: bool, in_doubt: bool) -> Absence:
    """Return why our entry is not in the document that a request of ours was refused with.

    Args:
        state: the document; `FREE` if the item is absent.
        ticket: ours.
        since: the first ticket of the document in which the entry was granted.
        is_removal: whether that request was to remove the entry. Something on the way may have made a copy of it,
            which arrived before; a document that has not forgotten knows of that as well.
        in_doubt: whether another request that removes the entry, or another copy of this one, may have been applied.
    """
    evicted = state.was_evicted(ticket, since)
    if evicted or not (is_removal or in_doubt):
        return Absence.LOST
    if evicted is False:
        return Absence.LEFT
    return Absence.UNKNOWN if in_doubt else Absence.LOST


@dataclass(frozen=True)
class Possession:
    """What is known of an entry since it was granted.

    It is held until its loss is proven or the caller gives it back. One that is lost is given back later.

    Attributes:
        ticket: of the entry.
        since: the first ticket of the document that it is in, which may be deleted and made anew.
        is_over: whether it was given back, or will be without the caller: it is neither renewed nor written under.
        reason: why it is lost, as in `LockLost`; empty unless that is proven.
        removals: how many requests of ours that remove it were sent without a definite answer until now. As long as
            there is one, the absence of the entry proves no loss.
        may_delete: whether a transaction of ours may have deleted the item, and the entry with it.
    """

    ticket: int
    since: int
    is_over: bool = False
    reason: str = ""
    removals: int = 0
    may_delete: bool = False

    @property
    def is_held(self) -> bool:
        """Whether it is neither given back nor known to be lost."""
        return not (self.is_over or self.reason)

    def over(self) -> Possession:
        """Return what is known once it is given back."""
        return replace(self, is_over=True)

    def lost(self, reason: str) -> Possession:
        """Return what is known after a proof of loss, which is news only of what is held."""
        return replace(self, reason=reason) if self.is_held else self

    def forked(self) -> Possession:
        """Return what a forked child knows: all that the caller has not given back is the parent's."""
        return self if self.is_over else replace(self, reason="forked")

    def removing(self) -> Possession:
        """Return what is known once a request that removes the entry, or one more copy of it, may arrive."""
        return replace(self, removals=self.removals + 1)

    def staying(self) -> Possession:
        """Return what is known once such a request was refused."""
        return replace(self, removals=self.removals - 1)

    def deleting(self, expected: bool) -> Possession:  # noqa: FBT001
        """Return what is known once a transaction may delete the entry, or is known not to have done so."""
        return replace(self, may_delete=expected)

    def absent(self, state: LockState, *, is_removal: bool = False) -> Possession:
        """Return what is known after a refusal with a document that does not have the entry.

        Args:
            state: the document.
            is_removal: whether the refused request was to remove the entry: this one has not then.
        """
        is_deleted = state.since != self.since
        if self.may_delete and is_deleted:
            return self.over()
        in_doubt = self.removals > is_removal
        why = absence(state, self.ticket, self.since, is_removal=is_removal, in_doubt=in_doubt)
        return self.lost("deleted" if is_deleted else "evicted") if why is Absence.LOST else self
