"""PynamoDB's TransactWrite with guards, and batches of any number of guarded writes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from pynamodb.constants import ITEM
from pynamodb.exceptions import PutError, TransactWriteError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite as PynamoTransactWrite
from typing_extensions import Self, TypeVar, override

from pynamo_locking._core.dynamodb import MOST_ACTIONS, MOST_BYTES
from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.lease import is_count
from pynamo_locking._core.write_outcome import BatchResult
from pynamo_locking._io import batch_requests, client, protocol, responses, runtime
from pynamo_locking._io.concurrency import Pool
from pynamo_locking._io.model_doors import (
    call_before_save,
    endpoint_of,
    kept_condition,
    lock_attribute_of,
    lock_target_of,
    lone_writer_of,
    most_actions_of,
    own_lock_row_of,
    refuse_apart,
    refuse_elsewhere,
    save_prepared,
)
from pynamo_locking._items import versions
from pynamo_locking._items.keys import ItemKey, key_of
from pynamo_locking._models.writes import (
    GuardedMixin,
    Placed,
    check_alone,
    inserted,
    moved,
    prepare_save,
    refuse_own,
    warn_of_lost_writes,
)
from pynamo_locking._pynamodb import (
    connection_of,
    hash_attribute_of,
    key_values_of,
    range_attribute_of,
    save_arguments_of,
    serialized_key_of,
)
from pynamo_locking._writes import write
from pynamo_locking._writes import writer as writer_module
from pynamo_locking._writes.native_transaction import TransactionActions
from pynamo_locking._writes.send import RowWrite
from pynamo_locking._writes.write import CHECK, plan_check
from pynamo_locking.exceptions import BatchError, Conflict, OutcomeUnknown, also

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.connection import Connection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._io.lock_record import LockRow
    from pynamo_locking._writes.write import Write
    from pynamo_locking._writes.writer import BatchedWrite, Writer


_M = TypeVar("_M", bound=GuardedMixin)


class TransactWrite(PynamoTransactWrite):
    """Up to 100 writes, all or none, each guarded by the version and the lock of its item.

    Used like PynamoDB's class of this name, with models of this package and others. Differences:

    * `save` takes `add_version_condition`, and `check` checks an item that is not written.
    * `insert_disjoint` and `move` place rows of models with intervals.
    * The `cancellation_reasons` of an error have the order in which the actions were added.
    * After a lost response the transaction is sent again with its token, which DynamoDB knows for ten minutes. If
      DynamoDB cancels it because of another transaction or a limit, it is sent up to nine times, with pauses of full
      jitter, at most 9.1 s in total.
    * It can be committed once. An empty one sends nothing.
    * `connection` may be left out. A model of another Region, host or account than that of the connection is refused.
    * After an `update` the instance does not have the result, so saving it is refused until `refresh`.

    Example::

        source, target = Account.get("a-1"), Account.get("a-2")
        with TransactWrite() as tx:
            tx.update(source, [Account.balance.add(-10)])
            tx.update(target, [Account.balance.add(10)])

    The errors below are raised when the ``with`` block ends. If the block raises, nothing is sent.

    Args:
        client_request_token: names the transaction, so that an application can repeat it within ten minutes, with the
            same copies of its items and outside locks; a new token unless given.
        return_item_collection_metrics: as in PynamoDB's class.
        connection: sends the transaction; that of the first model that is written or checked, unless given. If you
            make one, make it once for the process: that takes longer than the transaction.
        return_consumed_capacity: as in PynamoDB's class.

    Raises:
        StaleVersion: the stored version of an item differs; also a `TransactWriteError`.
        ItemLocked: another owner holds the lock of an item; also a `TransactWriteError`.
        LockLost: a held lock was lost; nothing was written.
        Conflict: a condition of the caller failed; also a `TransactWriteError`.
        TransactionConflict: other transactions kept the items busy; also a `TransactWriteError`.
        OutcomeUnknown: no response tells whether it was applied; also a `TransactWriteError`.
        TransactWriteError: DynamoDB refused the transaction for another reason.
        ConfigurationError: it was committed before; or the table of a model is in another place than that to which
            the connection sends. Or it has more than 100 actions, or two for one item; then also a
            `TransactWriteError`.

    Warns:
        ResourceWarning: it was never committed, and is gone. The warning names its items.

    Cost: 1 transactional write, two write units for each KB of each action.
    """

    _is_left = True  # until it is made, and after its block: nobody expects a commit

    def __init__(
        self,
        client_request_token: str | None = None,
        return_item_collection_metrics: str | None = None,
        *,
        connection: Connection | None = None,
        return_consumed_capacity: str | None = None,
    ) -> None:
        super().__init__(
            client_request_token or runtime.current.token(),
            return_item_collection_metrics,
            connection=connection,
            return_consumed_capacity=return_consumed_capacity,
        )
        client.note(connection)
        self._has_own_token = client_request_token is None
        self._is_committed = False
        self._is_done = False
        self._assembly = TransactionActions(
            self._connection,
            str(self._client_request_token),
            is_named=not self._has_own_token,
            options={
                "return_consumed_capacity": self._return_consumed_capacity,
                "return_item_collection_metrics": self._return_item_collection_metrics,
            },
        )
        self._placed: Placed | None = None  # rows in a `Transaction`, whose writes the commit takes over
        self._is_left = False

    @override
    def condition_check(
        self, model_cls: type[Model], hash_key: Any, range_key: Any = None, condition: Condition | None = None
    ) -> None:
        """Check a condition on an item that is not written. See PynamoDB's `TransactWrite.condition_check`."""
        if condition is None:
            raise TypeError("`condition` cannot be None")
        lock = lock_attribute_of(model_cls) if issubclass(model_cls, GuardedMixin) else None
        kwargs = model_cls.get_operation_kwargs_from_class(hash_key, range_key=range_key, condition=condition)
        row = None
        self._join(model_cls)
        if lock is not None and issubclass(model_cls, GuardedMixin):
            # A transaction of many items may be committed, and its values not stored yet.
            protocol.merge(kwargs, *protocol.has_no_intent(lock.attr_name))
            kwargs["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
            row = lock_target_of(model_cls, hash_key, range_key).row
        self._add({"ConditionCheck": kwargs}, row)

    def check(self, item: Model) -> None:
        """Check that an item is still the one that was read, without writing it.

        Needed by a transaction that decides by one item and writes another: two such transactions could each be
        consistent with what they read, and together violate a rule (write skew). An item that the transaction also
        writes, with its version, needs no extra check.

        Example::

            source, target = Account.get("a-1"), Account.get("a-2")
            with TransactWrite() as tx:
                tx.check(source)  # only read
                tx.update(target, [Account.balance.add(10)])

        Args:
            item: an instance whose model has a version. For a new instance, the item must be absent.

        Raises:
            ConfigurationError: the model has no version.

        Source: JPA's ``LockModeType.OPTIMISTIC``.
        """
        if not isinstance(item, GuardedMixin) or versions.shape_of(type(item)).attribute is None:
            raise ConfigurationError(
                f"{type(item).__name__} has no version, by which it could be checked: derive it from VersionedMixin "
                f"or LockableModel, and declare a VersionAttribute."
            )
        self._join(type(item))
        write, key = plan_check(item), _key_of(item)
        written = self._assembly.by_key.get(key)
        if written is not None and written.write is not None and written.write.part.is_checked:
            _check_same_copy(written, write)
            return
        self._make_room(key, write)
        self._assembly.add_check(key, write, None if lock_attribute_of(item) is None else own_lock_row_of(item))

    @override
    def save(
        self,
        model: Model,
        condition: Condition | None = None,
        return_values: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> None:
        """Save an item. See PynamoDB's `TransactWrite.save`; `add_version_condition` is new."""
        prepare_save(model, "TransactWrite.save()")
        writer = self._writer_of(model)
        if isinstance(model, GuardedMixin):
            condition = kept_condition(model, condition)
        if writer is not None:
            write = writer.plan_save(condition, checks_version=add_version_condition, error=TransactWriteError)
            self._add_write(writer, write)
            return
        if add_version_condition and not isinstance(model, GuardedMixin):
            kwargs = model.get_save_kwargs_from_instance(condition, return_values)
        else:  # PynamoDB has no way to leave the version out; or a model of ours without one
            keys, arguments = save_arguments_of(model, condition)
            arguments |= {"key": ITEM, "return_values_on_condition_failure": return_values}
            kwargs = connection_of(model).get_operation_kwargs(*keys, **arguments)
        self._add({"Put": kwargs}, None, _key_of(model))
        self._models_for_version_attribute_update.append(model)

    @override
    def update(
        self,
        model: Model,
        actions: list[Action],
        condition: Condition | None = None,
        return_values: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> None:
        """Update an item. See PynamoDB's `TransactWrite.update`."""
        refuse_own(model, "update", "TransactWrite.update()")
        writer = self._writer_of(model)
        if isinstance(model, GuardedMixin):
            condition = kept_condition(model, condition, actions)
        if writer is not None:
            self._add_write(writer, writer.plan_update(actions, condition, checks_version=add_version_condition))
            return
        kwargs = model.get_update_kwargs_from_instance(
            [*actions], condition, return_values, add_version_condition=add_version_condition
        )
        self._add({"Update": kwargs})
        self._models_for_version_attribute_update.append(model)

    @override
    def delete(self, model: Model, condition: Condition | None = None, *, add_version_condition: bool = True) -> None:
        """Delete an item. See PynamoDB's `TransactWrite.delete`."""
        refuse_own(model, "delete", "TransactWrite.delete()")
        writer = self._writer_of(model)
        if writer is not None:
            self._add_write(writer, writer.plan_delete(condition, checks_version=add_version_condition))
            return
        kwargs = model.get_delete_kwargs_from_instance(condition, add_version_condition=add_version_condition)
        self._add({"Delete": kwargs})

    def insert_disjoint(self, model: type[_M], new_rows: Sequence[_M]) -> None:
        """Store new rows of a model with intervals, if nothing overlaps them. See `Transaction.insert_disjoint`.

        Rows that were inserted, moved or deleted before in this transaction count as it leaves them. Its errors name
        these actions, and those of the guards, after all others.

        Raises:
            OverlapError: a row overlaps another row; also a `TransactWriteError`.
            ConfigurationError: the model has no intervals; or there is a `client_request_token`, by which the same
                transaction can be repeated: the query would find its own rows.

        Cost: for each hash key 1 read the first time, and for each row 1 query; 1 action for each of both.
        """
        self._place(model, lambda unit: inserted(unit, model, new_rows))

    def move(self, row: GuardedMixin, begin: Any, end: Any) -> None:
        """Give a row another interval, if no other row overlaps it. See `insert_disjoint` and `Intervals.move`."""
        self._place(type(row), lambda unit: moved(unit, row, begin, end))

    def _place(self, model: type[GuardedMixin], made: Callable[[Any], Placed]) -> None:
        self._check_open()
        if not self._has_own_token:
            raise ConfigurationError(
                "a transaction with a client_request_token can be repeated, and would find its own rows in the way: "
                "leave the token out, or use Transaction with an idempotency_key."
            )
        placed = made(None if self._placed is None else self._placed.tx)
        self._join(model)
        self._placed = placed
        placed.check_open()
        actions = self._assembly.by_key.items()
        placed.items.gone = {key: each.request["Delete"]["Key"] for key, each in actions if "Delete" in each.request}
        placed.stage()

    def _take_over(self, placed: Placed) -> None:
        """Add the actions of the rows that were placed, and of their guards."""
        placed.check_open()
        placed.items.take_values()
        for item in list(placed.items.by_key.values()):
            self._join(item.model)
            if item.plan.write is not None:
                self._add_write(item.plan.writer, item.final())
            elif item.is_read:
                self._make_room(item.identity, None)
                self._assembly.add_check(item.identity, item.final(), item.row)

    @override
    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self._leave()
            if self._placed is not None:
                self._placed.items.participation.end()
                if not self._is_done:
                    self._placed.items.undo_from(0)

    def _leave(self) -> None:
        self._is_left = True
        if self._placed is not None:
            self._placed.end()

    def __del__(self) -> None:
        """Warn of a transaction that nobody has committed."""
        if self._is_left or self._is_committed:
            return
        placed = [] if self._placed is None else self._placed.items.by_key.values()
        self._leave()
        warn_of_lost_writes(
            self, [*self._assembly.by_key, *(item.identity for item in placed if item.plan.write is not None)]
        )

    def _join(self, model: type[Model]) -> None:
        """Refuse a model whose table is in another place than that to which the connection sends.

        The first model gives its own connection to a transaction without one.
        """
        if not issubclass(model, Model):
            raise ConfigurationError(f"a TransactWrite writes items of models, and {model.__name__} is none.")
        if not issubclass(model, GuardedMixin):  # others have it looked at by themselves
            client.leave_connection_of_another_place(model)
        if self._connection is None:
            self._connection = self._assembly.connection = connection_of(model).connection
            client.note(self._connection)
        refuse_elsewhere(self._connection, model)

    def _writer_of(self, model: Model) -> Writer | None:
        self._join(type(model))
        writer = lone_writer_of(model) if isinstance(model, GuardedMixin) else None
        if writer is not None and not self._has_own_token:
            writer.token = str(self._client_request_token)
        return writer

    def _add_write(self, writer: Writer, write: Write) -> None:
        key = _key_of(write.item)
        unguarded = self._assembly.unguarded(writer)
        for each in unguarded:
            if ItemKey.of(each.row.table, each.row.key) in self._assembly.by_key:
                raise _checked_already(each.row)
        rows = [] if write.unique_rows is None else write.unique_rows.rows
        self._make_room(key, write, needed=1 + len(unguarded) + len(rows))
        self._assembly.add_write(key, writer, write)

    def _add(self, request: dict[str, Any], row: LockRow | None = None, key: ItemKey | None = None) -> None:
        (kwargs,) = request.values()
        key = key or ItemKey.of(kwargs["TableName"], kwargs["Key"])
        for each in self._assembly.separate:
            if ItemKey.of(each.row.table, each.row.key) == key:
                raise _checked_already(each.row)
        self._make_room(key, None)
        self._assembly.by_key[key] = RowWrite(request, row)

    def _make_room(self, key: ItemKey, write: Write | None, needed: int = 1) -> None:
        """Refuse an action that DynamoDB would refuse, before it is noted."""
        self._check_open()
        before = self._assembly.by_key.get(key)
        if before is not None:
            _check_replaces(before, write, key)
        elif self._assembly.size + needed > MOST_ACTIONS:
            raise _invalid(
                f"DynamoDB allows {MOST_ACTIONS} actions in a transaction (an item that is locked in a separate row "
                f"counts twice, and each row of a unique value once). Use several, or guarded_batch().",
                key[0],
            )

    def _check_open(self) -> None:
        if self._is_committed:
            raise ConfigurationError(
                "this transaction has been committed (or refused) already, and can be committed once only: "
                "make a new TransactWrite."
            )

    @override
    def _commit(self) -> Any:
        self._check_open()
        if self._placed is not None:
            self._take_over(self._placed)
        self._is_committed = True
        if not self._assembly.by_key:
            return {}
        try:
            data = self._assembly.commit()
        except Exception as error:
            [first, *_] = self._assembly.by_key
            write.commit_failed(self._assembly.token, first.table, error)
            raise
        finally:
            self._client_request_token = self._assembly.token
        for model in self._models_for_version_attribute_update:
            model.update_local_version_attribute()
        self._is_done = True
        return data


def _check_replaces(before: RowWrite, write: Write | None, key: ItemKey) -> None:
    """Refuse a second action on an item, unless it is a checked write after a `check`."""
    is_read = before.write is not None and before.write.operation is CHECK
    if not (is_read and write is not None and write.part.is_checked):
        raise _invalid(
            f"a transaction allows one action for each item, and this one has two for {key}: join them.", key.table
        )
    _check_same_copy(before, write)


def _invalid(message: str, table: str) -> ConfigurationError:
    return also(ConfigurationError, TransactWriteError)(message, cause=responses.invalid(message, table))


def _check_same_copy(before: RowWrite, write: Write) -> None:
    """Refuse to read one state of an item and write another: one of the copies is stale."""
    if before.write is not None and before.write.part.before != write.part.before:
        raise versions.stale(
            write.item,
            TransactWriteError,
            "is in the transaction twice, as two copies that differ: one of them is old.",
        )


def _key_of(item: Model) -> ItemKey:
    attributes = hash_attribute_of(item), range_attribute_of(item)
    pairs = zip(attributes, serialized_key_of(item), strict=True)
    key = {attribute.attr_name: {attribute.attr_type: value} for attribute, value in pairs if attribute is not None}
    return ItemKey.of(connection_of(item).table_name, key)


def _checked_already(row: LockRow) -> ConfigurationError:
    """Return the error for a second action on the row of a lock: DynamoDB allows one for each item."""
    return _invalid(
        f"a write under {row.label} in this transaction checks it already: leave out `add_check_to()` of it.",
        row.table,
    )


M = TypeVar("M", bound=GuardedMixin)


@dataclass
class _Job(Generic[M]):
    item: M
    operation: str
    condition: Condition | None
    checks_version: bool
    identity: ItemKey | None
    write: Callable[..., object]

    def run(self) -> None:
        self._check_key()
        # A model may override `save` with PynamoDB's first argument only.
        self.write(self.condition, **({} if self.checks_version else {"add_version_condition": False}))

    @property
    def place(self) -> tuple[Connection, str] | None:
        """Where it is written; None if the model's own method has to write it."""
        if getattr(self.write, "__func__", None) is not getattr(GuardedMixin, self.operation):
            return None
        connection = connection_of(self.item)
        return connection.connection, connection.table_name

    def plan(self) -> BatchedWrite | None:
        """Return it as a statement; None if there is none."""
        if self.operation == "save":
            self.write = partial(save_prepared, self.item)
            call_before_save(self.item)
        self._check_key()
        writer = lone_writer_of(self.item)
        if writer is None:
            return None
        plan = writer.plan_save if self.operation == "save" else writer.plan_delete
        return writer_module.as_statement(writer, plan(self.condition, checks_version=self.checks_version))

    def add_to(self, transaction: TransactWrite) -> None:
        self._check_key()
        add = transaction.save if self.operation == "save" else transaction.delete
        add(self.item, self.condition, add_version_condition=self.checks_version)

    def _check_key(self) -> None:
        """Refuse an instance whose key was changed after it was added."""
        if self.identity is not None and _identity_of(self.item) != self.identity:
            raise ConfigurationError(
                f"the key of this {type(self.item).__name__} was changed after it was added to the batch for "
                f"{self.identity}, and it was not written: make an instance for each item."
            )


class GuardedBatch(Generic[M]):
    """Collects saves and deletes of one model, and writes them when the ``with`` block ends.

    Each write is checked like a single write: by its version, its lock, its condition. A refused write does not stop
    the other writes, except those of the same native transaction.

    Unlike PynamoDB's `batch_write`, nothing is written if the block raises, and every write has a result. Made by
    `VersionedMixin.guarded_batch`.

    Warns:
        ResourceWarning: it was not used in a ``with`` statement, and is gone with its writes. The warning names them.

    Attributes:
        results: one `BatchResult` for each write, in the order in which they were added; empty until the block has
            ended.
    """

    _has_ended = True  # until it is made

    def __init__(self, *, transactions: bool, workers: int, on_progress: Callable[[int, int], object] | None) -> None:
        if not is_count(workers):
            raise ConfigurationError(f"a batch needs at least one worker, not {workers!r}.")
        self._transactions = transactions
        self._workers = workers
        self._on_progress = on_progress
        self._jobs: list[_Job[M]] = []
        self._seen: set[Any] = set()
        self._errors: dict[int, Exception | None] = {}
        self._planned: dict[int, BatchedWrite] = {}
        self._begun: set[int] = set()
        self._at_rest: set[int] = set()
        self._has_ended = False
        self.results: tuple[BatchResult, ...] = ()

    def save(self, item: M, condition: Condition | None = None, *, add_version_condition: bool = True) -> None:
        """Add a save. The item is written as it is when the block ends.

        Args:
            item: the model instance.
            condition: has to be true for this item.
            add_version_condition: with False the item is written whatever its version.

        Raises:
            ConfigurationError: the batch has a write of this item, or of this instance, already.
        """
        self._add(_Job(item, "save", condition, add_version_condition, _identity_of(item), item.save))

    def delete(self, item: M, condition: Condition | None = None, *, add_version_condition: bool = True) -> None:
        """Add a delete. Arguments and errors are those of `save`."""
        self._add(_Job(item, "delete", condition, add_version_condition, _identity_of(item), item.delete))

    def _check_open(self) -> None:
        if self._has_ended:
            raise ConfigurationError("this batch has ended: make a new one with guarded_batch().")

    def _add(self, job: _Job[M]) -> None:
        self._check_open()
        check_alone(job.item)
        if self._transactions:
            refuse_own(job.item, job.operation, "guarded_batch(transactions=True)")
        if self._transactions and self._jobs:
            refuse_apart(type(self._jobs[0].item), type(job.item))
        place = endpoint_of(type(job.item))
        if job.identity is not None and (place, job.identity) in self._seen:
            raise ConfigurationError(
                f"a batch allows one write for each item, since they are written in any order, and this batch has "
                f"two for {job.identity}: join them."
            )
        if id(job.item) in self._seen:
            raise ConfigurationError(
                f"this {type(job.item).__name__} is in the batch already, and an instance is written once, as it is "
                f"when the block ends: make one for each item."
            )
        self._seen |= {(place, job.identity), id(job.item)}
        self._jobs.append(job)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self._has_ended = True
        if error[0] is None:
            self._commit()

    def __del__(self) -> None:
        if not self._has_ended:
            warn_of_lost_writes(self, [job.identity or type(job.item).__name__ for job in self._jobs])

    def _commit(self) -> None:
        jobs = self._jobs
        try:
            self._run(self._batches(), self._send)
            self._run(self._groups(), self._write)
        finally:
            in_doubt = self._begun - self._at_rest
            self.results = tuple(
                BatchResult(job.item, job.operation, self._errors.get(number, _interrupted(number in in_doubt)))
                for number, job in enumerate(jobs)
            )
        failed = [result for result in self.results if result.error is not None]
        if failed:
            raise also(BatchError, PutError)(
                f"{len(failed)} of {len(jobs)} writes of the batch have failed (`results` has all of them); "
                f"the first: {failed[0].error}",
                results=self.results,
                cause=failed[0].error,
            )

    def _run(self, groups: list[list[int]], act: Callable[[list[int]], None]) -> None:
        pool = Pool([partial(act, group) for group in groups], self._workers, lambda _: self._tell())
        try:
            pool.run()
        finally:
            self._begun |= {number for index in pool.begun for number in groups[index]}

    def _batches(self) -> list[list[int]]:
        """Return which writes are sent in one request, if there are statements for them."""
        if self._transactions:
            return []
        return [batch for batch in batch_requests.batches(job.place for job in self._jobs) if len(batch) > 1]

    def _send(self, batch: list[int]) -> None:
        """Send writes in one request, and note those that were applied, or can never be."""
        for number in batch:
            error = _failure_of(lambda number=number: self._plan(number))  # type: ignore[misc]
            if error is not None:
                self._errors[number] = error
        sent = [number for number in batch if number in self._planned]
        results = writer_module.send_batch([self._planned[number] for number in sent])
        for number, is_applied in zip(sent, results, strict=True):
            if is_applied:
                self._errors[number] = _failure_of(self._planned[number].done)
        self._at_rest |= {number for number in batch if not self._is_unanswered(number)}

    def _is_unanswered(self, number: int) -> bool:
        return number in self._planned and self._planned[number].is_unanswered

    def _plan(self, number: int) -> None:
        planned = self._jobs[number].plan()
        if planned is not None:
            self._planned[number] = planned

    def _groups(self) -> list[list[int]]:
        """Return which of the writes that are left are sent together."""
        if not self._transactions:
            return [[number] for number in range(len(self._jobs)) if number not in self._errors]
        groups: list[list[int]] = []
        room = bytes_left = 0
        for number, job in enumerate(self._jobs):
            actions, size = most_actions_of(job.item), _size_of(job)
            if not groups or room < actions or bytes_left < size:
                groups.append([])
                room, bytes_left = MOST_ACTIONS, MOST_BYTES
            groups[-1].append(number)
            room, bytes_left = room - actions, bytes_left - size
        return groups

    def _write(self, group: list[int]) -> None:
        """Write one item, or some in one transaction, and note the results."""
        self._at_rest.difference_update(group)
        jobs = [self._jobs[number] for number in group]
        if self._transactions:
            errors = _transact(jobs)
        else:
            planned = self._planned.pop(group[0], None)
            errors = [_failure_of(jobs[0].run if planned is None else planned.send_alone)]
        self._errors.update(zip(group, errors, strict=True))

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(len(self._errors), len(self._jobs))


class _GroupTransaction(TransactWrite):
    """Some writes of a batch, all or none. Each refusal is told as a result, so no warning is needed."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection=connection)
        self._is_left = True

    def commit_each(self, count: int) -> list[Exception | None]:
        """Commit; return the error of each write."""
        error = _failure_of(self._commit)
        refusals = self._assembly.refusals
        is_explained = any(refusals) and not isinstance(error, OutcomeUnknown)
        return refusals if is_explained else [error] * count


def _failure_of(act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - it is the result
        return error
    except BaseException as error:  # noqa: BLE001 - in a worker thread, where it would be lost
        return OutcomeUnknown(f"the write was broken off by {error!r}, and may or may not have been applied")
    return None


def _transact(jobs: list[_Job[M]]) -> list[Exception | None]:
    """Write all items or none, and return why each was refused."""
    transaction = _GroupTransaction(connection=connection_of(jobs[0].item).connection)
    errors = [_failure_of(lambda job=job: job.add_to(transaction)) for job in jobs]  # type: ignore[misc]
    if not any(errors):
        errors = transaction.commit_each(len(jobs))
    first = next((error for error in errors if error is not None), None)
    if first is None:
        return errors
    why = f"not written, since another write of the same transaction was refused: {first}"
    return [error or Conflict(why, cause=first) for error in errors]


def _interrupted(is_begun: bool) -> Exception:  # noqa: FBT001
    if is_begun:
        return OutcomeUnknown("the batch was interrupted while this was written; it may or may not have been applied")
    return Conflict("not written: the batch was interrupted before")


def _identity_of(item: GuardedMixin) -> ItemKey | None:
    """Return the table and the key of an item; None for an invalid key, which the write itself will refuse."""
    try:
        return ItemKey.of(type(item).Meta.table_name, key_of(type(item), *key_values_of(item)))
    except (ConfigurationError, InvalidInput):
        return None


def _size_of(job: _Job[M]) -> int:
    """Return the maximum size of an item in bytes; 0 for an item that the write itself will refuse."""
    if job.operation == "delete":
        return 0
    try:
        return len(repr(job.item.serialize(null_check=False)).encode())
    except Exception:  # noqa: BLE001 - whatever an attribute raises
        return 0
