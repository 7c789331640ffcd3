"""Reports what became of transactions, and completes those whose process has died.

No reader or writer waits for it: each completes an item with an intent that it reads. A sweep is for items that no
process reads.

The state of a record is the only trace of the decision. A pending record whose lease has expired becomes an aborted
one, in the write that also proves that it was not decided meanwhile (R4). A final record stays longer than any request
that may still be on its way (R10), so the sweep removes intents that arrive late.

Rejected: a process that must run to complete transactions. While it does not run, items would stay blocked.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import LONGEST_LEASE_S, is_count, seconds
from pynamo_locking._core.row_keys import brief, text_of_ms
from pynamo_locking._core.transactions import (
    IntentResolution,
    PendingObservation,
    TransactionRecord,
    TransactionStatus,
    observe_pending,
    public_reason,
    resolution_of_intent,
    row_of_key,
    row_of_participants,
)
from pynamo_locking._io import (
    client,
    event_stream,
    lock_record,
    lock_requests,
    responses,
    runtime,
    transaction_record,
    write_intents,
)
from pynamo_locking._io.client import Unavailable, persistently
from pynamo_locking._io.concurrency import Pool, run_all
from pynamo_locking._io.lock_record import LockRow
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.stored_rows import Place
from pynamo_locking._io.write_intents import reason_now, stuck
from pynamo_locking._items import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._core.lease import Duration
    from pynamo_locking._core.lock_queue import LockState, WriteIntent
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._io.transaction_record import RecordTable
    from pynamo_locking._locks.inspection import Shown


_T = TypeVar("_T")

#: The states of a transaction, as they are shown.
STATES: Final = tuple(state.value for state in TransactionStatus)


def outcome(record_table: RecordTable, transaction_id: str | None, key: str | None) -> str | None:
    """Return the state of a transaction; see `TransactionTable.outcome`."""
    if key is not None and transaction_id is None:
        row = row_of_key(key)
        return None if answered(lambda: transaction_record.key_holder(record_table, row)) is None else "committed"
    if key is not None or transaction_id is None:
        raise ConfigurationError("outcome() takes the id of a transaction, or its idempotency key: name one of them.")
    record = answered(lambda: transaction_record.read(record_table, transaction_id))
    return None if record is None else record.state.value


def recover(record_table: RecordTable, transaction_id: str, *, force: bool) -> str | None:
    """Complete a transaction; see `TransactionTable.recover`."""
    record = answered(lambda: _decided(record_table, transaction_id, force=force))
    if record is None:
        return None
    completed, _ = answered(lambda: _complete(record_table, record))
    event_stream.recovered(record_table.table, record, transaction_id, outcome=completed, recovered_by="recover")
    return completed


@dataclass
class SweepReport:
    """What a sweep has found and done.

    Attributes:
        examined: records of transactions that had something left to do.
        aborted: transactions that the sweep aborted (a dry run: would abort, since their process shows no sign of
            life), or that left intents to drop.
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
    record_table: RecordTable,
    *,
    segments: int,
    dry_run: bool,
    on_progress: Callable[[SweepReport], object] | None,
    older_than: Duration = 0.0,
) -> SweepReport:
    """Complete all transactions whose process has died; see `TransactionTable.sweep`."""
    report, mutex, failures = SweepReport(), runtime.current.mutex(), list[Exception]()
    age = seconds(older_than, "older_than")
    last_ms = runtime.current.time_ms() - 1000 * age if age else math.inf  # the clock that stored it may be ahead
    if not is_count(segments):
        raise ConfigurationError(f"sweep() needs at least one segment, not {segments!r}.")

    @cache
    def has_ended(transaction_id: str) -> bool:
        record = persistently(lambda: transaction_record.read(record_table, transaction_id))
        return record is None or record.state.is_final

    def job(segment: int) -> None:
        try:
            for image in _open_rows(record_table, segment, segments):
                name = record_table.keys.name_in(image)
                if name is None:
                    continue
                verdict = _sweep_row(
                    record_table, name, image, last_ms, lambda: pool.is_over, has_ended, dry_run=dry_run
                )
                if pool.is_over:  # the caller was interrupted
                    return
                with mutex:
                    _count(report, name, verdict)
                    if verdict and on_progress is not None:
                        on_progress(report)
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    pool = Pool([lambda i=i: job(i) for i in range(segments)], segments, lambda _: None)  # type: ignore[misc]
    pool.run()
    if failures:
        raise LockingError(f"the sweep of {record_table.table} was not completed: {failures[0]}") from failures[0]
    return report


