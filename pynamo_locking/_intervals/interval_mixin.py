"""Models whose rows have an interval each, and never overlap."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pynamodb.exceptions import PutError, PynamoDBException, TransactWriteError, UpdateError
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError, InvalidInput, LockingError
from pynamo_locking._intervals.disjoint_writes import DisjointWrite, Staged
from pynamo_locking._intervals.guards import overlap
from pynamo_locking._intervals.intervals import IntervalAttributes, Span, interval_attributes_of
from pynamo_locking._intervals.placings import ends_in, moving, overlapping_pair, saving, unsure_of, updating
from pynamo_locking._intervals.queries import IntervalQueries
from pynamo_locking._io.model_doors import endpoint_of
from pynamo_locking._items import conditions, keys, versions
from pynamo_locking._models.awaited import awaited_write
from pynamo_locking._models.mixins import VersionedMixin
from pynamo_locking._models.writes import prepare_save, refuse_own
from pynamo_locking._pynamodb import hash_name_of, key_values_of
from pynamo_locking._transactions.transaction import Transaction
from pynamo_locking._transactions.transaction_doors import items_of
from pynamo_locking.exceptions import Conflict, ItemLocked, StaleVersion, TransactionAborted, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lease import Duration
    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._intervals.placings import Save
    from pynamo_locking._models.writes import GuardedMixin, Placed
    from pynamo_locking._writes.writer import Writer


_M = TypeVar("_M", bound="IntervalMixin")


class Intervals(IntervalQueries[_M]):
    """Stores, moves and finds the rows of a model by their intervals: the `intervals` of an `IntervalMixin`.

    It is used as ``Booking.intervals.free("blue", 9, 17)``. The class is for annotations: ``Intervals[Booking]``.
    """

    __slots__ = ()

    def insert_disjoint(
        self, new_rows: Sequence[_M], *, pessimistic: bool = False, wait: Duration | None = None
    ) -> None:
        """Store new rows, all or none, if nothing overlaps: neither each other, nor any stored row.

        Example::

            Booking.intervals.insert_disjoint([Booking("blue", 14, end=16)])
            try:
                Booking.intervals.insert_disjoint([Booking("blue", 15, end=17)])
            except OverlapError as error:
                assert error.rows[0].begin == 14

        Nothing is locked. The call queries for overlapping rows, and stores the new rows if no other writer has changed
        rows of the same hash keys meanwhile. Otherwise it starts again, after a pause of full jitter (up to 0.1 s, then
        0.2 s). After three refusals it waits in a queue for its turn, and has priority over callers outside that queue.
        After an `OutcomeUnknown`, the same call with the same instances is safe: rows that the first call stored count
        as stored, and rows that were changed since are written again.

        Args:
            new_rows: new instances, with any hash keys, of this model or of subclasses in the same table. Up to
                DynamoDB's 100 actions: one for each row and each hash key, and with `pessimistic` one more for each
                hash key; more rows, of up to 99 hash keys, if the model has a `LockAttribute` and a
                ``Meta.transaction_table``.
            pessimistic: acquire range locks first, one for each hash key, from the first begin to the last end: first
                come, first served, for high contention. Needs a `LockableModel`.
            wait: how long to retry while other writers change rows of the same hash keys, in seconds or as a timedelta;
                one deadline for everything, the locks included. 10 s unless set. It does not interrupt an attempt:
                DynamoDB's own conflicts can extend that by 9 s.

        Raises:
            OverlapError: a row overlaps stored rows, or another row of the same call; nothing was written.
            TransactionConflict: other writers changed rows of the same hash keys until the deadline; nothing was
                written.
            LockTimeout: the range locks were not free in time; nothing was written.
            StaleVersion, Conflict: another program wrote a row without the guard row meanwhile; nothing was written.
            OutcomeUnknown: no response tells whether they were stored.
            InvalidInput: an end is not after its begin, a time has no time zone. Nothing was sent.
            ConfigurationError: the model or the rows cannot work, such as no rows at all. Nothing was sent.

        Cost: for each hash key 1 read, for each row 1 query (rows that touch share one), and 1 transaction, however
        many rows are stored; each ninth row of a hash key 1 transactional read more. With `pessimistic`, or after three
        refusals, 2 writes more for each hash key.
        """
        placings = _new_placings(self._interval, new_rows)
        DisjointWrite(self._interval, placings, pessimistic=pessimistic, wait=wait).run()

    async def ainsert_disjoint(
        self, new_rows: Sequence[_M], *, pessimistic: bool = False, wait: Duration | None = None
    ) -> None:
        """Store new rows, awaited. See `insert_disjoint`. A task that waits for range locks occupies no thread."""
        placings = _new_placings(self._interval, new_rows)
        await DisjointWrite(self._interval, placings, pessimistic=pessimistic, wait=wait).arun()

    def move(self, row: _M, begin: Any, end: Any, *, pessimistic: bool = False, wait: Duration | None = None) -> None:
        """Give a stored row another interval, if no other row overlaps it.

        The instance is saved with all of its values, and is the moved row afterwards. If the range key changes, that is
        a delete and a new row in one transaction: undeclared attributes and an embedded lock are deleted.

        Example::

            booking = Booking("blue", 9, end=10)
            Booking.intervals.insert_disjoint([booking])
            Booking.intervals.move(booking, 10, 12)

        Args:
            row: the instance, as it was loaded.
            begin: the new begin.
            end: the new end.
            pessimistic: see `insert_disjoint`; what is locked is the new interval, with ``Meta.enforce_locks`` from the
                old one to the new one.
            wait: see `insert_disjoint`.

        Raises:
            OverlapError: other rows overlap it; nothing was written.
            StaleVersion: the stored row is not the one that was read.
            ItemLocked: another owner holds the row's embedded lock.
            TransactionConflict, LockTimeout, OutcomeUnknown, ConfigurationError: as `insert_disjoint`.

        Cost: 1 read, 1 query, 1 transaction, as `insert_disjoint`.
        """
        _check_stored(self._interval, row, "move")
        DisjointWrite(self._interval, [moving(row, begin, end)], pessimistic=pessimistic, wait=wait).run()

    async def amove(
        self, row: _M, begin: Any, end: Any, *, pessimistic: bool = False, wait: Duration | None = None
    ) -> None:
        """Give a stored row another interval, awaited. See `move`, and `ainsert_disjoint`."""
        _check_stored(self._interval, row, "move")
        await DisjointWrite(self._interval, [moving(row, begin, end)], pessimistic=pessimistic, wait=wait).arun()

    def close_at(self, row: _M, at: Any) -> None:
        """End a stored row earlier, such as one with an open end. No other row can be in the way.

        If the end is the range key, the row gets a later begin instead.

        Args:
            row: the instance, as it was loaded. It shows the new interval afterwards.
            at: the new end, inside the present interval; a new begin likewise.

        Raises:
            StaleVersion: the stored row is not the one that was read; nothing was written.
            InvalidInput: `at` lies outside the present interval. Nothing was sent.
            UpdateError, ItemLocked, OutcomeUnknown: as `VersionedMixin.update`.

        Cost: 1 write.
        """
        interval = self._interval
        refuse_own(row, "update", "close_at()")
        _check_stored(interval, row, "close_at")
        present = interval.span(*interval.ends_of(row))
        edge = interval.edge(at, interval.other)
        if edge is None or Span(present.lower, edge).is_empty or Span(edge, present.upper).is_empty:
            raise InvalidInput(
                f"close_at({at!r:.80}) would not make this {self._model.__name__} shorter, which is from {present}: "
                f"give a value inside that."
            )
        super(IntervalMixin, row).update([getattr(self._model, interval.other).set(at)], interval.goes_beyond(at))

    @awaited_write(close_at)
    def aclose_at(self) -> None:
        """End a stored row earlier, awaited. See `close_at`."""


class _IntervalsOf:
    """Gives each model its `Intervals`."""

    def __get__(self, row: object, model: type[_M]) -> Intervals[_M]:
        return Intervals(model)


class IntervalMixin(VersionedMixin):
    """Keeps the rows of one hash key from overlapping (an exclusion constraint). Put it before the model's other bases.

    Example::

        class Booking(IntervalMixin, LockableModel):
            class Meta:
                table_name = "bookings"
                interval = ("begin", "end")
                lock_table = Locks

            room = UnicodeAttribute(hash_key=True)
            begin = NumberAttribute(range_key=True)
            end = NumberAttribute()
            version = VersionAttribute()

        morning, evening = Booking("blue", 9, end=10), Booking("blue", 18, end=20)
        Booking.intervals.insert_disjoint([morning, evening])

    The interval of a row is half open: a row may begin where another row ends. ``Meta.interval`` names the attributes
    of begin and end. One of them is the range key, and both have one class: numbers, strings, bytes or times. The other
    one may be declared with ``null=True``: a row without a value there never ends. ``Meta.lock_table`` names a
    `NamedLock` class; its table has one further row for each hash key, the *guard row*. A `VersionAttribute` is needed.

    Guaranteed under any concurrency, crashes, lost and late responses: no two rows of a hash key overlap, as long as
    all writers use this package. Every write of a guarded row is checked:

    * `save` of a new row, and `save` or `update` with another begin or end, raise `OverlapError` if stored rows
      overlap, with the same certainty as `insert_disjoint`. With an unchanged interval they are one plain write, as
      without this mixin; a save tries that first. `update` takes a new end only as a value; to change the range key use
      `move`.
    * `delete` is a plain delete.
    * `Transaction`, `TransactWrite` and `edit` can change and delete rows. New rows and other intervals need
      `insert_disjoint` and `move` of the first two.
    * `batch_write` needs ``unguarded=True``, and checks nothing.

    Expired rows (`ExpiringMixin`) do not count: the writer that stores a row in their place deletes them. Rows of other
    programs without a begin or an end, or with the end first, do not count either.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset({"intervals"})

    #: The `Intervals` of the model, which store, move and find rows.
    intervals: _IntervalsOf = _IntervalsOf()

    @override
    @classmethod
    def _inserting(cls, tx: Any, new_rows: object) -> Placed:
        interval = interval_attributes_of(cls)
        return Staged(tx or Transaction(), interval, _new_placings(interval, new_rows))

    @override
    def _moving(self, tx: Any, begin: Any, end: Any) -> Placed:
        interval, planned = interval_attributes_of(type(self)), None if tx is None else items_of(tx).written(self)
        if planned is None or planned.is_deleted:
            _check_stored(interval, self, "move")
        return Staged(tx or Transaction(), interval, [moving(self, begin, end)])

    @override
    def save(self, condition: Condition | None = None, *, add_version_condition: bool = True) -> dict[str, Any]:
        """Save the row. See `VersionedMixin.save`; a new row, or another interval, is stored as by `insert_disjoint`.

        Raises:
            OverlapError: stored rows overlap it; nothing was written. Also a `PutError`, like the errors of
                `VersionedMixin.save`.

        Cost: that of `VersionedMixin.save` if the interval is as it is stored. Otherwise that of `insert_disjoint`, and
        1 refused write for a row that was stored before. After an `OutcomeUnknown` that of `insert_disjoint`, 1
        transactional read and 1 read.
        """
        interval = interval_attributes_of(type(self))
        stored = None
        is_known = versions.known_state(self).version is not None or not add_version_condition
        if is_known and not unsure_of(self):
            try:
                return super().save(condition, add_version_condition=add_version_condition)
            except Conflict as refused:
                if not self._is_elsewhere(interval, refused):
                    raise
                stored = refused.stored
        else:
            self._prepare_save()
            _refuse_without_version(self)
        with _errors_of_a_single_write(PutError):
            was = None if stored is None else interval.span_in(stored[1])
            placing = saving(interval, self, condition, checks=add_version_condition, was=was)
            DisjointWrite(interval, [placing], PutError).run()
        return {}

    @override
    def update(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
        must_exist: bool = False,
    ) -> Any:
        """Update the row. See `VersionedMixin.update`; another interval is stored as by `move`.

        Without a change of the interval the row must exist.

        Raises:
            OverlapError: stored rows overlap it; nothing was written. Also an `UpdateError`.
            ConfigurationError: an action sets begin or end to something other than a value, or it is the range key.

        Cost: 1 write, if the interval is not in the actions. Otherwise that of `move`, and 1 read.
        """
        interval = interval_attributes_of(type(self))
        ends = ends_in(interval, actions)
        if must_exist or not ends:
            condition = conditions.both(condition, interval.is_stored())
        if not ends:
            return super().update(actions, condition, add_version_condition=add_version_condition)
        placing = updating(interval, self, actions, condition, checks=add_version_condition)
        with _errors_of_a_single_write(UpdateError):
            DisjointWrite(interval, [placing], UpdateError).run()
        return {"Attributes": self.serialize()}

    def _is_elsewhere(self, interval: IntervalAttributes, refused: Conflict) -> bool:
        """Tell whether a save was refused because the stored row has another interval, or is not there."""
        if isinstance(refused, (StaleVersion, ItemLocked, TransactionConflict, TransactionAborted)):
            return False
        if refused.stored is None:
            return True
        its = interval.span_in(refused.stored[1])
        return its != interval.span(*interval.ends_of(self))

    def _why_misplaced(self, image: dict[str, Any]) -> str:
        """Say that the stored row has another interval, which this write may not change."""
        interval = interval_attributes_of(type(self))
        its = interval.span_in(image)
        if its is None:
            return ""
        stored = its.upper if interval.is_by_begin else its.lower
        if stored == interval.edge(getattr(self, interval.other), interval.other):
            return ""
        return "it would change the interval without a check for overlaps: use move() of the model's intervals."

    def _same_interval(self) -> Condition:
        """Return the condition that the stored row has the end of this instance; the key ensures the begin."""
        interval = interval_attributes_of(type(self))
        return interval.has_end(getattr(self, interval.other))

    @override
    def _placement_condition(
        self, condition: Condition | None, actions: Sequence[Action] | None = None, *, planned: Any = None
    ) -> Condition | None:
        interval = interval_attributes_of(type(self))
        if actions is not None and ends_in(interval, actions):
            raise ConfigurationError(
                f"this update of {type(self).__name__} would change its interval without a check for overlaps: use "
                f"the transaction's move(), or update() outside of the transaction."
            )
        if planned is not None and planned.plan.write is not None and self._is_placed(interval, planned, actions):
            return condition
        if actions is not None:
            return conditions.both(condition, interval.is_stored())
        _refuse_without_version(self)
        if versions.known_state(self).version is None:
            raise ConfigurationError(
                f"a transaction would store this {type(self).__name__} without a check for overlaps: use "
                f"insert_disjoint() of the transaction, or of the model's intervals: any number of rows, all or none."
            )
        return conditions.both(condition, self._same_interval())

    def _is_placed(self, interval: IntervalAttributes, planned: Any, actions: Sequence[Action] | None) -> bool:
        """Tell whether the transaction has checked where the row will be; refuse to bring it back, or elsewhere."""
        this = type(self).__name__
        if planned.is_deleted:
            raise ConfigurationError(
                f"the transaction has deleted this {this}, and other rows may be there: insert_disjoint() a new one."
            )
        if not (planned.plan.is_checked and isinstance(planned.plan.after, dict)):
            return False
        mine = interval.span(*interval.ends_of(self))
        if actions is None and mine != interval.span_in(planned.plan.after):
            raise ConfigurationError(f"the transaction gives this {this} another interval already: use its move().")
        return True

    @override
    def _extents(self) -> tuple[LockMode, ...]:
        """Return the interval, if all writes are checked, and the instance shows one: it may lack its end."""
        interval, of_key = interval_attributes_of(type(self)), super()._extents()
        ends = interval.ends_of(self)
        if self._enforces() is None or (None in ends and versions.known_state(self).version is None):
            return of_key
        span = Span(*(interval.edge(value, name) for value, name in zip(ends, interval.names, strict=True)))
        return of_key if span.is_empty else (interval.extent(span),)

    @override
    def _make_writer(self, extents: Sequence[LockMode] | None = None) -> Writer | None:
        writer = super()._make_writer(extents)
        if writer is not None:
            writer.kept = self._same_interval
        return writer


