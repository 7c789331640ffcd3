"""Sends writes of rows: one alone, or several together, all or none; and tells what became of them.

A `RowWrite` knows what it asks of one row, and what a refusal means for it: applied, rejected, lost, unknown. A `Work`
is what is sent together, and what its caller is told. `send` is the only loop, and `_settle` alone answers what became
of a work after a refusal.

The rule of doubt (R11): after an attempt without an answer, a refusal is believed only if no copy of the work can be
applied any more. Of a work with several rows one proof is enough, since all of them are written or none: a stored id or
number that is ours, a row whose write id is gone for good, or a row that was not refused although DynamoDB would have
refused a second copy of it. That an item is absent proves nothing of other rows: another writer may have deleted it.

A row for a lock that the caller does not hold (`ForeignLockCheck`, by ``Meta.enforce_locks``) asks that no entry is in
the queue, or that none has come since an image in which no entry was in the way. Entries leave and never grow, so those
that are left are not in the way either.

Rejected: a sender for each place of a lock, each with its own differences in doubt; trusting the token of a native
transaction alone, which DynamoDB forgets after ten minutes.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import PynamoDBException, TransactWriteError
from typing_extensions import override

from pynamo_locking._core.dynamodb import ACTION_FAILED, ACTION_PASSED, Answer, Next, RetryPolicy, RetryState
from pynamo_locking._core.errors import LockingError
from pynamo_locking._core.lock_queue import FREE, dead_among
from pynamo_locking._core.write_outcome import EntryEffect, Outcome, judge
from pynamo_locking._io import client, lock_requests, protocol, responses, runtime, wakeups
from pynamo_locking._io.write_intents import Resolver, conflicts
from pynamo_locking._items import versions
from pynamo_locking._locks import local_queue
from pynamo_locking._locks.context import in_order
from pynamo_locking._locks.held_lock import note_left
from pynamo_locking._locks.release import evict_all, evict_dead
from pynamo_locking._pynamodb import attempts_of, connection_of
from pynamo_locking._writes.write import CHECK, DELETE, Sent, locked_by, outcome_query_of, why_refused
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    LockLost,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
    also,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._core.lease import LockSettings
    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._core.lock_queue import LockState, QueueEntry, WriteIntent
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.protocol import Filled
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._writes.write import Write


class Refusal(NamedTuple):
    """The refusal of one row, which is stored as `image`, with DynamoDB's message about it.

    `in_doubt` says whether an earlier copy of the work may have been applied.
    """

    work: Work
    image: Image | None
    error: Exception
    message: str = ""
    in_doubt: bool = False


class Check:
    """The check of a held entry by write `number`, and the write's effect on the entry."""

    def __init__(self, held: HeldEntry, number: int, kind: EntryEffect = EntryEffect.KEEP) -> None:
        self.held: HeldEntry = held
        self.number: int = number
        self.kind: EntryEffect = kind
        self.after: local_queue.Handover | None = None
        if kind is EntryEffect.FINISH:
            self.after = local_queue.handover_to_next(held.caller, held.entry)

    def judge(self, image: Image | None, *, in_doubt: bool) -> Outcome:
        """Tell what became of the write, and note a loss of the lock."""
        state, held = self.held.row.state(image), self.held
        outcome = judge(state, held.ownership, self.number, kind=self.kind, repeated=in_doubt)
        is_removal = self.kind is not EntryEffect.KEEP
        if outcome is Outcome.LOST or (outcome is Outcome.UNKNOWN and not is_removal):
            held.absent_from(state, is_removal=is_removal)
        return outcome

    def is_gone(self, image: Image | None) -> bool:
        return self.held.row.state(image).find(self.held.entry.id, self.held.entry.ticket) is None

    def clause(self) -> Filled:
        """Return what is asked of the entry, and done to it."""
        return lock_requests.fence(
            self.held.row, self.held.entry, self.number, self.after, is_kept=self.kind is EntryEffect.KEEP
        )


