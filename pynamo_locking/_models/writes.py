"""The guarded writes: DynamoDB refuses them once the version has changed or the lock is lost."""

from __future__ import annotations

import warnings
import weakref
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast

from pynamodb.exceptions import DoesNotExist, PutError, TransactWriteError
from pynamodb.models import BatchWrite
from typing_extensions import Self, override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lock_queue import LockState
from pynamo_locking._io import client, concurrency
from pynamo_locking._io.model_doors import (
    call_before_save,
    creates_item,
    endpoint_of,
    inserted_by,
    lock_attribute_of,
    moved_by,
    refuse_apart,
)
from pynamo_locking._items import conditions, unique_values, versions
from pynamo_locking._items.keys import ItemKey, key_of, label_of
from pynamo_locking._locks import context
from pynamo_locking._locks.held_lock import HeldEntry
from pynamo_locking._models.attributes import has_own
from pynamo_locking._models.awaited import awaited_write
from pynamo_locking._models.reads import ReadingMixin
from pynamo_locking._pynamodb import key_values_of, new_item, version_name_of
from pynamo_locking._writes.send import ForeignLockCheck
from pynamo_locking._writes.writer import Writer
from pynamo_locking.exceptions import LockLost, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pynamodb.connection import TableConnection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._writes.write import Write


class Participation:
    """Notes with an instance that a transaction has it, until its end; shared by all instances of the transaction.

    It keeps no transaction alive. A copy that is sent to another process takes part in nothing.
    """

    def __init__(self, items: Any = None) -> None:
        self._items: Callable[[], Any] = (lambda: None) if items is None else weakref.ref(items)

    @property
    def is_open(self) -> bool:
        return self._items() is not None

    def has(self, model: type[Model], hash_key: Any, range_key: Any) -> bool:
        """Tell whether it has the item of a model with this key, in whichever instance."""
        identity = ItemKey.of(model.Meta.table_name, key_of(model, hash_key, range_key))
        item = self._items().by_key.get(identity) if self.is_open else None
        return item is not None and endpoint_of(item.model) == endpoint_of(model)

    def end(self) -> None:
        self._items = lambda: None

    def __reduce__(self) -> Any:
        return Participation, ()


#: The open transaction of this context, by which also other instances of its items are known.
open_here: Final[ContextVar[Participation | None]] = ContextVar("pynamo_locking_participation", default=None)


def check_alone(item: Model) -> None:
    """Refuse a write of an instance that an open transaction has: it would go past the transaction."""
    taken = versions.noted(item, Participation)
    if taken is not None and taken.is_open:
        raise _error_of_bypass(type(item), key_values_of(item))


def check_read_alone(model: type[Model], hash_key: Any, range_key: Any) -> None:
    """Refuse to read and write an item that the open transaction of this context has: its commit would be stale."""
    here = open_here.get()
    if here is not None and here.has(model, hash_key, range_key):
        raise _error_of_bypass(model, (hash_key, range_key))


def _error_of_bypass(model: type[Model], key: Iterable[Any]) -> ConfigurationError:
    return ConfigurationError(
        f"{label_of(model, key)} is in an open transaction, and this write would go past it: nothing was sent. Call "
        f"tx.save(item), tx.update() or tx.delete() of the transaction, or write after its end."
    )


_M = TypeVar("_M", bound="GuardedMixin")


def refuse_own(item: object, name: str, way: str) -> None:
    """Refuse an item, or a model, with a `save`, `update` or `delete` of its own, for a way that does not call it.

    A single write calls it. What makes a part of a larger request cannot, and must not leave it out.
    """
    model = item if isinstance(item, type) else type(item)
    if not issubclass(model, GuardedMixin) or not has_own(cast("GuardedMixin", item), name):
        return
    if name == "save":
        remedy = "move its checks into before_save(), which all ways call"
    else:
        remedy = f"give it another name, so that {name}() does the same in every way"
    raise ConfigurationError(f"{model.__name__} defines {name}(), which {way} would not call: {remedy}.")