def _open_rows(record_table: RecordTable, segment: int, segments: int) -> Iterator[Image]:
    """Yield what may need work in one segment of the table: records, and rows of changes, which do not expire."""
    is_ours, names, values = record_table.keys.filter()
    kwargs: dict[str, Any] = {
        "TableName": record_table.table,
        "ConsistentRead": True,
        "Segment": segment,
        "TotalSegments": segments,
        "FilterExpression": f"{is_ours}(#state IN (:pending, :committed) "
        "OR (#state = :aborted AND attribute_not_exists(#clean)) "
        "OR (attribute_exists(#priority) AND NOT #state IN (:pending, :committed, :aborted, :finished)) "
        "OR (attribute_exists(#content) AND attribute_not_exists(#expires)))",
        "ExpressionAttributeNames": {
            "#state": transaction_record.STATE,
            "#clean": transaction_record.CLEAN,
            "#priority": transaction_record.PRIORITY,
            "#content": transaction_record.CONTENT,
            "#expires": record_table.expires,
            **names,
        },
        "ExpressionAttributeValues": {
            **{f":{state.value}": {"S": state.value} for state in TransactionStatus},
            **values,
        },
    }
    while True:
        answer = persistently(lambda: transaction_record.ask(record_table, "Scan", kwargs))
        yield from answer["Items"]
        if "LastEvaluatedKey" not in answer:
            return
        kwargs["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


def _sweep_row(
    record_table: RecordTable,
    name: str,
    image: Image,
    last_ms: float,
    is_over: Callable[[], bool],
    has_ended: Callable[[str], bool],
    *,
    dry_run: bool,
) -> str:
    """Do what one row is found for, unless its transaction was renewed after `last_ms`; see `_sweep_one`."""
    try:
        record = transaction_record.record_in(record_table.row(image), record_table)
        if record is not None:
            return "" if record.renewed_ms > last_ms else _sweep_one(record_table, record, is_over, dry_run=dry_run)
        # A transaction that is pending or committed may need its rows of changes, and its record is there for as long
        # (R3, R9). The process that has left one behind was to remove it.
        owner = None if dry_run else transaction_record.owner_of_changes(name)
        if owner is not None and has_ended(owner):
            transaction_record.delete_row(record_table, name)
    except Exception as error:  # noqa: BLE001 - the sweep goes on with the other transactions
        logger.warning("transaction %r could not be completed: %s", name, error)
        return f"failed: {error}"
    return ""


def _sweep_one(
    record_table: RecordTable, record: TransactionRecord, is_over: Callable[[], bool], *, dry_run: bool
) -> str:
    """Complete one transaction if it is decided or dead; return its state, or "" if it was complete."""
    was_aborted = record.state is TransactionStatus.ABORTED
    if record.state is TransactionStatus.PENDING and not _is_dead(record_table, record, is_over):
        return "pending"
    if dry_run and not was_aborted:
        return "finished" if record.state is TransactionStatus.COMMITTED else "aborted"
    if record.state is TransactionStatus.PENDING:
        record = transaction_record.abort(record_table, record.id, "expired", heartbeats=record.heartbeats)
        if record.state is TransactionStatus.PENDING:
            return "pending"
    completed, intents = _complete(record_table, record, dry_run=dry_run)
    if was_aborted and not intents:
        return ""
    if not dry_run:
        event_stream.recovered(record_table.table, record, record.id, outcome=completed, recovered_by="sweep")
    return completed


def _count(report: SweepReport, transaction_id: str, verdict: str) -> None:
    report.examined += bool(verdict)
    if verdict.startswith("failed"):
        report.failed[transaction_id] = verdict.removeprefix("failed: ")
    elif verdict:
        setattr(report, verdict, getattr(report, verdict) + 1)


#: So many items of a transaction are read before their intents are removed.
_AT_ONCE: Final = dynamodb.MOST_KEYS * write_intents.WORKERS

#: The longest pause between two reads of a pending record.
_POLL_S: Final = 0.5


def _decided(record_table: RecordTable, transaction_id: str, *, force: bool) -> TransactionRecord | None:
    """Return a record once it is decided; abort the transaction as soon as that is allowed."""
    meeting: PendingObservation | None = None
    while True:
        record = persistently(lambda: transaction_record.read(record_table, transaction_id))
        if record is None or resolution_of_intent(record) is not IntentResolution.WAIT:
            return record
        meeting = observe_pending(meeting, record, runtime.current.monotonic())
        reason = "asked" if force else reason_now(record, meeting)
        if reason is not None:
            record = transaction_record.abort(
                record_table, transaction_id, reason, heartbeats=None if force else record.heartbeats
            )
            if resolution_of_intent(record) is not IntentResolution.WAIT:
                return record
        runtime.current.sleep(max(_POLL_S / 10, min(_POLL_S, record.lease / 4)))


def _complete(record_table: RecordTable, record: TransactionRecord, *, dry_run: bool = False) -> tuple[str, int]:
    """Finish or drop all intents of a decided transaction; return its final state, and how many intents were found.

    A dry run, of an aborted one, only counts its intents. What is broken does not keep the other items from being
    completed; the first flaw is raised after that.
    """
    rows, changes_rows, flaws = _named(record_table, record)
    intents = 0
    for start in range(0, len(rows), _AT_ONCE):
        found, broken = _intents_in(rows[start : start + _AT_ONCE], record_table, record)
        if not dry_run:
            _settle(record_table, record, found)
        intents += len(found)
        flaws += broken
    if flaws:
        raise flaws[0]
    if dry_run:
        return record.state.value, intents
    if record.state is TransactionStatus.COMMITTED and len(rows) < max(1, record.items):
        raise LockingError(
            f"the rows that name the items of the committed transaction {brief(record.id)} are gone (they are kept for "
            f"30 days), or name {len(rows)} items of {record.items}, so it is not known whether all are finished: the "
            f"next reader or writer of each item finishes it."
        )
    if record.state is TransactionStatus.COMMITTED:
        record = transaction_record.finish(record_table, record.id)
    else:
        record = transaction_record.clean(record_table, record.id, is_certain=False)
    for changes_row in changes_rows:
        transaction_record.delete_row(record_table, changes_row)
    return record.state.value, intents


def _named(record_table: RecordTable, record: TransactionRecord) -> tuple[list[LockRow], list[str], list[LockingError]]:
    """Return the items and the rows of changes that a transaction names, and what is wrong with the next one."""
    rows: list[LockRow] = []
    changes_rows = list[str]()
    try:
        for row, changes_row in _participants(record_table, record):
            if changes_row:
                transaction_record.check_row_of_changes(record.id, changes_row)
                changes_rows.append(changes_row)
            transaction_record.check_place(record_table, record.id, row.table)
            rows.append(row)
    except LockingError as flaw:
        return rows, changes_rows, [flaw]
    return rows, changes_rows, []


def _settle(
    record_table: RecordTable, record: TransactionRecord, intents: Sequence[tuple[LockRow, WriteIntent]]
) -> None:
    for row, intent in write_intents.settle(record_table, resolution_of_intent(record), intents):
        if _state_of(row).intent == intent:  # if the record said finished, the next reader would drop the intent
            raise stuck(row, intent, IntentResolution.FINISH)


def _intents_in(
    rows: list[LockRow], record_table: RecordTable, record: TransactionRecord
) -> tuple[list[tuple[LockRow, WriteIntent]], list[LockingError]]:
    """Return the intents of a transaction in some items, and the errors for items whose lock documents are broken."""
    states: list[tuple[LockRow, LockState]] = []
    run_all([partial(_read, some, states) for some in _in_batches(rows)], write_intents.WORKERS)
    intents: list[tuple[LockRow, WriteIntent]] = []
    broken = list[LockingError]()
    for row, state in states:
        try:
            intent = lock_record.trusted(row, state).intent
        except LockingError as error:
            broken.append(error)
            continue
        if intent is not None and (intent.id, intent.table) == (record.id, record_table.place):
            intents.append((row, intent))
    return intents, broken


def _in_batches(rows: Sequence[LockRow]) -> list[list[LockRow]]:
    """Return items as they can be read together: a hundred of one table."""
    groups: dict[Any, list[LockRow]] = {}
    for row in rows:
        groups.setdefault((row.table, row.attribute, *sorted(row.key)), []).append(row)
    most = dynamodb.MOST_KEYS
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]