class RowWrite:
    """One write of one row. What is given of it tells what its refusal means.

    Args:
        request: as an action of a transaction, such as ``{"Put": {...}}``; made of the rest if it is None.
        lock: of the lock document in the row: an intent in it is resolved, and it must be free, unless there is a
            check.
        write: of a model: its id tells whether it was applied.
        check: of a held entry in the row, whose number tells. It is a separate row if there is no write.
        filled: the clause in place of that of the lock or the check.

    Attributes:
        is_dropped: whether the work continues without it.
    """

    is_dropped: bool = False
    _may_evict = True

    def __init__(
        self,
        request: dict[str, Any] | None = None,
        lock: LockRow | None = None,
        write: Write | None = None,
        check: Check | None = None,
        filled: Filled | None = None,
    ) -> None:
        self.lock: LockRow | None = lock
        self.write: Write | None = write
        self.check = check
        if check is not None:
            filled = check.clause()
        elif lock is not None and filled is None:
            filled = protocol.not_locked(lock)
        self._filled = filled
        self.request: dict[str, Any] = request or self.made()

    def made(self) -> dict[str, Any]:
        """Make the request again."""
        if self.write is not None:
            clause, given = self._filled or (None, None)
            return {self.write.request.removesuffix("Item"): self.write.kwargs(clause, given)}
        assert self.check is not None  # noqa: S101 - it has one of them
        assert self._filled is not None  # noqa: S101 - the same
        row = self.check.held.row
        return {"Update": {"TableName": row.table, "Key": row.key, **protocol.alone(*self._filled)}}

    def recheck(self, check: Check) -> None:
        """Give the write its final check of the held entry; keep its key, which the caller may have changed since."""
        self.check, self._filled = check, check.clause()
        [before], request = self.request.values(), self.made()
        for kwargs in request.values():
            kwargs.update({part: before[part] for part in ("Key", "Item") if part in kwargs})
        self.request = request

    def judge(self, image: Image | None, *, in_doubt: bool) -> Outcome:
        """Tell what a stored row says of the work, and note what it says of a held lock."""
        write = self.write
        if self.check is not None:
            outcome = self.check.judge(image, in_doubt=in_doubt)
            is_stored = write is not None and write.judge(image, repeated=False) is Outcome.APPLIED
            return Outcome.APPLIED if is_stored else outcome
        if write is None or write.operation is CHECK:
            return Outcome.REJECTED
        return write.judge(image, repeated=in_doubt)

    @property
    def is_traced(self) -> bool:
        """Whether the row would show that it was written, by an id or by the number in an entry; a check does not."""
        return self.check is not None or (self.write is not None and self.write.operation is not CHECK)

    @property
    def refuses_a_copy(self) -> bool:
        """Whether DynamoDB would refuse a second copy, by the number in the entry, or by the version that is gone."""
        is_checked = self.write is not None and self.write.part.condition() is not None
        return self.check is not None or (self.is_traced and is_checked)

    def intent_in(self, image: Image | None) -> WriteIntent | None:
        """Return the intent of a transaction of many items that is in the way."""
        if self.write is not None:
            versions.refuse_newer(type(self.write.item), image)
        return None if self.lock is None else self.lock.state(image).intent

    def is_final(self, image: Image | None) -> bool:
        """Tell whether a stored row proves that DynamoDB will accept no copy of the work any more."""
        if self.check is not None and self.check.is_gone(image):  # its ticket never comes back
            return True
        return self.write is not None and not self.write.may_still_be_applied(image)

    def clear(self, refusal: Refusal) -> bool:
        """Remove what is in the way, or ask for something else; tell whether the work may be sent again. May raise."""
        if self.write is not None and self.write.is_optional:
            self.is_dropped = not (refusal.in_doubt or refusal.work.is_named)
            return self.is_dropped
        is_item: bool = refusal.work.item is self
        if self.check is not None or not is_item:
            return False
        state = FREE if self.lock is None else self.lock.state(refusal.image)
        return bool(state.entries) and self._evict(state)

    def _evict(self, state: LockState) -> bool:
        may_evict, self._may_evict = self._may_evict, False
        assert self.lock is not None  # noqa: S101 - it has entries
        assert self.write is not None  # noqa: S101 - it is the item of a work
        return may_evict and evict_all(self.lock, state, type(self.write.item))

    def explain(self, refusal: Refusal) -> Exception:
        """Return the error for the caller."""
        write, work, cause = self.write, refusal.work, refusal.error
        if self.check is not None and self.check.is_gone(refusal.image):
            return self.check.held.loss()
        if write is None:
            return also(Conflict, work.kind)(
                f"a condition of the transaction was not met, and nothing was written: {cause}", cause=cause
            )
        if work.item is self and work.is_transaction:  # as a single write: callers check its code
            cause = responses.condition_failed(work.kind, refusal.message, write.item.Meta.table_name, request=cause)
        lock = None if self.check is not None or write.operation is CHECK else self.lock
        return why_refused(write, work.kind, refusal.image, cause, lock)


