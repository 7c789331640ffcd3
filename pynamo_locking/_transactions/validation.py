"""Checks that what a transaction has read is still so, in transactional reads; for why see `together.settle`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamo_locking._core import limits
from pynamo_locking._core.commit_paths import chunks
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.transaction import shows_committed
from pynamo_locking._io import header_requests, trust
from pynamo_locking._io.transactional_reads import TooLarge, get_together
from pynamo_locking._items import images as item_images

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pynamo_locking._core.queue import Mark
    from pynamo_locking._core.transaction import Header
    from pynamo_locking._io.resolver import Resolver
    from pynamo_locking._io.stored import Image
    from pynamo_locking._transactions.member import Member


def validate(
    members: Sequence[Member],
    resolver: Resolver,
    pulse: Callable[[], None] = lambda: None,
    *,
    is_snapshot: bool = False,
) -> None:
    """Check that all items are what they were when they were read.

    Absent ones are checked together, in the first read: an item may come and go, a write id never comes again.
    What is stored and was read before that read, and is unchanged after it, was there at that moment too.

    The mark of a transaction that is not decided is waited for. Not so in a snapshot, if the read that shows the mark
    shows the header as well, and that it is pending: what is decided later changes nothing of that moment. The first
    read is the moment of the snapshot, and the others agree with it. A mark that one of them shows is pending then, so
    it was at that moment, if it was there. Nor can another mark have been there that was committed: to finish it
    would have changed the item since. A placeholder counts as absent, and is in the first read, with its header.

    Only whoever writes nothing may do so: two who write, and look past the marks of each other, would both be right
    about the past and wrong together. Of whom it may not look past, `shows_committed` tells.

    Args:
        members: the items.
        resolver: takes marks out of the way.
        pulse: called before each read; may raise.
        is_snapshot: whether this is all that the transaction does.

    Raises:
        StaleVersion, Conflict: one of them is not.
        TransactionConflict: other transactions kept them busy.
        ConfigurationError: more than a hundred of them were absent.
        StillPending: a transaction that is alive has one of them.
    """
    absent = [member for member in members if member.is_absent]
    if len(absent) > limits.MOST_ACTIONS:
        raise ConfigurationError(
            f"the transaction relies on {len(absent)} items that do not exist, and DynamoDB can check "
            f"{limits.MOST_ACTIONS} at once: read fewer of them, or use isolation='read_committed'."
        )
    ordered = in_order(members)
    parts = [[ordered[i] for i in chunk] for chunk in chunks([item_size(member) for member in ordered])]
    while parts:
        pulse()
        left = _Part(parts.pop(0), resolver, is_snapshot=is_snapshot).validate()
        if left:
            parts.insert(0, left)


def in_order(members: Sequence[Member]) -> list[Member]:
    """Return the items in the order in which they are checked: the absent ones first."""
    return sorted(members, key=lambda member: not member.is_absent)


class _Part:
    """Items that are checked by one read.

    Args:
        members: the items, of which the absent ones come first.
        resolver: takes marks out of the way.
        is_snapshot: whether to look past marks, by their headers.
    """

    def __init__(self, members: list[Member], resolver: Resolver, *, is_snapshot: bool) -> None:
        self._members = members
        self._resolver = resolver
        self._is_snapshot = is_snapshot
        self._absent = sum(member.is_absent for member in members)
        self._left: list[Member] = []
        self._marks = [_mark_in(member, member.stored) for member in members]

    def validate(self) -> list[Member]:
        """Check them; return those of the others that had to make place for headers."""
        while not self._is_valid():
            pass
        return self._left

    def _is_valid(self) -> bool:
        """Check them; tell whether that counts, or has to be done again as some are in the way."""
        marks = self._marks_to_look_past()
        try:
            images = read_together(self._members, marks)
        except TooLarge as error:
            self._halve(error)
            return False
        count, is_valid = len(self._members), True
        pairs = zip(marks, images[count:], strict=True)
        found = {mark.id: header_requests.header_in(image, mark.table) for mark, image in pairs}
        for i, (member, image) in enumerate(zip(self._members, images[:count], strict=True)):
            self._marks[i] = _mark_in(member, image)
            is_valid &= self._holds(member, image, self._marks[i], found)
        return is_valid

    def _holds(
        self, member: Member, image: Image | None, mark: Mark | None, found: Mapping[str, Header | None]
    ) -> bool:
        if mark is None or (mark.id in found and shows_committed(found[mark.id])):
            image = None if mark is not None and mark.is_ghost else image
            if not member.holds(image):
                raise member.refused(image)
        else:
            assert member.row is not None  # noqa: S101 - it has a mark
            if mark.id in found or not self._is_snapshot:
                self._resolver.resolve(member.row, mark)
            return False
        return True

    def _marks_to_look_past(self) -> list[Mark]:
        """Return marks of all transactions whose headers are read as well; items that do not fit then are left."""
        if not self._is_snapshot:
            return []
        marks: dict[str, Mark] = {}
        for i, mark in enumerate(self._marks):
            more = marks if mark is None else marks | {mark.id: mark}
            if i + 1 + len(more) <= limits.MOST_ACTIONS:
                marks = more
            elif i >= self._absent:
                self._leave_from(i)
                break
            else:  # the absent ones have to stay together: they are waited for
                self._is_snapshot = False
                self._leave_from(self._absent)
                return []
        return list(marks.values())

    def _halve(self, error: TooLarge) -> None:
        """Leave half of the items, since marks have made them too large for one read."""
        half = max(self._absent, len(self._members) // 2)
        if not 0 < half < len(self._members):
            raise error.error from error
        self._leave_from(half)

    def _leave_from(self, i: int) -> None:
        self._left = self._members[i:] + self._left
        del self._members[i:], self._marks[i:]


def _mark_in(member: Member, image: Image | None) -> Mark | None:
    row = member.row
    mark = None if row is None else row.state(image).mark
    if row is not None and mark is not None:
        trust.header_table_of(row, mark)  # refuses what names another table, before that is read
    return mark


def item_size(member: Member) -> int:
    """Return about how large an item is, in bytes."""
    if member.is_absent:
        return 0
    return item_images.size_of(
        member.base if isinstance(member.base, dict) else member.item.serialize(null_check=False)
    )


def read_together(members: Sequence[Member], marks: Sequence[Mark] = ()) -> list[Image | None]:
    """Return stored items as they were at one moment, and behind them the headers of marks; up to a hundred.

    Raises:
        TooLarge: the request is refused as it is.
        TransactionConflict: other transactions kept them busy.
    """
    gets = [{"Get": {"TableName": member.table, "Key": member.key}} for member in members]
    connection = members[0].item._get_connection().connection
    gets += [{"Get": {"TableName": mark.table, "Key": {header_requests.ID: {"S": mark.id}}}} for mark in marks]
    return get_together(connection, gets)