def _new_placings(interval: IntervalAttributes, new_rows: object) -> list[Save]:
    """Return the placings of new rows; refuse rows that are stored, of another model, or that overlap each other."""
    model, rows = interval.model, [*new_rows] if isinstance(new_rows, Iterable) else list[Any]()
    if not rows:
        raise ConfigurationError(f"insert_disjoint() needs a list of at least one {model.__name__}, not {new_rows!r}.")
    for row in rows:
        if not isinstance(row, model):
            raise ConfigurationError(f"insert_disjoint() of {model.__name__} stores rows of that model, not {row!r}.")
        if versions.known_state(row).version is not None:
            raise ConfigurationError(
                f"this {model.__name__} is stored already, in version {versions.known_state(row).version}: save() it, "
                f"or move() it."
            )
        _refuse_without_version(row)
        _check_same_table(model, type(row), "insert_disjoint")
    for row in rows:
        prepare_save(row, "insert_disjoint()")
    placings = [saving(interval, row) for row in rows]
    pair = overlapping_pair(placings)
    if pair is not None:
        one, other = pair
        found = [(other.row.serialize(null_check=False), other.span)]
        raise overlap(interval, one, found, TransactWriteError, is_same_call=True)
    return placings


def _check_stored(interval: IntervalAttributes, row: object, method: str) -> None:
    """Refuse anything but an instance that was loaded from, or saved to, the table of the model."""
    model = interval.model
    if isinstance(row, model) and method == "move":  # which saves the row with all of its values
        versions.check_whole(row)
    if isinstance(row, model):
        _refuse_without_version(row)
    if not isinstance(row, model) or versions.known_state(row).version is None:
        raise ConfigurationError(f"{method}() needs a stored {model.__name__}, not {row!r}: see insert_disjoint().")
    _check_same_table(model, type(row), method)


