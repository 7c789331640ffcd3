"""Commits more items than a native transaction holds: header, marks, one decision, finish.

1. The header, *pending*, is acknowledged before anything else.
2. All items but the direct ones get a mark, which says what they will be. Their values stay as they are.
3. One native transaction turns the header, and writes the direct items. This decides.
4. The marked items are finished, by whoever comes first.

Whatever fails before the third step, and whoever dies, the header is turned to *aborted* by a
compare-and-set, and the marks are dropped. Source: /docs/explanation/transactions.md has the argument.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError
from pynamodb.expressions.operand import Path
from pynamodb.expressions.update import Action as UpdateAction

from pynamo_locking._core.lease import backoff, next_renewal
from pynamo_locking._core.queue import Mark
from pynamo_locking._core.transaction import SPILL_BYTES, Header, State, keys_in_rows
from pynamo_locking._io import attempts, guards, headers, images, marks, records, requests, runtime, transport, unlocked
from pynamo_locking._io.assembly import Assembly, note_applied
from pynamo_locking._io.commit import Action, Commit
from pynamo_locking._io.items import EmbeddedItem
from pynamo_locking._io.operands import Stored
from pynamo_locking._io.pool import Pool
from pynamo_locking._io.requests import Refused, Unavailable
from pynamo_locking._io.resolving import Resolver, StillPending
from pynamo_locking._io.validation import validate
from pynamo_locking._io.writes import DELETE, Operation
from pynamo_locking.exceptions import OutcomeUnknown, TransactionAborted, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.expressions.condition import Condition

    from pynamo_locking._core.queue import LockState
    from pynamo_locking._core.transaction import Plan
    from pynamo_locking._io.headers import Book
    from pynamo_locking._io.requests import Image, Row
    from pynamo_locking._io.unit import Entry

logger = logging.getLogger("pynamo_locking")

#: Unanswered requests for one mark before the transaction gives up.
_ATTEMPTS: Final = 8

_MARK: Final = Operation("UpdateItem", TransactWriteError, "mark")

#: More attributes than that in one mark could make its expression too long to be finished.
MOST_CHANGES: Final = 240


@dataclass
class Marked:
    """An item that gets a mark, and what is known of it."""

    entry: Entry
    row: Row
    mark: Mark
    has_document: bool
    number: int = 0

    @property
    def is_staged(self) -> bool:
        """Whether it is finished after the decision, instead of being written by it."""
        return self.mark.op != "keep"


class LongCommit:
    """One commit of the long path.

    Args:
        entries: the items, in the order of their keys.
        plan: which of them are direct, staged, checked, validated.
        book: the table of transactions.
        header: of this one.
        deadline: until when to wait for others, by the monotonic clock.
        workers: how many requests at once.
        extra: more actions of the decision.
        on_progress: called with the number of requests done and of all, for marks and finishes.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        plan: Plan,
        book: Book,
        header: Header,
        *,
        deadline: float,
        workers: int,
        extra: Sequence[Action] = (),
        on_progress: Callable[[int, int], object] | None = None,
    ) -> None:
        self._entries = entries
        self._plan = plan
        self._book = book
        self._header = header
        self._deadline = deadline
        self._workers = workers
        self._extra = extra
        self._on_progress = on_progress
        self._done = 0
        self._beat = 0
        self._renewed = 0.0
        self._renewing = runtime.current.mutex()
        self._failure: BaseException | None = None
        self._marked: list[Marked] = []
        self._is_sent = False
        self._assembly = Assembly()

    def run(self) -> None:
        """Commit, or leave nothing behind.

        Raises:
            Conflict: in one of its kinds; nothing was written.
            TransactionAborted: somebody else aborted it; nothing was written.
            OutcomeUnknown: the header could not be reached after the decision was sent.
        """
        self._marked = [self._plan_mark(i) for i in self._plan.marked]
        self._header = replace(self._header, items=len(self._marked), rows=self._plan.rows)
        self._renewed = runtime.current.monotonic()
        headers.begin(self._book, self._header)
        try:
            self._write_rows()
            self._run([partial(self._mark, one) for one in self._marked])
            validate([self._entries[i] for i in self._plan.validated], self._resolver(), self.pulse)
            self._decide()
        except BaseException as error:
            if not self._give_up(error):
                raise
        self._finish()
        self._note_commit()

    # Before the decision

    def _plan_mark(self, index: int) -> Marked:
        """Work out what the mark of an item says. Nothing has been sent yet that anybody could see."""
        entry, is_staged = self._entries[index], index in self._plan.staged
        op, set_, removed = entry.intent() if is_staged else ("keep", {}, [])
        row = entry.row
        assert row is not None  # noqa: S101 - checked when the path was chosen
        mark = Mark(self._header.id, self._book.table, op, entry.is_absent, set_, tuple(removed))
        if is_staged and self._must_spill(entry, mark):
            mark = replace(mark, spill=f"{self._header.id}!{index:05}")
        return Marked(entry, row, mark, has_document=_has_document(entry))

    def _must_spill(self, entry: Entry, mark: Mark) -> bool:
        old = entry.item.serialize(null_check=False) if not isinstance(entry.base, dict) else entry.base
        return images.size_of(old) + images.size_of(records.stored_changes(mark)) > SPILL_BYTES

    def _write_rows(self) -> None:
        """Keep what is needed to find the marks, and what did not fit into them, before the first mark."""
        for one in self._marked:
            if one.mark.spill:
                headers.put_row(self._book, one.mark.spill, records.stored_changes(one.mark), expires=False)
        stored = [_participant(one) for one in self._marked]
        for number, keys in enumerate(keys_in_rows([key_size(one.row) for one in self._marked])):
            self.pulse()
            content = {"items": {"L": [stored[i] for i in keys]}}
            headers.put_row(self._book, headers.row_of_participants(self._header.id, number), content, expires=True)

    def pulse(self) -> None:
        """Renew the lease of the header if it is time to.

        Raises:
            TransactionAborted: it is not pending any more.
        """
        with self._renewing:
            now = runtime.current.monotonic()
            if now < next_renewal(self._renewed, self._header.lease):
                return
            self._beat += 1
            self._renewed = now
            stored = headers.renew(self._book, self._header, self._beat)
        if stored.state is not State.PENDING:
            raise self._aborted(stored)

    def _aborted(self, stored: Header) -> TransactionAborted:
        return also(TransactionAborted, TransactWriteError)(
            f"the transaction {self._header.id} was aborted by somebody else ({stored.by or 'expired'}); nothing was "
            f"written. Run it again from the start.",
            by=stored.by or "expired",
        )

    def _resolver(self) -> Resolver:
        return Resolver(deadline=self._deadline, priority=self._header.priority, pulse=self.pulse)

    def _run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Do jobs in parallel; after the first failure no other one begins, and all have ended."""

        def guarded(job: Callable[[], None]) -> None:
            if self._failure is None:
                try:
                    job()
                except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                    self._failure = error

        Pool([partial(guarded, job) for job in jobs], self._workers, self._progress).run()
        if self._failure is not None:
            raise self._failure

    def _progress(self, _: int) -> None:
        self._done += 1
        if self._on_progress is not None:
            staged = len(self._plan.staged)
            self._on_progress(min(self._done, len(self._marked) + staged), len(self._marked) + staged)

    # Marks

    def _mark(self, one: Marked) -> None:
        """Leave our mark in an item that is still what it was, once nobody else has it."""
        resolver, attempt = self._resolver(), 0
        while self._failure is None:
            self.pulse()
            try:
                self._send_mark(one)
            except Refused as refused:
                if self._is_mine_or_settle(one, refused.image, resolver):
                    return
            except Unavailable as error:
                attempt += 1
                if attempt >= _ATTEMPTS:
                    raise also(TransactionConflict, TransactWriteError)(
                        f"no answer came for {one.row.label}: {error}; nothing was written.", cause=error.cause
                    ) from error
                runtime.current.sleep(backoff(attempt, runtime.current.jitter()))
            else:
                return

    def _is_mine_or_settle(self, one: Marked, image: Image | None, resolver: Resolver) -> bool:
        """Tell whether a refused mark is there already; else do what makes it worth another try, or raise."""
        state = one.row.state(image)
        if state.mark is not None and state.mark.id == self._header.id:
            return True
        if state.mark is not None:
            try:
                resolver.resolve(one.row, state.mark)
            except StillPending as pending:
                raise also(TransactionConflict, TransactWriteError)(f"{pending}.") from pending
            return False
        if one.mark.is_ghost and image is not None and _counts_as_absent(one, image):
            one.mark = replace(one.mark, is_ghost=False)
            one.has_document = state.raw is not None
            return False
        if (state.raw is not None) != one.has_document and not one.mark.is_ghost:
            one.has_document = state.raw is not None
            return False
        if state.entries and _own(one) is None:
            self._wait_for_lock(one, state)
            return False
        cause = transport.condition_failed(TransactWriteError, "the item is not the one that was read")
        raise Action({}, one.entry.final(), one.row, _own(one), one.number).explain(image, cause)

    def _wait_for_lock(self, one: Marked, state: LockState) -> None:
        if unlocked.evict_all(one.row, state, one.entry.model):
            return
        left = self._deadline - runtime.current.monotonic()
        if left <= 0:
            raise unlocked.locked_out(one.row, state, TransactWriteError)
        self.pulse()
        runtime.current.sleep(min(left, backoff(3, runtime.current.jitter())))

    def _send_mark(self, one: Marked) -> None:
        kwargs = self._mark_kwargs(one)
        connection = one.row.connection
        if not one.mark.is_ghost:
            requests.ask(connection, "UpdateItem", kwargs)
            return
        # A second copy of a plain write could make the placeholder again, after the item was finished and deleted:
        # DynamoDB knows this token for longer than a copy can be on its way.
        token = hashlib.sha256(f"{self._header.id} {one.row.label}".encode()).hexdigest()[:32]
        try:
            attempts.dispatch(
                connection, "TransactWriteItems", {"TransactItems": [{"Update": kwargs}], "ClientRequestToken": token}
            )
        except transport.BOTOCORE_EXCEPTIONS as error:
            reasons = transport.reasons_of(error)
            if reasons and reasons[0].get("Code") == "ConditionalCheckFailed":
                raise Refused(reasons[0].get("Item"), repeated=transport.was_repeated(error)) from error
            if transport.is_conflict(reasons) or transport.is_transient(error):
                raise Unavailable(error) from error
            raise TransactWriteError("Failed to mark an item", transport.readable(error)) from error

    def _mark_kwargs(self, one: Marked) -> dict[str, Any]:
        name, stored = one.row.attribute, records.stored_mark(one.mark)
        write, own = one.entry.final(), _own(one)
        actions: list[UpdateAction] = []
        if one.has_document:
            actions.append(Path([name, records.TX]).set(Stored(stored)))
        else:
            actions.append(Path([name]).set(Stored({"M": {records.TX: stored}})))
        condition: Condition | None = write.condition
        guard: Condition | None = None
        if one.mark.is_ghost:
            condition = Path([one.row.hash_name]).does_not_exist()
        else:
            there = Path([name]).exists() if one.has_document else Path([name]).does_not_exist()
            guard = guards.unlocked(name) & there
        if own is not None:
            one.number = one.number or own.next_write()
            guard = guards.standing(own, one.number)
            actions.append(guards.counting(own, one.number))
        mark = replace(
            write, operation=_MARK, condition=condition, actions=actions, attributes=None, return_values=None
        )
        return mark.kwargs(guard)

    # The decision

    def _decide(self) -> None:
        self.pulse()
        self._assemble()
        to = State.COMMITTED if self._plan.staged else State.FINISHED
        flip = Action(headers.decision(self._book, self._header.id, to))
        actions = list(self._assembly.actions.values())
        commit = Commit(
            self._book.connection,
            actions,
            [flip, *self._assembly.guards, *self._extra],
            self._header.id,
            may_change_token=False,
            options={},
            resolver=self._resolver(),
        )
        self._assembly.before_commit()
        self._is_sent = True
        commit.send()

    def _assemble(self) -> None:
        marked = {id(one.entry): one for one in self._marked}
        for i in self._plan.direct:
            entry = self._entries[i]
            assert entry.writer is not None  # noqa: S101 - it has a write
            one = marked.get(id(entry))
            if one is None:
                self._assembly.add_write(i, entry.writer, entry.final())
            else:
                self._assembly.actions[i] = _final_action(one)
        for i in self._plan.checked:
            self._assembly.add_check(i, self._entries[i].final(), self._entries[i].row)

    def _give_up(self, error: BaseException) -> bool:
        """Abort, unless the decision got through; tell whether it did.

        Raises:
            OutcomeUnknown, TransactionAborted: where that says more than the error.
        """
        try:
            stored = headers.abort(self._book, self._header.id, "itself")
        except Unavailable as silence:
            if self._is_sent:
                raise self._unknown(silence) from error
            logger.warning("transaction %s could not be aborted, and will expire: %s", self._header.id, silence)
            return False
        if stored.state.is_committed:
            return True
        self._assembly.note_refusal(error)
        self._drop_marks()
        if stored.by not in ("itself", ""):
            raise self._aborted(stored) from error
        if isinstance(error, OutcomeUnknown):
            raise also(TransactionConflict, TransactWriteError)(
                f"no answer came for the decision of the transaction {self._header.id}, so it was aborted; nothing "
                f"was written, and trying again is safe."
            ) from error
        return False

    def _unknown(self, silence: Unavailable) -> OutcomeUnknown:
        return also(OutcomeUnknown, TransactWriteError)(
            f"the transaction {self._header.id} may or may not have been committed: its header could not be reached "
            f"({silence}). All or nothing of it will be seen. outcome() tells which, later.",
            write_id=self._header.id,
            cause=silence.cause,
        )

    def _drop_marks(self) -> None:
        """Take our marks off again; what is left is taken off by whoever meets it."""
        self._failure = None
        try:
            self._run([partial(marks.drop, one.row, one.mark) for one in self._marked])
            self._remove_rows()
        except Exception as error:  # noqa: BLE001 - on the way out with an error that says more
            logger.warning("marks of the aborted transaction %s are left: %s", self._header.id, error)

    # After the decision

    def _finish(self) -> None:
        """Make the marked items what they are to be. Whatever fails, others do it: the transaction is committed."""
        staged = [one for one in self._marked if one.is_staged]
        if not staged:
            return
        self._failure = None
        try:
            self._run([partial(marks.finish, one.row, one.mark) for one in staged])
            headers.finish(self._book, self._header.id)
            self._remove_rows()
        except Exception as error:  # noqa: BLE001 - the transaction is committed all the same
            logger.warning("the committed transaction %s is left to be finished: %s", self._header.id, error)

    def _remove_rows(self) -> None:
        for one in self._marked:
            if one.mark.spill:
                headers.delete_row(self._book, one.mark.spill)

    def _note_commit(self) -> None:
        self._assembly.note_commit()
        for one in self._marked:
            if one.is_staged:
                note_applied(one.entry.final())


def _final_action(one: Marked) -> Action:
    """Return how the decision writes an item that carries our mark."""
    write = one.entry.final()
    name = one.row.attribute
    mine = replace(write, condition=guards.marked_by(name, one.mark.id))
    if write.operation is DELETE:
        kwargs = mine.kwargs()
    else:
        kwargs = mine.kwargs(None, [Path([name, records.TX]).remove()])
    kwargs.pop("ReturnValues", None)
    return Action({write.request.removesuffix("Item"): kwargs}, write)


def _own(one: Marked) -> Any:
    writer = one.entry.writer
    return writer.own if isinstance(writer, EmbeddedItem) else None


def _has_document(entry: Entry) -> bool:
    lock = entry.model._lock_attribute()
    assert lock is not None  # noqa: S101 - checked when the path was chosen
    if isinstance(entry.base, dict):
        return lock.attr_name in entry.base
    return lock.__get__(entry.item, entry.model).raw is not None


def _counts_as_absent(one: Marked, image: Image) -> bool:
    return images.holds(image, one.entry.final().kwargs())


def key_size(row: Row) -> int:
    """Return what a key takes in a participant row."""
    return images.size_of({"k": {"M": {"t": {"S": row.table}, "a": {"S": row.attribute}, "k": {"M": row.key}}}})


def _participant(one: Marked) -> dict[str, Any]:
    stored = {"table": {"S": one.row.table}, "key": {"M": one.row.key}, "lock": {"S": one.row.attribute}}
    if one.mark.spill:
        stored["spill"] = {"S": one.mark.spill}
    return {"M": stored}
