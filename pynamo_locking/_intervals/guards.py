"""The guard row of a hash key, and new rows that a transaction writes with it, where no other row is.

A writer that changes which intervals of a hash key are taken increments the version of the *guard* of that hash key in
the same transaction, on condition that it is still the version that the writer read before its query. So DynamoDB
refuses one of two concurrent writers.

Why a query misses no conflicting row. A query may miss a row that is not settled yet, that is, for which DynamoDB has
something left to do (see `batch_requests.settle`). The guard names such rows. Claim: when a guard was written, every
row that was written under it before was settled, or is named in it. The next writer has read the guard. It keeps the
names and adds its own, or it settles the named rows first and leaves only its own names. So the claim holds again. A
row that was settled before the guard was read shows in a later query. A named row is assumed to be where the guard
says; if that place conflicts, the row is settled and searched for.

Of the rows that the transaction itself writes, what counts is where they will be. The commit ensures that.

Rejected: one row for each minute or day of an interval, whose number grows with its length; a lock that is held while
rows are written, without a guard, which a paused holder would break.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pynamodb.attributes import UnicodeAttribute
from pynamodb.constants import LIST
from pynamodb.models import Model

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.row_keys import brief
from pynamo_locking._intervals.intervals import begin_of, joined
from pynamo_locking._intervals.placings import unsure_of
from pynamo_locking._intervals.queries import overlapping
from pynamo_locking._io.batch_requests import settle
from pynamo_locking._io.model_doors import account_of, own_keys_of
from pynamo_locking._io.stored_rows import StoredRow
from pynamo_locking._items import effects, keys, versions
from pynamo_locking._items.keys import ItemKey
from pynamo_locking._models.attributes import VersionAttribute
from pynamo_locking._models.mixins import VersionedMixin
from pynamo_locking._models.tables import OwnRows, RawAttribute
from pynamo_locking._pynamodb import connection_of, key_values_of, set_connection
from pynamo_locking._transactions.items import ADVICE
from pynamo_locking._transactions.plan import Unread
from pynamo_locking._transactions.transaction_doors import count_in_guard, items_of
from pynamo_locking.exceptions import OverlapError, also, as_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamo_locking._intervals.intervals import IntervalAttributes, Span
    from pynamo_locking._intervals.placings import Placing
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.transaction import Transaction


#: The size limit of the names in a guard, in bytes: an item has at most 400 KB.
_MOST_BYTES: Final = 350_000


class GuardRow(OwnRows, VersionedMixin, Model):
    """The guard of the intervals of one hash key, a row in a table of locks. Each such table has a subclass."""

    _kind: ClassVar[str] = "lock"
    _has_format: ClassVar[bool] = True

    _is_guard: ClassVar[bool] = True

    name = UnicodeAttribute(hash_key=True)
    touched = RawAttribute(LIST, null=True)
    version = VersionAttribute()


_models: dict[type[Any], type[GuardRow]] = {}


def guards_of(interval: IntervalAttributes) -> type[GuardRow]:
    """Return the model of the guards of a model's rows; it uses the connection of their table of locks."""
    table: Any = interval.model.Meta.lock_table  # type: ignore[attr-defined]
    connection = connection_of(table)
    model = _models.get(table)
    if model is None or connection_of(model) is not connection:
        keys = {name: getattr(table.Meta, name, None) for name in ("keys", "prefix")}
        place = {"table_name": connection.table_name, "aws_access_key_id": account_of(table)}
        meta = type("Meta", (), {**place, **keys})
        content = {"Meta": meta, "__module__": __name__}
        model = type(f"{table.__name__}Guard", (GuardRow,), content)
        set_connection(model, connection)
        _models[table] = model
    return model


class Touched(NamedTuple):
    """A row that a transaction has written, perhaps not settled yet.

    `ends` are begin and end as they are stored, or only the range key if the row was removed.
    """

    key: Image
    ends: tuple[dict[str, Any], ...]

    def overlaps(self, interval: IntervalAttributes, span: Span) -> bool:
        its = interval.span_in(dict(zip(interval.stored, self.ends, strict=True))) if len(self.ends) > 1 else None
        return its is not None and its.overlaps(span)


def touched_in(guard: GuardRow, interval: IntervalAttributes, hash_key: Image) -> list[Touched]:
    """Return the rows that a guard names; `CorruptRow` if it is broken."""

    def parsed(touched: Mapping[str, Any]) -> list[Touched]:
        found = [tuple(each["L"]) for each in touched["L"]]
        values = [value for ends in found for end in ends for value in end.values()]
        if not all(found) or not all(isinstance(value, (str, bytes, bool)) for value in values):
            raise ValueError(found)
        place = 0 if interval.is_by_begin else -1
        return [Touched(hash_key | {interval.key_name: ends[place]}, ends) for ends in found]

    table, name = guard.Meta.table_name, guard.name
    what, key = f"the guard {brief(name)} in {table!r}", own_keys_of(guard).of(name)
    return StoredRow(what, table, key, ADVICE).read({"touched": {LIST: guard.touched or []}}, "touched", parsed)


