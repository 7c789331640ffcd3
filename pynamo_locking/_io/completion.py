"""Completes transactions whose process has died: their participant rows tell where the marks are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.transaction import Fate, Header, Meeting, State, fate, meet
from pynamo_locking._io import headers, marks, requests, runtime
from pynamo_locking._io.headers import persistently
from pynamo_locking._io.requests import Row
from pynamo_locking._io.resolving import reason_now
from pynamo_locking.exceptions import LockingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking._io.headers import Book

#: Between two looks at a header that is waited for.
_LOOK_AGAIN_S: Final = 0.5


def decided(book: Book, header_id: str, *, force: bool) -> Header | None:
    """Return a header once it is decided; abort it if it may be."""
    meeting: Meeting | None = None
    while True:
        header = persistently(lambda: headers.read(book, header_id))
        if header is None or fate(header) is not Fate.WAIT:
            return header
        meeting = meet(meeting, header, runtime.current.monotonic())
        reason = "asked" if force else reason_now(header, meeting)
        if reason is not None:
            header = headers.abort(book, header_id, reason, beat=None if force else header.beat)
            if fate(header) is not Fate.WAIT:
                return header
            continue
        runtime.current.sleep(min(_LOOK_AGAIN_S, header.lease / 4))


def complete(book: Book, header: Header) -> Header:
    """Take all marks of a decided transaction off their items."""
    spilled = list[str]()
    for row, spill in _participants(book, header):
        image = persistently(lambda row=row: requests.look(row, consistent=True))  # type: ignore[misc]
        mark = row.state(image).mark
        if mark is not None and mark.id == header.id:
            (marks.finish if fate(header) is Fate.FINISH else marks.drop)(row, mark)
        if spill:
            spilled.append(spill)
    header = (headers.finish if header.state is State.COMMITTED else headers.clean)(book, header.id)
    for spill in spilled:
        headers.delete_row(book, spill)
    return header


def _participants(book: Book, header: Header) -> Iterator[tuple[Row, str]]:
    """Yield the items that may carry a mark of a transaction, and the row of what did not fit into it."""
    for number in range(header.rows):
        content = headers.get_row(book, headers.row_of_participants(header.id, number))
        if content is None and header.state is State.COMMITTED:
            raise LockingError(
                f"the rows that name the items of the committed transaction {header.id} are gone (they are kept for "
                f"30 days), so nobody knows whether all are finished: each is, by whoever reads or writes it."
            )
        for each in [] if content is None else content["items"]["L"]:
            yield _row(book, each["M"])


def _row(book: Book, stored: dict[str, Any]) -> tuple[Row, str]:
    key, table = stored["key"]["M"], stored["table"]["S"]
    row = Row(
        connection=book.connection,
        table=table,
        key=key,
        hash_name=next(iter(key)),
        attribute=stored["lock"]["S"],
        ttl_attribute=None,
        may_create=False,
        name=f"{table}/{'/'.join(str(next(iter(value.values()))) for value in key.values())}",
    )
    return row, stored.get("spill", {}).get("S", "")


def is_dead(book: Book, header: Header) -> bool:
    """Watch a pending transaction for a sign of life, for a lease at most."""
    meeting = meet(None, header, runtime.current.monotonic())
    while reason_now(header, meeting) is None:
        runtime.current.sleep(min(_LOOK_AGAIN_S, header.lease / 4))
        now = persistently(lambda: headers.read(book, header.id))
        if now is None or now.state is not State.PENDING or now.beat != header.beat:
            return False
        meeting = meet(meeting, now, runtime.current.monotonic())
    return True