#: How often a write looks at the queue of another row, which may change before each of its attempts.
_MOST_READS: Final = 8


class ForeignLockCheck(RowWrite):
    """The check that the lock in another row keeps no writer from some items.

    The `extents` are where the written item is and was: entries that lock a part of it are in the way.
    """

    def __init__(self, row: LockRow, extents: Iterable[LockMode], settings: LockSettings) -> None:
        self.row = row
        self._settings = settings
        self._extents = {*extents}
        self._reads = 0
        super().__init__(self._asking(FREE))

    def join(self, other: ForeignLockCheck) -> None:
        self._extents |= other._extents

    @override
    def clear(self, refusal: Refusal) -> bool:
        """Look at the queue that has refused a work, so that it may be sent again.

        Dead entries that are in the way, by their stored end of lease, are evicted.

        Raises:
            ItemLocked: an entry is in the way.
            TransactionConflict: other callers enter the queue all the time.
        """
        if refusal.in_doubt:
            return False
        self._reads += 1
        kind, cause = refusal.work.kind, refusal.error
        state = self._without_dead(self.row.state(refusal.image))
        found = self._in_the_way(state)
        if found:
            advice = "Lock the range yourself (locked_range()), or try again when it is free."
            raise locked_by(self.row, found[0], kind, cause, advice=advice) from cause
        if self._reads > _MOST_READS:
            raise also(TransactionConflict, kind)(
                f"other parties lock ranges of {self.row.label} so often that a write was refused again and "
                f"again; nothing was written, and a retry is safe: {cause}",
                cause=cause,
            ) from cause
        self.request = self._asking(state)
        return not refusal.work.is_named

    def _asking(self, seen: LockState) -> dict[str, Any]:
        check = protocol.alone(*protocol.not_entered_since(self.row, seen))
        return {"ConditionCheck": {"TableName": self.row.table, "Key": self.row.key, **check}}

    def _in_the_way(self, state: LockState) -> list[QueueEntry]:
        return [entry for entry in state.entries if any(entry.lock_mode.intersects(extent) for extent in self._extents)]

    def _without_dead(self, state: LockState) -> LockState:
        """Evict the entries in the way if all of them are dead, and return the queue as it is then."""
        found, settings = self._in_the_way(state), self._settings
        now_ms = runtime.current.time_ms()
        dead = dead_among(found, {}, 0.0, now_ms, settings.max_clock_skew, settings.max_lease)
        if not dead or len(dead) < len(found):
            return state
        try:
            image = evict_dead(self.row, dead, state)
        except client.Unavailable:
            return state
        return state if image is None else self.row.state(image)


# Sends writes of rows: one alone, or several that are applied together or not at all. "What became of it?" is here.


#: The kinds of actions and PynamoDB's arguments for them; PynamoDB sends them in this order.
_KINDS: Final = {
    "ConditionCheck": "condition_check_items",
    "Delete": "delete_items",
    "Put": "put_items",
    "Update": "update_items",
}


