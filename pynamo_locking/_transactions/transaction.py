"""Transactions of any number of items."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pynamodb.exceptions import DoesNotExist
from typing_extensions import Self

from pynamo_locking._core import events
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import Deadline, Duration, seconds
from pynamo_locking._core.naming import checked_owner
from pynamo_locking._io import event_stream, runtime
from pynamo_locking._io.header_requests import header_table_of
from pynamo_locking._io.reports import harmless
from pynamo_locking._locks.reports import ms_since
from pynamo_locking._models.isolation import Reader
from pynamo_locking._models.writing import GuardedMixin
from pynamo_locking._transactions.callbacks import call_all
from pynamo_locking._transactions.commit import Committing
from pynamo_locking._transactions.members import Members, give_back
from pynamo_locking._transactions.options import (
    TransactionOptions,
    check_model,
    check_options,
    check_query,
    checked_lease,
    is_guarding,
    values_of_key,
)
from pynamo_locking._writes.reports import name_of_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.commit_paths import Plan
    from pynamo_locking._io.header_requests import HeaderTable
    from pynamo_locking._transactions.member import Member
    from pynamo_locking._transactions.transaction_table import TransactionTable

_M = TypeVar("_M", bound=GuardedMixin)


class Savepoint:
    """A state of a transaction to which it can roll back; `check_open` raises once the transaction is over."""

    def __init__(self, members: dict[Any, Member], check_open: Callable[[], None]) -> None:
        self._members = members
        self._check_open = check_open
        self._saved = {key: member.saved() for key, member in members.items() if not member.is_unused}

    def rollback(self) -> None:
        """Restore the transaction and its instances as they were. Items read since stay read, and are still checked.

        A later `save` refuses another instance that still shows changes made since, until `refresh`.

        Raises:
            ConfigurationError: the transaction is over.
        """
        self._check_open()
        for key, member in list(self._members.items()):
            if key in self._saved:
                self._saved[key](member)
                continue
            member.reset()
            if member.is_unused:
                del self._members[key]


class Transaction:
    """A unit of work: collects reads and writes of any number of items, and commits all of them or none.

    Made by `transaction`, or by hand with `commit` and `rollback`. Only calls of its methods take part: ``item.save()``
    inside the block is an ordinary single write.

    Nothing is written before the commit. `get` returns the same instance for the same item, with the changes by the
    transaction. Several operations on one item become one write. Conditions are about the items as stored before.

    Guaranteed under crashes of any process at any request, lost and late responses, pauses and clock skew: all writes
    are applied, or none; no reader, not even a plain PynamoDB reader, sees a value that is not committed; the commit
    is correct for everything that was read (strictly serializable, unless a weaker isolation was chosen). Required:
    every program that writes these items uses this package.
    Not guaranteed: that a plain reader who reads several items one by one sees them at one moment; that a second,
    late copy of the request of a transaction that only creates one item, or saves, sets or deletes one without a
    version check, is not applied. An `idempotency_key` prevents that.

    Args:
        table: the `TransactionTable`; ``Meta.transaction_table`` of the first model that has one unless given.
            More than 99 items can be written only if their models name it there.
        isolation: ``"serializable"``: the commit checks everything that was read. ``"snapshot"``: the same, but
            nothing can be written, and reads do not wait for undecided transactions. ``"read_committed"``: only items
            that are also written are checked. ``"read_uncommitted"``: reads show uncommitted values.
        read_only: refuse writes, and an `idempotency_key`; with ``"serializable"`` that is ``"snapshot"``.
        wait: how long to wait for other transactions and locks, in seconds or as a timedelta; one deadline from now
            on. 60 s.
        lease: how long a commit lives without a renewal before other processes may abort it, in seconds. 10 s, at
            most a day.
        idempotency_key: names the work. A second transaction with this key within a day writes nothing: `is_repeated`.
        owner: label for people of at most 256 bytes; host, process and thread unless given.
        workers: the number of parallel requests in a long commit. 8.
        on_progress: called with the number of items done and of all, during long commits.

    Attributes:
        id: names this attempt, never used twice.
        is_repeated: whether the commit found that a transaction with this `idempotency_key` was committed before.

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
        self._members = Members(self.id, table, reader, deadline, relies_on_reads)

    def get(self, model: type[_M], hash_key: Any, range_key: Any = None, *, for_update: bool = False) -> _M:
        """Return an item as the transaction sees it: read consistently, and with the changes by the transaction.

        Args:
            model: the model.
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            for_update: acquire the item's queue lock first, and hold it until the end: first come, first served, and
                no other process writes the item meanwhile. Worth it under high contention.

        Raises:
            DoesNotExist: there is no such item, or the transaction has deleted it.
            LockTimeout: the lock was not free in time.
            TransactionConflict: another live transaction has marked the item, and `wait` is over.
            ConfigurationError: the model has no version; or the transaction is over.

        Cost: 1 consistent read the first time, none afterwards; 1 more and 1 write at most if another transaction has
        marked the item. With `for_update` 1 write to enter the queue, and 1 to leave it.
        """
        self._check_open()
        member = self._members.read(model, hash_key, range_key, for_update=for_update)
        if member.look() is None:
            raise model.DoesNotExist("There is no such item.")
        return cast("_M", member.item)

    def get_or_none(
        self, model: type[_M], hash_key: Any, range_key: Any = None, *, for_update: bool = False
    ) -> _M | None:
        """Return an item, or None if it does not exist; the commit then checks that it is still absent. See `get`."""
        try:
            return self.get(model, hash_key, range_key, for_update=for_update)
        except DoesNotExist:
            return None

    def get_all(self, model: type[_M], keys: Iterable[Any], *, for_update: bool = False) -> list[_M | None]:
        """Return the items of many keys, each as by `get_or_none`, in the order of the keys.

        Args:
            model: the model.
            keys: the hash keys; tuples of hash key and range key if the model has one. The same key twice gives the
                same instance twice.
            for_update: acquire the queue locks of all items first, in one canonical order; see `get`.

        Raises:
            LockTimeout, TransactionConflict, ConfigurationError: as `get`.
            GetError: DynamoDB was too busy to read some items, until `wait` was over; or refused the request.

        Cost: 1 request for each hundred items that were not read yet, with the read units of single reads; 1 more
        for each 16 MB, and for each time that DynamoDB is too busy for some. What `get` takes for marks and
        `for_update`.
        """
        self._check_open()
        check_model(model)
        members = self._members.read_all(model, [values_of_key(model, key) for key in keys], for_update=for_update)
        return [None if member.look() is None else cast("_M", member.item) for member in members]

    def query(
        self,
        model: type[_M],
        hash_key: Any,
        range_key_condition: Condition | None = None,
        filter_condition: Condition | None = None,
        **options: Any,
    ) -> list[_M]:
        """Return the items of a hash key as the transaction sees them, each read as by `get`.

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
            ConfigurationError: an index was named; or the isolation is serializable and the model does not guard
                its queries.

        Cost: that of the query, whose pages with a `limit` start there and double; and 1 read and at most 1 write
        for each item that another transaction has marked, a hundred and 25 in a request. With guarded queries 1
        more, and 1 transactional read for each hundred items that the last transactions, nine at most, have created
        and deleted.
        """
        self._check_open()
        check_model(model)
        check_query(model, self._isolation, options)
        return self._members.query(model, hash_key, range_key_condition, filter_condition, options)

    def save(
        self, item: GuardedMixin, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> None:
        """Store an item as it is now. Later changes of the instance need another `save`.

        Args:
            item: an instance from `get`, from elsewhere, or a new one. An instance from elsewhere must be complete: a
                version without the write id that is stored with it (of a projection, or made by hand) is refused.
            condition: on the item as it is stored before the transaction.
            add_version_condition: with False any stored item is overwritten, unless the transaction has read it.

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

        Any other instance does not, and a later `save` refuses it until `refresh`. With
        ``add_version_condition=False``, actions such as ``Account.balance.add(5)`` apply to any stored item.

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
        """Let the commit check that the stored item is the one that was read, without writing it.

        This works under every isolation. Items read under ``"serializable"``, and written items, are checked anyway.

        Args:
            item: an instance; for a new instance the commit checks that the item is absent.
            condition: must also be true of the stored item.
        """
        member = self._member_of(item, is_write=False)
        member.require(condition)
        member.check()

    def touch(
        self, item: GuardedMixin, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> None:
        """Increment an item's version, so that every process that has read it must read it again. See `save`."""
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

    def plan(self) -> Plan:
        """Return how the transaction would be committed now, and the cost without contention.

        Sizes, and therefore units, are those of what is known: an update of an instance that the transaction
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
        """Commit: all writes are applied, or none. The transaction is over afterwards, even if this raises.

        Raises:
            StaleVersion: an item is not the one that was read.
            Conflict: a condition was not met.
            ItemLocked: another owner holds the lock of an item.
            TransactionConflict: other transactions kept the items busy.
            TransactionAborted: another process aborted it.
            LockLost: the lock of an item that was to be written is lost.
            OutcomeUnknown: no response tells whether it was committed; after all other errors nothing was written.
            ConfigurationError: it is over already, or exceeds a limit.

        Cost: see `plan`. 1 transactional read for each hundred items that were only read, and the headers of
        transactions that have marked some of them; 1 write for one item; 1 native transaction for up to a hundred.
        """
        self._check_open()
        self._is_over = True
        try:
            self._members.name_in_guards(lambda: self._committing().direct())
            self._commit = self._committing()
            self.is_repeated = self._commit.run()
        except BaseException as error:  # also an interrupt, perhaps after the decision
            self._is_committed = self._commit is not None and self._commit.is_decided
            self._end(error, told=error)
            raise
        self._is_committed = True
        self._end(None)

    def rollback(self) -> None:
        """Roll back: nothing is written. Does nothing if the transaction is over."""
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

    @harmless
    def _tell_end(self, error: BaseException | None) -> None:
        about = {
            **event_stream.clocks(),
            "transaction_id": self.id,
            "owner": self._options.owner,
            "lasted_ms": ms_since(self._began_s),
            "items": len(self._members.by_key),
            "path": "" if self._commit is None else self._commit.path,
        }
        if self._is_committed:
            event_stream.emit(events.TransactionCommitted(**about, is_repeated=self.is_repeated))
        else:
            why = "" if error is None else name_of_error(error)
            event_stream.emit(events.TransactionRolledBack(**about, error=why))

    def savepoint(self) -> Savepoint:
        """Return the present state, which `Savepoint.rollback` restores. Items read since are still checked."""
        self._check_open()
        return Savepoint(self._members.by_key, self._check_open)

    def after_commit(self, callback: Callable[[], object]) -> None:
        """Call back once the transaction is committed and its locks are released, for example to send a mail.

        There is no call if `is_repeated`, since nothing was written, or if the process dies in between: write what must
        happen as an item of the transaction (an outbox). If the callback raises, its error is raised, and the
        transaction stays committed. The callback can begin a transaction of its own.
        """
        self._check_open()
        self._after_commit.append(callback)

    def after_rollback(self, callback: Callable[[], object]) -> None:
        """Call back after a rollback, also if the outcome is unknown. After an error, an error of it is only logged."""
        self._check_open()
        self._after_rollback.append(callback)

    def _check_open(self) -> None:
        if self._is_over:
            raise ConfigurationError("this transaction is over: begin a new one.")

    def _again(self, successor: Transaction) -> Transaction:
        """Give another attempt the age of this transaction, so that younger transactions do not wound it for ever."""
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
