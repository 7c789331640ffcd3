"""Which path the commit of a transaction takes, what happens to each item on it, and what that costs. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pynamo_locking._core import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

#: An item and its intent together must stay below DynamoDB's 400 KB, or the intent gets a row of its own.
SPILL_BYTES: Final = 390_000

#: The largest intent that fits into such a row.
LARGEST_SPILL_BYTES: Final = 409_000

#: An item as large as this is better written by the decision itself.
LARGE_BYTES: Final = 380_000

#: How much a participant row holds.
ROW_BYTES: Final = 350_000
_KB: Final = 1024


class CommitPath(str, enum.Enum):
    """How a transaction is committed."""

    NOTHING = "nothing"  # it neither wrote nor has to check anything
    READ = "read"  # what it read is checked in transactional reads
    SINGLE = "single"  # one conditional write
    NATIVE = "native"  # one native transaction
    LONG = "long"  # header, marks, one native transaction that decides, finish


@dataclass(frozen=True)
class MemberFacts:
    """What the choice of the path has to know of one item.

    Attributes:
        is_write: False for an item that is only checked.
        is_absent: whether the item did not exist when it was read.
        can_be_marked: whether its model has a lock attribute.
        wants_direct: whether the deciding transaction should write it itself.
        needs_token: whether a second copy of its write, sent alone, would also be applied, with another result.
        size: of the item as it will be stored. All sizes are in bytes, and estimates.
        before_size: of the item as it was.
        intent_size: of what its mark will say.
        key_size: of its key in a participant row.
        place: whose marks are sent together with its mark; "" if it is sent alone.
    """

    is_write: bool
    is_absent: bool = False
    can_be_marked: bool = True
    wants_direct: bool = False
    needs_token: bool = False
    size: int = 0
    before_size: int = 0
    intent_size: int = 0
    key_size: int = 0
    place: str = ""


@dataclass(frozen=True)
class Plan:
    """How a transaction would be committed now, and what that costs if no other writer interferes.

    Attributes:
        path: ``"nothing"``, ``"read"``, ``"single"``, ``"native"`` or ``"long"``.
        requests: how many requests the commit makes.
        write_units: how many write units it takes.
        read_units: how many read units it takes.
        direct: indexes of the members that the deciding transaction writes itself.
        staged: indexes of the members that are marked before the decision, and finished after it.
        checked: indexes of the members that the deciding transaction checks.
        validated: indexes of the members that transactional reads check before the decision.
        rows: how many participant rows there are.
    """

    path: CommitPath
    requests: int = 0
    write_units: int = 0
    read_units: int = 0
    direct: tuple[int, ...] = field(default=(), repr=False)
    staged: tuple[int, ...] = field(default=(), repr=False)
    checked: tuple[int, ...] = field(default=(), repr=False)
    validated: tuple[int, ...] = field(default=(), repr=False)
    rows: int = 0

    @property
    def marked(self) -> tuple[int, ...]:
        """Indexes of all members that get a mark: also the direct ones if reads are validated before the decision."""
        return tuple(sorted((*self.staged, *self.direct))) if self.validated else self.staged


class CannotBeStaged(ValueError):  # noqa: N818 - a finding
    """More items than the deciding transaction can hold cannot be marked."""


def choose(members: Sequence[MemberFacts], *, extra: int = 0) -> Plan:
    """Return how a transaction is committed.

    `members` are in the order of their keys; `extra` counts the other actions of the deciding transaction: lock rows,
    the idempotency key.

    Raises:
        CannotBeStaged: too many of the items have no lock attribute.
    """
    writes = [i for i, member in enumerate(members) if member.is_write]
    reads = [i for i, member in enumerate(members) if not member.is_write]
    if not writes and not extra:
        return _read_path(members, reads)
    if len(writes) == 1 and not reads and not extra and not members[writes[0]].needs_token:
        return Plan(CommitPath.SINGLE, requests=1, write_units=_units(members[writes[0]]), direct=tuple(writes))
    fits = sum(member.size for member in members) <= limits.MOST_BYTES
    if len(members) + extra <= limits.MOST_ACTIONS and fits:
        units = sum(2 * _units(member) for member in members) + 2 * extra
        return Plan(CommitPath.NATIVE, 1, units, direct=tuple(writes), checked=tuple(reads))
    return _long_path(members, writes, reads, extra)


def _read_path(members: Sequence[MemberFacts], reads: Sequence[int]) -> Plan:
    if not reads:
        return Plan(CommitPath.NOTHING)
    units = sum(2 * -(-max(1, members[i].size) // (4 * _KB)) for i in reads)
    sizes = [members[i].size for i in sorted(reads, key=lambda i: not members[i].is_absent)]
    return Plan(CommitPath.READ, len(chunks(sizes)), read_units=units, validated=tuple(reads))


def chunks(sizes: Sequence[int]) -> list[range]:
    """Return which items are read together, within DynamoDB's limits of a native transaction."""
    return _packed(sizes, limits.MOST_BYTES, limits.MOST_ACTIONS)


