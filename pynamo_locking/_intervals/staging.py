"""Adds rows to a transaction, where no other row is, and the guards of their hash keys.

A writer that changes which intervals of a hash key are taken increments the version of the guard in the same
transaction, on condition that it is still the version that the writer read before its query. So DynamoDB refuses one of
two concurrent writers.

Why a query misses no conflicting row: let *settled* mean that DynamoDB has nothing left to do for a row. Claim: when a
guard was written, every row written under it before was settled, or is named in it. The next writer has read the guard,
and either keeps its names and adds its own, or settles the named rows first and leaves only its own names; so the claim
holds again. A row that was settled before the guard was read shows in a later query. A named row is assumed to be where
the guard says; if that place conflicts, the row is settled and searched for.

Of the rows that the transaction itself writes, what counts is where they will be. The commit ensures that.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.intervals import Span, begin_of, joined
from pynamo_locking._intervals.guard_row import Touched, guards_of, note_touched, touched_in
from pynamo_locking._intervals.placing import MOVE, Memory, Placing, by_guard, unsure_of
from pynamo_locking._intervals.search import overlapping
from pynamo_locking._io.transactional_reads import settle
from pynamo_locking._items import knowledge, versions
from pynamo_locking._items.expiry import is_expired
from pynamo_locking._items.keys import ItemKey
from pynamo_locking._locks.several import in_order
from pynamo_locking._transactions.member_writes import Unread
from pynamo_locking.exceptions import OverlapError, also, as_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pynamo_locking._intervals.axis import Axis
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._transactions.member import Member
    from pynamo_locking._transactions.transaction import Transaction

#: A guard that names more rows is settled: with more names it would be larger than a write unit.
MOST_TOUCHED: Final = 8

#: One page of this many rows nearly always shows that the interval is free.
_PAGE: Final = 5

#: The maximum number of rows in an `OverlapError`.
_MOST_TOLD: Final = 20


@dataclass(frozen=True)
class Staged:
    """Rows on their way into a caller's transaction, all or none."""

    tx: Transaction
    axis: Axis
    placings: list[Placing]
    range_locks: Callable[[], list[Lock[Any]]]

    def locks(self) -> Iterator[Lock[Any]]:
        """Yield the range locks, in one canonical order."""
        return in_order(self.range_locks())

    def stage(self) -> None:
        """Add the rows. An error before the first of them leaves the transaction as it was."""
        tx, groups, model = self.tx, by_guard(self.placings), guards_of(self.axis)
        tx._members.note_locks()
        guards = {name: tx._members.counter(model, name) for name in groups}
        work = [Staging(self.axis, tx, guards[name], group, TransactWriteError) for name, group in groups.items()]
        try:
            for staging in work:
                staging.look()
        except OverlapError:
            if tx._is_done_before(self.axis.model):  # its own rows are in the way
                return
            raise
        tx._members.undo += [Memory(placing.row).restore for placing in self.placings if placing.kind == MOVE]
        try:
            for staging in work:
                staging.stage()
        except BaseException:
            tx.rollback()  # it has a part of the rows
            raise