def _refuse_without_version(row: GuardedMixin) -> None:
    """Refuse a row that another program has stored: without a version nothing tells it from a new one."""
    if versions.lacks_version(row):
        raise ConfigurationError(
            f"{keys.label_of(type(row), key_values_of(row))} was stored by another program, and has no version yet: "
            f"call touch() first, which gives it one."
        )


def _check_same_table(model: type[GuardedMixin], subclass: type[GuardedMixin], method: str) -> None:
    """Refuse a row of a subclass in another table: overlaps would be searched here, and the row stored there."""
    if subclass is not model and _storage_of(subclass) != _storage_of(model):
        raise ConfigurationError(
            f"{subclass.__name__} is not stored where {model.__name__} looks for rows (another table or place, or "
            f"another Meta.interval): call {subclass.__name__}.intervals.{method}(...)."
        )


def _storage_of(model: type[GuardedMixin]) -> object:
    """Return where the rows of a model are stored, and with which keys and intervals."""
    interval, meta, of = interval_attributes_of(model), model.Meta, model.get_attributes()
    attributes = [of[name] for name in (hash_name_of(model), *interval.names)]
    kinds = [(type(attribute), attribute.attr_name) for attribute in attributes]
    return meta.table_name, endpoint_of(model), interval.is_by_begin, kinds


@contextlib.contextmanager
def _errors_of_a_single_write(kind: type[PynamoDBException]) -> Iterator[None]:
    """Turn the errors of a transaction, and of its reads, into those that callers of a single write expect."""
    try:
        yield
    except PynamoDBException as error:
        if isinstance(error, kind):
            raise
        dressed: Exception
        if isinstance(error, LockingError):
            ours: type[LockingError] = type(error).__mro__[1]  # the first base of the combined class
            dressed = also(ours, kind)(*error.args)
        else:
            dressed = kind(*error.args)
        vars(dressed).update(vars(error))
        raise dressed from error.__cause__