def prepare_save(item: object, way: str) -> None:
    """Do what `save` does first, for a way that does not call it; refuse a model that overrides `save`."""
    refuse_own(item, "save", way)
    if isinstance(item, GuardedMixin):
        call_before_save(item)


#: A warning names so many items.
_MOST_NAMED: Final = 5


def warn_of_lost_writes(source: object, items: Sequence[object]) -> None:
    """Warn that planned writes are gone, with the object that was to send them; it is used in a ``with`` statement."""
    if not items:
        return
    named = ", ".join(str(item) for item in items[:_MOST_NAMED])
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    warnings.warn(
        f"a {type(source).__name__} is gone that was never committed, so nothing was written of {named}{more}: "
        f"use it in a `with` statement, which commits at the end of its block.",
        ResourceWarning,
        source=source,
        stacklevel=3,
    )


class PlainBatchWrite(BatchWrite[_M]):
    """PynamoDB's batch of one model; it warns of writes that were never sent."""

    _has_ended = False

    @override
    def delete(self, del_item: _M) -> None:
        check_alone(del_item)
        refuse_own(del_item, "delete", "batch_write()")
        refuse_apart(self.model, type(del_item))
        super().delete(del_item)

    @override
    def save(self, put_item: _M) -> None:
        check_alone(put_item)
        refuse_apart(self.model, type(put_item))
        prepare_save(put_item, "batch_write()")
        versions.note_written(put_item, None)  # the stored item will have no write id
        lock = lock_attribute_of(put_item)
        if creates_item(put_item) and lock is not None and lock.__get__(put_item, type(put_item)).raw is None:
            lock.__set__(put_item, LockState(raw={}))  # which identifies the row
        super().save(put_item)

    @override
    def __exit__(self, *error: object) -> None:
        self._has_ended = True  # whatever the last request raises
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __del__(self) -> None:
        """Warn of writes that nobody has sent."""
        if not self._has_ended:
            items = [each["item"] for each in self.pending_operations]
            warn_of_lost_writes(self, [label_of(type(item), key_values_of(item)) for item in items])


class Placed(Protocol):
    """Rows with new intervals, on their way into the `Transaction` `tx`."""

    @property
    def tx(self) -> Any: ...

    @property
    def items(self) -> Any:
        """The items of `tx`."""

    def locks(self) -> Iterator[Lock[Any]]:
        """Yield the locks to hold before, if the caller asked for any."""
        ...

    def check_open(self) -> None:
        """Raise `ConfigurationError` if `tx` has ended."""

    def stage(self) -> None:
        """Add the rows, if they overlap no other rows."""

    def end(self) -> None:
        """Note that `tx` has ended, without a commit of its own."""


def _without_intervals(model: object) -> ConfigurationError:
    return ConfigurationError(f"{getattr(model, '__name__', model)!s} has no intervals: derive it from IntervalMixin.")


def inserted(tx: Any, model: Any, new_rows: object) -> Placed:
    """Return the insert of new rows into a `Transaction`, a new one unless given."""
    if not (isinstance(model, type) and issubclass(model, GuardedMixin)):
        raise _without_intervals(model)
    placed: Placed = inserted_by(model, tx, new_rows)
    return placed


def moved(tx: Any, row: Any, begin: Any, end: Any) -> Placed:
    """Return the move of a row in a `Transaction`, a new one unless given."""
    if not isinstance(row, GuardedMixin):
        raise _without_intervals(row)
    placed: Placed = moved_by(row, tx, begin, end)
    return placed


