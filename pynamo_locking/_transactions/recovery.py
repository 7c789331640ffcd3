"""Reports the outcome of transactions of many items, and completes those whose process has died.

No reader or writer waits for it: each completes a marked item that it meets by itself.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamodb.expressions.operand import Path

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import is_count
from pynamo_locking._core.transaction import Header, State
from pynamo_locking._io import dispatch, event_stream, header_requests, reports, retries, runtime
from pynamo_locking._io.pool import Pool
from pynamo_locking._io.retries import Unavailable
from pynamo_locking._items import key_text
from pynamo_locking._locks.inspection import text_of_ms
from pynamo_locking._transactions.completion import complete, decided, is_dead, participants

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._locks.inspection import Shown

_T = TypeVar("_T")
logger: logging.Logger = logging.getLogger("pynamo_locking")

#: The states of a transaction, as they are shown.
STATES: Final = tuple(state.value for state in State)


def outcome(header_table: HeaderTable, header_id: str) -> str | None:
    """Return the state of a transaction; see `TransactionTable.outcome`."""
    header = _answered(lambda: header_requests.read(header_table, header_id))
    return None if header is None else header.state.value


def recover(header_table: HeaderTable, header_id: str, *, force: bool) -> str | None:
    """Complete a transaction; see `TransactionTable.recover`."""
    header = _answered(lambda: decided(header_table, header_id, force=force))
    if header is None:
        return None
    completed = _answered(lambda: complete(header_table, header)).state.value
    if event_stream.listeners:
        reports.recovered(header_table, header, header_id, outcome=completed, by="recover")
    return completed


@dataclass
class SweepReport:
    """What a sweep has found and done.

    Attributes:
        examined: headers of transactions that had something left to do.
        aborted: transactions that the sweep aborted (a dry run: would abort, since their process shows no sign of
            life), or that left marks to drop. A dry run also counts transactions aborted within the last day, for
            whose late marks a sweep would look.
        finished: committed transactions that the sweep finished, or would finish.
        pending: transactions that are alive.
        failed: the ids of transactions that could not be completed now, and why: broken rows, for example, or a lease
            of more than a day.
    """

    examined: int = 0
    aborted: int = 0
    finished: int = 0
    pending: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def sweep(
    header_table: HeaderTable, *, segments: int, dry_run: bool, on_progress: Callable[[SweepReport], object] | None
) -> SweepReport:
    """Complete all transactions whose process has died; see `TransactionTable.sweep`."""
    report, mutex, failures = SweepReport(), runtime.current.mutex(), list[Exception]()
    if not is_count(segments):
        raise ConfigurationError(f"sweep() needs at least one segment, not {segments!r}.")

    def of_segment(segment: int) -> None:
        for header_id, found in header_requests.open_headers(header_table, segment, segments):
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
    """Complete one transaction if it is decided or dead; return its state, or "" if it was complete."""
    was_aborted = header.state is State.ABORTED
    try:
        if header.state is State.PENDING and not is_dead(header_table, header, is_over):
            return "pending"
        if dry_run:
            return "finished" if header.state is State.COMMITTED else "aborted"
        if header.state is State.PENDING:
            header = header_requests.abort(header_table, header.id, "expired", beat=header.beat)
            if header.state is State.PENDING:
                return "pending"
        completed = complete(header_table, header)
        if was_aborted and not completed.marked:
            return ""
        if event_stream.listeners:
            reports.recovered(header_table, header, header.id, outcome=completed.state.value, by="sweep")
    except Exception as error:  # noqa: BLE001 - the sweep goes on with the other transactions
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
        raise LockingError(f"no response from the transaction table: {error}. Try again.", cause=error.cause) from error


def listed(table: Any, state: str | None) -> tuple[list[Shown], dict[str, str]]:
    """Return the transactions in a table (of one state if given), oldest first, and the flaws of broken rows by id.

    Cost: a consistent scan.
    """
    path = Path([header_requests.STATE])
    found, broken = list[Header](), dict[str, str]()
    for image in dispatch.scan(table, path.exists() if state is None else path == state):
        try:
            found += filter(None, [header_requests.header_in(image, table.Meta.table_name)])
        except LockingError as error:
            broken[image[header_requests.ID]["S"]] = str(error)
    found.sort(key=lambda header: (header.priority, header.id))
    return [_shown(header) for header in found], dict(sorted(broken.items()))


def shown(table: Any, header_id: str) -> Shown | None:
    """Return a transaction, and the items that may carry a mark of it. 1 read, and 1 for each 1000 items or so."""
    header_table = header_requests.header_table_of(table)
    header = _answered(lambda: retries.persistently(lambda: header_requests.read(header_table, header_id)))
    if header is None:
        return None
    found = [
        {
            "table": row.table,
            "key": {name: key_text.text_of(*value.values()) for name, value in row.key.items()},
            "lock_attribute": row.attribute,
        }
        for row, _ in _answered(lambda: list(participants(header_table, header)))
    ]
    return {**_shown(header), "participants": found}


def _shown(header: Header) -> Shown:
    now_ms = runtime.current.time_ms()
    began, _, _ = header.priority.partition("-")
    began_ms = int(began) if re.fullmatch("[0-9]{1,15}", began) else None  # another program may have stored any text
    return {
        "id": header.id,
        "state": header.state.value,
        "owner": header.owner,
        "marked_items": header.items,
        "began_at": None if began_ms is None else text_of_ms(began_ms),
        "age_s": None if began_ms is None else (now_ms - began_ms) / 1000,
        "lease_s": header.lease,
        "since_renewal_s": (now_ms - header.until_ms + header.lease_ms) / 1000,
        "lease_ends_at": text_of_ms(header.until_ms),
        "lease_left_s": (header.until_ms - now_ms) / 1000,
        "aborted_by": header.by or None,
    }
