"""Commit: in one request, or with a record, intents, one decision and roll-forward; and how its outcome is known.

Up to 100 actions are one native transaction. More are committed like this:

1. DynamoDB acknowledges the *pending* record before anything else is sent (R3).
2. Every item except the direct ones gets an intent, which says what the item will be. Its values stay as they are.
3. What was read is checked, if the decision cannot check it (R5, R6, R7).
4. One native transaction changes the record to *committed* and writes the direct items. This is the decision.
5. This process, or the next reader or writer of an item, puts the values of its intent in place (R9).

If anything fails or the process dies before step 4, a compare-and-set changes the record to *aborted*, and the intents
are dropped (R4). ``explanation/transactions.md`` has the argument, and says what goes wrong without each rule.

The outcome of a commit without an answer is known by a row that the decision writes: its record, or its idempotency
key. The row exists exactly if the transaction was applied. Its place can be taken for good instead: then no copy of
that transaction, however late, is applied any more. The row of a suspended transaction is deleted by the decision.

Rejected: one state in each item in place of the record, which no single write could change for all of them; locks on
all items before the decision, which wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError

from pynamo_locking._core import dynamodb, transactions
from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.transactions import (
    BY_ITSELF,
    CannotBeStaged,
    CommitPath,
    CommitPlan,
    CommitStage,
    Ending,
    ItemFacts,
    TransactionRecord,
    TransactionStatus,
    choose_path,
    ending_at,
    keys_in_rows,
    placeholders,
    row_of_changes,
    row_of_key,
    row_of_participants,
)
from pynamo_locking._core.values import item_size
from pynamo_locking._core.write_outcome import EntryEffect
from pynamo_locking._io import batch_requests, lock_record, runtime, transaction_record, write_intents
from pynamo_locking._io.batch_requests import transact_get
from pynamo_locking._io.client import Unavailable, persistently
from pynamo_locking._io.concurrency import Pool
from pynamo_locking._io.model_doors import own_keys_of
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.transaction_record import RecordLease
from pynamo_locking._io.write_intents import Resolver, StillPending, conflicts
from pynamo_locking._items import effects
from pynamo_locking._models import isolation
from pynamo_locking._pynamodb import connection_of
from pynamo_locking._transactions.plan import Unread, check_key
from pynamo_locking._transactions.prepare import (
    IntentWrite,
    IntentWriter,
    can_have_intent,
    needs_read,
    plan_intent,
    read_together,
)
from pynamo_locking._transactions.transaction_table import TransactionTable
from pynamo_locking._transactions.validation import size_of_item, validate
from pynamo_locking._writes import write
from pynamo_locking._writes.native_transaction import TransactionActions, note_applied
from pynamo_locking._writes.send import RowWrite
from pynamo_locking._writes.write import DELETE, OutcomeQuery
from pynamo_locking.exceptions import (
    Conflict,
    OutcomeUnknown,
    StaleVersion,
    TransactionConflict,
    add_context,
    also,
    ask_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pynamodb.connection import Connection

    from pynamo_locking._core.write_outcome import Resolution
    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._io.transaction_record import RecordTable
    from pynamo_locking._items.keys import ItemKey
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.options import TransactionOptions


# The rows by which the fate of a transaction is known: its idempotency key and its record.


#: What the name of the row of a suspended transaction begins with.
SUSPENDED: Final = "suspended#"


def is_own_row(item: TransactionItem) -> bool:
    return issubclass(type(item.instances.present), TransactionTable)


def suspended_id(item: TransactionItem) -> str:
    """Return the id of the suspended transaction whose row this is; empty for any other item."""
    name = (own_keys_of(item.model).name_in(item.key) or "") if is_own_row(item) else ""
    return name.removeprefix(SUSPENDED) if name.startswith(SUSPENDED) else ""


def needs_table(options: TransactionOptions) -> bool:
    """Tell whether a transaction of any size writes such a row."""
    return options.record or options.idempotency_key is not None


def check_table(options: TransactionOptions) -> RecordTable:
    """Return where the rows are; `ConfigurationError` if there is no table for them."""
    if options.record_table is None:
        raise ConfigurationError(
            "a transaction of more than 100 actions, or with an idempotency key or a record, needs a TransactionTable: "
            "pass it to transaction(), or name it in Meta.transaction_table of a model."
        )
    return options.record_table


def key_action(options: TransactionOptions) -> list[RowWrite]:
    """Return the action that stores the idempotency key, and fails if the key is stored."""
    if options.idempotency_key is None:
        return []
    row = row_of_key(options.idempotency_key)
    return [RowWrite(transaction_record.once(check_table(options), row, options.id))]


def record_action(options: TransactionOptions) -> list[RowWrite]:
    """Return the action that stores the record of a native transaction, as finished."""
    if not options.record:
        return []
    return [RowWrite(transaction_record.put_record(check_table(options), _record(options, TransactionStatus.FINISHED)))]


def _record(options: TransactionOptions, state: TransactionStatus, by: str = "") -> TransactionRecord:
    return TransactionRecord(options.id, state, options.priority, options.owner, by=by)


def recorded_outcome(options: TransactionOptions, path: CommitPath, error: Exception) -> str | None:
    """Return the id of the transaction that was committed although this one got an error: an earlier one, or itself."""
    if not needs_table(options):
        return None
    try:
        if options.idempotency_key is not None:
            return transaction_record.key_holder(check_table(options), row_of_key(options.idempotency_key))
        if path is CommitPath.NATIVE and isinstance(error, OutcomeUnknown):
            record = persistently(partial(transaction_record.read, check_table(options), options.id))
            return None if record is None or not record.state.is_committed else options.id
    except Unavailable:
        pass
    except LockingError as failure:  # the key, or the record, cannot be read: nobody knows more than before
        if not isinstance(error, OutcomeUnknown):
            raise
        add_context(error, failure)
    return None


def is_done(options: TransactionOptions) -> bool:
    """Tell whether a transaction with this idempotency key was committed, even if its rows are seen before its key."""
    table, row = check_table(options), row_of_key(str(options.idempotency_key))
    transact_get(table.connection, [{"Get": {"TableName": table.table, "Key": table.key(row)}}])  # settles it
    return transaction_record.key_holder(table, row) is not None


def ask_later(options: TransactionOptions, path: CommitPath, error: Exception) -> None:
    """Let `OutcomeUnknown.resolve` ask the row of a native transaction: it tells where its items may not.

    Of several attempts with one key, the key tells of all, and so does the error of the last one.
    """
    has_key = options.idempotency_key is not None
    is_stored = (path is CommitPath.NATIVE and needs_table(options)) or (has_key and bool(options.earlier))
    if is_stored and isinstance(error, OutcomeUnknown):
        error.write_id = options.id  # as in the rows; a native transaction may have been sent under other tokens
        ask = _by_key if has_key else _by_record
        ask_by(error, OutcomeQuery(partial(ask, options, check_table(options), runtime.current.monotonic())))


def _may_have_expired(since: float, keep_s: int) -> bool:
    """Tell whether a row of that time may be gone by now. Half of the time is for clocks that differ."""
    return runtime.current.monotonic() - since > keep_s / 2


def _by_record(options: TransactionOptions, table: RecordTable, since: float) -> Resolution:
    if _may_have_expired(since, table.keep.keep_finished_s):
        stored = persistently(partial(transaction_record.read, table, options.id))
        return "unknown" if stored is None else _said_by(stored)
    return _said_by(transaction_record.give_up(table, _record(options, TransactionStatus.ABORTED, by=BY_ITSELF)))


def _said_by(record: TransactionRecord) -> Resolution:
    return "applied" if record.state.is_committed else "not applied"


def _by_key(options: TransactionOptions, table: RecordTable, since: float) -> Resolution:
    row = row_of_key(str(options.idempotency_key))
    attempts = (*options.earlier, options.id)
    if _may_have_expired(since, table.keep.keep_keys_s):
        return "applied" if transaction_record.key_holder(table, row) in attempts else "unknown"
    return "applied" if transaction_record.abandon(table, row, attempts) in attempts else "not applied"


# Commits more items than a native transaction holds: record, intents, one decision, finish.


@dataclass(eq=False)
class Steps:
    """Runs the steps of a commit in parallel, in so many threads, and tells how many are done, of `total`."""

    _workers: int
    _on_progress: Callable[[int, int], object] | None
    total: int = 0
    _pool: Pool | None = field(default=None, init=False)
    _done: int = field(default=0, init=False)

    @property
    def has_failed(self) -> bool:
        """Whether one of the jobs has failed; no further job is started then."""
        return self._pool is not None and self._pool.failure is not None

    def run(self, jobs: Sequence[Callable[[], object]], counts: Sequence[int] = ()) -> None:
        """Run jobs, of which each is so many steps. After the first failure wait for those begun, and raise it."""

        def on_done(index: int) -> None:
            for _ in range(counts[index] if counts else 0):
                self._tell_progress()

        self._pool = Pool(jobs, self._workers, on_done)
        self._pool.run()

    def _tell_progress(self) -> None:
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(min(self._done, self.total), self.total)


class MultiRequestCommit:
    """One commit of the long path: `run` tells how, and `_core.transactions` decides what is done with each item.

    Args:
        items: those that the transaction uses.
        plan: which of them the decision writes or checks, and which get an intent.
        extra: more actions of the decision.
        last_under: the held entries that nobody needs afterwards; the decision removes those of what it writes.
    """

    def __init__(
        self,
        items: Sequence[TransactionItem],
        plan: CommitPlan,
        options: TransactionOptions,
        table: RecordTable,
        extra: Sequence[RowWrite],
        last_under: Collection[HeldEntry],
    ) -> None:
        self._items = items
        self._plan = plan
        self._table = table
        self._extra = extra
        self._id = options.id
        now_ms, lease_ms = runtime.current.time_ms(), int(options.lease * 1000)
        record = _record(options, TransactionStatus.PENDING)._replace(
            lease_ms=lease_ms, until_ms=now_ms + lease_ms, is_validated_early=bool(plan.validated)
        )
        self._lease = RecordLease(table, record)
        self._stage = CommitStage.PLANNED
        self._intent_writes: list[IntentWrite] = []
        self._steps = Steps(options.workers, options.on_progress)
        self._intent_writer = IntentWriter(self._lease, options.deadline, lambda: self._steps.has_failed)
        resolver = self._intent_writer.resolver
        self._assembly = TransactionActions(table.connection, self._id, last_under, resolver=resolver)

    @property
    def is_decided(self) -> bool:
        return self._stage is CommitStage.DECIDED

    def run(self) -> None:
        """Commit, or leave nothing behind; `OutcomeUnknown` if the record cannot be reached after the decision."""
        intents = self._intent_writes = self._plan_intents()
        participants = [participant(one.row, one.intent.changes_row) for one in intents]
        rows = keys_in_rows([key_size(stored) for stored in participants])
        self._lease.record = self._lease.record._replace(items=len(intents), rows=len(rows))
        self._steps.total = len(intents) + len(self._plan.staged)
        try:
            # R3: the record is acknowledged before the first intent is sent.
            self._lease.begin()
            self._stage = CommitStage.BEGUN
            # What does not fit into an intent, and the names of the items, are stored before the intents.
            self._write_changes()
            self._write_participants([[participants[i] for i in row] for row in rows])
            # R6: the intents stand before what was read is checked, if the decision does not check it.
            self._run_in_batches(intents, self._intent_writer.write_intents, self._batches_of_intents())
            renew = self._lease.renew_if_due
            validate([self._items[i] for i in self._plan.validated], self._intent_writer.resolver(), renew)
            self._decide()
        except BaseException as error:
            self._end_after(error)
            self.conclude()  # it is committed all the same
            if not isinstance(error, Exception):
                raise
        else:
            self.conclude()

    def conclude(self) -> None:
        """Finish the instances and the items with an intent of the committed transaction."""
        self._stage = CommitStage.DECIDED
        self._note_commit()
        self._finish()

    # Before the decision

    def _plan_intents(self) -> list[IntentWrite]:
        """Work out all intents, and refuse what cannot be stored before anything is sent."""
        id_, staged, name = self._id, set(self._plan.staged), row_of_changes
        with isolation.for_commit():
            read_together(self._items[i] for i in self._plan.with_intents)
            return [
                plan_intent(self._items[i], id_, self._table, name(id_, i), is_staged=i in staged)
                for i in self._plan.with_intents
            ]

    def _write_changes(self) -> None:
        """Store, before the first intent, the changes that do not fit into intents."""
        for one in self._intent_writes:
            if one.intent.changes_row:
                self._lease.renew_if_due()
                content = lock_record.stored_changes(one.intent)
                transaction_record.put_row(self._table, one.intent.changes_row, content, expires=False)

    def _write_participants(self, rows: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Store, before the first intent, the keys of the items that will get an intent."""
        for i, row in enumerate(rows):
            self._lease.renew_if_due()
            name, content = row_of_participants(self._id, i), {"items": {"L": list(row)}}
            transaction_record.put_row(self._table, name, content, expires=True)

    def _batches_of_intents(self) -> list[list[int]]:
        """Return which intents are sent together. Placeholders come last, since they are created in turn."""
        there, new = list[int](), list[int]()
        for i, one in enumerate(self._intent_writes):
            (new if one.intent.is_placeholder else there).append(i)
        new_ones = placeholders([self._intent_writes[i].size for i in new])
        batches = self._batches_of([self._intent_writes[i] for i in there])
        return [[there[i] for i in batch] for batch in batches] + [[new[i] for i in part] for part in new_ones]

    @staticmethod
    def _batches_of(intents: Sequence[IntentWrite]) -> list[list[int]]:
        return batch_requests.batches((one.row.connection, one.row.table) for one in intents)

    def _run_in_batches(
        self,
        intents: Sequence[IntentWrite],
        act: Callable[[Sequence[IntentWrite]], None],
        groups: Sequence[Sequence[int]],
    ) -> None:
        """Run a job for each batch of items with an intent, in parallel: a step for each item."""
        self._steps.run([partial(act, [intents[i] for i in group]) for group in groups], [*map(len, groups)])

    # The decision

    def _decide(self) -> None:
        self._lease.renew_if_due()
        self._assemble()
        to = TransactionStatus.COMMITTED if self._plan.staged else TransactionStatus.FINISHED
        flip = RowWrite(transaction_record.decision(self._table, self._id, to))
        self._stage = CommitStage.SENT
        self._assembly.send_under_locks([flip, *self._extra])

    def _assemble(self) -> None:
        intents = {id(one.item): one for one in self._intent_writes}
        deleted = [one.held for one in self._intent_writes if one.item.is_deleted]
        self._assembly.deleted_locks += [held for held in deleted if held is not None]
        for i in (*self._plan.direct, *self._plan.checked):
            one = intents.get(id(self._items[i]))
            if one is None:
                assemble(self._assembly, i, self._items[i])
            else:
                self._assembly.by_key[i] = one.decided_by()

    def _end_after(self, error: BaseException) -> None:
        """Abort, and raise what the caller gets; return if the transaction is committed instead."""
        stored: TransactionRecord | None = None
        silence: Unavailable | LockingError | None = None
        try:
            stored = transaction_record.abort(self._table, self._id, BY_ITSELF)
        except (Unavailable, LockingError) as no_answer:
            silence = no_answer
        ending = ending_at(self._stage, stored)
        if ending is Ending.CONCLUDE:
            return
        if stored is not None:
            aborted = transaction_record.aborted(self._id, stored)
            self._assembly.note_refusal(aborted)  # unlike `error`, it leaves no doubt
            self._remove_intents()
            if ending is Ending.ABORTED:
                raise aborted from error
        if silence is not None:
            if ending is Ending.UNKNOWN:
                raise self._unknown(silence) from error
            logger.warning("transaction %s could not be aborted, and will expire: %s", self._id, silence)
        if isinstance(error, (Unavailable, StillPending, OutcomeUnknown)):
            raise self._given_up(error) from error
        raise error

    def _given_up(self, error: Exception) -> TransactionConflict:
        return also(TransactionConflict, TransactWriteError)(
            f"the transaction {self._id} was given up: {error}. Nothing was written, and a retry is safe."
        )

    def _unknown(self, silence: Unavailable | LockingError) -> OutcomeUnknown:
        return also(OutcomeUnknown, TransactWriteError)(
            f"the transaction {self._id} may or may not have been committed: its record could not be read "
            f"({silence}). Either all of its writes will be seen, or none; outcome() tells which, later.",
            write_id=self._id,
            cause=silence.cause,
            question=OutcomeQuery(self._outcome),
        )

    def _outcome(self) -> Resolution:
        """Return what the record says; an undecided transaction is aborted, so that no late decision is applied."""
        stored = transaction_record.abort(self._table, self._id, BY_ITSELF)
        if stored.state.is_committed:
            return "applied"
        return "not applied" if stored.priority else "unknown"  # the record may be gone, a day after the end

    def _remove_intents(self) -> None:
        """Drop the intents of this transaction; the next reader or writer of an item drops an intent that remains."""
        try:
            begun = [one for one in self._intent_writes if one.may_stand]
            groups = [[(begun[i].row, begun[i].intent) for i in group] for group in self._batches_of(begun)]
            self._steps.run([partial(write_intents.drop_all, self._table, group) for group in groups])
            self._remove_rows()
            if any(one.underway for one in self._intent_writes):
                logger.info("an intent of the aborted transaction %s may still arrive: it is left to sweep()", self._id)
            else:
                transaction_record.clean(self._table, self._id, is_certain=True)
        except Exception as error:  # noqa: BLE001 - the caller raises an error that says more
            logger.warning("intents of the aborted transaction %s are left: %s", self._id, error)

    def contended(self) -> list[TransactionItem]:
        """Return the items that have refused their intent, or the decision, since others had changed or locked them."""
        decided = [self._items[i] for i in self._assembly.contended()]
        return [*(one.item for one in self._intent_writes if one.is_contended), *decided]

    # After the decision

    def _finish(self) -> None:
        """Finish the items with an intent; if that fails, the next reader or writer of each item does it."""
        staged = [one for one in self._intent_writes if one.is_staged]
        if not staged:
            return
        try:
            self._run_in_batches(staged, self._finish_all, self._batches_of(staged))
            # R9: finished only when each item is known to be in place.
            transaction_record.finish(self._table, self._id)
            self._remove_rows()
        except Exception as error:  # noqa: BLE001 - the transaction is committed all the same
            logger.warning("the committed transaction %s is left to be finished: %s", self._id, error)

    def _finish_all(self, batch: Sequence[IntentWrite]) -> None:
        write_intents.finish_all(self._table, [(one.row, one.intent) for one in batch])

    def _remove_rows(self) -> None:
        for one in self._intent_writes:
            if one.intent.changes_row:
                transaction_record.delete_row(self._table, one.intent.changes_row)

    def _note_commit(self) -> None:
        self._assembly.note_commit()
        for one in self._intent_writes:
            if one.is_staged and one.item.plan.writer is not None:
                note_applied(one.item.final())


