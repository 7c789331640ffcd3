"""What became of transactions of many items, and the completion of those whose process has died.

Nobody has to wait for it: whoever meets an item of such a transaction completes it as far as he needs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._core.lease import LockSettings
from pynamo_locking._core.transaction import Fate, Header, Meeting, State, fate, meet, reason_to_abort
from pynamo_locking._io import headers, marks, requests, runtime
from pynamo_locking._io.headers import Book, persistently
from pynamo_locking._io.pool import Pool
from pynamo_locking._io.requests import Row, Unavailable
from pynamo_locking.exceptions import ConfigurationError, LockingError
from pynamo_locking.terms import check_table
from pynamo_locking.transaction_table import book_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking.transaction_table import TransactionTable

_T = TypeVar("_T")

logger = logging.getLogger("pynamo_locking")

#: Between two looks at a header that is waited for.
_LOOK_AGAIN_S: Final = 0.5


def outcome(table: type[TransactionTable], id: str) -> str | None:  # noqa: A002 - the name of what it is
    """Return what became of a transaction of many items.

    Args:
        table: where it is.
        id: its `Transaction.id`, which an `OutcomeUnknown` has as its `write_id`.

    Returns:
        ``"pending"``, ``"committed"`` (decided; some items may still have to be finished), ``"finished"`` or
        ``"aborted"``. None if nothing is known: it had at most a hundred actions, or it ended more than a day ago,
        or it never began.

    Raises:
        LockingError: no answer came.

    Cost: 1 consistent read.
    """
    header = _answered(lambda: headers.read(book_of(check_table(table)), id))
    return None if header is None else header.state.value


def recover(table: type[TransactionTable], id: str, *, force: bool = False) -> str | None:  # noqa: A002
    """Complete a transaction of many items: finish it if it is committed, else abort it, and take its marks off.

    One that is alive is waited for until it is decided, or shows no sign of life for a whole lease.

    Args:
        table: where it is.
        id: its `Transaction.id`.
        force: abort it at once if it is not decided. It then gets a `TransactionAborted`, by ``"asked"``.

    Returns:
        ``"finished"`` or ``"aborted"``; None if nothing is known of it.

    Raises:
        LockingError: no answer came; calling it again is safe.

    Cost: 1 read and 1 write for each of its items, and 2 of its header.
    """
    book = book_of(check_table(table))
    header = _answered(lambda: _decided(book, id, force=force))
    if header is None:
        return None
    return _answered(lambda: _complete(book, header)).state.value


def _decided(book: Book, header_id: str, *, force: bool) -> Header | None:
    """Return a header once it is decided; abort it if it may be."""
    meeting: Meeting | None = None
    while True:
        header = persistently(lambda: headers.read(book, header_id))
        if header is None or fate(header) is not Fate.WAIT:
            return header
        meeting = meet(meeting, header, runtime.current.monotonic())
        reason = "asked" if force else _reason(header, meeting)
        if reason is not None:
            header = headers.abort(book, header_id, reason, beat=None if force else header.beat)
            if fate(header) is not Fate.WAIT:
                return header
            continue
        runtime.current.sleep(min(_LOOK_AGAIN_S, header.lease / 4))


def _reason(header: Header, meeting: Meeting) -> str | None:
    return reason_to_abort(
        header,
        meeting,
        now=runtime.current.monotonic(),
        now_ms=runtime.current.time_ms(),
        max_clock_skew=LockSettings().max_clock_skew,
        priority=None,
    )


def _complete(book: Book, header: Header) -> Header:
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
        label=f"{table}/{'/'.join(str(next(iter(value.values()))) for value in key.values())}",
    )
    return row, stored.get("spill", {}).get("S", "")


@dataclass
class SweepReport:
    """What a sweep has found and done.

    Attributes:
        examined: headers of transactions that had something left to do.
        aborted: of those, how many were aborted, or would be since their process shows no sign of life, and left
            marks to be dropped.
        finished: how many were committed, and were, or would be, finished.
        pending: how many are alive.
        failed: ids of those that could not be completed now, and why.
    """

    examined: int = 0
    aborted: int = 0
    finished: int = 0
    pending: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def sweep(
    table: type[TransactionTable],
    *,
    segments: int = 1,
    dry_run: bool = False,
    on_progress: Callable[[SweepReport], object] | None = None,
) -> SweepReport:
    """Complete all transactions of many items whose process has died.

    Nothing depends on it: it only spares those who come later the work. Safe beside any number of others, and
    of transactions that are alive, which it watches for one lease. For a nightly job, or a Lambda function.

    Args:
        table: where they are.
        segments: how many parts of the table to scan at once.
        dry_run: only report what would be done.
        on_progress: called after each transaction.

    Returns:
        What was found and done.

    Raises:
        LockingError: the table could not be scanned.

    Cost: a scan of the table, and that of `recover` for each transaction that needs it.
    """
    book, report, mutex = book_of(check_table(table)), SweepReport(), runtime.current.mutex()
    if segments < 1:
        raise ConfigurationError(f"sweep() needs at least one segment, not {segments!r}.")

    def of_segment(segment: int) -> None:
        for header in _open_headers(book, segment, segments):
            verdict = _sweep_one(book, header, dry_run=dry_run)
            with mutex:
                report.examined += 1
                _count(report, header.id, verdict)
                if on_progress is not None:
                    on_progress(report)

    failures = list[Exception]()

    def job(segment: int) -> None:
        try:
            of_segment(segment)
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    Pool([lambda i=i: job(i) for i in range(segments)], segments, lambda _: None).run()  # type: ignore[misc]
    if failures:
        raise LockingError(f"the sweep of {book.table} was not completed: {failures[0]}") from failures[0]
    return report


def _open_headers(book: Book, segment: int, segments: int) -> Iterator[Header]:
    kwargs: dict[str, Any] = {
        "TableName": book.table,
        "ConsistentRead": True,
        "Segment": segment,
        "TotalSegments": segments,
        "FilterExpression": "#state IN (:pending, :committed) OR (#state = :aborted AND attribute_not_exists(#clean))",
        "ExpressionAttributeNames": {"#state": headers.STATE, "#clean": headers.CLEAN},
        "ExpressionAttributeValues": {
            ":pending": {"S": State.PENDING.value},
            ":committed": {"S": State.COMMITTED.value},
            ":aborted": {"S": State.ABORTED.value},
        },
    }
    while True:
        answer = persistently(lambda: requests.ask(book.connection, "Scan", kwargs))
        for image in answer["Items"]:
            header = headers.header_in(image)
            if header is not None:
                yield header
        if "LastEvaluatedKey" not in answer:
            return
        kwargs["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def _sweep_one(book: Book, header: Header, *, dry_run: bool) -> str:
    """Complete one transaction if it is decided or dead; return what it is."""
    try:
        if header.state is State.PENDING and not _is_dead(book, header):
            return "pending"
        if dry_run:
            return "finished" if header.state is State.COMMITTED else "aborted"
        if header.state is State.PENDING:
            header = headers.abort(book, header.id, "expired", beat=header.beat)
            if header.state is State.PENDING:
                return "pending"
        return _complete(book, header).state.value
    except Exception as error:  # noqa: BLE001 - the others are swept all the same
        logger.warning("transaction %s could not be completed: %s", header.id, error)
        return f"failed: {error}"


def _is_dead(book: Book, header: Header) -> bool:
    """Watch a pending transaction for a sign of life, for a lease at most."""
    meeting = meet(None, header, runtime.current.monotonic())
    while _reason(header, meeting) is None:
        runtime.current.sleep(min(_LOOK_AGAIN_S, header.lease / 4))
        now = persistently(lambda: headers.read(book, header.id))
        if now is None or now.state is not State.PENDING or now.beat != header.beat:
            return False
        meeting = meet(meeting, now, runtime.current.monotonic())
    return True


def _count(report: SweepReport, header_id: str, verdict: str) -> None:
    if verdict.startswith("failed"):
        report.failed[header_id] = verdict.removeprefix("failed: ")
    else:
        setattr(report, verdict, getattr(report, verdict) + 1)


def _answered(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except Unavailable as error:
        raise LockingError(
            f"no answer from the table of transactions: {error}. Try again.", cause=error.cause
        ) from error