class Work:
    """Writes of rows that are sent together: a native transaction, unless a subclass says otherwise.

    Args:
        token: by which DynamoDB recognises a second copy for ten minutes.
        is_named: whether the caller has chosen the token, so that another work may be the same.
        options: other arguments of PynamoDB's `Connection.transact_write_items`.
        resolver: makes what resolves intents of other transactions.

    Attributes:
        prefix: what could not be done, for messages.
        item: the row of a work that is about one item.
        explained: why rows were refused, by their identity, if the work was.
        unchanged: the rows that were not refused then.
    """

    kind: type[PynamoDBException] = TransactWriteError
    policy: RetryPolicy = RetryPolicy()
    prefix = ""
    is_transaction = True
    item: RowWrite | None = None
    actions: Sequence[RowWrite]
    all: list[RowWrite]

    def __init__(
        self,
        connection: Connection,
        actions: Sequence[RowWrite] = (),
        token: str = "",
        *,
        is_named: bool = False,
        options: dict[str, Any] | None = None,
        resolver: Callable[[], Resolver] = Resolver,
    ) -> None:
        self.connection: Connection = connection
        self.token: str = token
        self.is_named: bool = is_named
        self.options: dict[str, Any] = options or {}
        self._make_resolver = resolver
        self.explained: dict[int, Exception] = {}
        self.unchanged: Sequence[RowWrite] = ()
        self.ask(actions)

    def ask(self, actions: Sequence[RowWrite], guards: Sequence[RowWrite] = ()) -> None:
        """Take what is to be sent: the caller's actions, in the caller's order, and other rows of this package."""
        self.actions, self.all = actions, [*actions, *guards]

    @cached_property
    def resolver(self) -> Resolver:
        """What resolves write intents of other transactions; made when one is found."""
        return self._make_resolver()

    @property
    def refusals(self) -> list[Exception | None]:
        """After a refusal, why each action was refused; None for an action that was not the reason."""
        return [self.explained.get(id(row)) for row in self.actions] if self.explained else []

    def rows(self, how: Next | None) -> Sequence[RowWrite]:  # noqa: ARG002
        """Return the rows of the next attempt, which is a copy if `REPEAT`; none if there is nothing left to do."""
        self.all = [row for row in self.all if not row.is_dropped]
        return self.all

    def renew_token(self) -> None:
        """Take another token, for what is no copy of the last attempt."""
        self.token = runtime.current.token()

    def read_outcome(self, error: Exception) -> dict[str, Any]:
        """Read to find out, if the policy says so."""
        raise self.unknown(error) from error

    def answer(self, row: RowWrite, image: Image | None) -> dict[str, Any]:  # noqa: ARG002
        """Return the substitute for the lost response of a work that a row shows as applied."""
        return {}

    def dispatch(self, rows: Sequence[RowWrite]) -> dict[str, Any]:
        """Send one attempt."""
        if not self.is_transaction:
            [(verb, kwargs)] = rows[0].request.items()
            return client.dispatch(self.connection, f"{verb}Item", kwargs)
        actions = {
            argument: [_action(row, kind) for row in rows if kind in row.request] for kind, argument in _KINDS.items()
        }
        return client.transact_write(self.connection, **actions, client_request_token=self.token, **self.options)

    def refused(self, rows: Sequence[RowWrite], error: Exception, *, in_doubt: bool) -> list[tuple[RowWrite, Refusal]]:
        """Return which rows were refused."""
        if not self.is_transaction:
            return [(rows[0], Refusal(self, responses.image_of(error), error, in_doubt=in_doubt))]
        self._show_reasons(error)
        return [
            (row, Refusal(self, reason.get("Item"), error, reason.get("Message", ""), in_doubt=in_doubt))
            for row, reason in zip(rows, _reasons_of(rows, error), strict=False)
            if reason.get("Code") == ACTION_FAILED
        ]

    def passed(self, rows: Sequence[RowWrite], error: Exception) -> list[RowWrite]:
        """Return the rows of a refused transaction that were not refused themselves."""
        if not self.is_transaction:
            return []
        answered = zip(rows, _reasons_of(rows, error), strict=False)
        return [row for row, reason in answered if (reason.get("Code") or ACTION_PASSED) == ACTION_PASSED]

    def _show_reasons(self, error: Exception) -> responses.Reasons:
        """Let the error tell the reasons in the order of the caller's actions."""
        reasons = _reasons_of(self.all, error)[: len(self.actions)]
        if reasons:
            responses.set_reasons(error, reasons)
        return reasons

    def failed(self, error: Exception) -> Exception:
        """Return the error of a work that was not applied."""
        reasons = self._show_reasons(error)
        if responses.answer_in(error) is not Answer.CONFLICT:
            return TransactWriteError(f"Failed to write transaction items: {error}", responses.readable(error))
        codes = tuple(None if reason is None else reason.code for reason in responses.shown(reasons))
        return also(TransactionConflict, TransactWriteError)(
            f"other transactions or a limit held up this one; nothing was written, and a retry is safe: {error}",
            reasons=codes,
            cause=error,
        )

    def unknown(self, error: Exception) -> Exception:
        """Return the error of a work that may have been applied."""
        sent = [
            Sent.of(type(row.write.item), kwargs, row.write.part, is_delete=False)
            for row in self.all
            if row.write is not None and row.write.operation is not CHECK
            for kwargs in row.request.values()
        ]
        return also(OutcomeUnknown, TransactWriteError)(
            f"the transaction {self.token} may or may not have been applied: {error}. Read its items again before "
            f"you decide what to do. (For ten minutes DynamoDB recognises the same transaction of the same copies by "
            f"this client_request_token, except inside a lock and with new items that expire.)",
            write_id=self.token,
            cause=error,
            question=outcome_query_of(sent),
        )


