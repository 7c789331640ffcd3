"""What is known of an entry of ours, and why a lock document does not contain it. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pynamo_locking._core.queue import LockState


#: Why this process gives a lock up by itself, while its entry may still be in the queue: it was held for as long as it
#: may be, or the work under it was silent for too long.
MAX_HOLD: Final = "max_hold"
STALLED: Final = "stalled"


class Absence(Enum):
    """Why our entry is not in a lock document."""

    LOST = "lost"  # evicted, or deleted with the document
    LEFT = "left"  # removed by a request of ours
    UNKNOWN = "unknown"  # lost or left


class Possession(NamedTuple):
    """What is known of an entry since it was granted: held until its loss is proven, or until it is released.

    Attributes:
        id: of the entry.
        ticket: of the entry. A late copy of the request to enter may revive the id under another ticket.
        since: the first ticket of its lock document, which may be deleted and created anew.
        is_over: whether it was released, also after a loss. It is neither renewed nor written under any more.
        reason: why it is lost, as in `LockLost`; empty unless that is proven.
        removals: how many copies of requests to remove it have no definite answer yet. While there is one, the absence
            of the entry proves no loss.
        may_delete: whether a transaction of ours may have deleted the item, and the entry with it.
    """

    id: str
    ticket: int
    since: int
    is_over: bool = False
    reason: str = ""
    removals: int = 0
    may_delete: bool = False

    @property
    def is_held(self) -> bool:
        """Whether it is neither released nor known to be lost."""
        return not (self.is_over or self.reason)

    @property
    def may_stand(self) -> bool:
        """Whether the entry may be in the queue, so that it has to be removed."""
        return self.reason in ("", MAX_HOLD, STALLED)

    @property
    def is_copied(self) -> bool:
        """Whether this process has a mere copy of it: it was forked, or restored from a snapshot, since the grant."""
        return self.reason in ("forked", "restored")

    def over(self) -> Possession:
        """Note that it is released."""
        return self if self.is_over else self._replace(is_over=True)

    def lost(self, reason: str) -> Possession:
        """Note that its loss is proven; without effect if it is not held."""
        return self._replace(reason=reason) if self.is_held else self

    def forked(self) -> Possession:
        """Note that this process is a forked child: an entry that was not released belongs to the parent."""
        return self if self.is_over else self._replace(reason="forked")

    def removing(self, copies: int = 1) -> Possession:
        """Note that so many more requests to remove it may arrive; -1 once DynamoDB refused one of them."""
        return self._replace(removals=self.removals + copies)

    def deleting(self, expected: bool) -> Possession:  # noqa: FBT001
        """Note that a transaction may delete it with the item, or is known not to have done so."""
        return self._replace(may_delete=expected)

    def absent(self, state: LockState, *, is_removal: bool = False) -> Possession:
        """Note that a request (one of the `removals` if `is_removal`) was refused with a document without it."""
        is_deleted = state.since != self.since
        if self.may_delete and is_deleted:
            return self.over()
        why = self.why_absent(state, is_removal=is_removal, in_doubt=self.removals > is_removal)
        return self.lost("deleted" if is_deleted else "evicted") if why is Absence.LOST else self

    def why_absent(self, state: LockState, *, is_removal: bool, in_doubt: bool) -> Absence:
        """Return why a document does not contain it.

        Args:
            state: the document; `FREE` if the item is absent.
            is_removal: whether the document came with the refusal of a request to remove it. A proxy may have repeated
                that; a document that has not forgotten evictions shows such copies as well.
            in_doubt: whether another request to remove it, or an earlier copy of this one, may have been applied.
        """
        evicted = state.was_evicted(self.ticket, self.since)
        if evicted or not (is_removal or in_doubt):
            return Absence.LOST
        if evicted is False:
            return Absence.LEFT
        return Absence.UNKNOWN if in_doubt else Absence.LOST