def _long_path(members: Sequence[MemberFacts], writes: Sequence[int], reads: Sequence[int], extra: int) -> Plan:
    room = limits.MOST_ACTIONS - 1 - extra
    # The decision checks the reads if that leaves most of its places to writes, each of which saves a request. It
    # also does if some items cannot be marked, because those cannot wait for a check before the decision.
    without_mark = sum(not members[i].can_be_marked for i in writes)
    size = sum(members[i].size for i in reads)
    is_checked_inside = (
        len(reads) <= (room - without_mark if without_mark else room // 2) and size <= limits.MOST_BYTES // 2
    )
    checked, validated = (tuple(reads), ()) if is_checked_inside else ((), tuple(reads))
    taken = size if is_checked_inside else 0
    direct = _direct(members, writes, room - len(checked), limits.MOST_BYTES - taken)
    staged = [i for i in writes if i not in set(direct)]
    stuck = [i for i in (staged if is_checked_inside else writes) if not members[i].can_be_marked]
    if stuck:
        raise CannotBeStaged(f"{len(stuck)} of {len(writes)} items have no place for a mark")
    return _with_costs(Plan(CommitPath.LONG, 0, 0, 0, tuple(direct), tuple(staged), checked, validated), members, extra)


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


def _with_costs(plan: Plan, members: Sequence[MemberFacts], extra: int) -> Plan:
    marked, staged = plan.marked, set(plan.staged)
    keys = [members[i].key_size for i in marked]
    rows = len(keys_in_rows(keys))
    validations = _read_path(members, plan.validated)
    decision = 2 * (1 + extra + sum(_units(members[i]) for i in (*plan.direct, *plan.checked)))
    marks = sum(_mark_units(members[i], is_staged=i in staged) for i in marked)
    finish = sum(_finish_units(members[i]) for i in staged)
    last = 1 if staged else 0
    placing = _batches(["" if members[i].is_absent else members[i].place for i in marked])
    finishing = _batches([members[i].place for i in staged])
    return replace(
        plan,
        requests=1 + rows + placing + validations.requests + 1 + finishing + last,
        write_units=1 + _kb(sum(keys)) + marks + decision + finish + last,
        read_units=validations.read_units,
        rows=rows,
    )


def _batches(places: Sequence[str]) -> int:
    """Return how many requests writes take, of which those of one place are sent together."""
    counts = Counter(places)
    alone = counts.pop("", 0)
    return alone + sum(-(-count // limits.MOST_STATEMENTS) for count in counts.values())


def _units(member: MemberFacts) -> int:
    return _kb(max(1, member.size, member.before_size))


#: What a mark takes besides the values that it intends.
_MARK_BYTES: Final = 150


def _mark_units(member: MemberFacts, *, is_staged: bool) -> int:
    units = _finish_units(member) if is_staged else _kb(member.before_size + _MARK_BYTES)
    return units * (2 if member.is_absent else 1)  # a placeholder is made by a native transaction of its own


def _finish_units(member: MemberFacts) -> int:
    return _kb(max(member.before_size + member.intent_size + _MARK_BYTES, member.size))


def _kb(size: int) -> int:
    return -(-size // _KB)


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
