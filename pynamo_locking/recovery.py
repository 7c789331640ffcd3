"""What became of transactions of many items, and the completion of those whose process has died.

Nobody has to wait for it: whoever meets an item of such a transaction completes it as far as he needs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pynamo_locking._core.lease import is_count
from pynamo_locking._core.transaction import Header, State
from pynamo_locking._io import events, headers, runtime
from pynamo_locking._io.completion import complete, decided, is_dead
from pynamo_locking._io.pool import Pool
from pynamo_locking._io.requests import Unavailable
from pynamo_locking.exceptions import ConfigurationError, LockingError
from pynamo_locking.terms import check_table
from pynamo_locking.transaction_table import header_table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._io.headers import HeaderTable
    from pynamo_locking.transaction_table import TransactionTable

_T = TypeVar("_T")

logger: logging.Logger = logging.getLogger("pynamo_locking")


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
    header = _answered(lambda: headers.read(header_table_of(check_table(table)), id))
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
    header_table = header_table_of(check_table(table))
    header = _answered(lambda: decided(header_table, id, force=force))
    if header is None:
        return None
    completed = _answered(lambda: complete(header_table, header)).state.value
    if events.listeners:
        events.tell.recovered(header_table, header, id, outcome=completed, by="recover")
    return completed


@dataclass
class SweepReport:
    """What a sweep has found and done.

    Attributes:
        examined: headers of transactions that had something left to do.
        aborted: of those, how many were aborted, or would be since their process shows no sign of life, and left
            marks to be dropped. A dry run also counts those of the last day whose late marks a sweep would look for.
        finished: how many were committed, and were, or would be, finished.
        pending: how many are alive.
        failed: ids of those that could not be completed now, and why: rows of theirs are broken, say, or their lease is
            longer than a day.
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
    of transactions that are alive, which it watches for one lease; one with a lease of more than a day is not watched,
    and counts as failed. Goes on past rows that are broken. For a nightly job, or a Lambda function.

    Args:
        table: where they are.
        segments: how many parts of the table to scan at once.
        dry_run: only report what would be done.
        on_progress: called after each transaction.

    Returns:
        What was found and done.

    Raises:
        LockingError: the table could not be scanned.

    Cost: a scan of the table, and that of `recover` for each transaction that needs it. One that was aborted, and whose
    process did not hear what became of all its marks, is looked at by every sweep for a day: a late mark may arrive.
    """
    header_table, report, mutex = header_table_of(check_table(table)), SweepReport(), runtime.current.mutex()
    if not is_count(segments):
        raise ConfigurationError(f"sweep() needs at least one segment, not {segments!r}.")

    def of_segment(segment: int) -> None:
        for header_id, found in headers.open_headers(header_table, segment, segments):
            verdict = (
                _failed(header_id, found)
                if isinstance(found, LockingError)
                else _sweep_one(header_table, found, lambda: pool.is_over, dry_run=dry_run)
            )
            if pool.is_over:  # the caller was interrupted
                return
            if not verdict:
                continue
            with mutex:
                report.examined += 1
                _count(report, header_id, verdict)
                if on_progress is not None:
                    on_progress(report)

    failures = list[Exception]()

    def job(segment: int) -> None:
        try:
            of_segment(segment)
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    pool = Pool([lambda i=i: job(i) for i in range(segments)], segments, lambda _: None)  # type: ignore[misc]
    pool.run()
    if failures:
        raise LockingError(f"the sweep of {header_table.table} was not completed: {failures[0]}") from failures[0]
    return report


def _sweep_one(header_table: HeaderTable, header: Header, is_over: Callable[[], bool], *, dry_run: bool) -> str:
    """Complete one transaction if it is decided or dead; return what it is, nothing if it was complete."""
    was_aborted = header.state is State.ABORTED
    try:
        if header.state is State.PENDING and not is_dead(header_table, header, is_over):
            return "pending"
        if dry_run:
            return "finished" if header.state is State.COMMITTED else "aborted"
        if header.state is State.PENDING:
            header = headers.abort(header_table, header.id, "expired", beat=header.beat)
            if header.state is State.PENDING:
                return "pending"
        completed = complete(header_table, header)
        if was_aborted and not completed.marked:
            return ""
        if events.listeners:
            events.tell.recovered(header_table, header, header.id, outcome=completed.state.value, by="sweep")
    except Exception as error:  # noqa: BLE001 - the others are swept all the same
        return _failed(header.id, error)
    return completed.state.value


def _failed(header_id: str, error: object) -> str:
    logger.warning("transaction %r could not be completed: %s", header_id, error)
    return f"failed: {error}"


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
