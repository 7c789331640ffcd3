"""The usual methods of a model, for rows that must not overlap."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

from pynamodb.exceptions import PutError, PynamoDBException, TransactWriteError, UpdateError
from pynamodb.expressions.operand import Value
from pynamodb.expressions.update import SetAction
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError, LockingError
from pynamo_locking._core.lease import Duration, seconds
from pynamo_locking._intervals.axis import Axis, axis_of
from pynamo_locking._intervals.disjoint import Disjoint
from pynamo_locking._intervals.placing import Placing, by_guard, saving, updating
from pynamo_locking._intervals.unsure import unsure_of
from pynamo_locking._io import runtime
from pynamo_locking._items import clauses, knowledge
from pynamo_locking._locks.several import locked_all
from pynamo_locking._models.lockable import LockableMixin
from pynamo_locking._models.named_lock import NamedLock
from pynamo_locking._models.versioned import VersionedMixin
from pynamo_locking._transactions.options import check_model
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    LockLost,
    StaleVersion,
    TransactionAborted,
    TransactionConflict,
    also,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._writes.writers import PlainWriter

#: How long to retry, in seconds.
_WAIT_S: Final = 10.0


class DisjointMixin(VersionedMixin):
    """The methods of every model, for rows that do not overlap. See `IntervalMixin`."""

    @override
    def save(self, condition: Condition | None = None, *, add_version_condition: bool = True) -> dict[str, Any]:
        """Save the row. See `VersionedMixin.save`; a new row, or another interval, is stored as by `insert_disjoint`.

        Raises:
            OverlapError: stored rows overlap it; nothing was written. Also a `PutError`, like the errors of
                `VersionedMixin.save`.

        Cost: 1 write if the interval is as it is stored, with the lock in a row of its own as there. Otherwise
        that of `insert_disjoint`, and 1 refused write for a row that was stored before. After an `OutcomeUnknown` that
        of `insert_disjoint`, 1 transactional read and 1 read.
        """
        axis = self._interval()
        is_known = knowledge.known(self).version is not None or not add_version_condition
        if is_known and not unsure_of(self):
            try:
                return super().save(condition, add_version_condition=add_version_condition)
            except Conflict as refused:
                if not self._is_elsewhere(axis, refused):
                    raise
        with _dressed(PutError):
            self._place(axis, [saving(axis, self, condition, checks=add_version_condition)], PutError)
        return {}

    @override
    def update(
        self, actions: list[Action], condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> Any:
        """Update the row. See `VersionedMixin.update`; another interval is stored as by `move`.

        Without a change of the interval the row must exist.

        Raises:
            OverlapError: stored rows overlap it; nothing was written. Also an `UpdateError`.
            ConfigurationError: an action sets begin or end to something other than a value, or it is the range key.

        Cost: 1 write, if the interval is not in the actions. Otherwise that of `move`, and 1 read.
        """
        axis = self._interval()
        ends = _ends_in(axis, actions)
        if not ends:
            condition = clauses.both(condition, axis.is_stored())
            return super().update(actions, condition, add_version_condition=add_version_condition)
        end = _literal(axis, ends)
        placing = updating(axis, self, end, actions, condition, checks=add_version_condition)
        with _dressed(UpdateError):
            self._place(axis, [placing], UpdateError)
        return {"Attributes": self.serialize()}

    def _is_elsewhere(self, axis: Axis, refused: Conflict) -> bool:
        """Tell whether a save was refused because the stored row has another interval, or is not there."""
        if isinstance(refused, (StaleVersion, ItemLocked, TransactionConflict, TransactionAborted)):
            return False
        if refused.stored is None:
            return True
        its = axis.span_in(refused.stored[1])
        return its != axis.span(*(getattr(self, name) for name in axis.names))

    def _same_interval(self) -> Condition:
        """Return the condition that the stored row has the end of this instance; the key ensures the begin."""
        axis = self._interval()
        return axis.has_end(getattr(self, axis.names[1 if axis.is_by_begin else 0]))

    @override
    def _kept(self, condition: Condition | None, actions: Sequence[Action] | None = None) -> Condition | None:
        axis = self._interval()
        if actions is not None and _ends_in(axis, actions):
            raise ConfigurationError(
                f"this update of a {type(self).__name__} would change its interval without a check for overlaps: use "
                f"move(), or update() outside of the transaction."
            )
        if actions is not None:
            return clauses.both(condition, axis.is_stored())
        if knowledge.known(self).version is None:
            raise ConfigurationError(
                f"a transaction would store this {type(self).__name__} without a check for overlaps: use "
                f"insert_disjoint(), which stores any number of rows, all or none."
            )
        return clauses.both(condition, self._same_interval())

    @override
    def _writer(self) -> PlainWriter | None:
        writer = super()._writer()
        if writer is not None:
            writer.kept = self._same_interval
        return writer

    @override
    def get_save_kwargs_from_instance(self, condition: Condition | None = None, *arguments: Any, **options: Any) -> Any:
        """Build the Put of PynamoDB's own TransactWrite: the interval must be as it is stored."""
        return super().get_save_kwargs_from_instance(self._kept(condition), *arguments, **options)

    @override
    def get_update_kwargs_from_instance(
        self, actions: list[Action], condition: Condition | None = None, *arguments: Any, **options: Any
    ) -> Any:
        """Build the Update of PynamoDB's own TransactWrite, which must not change the interval."""
        return super().get_update_kwargs_from_instance(actions, self._kept(condition, actions), *arguments, **options)

    @classmethod
    def _interval(cls) -> Axis:
        """Return the model's axis; refuse a model that cannot keep its rows from overlapping."""
        axis = axis_of(cls)
        check_model(cls)
        table = getattr(cls.Meta, "lock_table", None)
        if not (isinstance(table, type) and issubclass(table, NamedLock)):
            raise ConfigurationError(
                f"{cls.__name__} has no place for the guards of its intervals: name a subclass of NamedLock in "
                f"Meta.lock_table (it is {table!r})."
            )
        return axis

    @classmethod
    def _place(
        cls,
        axis: Axis,
        placings: list[Placing],
        error: type[PynamoDBException] = TransactWriteError,
        *,
        pessimistic: bool = False,
        wait: Duration | None = None,
    ) -> None:
        deadline = runtime.current.monotonic() + (_WAIT_S if wait is None else seconds(wait, "wait"))
        table = cast("type[NamedLock]", getattr(cls.Meta, "lock_table", None))
        work, is_done = Disjoint(axis, table, placings, deadline, error, is_locked=pessimistic), False
        if not pessimistic:
            work.run()
            return
        locks = cls._range_locks(placings)
        try:
            with locked_all(*locks, wait=max(0.0, deadline - runtime.current.monotonic())):
                work.run()
                is_done = True
        except LockLost:
            if not is_done:  # else the rows are stored, and the guards protected them
                raise

    @classmethod
    def _range_locks(cls, placings: list[Placing]) -> list[Any]:
        """Return one range lock for each hash key, which spans all of its new rows."""
        if not issubclass(cls, LockableMixin):
            raise ConfigurationError(f"{cls.__name__} has no locks for pessimistic=True: derive it from LockableModel.")
        return [
            cls.locked_range(
                group[0].hash_key,
                min(each.span.lower for each in group if each.span.lower is not None).value,
                max(each.span.upper for each in group if each.span.upper is not None).value,
            )
            for group in by_guard(placings).values()
        ]


