"""Checks that what a transaction has read is still so, in reads that no transaction on its way can deceive.

A plain read is no check: it may return the old value of a native transaction that is decided and not yet applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import limits
from pynamo_locking._core.paths import chunks
from pynamo_locking._core.transaction import shows_committed
from pynamo_locking._io import headers, images, transport, trust
from pynamo_locking._io.together import TooLarge, get_together
from pynamo_locking._io.writes import refusal
from pynamo_locking.exceptions import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pynamo_locking._core.queue import Mark
    from pynamo_locking._core.transaction import Header
    from pynamo_locking._io.requests import Image
    from pynamo_locking._io.resolving import Resolver
    from pynamo_locking._io.unit import Entry, Unread


def validate(
    entries: Sequence[Entry],
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
        entries: the items.
        resolver: takes marks out of the way.
        pulse: called before each read; may raise.
        is_snapshot: whether this is all that the transaction does.

    Raises:
        StaleVersion, Conflict: one of them is not.
        TransactionConflict: other transactions kept them busy.
        ConfigurationError: more than a hundred of them were absent.
        StillPending: a transaction that is alive has one of them.
    """
    absent = [entry for entry in entries if entry.is_absent]
    if len(absent) > limits.MOST_ACTIONS:
        raise ConfigurationError(
            f"the transaction relies on {len(absent)} items that do not exist, and DynamoDB can check "
            f"{limits.MOST_ACTIONS} at once: read fewer of them, or use isolation='read_committed'."
        )
    ordered = in_order(entries)
    parts = [[ordered[i] for i in chunk] for chunk in chunks([item_size(entry) for entry in ordered])]
    while parts:
        pulse()
        left = _Part(parts.pop(0), resolver, is_snapshot=is_snapshot).validate()
        if left:
            parts.insert(0, left)


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Return the items in the order in which they are checked: the absent ones first."""
    return sorted(entries, key=lambda entry: not entry.is_absent)


class _Part:
    """Items that are checked by one read.

    Args:
        entries: the items, of which the absent ones come first.
        resolver: takes marks out of the way.
        is_snapshot: whether to look past marks, by their headers.
    """

    def __init__(self, entries: list[Entry], resolver: Resolver, *, is_snapshot: bool) -> None:
        self._entries = entries
        self._resolver = resolver
        self._is_snapshot = is_snapshot
        self._absent = sum(entry.is_absent for entry in entries)
        self._left: list[Entry] = []
        self._marks = [_mark_in(entry, entry.base) for entry in entries]

    def validate(self) -> list[Entry]:
        """Check them; return those of the others that had to make place for headers."""
        while not self._is_valid():
            pass
        return self._left

    def _is_valid(self) -> bool:
        """Check them; tell whether that counts, or has to be done again as some are in the way."""
        marks = self._marks_to_look_past()
        try:
            images = read_together(self._entries, marks)
        except TooLarge as error:
            self._halve(error)
            return False
        count, is_valid = len(self._entries), True
        pairs = zip(marks, images[count:], strict=True)
        found = {mark.id: headers.header_in(image, mark.table) for mark, image in pairs}
        for i, (entry, image) in enumerate(zip(self._entries, images[:count], strict=True)):
            self._marks[i] = _mark_in(entry, image)
            is_valid &= self._holds(entry, image, self._marks[i], found)
        return is_valid

    def _holds(self, entry: Entry, image: Image | None, mark: Mark | None, found: Mapping[str, Header | None]) -> bool:
        if mark is None:
            _check(entry, image)
        elif mark.id in found and shows_committed(found[mark.id]):
            _check(entry, None if mark.is_ghost else image)
        else:
            assert entry.row is not None  # noqa: S101 - it has a mark
            if mark.id in found or not self._is_snapshot:
                self._resolver.resolve(entry.row, mark)
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
        half = max(self._absent, len(self._entries) // 2)
        if not 0 < half < len(self._entries):
            raise error.error from error
        self._leave_from(half)

    def _leave_from(self, i: int) -> None:
        self._left = self._entries[i:] + self._left
        del self._entries[i:], self._marks[i:]


def _mark_in(entry: Entry, image: Image | Unread | None) -> Mark | None:
    row = entry.row
    mark = row.state(image).mark if row is not None and isinstance(image, dict) else None
    if row is not None and mark is not None:
        trust.book_of(row, mark)  # refuses what names another table, before that is read
    return mark


def _check(entry: Entry, image: Image | None) -> None:
    write = entry.final()
    if not images.holds(image, write.kwargs()):
        cause = transport.condition_failed(TransactWriteError, "the item is not the one that was read", entry.table)
        raise refusal(write, TransactWriteError, image, cause)


def item_size(entry: Entry) -> int:
    """Return about how large an item is, in bytes."""
    if entry.is_absent:
        return 0
    return images.size_of(entry.base if isinstance(entry.base, dict) else entry.item.serialize(null_check=False))


def read_together(entries: Sequence[Entry], marks: Sequence[Mark] = ()) -> list[Image | None]:
    """Return stored items as they were at one moment, and behind them the headers of marks; up to a hundred.

    Raises:
        TooLarge: the request is refused as it is.
        TransactionConflict: other transactions kept them busy.
    """
    gets = [{"Get": {"TableName": entry.table, "Key": entry.key}} for entry in entries]
    connection = entries[0].item._get_connection().connection
    gets += [{"Get": {"TableName": mark.table, "Key": {headers.ID: {"S": mark.id}}}} for mark in marks]
    return get_together(connection, gets)