def assemble(assembly: TransactionActions, i: int, item: TransactionItem) -> None:
    """Add the write of an item, or its check, to a native transaction."""
    if item.plan.write is None or item.plan.writer is None:
        assembly.add_check(i, item.final(), item.row)
    else:
        assembly.add_write(i, item.plan.writer, item.final())


def participant(row: LockRow, changes_row: str) -> dict[str, Any]:
    """Return what a row of participants says of an item."""
    stored = {"table": {"S": row.table}, "key": {"M": row.key}, "lock": {"S": row.attribute}}
    if changes_row:
        stored["spill"] = {"S": changes_row}
    return {"M": stored}


def key_size(stored: dict[str, Any]) -> int:
    return item_size({"": stored}) + 1


# Chooses the path of a commit, and commits on it.


class CommitRun:
    """The commit of one transaction.

    Attributes:
        items: what it writes and checks.
        last_under: the held entries that nobody needs afterwards: the writes of their items remove them.
        path: the name of its path; empty until `send`.
        note: updates the instances after it was sent. This may call methods of the caller's models, which may raise.
    """

    last_under: Collection[HeldEntry] = ()

    def __init__(self, items: Sequence[TransactionItem], options: TransactionOptions) -> None:
        used = [item for item in items if item.plan.write is not None or item.is_read]
        # The row of a suspended one comes first: `OutcomeUnknown.resolve` changes that, and no item that it has read.
        in_order = sorted(used, key=lambda item: (not suspended_id(item), repr(item.identity)))
        self.items: Sequence[TransactionItem] = in_order
        self.options = options
        self._long: MultiRequestCommit | None = None
        self._assembly: TransactionActions | None = None
        self.note: Callable[[], object] = lambda: None
        self._is_applied = False
        self.path: str = ""

    @property
    def is_decided(self) -> bool:
        """Whether the transaction is known to be committed, even if the work after the decision was interrupted."""
        return self._is_applied or (self._long is not None and self._long.is_decided)

    def plan(self) -> CommitPlan:
        """Return how it is committed, without a request; refuse a commit for which no path is possible."""
        try:
            extra = self._extra_actions()
            is_long = len(self.items) + extra + self.options.record > dynamodb.MOST_ACTIONS
            plan = choose_path(self._facts(is_long=is_long), extra=extra, record=self.options.record)
            if plan.path is CommitPath.LONG and not is_long:  # because of its bytes
                plan = choose_path(self._facts(is_long=True), extra=extra, record=self.options.record)
        except CannotBeStaged as error:
            raise _too_large(error) from error
        if plan.path is CommitPath.LONG or needs_table(self.options):
            check_table(self.options)
        return plan

    def direct(self) -> list[TransactionItem]:
        return [self.items[i] for i in self.plan().direct]

    def _facts(self, *, is_long: bool) -> list[ItemFacts]:
        table = None if self.options.record_table is None else self.options.record_table.place
        is_measured = is_long or len(self.items) * dynamodb.LARGEST_ITEM > dynamodb.MOST_BYTES
        return [_facts(item, table, is_long=is_long, is_measured=is_measured) for item in self.items]

    def _extra_actions(self) -> int:
        writers = [item.plan.writer for item in self.items if item.plan.writer is not None]
        checked_rows = {each.row.identity for writer in writers for each in writer.separate}
        return len(checked_rows) + (self.options.idempotency_key is not None)

    def run(self) -> bool:
        """Commit; tell whether an earlier transaction with this idempotency key was committed instead."""
        is_repeated = self.send()
        if not is_repeated:
            self.note()
        return is_repeated

    def send(self) -> bool:
        """Commit as `run` does, but leave the instances to `note`, unless the commit is long."""
        plan = self.plan()
        self.path = plan.path.value
        try:
            if plan.path is CommitPath.READ:
                self.check_reads()
            elif plan.path is CommitPath.SINGLE:
                self._write_alone()
            elif plan.path is CommitPath.NATIVE:
                self._write_together()
            elif plan.path is CommitPath.LONG:
                self._write_long(plan)
        except (Conflict, OutcomeUnknown, TransactWriteError) as error:
            found = recorded_outcome(self.options, plan.path, error)
            if found is None:
                ask_later(self.options, plan.path, error)
                if plan.path is not CommitPath.SINGLE:  # a single write reports itself
                    write.commit_failed(self.options.id, self.items[0].table if self.items else "", error)
                raise
            if found != self.options.id:
                return True
            if self._long is not None:
                self._long.conclude()
        self._is_applied = True
        return False

    def refused_items(self) -> dict[ItemKey, Image]:
        """Return the items of a refused native transaction as they were then, without a request.

        Those that had changed came with the refusal; the others are as they were read, if their version was checked.
        Without guards, of which a query needs the newest state. Empty if the refusal had another reason.
        """
        assembly = self._assembly
        if assembly is None or not all(isinstance(why, StaleVersion) for why in assembly.explained.values()):
            return {}
        found: dict[ItemKey, Image] = {}
        for i, row in assembly.by_key.items():
            item, why = self.items[i], assembly.explained.get(id(row))
            if is_own_row(item) or row.write is None or not row.write.part.is_checked:
                continue
            if isinstance(why, StaleVersion) and why.stored is not None:
                found[item.identity] = why.stored[1]
            elif row in assembly.unchanged and item.stored:
                found[item.identity] = item.stored
        return found

    def take_over(self, other: CommitRun) -> None:
        """Note that another run has committed these items, together with those of others."""
        self.path, self._is_applied = other.path, True
        self.note = partial(_note_written, [item for item in self.items if item.plan.write is not None])

    def doubt(self) -> Exception:
        """Return the error for those who share this commit, if the thread that sends it was interrupted."""
        cause = LockingError("the thread that sent it, for several callers, was interrupted")
        try:
            assembly = self._assembled()
        except Exception:  # noqa: BLE001 - one of them has changed its instance meanwhile, such as its key
            return also(OutcomeUnknown, TransactWriteError)(
                f"the transaction may or may not have been committed: {cause}.", cause=cause
            )
        assembly.ask(list(assembly.by_key.values()))
        return assembly.unknown(cause)

    def contended(self) -> list[TransactionItem]:
        """Return the written items that have refused the commit, since others had changed or locked them."""
        found: Sequence[TransactionItem] = ()
        if self._long is not None:
            found = self._long.contended()
        elif self._assembly is not None:
            found = [self.items[i] for i in self._assembly.contended()]
        elif self.path == CommitPath.SINGLE.value:
            found = self.items
        return [each for each in found if each.plan.write is not None]

    def check_reads(self) -> None:
        with conflicts(TransactWriteError):
            validate(self.items, self._resolver(), is_snapshot=True)

    def _resolver(self) -> Resolver:
        return Resolver(deadline=self.options.deadline, priority=self.options.priority)

    def _write_alone(self) -> None:
        [item] = self.items
        writer, sent = item.plan.writer, item.final()
        assert writer is not None  # noqa: S101 - it has a write
        if writer.held in self.last_under and sent.kind is EntryEffect.KEEP:
            sent = sent.but(kind=EntryEffect.FINISH)
        self.note = partial(writer.note_applied, sent, writer.send_only(sent))

    def _write_together(self) -> None:
        self._assembly = assembly = self._assembled()
        self.note = assembly.note_commit
        try:
            assembly.send_under_locks([*key_action(self.options), *record_action(self.options)])
        except Exception as error:
            assembly.note_refusal(error)
            raise

    def _assembled(self) -> TransactionActions:
        connection = self._native_connection()
        assembly = TransactionActions(connection, self.options.id, self.last_under, resolver=self._resolver)
        for i, item in enumerate(self.items):
            assemble(assembly, i, item)
        return assembly

    def _native_connection(self) -> Connection:
        """Return that of the items, which are all in one place; that of the records if only the key is written."""
        if self.items:
            return connection_of(self.items[0].model).connection
        table = self.options.record_table
        assert table is not None  # noqa: S101 - a transaction without items has a key
        return table.connection

    def _write_long(self, plan: CommitPlan) -> None:
        table, extra = check_table(self.options), key_action(self.options)
        self._long = MultiRequestCommit(self.items, plan, self.options, table, extra, self.last_under)
        try:
            self._long.run()
        except CannotBeStaged as error:
            raise _too_large(error) from error