def _read(rows: list[LockRow], states: list[tuple[LockRow, LockState]]) -> None:
    """Read the lock documents of items in one request; one by one if that is refused, which shows why."""
    if len(rows) > 1:
        try:
            images = write_intents.documents(rows)
        except responses.BOTOCORE_EXCEPTIONS as error:
            logger.debug("items are read one by one: %s", error)
        else:
            like = rows[0]
            for image in images:
                row = _row(like.connection, like.table, {name: image[name] for name in like.key}, like.attribute)
                states.append((row, lock_record.state_in(image, like.attribute)))
            return
    states += [(row, _state_of(row)) for row in rows]


def _state_of(row: LockRow) -> LockState:
    """Read the lock document of an item that a table of transactions names, and nothing else of it."""
    return persistently(lambda: lock_requests.read_document(row))


def _participants(record_table: RecordTable, record: TransactionRecord) -> Iterator[tuple[LockRow, str]]:
    """Yield the items that may carry an intent of a transaction, and the row with the changes that did not fit into it.

    The participant rows were written one after another, before any intent, so the first missing row is the end. If rows
    have expired, intents of an aborted transaction may remain; the next reader or writer of the item drops them.
    """
    for part in range(record.rows):
        name = row_of_participants(record.id, part)
        found = transaction_record.get_row(
            record_table, name, lambda row: [row_in(record_table, each["M"]) for each in row["items"]["L"]]
        )
        if found is None:
            return
        yield from found