class Staging:
    """New rows of one hash key: `look` refuses them, `stage` adds them to the transaction, with the guard.

    An `OverlapError` is also an `error` of PynamoDB.

    Attributes:
        has_cleared: whether the transaction deletes expired rows for them.
    """

    def __init__(
        self, axis: Axis, tx: Transaction, guard: Member, group: list[Placing], error: type[Exception]
    ) -> None:
        guard.rely()
        self._axis = axis
        self._tx = tx
        self._guard = guard
        self._group = group
        self._error = error
        self._hash_key = group[0].stored_hash_key
        self._expired: list[Image] = []
        self._ours = {member.identity: member.after for member in self._written()}
        self._ours |= {identity: None for identity, key in tx._members.gone.items() if self._is_here(identity, key)}
        self._touched: list[Touched] = []
        self._left: list[Placing] = []
        self.has_cleared = False

    def _written(self) -> list[Member]:
        """Return the rows of the hash key that the transaction writes, and of which it knows where they will be."""
        return [
            member
            for member in self._tx._members.by_key.values()
            if member.write is not None
            and not isinstance(member.after, Unread)
            and self._is_here(member.identity, member.key)
        ]

    def _is_here(self, identity: ItemKey, key: Image) -> bool:
        here, [name] = self._identity(self._hash_key), self._hash_key
        return identity.table == here.table and self._identity({name: key[name]}) == here

    def _is_ours(self, key: Image) -> bool:
        return self._identity(key) in self._ours

    def _identity(self, key: Image) -> ItemKey:
        return ItemKey.of(self._axis.model._get_connection().table_name, key)

    def look(self) -> None:
        """Find out which rows must still be written; refuse rows that overlap others."""
        for placing in self._group:
            placing.is_adopted = False  # each attempt finds out anew
        item: Any = self._guard.item
        named = touched_in(item, self._hash_key)
        ours = [each for each in named if self._is_ours(each.key(self._axis))]
        touched = [each for each in named if not self._is_ours(each.key(self._axis))]
        in_the_way = any(
            each.overlaps(self._axis, placing.span) and each.key(self._axis) != placing.leaves
            for each in touched
            for placing in self._group
        )
        is_unsure = any(unsure_of(placing.row) for placing in self._group)
        if in_the_way or is_unsure or len(touched) > MOST_TOUCHED:
            touched = self._settle(touched)
        found = self._search()
        keys = [each.key(self._axis) for each in touched]
        if any(self._axis.key_in(image) in keys for image, _ in found):  # the row may have moved away already
            touched = self._settle(touched)
            found = self._search()
        self._touched = touched + ours
        self._left = [placing for placing in self._group if not self._is_done(placing, self._stored(placing, found))]
        leaving = [placing.leaves for placing in self._left]
        found = [each for each in found if self._axis.key_in(each[0]) not in leaving]
        for placing in self._left:
            self._check_free(placing, found)

    def stage(self) -> bool:
        """Add the rows and the guard to the transaction; return False if all rows are stored already."""
        if not self._left:
            return False
        for placing in self._left:
            placing.member = placing.write(self._tx)
            self._tx._count_in_guard(placing.member)
        self._clear()
        removed = [member.key for member in self._written() if member.is_deleted]
        removed += [key for identity, key in self._tx._members.gone.items() if identity in self._ours]
        touched = self._touched + [Touched(self._hash_key, (key[self._axis.key_name],)) for key in removed]
        touched += [Touched(self._hash_key, self._axis.ends(placing.span)) for placing in self._left]
        newest = {repr(each.key(self._axis)): each for each in touched}  # the last write of each row counts
        item: Any = self._guard.item
        note_touched(item, list(newest.values()))
        self._guard.save(None, checks=True)
        return True

    def _clear(self) -> None:
        """Delete expired rows that overlap: a late save of a stale copy could extend their lifetime."""
        members = self._tx._members
        kept = [key for placing in self._group for key in (placing.key, placing.leaves)]
        for image in {repr(self._axis.key_in(each)): each for each in self._expired}.values():
            key, item = self._axis.key_in(image), as_model(self._axis.model, image)
            is_ours = self._is_ours(key) or members.written(item) is not None
            if key in kept or is_ours or knowledge.known(item).version is None:
                continue
            members.by_key.pop(self._identity(key), None)  # read as absent: this version of it is checked instead
            members.of(item, is_write=True, replaces=False).delete(None, checks=True)
            self.has_cleared = True

    def _settle(self, touched: list[Touched]) -> list[Touched]:
        settle(self._axis.model, [each.key(self._axis) for each in touched])
        return []

    def _search(self) -> list[tuple[Image, Span]]:
        """Return the rows that may overlap the new ones, without those that are about to move away."""
        leaving = {self._identity(placing.leaves) for placing in self._group if placing.leaves is not None}
        hidden, most = leaving | self._ours.keys(), _MOST_TOLD + len(self._group)
        found, reader = list[Any](), self._tx._members.reader
        for span in joined(placing.span for placing in self._group):
            rows = overlapping(
                self._axis, self._group[0].hash_key, span, reader, page_size=_PAGE, expired=self._expired
            )
            others = (each for each in rows if self._identity(self._axis.key_in(each[0])) not in hidden)
            found += islice(others, most)
        for identity, image in self._ours.items():
            its = self._axis.span_in(image) if isinstance(image, dict) else None
            if its is not None and identity not in leaving:
                found.append((image, its))
        return found

    def _stored(self, placing: Placing, found: list[tuple[Image, Span]]) -> Image | None:
        """Return the row stored at the key of a new one if an earlier call may have stored it; first as just found."""
        if not unsure_of(placing.row):
            return None
        images = (image for image, _ in found if self._axis.key_in(image) == placing.key)
        return next(images, None) or self._tx._members.reader.read(type(placing.row), placing.key)

    def _is_done(self, placing: Placing, image: Image | None) -> bool:
        """Tell whether an earlier call with an unknown outcome has stored the row.

        If that call stored other values, the instance becomes a copy of the stored item.
        """
        row, model = placing.row, type(placing.row)
        if image is None or is_expired(model, image):
            return False
        stored = versions.known_of(model, image)
        ours = next((each for each in unsure_of(row) if each.write_id == stored.write_id), None)
        if ours is None or stored == knowledge.known(row):
            return False
        if ours.asked == placing.asked():
            fresh = model.from_raw_data(copy.deepcopy(image))
            row.attribute_values = fresh.attribute_values
            knowledge.copy_knowledge(fresh, row)
            return True
        if ours.may_be_followed_by(placing.kind):
            knowledge.set_known(row, stored)
            placing.is_adopted = True
        return False

    def _check_free(self, placing: Placing, found: list[tuple[Image, Span]]) -> None:
        """Refuse a row that overlaps others."""
        others = [(image, span) for image, span in found if span.overlaps(placing.span)]
        if others:
            others.sort(key=lambda each: begin_of(each[1]))
            raise overlap(self._axis, placing, others[:_MOST_TOLD], self._error)


def overlap(
    axis: Axis,
    placing: Placing,
    others: Sequence[tuple[Image, Span]],
    error: type[Exception],
    *,
    is_same_call: bool = False,
) -> OverlapError:
    """Return the error for a row whose interval overlaps others."""
    where = ", ".join(_text(span) for _, span in others[:3]) + (", ..." if len(others) > 3 else "")  # noqa: PLR2004
    all_of_them = f"{len(others)} row(s) of that hash key, stored or staged, have"
    whose = "another row of the same call has" if is_same_call else all_of_them
    model, ends = type(placing.row), dict(zip(axis.stored, axis.ends(placing.span), strict=True))
    return also(OverlapError, error)(
        f"a {model.__name__} of {placing.hash_key!r} from {_text(placing.span)} was refused, and nothing was written: "
        f"{whose} a part of that interval ({where}).",
        found=tuple((axis.model, image) for image, _ in others),
        asked=(model, placing.row.serialize(null_check=False) | ends | placing.key),
    )


def _text(span: Span) -> str:
    ends = ["..." if edge is None else str(edge.value) for edge in (span.lower, span.upper)]
    return " to ".join(ends)
