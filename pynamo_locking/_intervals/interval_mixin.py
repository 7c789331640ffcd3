"""Models whose rows have an interval each, and never overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.exceptions import TransactWriteError
from typing_extensions import Self

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.intervals import begin_of, gaps
from pynamo_locking._intervals.disjoint import overlap
from pynamo_locking._intervals.disjoint_mixin import DisjointMixin
from pynamo_locking._intervals.placing import check_together, moving, saving
from pynamo_locking._intervals.search import overlapping
from pynamo_locking._items import keys, knowledge
from pynamo_locking._models.isolation import Reader
from pynamo_locking.exceptions import as_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamo_locking._core.intervals import Edge
    from pynamo_locking._core.lease import Duration


class IntervalMixin(DisjointMixin):
    """Keeps the rows of one hash key from overlapping each other. Put it before the model's other bases.

    ::

        class Booking(IntervalMixin, LockableModel):
            class Meta:
                table_name = "bookings"
                interval = ("begin", "end")
                lock_table = Locks

            room = UnicodeAttribute(hash_key=True)
            begin = UTCDateTimeAttribute(range_key=True)
            end = UTCDateTimeAttribute()
            version = VersionAttribute()

        Booking.insert_disjoint([Booking("blue", nine, end=ten), Booking("red", nine, end=noon)])

    A row takes the time from its begin up to, but without, its end: one may begin where another one ends.
    ``Meta.interval`` names the attributes of begin and end, of which one is the range key, and both are of one class:
    numbers, strings, bytes or times. ``Meta.lock_table`` names a `NamedLock` class; its table also has one row
    for each hash key, its *guard*. A `VersionAttribute` is needed.

    Guaranteed under any concurrency, crashes, lost and late answers: no two rows of a hash key overlap, as long as
    all writers use this package. Every write of a guarded row is checked:

    * `save` of a new row, and `save` or `update` with another begin or end, are refused where others are
      (`OverlapError`), with the same certainty as `insert_disjoint`. With the interval as it is stored they are the one
      plain write that they are without this mixin; of a save this is tried first. `update` takes a new end only as a
      value; with the begin as the range key, `move` is what changes that.
    * `delete` is a plain delete.
    * In `Transaction` and `TransactWrite`, in PynamoDB's own TransactWrite and in `edit`, rows can be changed and
      deleted, and an interval that is not as it is stored is refused. New rows are refused.
    * `batch_write` needs ``unguarded=True``, and guards nothing.

    Rows that have expired (`ExpiringMixin`) are in nobody's way: whoever stores others there deletes them. A row
    without a begin or an end, or with its end first, which others have stored, is not looked at.
    """

    _reserved_names: ClassVar[frozenset[str]] = frozenset({"insert_disjoint", "move", "overlapping", "free"})

    @classmethod
    def insert_disjoint(
        cls, new_rows: Sequence[Self], *, pessimistic: bool = False, wait: Duration | None = None
    ) -> None:
        """Store new rows, all or none, if nothing overlaps: neither each other, nor any stored row.

        Nothing is locked: the rows are looked for, and stored if nobody has written others of the same hash keys
        meanwhile; otherwise all begins anew, after a pause of full jitter (up to 0.1 s, doubled each time, at most
        2 s).
        After an `OutcomeUnknown`, the same call with the same instances is safe: rows that it finds
        stored by the first one count as stored, and those that were changed since are written anew.

        Args:
            new_rows: instances that are not stored yet, with any hash keys, of this model or of subclasses in the same
                table. Up to DynamoDB's 100 actions, of which each
                row and each hash key takes one, and with `pessimistic` each hash key another one; more rows, of up
                to 99 hash keys, if the model has a `LockAttribute` and a
                ``Meta.transaction_table``.
            pessimistic: take the range locks of what is asked for first, one for each hash key, from the first
                begin to the last end: first come, first served, for where many want the same times. Needs a
                `LockableModel`.
            wait: how long to try again while others write rows of the same hash keys, in seconds or as a timedelta; one
                deadline for everything, also for the locks. 10 s unless set. An attempt that is under way is not
                broken off: DynamoDB's own conflicts can prolong it by 9 s.

        Raises:
            OverlapError: a row overlaps stored rows, or another one of the same call; nothing was written.
            TransactionConflict: others wrote rows of the same hash keys until the deadline; nothing was written.
            LockTimeout: the range locks were not free in time; nothing was written.
            StaleVersion, Conflict: somebody else wrote a row without its guard meanwhile; nothing was written.
            OutcomeUnknown: no answer tells whether they were stored.
            ConfigurationError: the model or the rows cannot work, such as an end that is not after its begin, a time
                without a time zone, no rows at all, a key twice. Nothing was sent.

        Cost: for each hash key 1 read, for each row 1 query (rows that touch share one), and 1 transaction, however
        many rows are stored; each ninth row of a hash key 1 transactional read more. With `pessimistic` 2 writes more
        for each hash key.
        """
        axis = cls._interval()
        placings = [saving(axis, row) for row in cls._new(new_rows)]
        pair = check_together(placings)
        if pair is not None:
            other = pair[1]
            found = [(other.row.serialize(null_check=False), other.span)]
            raise overlap(axis, pair[0], found, TransactWriteError, is_same_call=True)
        cls._place(axis, placings, pessimistic=pessimistic, wait=wait)

    @classmethod
    def move(cls, row: Self, begin: Any, end: Any, *, pessimistic: bool = False, wait: Duration | None = None) -> None:
        """Give a stored row another interval, if no other row is there.

        The instance is saved with all of its values, and is the moved row afterwards. If the range key changes, that is
        a delete and a new row in one transaction: attributes that the model does not declare stay behind, and so does
        an embedded lock.

        Args:
            row: the instance, as it was loaded.
            begin: the new begin.
            end: the new end.
            pessimistic: see `insert_disjoint`; what is locked is the new interval.
            wait: see `insert_disjoint`.

        Raises:
            OverlapError: other rows are there; nothing was written.
            StaleVersion: the stored row is not the one that was read, or has expired since.
            ItemLocked: somebody else holds the row's embedded lock.
            TransactionConflict, LockTimeout, OutcomeUnknown, ConfigurationError: as `insert_disjoint`.

        Cost: 1 read, 1 query, 1 transaction, as `insert_disjoint`.
        """
        axis = cls._interval()
        if not isinstance(row, cls) or knowledge.known(row).version is None:
            raise ConfigurationError(f"{row!r} is no stored {cls.__name__} that could be moved: see insert_disjoint().")
        cls._check_same_table(row, "move")
        placing = moving(axis, row, begin, end)
        own: Any = getattr(row._writer(), "own", None)
        if own is not None and own.copies.edits and placing.key != placing.leaves:
            raise ConfigurationError(
                f"this {type(row).__name__} is inside of edit(), which saves it at its end where it was: a row that "
                f"moves away is not stored with what is changed in it afterwards. Use locked() and move(lock.item), or "
                f"move it after the block."
            )
        cls._place(axis, [placing], pessimistic=pessimistic, wait=wait)

    @classmethod
    def overlapping(cls, hash_key: Any, begin: Any, end: Any) -> list[Self]:
        """Return the stored rows that have a part of an interval, in order.

        Args:
            hash_key: the hash key.
            begin: where the interval begins; None for the first row.
            end: where it ends; None for the last row.

        Raises:
            ConfigurationError: the values do not fit the model.

        Cost: 1 consistent query, which reads at most one row that it does not return, besides expired ones.
        """
        axis = cls._interval()
        span, reader = axis.span(begin, end), Reader("read_committed")
        keys.hash_key_of(cls, hash_key)
        found = sorted(overlapping(axis, hash_key, span, reader), key=lambda each: begin_of(each[1]))
        return [as_model(cls, image) for image, _ in found]

    @classmethod
    def free(cls, hash_key: Any, begin: Any, end: Any) -> list[tuple[Any, Any]]:
        """Return the gaps: the parts of an interval that no stored row has, in order, each as begin and end.

        Args:
            hash_key: the hash key.
            begin: where to begin; None leaves it open, and the first gap may have None as its begin then.
            end: where to end; None leaves it open, as well.

        Raises:
            ConfigurationError: the values do not fit the model.

        Cost: that of `overlapping`. Somebody may take a gap the next moment: `insert_disjoint` will tell.
        """
        axis = cls._interval()
        window, reader = axis.span(begin, end), Reader("read_committed")
        keys.hash_key_of(cls, hash_key)
        taken = sorted((span for _, span in overlapping(axis, hash_key, window, reader)), key=begin_of)
        return [(_value(gap.lower), _value(gap.upper)) for gap in gaps(taken, window)]

    @classmethod
    def _new(cls, new_rows: object) -> list[Self]:
        """Return rows that are to be stored.

        Raises:
            ConfigurationError: there are none, or one of them is no new row of this model.
        """
        given = [*new_rows] if isinstance(new_rows, Iterable) else list[Any]()
        if not given:
            raise ConfigurationError(
                f"insert_disjoint() needs a list of at least one {cls.__name__}, not {new_rows!r}."
            )
        for row in given:
            if not isinstance(row, cls):
                raise ConfigurationError(f"insert_disjoint() of {cls.__name__} stores rows of that model, not {row!r}.")
            if knowledge.known(row).version is not None:
                raise ConfigurationError(
                    f"this {cls.__name__} is stored already, in version {knowledge.known(row).version}: save() it, or "
                    f"move() it."
                )
            cls._check_same_table(row, "insert_disjoint")
        return given

    @classmethod
    def _check_same_table(cls, row: Self, method: str) -> None:
        """Refuse a row of a subclass whose rows are elsewhere: it would be looked for here, and stored there.

        Raises:
            ConfigurationError: it is one.
        """
        model = type(row)
        if model is not cls and _where(model) != _where(cls):
            raise ConfigurationError(
                f"a {model.__name__} is not stored where {cls.__name__} looks for rows (another table, or another "
                f"Meta.interval): call {model.__name__}.{method}(...)."
            )


def _value(edge: Edge | None) -> Any:
    return None if edge is None else edge.value


def _where(model: type[IntervalMixin]) -> object:
    """Return where the rows of a model are stored, and with which keys and intervals."""
    axis, meta, of = model._interval(), model.Meta, model.get_attributes()
    attributes = [of[name] for name in (str(model._hash_keyname), *axis.names)]
    kinds = [(type(attribute), attribute.attr_name) for attribute in attributes]
    return meta.table_name, getattr(meta, "region", None), getattr(meta, "host", None), axis.is_by_begin, kinds
