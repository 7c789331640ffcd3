"""Completes transactions whose process has died: their participant rows tell where the marks are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamo_locking._core.errors import LockingError
from pynamo_locking._core.lease import LONGEST_LEASE_S
from pynamo_locking._core.transaction import Fate, Header, Meeting, State, fate, meet
from pynamo_locking._io import header_requests, lock_document, lock_requests, mark_requests, runtime, trust
from pynamo_locking._io.lock_document import LockRow
from pynamo_locking._io.resolver import reason_now, stuck
from pynamo_locking._io.retries import persistently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking._core.queue import Mark
    from pynamo_locking._io.header_requests import HeaderTable

#: Between two looks at a header that is waited for.
_LOOK_AGAIN_S: Final = 0.5


class Completed(NamedTuple):
    """What became of a transaction, and how many marks of it were found."""

    state: State
    marked: int


def decided(header_table: HeaderTable, header_id: str, *, force: bool) -> Header | None:
    """Return a header once it is decided; abort it if it may be."""
    meeting: Meeting | None = None
    while True:
        header = persistently(lambda: header_requests.read(header_table, header_id))
        if header is None or fate(header) is not Fate.WAIT:
            return header
        meeting = meet(meeting, header, runtime.current.monotonic())
        reason = "asked" if force else reason_now(header, meeting)
        if reason is not None:
            header = header_requests.abort(header_table, header_id, reason, beat=None if force else header.beat)
            if fate(header) is not Fate.WAIT:
                return header
        runtime.current.sleep(max(_LOOK_AGAIN_S / 10, min(_LOOK_AGAIN_S, header.lease / 4)))


def complete(header_table: HeaderTable, header: Header) -> Completed:
    """Take all marks of a decided transaction off their items."""
    spilled, count, marked = list[str](), 0, 0
    for row, spill in participants(header_table, header):
        if spill:
            trust.check_row_of_changes(header.id, spill)
        trust.check_place(header_table, header.id, row.table)
        count += 1
        mark = _mark_in(row)
        if mark is not None and (mark.id, mark.table) == (header.id, header_table.table):
            marked += 1
            if fate(header) is not Fate.FINISH:
                mark_requests.drop(row, mark)
            elif not mark_requests.finish(header_table, row, mark) and _mark_in(row) == mark:
                raise stuck(row, mark, Fate.FINISH)  # as finished, the next reader would drop it
        if spill:
            spilled.append(spill)
    if header.state is State.COMMITTED and count < max(1, header.items):
        raise LockingError(
            f"the rows that name the items of the committed transaction {header.id} are gone (they are kept for 30 "
            f"days), or name {count} items of {header.items}, so it is not known whether all are finished: each is, "
            f"by its next reader or writer."
        )
    if header.state is State.COMMITTED:
        header = header_requests.finish(header_table, header.id)
    else:
        header = header_requests.clean(header_table, header.id, is_certain=False)
    for spill in spilled:
        header_requests.delete_row(header_table, spill)
    return Completed(header.state, marked)


def _mark_in(row: LockRow) -> Mark | None:
    """Return the mark in a row that only a table of transactions names: no more of it than the lock is read."""
    return lock_document.trusted(row, persistently(lambda: lock_requests.look_at_document(row))).mark


def participants(header_table: HeaderTable, header: Header) -> Iterator[tuple[LockRow, str]]:
    """Yield the items that may carry a mark of a transaction, and the row of what did not fit into it.

    The rows that name them were written one after the other, before any mark, so the first that is gone is the end. If
    some have expired, marks of an aborted transaction may be left; they are dropped by their next reader or writer,
    also when the header has expired.

    Raises:
        CorruptRow: such a row is broken.
    """
    for number in range(header.rows):
        name = header_requests.row_of_participants(header.id, number)
        found = header_requests.get_row(
            header_table, name, lambda row: [_row(header_table, each["M"]) for each in row["items"]["L"]]
        )
        if found is None:
            return
        yield from found


def _row(header_table: HeaderTable, stored: dict[str, Any]) -> tuple[LockRow, str]:
    table, spill = stored["table"]["S"], stored["spill"]["S"] if "spill" in stored else ""
    key = stored["key"]["M"]
    row = LockRow(
        connection=header_table.connection,
        table=table,
        key=key,
        hash_name=next(iter(key)),
        attribute=stored["lock"]["S"],
        ttl_attribute=None,
        may_create=False,
        given_name=f"{table}/{'/'.join(str(next(iter(value.values()))) for value in key.values())}",
    )
    return row, spill


def is_dead(header_table: HeaderTable, header: Header, is_over: Callable[[], bool]) -> bool:
    """Watch a pending transaction for a sign of life, for a lease at most; not any more when it is over.

    Raises:
        LockingError: its lease is longer than a day, which a sweep does not watch.
    """
    meeting = meet(None, header, runtime.current.monotonic())
    while reason_now(header, meeting) is None:
        if header.lease > LONGEST_LEASE_S:
            raise LockingError(
                f"its lease of {header.lease:.0f} s is too long to watch it for so long (a day at most). To abort it "
                f"without, use recover(force=True)"
            )
        runtime.current.sleep(min(_LOOK_AGAIN_S, header.lease / 4))
        if is_over():
            return False
        now = persistently(lambda: header_requests.read(header_table, header.id))
        if now is None or now.state is not State.PENDING or now.beat != header.beat:
            return False
        meeting = meet(meeting, now, runtime.current.monotonic())
    return True
