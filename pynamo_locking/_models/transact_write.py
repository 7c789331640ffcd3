"""PynamoDB's TransactWrite, with the guards of versions, locks and expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.constants import ITEM
from pynamodb.exceptions import TransactWriteError
from pynamodb.transactions import TransactWrite as PynamoTransactWrite
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.limits import MOST_ACTIONS
from pynamo_locking._io import answers, connections, event_stream, runtime
from pynamo_locking._items import knowledge, versions
from pynamo_locking._items.keys import ItemKey
from pynamo_locking._locks import guards
from pynamo_locking._models.writing import GuardedMixin, Placed, inserted, moved
from pynamo_locking._writes import reports
from pynamo_locking._writes.assembly import Assembly
from pynamo_locking._writes.native import Commit, TransactAction
from pynamo_locking._writes.plans import plan_check
from pynamo_locking._writes.write import CHECK
from pynamo_locking._writes.writers import BesideWriter, PlainWriter
from pynamo_locking.exceptions import also

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._writes.write import Write


_M = TypeVar("_M", bound=GuardedMixin)


class TransactWrite(PynamoTransactWrite):
    """Up to 100 writes, all or none, each guarded by the version, the lock and the expiry of its item.

    Used like PynamoDB's class of this name, with models of this package and others mixed. Differences:

    * `save` takes `add_version_condition`, and `read` checks an item that is not written.
    * `insert_disjoint` and `move` place rows of models with intervals.
    * The `cancellation_reasons` of an error have the order in which the actions were added.
    * After a lost response the transaction is sent again with its token, which DynamoDB knows for ten minutes. If
      DynamoDB cancels it because of another transaction or a limit, it is sent up to nine times, with pauses of full
      jitter, at most 9.1 s in total.
    * It can be committed once. An empty one sends nothing.
    * After an `update` the instance does not have the result, so saving it is refused until `refresh`.

    The errors below are raised when the ``with`` block ends. If the block raises, nothing is sent.

    Args:
        client_request_token: names the transaction, so that an application can repeat it within ten
            minutes from the same copies of its items, outside locks; a new token unless given.
        **options: those of PynamoDB's class, above all `connection`.

    Raises:
        StaleVersion: the stored version of an item differs; also a `TransactWriteError`.
        ItemLocked: another owner holds the lock of an item; also a `TransactWriteError`.
        LockLost: a held lock was lost; nothing was written.
        Conflict: a condition of the caller failed; also a `TransactWriteError`.
        TransactionConflict: other transactions kept the items busy; also a `TransactWriteError`.
        OutcomeUnknown: no response tells whether it was applied; also a `TransactWriteError`.
        TransactWriteError: DynamoDB refused the transaction for another reason.
        ConfigurationError: it was committed before. Or it has more than 100 actions, or two for one item; then also a
            `TransactWriteError`.

    Cost: 1 transactional write, two write units for each KB of each action.
    """

    def __init__(self, client_request_token: str | None = None, **options: Any) -> None:
        super().__init__(client_request_token or runtime.current.token(), **options)
        connections.note(self._connection)
        self._has_own_token = client_request_token is None
        self._is_committed = False
        self._is_done = False
        self._assembly = Assembly()
        self._refusals: list[Exception | None] = []  # why each action was refused, if the commit was
        self._placed: Any = None  # a `Transaction` of the rows with intervals, whose writes the commit takes over

    @override
    def condition_check(
        self, model_cls: type[Model], hash_key: Any, range_key: Any = None, condition: Condition | None = None
    ) -> None:
        """Check a condition on an item that is not written. See PynamoDB's `TransactWrite.condition_check`."""
        if condition is None:
            raise TypeError("`condition` cannot be None")
        lock = model_cls._lock_attribute() if issubclass(model_cls, GuardedMixin) else None
        if lock is not None:  # a transaction of many items may be committed, and its values not stored yet
            condition &= guards.unmarked(lock.attr_name)
        kwargs = model_cls.get_operation_kwargs_from_class(hash_key, range_key=range_key, condition=condition)
        row = None
        if lock is not None and issubclass(model_cls, GuardedMixin):
            kwargs["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
            row = model_cls._lock_target(hash_key, range_key, model_cls.lock_settings()).row
        self._add({"ConditionCheck": kwargs}, row)

    def read(self, item: Model) -> None:
        """Check that an item is still the one that was read, without writing it.

        A transaction that decides by one item and writes another needs this: two such transactions could each be
        consistent with what they read, and together violate a rule (write skew). An item that the transaction
        also writes, with its version, needs no extra check.

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
        write, key = plan_check(item), _key_of(item)
        written = self._assembly.actions.get(key)
        if written is not None and written.write is not None and written.write.part.is_checked:
            _check_same_copy(written, write)
            return
        self._make_room(key, write)
        self._assembly.add_check(key, write, None if item._lock_attribute() is None else item._lock_row_of_item())

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
        writer = self._writer_of(model)
        if isinstance(model, GuardedMixin):
            condition = model._kept(condition)
        if writer is not None:
            write = writer.plan_save(condition, checks_version=add_version_condition, error=TransactWriteError)
            self._add_write(writer, write)
            return
        if add_version_condition:
            kwargs = model.get_save_kwargs_from_instance(condition, return_values)
        else:  # a stock model: PynamoDB has no way to leave the version out
            keys, arguments = model._get_save_args(condition, add_version_condition=False)
            arguments |= {"key": ITEM, "return_values_on_condition_failure": return_values}
            kwargs = model._get_connection().get_operation_kwargs(*keys, **arguments)
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
        writer = self._writer_of(model)
        if isinstance(model, GuardedMixin):
            condition = model._kept(condition, actions)
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
        self._place(lambda unit: inserted(unit, model, new_rows))

    def move(self, row: GuardedMixin, begin: Any, end: Any) -> None:
        """Give a row another interval, if no other row overlaps it. See `insert_disjoint` and `IntervalMixin.move`."""
        self._place(lambda unit: moved(unit, row, begin, end))

    def _place(self, made: Callable[[Any], Placed]) -> None:
        self._check_open()
        if not self._has_own_token:
            raise ConfigurationError(
                "a transaction with a client_request_token can be repeated, and would find its own rows in the way: "
                "leave the token out, or use Transaction with an idempotency_key."
            )
        placed = made(self._placed)
        self._placed = placed.tx
        self._placed._check_open()
        actions = self._assembly.actions.items()
        self._placed._members.gone = {
            key: each.request["Delete"]["Key"] for key, each in actions if "Delete" in each.request
        }
        placed.stage()

    def _take_over(self) -> None:
        """Add the actions of the rows that were placed, and of their guards."""
        self._placed._check_open()
        self._placed._members.claim_values()
        for member in list(self._placed._members.by_key.values()):
            if member.write is not None:
                self._add_write(member.writer, member.final())
            elif member.is_read:
                self._make_room(member.identity, None)
                self._assembly.add_check(member.identity, member.final(), member.row)

    @override
    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            if self._placed is not None and not self._is_done:
                self._placed._members.undo_from(0)

    def _writer_of(self, model: Model) -> PlainWriter | None:
        writer = model._writer() if isinstance(model, GuardedMixin) else None
        if writer is not None and not self._has_own_token:
            writer.token = str(self._client_request_token)
        return writer

    def _add_write(self, writer: PlainWriter, write: Write) -> None:
        key = _key_of(write.item)
        unguarded = self._assembly.unguarded(writer) if isinstance(writer, BesideWriter) else []
        for each in unguarded:
            if ItemKey.of(each.row.table, each.row.key) in self._assembly.actions:
                raise _checked_already(each.row)
        rows = [] if write.claims is None else write.claims.rows
        self._make_room(key, write, needed=1 + len(unguarded) + len(rows))
        self._assembly.add_write(key, writer, write)

    def _add(self, request: dict[str, Any], row: LockRow | None = None, key: ItemKey | None = None) -> None:
        (kwargs,) = request.values()
        key = key or ItemKey.of(kwargs["TableName"], kwargs["Key"])
        for each in self._assembly.beside:
            if ItemKey.of(each.row.table, each.row.key) == key:
                raise _checked_already(each.row)
        self._make_room(key, None)
        self._assembly.actions[key] = TransactAction(request, row=row)

    def _make_room(self, key: ItemKey, write: Write | None, needed: int = 1) -> None:
        """Refuse an action that DynamoDB would refuse, before it is noted."""
        self._check_open()
        before = self._assembly.actions.get(key)
        if before is not None:
            _check_replaces(before, write, key)
        elif self._assembly.size + needed > MOST_ACTIONS:
            raise _invalid(
                f"DynamoDB allows {MOST_ACTIONS} actions in a transaction (an item that is locked in a row of its own "
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
            self._take_over()
        self._is_committed = True
        if not self._assembly.actions:
            return {}
        self._assembly.before_commit()
        try:
            with self._assembly.last_under_locks():
                data = self._send()
        except Exception as error:
            self._assembly.note_refusal(error)
            if event_stream.listeners:
                actions = list(self._assembly.actions.values())
                table = next(iter(actions[0].request.values()))["TableName"]
                reports.commit_failed(str(self._client_request_token), table, error)
            raise
        for model in self._models_for_version_attribute_update:
            model.update_local_version_attribute()
        self._assembly.note_commit()
        self._is_done = True
        return data

    def _send(self) -> dict[str, Any]:
        commit = Commit(
            self._connection,
            list(self._assembly.actions.values()),
            self._assembly.guards,
            str(self._client_request_token),
            may_change_token=self._has_own_token,
            options={
                "return_consumed_capacity": self._return_consumed_capacity,
                "return_item_collection_metrics": self._return_item_collection_metrics,
            },
        )
        try:
            return commit.send()
        finally:
            self._refusals = commit.refusals
            self._client_request_token = commit.token


def _check_replaces(before: TransactAction, write: Write | None, key: ItemKey) -> None:
    """Refuse a second action on an item, unless it is a checked write after a `read`."""
    is_read = before.write is not None and before.write.operation is CHECK
    if not (is_read and write is not None and write.part.is_checked):
        raise _invalid(
            f"a transaction allows one action for each item, and this one has two for {key}: join them.", key.table
        )
    _check_same_copy(before, write)


def _invalid(message: str, table: str) -> ConfigurationError:
    """Return the error for what DynamoDB would refuse."""
    return also(ConfigurationError, TransactWriteError)(message, cause=answers.invalid(message, table))


def _check_same_copy(before: TransactAction, write: Write) -> None:
    """Refuse to read one state of an item and write another: one of the copies is stale."""
    if before.write is not None and before.write.part.before != write.part.before:
        raise knowledge.stale(
            write.item,
            TransactWriteError,
            "is in the transaction twice, as two copies that differ: one of them is old.",
        )


def _key_of(item: Model) -> ItemKey:
    attributes = item._hash_key_attribute(), item._range_key_attribute()
    pairs = zip(attributes, item._get_hash_range_key_serialized_values(), strict=True)
    key = {attribute.attr_name: {attribute.attr_type: value} for attribute, value in pairs if attribute is not None}
    return ItemKey.of(item._get_connection().table_name, key)


def _checked_already(row: LockRow) -> ConfigurationError:
    """Return the error for a second action on the row of a lock: DynamoDB allows one for each item."""
    return _invalid(
        f"a write under {row.label} in this transaction checks it already: leave out `check()` of it.",
        row.table,
    )