class GuardedMixin(ReadingMixin):
    """The reads and writes of every mixin of this package; as in PynamoDB without a version, a lock and expiry."""

    _hides_expired: ClassVar[bool] = False
    _seen_connection: ClassVar[TableConnection]
    _reserved_names: ClassVar[frozenset[str]] = frozenset(
        {"asave", "aupdate", "adelete", "before_save", "get_or_create", "aget_or_create"}
    )

    def _writer(self) -> Writer | None:
        """Return the writer of a write that is no part of a transaction. Each such write asks for it, or is checked."""
        check_alone(self)
        return self._make_writer()

    def _make_writer(self, extents: Sequence[LockMode] | None = None) -> Writer | None:
        """Return the writer of this item; None if PynamoDB writes the item. For `extents` see `_extents`."""
        attribute, enforced = self._lock_attribute(), self._enforces()
        if attribute is not None:
            row, held = self._own_lock()
            return Writer(self, [] if held is None else [held], lock=attribute, row=row)
        if enforced is None:
            extents = self._extents() if self._may_be_held_elsewhere() else ()
        elif extents is None:
            extents = self._extents()
        held_entries = self._held_entries_elsewhere(extents)
        foreign_checks = [] if enforced is None else self._foreign_checks(held_entries, extents)
        if held_entries or foreign_checks:
            return Writer(self, held_entries, foreign_checks=foreign_checks)
        shape = versions.shape_of(type(self))
        has_parts = shape.version is not None or shape.write_id is not None or self._hides_expired
        return Writer(self) if has_parts else None

    def _held_entries_elsewhere(self, extents: Sequence[LockMode]) -> list[HeldEntry]:
        """Return the held entries of its own lock and of locks around it: the write must check all of them."""
        if not self._may_be_held_elsewhere():
            return []
        _, held = self._own_lock()
        return [each for each in (held, self._range_entry(extents), self._table_entry()) if each is not None]

    def _foreign_checks(self, held_entries: Sequence[HeldEntry], extents: Sequence[LockMode]) -> list[ForeignLockCheck]:
        """Return the checks of locks around the item that are not held here, and must not be held elsewhere."""
        checks, held = list[ForeignLockCheck](), {each.row.identity: each.entry.lock_mode for each in held_entries}
        for row, parts in self._enforced_rows(extents):
            mine = held.get(row.identity)
            if mine is None:
                checks.append(ForeignLockCheck(row, parts, self.lock_settings()))
            elif not all(mine.covers(part) for part in parts):
                raise ConfigurationError(
                    f"this write of {type(self).__name__} is inside and outside of a range that is locked here "
                    f"({mine}), and all writes are checked (Meta.enforce_locks): lock one range that spans its "
                    f"interval, before and after the write."
                )
        return checks

    def _most_actions(self) -> int:
        """Return how many actions a native transaction needs for a write of this item."""
        enforced, declared = len(self._enforced_rows(())), unique_values.unique_of(type(self))
        rows = 0 if declared is None else 2 * len(declared.groups)
        return 1 + rows + max(enforced, int(self._may_be_held_elsewhere()))

    def _placement_condition(
        self,
        condition: Condition | None,
        actions: Sequence[Action] | None = None,  # noqa: ARG002 - for subclasses
        *,
        planned: Any = None,  # noqa: ARG002
    ) -> Condition | None:
        """Return the condition of a save or an update in a transaction. Subclasses add to it, or refuse the write.

        `planned` is the item of a `Transaction` that does the write, if there is one.
        """
        return condition

    @classmethod
    def _inserting(cls, tx: Any, new_rows: object) -> Placed:  # noqa: ARG003 - for `IntervalMixin`
        raise _without_intervals(cls)

    def _moving(self, tx: Any, begin: Any, end: Any) -> Placed:  # noqa: ARG002 - for `IntervalMixin`
        raise _without_intervals(type(self))

    def before_save(self) -> None:
        """Check or complete the item before it is saved. Does nothing unless a model overrides it.

        Every call that stores the item as its instance shows it calls this once, before anything is sent: `save`,
        `modify` (once for each attempt), the end of `edit` and of `guarded_batch`, `batch_write`, `Transaction.save`,
        `TransactWrite.save` of both classes, `insert_disjoint` and `move`. What it raises goes to the caller, as the
        result of that write from a batch, and the item is not written. `update`, `touch`, `delete` and `close_at` do
        not call it. It must not change the key.
        """

    def _prepare_save(self) -> None:
        versions.check_whole(self)
        self.before_save()

    @override
    def save(self, condition: Condition | None = None, *, add_version_condition: bool = True) -> dict[str, Any]:
        """Save the item, guarded by its version and its lock. See PynamoDB's `Model.save`.

        A save whose response was lost is recognised by its write id, in an item that has them.

        Example::

            account = Account.get("a-1")
            account.balance += 5
            try:
                account.save()
            except StaleVersion:
                print("another writer was faster: get it again")

        Args:
            condition: must be true of the stored item.
            add_version_condition: with False the item is overwritten whatever its version; the stored version still
                goes up by one, never back.

        Returns:
            DynamoDB's response; if it was lost, the stored item under ``"Attributes"``. Empty if the write was a
            transaction.

        Raises:
            StaleVersion: the stored version differs, nothing was written; also a `PutError`.
            ItemLocked: another owner holds the item's embedded lock; also a `PutError`.
            LockLost: this context held the lock and lost it; nothing was written.
            Conflict: the caller's condition failed; also a `PutError`.
            TransactionConflict: transactions kept the item busy; also a `PutError`.
            OutcomeUnknown: no response tells whether it was written; also a `PutError`.
            PutError: DynamoDB refused the write for another reason.
            ConfigurationError: the item was read in part, with `attributes_to_get` or from an index that does not
                project all of its attributes, and would lose the others. Nothing was sent.

        Cost: 1 write, no read, even when it is refused. With the lock in a separate row: 1 transaction of two writes
        inside the lock.
        """
        self._prepare_save()
        return self._save_prepared(condition, add_version_condition=add_version_condition)

    def _save_prepared(self, condition: Condition | None, *, add_version_condition: bool = True) -> dict[str, Any]:
        """Save the item after `before_save`."""
        written = self._writer()
        if written is None:
            return super().save(condition, add_version_condition=add_version_condition)
        data: dict[str, Any] = written.save(condition, checks_version=add_version_condition)
        return data

    @override
    def update(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
        must_exist: bool = False,
    ) -> Any:
        """Update the item, guarded by its version and its lock. See PynamoDB's `Model.update`.

        If the item is absent, it is created with the key and what the actions set, as in PynamoDB; with `must_exist`
        that is a `Conflict`, and nothing is written.

        The list of actions is not changed. Errors are those of `save`, as `UpdateError`.

        With ``add_version_condition=False`` and incrementing actions (`add`, `append`, ``set(attribute + 1)``) a second
        copy would increment twice. Such an update of an item with write ids is therefore sent only once: if its
        response is lost, the item is read, and either shows the write, or the outcome is unknown.

        If the lock is in a separate row and the read after the transaction gets no response, a warning is logged. The
        instance keeps its old attributes then, and cannot be saved until it is read again.

        Example::

            account = Account.get("a-1")
            account.update([Account.balance.add(-10)], condition=Account.balance >= 10)

        Cost: 1 write. With the lock in a separate row: 1 transaction and 1 read inside the lock.
        """
        if must_exist:
            condition = conditions.both(condition, conditions.exists(self))
        written = self._writer()
        if written is None:
            return super().update(actions, condition, add_version_condition=add_version_condition)
        return written.update(actions, condition, checks_version=add_version_condition)

    @override
    def delete(self, condition: Condition | None = None, *, add_version_condition: bool = True) -> Any:
        """Delete the item, guarded by its version and its lock. See PynamoDB's `Model.delete`.

        An embedded lock is deleted with its item: all waiters get `ItemNotFound`. Errors are those of `save`, as
        `DeleteError`.

        A delete that had to be sent again and then finds no item succeeds, even if another writer deleted it: the item
        in the version that was read is gone. To find out *who* deletes it, update the item first, for example with a
        flag.

        Example::

            account = Account.get("a-2")
            account.delete(condition=Account.balance == 0)

        Cost: 1 write. With the lock in a separate row: 1 transaction inside the lock.
        """
        written = self._writer()
        if written is None:
            return super().delete(condition, add_version_condition=add_version_condition)
        return written.delete(condition, checks_version=add_version_condition)

    @classmethod
    def get_or_create(
        cls, hash_key: Any, range_key: Any = None, *, defaults: Mapping[str, Any] | None = None
    ) -> tuple[Self, bool]:
        """Get an item, or create it if there is none; of several callers at once one creates it.

        Example::

            account, is_new = Account.get_or_create("a-1", defaults={"balance": 0})

        Args:
            hash_key: the item's hash key.
            range_key: the item's range key, if the model has one.
            defaults: the attributes of a new item, by their names in Python.

        Returns:
            The item, and whether this call has created it. It is saved as by `save`.

        Raises:
            Conflict, PutError: as `save`, if there is no such item afterwards: another item has its unique value, for
                example.
            OutcomeUnknown, LockLost: as `save`. After a lost response a model without write ids may say that it did not
                create the item.
            ConfigurationError: a transaction is open here: call its `get_or_none`, and `save` with a new item.

        Cost: 1 consistent read; 1 write to create it, and 1 read more if another caller was faster. Source: Django's
        ``get_or_create``.
        """
        here = open_here.get()
        if here is not None and here.is_open:
            raise ConfigurationError(
                "get_or_create() writes at once: in a transaction call tx.get_or_none(), and tx.save() with a new item."
            )
        try:
            return cls.get(hash_key, range_key, consistent_read=True), False
        except DoesNotExist:
            item = new_item(cls, hash_key, range_key, defaults or {})
        try:
            item.save(conditions.does_not_exist(cls))
        except (LockLost, OutcomeUnknown):
            raise
        except PutError:
            with suppress(DoesNotExist):
                return cls.get(hash_key, range_key, consistent_read=True), False
            raise
        return item, True

    @classmethod
    async def aget_or_create(
        cls, hash_key: Any, range_key: Any = None, *, defaults: Mapping[str, Any] | None = None
    ) -> tuple[Self, bool]:
        """Get an item, or create it if there is none, awaited. See `get_or_create`."""
        return await concurrency.to_the_end(partial(cls.get_or_create, hash_key, range_key, defaults=defaults))

    @awaited_write(save)
    def asave(self) -> None:
        """Save the item, awaited. See `save`."""

    @awaited_write(update)
    def aupdate(self) -> None:
        """Update the item, awaited. See `update`."""

    @awaited_write(delete)
    def adelete(self) -> None:
        """Delete the item, awaited. See `delete`."""

    @override
    def refresh(self, consistent_read: bool = False, *, include_expired: bool = False) -> None:
        """Load the item again; consistently inside its lock. See PynamoDB's `Model.refresh`.

        Afterwards an instance that was read under a lock since lost or released no longer belongs to that lock.

        Raises:
            DoesNotExist: there is no such item any more, or it has expired. The instance is what it was.
        """
        held = context.read_under(self)
        if held is not None and not held.ownership.is_held:
            versions.drop_note(self, HeldEntry)
        super().refresh(consistent_read, include_expired=include_expired)

    @override
    @classmethod
    def batch_write(cls, auto_commit: bool = True, *, unguarded: bool = False) -> BatchWrite[Self]:
        """Write many items without any condition, if `unguarded` is set. See `guarded_batch`.

        Args:
            auto_commit: see PynamoDB's `Model.batch_write`.
            unguarded: must be True if the model has a version or a lock: a BatchWriteItem has no conditions,
                so it overwrites newer versions, locks, and items that are locked.

        Raises:
            ConfigurationError: without ``unguarded=True``.
        """
        if not unguarded and (version_name_of(cls) is not None or cls._has_lock_place()):
            raise ConfigurationError(
                f"batch_write() of {cls.__name__} would overwrite locks and newer versions: a BatchWriteItem has no "
                f"conditions. Use guarded_batch(), or pass unguarded=True."
            )
        if unique_values.unique_of(cls) is not None:
            raise ConfigurationError(
                f"batch_write() of {cls.__name__} would leave out the rows of its unique values: use guarded_batch()."
            )
        return PlainBatchWrite(cls, auto_commit)

    # PynamoDB's own TransactWrite calls these

    def _writer_for_pynamodb(self) -> Writer | None:
        """Return the writer of a model with a version; refuse one with a lock, which PynamoDB would not check."""
        if self._has_lock_place():
            raise ConfigurationError(
                f"{type(self).__name__} can be locked, and PynamoDB's TransactWrite does not check locks: nothing was "
                f"sent. Use pynamo_locking.TransactWrite, which has the same calls."
            )
        return self._writer()

    @override
    def get_save_kwargs_from_instance(
        self, condition: Condition | None = None, return_values_on_condition_failure: str | None = None
    ) -> dict[str, Any]:
        """Build the Put of PynamoDB's own TransactWrite; `ConfigurationError` for a model with a lock."""
        writer = self._writer_for_pynamodb()
        prepare_save(self, "PynamoDB's TransactWrite")
        condition = self._placement_condition(condition)
        if writer is None:
            return super().get_save_kwargs_from_instance(condition, return_values_on_condition_failure)
        write = writer.plan_save(condition, checks_version=True, error=TransactWriteError)
        return _sent_by_pynamodb(write, return_values_on_condition_failure)

    @override
    def get_update_kwargs_from_instance(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> dict[str, Any]:
        """Build the Update of PynamoDB's own TransactWrite; `ConfigurationError` for a model with a lock."""
        writer = self._writer_for_pynamodb()
        refuse_own(self, "update", "PynamoDB's TransactWrite")
        condition = self._placement_condition(condition, actions)
        if writer is None:
            return super().get_update_kwargs_from_instance(
                [*actions], condition, return_values_on_condition_failure, add_version_condition=add_version_condition
            )
        write = writer.plan_update(actions, condition, checks_version=add_version_condition)
        kwargs = _sent_by_pynamodb(write, return_values_on_condition_failure)
        versions.note_update(self)  # PynamoDB will give it the new version, without what the update stores
        return kwargs

    @override
    def get_delete_kwargs_from_instance(
        self,
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> dict[str, Any]:
        """Build the Delete of PynamoDB's own TransactWrite; `ConfigurationError` for a model with a lock."""
        writer = self._writer_for_pynamodb()
        refuse_own(self, "delete", "PynamoDB's TransactWrite")
        if writer is None:
            return super().get_delete_kwargs_from_instance(
                condition, return_values_on_condition_failure, add_version_condition=add_version_condition
            )
        write = writer.plan_delete(condition, checks_version=add_version_condition)
        return _sent_by_pynamodb(write, return_values_on_condition_failure)

    @override
    @classmethod
    def _get_connection(cls) -> TableConnection:
        connection = super()._get_connection()
        if vars(cls).get("_seen_connection") is not connection:  # it was replaced, or is the first
            client.leave_connection_of_another_place(cls)
            connection = super()._get_connection()
            cls._lock_attribute()  # refuses a model that can be locked and has no version, before its first request
            cls._see_connection(connection)
            cls._seen_connection = connection
        return connection

    @classmethod
    def _see_connection(cls, connection: TableConnection) -> None:
        """Prepare a connection for the requests of this package, before its first one."""
        client.note(connection.connection)

    @override
    @classmethod
    def from_raw_data(cls, data: dict[str, Any]) -> Self:
        """Return an instance for a stored item. See PynamoDB's `Model.from_raw_data`."""
        item = super().from_raw_data(data)
        versions.remember(item, data)
        return item

    @override
    def _container_deserialize(self, attribute_values: dict[str, dict[str, Any]]) -> None:
        super()._container_deserialize(attribute_values)
        versions.remember(self, attribute_values)


def _sent_by_pynamodb(write: Write, return_values_on_condition_failure: str | None) -> dict[str, Any]:
    """Return a write as the request that PynamoDB sends, with what its caller wants of a refused item."""
    if write.unique_rows is not None and write.unique_rows.rows:
        raise ConfigurationError(
            f"{write.called} changes a unique value, and PynamoDB's TransactWrite would leave out its row. Use "
            f"pynamo_locking.TransactWrite."
        )
    kwargs = write.kwargs()
    del kwargs["ReturnValuesOnConditionCheckFailure"]
    kwargs.pop("ReturnValues", None)
    if return_values_on_condition_failure is not None:
        kwargs["ReturnValuesOnConditionCheckFailure"] = return_values_on_condition_failure.upper()
    return kwargs