def note_touched(guard: GuardRow, touched: Sequence[Touched]) -> None:
    """Make a guard name these rows; `ConfigurationError` if there are too many."""
    guard.touched = [{"L": list(each.ends)} for each in touched] or None
    if guard.touched and effects.size_of({"touched": {LIST: guard.touched}}) > _MOST_BYTES:
        raise ConfigurationError(
            f"{len(touched):,} rows of one hash key are more than one call can write: its guard could not name them. "
            f"Use several calls."
        )


# New rows


#: A guard that names more rows is settled: with more names it would be larger than a write unit.
MOST_TOUCHED: Final = 8

#: One page of this many rows nearly always shows that the interval is free.
_PAGE: Final = 5

#: The maximum number of rows in an `OverlapError`.
_MOST_TOLD: Final = 20


@dataclass
class StagedInserts:
    """New rows of one hash key: `check_room` refuses them, `stage` adds them to the transaction, with the guard.

    An `OverlapError` is also an `error` of PynamoDB. `has_cleared` tells whether expired rows are deleted for them.
    """

    _interval: IntervalAttributes
    _tx: Transaction
    guard: TransactionItem
    _group: list[Placing]
    _error: type[Exception]
    has_cleared: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.guard.rely()
        self._hash_key = self._group[0].stored_hash_key
        self._expired: list[Image] = []
        self._ours = {item.identity: item.plan.after for item in self._written()}
        self._ours |= {
            identity: None for identity, key in items_of(self._tx).gone.items() if self._is_here(identity, key)
        }
        self._extents = [extent for placing in self._group for extent in placing.extents]
        self._touched: list[Touched] = []
        self._left: list[Placing] = []

    def _written(self) -> list[TransactionItem]:
        """Return the rows of the hash key that the transaction writes, and of which it knows where they will be."""
        return [
            item
            for item in items_of(self._tx).by_key.values()
            if item.plan.write is not None
            and not isinstance(item.plan.after, Unread)
            and self._is_here(item.identity, item.key)
        ]

    def _is_here(self, identity: ItemKey, key: Image) -> bool:
        here, [name] = self._identity(self._hash_key), self._hash_key
        return identity.table == here.table and self._identity({name: key[name]}) == here

    def _is_ours(self, key: Image) -> bool:
        return self._identity(key) in self._ours

    def _identity(self, key: Image) -> ItemKey:
        return ItemKey.of(connection_of(self._interval.model).table_name, key)

    def check_room(self) -> None:
        """Find out which rows must still be written; refuse rows that overlap others."""
        guard: Any = self.guard.instance
        named = touched_in(guard, self._interval, self._hash_key)
        ours = [each for each in named if self._is_ours(each.key)]
        touched = [each for each in named if not self._is_ours(each.key)]
        in_the_way = any(
            each.overlaps(self._interval, placing.span) and each.key != placing.stored_at
            for each in touched
            for placing in self._group
        )
        is_unsure = any(unsure_of(placing.row) for placing in self._group)
        if in_the_way or is_unsure or len(touched) > MOST_TOUCHED:
            touched = self._settle(touched)
        found = self._search()
        named_keys = [each.key for each in touched]
        if any(self._interval.key_in(image) in named_keys for image, _ in found):  # it may have moved away already
            touched = self._settle(touched)
            found = self._search()
        self._touched = touched + ours
        left = [self._left_of(placing, found) for placing in self._group]
        self._group = [now or placing for placing, now in zip(self._group, left, strict=True)]
        self._left = [placing for placing in left if placing is not None]
        leaving = [placing.stored_at for placing in self._left]
        found = [each for each in found if self._interval.key_in(each[0]) not in leaving]
        for placing in self._left:
            self._check_free(placing, found)
        self._check_expired()

    def stage(self) -> dict[Placing, TransactionItem]:
        """Add the rows and the guard to the transaction, unless all rows are stored already; return what is written."""
        if not self._left:
            return {}
        written: dict[Placing, TransactionItem] = {}
        for placing in self._left:
            written[placing] = placing.write(self._tx)
            count_in_guard(self._tx, written[placing])
        self._delete_expired()
        removed = [item.key for item in self._written() if item.is_deleted]
        removed += [key for identity, key in items_of(self._tx).gone.items() if identity in self._ours]
        touched = self._touched + [Touched(key, (key[self._interval.key_name],)) for key in removed]
        touched += [Touched(placing.key, self._interval.ends(placing.span)) for placing in self._left]
        newest = {self._identity(each.key): each for each in touched}  # the last write of each row counts
        guard: Any = self.guard.instance
        note_touched(guard, list(newest.values()))
        self.guard.save(None, checks=True)
        return written

    def _check_expired(self) -> None:
        """Refuse to place a row over an expired one to which the transaction does what only DynamoDB will know."""
        for image in self._expired:
            item = as_model(self._interval.model, image)
            if not self._is_ours(self._interval.key_in(image)) and items_of(self._tx).written(item) is not None:
                label = keys.label_of(type(item), key_values_of(item))
                raise ConfigurationError(
                    f"{label} has expired, and this transaction updates it and places another row over it: leave the "
                    f"update out, or delete the row."
                )

    def _delete_expired(self) -> None:
        """Delete expired rows that overlap: a write of a copy could extend their lifetime."""
        items = items_of(self._tx)
        kept = [key for placing in self._group for key in (placing.key, placing.stored_at)]
        for image in {repr(self._interval.key_in(each)): each for each in self._expired}.values():
            key, expired = self._interval.key_in(image), as_model(self._interval.model, image)
            if key in kept or self._is_ours(key) or versions.known_state(expired).version is None:
                continue
            items.by_key.pop(self._identity(key), None)  # read as absent: this version of it is checked instead
            item = items.of(expired, is_write=True, replaces=False)
            item.extents = self._extents  # an expired row takes up nothing
            item.delete(None, checks=True)
            self.has_cleared = True

    def _settle(self, touched: list[Touched]) -> list[Touched]:
        settle(self._interval.model, [each.key for each in touched])
        return []

    def _search(self) -> list[tuple[Image, Span]]:
        """Return the rows that may overlap the new ones, without those that are about to move away."""
        leaving = {self._identity(placing.stored_at) for placing in self._group if placing.stored_at is not None}
        hidden, most = leaving | self._ours.keys(), _MOST_TOLD + len(self._group)
        found, reader = list[Any](), items_of(self._tx).reader
        for span in joined(placing.span for placing in self._group):
            rows = overlapping(
                self._interval, self._group[0].hash_key, span, reader, page_size=_PAGE, expired=self._expired
            )
            others = (each for each in rows if self._identity(self._interval.key_in(each[0])) not in hidden)
            found += islice(others, most)
        for identity, image in self._ours.items():
            its = self._interval.span_in(image) if isinstance(image, dict) else None
            if its is not None and identity not in leaving:
                found.append((image, its))
        return found

    def _left_of(self, placing: Placing, found: list[tuple[Image, Span]]) -> Placing | None:
        """Return what is left to write; None if an earlier call, whose outcome was unknown, has stored the row already.

        If that call has stored other values, the instance becomes a copy of the stored item.
        """
        row, model = placing.row, type(placing.row)
        if not unsure_of(row):
            return placing
        images = (image for image, _ in found if self._interval.key_in(image) == placing.key)
        image = next(images, None) or items_of(self._tx).reader.read(model, placing.key)  # first as just found
        if image is None or versions.shape_of(model).is_expired(image):
            return placing
        stored = versions.known_of(model, image)
        ours = next((each for each in unsure_of(row) if each.write_id == stored.write_id), None)
        if ours is None or stored == versions.known_state(row):
            return placing
        if ours.asked == placing.digest():
            fresh = model.from_raw_data(copy.deepcopy(image))
            row.attribute_values = fresh.attribute_values
            versions.copy_state(fresh, row)
            return None
        if ours.kind not in placing.follows:
            return placing
        versions.set_known(row, stored)
        return replace(placing, stored_at=placing.key)

    def _check_free(self, placing: Placing, found: list[tuple[Image, Span]]) -> None:
        """Refuse a row that overlaps others."""
        others = [(image, span) for image, span in found if span.overlaps(placing.span)]
        if others:
            others.sort(key=lambda each: begin_of(each[1]))
            raise overlap(self._interval, placing, others[:_MOST_TOLD], self._error)


def overlap(
    interval: IntervalAttributes,
    placing: Placing,
    others: Sequence[tuple[Image, Span]],
    error: type[Exception],
    *,
    is_same_call: bool = False,
) -> OverlapError:
    """Return the error for a row whose interval overlaps others."""
    where = ", ".join(str(span) for _, span in others[:3]) + (", ..." if len(others) > 3 else "")  # noqa: PLR2004
    all_of_them = f"{len(others)} row(s) of that hash key, stored or staged, have"
    whose = "another row of the same call has" if is_same_call else all_of_them
    model = type(placing.row)
    return also(OverlapError, error)(
        f"the {model.__name__} of {placing.hash_key!r:.80} from {placing.span} was refused, and nothing was written: "
        f"{whose} a part of that interval ({where}).",
        found=tuple((interval.model, image) for image, _ in others),
        asked=(model, placing.row.serialize(null_check=False) | interval.stored_ends(placing.span) | placing.key),
    )
