"""Completes transactions whose process has died; their participant rows name the marked items."""

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

#: The longest pause between two reads of a pending header.
_LOOK_AGAIN_S: Final = 0.5


class Completed(NamedTuple):
    """The final state of a transaction, and how many of its marks were found."""

    state: State
    marked: int


def decided(header_table: HeaderTable, header_id: str, *, force: bool) -> Header | None:
    """Return a header once it is decided; abort the transaction as soon as that is allowed."""
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
    """Finish or drop all marks of a decided transaction."""
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
                raise stuck(row, mark, Fate.FINISH)  # if the header said finished, the next reader would drop the mark
        if spill:
            spilled.append(spill)
    if header.state is State.COMMITTED and count < max(1, header.items):
        raise LockingError(
            f"the rows that name the items of the committed transaction {header.id} are gone (they are kept for 30 "
            f"days), or name {count} items of {header.items}, so it is not known whether all are finished: the next "
            f"reader or writer of each item finishes it."
        )
    if header.state is State.COMMITTED:
        header = header_requests.finish(header_table, header.id)
    else:
        header = header_requests.clean(header_table, header.id, is_certain=False)
    for spill in spilled:
        header_requests.delete_row(header_table, spill)
    return Completed(header.state, marked)


def _mark_in(row: LockRow) -> Mark | None:
    """Return the mark in a row that a table of transactions names; only the lock document is read."""
    return lock_document.trusted(row, persistently(lambda: lock_requests.look_at_document(row))).mark


def participants(header_table: HeaderTable, header: Header) -> Iterator[tuple[LockRow, str]]:
    """Yield the items that may carry a mark of a transaction, and the row with the changes that did not fit into it.

    The participant rows were written one after another, before any mark, so the first missing row is the end. If rows
    have expired, marks of an aborted transaction may remain; the next reader or writer of the item drops them.
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
    table, key = stored["table"]["S"], stored["key"]["M"]
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
    return row, stored["spill"]["S"] if "spill" in stored else ""


def is_dead(header_table: HeaderTable, header: Header, is_over: Callable[[], bool]) -> bool:
    """Watch a pending transaction for a renewal, for one lease at most, and only until the sweep `is_over`."""
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
