"""Lock modes: exclusive, shared, permits and ranges, and which of them conflict. Pure.

One rule for all modes: an entry holds the lock once no entry ahead of it conflicts with it. Tickets are drawn in the
order of arrival and a mode never grows, so the entries ahead can only become fewer. Ranges wait in one queue, first
come, first served, so that small ranges do not starve a large one. The kernel's range locks do the same (Lustre's
``range_lock.c``, dm-integrity's "fair range locks").
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from typing_extensions import assert_never

from pynamo_locking._core.row_keys import brief

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


Mode: TypeAlias = Literal["exclusive", "shared"]

EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"


def are_compatible(mode: Mode, other: Mode) -> bool:
    """Tell whether two holders may have a lock in these modes at once: the compatibility matrix."""
    match mode:
        case "exclusive":
            return False
        case "shared":
            return other == SHARED
        case _:
            assert_never(mode)


#: DynamoDB's type and the value in DynamoDB's form: ``("N", "12.5")``, ``("S", "a")``, ``("B", b"a")``.
Bound = tuple[str, Any]


class LockMode(NamedTuple):
    """What an entry asks of its lock.

    Attributes:
        mode: ``"exclusive"``, or ``"shared"`` among readers.
        permits: how many entries may hold the lock together; 1 for all but semaphores.
        lower: where its range begins; None for an open end.
        upper: where its range ends, exclusive; None for an open end.
    """

    mode: Mode = EXCLUSIVE
    permits: int = 1
    lower: Bound | None = None
    upper: Bound | None = None

    @property
    def is_ranged(self) -> bool:
        return self.lower is not None or self.upper is not None

    @property
    def may_write(self) -> bool:
        """Whether its holder is the only one of what it asks for."""
        return self.mode == EXCLUSIVE and self.permits == 1

    @property
    def is_alone(self) -> bool:
        """Whether it conflicts with every other mode."""
        return self.may_write and not self.is_ranged

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """By lower end, the longer range first, exclusive before shared."""
        return (self.lower is not None, self.lower and _by_type(self.lower)), _End(self.upper), self.mode

    def overlaps(self, other: LockMode) -> bool:
        """Tell whether the half-open ranges intersect."""
        return _is_before(self.lower, other.upper) and _is_before(other.lower, self.upper)

    def conflicts(self, other: LockMode) -> bool:
        """Tell whether both cannot hold the lock at once, apart from the number of permits."""
        return not are_compatible(self.mode, other.mode) and self.overlaps(other)

    def covers(self, other: LockMode) -> bool:
        """Tell whether a holder in this mode holds what the other mode asks for."""
        return (
            self.permits == other.permits
            and self.mode in (other.mode, EXCLUSIVE)
            and (self.lower is None or (other.lower is not None and not _is_before(other.lower, self.lower)))
            and (self.upper is None or (other.upper is not None and not _is_before(self.upper, other.upper)))
        )

    def contains(self, bound: Bound) -> bool:
        return (self.lower is None or not _is_before(bound, self.lower)) and _is_before(bound, self.upper)

    def intersects(self, extent: LockMode) -> bool:
        """Tell whether a part of a row's extent lies in the range."""
        return self.overlaps(extent) or (extent.lower is not None and self.contains(extent.lower))

    def __str__(self) -> str:
        parts: list[str] = [self.mode] if self.permits == 1 else [f"permits={self.permits}"]
        if self.is_ranged:
            parts.append(f"[{_text(self.lower)}, {_text(self.upper)})")
        return " ".join(parts)


WHOLE: Final = LockMode()


def extent_of(lower: Bound | None, upper: Bound | None) -> LockMode:
    """Return where a row is among those of its hash key: in an interval, or at a point, whose ends are equal."""
    return LockMode(SHARED, lower=lower, upper=upper)


def spanning(lock_modes: Sequence[LockMode]) -> LockMode:
    """Return the smallest mode that covers all of these; none is a semaphore."""
    lowers, uppers = [lock_mode.lower for lock_mode in lock_modes], [lock_mode.upper for lock_mode in lock_modes]
    mode: Mode = SHARED if all(lock_mode.mode == SHARED for lock_mode in lock_modes) else EXCLUSIVE
    return LockMode(
        mode,
        lower=None if None in lowers else min(filter(None, lowers), key=_by_type),
        upper=None if None in uppers else max(filter(None, uppers), key=_by_type),
    )


def _by_type(bound: Bound) -> tuple[str, Any]:
    return bound[0], order(bound)


@dataclass(frozen=True)
class _End:
    """The upper end of a range: the open end sorts first, then the larger."""

    bound: Bound | None

    def __lt__(self, other: _End) -> bool:
        return other.bound is not None and (self.bound is None or _by_type(self.bound) > _by_type(other.bound))


def _is_before(bound: Bound | None, other: Bound | None) -> bool:
    """Tell whether a range that begins at `bound` reaches below `other`. `disagreement` refuses unlike types."""
    return bound is None or other is None or bound[0] != other[0] or order(bound) < order(other)


def order(bound: Bound) -> Any:
    """Return the sort key of DynamoDB: numbers by value, strings by UTF-8, which is by code points."""
    return Decimal(bound[1]) if bound[0] == "N" else bound[1]


def _text(bound: Bound | None) -> str:
    return "..." if bound is None else brief(bound[1])


def blockers(lock_mode: LockMode, ahead: Iterable[LockMode]) -> list[int]:
    """Return the indexes of the modes that block this one; a semaphore waits for only some of them."""
    found = [(i, other) for i, other in enumerate(ahead) if lock_mode.conflicts(other)]
    is_blocked = len(found) >= lock_mode.permits or any(disagreement(lock_mode, other) for _, other in found)
    return [i for i, _ in found] if is_blocked else []


def front(lock_modes: Iterable[LockMode]) -> Iterator[int]:
    """Yield the indexes of the modes in a queue that no mode before them blocks."""
    before: list[LockMode] = []
    for i, lock_mode in enumerate(lock_modes):
        if not blockers(lock_mode, before):
            yield i
        if lock_mode.is_alone:  # it blocks all that follow, which may be many
            return
        before.append(lock_mode)


def disagreement(lock_mode: LockMode, first: LockMode) -> str | None:
    """Return why two modes cannot be in one queue, None if they can. The first entry of the queue decides."""
    if lock_mode.permits != first.permits:
        return f"permits={lock_mode.permits} was asked for, and the queue is one of permits={first.permits}"
    kinds = [{bound[0] for bound in (each.lower, each.upper) if bound is not None} for each in (lock_mode, first)]
    if all(kinds) and kinds[0] != kinds[1]:
        return (
            f"the range {lock_mode} was asked for, and the queue is one of ranges like {first}: values of another type"
        )
    return None