def row_in(record_table: RecordTable, stored: dict[str, Any]) -> tuple[LockRow, str]:
    """Return an item that a row of participants names, and the row of its changes, if any."""
    row = _row(record_table.connection, stored["table"]["S"], stored["key"]["M"], stored["lock"]["S"])
    return row, stored["spill"]["S"] if "spill" in stored else ""


def _row(connection: Connection, table: str, key: dict[str, Any], attribute: str) -> LockRow:
    return LockRow(
        reach=lambda: connection,
        table=table,
        key=key,
        hash_name=next(iter(key)),
        attribute=attribute,
        ttl_attribute=None,
        may_create=False,
        given_name=f"{table}/{'/'.join(str(next(iter(value.values()))) for value in key.values())}",
    )


def _is_dead(record_table: RecordTable, record: TransactionRecord, is_over: Callable[[], bool]) -> bool:
    """Watch a pending transaction for a renewal, for one lease at most, and only until the sweep `is_over`."""
    meeting = observe_pending(None, record, runtime.current.monotonic())
    while reason_now(record, meeting) is None:
        if record.lease > LONGEST_LEASE_S:
            raise LockingError(
                f"its lease of {record.lease:.0f} s is too long to watch it for so long (a day at most). To abort it "
                f"without, use recover(force=True)"
            )
        runtime.current.sleep(min(_POLL_S, record.lease / 4))
        if is_over():
            return False
        now = persistently(lambda: transaction_record.read(record_table, record.id))
        if now is None or now.state is not TransactionStatus.PENDING or now.heartbeats != record.heartbeats:
            return False
        meeting = observe_pending(meeting, now, runtime.current.monotonic())
    return True


def answered(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except Unavailable as error:
        raise LockingError(f"no response from the transaction table: {error}. Try again.", cause=error.cause) from error


def listed(table: Any, state: str | None) -> tuple[list[Shown], dict[str, str]]:
    """Return the transactions in a table (of one state if given), oldest first, and the flaws of broken rows by id.

    Cost: a consistent scan.
    """
    record_table = transaction_record.record_table_of(table)
    path, found, broken = Place(transaction_record.STATE), list[TransactionRecord](), dict[str, str]()
    is_record = path.exists() | Place(transaction_record.PRIORITY).exists()
    images = client.scan(table, is_record if state is None else path == state)
    for image in images:
        try:
            found += filter(None, [transaction_record.record_in(record_table.row(image), record_table)])
        except LockingError as error:
            broken[str(record_table.keys.name_in(image))] = str(error)
    found.sort(key=lambda record: (record.priority, record.id))
    return [_shown(record) for record in found], dict(sorted(broken.items()))


def shown(table: Any, transaction_id: str) -> Shown | None:
    """Return a transaction, and the items that may carry an intent of it. 1 read, and 1 for each 1000 items or so."""
    record_table = transaction_record.record_table_of(table)
    record = answered(lambda: persistently(lambda: transaction_record.read(record_table, transaction_id)))
    if record is None:
        return None
    found = [
        {
            "table": row.table,
            "key": {name: keys.text_of(*value.values()) for name, value in row.key.items()},
            "lock_attribute": row.attribute,
        }
        for row, _ in answered(lambda: list(_participants(record_table, record)))
    ]
    return {**_shown(record), "participants": found}


def _shown(record: TransactionRecord) -> Shown:
    now_ms = runtime.current.time_ms()
    began, _, _ = record.priority.partition("-")
    began_ms = int(began) if re.fullmatch("[0-9]{1,15}", began) else None  # another program may have stored any text
    return {
        "id": record.id,
        "state": record.state.value,
        "owner": record.owner,
        "items_with_intents": record.items,
        "began_at": None if began_ms is None else text_of_ms(began_ms),
        "age_s": None if began_ms is None else (now_ms - began_ms) / 1000,
        "lease_s": record.lease,
        "since_renewal_s": (now_ms - record.renewed_ms) / 1000,
        "lease_ends_at": text_of_ms(record.until_ms),
        "lease_left_s": (record.until_ms - now_ms) / 1000,
        "abort_reason": public_reason(record.by) if record.by else None,
    }