def _action(row: RowWrite, kind: str) -> dict[str, Any]:
    return {name: value for name, value in row.request[kind].items() if name != "ReturnValues"}


def _reasons_of(rows: Sequence[RowWrite], error: Exception) -> responses.Reasons:
    """Return why a transaction was cancelled, in the order of its rows; empty if it was not."""
    sent = [row for kind in _KINDS for row in rows if kind in row.request]
    reasons = dict(zip(map(id, sent), responses.reasons_of(error), strict=False))
    return [reasons[id(row)] for row in rows if id(row) in reasons]


def send(work: Work) -> dict[str, Any]:
    """Send a work until its outcome is known; return DynamoDB's response, or its substitute."""
    sending: RetryState | None = None  # of the first attempt that fails
    how: Next | None = None
    while True:
        rows = work.rows(how)
        if not rows:
            return {}
        is_new = sending is not None and not (work.is_named or sending.in_doubt)  # no copy of what was sent before
        if work.is_transaction and (is_new or not work.token):
            work.renew_token()
        try:
            return work.dispatch(rows)
        except responses.BOTOCORE_EXCEPTIONS as error:
            sending = sending or RetryState(work.policy)
            answer = responses.answer_in(error, is_single=work.policy.is_single)
            how = client.paused(sending.after(answer, was_repeated=responses.was_repeated(error)))
            if how is Next.SETTLE:
                how, data = Next.AGAIN, _settle(work, rows, error, in_doubt=sending.in_doubt)
                if data is not None:
                    return data
            elif how is Next.READ:
                return work.read_outcome(error)
            elif how not in {Next.AGAIN, Next.REPEAT}:
                raise (work.failed if how is Next.FAIL else work.unknown)(error) from error


def _settle(work: Work, rows: Sequence[RowWrite], error: Exception, *, in_doubt: bool) -> dict[str, Any] | None:
    """Return the response if an earlier copy was applied, None if the work may be sent again; or raise."""
    refused = work.refused(rows, error, in_doubt=in_doubt)
    try:
        outcomes = [_outcome_of(work, row, refusal) for row, refusal in refused]
    except LockingError as reason:  # a lock document is broken, so nothing shows the outcome
        if in_doubt:
            raise work.unknown(error) from reason
        raise
    for outcome, (row, refusal) in zip(outcomes, refused, strict=True):
        if outcome is Outcome.APPLIED and (in_doubt or not work.is_named):
            return work.answer(row, refusal.image)
    if Outcome.UNKNOWN in outcomes:
        # All or none: one row that was not written proves that none was. A row that is not named passed its condition:
        # engines name all that have not, and DynamoDB knows the token of an applied copy for ten minutes.
        shown = [row for outcome, (row, _) in zip(outcomes, refused, strict=True) if outcome in _NOT_APPLIED]
        copied = [row for row in work.passed(rows, error) if row.refuses_a_copy]
        if not copied and not any(row.is_traced for row in shown):
            raise work.unknown(error) from error
    is_final = Outcome.LOST in outcomes or any(row.is_final(refusal.image) for row, refusal in refused)
    is_open = in_doubt and not is_final  # R11: a copy may still be applied
    if Outcome.LOST not in outcomes and _is_cleared(work, refused, error, is_open=is_open):
        return None
    if is_open or not refused:
        raise (work.unknown if in_doubt else work.failed)(error) from error
    errors = [row.explain(refusal) for row, refusal in refused]
    work.explained = {id(row): why for (row, _), why in zip(refused, errors, strict=True)}
    work.unchanged = work.passed(rows, error)
    raise _gravest(errors) from error


