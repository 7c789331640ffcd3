"""Commits more items than a native transaction holds: header, marks, one decision, finish.

1. DynamoDB acknowledges the *pending* header before anything else is sent.
2. Every item except the direct ones gets a mark, which says what the item will be. Its values stay as they are.
3. One native transaction changes the header to *committed* and writes the direct items. This is the decision.
4. This process, or the next reader or writer of a marked item, finishes it.

If anything fails or the process dies before step 3, a compare-and-set changes the header to *aborted*, and the marks
are dropped. /docs/explanation/transactions.md has the argument.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core.commit_paths import MarkFacts, OwnRows, keys_in_rows, placeholders
from pynamo_locking._core.lease import next_renewal
from pynamo_locking._core.naming import plain
from pynamo_locking._core.transaction import Header, State, row_of_changes, row_of_participants
from pynamo_locking._expressions.values import item_size
from pynamo_locking._io import header_requests, lock_document, mark_requests, runtime, statements
from pynamo_locking._io.pool import Pool
from pynamo_locking._io.resolver import StillPending
from pynamo_locking._io.retries import Unavailable
from pynamo_locking._io.statements import Write
from pynamo_locking._models import isolation
from pynamo_locking._transactions.marking import Marked, Marker, plan_mark
from pynamo_locking._transactions.validation import validate
from pynamo_locking._writes.assembly import Assembly, note_applied
from pynamo_locking._writes.native import Commit, TransactAction
from pynamo_locking._writes.resolving import Question
from pynamo_locking.exceptions import (
    CorruptRow,
    OutcomeUnknown,
    TransactionAborted,
    TransactionConflict,
    UnknownFormat,
    also,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from pynamo_locking._core.commit_paths import Plan
    from pynamo_locking._core.outcome import Resolution
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._transactions.member import Member
    from pynamo_locking._transactions.options import TransactionOptions

logger = logging.getLogger("pynamo_locking")


class LongCommit:
    """One commit of the long path; `extra` are more actions of its decision."""

    def __init__(
        self, members: Sequence[Member], plan: Plan, options: TransactionOptions, extra: Sequence[TransactAction]
    ) -> None:
        assert options.header_table is not None  # noqa: S101 - `Committing.plan` checks it
        self._members = members
        self._plan = plan
        self._options = options
        self._header_table = options.header_table
        self._header = new_header(options, is_early=bool(plan.validated))
        self._extra = extra
        self._done = 0
        self._beat = 0
        self._renewed = 0.0
        self._renewing = runtime.current.mutex()
        self._failure: BaseException | None = None
        self._marked: list[Marked] = []
        self._is_begun = False
        self._is_sent = False
        self.is_decided = False
        self._assembly = Assembly()
        self._marker = Marker(
            self._header_table, self._header, options.deadline, self.pulse, lambda: self._failure is not None
        )

    def run(self) -> None:
        """Commit, or leave nothing behind; `OutcomeUnknown` if the header cannot be reached after the decision."""
        self._marked = self._plan_marks()
        participants = [participant(one.row, one.mark.spill) for one in self._marked]
        rows = keys_in_rows([key_size(stored) for stored in participants])
        self._header = replace(self._header, items=len(self._marked), rows=len(rows))
        self._renewed = runtime.current.monotonic()
        interrupt: BaseException | None = None
        try:
            header_requests.begin(self._header_table, self._header)
            self._is_begun = True
            self._write_changes()
            self._write_participants([[participants[i] for i in row] for row in rows])
            self._run_in_batches(self._marked, self._marker.mark_all, self._batches_of_marks())
            validate([self._members[i] for i in self._plan.validated], self._marker.resolver(), self.pulse)
            self._decide()
        except BaseException as error:
            if not self._give_up(error):
                if isinstance(error, (Unavailable, StillPending, OutcomeUnknown)):
                    raise self._given_up(error) from error
                raise
            interrupt = None if isinstance(error, Exception) else error
        self.conclude()
        if interrupt is not None:
            raise interrupt

    def conclude(self) -> None:
        """Finish the instances and the marked items of the committed transaction."""
        self.is_decided = True
        self._note_commit()
        self._finish()

    # Before the decision

    def _plan_marks(self) -> list[Marked]:
        """Work out all marks, and refuse what cannot be stored before anything is sent."""
        id_, staged, name = self._header.id, set(self._plan.staged), row_of_changes
        with isolation.for_commit():
            return [
                plan_mark(self._members[i], id_, self._header_table, name(id_, i), is_staged=i in staged)
                for i in self._plan.marked
            ]

    def _write_changes(self) -> None:
        """Store, before the first mark, the changes that do not fit into marks."""
        for one in self._marked:
            if one.mark.spill:
                self.pulse()
                content = lock_document.stored_changes(one.mark)
                header_requests.put_row(self._header_table, one.mark.spill, content, expires=False)

    def _write_participants(self, rows: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Store, before the first mark, the keys of the items that will be marked."""
        for i, row in enumerate(rows):
            self.pulse()
            name, content = row_of_participants(self._header.id, i), {"items": {"L": list(row)}}
            header_requests.put_row(self._header_table, name, content, expires=True)

    def _batches_of_marks(self) -> list[list[int]]:
        """Return which marks are sent together. Placeholders come last, since they are created in turn."""
        there, new = list[int](), list[int]()
        for i, one in enumerate(self._marked):
            (new if one.mark.is_ghost else there).append(i)
        ghosts = placeholders([self._marked[i].size for i in new])
        batches = self._batches_of([self._marked[i] for i in there])
        return [[there[i] for i in batch] for batch in batches] + [[new[i] for i in part] for part in ghosts]

    @staticmethod
    def _batches_of(marked: Sequence[Marked]) -> list[list[int]]:
        return statements.batches((one.row.connection, one.row.table) for one in marked)

    def pulse(self) -> None:
        """Renew the lease of the header if a renewal is due; `TransactionAborted` if the header is not pending."""
        with self._renewing:
            now = runtime.current.monotonic()
            if now < next_renewal(self._renewed, self._header.lease):
                return
            self._beat += 1
            self._renewed = now
            stored = header_requests.renew(self._header_table, self._header, self._beat)
        if stored.state is not State.PENDING:
            raise self._aborted(stored)

    def _aborted(self, stored: Header) -> TransactionAborted:
        return also(TransactionAborted, TransactWriteError)(
            f"the transaction {self._header.id} was aborted by another process ({plain(stored.by or 'expired')}); "
            f"nothing was written. Run it again from the start.",
            by=stored.by or "expired",
        )

    def _run(self, jobs: Sequence[Callable[[], object]], on_done: Callable[[int], None]) -> None:
        """Run jobs in parallel; after the first failure start no further job, wait for the others, and raise it."""

        def guarded(job: Callable[[], object]) -> None:
            if self._failure is None:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                    self._failure = error

        Pool([partial(guarded, job) for job in jobs], self._options.workers, on_done).run()
        if self._failure is not None:
            raise self._failure

    def _run_in_batches(
        self,
        marked: Sequence[Marked],
        act: Callable[[Sequence[Marked]], None],
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Run a job for each batch of marked items, in parallel; see `_run`."""
        jobs = [partial(act, [marked[i] for i in group]) for group in groups]

        def on_done(index: int) -> None:
            for _ in groups[index]:
                self._progress()

        self._run(jobs, on_done)

    def _progress(self) -> None:
        self._done += 1
        if self._options.on_progress is not None:
            staged = len(self._plan.staged)
            self._options.on_progress(min(self._done, len(self._marked) + staged), len(self._marked) + staged)

    # The decision

    def _decide(self) -> None:
        self.pulse()
        self._assemble()
        to = State.COMMITTED if self._plan.staged else State.FINISHED
        flip = TransactAction(header_requests.decision(self._header_table, self._header.id, to))
        self._assembly.before_commit()
        with self._assembly.last_under_locks():
            commit = Commit(
                self._header_table.connection,
                list(self._assembly.actions.values()),
                [flip, *self._assembly.guards, *self._extra],
                self._header.id,
                may_change_token=True,  # the header is decided once
                options={},
                resolver=self._marker.resolver(),
            )
            self._is_sent = True
            commit.send()

    def _assemble(self) -> None:
        marked = {id(one.member): one for one in self._marked}
        deleted = [one.held for one in self._marked if one.member.is_deleted]
        self._assembly.deleted_locks += [held for held in deleted if held is not None]
        for i in (*self._plan.direct, *self._plan.checked):
            one = marked.get(id(self._members[i]))
            if one is None:
                assemble(self._assembly, i, self._members[i])
            else:
                self._assembly.actions[i] = one.decided_by()

    def _give_up(self, error: BaseException) -> bool:
        """Abort; tell whether the transaction is committed instead. Raise an error that says more than `error`."""
        try:
            stored = header_requests.abort(self._header_table, self._header.id, "itself")
        except (Unavailable, CorruptRow, UnknownFormat) as silence:
            if self._is_sent:
                raise self._unknown(silence) from error
            logger.warning("transaction %s could not be aborted, and will expire: %s", self._header.id, silence)
            return False
        if stored.state.is_committed:
            return True
        aborted = self._aborted(stored)
        self._assembly.note_refusal(aborted)  # unlike `error`, it leaves no doubt
        self._drop_marks()
        if self._is_begun and stored.by not in ("itself", ""):
            raise aborted from error
        return False

    def _given_up(self, error: Exception) -> TransactionConflict:
        return also(TransactionConflict, TransactWriteError)(
            f"the transaction {self._header.id} was given up: {error}. Nothing was written, and a retry is safe."
        )

    def _unknown(self, silence: Unavailable | CorruptRow | UnknownFormat) -> OutcomeUnknown:
        return also(OutcomeUnknown, TransactWriteError)(
            f"the transaction {self._header.id} may or may not have been committed: its header could not be read "
            f"({silence}). Either all of its writes will be seen, or none; outcome() tells which, later.",
            write_id=self._header.id,
            cause=silence.cause,
            question=Question(self._fate),
        )

    def _fate(self) -> Resolution:
        """Return what the header says; an undecided transaction is aborted, so that no late decision is applied."""
        stored = header_requests.abort(self._header_table, self._header.id, "itself")
        if stored.state.is_committed:
            return "applied"
        return "not applied" if stored.priority else "unknown"  # the header may be gone, a day after the end

    def _drop_marks(self) -> None:
        """Drop the marks of this transaction; the next reader or writer of an item drops a mark that remains."""
        self._failure = None
        try:
            begun = [one for one in self._marked if one.may_stand]
            groups = [[(begun[i].row, begun[i].mark) for i in group] for group in self._batches_of(begun)]
            self._run([partial(mark_requests.drop_all, self._header_table, group) for group in groups], lambda _: None)
            self._remove_rows()
            if any(one.underway for one in self._marked):
                logger.info(
                    "a mark of the aborted transaction %s may still arrive: it is left to sweep()", self._header.id
                )
            else:
                header_requests.clean(self._header_table, self._header.id, is_certain=True)
        except Exception as error:  # noqa: BLE001 - the caller raises an error that says more
            logger.warning("marks of the aborted transaction %s are left: %s", self._header.id, error)

    # After the decision

    def _finish(self) -> None:
        """Finish the marked items; if that fails, the next reader or writer of each item does it."""
        staged = [one for one in self._marked if one.is_staged]
        if not staged:
            return
        self._failure = None
        try:
            self._run_in_batches(staged, self._finish_all, self._batches_of(staged))
            header_requests.finish(self._header_table, self._header.id)
            self._remove_rows()
        except Exception as error:  # noqa: BLE001 - the transaction is committed all the same
            logger.warning("the committed transaction %s is left to be finished: %s", self._header.id, error)

    def _finish_all(self, batch: Sequence[Marked]) -> None:
        mark_requests.finish_all(self._header_table, [(one.row, one.mark) for one in batch])

    def _remove_rows(self) -> None:
        for one in self._marked:
            if one.mark.spill:
                header_requests.delete_row(self._header_table, one.mark.spill)

    def _note_commit(self) -> None:
        self._assembly.note_commit()
        for one in self._marked:
            if one.is_staged:
                note_applied(one.member.final())


def assemble(assembly: Assembly, i: int, member: Member) -> None:
    """Add the write of an item, or its check, to a native transaction."""
    if member.write is None or member.writer is None:
        assembly.add_check(i, member.final(), member.row)
    else:
        assembly.add_write(i, member.writer, member.final())


def new_header(options: TransactionOptions, *, is_early: bool) -> Header:
    """Return the header of a transaction before anything is known of its marks."""
    now_ms, lease_ms = runtime.current.time_ms(), int(options.lease * 1000)
    return Header(
        options.id,
        State.PENDING,
        options.priority,
        options.owner,
        lease_ms=lease_ms,
        until_ms=now_ms + lease_ms,
        is_early=is_early,
    )


def own_rows(header_table: HeaderTable, header: Header) -> OwnRows:
    """Return how many bytes a header takes at most, and a row of participants without any."""
    ends = {header_table.expires: {"N": "9999999999"}}  # a time with zeros at its end is a byte shorter
    row = header_requests.row_beside(header_table, row_of_participants(header.id, 0), {"items": {"L": []}})
    return OwnRows(item_size({**header_requests.begun(header_table, header), **ends}), item_size({**row, **ends}))


def participant(row: LockRow, spill: str) -> dict[str, Any]:
    """Return what a row of participants says of an item."""
    stored = {"table": {"S": row.table}, "key": {"M": row.key}, "lock": {"S": row.attribute}}
    if spill:
        stored["spill"] = {"S": spill}
    return {"M": stored}


def key_size(stored: dict[str, Any]) -> int:
    """Return how much a participant adds to its row."""
    return item_size({"": stored}) + 1


def facts_of(header_table: HeaderTable, one: Marked) -> MarkFacts:
    """Return what the costs of a mark depend on."""
    place = _place(one.member)
    spill = header_requests.row_beside(header_table, one.mark.spill, lock_document.stored_changes(one.mark))
    return MarkFacts(
        size=one.size,
        key_size=key_size(participant(one.row, one.mark.spill)),
        spill_size=item_size(spill) if one.mark.spill else 0,
        place=place,
        is_placed_together=bool(place) and statements.can_say(Write(one.row.connection, "UpdateItem", one.request())),
        is_finished_together=bool(place) and statements.can_say(mark_requests.finishing(one.row, one.mark)),
    )


def facts_if_read(member: Member, size: int) -> MarkFacts:
    """Return the same for an item that is read right before it is marked, as far as it is known now."""
    assert member.row is not None  # noqa: S101 - checked when the path was chosen
    return MarkFacts(size, key_size(participant(member.row, "")), place=_place(member), is_read_first=True)


def _place(member: Member) -> Hashable:
    """Return whose marks are sent together with that of an item; "" if it is sent alone."""
    connection = member.item._get_connection().connection
    return (id(connection), member.table) if statements.are_used(connection, member.table) else ""
