"""Write intents of transactions on items: looked up, rolled forward, or dropped.

Each names the transaction, so a second copy, or the same request of another process, changes nothing.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._core.errors import LockingError
from pynamo_locking._core.lease import PATIENCE_S, Deadline, LockSettings, backoff
from pynamo_locking._core.row_keys import brief
from pynamo_locking._core.transactions import (
    IntentResolution,
    PendingObservation,
    TransactionRecord,
    TransactionStatus,
    observe_pending,
    reason_to_abort,
    resolution_of_intent,
)
from pynamo_locking._io import (
    batch_requests,
    client,
    event_stream,
    lock_record,
    protocol,
    responses,
    runtime,
    transaction_record,
)
from pynamo_locking._io.batch_requests import StatementResult, StatementWrite
from pynamo_locking._io.client import Refused, Unavailable, persistently
from pynamo_locking._io.concurrency import run_all
from pynamo_locking._io.protocol import Clause
from pynamo_locking._io.runtime import logger
from pynamo_locking.exceptions import TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pynamo_locking._core.lock_queue import WriteIntent
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._io.transaction_record import RecordTable


#: Parallel requests, as many as of a commit unless the caller says otherwise.
WORKERS: Final = 8


def settle(
    record_table: RecordTable, what: IntentResolution, intents: Sequence[tuple[LockRow, WriteIntent]]
) -> list[tuple[LockRow, WriteIntent]]:
    """Finish or drop the intents of one decided transaction, by statements and several requests at once.

    Returns the intents that stay, since the rows of their changes are gone; see `whole`.
    """
    groups = batch_requests.batches(
        (row.connection, row.table) if _is_whole(intent) else None for row, intent in intents
    )
    gone: list[tuple[LockRow, WriteIntent]] = []
    act = finish_all if what is IntentResolution.FINISH else drop_all

    def job(group: list[int]) -> None:
        gone.extend(act(record_table, [intents[i] for i in group]))

    run_all([partial(job, group) for group in groups], WORKERS)
    return gone


def finish_all(
    record_table: RecordTable, intents: Sequence[tuple[LockRow, WriteIntent]]
) -> list[tuple[LockRow, WriteIntent]]:
    """Apply up to 25 intents in one table, as they are decided, in one request, and each alone that it did not apply.

    Returns those of which nothing was sent, since the rows of their changes are gone; see `whole`.
    """
    left = _sent_together(intents, [finishing(row, intent) for row, intent in intents])
    return [(row, intent) for row, intent in left if not finish(record_table, row, intent)]


def drop_all(_: RecordTable, intents: Sequence[tuple[LockRow, WriteIntent]]) -> list[tuple[LockRow, WriteIntent]]:
    """As `finish_all`, of intents to drop; see `drop`."""
    for row, intent in _sent_together(intents, [_dropping(row, intent) for row, intent in intents]):
        # R4: its record is decided, or gone, which means the same.
        drop(row, intent)
    return []


def _sent_together(
    intents: Sequence[tuple[LockRow, WriteIntent]], writes: Sequence[StatementWrite | None]
) -> list[tuple[LockRow, WriteIntent]]:
    """Send writes in one request; return the intents of those that it did not apply, or perhaps not."""
    if len(intents) == 1:
        return [*intents]
    results = batch_requests.send(writes)
    return [one for one, result in zip(intents, results, strict=True) if result is not StatementResult.APPLIED]


def finish(record_table: RecordTable, row: LockRow, intent: WriteIntent) -> bool:
    """Apply the intent of a transaction that is committed in that table.

    False: the row of its changes is gone, and nothing was sent; see `whole`.
    """
    changes = whole(record_table, intent) if intent.op == "save" else intent
    if changes is None:
        return False
    _send(row, intent, _finishing(row, changes))
    return True


def drop(row: LockRow, intent: WriteIntent) -> None:
    """Remove the intent from an item that stays as it is; delete a placeholder.

    Whether the item is a placeholder is checked in the intent itself: memory could be of another attempt.
    """
    _send(row, intent, _dropping(row, intent))


def finishing(row: LockRow, intent: WriteIntent) -> StatementWrite | None:
    """Return the request that applies an intent; None if the row of its changes has to be read."""
    return _finishing(row, intent) if intent.op != "save" or _is_whole(intent) else None


def _finishing(row: LockRow, intent: WriteIntent) -> StatementWrite:
    if intent.op == "keep":
        return _dropping(row, intent)
    return _request(row, intent, None if intent.op == "delete" else intent)


def _dropping(row: LockRow, intent: WriteIntent) -> StatementWrite:
    if intent.is_placeholder:
        return _request(row, intent, None, protocol.INTENT_OF_PLACEHOLDER)
    return _request(row, intent, replace(intent, set={}, remove=()), protocol.INTENT_OF_ITEM)


def documents(rows: Sequence[LockRow]) -> list[Image]:
    """Read the lock documents of up to a hundred items of one table, consistently, each with the key of its item.

    Raises:
        Unavailable: no usable answer came.
        BotoCoreError, ClientError: DynamoDB refused it for good.
    """
    [first, *_] = rows
    names = {"#l": first.attribute} | {f"#k{i}": name for i, name in enumerate(first.key)}
    how: dict[str, Any] = {"ProjectionExpression": ", ".join(names), "ExpressionAttributeNames": names}
    keys = [row.key for row in rows]
    return persistently(lambda: batch_requests.get_batch(client.ask, first.connection, first.table, keys, **how))


def whole(record_table: RecordTable, intent: WriteIntent) -> WriteIntent | None:
    """Return an intent with its changes, which may be in a separate row.

    None: that row is gone, which happens after all items of the transaction were finished, this one included.

    Raises:
        LockingError: the intent names a row that does not belong to its transaction.
    """
    if _is_whole(intent):
        return intent
    transaction_record.check_row_of_changes(intent.id, intent.changes_row)
    return transaction_record.get_row(
        record_table, intent.changes_row, lambda row: lock_record.with_changes(intent, row)
    )


def _is_whole(intent: WriteIntent) -> bool:
    """Tell whether an intent has its changes: they are in it, or its own transaction has worked it out."""
    return not intent.changes_row or bool(intent.set or intent.remove)


def _request(row: LockRow, intent: WriteIntent, changes: WriteIntent | None, also: Clause = Clause()) -> StatementWrite:  # noqa: B008
    """Return the write that removes an intent: a delete without changes."""
    clause, given = protocol.HAS_INTENT, {**row.names, ":id": {"S": intent.id}}
    if changes is not None:
        removed = () if changes.is_placeholder else changes.remove  # a placeholder has nothing to remove
        clause = protocol.apply_intent(len(changes.set), len(removed))
        for i, (name, value) in enumerate(changes.set.items()):
            given |= {f"#s{i}": name, f":s{i}": value}
        given |= {f"#r{i}": name for i, name in enumerate(removed)}
    kwargs = {"TableName": row.table, "Key": row.key, **protocol.alone(clause + also, given)}
    return StatementWrite(row.connection, "DeleteItem" if changes is None else "UpdateItem", kwargs)


def _send(row: LockRow, intent: WriteIntent, request: StatementWrite) -> None:
    try:
        persistently(lambda: client.ask(*request))
    except Refused as refused:
        row.state(refused.image)  # or a newer release has stored it, and the intent is still there
        logger.debug("another process has removed the intent of %s from %s", intent.id, row.label)
    except responses.BOTOCORE_EXCEPTIONS as error:
        raise LockingError(
            f"{row.label} carries the intent of the decided transaction {brief(intent.id)}, and DynamoDB refused to "
            f"remove it: {responses.code_of(error)}: {responses.message_of(error)}",
            cause=error,
        ) from error


#: How often the same is done about an intent that stays. For a sound intent, once is enough.
_MOST_TRIES: Final = 5


class StillPending(Exception):  # noqa: N818 - an answer, not an error
    """A live transaction has the item, and there is no time left to wait for it."""

    def __init__(self, record: TransactionRecord) -> None:
        super().__init__(
            f"the transaction {brief(record.id)} of {brief(record.owner)} has the item, and is not decided yet; "
            f"nothing was written"
        )
        self.record = record


@contextlib.contextmanager
def conflicts(
    kind: type[Exception],
    error: Exception | None = None,
    unknown: Callable[[Exception], Exception] | None = None,
    *,
    prefix: str = "",
) -> Iterator[None]:
    """Turn an intent that stays in the way into the `TransactionConflict` for the caller.

    Args:
        kind: PynamoDB's error class that the conflict must also have.
        error: the refusal that showed the intent, if any.
        unknown: given if the refused write may have been applied: returns the error to raise instead of any other.
        prefix: what could not be done, before the reason.
    """
    try:
        yield
    except (StillPending, Unavailable, LockingError) as reason:
        if unknown is not None and error is not None:
            raise unknown(error) from reason
        if isinstance(reason, LockingError):
            raise
        raise also(TransactionConflict, kind)(f"{prefix}{reason}. A retry is safe.", cause=error) from reason


def reason_now(record: TransactionRecord, meeting: PendingObservation, priority: str | None = None) -> str | None:
    """As `reason_to_abort`, at this moment."""
    return reason_to_abort(
        record,
        meeting,
        now=runtime.current.monotonic(),
        now_ms=runtime.current.time_ms(),
        max_clock_skew=LockSettings().max_clock_skew,
        priority=priority,
    )


class Resolver:
    """Removes intents of other transactions, for one operation that finds them.

    A record that is decided is read once. That is safe although it may change afterwards: an aborted or finished one
    can only disappear, which means the same for an intent. A committed one becomes finished once all its intents are
    gone, and no intent of it comes after that (R1, R8); to finish an intent that is gone already is refused. A pending
    record is read again for each look. So is that of an intent that stays, whatever was done.

    Args:
        deadline: until when to wait for live transactions, by the monotonic clock; None for `PATIENCE_S` from the first
            one on.
        priority: of the transaction that has to wait; None if the operation belongs to none.
        pulse: called before each wait, to renew leases that would end meanwhile; may raise.
    """

    def __init__(
        self,
        *,
        deadline: Deadline | None = None,
        priority: str | None = None,
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        self._deadline = deadline
        self._priority = priority
        self._pulse = pulse
        self._decided: dict[tuple[str, str], TransactionRecord | None] = {}
        self._met: dict[str, PendingObservation] = {}
        self._waits = 0
        self._tried: dict[tuple[Any, ...], int] = {}

    def resolve(self, *intents: tuple[LockRow, WriteIntent]) -> None:
        """Do what can be done about intents now, or wait a little for each transaction; the caller then reads again.

        Raises:
            StillPending: the deadline has passed.
            Unavailable: no response came.
            LockingError: an intent cannot be resolved: it names what is not to be trusted, it stays whatever is done,
                or DynamoDB refused.
        """
        groups: dict[tuple[str, str], list[tuple[LockRow, WriteIntent]]] = {}
        for row, intent in intents:
            groups.setdefault((intent.table, intent.id), []).append((row, intent))
        for group in groups.values():
            self.act(self.record(*group[0]), group)

    def act(self, record: TransactionRecord | None, intents: Sequence[tuple[LockRow, WriteIntent]]) -> None:
        """As `resolve`, of intents of one transaction with that record."""
        wait = self.begin(record, intents)
        if wait is not None:
            runtime.current.sleep(wait)

    def record(self, row: LockRow, intent: WriteIntent) -> TransactionRecord | None:
        """Return the record of an intent: read now, or decided when it was read before."""
        record_table = transaction_record.declared_record_table(row, intent)
        known = (intent.table, intent.id)
        if known in self._decided:
            return self._decided[known]
        record = persistently(lambda: transaction_record.read(record_table, intent.id))
        if resolution_of_intent(record) is not IntentResolution.WAIT:
            self._decided[known] = record
        return record

    def begin(self, record: TransactionRecord | None, intents: Sequence[tuple[LockRow, WriteIntent]]) -> float | None:
        """As `act`, but return how long to wait, in seconds, if at all."""
        row, intent = intents[0]
        record_tables = [transaction_record.declared_record_table(*each) for each in intents]
        what = resolution_of_intent(record)
        if what is IntentResolution.WAIT:
            assert record is not None  # noqa: S101 - it is pending
            wait = self._wait_or_abort(record_tables[0], record)
            return self._try_again(intents[:1], what) if wait is None else wait
        if what is IntentResolution.DROP:
            logger.info(
                "dropping intents of the transaction %s: %d, the first from %s", intent.id, len(intents), row.label
            )
        gone = settle(record_tables[0], what, intents)
        if len(gone) < len(intents):
            outcome = "finished" if what is IntentResolution.FINISH else "aborted"
            event_stream.recovered(record_tables[0].table, record, intent.id, outcome=outcome, recovered_by="reader")
        return self._try_again(intents, what)

    def _try_again(self, intents: Sequence[tuple[LockRow, WriteIntent]], what: IntentResolution) -> float | None:
        """Let the caller read again: at once after the first time, later each time if an intent stays."""
        tried = [self._count((row.identity, intent.id, what)) for row, intent in intents]
        times = max(tried)
        row, intent = intents[tried.index(times)]
        if times == 1:
            return None
        self._decided.pop((intent.table, intent.id), None)
        left = math.inf if self._deadline is None else self._deadline.at - runtime.current.monotonic()
        is_late = left <= 0 and what is not IntentResolution.WAIT  # a live transaction may have been renewed just then
        if is_late or times >= _MOST_TRIES:
            raise stuck(row, intent, what)
        self._pulse()
        return max(0.0, min(left, backoff(times, runtime.current.jitter())))

    def _count(self, done: tuple[Any, ...]) -> int:
        self._tried[done] = self._tried.get(done, 0) + 1
        return self._tried[done]

    def _wait_or_abort(self, record_table: RecordTable, record: TransactionRecord) -> float | None:
        now = runtime.current.monotonic()
        meeting = self._met[record.id] = observe_pending(self._met.get(record.id), record, now)
        reason = reason_now(record, meeting, self._priority)
        if reason is not None:
            logger.warning("aborting the transaction %s of %s: %s", brief(record.id), brief(record.owner), reason)
            stored = transaction_record.abort(
                record_table, record.id, reason, heartbeats=record.heartbeats if reason == "expired" else None
            )
            if stored.state is TransactionStatus.ABORTED:
                event_stream.recovered(
                    record_table.table, record, record.id, outcome="aborted", recovered_by="reader", reason=reason
                )
            return None
        if self._deadline is None:
            self._deadline = Deadline(now + PATIENCE_S)
        left = self._deadline.at - now
        if left <= 0:
            raise StillPending(record)
        self._pulse()
        self._waits += 1
        return min(left, backoff(min(self._waits, 4), runtime.current.jitter()))


def stuck(row: LockRow, intent: WriteIntent, what: IntentResolution) -> LockingError:
    why = {
        IntentResolution.WAIT: "is pending without a sign of life, and cannot be aborted",
        IntentResolution.DROP: "was aborted or is not known any more, and its intent cannot be removed",
        IntentResolution.FINISH: "is committed, and cannot be put in place"
        + (
            f": the row {intent.changes_row} of {intent.table}, which has the new values, is gone"
            if intent.changes_row
            else ""
        ),
    }[what]
    return LockingError(
        f"{row.label} carries the intent of the transaction {intent.id!r}, which {why}. Restore its rows in "
        f"{intent.table}, or remove tx from the attribute {row.attribute!r} of the item, which then stays what it is."
    )