def _note_written(items: Sequence[TransactionItem]) -> None:
    for item in items:
        note_applied(item.final())


def _too_large(error: CannotBeStaged) -> ConfigurationError:
    return ConfigurationError(
        f"this transaction is too large for one native transaction, and {error}. Declare `lock = LockAttribute()` on "
        f"their models, name the transaction's table in their Meta.transaction_table, read items that expire in the "
        f"transaction (an intent needs a day), or write fewer such items in it. Nothing was written."
    )


def _facts(item: TransactionItem, table: str | None, *, is_long: bool, is_measured: bool) -> ItemFacts:
    write = item.plan.write
    if is_long:  # else `final` checks it before anything is sent
        check_key(item.instance, item.key)
    is_counted = (
        item.plan.writer is not None and item.plan.writer.held is not None
    )  # the lock's entry refuses a second copy
    facts = ItemFacts(
        is_write=write is not None,
        is_absent=item.is_absent,
        needs_token=write is not None and write.is_sent_once and not is_counted,
        is_locked=is_counted,
        size=_size_after(item, is_exact=is_long) if is_measured else 0,  # a few items fit, however large they are
    )
    if not is_long or write is None:  # only writes get an intent
        return facts
    return facts._replace(
        can_have_intent=can_have_intent(item, table),
        needs_read=needs_read(item),
        wants_direct=facts.size > transactions.LARGE_BYTES,
    )


def _size_after(item: TransactionItem, *, is_exact: bool) -> int:
    """Return the size of an item as it will be stored; about that, in a third of the time, unless it is to be exact."""
    write, after = item.plan.write, item.plan.after
    if write is None:
        return size_of_item(item)
    if write.operation is DELETE or isinstance(after, Unread):
        return 0
    return (effects.size_of if is_exact else item_size)(after or {})
