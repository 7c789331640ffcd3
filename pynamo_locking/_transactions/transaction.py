"""The transaction that users hold: its reads, writes, savepoints, callbacks, commit."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.exceptions import PynamoDBException
from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import Deadline, Duration, seconds
from pynamo_locking._core.row_keys import checked_owner
from pynamo_locking._core.transactions import CommitPath
from pynamo_locking._io import event_stream, runtime
from pynamo_locking._io.concurrency import undone_by
from pynamo_locking._io.event_stream import to_listeners
from pynamo_locking._io.model_doors import kept_condition
from pynamo_locking._io.runtime import logger
from pynamo_locking._io.transaction_record import record_table_of
from pynamo_locking._locks.lock_events import ms_since
from pynamo_locking._models.isolation import IsolatedReader, level_of
from pynamo_locking._models.writes import (
    GuardedMixin,
    Placed,
    inserted,
    moved,
    prepare_save,
    refuse_own,
    warn_of_lost_writes,
)
from pynamo_locking._transactions import suspension
from pynamo_locking._transactions.commit import CommitRun
from pynamo_locking._transactions.items import TransactionItems, locking
from pynamo_locking._transactions.options import (
    TransactionOptions,
    check_model,
    check_options,
    check_query,
    check_scan,
    checked_lease,
    is_guarding,
    values_of_key,
)
from pynamo_locking.exceptions import LockingError, NotUnique, StaleVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.transactions import CommitPlan
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.items import Locking
    from pynamo_locking._transactions.transaction_table import TransactionTable


def call_all(callbacks: Sequence[Callable[[], object]], error: BaseException | None) -> None:
    """Call all callbacks in order, even if one raises.

    `error` is why the transaction has ended. The caller has to get it, so what a callback raises is only logged then.

    Raises:
        Exception: without such an error, what the last callback that failed has raised.
    """
    with contextlib.ExitStack() as stack:
        for callback in reversed(callbacks):
            if error is None:
                stack.callback(callback)
            else:
                stack.callback(_logging, callback, error)


def _logging(callback: Callable[[], object], error: BaseException) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a callback failed at the end of a transaction, after %s", type(error).__name__)


class Savepoint:
    """A state of a transaction to which it can roll back. Made by `Transaction.savepoint`."""

    def __init__(self, items: TransactionItems, check_open: Callable[[], None]) -> None:
        """Save the state; `check_open` raises once the transaction has ended."""
        self._items = items
        self._check_open = check_open
        self._saved = {key: item.saved() for key, item in items.by_key.items() if not item.is_unused}
        self._moved = len(items.undo)
        self._models = items.joined()

    def rollback(self) -> None:
        """Restore the transaction and its instances as they were. Items read since stay read, and are still checked.

        A later `save` refuses another instance that still shows changes made since, until `refresh`.

        Raises:
            ConfigurationError: the transaction has ended.
        """
        self._check_open()
        self._items.undo_from(self._moved)
        for key, item in list(self._items.by_key.items()):
            if key in self._saved:
                item.restore(self._saved[key])
                continue
            item.reset()
            if item.is_unused:
                del self._items.by_key[key]
        self._items.rejoin(self._models)


_M = TypeVar("_M", bound=GuardedMixin)


class Transaction:
    """An ACID transaction: collects reads and writes of any number of items, and commits all of them or none.

    Made by `transaction`, or by hand with `commit` and `rollback`. Only its own methods take part. While it is open, a
    single write (``item.save()``) of an instance that it has read, or was given, raises `ConfigurationError`, and
    nothing is sent. So do `edit` and `modify` of its items inside its block. A write of another instance is an ordinary
    single write.

    Nothing is written before the commit. `get` returns the same instance for the same item, with the changes of the
    transaction. Several operations on one item become one write. Conditions apply to the items as stored before.

    Guaranteed under crashes of any process at any request, lost and late responses, pauses and clock skew:

    * all writes are applied, or none;
    * no reader, not even a plain PynamoDB reader, sees an uncommitted value;
    * transactions are serializable, unless a weaker isolation was chosen: the commit checks all that was read;
    * a transaction that begins after another one has returned sees its writes.

    Required: every program that writes these items uses this package. Not guaranteed: a plain reader that reads several
    items one by one may see them at different moments. If a transaction only creates one item, or saves, sets or
    deletes one without a version check, a late second copy of its request may be applied; an `idempotency_key` prevents
    that.

    Args:
        table: the `TransactionTable`; ``Meta.transaction_table`` of the first model that has one unless given. More
            than 99 items can be written only if their models name it there.
        isolation: ``"serializable"``: the commit checks everything that was read. ``"snapshot"``: the same, but nothing
            can be written, and reads do not wait for undecided transactions. ``"read_committed"``: only items that are
            also written are checked, and reads do not wait either.
        read_only: refuse writes, and an `idempotency_key`; with ``"serializable"`` that is ``"snapshot"``.
        wait: how long to wait for other transactions and locks, in seconds or as a timedelta; one deadline from now on.
            60 s.
        lease: how long a commit may go without a renewal before other processes may abort it, in seconds. 10 s, at most
            a day.
        idempotency_key: names the work. A second transaction with this key within a day writes nothing: `is_repeated`.
        record: store the outcome of a transaction of up to 100 actions that writes, so that `outcome` tells it for a
            day. One action more, in the same native transaction. Larger transactions always have a record.
        owner: label for people of at most 256 bytes; host, process and thread unless given.
        workers: the number of parallel requests in a long commit. 8.
        on_progress: called during long commits with the number of steps done and the total. To write an intent is a
            step, and so is to apply its change.

    Attributes:
        id: names this attempt, never used twice.
        is_repeated: whether the commit found that a transaction with this `idempotency_key` was committed before.

    Raises:
        InvalidInput: the idempotency key is no text of 1 to 2,000 bytes.
        ConfigurationError: for other arguments that cannot work.

    Warns:
        ResourceWarning: it has writes, was neither committed nor rolled back, and is gone. The warning names the items.
    """

    _is_over = True  # until it is made

    def __init__(  # noqa: PLR0913 - options
        self,
        table: type[TransactionTable] | None = None,
        *,
        isolation: str = "serializable",
        read_only: bool = False,
        wait: Duration = 60.0,
        lease: Duration = 10.0,
        idempotency_key: str | None = None,
        record: bool = False,
        owner: str | None = None,
        workers: int = 8,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> None:
        check_options(table, idempotency_key, workers)
        self.id: str = runtime.current.token()
        self.is_repeated: bool = False
        self._level = level_of(isolation, read_only=read_only)
        if not self._level.may_write and (idempotency_key is not None or record):
            what = "a record" if idempotency_key is None else "an idempotency key"
            raise ConfigurationError(f"{what} is written, and this transaction is read only: leave it out.")
        self._began_s = runtime.current.monotonic()
        deadline = Deadline(self._began_s + seconds(wait, "wait"))
        priority = f"{runtime.current.time_ms():015}-{self.id}"
        self._options = TransactionOptions(
            id=self.id,
            priority=priority,
            owner=runtime.current.owner() if owner is None else checked_owner(owner),
            lease=checked_lease(lease),
            deadline=deadline,
            workers=workers,
            idempotency_key=idempotency_key,
            record=record,
            on_progress=on_progress,
        )
        self._forks = runtime.forks
        self._commit: CommitRun | None = None
        self._is_committed = False
        self._was_done = False  # before, by another transaction with this idempotency key
        self._after_commit: list[Callable[[], object]] = []
        self._after_rollback: list[Callable[[], object]] = []
        reader = IsolatedReader(self._level, deadline=deadline, priority=priority)
        self._items = TransactionItems(self.id, table, reader, deadline)
        self._is_over = False

    def save(
        self, item: GuardedMixin, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> None:
        """Store an item as it is now. Later changes of the instance need another `save`.

        Example::

            with transaction() as tx:
                tx.save(Account("a-3", balance=5), condition=Account.account_id.does_not_exist())

        Args:
            item: an instance from `get`, from elsewhere, or a new one. An instance from elsewhere must be complete: a
                version without the write id that is stored with it (of a projection, or made by hand) is refused.
            condition: on the item as it is stored before the transaction.
            add_version_condition: with False any stored item is overwritten, unless the transaction has read it.

        Raises:
            ConfigurationError: its model cannot take part, or overrides `save`; the transaction has ended, or is read
                only; or the condition has a class that was derived from one of PynamoDB's.
            StaleVersion: the transaction has another copy of the item.

        Cost: none here. In a long commit 1 read, if the item gets an intent and its version is not checked; one request
        reads a hundred.
        """
        prepare_save(item, "tx.save()")
        planned = self._item_of(item, replaces=True)
        planned.save(kept_condition(item, condition, planned=planned), checks=add_version_condition)
        self._count_in_guard(planned)

    def update(
        self,
        item: GuardedMixin,
        actions: list[Action],
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
    ) -> None:
        """Apply actions to an item. An instance from `get` has the result at once.

        Any other instance does not, and a later `save` refuses it until `refresh`. With
        ``add_version_condition=False``, actions such as ``Account.balance.add(5)`` apply to any stored item.

        Example::

            with transaction() as tx:
                tx.update(tx.get(Account, "a-1"), [Account.balance.add(-10)])
                tx.update(tx.get(Account, "a-2"), [Account.balance.add(10)])

        Raises:
            TransactWriteError: the actions do not fit the item, such as an `add` to a string.
            ConfigurationError, StaleVersion: as `save`, and of a model that overrides `update`; see there for
                `condition` as well.

        Cost: none here. In a long commit 1 read, if the item was not read by the transaction. Alone, without a
        version check or a lock, an `add` is a native transaction of 2 write units, so that no second copy is applied.
        """
        refuse_own(item, "update", "tx.update()")
        planned = self._item_of(item)
        planned.update(actions, kept_condition(item, condition, actions, planned=planned), checks=add_version_condition)
        self._count_in_guard(planned)

    def delete(
        self, item: GuardedMixin, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> None:
        """Delete an item. See `save`; `condition` may be left out. A model that overrides `delete` is refused.

        Costs 1 read here if the instance has no version.
        """
        refuse_own(item, "delete", "tx.delete()")
        planned = self._item_of(item)
        planned.delete(condition, checks=add_version_condition)
        self._count_in_guard(planned)

    def check(self, item: GuardedMixin, condition: Condition | None = None) -> None:
        """Let the commit check that the stored item is the one that was read, without writing it.

        This works under every isolation. Items read under ``"serializable"``, and written items, are checked anyway.

        Example::

            account = Account.get("a-1")
            with transaction(isolation="read_committed") as tx:
                tx.check(account)
                tx.save(Account("a-3", balance=account.balance))

        Args:
            item: an instance; for a new instance the commit checks that the item is absent.
            condition: must also be true of the stored item.
        """
        planned = self._item_of(item, is_write=False)
        planned.check(condition)

    def touch(
        self, item: GuardedMixin, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> None:
        """Increment an item's version, so that every process that has read it must read it again. See `save`."""
        self._item_of(item).touch(condition, checks=add_version_condition)

    def insert_disjoint(self, model: type[_M], new_rows: Sequence[_M], *, pessimistic: bool = False) -> None:
        """Store new rows of a model with intervals, all or none, if nothing overlaps them. See `IntervalMixin`.

        Rows that this transaction has inserted, moved or deleted count as it leaves them. The commit checks again that
        the intervals are free: if another writer has changed an interval of the same hash keys meanwhile, it raises
        `TransactionConflict`, which `transactional` retries.

        With an `idempotency_key` that was committed before, a call that would raise `OverlapError` adds nothing: the
        rows in the way may be its own, and the commit writes nothing.

        Example::

            with transaction() as tx:
                tx.insert_disjoint(Booking, [Booking("blue", 9, end=10)])
                tx.save(Line("o-2", 1, price=20))

        Args:
            model: the model, derived from `IntervalMixin`.
            new_rows: see `Intervals.insert_disjoint`. Each row, and each hash key, is an action of the transaction.
            pessimistic: acquire range locks first, and hold them until the end; see there.

        Raises:
            OverlapError: a row overlaps another row; the transaction is as it was before the call.
            LockTimeout: the range locks were not free in time.
            ConfigurationError: the model has no intervals; or as there.

        Cost: for each hash key 1 read the first time, for each row 1 query (rows that touch share one), and with
        `pessimistic` 1 write, 2 in a transaction of more than 100 actions. In the commit 1 action for each row and each
        hash key. With an `idempotency_key` 2 reads before an `OverlapError`.
        """
        self._place(lambda: inserted(self, model, new_rows), pessimistic=pessimistic)

    def move(self, row: GuardedMixin, begin: Any, end: Any, *, pessimistic: bool = False) -> None:
        """Give a row another interval, if no other row overlaps it. See `Intervals.move` and `insert_disjoint`.

        The instance is the moved row from now on, and after a rollback what it was before.

        Raises:
            OverlapError, StaleVersion, LockTimeout, ConfigurationError: as there.

        Cost: as `insert_disjoint`.
        """
        self._place(lambda: moved(self, row, begin, end), pessimistic=pessimistic)

    def _place(self, made: Callable[[], Placed], *, pessimistic: bool) -> None:
        self._check_writable()
        placed = made()
        for lock in placed.locks() if pessimistic else ():
            self._items.locks.hold(lock)
        placed.stage()

    def _check_writable(self) -> None:
        self._check_open()
        if not self._level.may_write:
            raise ConfigurationError("this transaction is read only: use another one to write.")

    def _count_in_guard(self, item: TransactionItem) -> None:
        if is_guarding(item.model) and (item.is_absent or item.is_deleted or not item.plan.is_checked):
            self._items.count_in_guard(item)

    def _item_of(self, item: Any, *, is_write: bool = True, replaces: bool = False) -> TransactionItem:
        (self._check_writable if is_write else self._check_open)()
        if item is None:
            raise ConfigurationError(
                "None is no item: get_or_none() and get_all() return it for a key without an item. To create the item, "
                "pass a new instance of its model."
            )
        if not isinstance(item, GuardedMixin):
            raise ConfigurationError(f"{type(item).__name__} is no model of this package: see VersionedMixin.")
        return self._items.of(item, is_write=is_write, replaces=replaces)

    def plan(self) -> CommitPlan:
        """Return how the transaction would be committed now: the path, and what it does with each row.

        Raises:
            NotUnique: two of its items have the same unique value.
            ConfigurationError: it exceeds a limit.

        Cost: none; of items with unique values the reads of the commit that are said in the table of costs, which it
        then makes no more.
        """
        if self._is_over:
            return self._committing().plan()
        try:
            self._items.take_values(is_final=False)
            return self._committing().plan()
        finally:
            self._items.forget_values()

    def _committing(self) -> CommitRun:
        table = self._items.table_if_known()
        if table is not None:
            self._items.join(table)
        record_table = None if table is None else record_table_of(table)
        return CommitRun(list(self._items.by_key.values()), replace(self._options, record_table=record_table))

    def commit(self) -> None:
        """Commit: all writes are applied, or none. The transaction has ended afterwards, even if this raises.

        Raises:
            StaleVersion: an item is not the one that was read.
            Conflict: a condition was false.
            ItemLocked: another owner holds the lock of an item.
            TransactionConflict: other transactions kept the items busy.
            TransactionAborted: another process aborted it.
            LockLost: the lock of an item that was to be written is lost.
            OutcomeUnknown: no response tells whether it was committed; after all other errors nothing was written.
            ConfigurationError: it is over already, or exceeds a limit.

        Warns:
            UserWarning: an instance was read and changed, but not saved. The warning names the item and the attributes.
                A change inside a list, a set or a map is not noticed.

        Cost: 1 transactional read for each hundred items that were only read, and the records of
        transactions that have an intent on some of them; 1 write for one item; 1 native transaction for up to a
        hundred. If a unique value is taken, and the transaction is long or nothing was sent, 1 transactional read more
        for each hundred items: it tells whether one of them is stale.
        """
        self._check_open()
        self._is_over = True
        with event_stream.scope(keeps=False):
            try:
                self.is_repeated = self._run_commit()
            except BaseException as error:  # also an interrupt, perhaps after the decision
                self._is_committed = self._commit is not None and self._commit.is_decided
                self._end(error, ended_by=error)
                raise
            self._is_committed = True
            self._end(None)

    def _run_commit(self) -> bool:
        """Commit; tell whether an earlier transaction with this idempotency key was committed instead."""
        if self._was_done:
            return True
        self._items.warn_of_unsaved()
        try:
            self._items.take_values()
            self._items.note_locks()  # a write may have been planned in a context that did not hold them
            self._items.guards.name_items(lambda: self._committing().direct())
            self._commit = self._committing()
            member = self._items.member
            self._commit.last_under = self._items.locks.take_last()
            return self._commit.run() if member is None else member.commit(self._commit)
        except NotUnique as error:
            if self._commit is None or self._commit.path == CommitPath.LONG:  # a native one names all that is refused
                self._check_relied_on(error)
            raise

    def _check_relied_on(self, error: NotUnique) -> None:
        """Raise if an item is not the one that was read: then a value that was moved seems to be taken."""
        try:
            CommitRun(self._items.relied_on(), self._options).check_reads()
        except StaleVersion as stale:
            raise stale from error
        except (LockingError, PynamoDBException) as unknown:
            logger.debug("whether an item is stale cannot be told: %s", unknown)

    def rollback(self) -> None:
        """Roll back: nothing is written. Does nothing if the transaction has ended."""
        try:
            if not self._is_over:
                self._end(None)
        finally:
            self._items.locks.give_back()  # what an interrupted end has left

    def suspend(self, *, expires_after: Duration = 86_400.0) -> str:
        """Store what was read and what is to be written, for any process to `resume`, and roll back.

        Conditions are checked now; the commit checks that all items are still as they were read.

        Args:
            expires_after: how long DynamoDB's TTL leaves the row alone, in seconds or as a timedelta. A day.

        Returns:
            The id to resume it by: `id`, or the id by which it was resumed itself. It can be committed once.

        Raises:
            ConfigurationError: it holds locks, has callbacks, has placed intervals, only reads, or has `combine`.
            StaleVersion: an item was changed, or another process has gone on with the transaction.
            Conflict: a condition was false.
            UpdateError: the row would exceed the 400 KB of an item.

        Cost: 1 write, and 1 read for each item that was written without being read.
        """
        self._check_open()
        if not self._level.may_write or self._items.locks.held or self._after_commit or self._after_rollback:
            raise ConfigurationError("a transaction that only reads, or with locks or callbacks, cannot be suspended.")
        if self._items.member is not None:
            raise ConfigurationError(
                "a transaction with combine=True cannot be suspended: it may have read what is not committed yet. "
                "Leave out combine."
            )
        id_ = suspension.suspend(
            self._items, self.id, self._options.idempotency_key, seconds(expires_after, "expires_after")
        )
        self.rollback()
        return id_

    def resume(self, id: str, models: Iterable[type[GuardedMixin]]) -> None:  # noqa: A002 - the name of what it is
        """Continue a suspended transaction, with its reads, its planned writes and its idempotency key.

        Args:
            id: as `suspend` has returned it.
            models: of all its items. One stands for the classes that its discriminator knows, too.

        Raises:
            InvalidInput: the id is no text.
            DoesNotExist: there is none: it was committed, or `expires_after` is over.
            StaleVersion: an item was changed since it was read.
            ConfigurationError: a model is missing; or this transaction is read only, has resumed one already, or has
                another idempotency key.
            CorruptRow: the row is not as it was written.

        Cost: 1 read, and 1 request for each hundred items of a model; 1 action more in the commit.
        """
        self._check_open()
        if not self._level.may_write:
            raise ConfigurationError(
                "a read-only transaction cannot resume another one: its commit would delete the row."
            )
        with undone_by(self.savepoint().rollback):  # a commit of what else it does must not delete the row
            self._go_on(id, list(models))

    def _go_on(self, id_: str, models: list[type[GuardedMixin]]) -> None:
        own = self._options.idempotency_key
        key, planned = suspension.resume(self._items, id_, models)
        if key is not None and own not in (None, key):
            raise ConfigurationError(
                f"the suspended transaction has the idempotency key {key!r:.80}: leave out {own!r:.80}."
            )
        self._items.undo.append(partial(setattr, self, "_options", self._options))
        self._options = replace(self._options, idempotency_key=key or own)
        for instance, actions in planned:  # of an item that its own method did not keep out of the suspended one
            item = self._item_of(instance)
            if actions is None:
                item.delete(None, checks=True)
            else:
                item.update(actions, kept_condition(instance, None, actions, planned=item), checks=True)
            self._count_in_guard(item)

    def _end(self, error: BaseException | None, *, ended_by: BaseException | None = None) -> None:
        self._is_over = True
        self._items.participation.end()
        try:
            if self.is_repeated or not self._is_committed:
                self._items.undo_from(0)
                for item in self._items.by_key.values():
                    item.mark_stale(is_saved=self.is_repeated)
            last: list[Callable[[], object]] = [partial(self._tell_end, ended_by), self._items.locks.give_back]
            if not self.is_repeated:
                last += self._after_commit if self._is_committed else self._after_rollback
            call_all(last, error)
        finally:
            self._items.locks.give_back()  # after an interrupt of all that

    @to_listeners
    def _tell_end(self, error: BaseException | None) -> None:
        about = {
            **event_stream.clocks(),
            "transaction_id": self.id,
            "owner": self._options.owner,
            "lasted_ms": ms_since(self._began_s),
            "items": len(self._items.by_key),
            "path": "" if self._commit is None else self._commit.path,
            "consumed_units": None if self._commit is None else event_stream.consumed_units(),
        }
        if self._is_committed:
            event_stream.emit(event_stream.events.TransactionCommitted(**about, is_repeated=self.is_repeated))
        else:
            why = "" if error is None else type(error).__name__
            event_stream.emit(event_stream.events.TransactionRolledBack(**about, error=why))

    def savepoint(self) -> Savepoint:
        """Return the present state, which `Savepoint.rollback` restores. Items read since are still checked.

        Example::

            with transaction() as tx:
                account = tx.get(Account, "a-1")
                before = tx.savepoint()
                tx.update(account, [Account.balance.add(-200)])
                if account.balance < 0:
                    before.rollback()
        """
        self._check_open()
        return Savepoint(self._items, self._check_open)

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Call back once the transaction is committed and its locks are released, for example to send a mail.

        It is not called if `is_repeated`, since nothing was written, nor if the process dies first: write what must
        happen as an item of the transaction (an outbox). If the callback raises, its error is raised, and the
        transaction stays committed. The callback can begin another transaction.

        Example::

            with transaction() as tx:
                tx.update(tx.get(Account, "a-1"), [Account.balance.add(-10)])
                tx.after_commit(lambda: print("paid"))
        """
        self._check_open()
        self._after_commit.append(callback)

    def after_rollback(self, callback: Callable[[], object]) -> None:
        """Call back after a rollback, or when the outcome is unknown. After an error its own errors are only logged."""
        self._check_open()
        self._after_rollback.append(callback)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None and not self._is_over:
                self._end(error)
            elif not self._is_over:
                self.commit()
        finally:
            self.rollback()  # if an interrupt came before the end

    def __del__(self) -> None:
        """Warn of a transaction that nobody has committed; one of a parent process is none of ours."""
        if not self._is_over and self._forks == runtime.forks:
            written = (item for item in self._items.by_key.values() if item.plan.write is not None)
            warn_of_lost_writes(self, [item.identity for item in written])

    def _check_open(self) -> None:
        if self._is_over:
            raise ConfigurationError("this transaction has ended: begin a new one.")
        if self._forks != runtime.forks:
            raise ConfigurationError(
                "this transaction was begun before this process was forked, or restored from a snapshot, and its "
                "copies have the same id: begin a new one here."
            )

    def get(
        self,
        model: type[_M],
        hash_key: Any,
        range_key: Any = None,
        *,
        for_update: bool = False,
        for_share: bool = False,
    ) -> _M:
        """Return an item as the transaction sees it: read consistently, with the changes of the transaction.

        Example::

            with transaction() as tx:
                account = tx.get(Account, "a-1", for_update=True)
                account.balance += 10
                tx.save(account)

        Args:
            model: the model.
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            for_update: acquire the item's queue lock first, and hold it until the end: first come, first served, and no
                other process writes the item meanwhile (pessimistic locking). Use it under high contention. If the item
                is absent, its name is locked, in ``Meta.lock_table``, so that callers that create it queue.
            for_share: acquire the lock together with other readers. The commit checks the item under every isolation,
                and the transaction cannot write it: there is no upgrade.

        Raises:
            DoesNotExist: there is no such item, or the transaction has deleted it.
            LockTimeout: the lock was not free in time.
            TransactionConflict: another live transaction has an intent on the item, and `wait` is over.
            ConfigurationError: the model has no version; or the transaction has ended; or it has read the item with
                `for_share` and asks for more; or it has the item as an instance of another class.
            ValueError: the item is of another class, by its discriminator: as PynamoDB's `Model.get`.

        Cost: 1 consistent read the first time, none afterwards; 1 more and 1 write at most if another transaction has
        an intent on the item. With `for_update` and `for_share` 1 write to enter the queue, which replaces the read if
        the lock is in the item; and 1 to leave it, unless the commit writes the item itself, and not by an intent. Of
        an absent item with a `LockAttribute` 2 refused writes more, and always 1 to leave.
        """
        wanted = locking(for_update=for_update, for_share=for_share, refuses_absent=False)
        [found] = self._read(model, [(hash_key, range_key)], wanted)
        if found is None:
            raise model.DoesNotExist("There is no such item.")
        return found

    def get_or_none(
        self,
        model: type[_M],
        hash_key: Any,
        range_key: Any = None,
        *,
        for_update: bool = False,
        for_share: bool = False,
    ) -> _M | None:
        """Return an item, or None if it does not exist; the commit then checks that it is still absent. See `get`.

        Raises:
            ConfigurationError: an absent item was to be locked, and the model has no ``Meta.lock_table``.
        """
        [found] = self._read(model, [(hash_key, range_key)], locking(for_update=for_update, for_share=for_share))
        return found

    def get_all(
        self, model: type[_M], keys: Iterable[Any], *, for_update: bool = False, for_share: bool = False
    ) -> list[_M | None]:
        """Return the items of many keys, each as by `get_or_none`, in the order of the keys.

        Example::

            with transaction() as tx:
                source, target = tx.get_all(Account, ["a-1", "a-2"])
                source.balance, target.balance = 90, 10
                tx.save(source)
                tx.save(target)

        Args:
            model: the model.
            keys: the hash keys; tuples of hash key and range key if the model has one. The same key twice gives the
                same instance twice.
            for_update: acquire the queue locks of all items first, in one canonical order; see `get`.
            for_share: the same, among readers.

        Raises:
            LockTimeout, TransactionConflict, ConfigurationError: as `get_or_none`.
            GetError: DynamoDB was too busy to read some items, until `wait` was over; or refused the request.

        Cost: 1 request for each hundred items that were not read yet, with the read units of single reads; 1 more
        for each 16 MB, and for each time that DynamoDB is too busy for some. What `get` takes for intents and locks.
        """
        wanted = locking(for_update=for_update, for_share=for_share)
        return self._read(model, (values_of_key(model, key) for key in keys), wanted)

    def _read(self, model: type[_M], values: Iterable[tuple[Any, Any]], wanted: Locking | None) -> list[_M | None]:
        self._check_open()
        check_model(model)
        return [self._items.hand_out(item, model) for item in self._items.read_all(model, list(values), wanted)]

    def query(
        self,
        /,
        model: type[_M],
        hash_key: Any,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        **options: Any,
    ) -> list[_M]:
        """Return the items of a hash key as the transaction sees them, each read as by `get`.

        Example::

            with transaction(isolation="read_committed") as tx:
                lines = list(tx.query(Line, "o-1", Line.number > 0, limit=10))
                tx.save(Account("a-4", balance=sum(line.price for line in lines)))

        The items that are found take part like those of `get`; with a `limit`, those up to the last one returned. That
        no further item *appears* until the commit is guaranteed only for models with ``Meta.guard_queries = True``,
        whose items are created and deleted by transactions alone: each such transaction then increments a row of the
        hash key in the `TransactionTable`, and the commit checks the row.

        Args:
            model: the model.
            hash_key: the hash key.
            range_key_condition: on the range key.
            filter_condition: on the stored items; items that the transaction has changed are judged as it sees them.
            **options: `scan_index_forward`, `limit`, `page_size` and `rate_limit` of PynamoDB's `Model.query`. Not an
                index, which is eventually consistent, nor parts of items.

        Raises:
            ConfigurationError: an index was named; the isolation is serializable and the model does not guard its
                queries; or a condition has a class that was derived from one of PynamoDB's.

        Cost: that of the query, whose pages with a `limit` start there and double; and 1 read and at most 1 write for
        each item that another transaction has an intent on, a hundred and 25 in a request. With guarded queries 1 more,
        and 1 transactional read for each hundred items that the last transactions, nine at most, have created and
        deleted.
        """
        self._check_open()
        check_model(model)
        check_query(model, self._level, options)
        return self._items.query(model, hash_key, range_key_condition, filter_condition, options)

    def scan(self, model: type[_M], filter_condition: Condition | None = None, *, at_most: int) -> list[_M]:
        """Return the items of a small table as the transaction sees them, in no order, each read as by `get`.

        All of them take part. That no further item appears until the commit is guaranteed only for models with
        ``Meta.guard_queries = "table"``: see `query`. Then one row counts changes of the whole table.

        Args:
            model: the model.
            filter_condition: on what the transaction sees. All items are read, and take part.
            at_most: how many rows the table may have, with expired ones and those that a transaction is about to store.

        Raises:
            ConfigurationError: the table has more items; the isolation is serializable and the model does not guard its
                table; or the condition has a class that was derived from one of PynamoDB's.

        Cost: that of a consistent scan, and otherwise that of `query`.
        """
        self._check_open()
        check_model(model)
        check_scan(model, self._level, at_most)
        return self._items.scan(model, filter_condition, at_most)
