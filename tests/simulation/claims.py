"""What may be held together, worked out anew from what is stored: the checkers' own rule, not the library's."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamo_locking._core.lock_modes import LockMode

#: A point of a range that sorts before all others, and one that sorts after them.
BEGINNING: Final[tuple[Any, ...]] = (0,)
END: Final[tuple[Any, ...]] = (2,)


class Claimed(NamedTuple):
    """What a party has of a lock, or wants.

    Attributes:
        is_shared: whether others may have the same.
        permits: how many may hold the lock together.
        first: the first point that is part of it.
        behind: the first point behind it.
    """

    is_shared: bool = False
    permits: int = 1
    first: tuple[Any, ...] = BEGINNING
    behind: tuple[Any, ...] = END

    @property
    def is_alone(self) -> bool:
        """Whether no other party may hold any part of it."""
        return not self.is_shared and self.permits == 1

    def has(self, value: Any) -> bool:
        """Tell whether a number is one of its points."""
        return self.first <= (1, "N", Decimal(value)) < self.behind


class Queued(NamedTuple):
    """An entry of a queue."""

    id: str
    ticket: int
    claimed: Claimed


def queued_in(image: Any) -> list[Queued]:
    """Return the queue of the lock in an item, by ticket."""
    document = (image or {}).get("lock", {}).get("M", {})
    entries = document.get("queue", {"M": {}})["M"]
    queue = [Queued(name, int(entry["L"][0]["N"]), _stored(entry["L"][1]["M"])) for name, entry in entries.items()]
    return sorted(queue, key=lambda queued: queued.ticket)


def _stored(entry: dict[str, Any]) -> Claimed:
    permits = int(entry["p"]["N"]) if "p" in entry else 1
    first = _point(entry["lo"]) if "lo" in entry else BEGINNING
    return Claimed(entry.get("m") == {"S": "shared"}, permits, first, _point(entry["hi"]) if "hi" in entry else END)


def _point(stored: dict[str, Any]) -> tuple[Any, ...]:
    [(kind, value)] = stored.items()
    if kind == "N":
        return 1, kind, Decimal(value)
    return 1, kind, value.encode() if kind == "S" else value


def wished(claim: LockMode) -> Claimed:
    """Return what a party asked the library for."""
    ends = [None if end is None else _point(dict([end])) for end in (claim.lower, claim.upper)]
    return Claimed(claim.mode == "shared", claim.permits, ends[0] or BEGINNING, ends[1] or END)


def are_rivals(one: Claimed, other: Claimed) -> bool:
    """Tell whether two want the same point, and one of them for itself."""
    is_common = max(one.first, other.first) < min(one.behind, other.behind)
    return is_common and not (one.is_shared and other.is_shared)


def rivals_ahead(queue: Sequence[Queued], of: Queued) -> list[Queued]:
    """Return those who came earlier and want some of the same, whether they hold it or wait for it."""
    return [other for other in queue if other.ticket < of.ticket and are_rivals(other.claimed, of.claimed)]


def is_turn(queue: Sequence[Queued], of: Queued) -> bool:
    """Tell whether an entry holds what it claims: fewer are before it than may hold that together."""
    return fits(of.claimed, [other.claimed for other in rivals_ahead(queue, of)])


def fits(one: Claimed, rivals: Sequence[Claimed]) -> bool:
    """Tell whether a party may hold a lock beside these, which all want some of the same; by everybody's permits."""
    return len(rivals) < min([one.permits, *(rival.permits for rival in rivals)])