def _ends_in(axis: Axis, actions: Any) -> list[Action]:
    """Return the actions of an update that change begin or end."""
    given = actions if isinstance(actions, list) else []  # `check_actions` refuses anything else
    return [action for action in given if clauses.path_of(action)[0] in axis.stored]


def _literal(axis: Axis, actions: list[Action]) -> Any:
    """Return the value that the actions assign to the end that is not the range key; refuse any other action."""
    [action, *more] = actions
    path = clauses.path_of(action)
    if axis.key_name in {clauses.path_of(each)[0] for each in actions}:
        raise ConfigurationError(f"{axis.key_name!r} is the range key, which no update can change: use move().")
    value = action.values[1] if isinstance(action, SetAction) else None
    if more or len(path) > 1 or not isinstance(value, Value):
        raise ConfigurationError(
            f"{action!r} would change {path[0]!r} to a value that only DynamoDB knows, so overlaps could not be "
            f"checked: set it to a value, or use move()."
        )
    attribute: Any = axis.model.get_attributes()[axis.names[1 if axis.is_by_begin else 0]]
    return attribute.deserialize(attribute.get_value(value.values[0]))


@contextlib.contextmanager
def _dressed(kind: type[PynamoDBException]) -> Iterator[None]:
    """Turn the errors of a transaction, and of its reads, into those that callers of a single write expect."""
    try:
        yield
    except PynamoDBException as error:
        if isinstance(error, kind):
            raise
        dressed: Exception
        if isinstance(error, LockingError):
            own: type[LockingError] = type(error).__mro__[1]  # the first base of the combined class
            dressed = also(own, kind)(*error.args)
        else:
            dressed = kind(*error.args)
        vars(dressed).update(vars(error))
        raise dressed from error.__cause__