_NOT_APPLIED: Final = (Outcome.REJECTED, Outcome.LOST)


def _outcome_of(work: Work, row: RowWrite, refusal: Refusal) -> Outcome:
    outcome = row.judge(refusal.image, in_doubt=refusal.in_doubt)
    if outcome is Outcome.APPLIED and refusal.image is None and row is not work.item:
        return Outcome.UNKNOWN  # that one item is absent says nothing of the others: another writer may have deleted it
    return outcome


def _is_cleared(work: Work, refused: Sequence[tuple[RowWrite, Refusal]], error: Exception, *, is_open: bool) -> bool:
    """Remove what is in the way; tell whether the work may be sent again."""
    with conflicts(work.kind, error, work.unknown if is_open else None, prefix=work.prefix):
        found = [(row.lock, row.intent_in(refusal.image)) for row, refusal in refused]
        intents = [(lock, intent) for lock, intent in found if lock is not None and intent is not None]
        work.resolver.resolve(*intents)
    cleared = [row for row, refusal in refused if row.clear(refusal)]
    return bool(intents) or (bool(refused) and (len(cleared) == len(refused) or work.item in cleared))


def _gravest(errors: Collection[Exception]) -> Exception:
    """Return the most severe error: a lost lock, then a held lock, then a stale copy, then the first error.

    A stale copy comes before a unique value that is taken: the item may have had another value meanwhile.
    """
    kinds = (LockLost, ItemLocked, StaleVersion, Exception)
    return next(error for kind in kinds for error in errors if isinstance(error, kind))


