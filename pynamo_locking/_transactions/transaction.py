"""Transactions of any number of items."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pynamodb.exceptions import DoesNotExist
from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._core.naming import checked_owner
from pynamo_locking._io import event_stream, runtime
from pynamo_locking._io.header_requests import header_table_of
from pynamo_locking._locks.callbacks import call_all
from pynamo_locking._models.isolation import Reader
from pynamo_locking._models.writing import GuardedMixin
from pynamo_locking._transactions import reports
from pynamo_locking._transactions.commit import Committing
from pynamo_locking._transactions.members import Members, give_back
from pynamo_locking._transactions.options import (
    TransactionOptions,
    check_model,
    check_options,
    check_query,
    checked_lease,
    is_guarding,
)
from pynamo_locking._transactions.savepoint import Savepoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.commit_paths import Plan
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._transactions.member import Member
    from pynamo_locking._transactions.transaction_table import TransactionTable

_M = TypeVar("_M", bound=GuardedMixin)


class Transaction:
    """A unit of work: collects reads and writes of any number of items, and commits them all or none.

    Made by `transaction`, or by hand with `commit` and `rollback`. Only what is called on it takes part:
    ``item.save()`` inside is the single write that it always is.

    Nothing is written before the commit. `get` returns the same instance for the same item, with what the transaction
    has done to it. Several operations on one item become one write. Conditions are about the items as stored before.

    Guaranteed under crashes of any process at any request, lost and late answers, pauses and clock skew: all writes
    are applied, or none; no reader, not even a plain PynamoDB one, sees a value that is not committed; what is
    committed was right by what was read (strictly serializable, unless a weaker isolation was asked for). Needed:
    every program that writes these items uses this package.
    Not guaranteed: that a plain reader, who reads several items one by one, sees them of one moment; that a second,
    late copy of the request of a transaction that only creates one item, or saves, sets or deletes one without a
    version check, is not applied. An `idempotency_key` prevents that.

    Args:
        table: the `TransactionTable`; ``Meta.transaction_table`` of the first model that has one unless given.
            More than 99 items can be written only of models that name it there.
        isolation: ``"serializable"``: everything that was read is checked at the commit. ``"snapshot"``: the same,
            nothing can be written, and undecided transactions are not waited for. ``"read_committed"``: only items that
            are written as well are checked. ``"read_uncommitted"``: reads show what is not committed yet.
        read_only: refuse writes, and an `idempotency_key`; with ``"serializable"`` that is ``"snapshot"``.
        wait: how long to wait for others, in seconds or as a timedelta; one deadline from now on. 60 s.
        lease: how long a commit lives without a renewal before others may abort it, in seconds. 10 s, at most a day.
        idempotency_key: names what it does. A second one with this key within a day writes nothing: `is_repeated`.
        owner: label for people of at most 256 bytes; host, process and thread unless given.
        workers: how many requests at once, where there are many. 8.
        on_progress: called with the number of items done and of all, during long commits.

    Attributes:
        id: names this attempt, never used twice.
        is_repeated: whether the commit found that one with this `idempotency_key` was committed before.

    Raises:
        ConfigurationError: for arguments that cannot work.
    """

    def __init__(  # noqa: PLR0913 - options
        self,
        table: type[TransactionTable] | None = None,
        *,
        isolation: str = "serializable",
        read_only: bool = False,
        wait: Duration = 60.0,
        lease: Duration = 10.0,
        idempotency_key: str | None = None,
        owner: str | None = None,
        workers: int = 8,
        on_progress: Callable[[int, int], object] | None = None,
    ) -> None:
        check_options(table, idempotency_key, workers)
        self.id: str = runtime.current.token()
        self.is_repeated: bool = False
        self._isolation = isolation
        self._read_only = read_only or isolation == "snapshot"
        if self._read_only and idempotency_key is not None:
            raise ConfigurationError("an idempotency key is written, and this transaction is read only: leave it out.")
        self._began_s = runtime.current.monotonic()
        deadline = self._began_s + seconds(wait, "wait")
        priority = f"{runtime.current.time_ms():015}-{self.id}"
        self._options = TransactionOptions(
            id=self.id,
            priority=priority,
            owner=runtime.current.owner() if owner is None else checked_owner(owner),
            lease=checked_lease(lease),
            deadline=deadline,
            workers=workers,
            idempotency_key=idempotency_key,
            on_progress=on_progress,
        )
        self._is_over = False
        self._commit: Committing | None = None
        self._is_committed = False
        self._after_commit: list[Callable[[], object]] = []
        self._after_rollback: list[Callable[[], object]] = []
        relies_on_reads = isolation in ("serializable", "snapshot")
        level = "snapshot" if relies_on_reads and self._read_only else isolation
        reader = Reader(level, deadline=deadline, priority=priority)
        self._members = Members(self.id, table, reader, deadline, relies_on_reads=relies_on_reads)

    # Reading

    def get(self, model: type[_M], hash_key: Any, range_key: Any = None, *, for_update: bool = False) -> _M:
        """Return an item as the transaction sees it: consistent, and with what was done to it here.

        Args:
            model: the model.
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            for_update: take the item's queue lock first, and keep it until the end: first come, first served,
                and nobody else writes it meanwhile. Worth it where many want the same items.

        Raises:
            DoesNotExist: there is no such item, or the transaction has deleted it.
            LockTimeout: the lock was not free in time.
            TransactionConflict: a transaction that is alive has the item, and there is no time left to wait.
            ConfigurationError: the model has no version; or the transaction is over.

        Cost: 1 consistent read the first time, none afterwards; 1 more and 1 write at most if another transaction has
        the item. With `for_update` 1 write to enter the queue, and 1 to leave it.
        """
        self._check_open()
        member = self._members.read(model, hash_key, range_key, for_update=for_update)
        if member.look() is None:
            raise model.DoesNotExist("There is no such item.")
        return cast("_M", member.item)

    def get_or_none(
        self, model: type[_M], hash_key: Any, range_key: Any = None, *, for_update: bool = False
    ) -> _M | None:
        """Return an item, or None if there is none; that it is absent is then checked as well. See `get`."""
        try:
            return self.get(model, hash_key, range_key, for_update=for_update)
        except DoesNotExist:
            return None

    def query(
        self,
        model: type[_M],
        hash_key: Any,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        **options: Any,
    ) -> list[_M]:
        """Return the items of a hash key as the transaction sees them, each read as by `get`.

        The items that are found take part like those of `get`. That no other one *appears* until the commit is
        guaranteed only for models with ``Meta.guard_queries = True``, whose items are created and deleted by
        transactions alone: each of those then counts a row of its hash key in the `TransactionTable`, and a
        query checks that.

        Args:
            model: the model.
            hash_key: the hash key.
            range_key_condition: on the range key.
            filter_condition: on what is stored; items that the transaction has changed are judged as it sees them.
            **options: `scan_index_forward`, `limit`, `page_size` and `rate_limit` of PynamoDB's `Model.query`. Not an
                index, which is eventually consistent, nor parts of items.

        Raises:
            ConfigurationError: an index was named; or the isolation is serializable and the model does not guard
                its queries.

        Cost: that of the query, and 1 read for each item that another transaction has. With guarded queries 1 more,
        and 1 transactional read of the items that were created and deleted by the last transactions, nine at most;
        1 for each hundred of those items.
        """
        self._check_open()
        check_model(model)
        check_query(model, self._isolation, options)
        return self._members.query(model, hash_key, range_key_condition, filter_condition, options)

    # Writing

    def save(
        self, item: GuardedMixin, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> None:
        """Store an item as it is now. What is changed in the instance afterwards needs another `save`.

        Args:
            item: from `get`, from anywhere else, or a new one. From elsewhere it has to be a whole one: a version
                without the write id that is stored with it (of a projection, or made by hand) is refused.
            condition: on the item as it is stored before the transaction.
            add_version_condition: with False whatever is stored is overwritten, unless the transaction has read it.

        Raises:
            ConfigurationError: its model cannot take part; or the transaction is over, or read only.
            StaleVersion: the transaction has another copy of the item.

        Cost: none here. In a long commit 1 read, if the item gets a mark and its version is not checked.
        """
        member = self._member_of(item, replaces=True)
        member.save(item._kept(condition), checks=add_version_condition)
        self._count_in_guard(member)

    def update(
        self,
        item: GuardedMixin,
        actions: list[Action],
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
    ) -> None:
        """Apply actions to an item. An instance from `get` has the result at once.

        Any other instance does not, and is refused by a later `save` until `refresh`. With
        ``add_version_condition=False``, actions such as ``Account.balance.add(5)`` are applied to whatever is stored.

        Raises:
            TransactWriteError: the actions do not fit the item, such as an `add` to a string.
            ConfigurationError, StaleVersion: as `save`; see there for `condition` as well.

        Cost: none here. In a long commit 1 read, if the item was not read by the transaction. Alone, without a
        version check or a lock, an `add` is a native transaction of 2 write units, so that no second copy is applied.
        """
        member = self._member_of(item)
        member.update(actions, item._kept(condition, actions), checks=add_version_condition)
        self._count_in_guard(member)

    def delete(
        self, item: GuardedMixin, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> None:
        """Delete an item. See `save`; `condition` may be left out. Costs 1 read here if the instance has no version."""
        member = self._member_of(item)
        member.delete(condition, checks=add_version_condition)
        self._count_in_guard(member)

    def check(self, item: GuardedMixin, condition: Condition | None = None) -> None:
        """Make it a condition of the commit that an item is the one that was read, without writing it.

        Whatever the isolation. An item that the transaction has read or writes is checked anyhow.

        Args:
            item: an instance; one that was never stored is checked to be absent.
            condition: has to be true of the stored item as well.
        """
        member = self._member_of(item, is_write=False)
        member.require(condition)
        member.check()

    def touch(
        self, item: GuardedMixin, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> None:
        """Count an item's version up, so that everybody who has read it must read it again. See `save`."""
        self._member_of(item).touch(condition, checks=add_version_condition)

    def _count_in_guard(self, member: Member) -> None:
        if is_guarding(member.model) and (member.is_absent or member.is_deleted or not member.is_checked):
            self._members.count_in_guard(member)

    def _member_of(self, item: Any, *, is_write: bool = True, replaces: bool = False) -> Member:
        self._check_open()
        if is_write and self._read_only:
            raise ConfigurationError("this transaction is read only: use another one to write.")
        if not isinstance(item, GuardedMixin):
            raise ConfigurationError(f"{type(item).__name__} is no model of this package: see VersionedMixin.")
        return self._members.of(item, is_write=is_write, replaces=replaces)

    # Ending

    def plan(self) -> Plan:
        """Return how the transaction would be committed now, and what that costs if nobody interferes.

        Sizes, and with them the units, are those of what is known: an update of an instance that the transaction
        has not read counts as 1 KB.
        """
        return self._committing().plan()

    def _committing(self) -> Committing:
        try:
            header_table: HeaderTable | None = header_table_of(self._members.table())
        except ConfigurationError:
            header_table = None
        return Committing(list(self._members.by_key.values()), replace(self._options, header_table=header_table))

    def commit(self) -> None:
        """Commit: all writes are applied, or none. The transaction is over then, whatever happens.

        Raises:
            StaleVersion: an item is not the one that was read.
            Conflict: a condition was not met.
            ItemLocked: somebody else holds the lock of an item.
            TransactionConflict: other transactions kept the items busy.
            TransactionAborted: somebody else aborted it.
            LockLost: the lock of an item that was to be written is gone.
            OutcomeUnknown: no answer tells whether it was committed; after all others nothing was written.
            ConfigurationError: it is over already, or is more than a transaction can be.

        Cost: see `plan`. 1 transactional read for each hundred items that were only read, and the headers of those who
        have some of them just then; 1 write for one item; 1 native transaction for up to a hundred.
        """
        self._check_open()
        self._is_over = True
        try:
            self._members.name_in_guards(lambda: self._committing().direct())
            self._commit = self._committing()
            self.is_repeated = self._commit.run()
        except BaseException as error:  # also an interrupt, which may come after the decision
            self._is_committed = self._commit is not None and self._commit.is_decided
            self._end(error, told=error)
            raise
        self._is_committed = True
        self._end(None)

    def rollback(self) -> None:
        """Give up: nothing is written. Does nothing if the transaction is over."""
        if not self._is_over:
            self._end(None)

    def _end(self, error: BaseException | None, *, told: BaseException | None = None) -> None:
        self._is_over = True
        if self.is_repeated or not self._is_committed:
            for member in self._members.by_key.values():
                member.mark_old(is_saved=self.is_repeated)
        last: list[Callable[[], object]] = [partial(give_back, lock) for lock in reversed(self._members.locks)]
        if event_stream.listeners:
            last.insert(0, partial(self._tell_end, told))
        if not self.is_repeated:
            last += self._after_commit if self._is_committed else self._after_rollback
        call_all(last, error)

    def _tell_end(self, error: BaseException | None) -> None:
        reports.transaction_ended(
            self.id,
            self._options.owner,
            began_s=self._began_s,
            items=len(self._members.by_key),
            path="" if self._commit is None else self._commit.path,
            is_committed=self._is_committed,
            is_repeated=self.is_repeated,
            error=error,
        )

    def savepoint(self) -> Savepoint:
        """Return the present state, to which `Savepoint.rollback` goes back. What was read since is checked still."""
        self._check_open()
        return Savepoint(self._members.by_key, self._check_open)

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Call back once the transaction is committed, such as to send a mail; locks are given back before.

        Not if `is_repeated`: nothing was written then. A process that dies between both makes no call; what must happen
        is itself an item of the transaction, as in an outbox. Its errors are raised, and the transaction stays
        committed. It can begin a transaction of its own.
        """
        self._check_open()
        self._after_commit.append(callback)

    def after_rollback(self, callback: Callable[[], object]) -> None:
        """Call back once the transaction is not, or not known to be, committed. After an error its own is logged."""
        self._check_open()
        self._after_rollback.append(callback)

    def _check_open(self) -> None:
        if self._is_over:
            raise ConfigurationError("this transaction is over: begin a new one.")

    def _again(self, successor: Transaction) -> Transaction:
        """Give the age of this transaction to another attempt, so that it is not wounded by younger ones for ever."""
        successor._options = replace(successor._options, priority=self._options.priority)
        successor._members.reader.priority = self._options.priority
        return successor

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not self._is_over:
            self._end(error)
        elif not self._is_over:
            self.commit()