class ItemWork(Work):
    """The write of one item.

    Args:
        check: of the held entry in its embedded `lock`.
        checks: of those in other rows: of the item's own lock, then of a range, then of the table.
        foreign_checks: of locks in other rows that are not held.
        is_unanswered: whether the first attempt was a statement of a batch to which no answer came.
    """

    def __init__(
        self,
        write: Write,
        lock: LockRow | None = None,
        check: Check | None = None,
        checks: Sequence[Check] = (),
        foreign_checks: Sequence[ForeignLockCheck] = (),
        *,
        is_unanswered: bool = False,
    ) -> None:
        connection = connection_of(write.item).connection
        is_guarded = bool(check or checks or foreign_checks)
        self.write, self.kind, self.prefix = write, write.operation.error, f"Failed to {write.operation.verb} item: "
        # Botocore must not repeat the request: each attempt has another id, or there is only one.
        self.once = write.part.begins_life and write.operation is not DELETE and not is_guarded
        super().__init__(client.single_attempt(connection) if self.once else connection)
        if not is_guarded:
            # This package makes the attempts that botocore must not make; one more than botocore would have made.
            most = attempts_of(connection) if self.once else 1
            self.policy = RetryPolicy(
                repeats=most if write.is_repeatable else 0,
                first_pause=0 if self.once else None,
                is_single=self.once,
                reads_outcome=write.is_sent_once,
            )
        # A holder does not resolve the intent of a transaction that may be its own: it would write past it.
        self.row = self.item = RowWrite(None, None if check else lock, write, check)
        self._is_unanswered = is_unanswered
        self.others = [*(RowWrite(check=each) for each in checks), *foreign_checks]
        self.values = list[RowWrite]()
        if write.unique_rows is not None:
            self.values = [writer.row_write(row) for writer, row in write.unique_rows.rows]

    @property
    def is_transaction(self) -> bool:  # type: ignore[override]
        return bool(self.others or self.values)

    @override
    def rows(self, how: Next | None) -> Sequence[RowWrite]:
        if self.once and how is Next.REPEAT:  # each attempt has another id
            self.write.part.renew(runtime.current.token())
            self.row.request, self.token = self.row.made(), ""
        if self.values:
            self.values = [row for row in self.values if not row.is_dropped]
        return [self.row, *self.others, *self.values]

    @override
    def dispatch(self, rows: Sequence[RowWrite]) -> dict[str, Any]:
        is_unanswered, self._is_unanswered = self._is_unanswered, False
        if is_unanswered:
            raise responses.unanswered("BatchExecuteStatement")
        return super().dispatch(rows)

    @override
    def failed(self, error: Exception) -> Exception:
        return self.write.failed(error)

    @override
    def unknown(self, error: Exception) -> Exception:
        [made] = self.row.request.values()
        checks = (row.check for row in (self.row, *self.others) if row.check is not None)
        return self.write.unknown(error, made, next((f"{each.held.entry.id}/{each.number}" for each in checks), None))

    @override
    def answer(self, row: RowWrite, image: Image | None) -> dict[str, Any]:
        return {"Attributes": image} if row is self.row and image is not None else {}

    @override
    def read_outcome(self, error: Exception) -> dict[str, Any]:
        """Read the item to find the outcome of a write that must not be sent twice."""
        [made] = self.row.request.values()
        kwargs = {"TableName": made["TableName"], "Key": made["Key"], "ConsistentRead": True}
        try:
            image = connection_of(self.write.item).connection.dispatch("GetItem", kwargs).get("Item")
        except responses.BOTOCORE_EXCEPTIONS as failure:
            raise self.unknown(error) from failure
        if self.write.judge(image, repeated=True) is Outcome.APPLIED:
            return {"Attributes": image}
        raise self.unknown(error) from error  # a later write may have replaced it, or it may still arrive


def send_item(
    write: Write,
    held_entries: Sequence[HeldEntry] = (),
    lock: LockRow | None = None,
    foreign_checks: Sequence[ForeignLockCheck] = (),
    *,
    is_unanswered: bool = False,
) -> dict[str, Any]:
    """Write one item, under the entries that are held here: in its embedded lock, or in separate rows.

    The last write of an `edit`, and the commit of one item, remove the first of them. If the entries in an embedded
    lock that is not held here are dead by their stored end of lease, they are evicted first. So a crashed holder does
    not block writers until a waiter evicts it.

    Raises:
        LockLost: an entry is gone and nothing was written.
        ItemLocked: another owner holds the lock.
        OutcomeUnknown: no response tells whether the item was written.
        PynamoDBException: a condition of the write failed, or DynamoDB refused it.
    """
    if not held_entries:
        return send(ItemWork(write, lock, foreign_checks=foreign_checks, is_unanswered=is_unanswered))
    with contextlib.ExitStack() as held:
        numbers = {each: held.enter_context(each.writing()) for each in in_order(held_entries)}
        checks = [
            Check(each, numbers[each], EntryEffect.KEEP if i else write.kind) for i, each in enumerate(held_entries)
        ]
        check = checks.pop() if lock is not None else None
        finishes = write.kind is EntryEffect.FINISH
        if check is not None and finishes:
            is_wanted = check.after is not None or wakeups.has_waiters(check.held.row)
            if is_wanted or write.return_values:  # who comes meanwhile takes what returns for the whole item
                write = write.but(return_values="ALL_NEW")
        work = ItemWork(write, lock, check, checks, foreign_checks)
        if write.kind is EntryEffect.KEEP:
            return send(work)
        with held_entries[0].removing():
            data = send(work)
        note_left(held_entries[0], data.get("Attributes") if finishes and check is not None else None)
        return data
