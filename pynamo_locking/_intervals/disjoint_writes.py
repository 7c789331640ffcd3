"""Writes rows only where no other row is: the conflict row of a hash key, places, the transaction.

A writer that changes which intervals of a hash key are taken increments the version of the *guard* of that hash key in
the same transaction, on condition that it is still the version that the writer read before its query. So DynamoDB
refuses one of two concurrent writers. A writer that was refused a few times takes its turn in the queue of a lock. The
lock only decides the order of writers, the guard what is stored.

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

import contextlib
import copy
import hashlib
from dataclasses import InitVar, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamodb.attributes import UnicodeAttribute
from pynamodb.constants import LIST
from pynamodb.exceptions import TransactWriteError, UpdateError
from pynamodb.expressions.operand import Value
from pynamodb.expressions.update import RemoveAction, SetAction
from pynamodb.models import Model

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import backoff
from pynamo_locking._core.row_keys import brief, guard_name, turn_name
from pynamo_locking._core.write_outcome import Known
from pynamo_locking._intervals.intervals import Span, begin_of, colliding, joined
from pynamo_locking._intervals.queries import overlapping
from pynamo_locking._io import runtime
from pynamo_locking._io.batch_requests import settle
from pynamo_locking._io.concurrency import undone_by
from pynamo_locking._io.model_doors import account_of, enforcement_of, extents_of, lock_attribute_of, own_keys_of
from pynamo_locking._io.stored_rows import StoredRow
from pynamo_locking._items import conditions, effects, keys, versions
from pynamo_locking._items.keys import ItemKey
from pynamo_locking._locks.locked_all import in_order, locked_all
from pynamo_locking._models.attributes import VersionAttribute
from pynamo_locking._models.isolation import SERIALIZABLE, IsolatedReader
from pynamo_locking._models.mixins import VersionedMixin
from pynamo_locking._models.tables import OwnRows, RawAttribute
from pynamo_locking._pynamodb import connection_of, key_values_of, new_item, set_connection
from pynamo_locking._transactions.items import ADVICE
from pynamo_locking._transactions.plan import Unread
from pynamo_locking._transactions.transaction import Transaction, count_in_guard, is_done_before, items_of, next_attempt
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    LockLost,
    LockTimeout,
    OverlapError,
    TransactionAborted,
    TransactionConflict,
    also,
    as_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._intervals.intervals import IntervalAttributes
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.items import TransactionItems


#: The size limit of the names in a guard, in bytes: an item has at most 400 KB.
_MOST_BYTES: Final = 350_000


class ConflictRow(OwnRows, VersionedMixin, Model):
    """The guard of the intervals of one hash key, a row in a table of locks. Each such table has a subclass."""

    _kind: ClassVar[str] = "lock"
    _has_format: ClassVar[bool] = True

    _is_guard: ClassVar[bool] = True

    name = UnicodeAttribute(hash_key=True)
    touched = RawAttribute(LIST, null=True)
    version = VersionAttribute()


_models: dict[type[Any], type[ConflictRow]] = {}


def guards_of(interval: IntervalAttributes) -> type[ConflictRow]:
    """Return the model of the guards of a model's rows; it uses the connection of their table of locks."""
    table: Any = interval.model.Meta.lock_table  # type: ignore[attr-defined]
    connection = connection_of(table)
    model = _models.get(table)
    if model is None or connection_of(model) is not connection:
        keys = {name: getattr(table.Meta, name, None) for name in ("keys", "prefix")}
        place = {"table_name": connection.table_name, "aws_access_key_id": account_of(table)}
        meta = type("Meta", (), {**place, **keys})
        content = {"Meta": meta, "__module__": __name__}
        model = type(f"{table.__name__}Guard", (ConflictRow,), content)
        set_connection(model, connection)
        _models[table] = model
    return model


@dataclass(frozen=True)
class Touched:
    """A row that a transaction has written, perhaps not settled yet.

    `ends` are begin and end as they are stored, or only the range key if the row was removed.
    """

    hash_key: Image
    ends: tuple[dict[str, Any], ...]

    def key(self, interval: IntervalAttributes) -> Image:
        return self.hash_key | {interval.key_name: self.ends[0 if interval.is_by_begin else -1]}

    def overlaps(self, interval: IntervalAttributes, span: Span) -> bool:
        its = interval.span_in(dict(zip(interval.stored, self.ends, strict=True))) if len(self.ends) > 1 else None
        return its is not None and its.overlaps(span)


def touched_in(guard: ConflictRow, hash_key: Image) -> list[Touched]:
    """Return the rows that a guard names; `CorruptRow` if it is broken."""
    table, name = guard.Meta.table_name, guard.name
    what, key = f"the guard {brief(name)} in {table!r}", own_keys_of(guard).of(name)
    stored = {"touched": {LIST: guard.touched or []}}
    return StoredRow(what, table, key, ADVICE).read(stored, "touched", lambda touched: _touched(touched, hash_key))


def _touched(touched: Mapping[str, Any], hash_key: Image) -> list[Touched]:
    found = [Touched(hash_key, tuple(each["L"])) for each in touched["L"]]
    values = [value for each in found for end in each.ends for value in end.values()]
    if not all(each.ends for each in found) or not all(isinstance(value, (str, bytes, bool)) for value in values):
        raise ValueError(found)
    return found


def note_touched(guard: ConflictRow, touched: Sequence[Touched]) -> None:
    """Make a guard name these rows; `ConfigurationError` if there are too many."""
    guard.touched = [{"L": list(each.ends)} for each in touched] or None
    if guard.touched and effects.size_of({"touched": {LIST: guard.touched}}) > _MOST_BYTES:
        raise ConfigurationError(
            f"{len(touched):,} rows of one hash key are more than one call can write: its guard could not name them. "
            f"Use several calls."
        )


# New places of rows, how a transaction writes each row, and what an instance remembers of unknown outcomes.


#: The kinds of writes. A save stores all values of the instance. A move does too, with another interval, which the
#: instance shows only afterwards. An update applies actions, whose result the instance does not show before.
SAVE: Final = "save"
MOVE: Final = "move"
UPDATE: Final = "update"

#: The kinds of unknown writes that each kind may follow with other values. A save after an unknown update would undo
#: it, since the instance does not show the update: if the update was applied, the instance is stale.
_FOLLOWS: Final = {SAVE: (SAVE,), MOVE: (SAVE, MOVE), UPDATE: (SAVE, MOVE, UPDATE)}


@dataclass(frozen=True)
class UnknownPlacement:
    """A write with an unknown outcome; `asked` is a digest of its request."""

    write_id: str
    kind: str
    asked: str


class UnknownPlacements(tuple[UnknownPlacement, ...]):
    """The writes of an instance with an unknown outcome."""

    __slots__ = ()


def unsure_of(item: GuardedMixin) -> UnknownPlacements:
    return versions.noted(item, UnknownPlacements) or UnknownPlacements()


def forget_unsure(item: GuardedMixin) -> None:
    versions.drop_note(item, UnknownPlacements)


def restoring(item: GuardedMixin) -> Callable[[], None]:
    """Return what restores the present state of an instance, except for the remembered writes."""
    before, values = dict(vars(item)), dict(item.attribute_values)  # the dict itself is in the state

    def restore() -> None:
        state, unsure = vars(item), unsure_of(item)
        state.clear()
        state.update(before)
        item.attribute_values.clear()
        item.attribute_values.update(values)
        if unsure:
            versions.note(item, unsure)

    return restore


@dataclass
class Placing:
    """A row, and its new interval `span`. Keys are in DynamoDB's form, but for the `hash_key` of the model.

    Attributes:
        write: adds the write to a transaction, and returns the `item`.
        kind: of the write: `SAVE`, `MOVE` or `UPDATE`.
        asked: returns a digest of the request, equal for equal requests.
        key: its new key.
        guard: the name of the guard of its hash key, equal for equal hash keys however they are written.
        stored_at: its stored key; None if it is not stored, as far as the caller knows.
        is_adopted: whether an earlier call with an unknown outcome has stored it at its new key.
        extents: its old and new intervals, as the locks of ranges see them.
    """

    interval: IntervalAttributes
    row: GuardedMixin
    span: Span
    write: Callable[[Transaction], TransactionItem]
    kind: str
    asked: Callable[[], str]
    hash_key: Any = field(init=False)
    key: Image = field(init=False)
    guard: str = field(init=False)
    stored_at: Image | None = field(default=None, init=False)
    is_adopted: bool = field(default=False, init=False)
    item: TransactionItem | None = field(default=None, init=False)
    extents: list[LockMode] = field(init=False)

    def __post_init__(self) -> None:
        self.hash_key = key_values_of(self.row)[0]
        edge = self.span.lower if self.interval.is_by_begin else self.span.upper
        assert edge is not None  # noqa: S101 - `whole` has checked it
        self.key = keys.key_of(type(self.row), self.hash_key, edge.value)
        [stored] = self.stored_hash_key.values()
        meta: Any = self.interval.model.Meta
        longest = own_keys_of(meta.lock_table).longest_name
        self.guard = guard_name(meta.table_name, next(iter(stored.items())), longest=longest)
        self.extents = [*extents_of(self.row), self.interval.extent(self.span)]

    @property
    def stored_hash_key(self) -> Image:
        return {name: value for name, value in self.key.items() if name != self.interval.key_name}

    @property
    def old_key(self) -> Image | None:
        """Its stored key, as far as is known."""
        return self.key if self.is_adopted else self.stored_at

    def item_in(self, tx: Transaction) -> TransactionItem:
        """Return the row as an item of a transaction, whose locks of ranges see the old and the new interval."""
        item = items_of(tx).of(self.row, is_write=True, replaces=self.kind != UPDATE)
        item.extents = self.extents
        return item

    @property
    def unsure(self) -> UnknownPlacement | None:
        """The write, once there is one, to be remembered if its outcome is unknown."""
        write = None if self.item is None else self.item.plan.write
        if write is None or write.part.write_id is None:
            return None
        return UnknownPlacement(write.part.write_id, self.kind, self.asked())


def whole(interval: IntervalAttributes, begin: Any, end: Any) -> Span:
    """Return an interval of a row; refuse ends that are missing, do not fit the model, or are not in order."""
    for value, name in zip((begin, end), interval.names, strict=True):
        interval.value(value, name)
    return interval.span(begin, end)


def _values(interval: IntervalAttributes, row: GuardedMixin, span: Span, condition: Condition | None = None) -> str:
    """Return a digest of the row as stored with that interval, without its version and lock."""
    values = row.serialize(null_check=False) | dict(zip(interval.stored, interval.ends(span), strict=True))
    version, lock = versions.shape_of(type(row)).attribute, lock_attribute_of(row)
    besides = {attribute.attr_name for attribute in (version, lock) if attribute is not None}
    return _digest([values[name] for name in sorted(values) if name not in besides], sorted(values), condition)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def saving(
    interval: IntervalAttributes, row: GuardedMixin, condition: Condition | None = None, *, checks: bool = True
) -> Placing:
    """Return the placing of a save of a row, stored or not."""

    def write(tx: Transaction) -> TransactionItem:
        item = placing.item_in(tx)
        item.save(condition, checks=checks)
        if not checks:
            item.rely()  # on the stored item: the instance then knows its new version
        return item

    span = whole(interval, *(getattr(row, name) for name in interval.names))
    placing = Placing(interval, row, span, write, SAVE, lambda: _values(interval, row, span, condition))
    if not checks or versions.known_state(row).version is not None:
        placing.stored_at = placing.key
    return placing


def updating(
    interval: IntervalAttributes,
    row: GuardedMixin,
    end: Any,
    actions: list[Action],
    condition: Condition | None,
    *,
    checks: bool,
) -> Placing:
    """Return the placing of an update that changes the end of a row, or its begin if the end is the range key."""

    def write(tx: Transaction) -> TransactionItem:
        item = placing.item_in(tx)
        item.update(actions, condition, checks=checks)
        if checks:
            item.shown_image()
        else:
            item.rely()
        return item

    fixed = getattr(row, interval.names[0 if interval.is_by_begin else 1])
    ends = (fixed, end) if interval.is_by_begin else (end, fixed)
    placing = Placing(interval, row, whole(interval, *ends), write, UPDATE, lambda: _digest(UPDATE, actions, condition))
    placing.stored_at = placing.key
    return placing


def moving(interval: IntervalAttributes, row: GuardedMixin, begin: Any, end: Any) -> Placing:
    """Return the placing of a move of a stored row."""

    def write(tx: Transaction) -> TransactionItem:
        if placing.key != placing.old_key:
            _delete_stored(tx, row)
        for name, value in zip(interval.names, (begin, end), strict=True):
            setattr(row, name, value)
        item = placing.item_in(tx)
        item.save(None, checks=True)
        return item

    span = whole(interval, begin, end)
    placing = Placing(interval, row, span, write, MOVE, lambda: _values(interval, row, span))
    placing.stored_at = keys.key_of(type(row), *key_values_of(row))
    return placing


def _delete_stored(tx: Transaction, row: GuardedMixin) -> None:
    """Delete the stored row, and make the instance a new row."""
    old = type(row)()
    old.attribute_values = dict(row.attribute_values)
    vars(old).update({name: value for name, value in vars(row).items() if name != "attribute_values"})
    known = items_of(tx).written(row)
    is_same = known is not None and known.instance is row
    item = known if known is not None and is_same else items_of(tx).of(old, is_write=True, replaces=False)
    item.instances.replace(old)  # even if it was the instance, which becomes the new row
    item.delete(None, checks=True)
    count_in_guard(tx, item)
    versions.set_known(row, Known())
    lock = lock_attribute_of(row)
    for name in [name for name, each in row.get_attributes().items() if lock is not None and each is lock]:
        row.attribute_values.pop(name, None)


def ends_in(interval: IntervalAttributes, actions: Any) -> list[Action]:
    given = actions if isinstance(actions, list) else []  # `check_actions` refuses anything else
    return [action for action in given if conditions.changed_by(action) in interval.stored]


def literal_end(interval: IntervalAttributes, actions: list[Action]) -> Any:
    """Return the value that an action assigns to the end that is not the range key; None if it removes the end."""
    [action, *more] = actions
    changed, is_part = conditions.changed_by(action), len(conditions.path_of(action)) > 1
    if interval.key_name in {conditions.changed_by(each) for each in actions}:
        raise ConfigurationError(f"{interval.key_name!r} is the range key, which no update can change: use move().")
    if isinstance(action, RemoveAction) and not is_part and not more:
        return None
    value = action.values[1] if isinstance(action, SetAction) else None
    if more or is_part or not isinstance(value, Value):
        raise ConfigurationError(
            f"{action!r} would change {changed!r} to a value that only DynamoDB knows, so overlaps could not be "
            f"checked: set it to a value, or use move()."
        )
    attribute: Any = interval.model.get_attributes()[interval.other]
    return attribute.deserialize(attribute.get_value(value.values[0]))


def by_guard(placings: Sequence[Placing]) -> dict[str, list[Placing]]:
    """Return the rows of each hash key, by the name of its guard."""
    groups: dict[str, list[Placing]] = {}
    for placing in placings:
        groups.setdefault(placing.guard, []).append(placing)
    return groups


def check_together(placings: Sequence[Placing]) -> tuple[Placing, Placing] | None:
    """Return two rows of one call that overlap each other, as rows with the same key do; None if no two do."""
    for group in by_guard(placings).values():
        pair = colliding([placing.span for placing in group])
        if pair is not None:
            return group[pair[1]], group[pair[0]]
    return None


# Adds rows to a transaction, where no other row is, and the guards of their hash keys.


#: A guard that names more rows is settled: with more names it would be larger than a write unit.
MOST_TOUCHED: Final = 8

#: One page of this many rows nearly always shows that the interval is free.
_PAGE: Final = 5

#: The maximum number of rows in an `OverlapError`.
_MOST_TOLD: Final = 20


@dataclass(frozen=True)
class Staged:
    """Rows on their way into a caller's transaction, all or none."""

    tx: Transaction
    interval: IntervalAttributes
    placings: list[Placing]
    range_locks: Callable[[], list[Lock[Any]]]

    @property
    def items(self) -> TransactionItems:
        return items_of(self.tx)

    def locks(self) -> Iterator[Lock[Any]]:
        return in_order(self.range_locks())

    def stage(self) -> None:
        """Add the rows. An error before the first of them leaves the transaction as it was."""
        tx, groups, model = self.tx, by_guard(self.placings), guards_of(self.interval)
        items_of(tx).note_locks()
        guards = {name: items_of(tx).counter(model, name) for name in groups}
        work = [
            StagedInserts(self.interval, tx, guards[name], group, TransactWriteError) for name, group in groups.items()
        ]
        try:
            for staging in work:
                staging.check_room()
        except OverlapError:
            if is_done_before(tx, self.interval.model):  # its own rows are in the way
                return
            raise
        items_of(tx).undo += [restoring(placing.row) for placing in self.placings if placing.kind == MOVE]
        with undone_by(tx.rollback):  # or it would have a part of the rows
            for staging in work:
                staging.stage()


@dataclass
class StagedInserts:
    """New rows of one hash key: `check_room` refuses them, `stage` adds them to the transaction, with the guard.

    An `OverlapError` is also an `error` of PynamoDB. `has_cleared` tells whether expired rows are deleted for them.
    """

    _interval: IntervalAttributes
    _tx: Transaction
    _guard: TransactionItem
    _group: list[Placing]
    _error: type[Exception]
    has_cleared: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._guard.rely()
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
        for placing in self._group:
            placing.is_adopted = False  # each attempt finds out again
        item: Any = self._guard.instance
        named = touched_in(item, self._hash_key)
        ours = [each for each in named if self._is_ours(each.key(self._interval))]
        touched = [each for each in named if not self._is_ours(each.key(self._interval))]
        in_the_way = any(
            each.overlaps(self._interval, placing.span) and each.key(self._interval) != placing.old_key
            for each in touched
            for placing in self._group
        )
        is_unsure = any(unsure_of(placing.row) for placing in self._group)
        if in_the_way or is_unsure or len(touched) > MOST_TOUCHED:
            touched = self._settle(touched)
        found = self._search()
        keys = [each.key(self._interval) for each in touched]
        if any(self._interval.key_in(image) in keys for image, _ in found):  # the row may have moved away already
            touched = self._settle(touched)
            found = self._search()
        self._touched = touched + ours
        self._left = [placing for placing in self._group if not self._is_done(placing, self._stored(placing, found))]
        leaving = [placing.old_key for placing in self._left]
        found = [each for each in found if self._interval.key_in(each[0]) not in leaving]
        for placing in self._left:
            self._check_free(placing, found)
        self._check_expired()

    def stage(self) -> bool:
        """Add the rows and the guard to the transaction; return False if all rows are stored already."""
        if not self._left:
            return False
        for placing in self._left:
            placing.item = placing.write(self._tx)
            count_in_guard(self._tx, placing.item)
        self._delete_expired()
        removed = [item.key for item in self._written() if item.is_deleted]
        removed += [key for identity, key in items_of(self._tx).gone.items() if identity in self._ours]
        touched = self._touched + [Touched(self._hash_key, (key[self._interval.key_name],)) for key in removed]
        touched += [Touched(self._hash_key, self._interval.ends(placing.span)) for placing in self._left]
        newest = {repr(each.key(self._interval)): each for each in touched}  # the last write of each row counts
        item: Any = self._guard.instance
        note_touched(item, list(newest.values()))
        self._guard.save(None, checks=True)
        return True

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
        kept = [key for placing in self._group for key in (placing.key, placing.old_key)]
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
        settle(self._interval.model, [each.key(self._interval) for each in touched])
        return []

    def _search(self) -> list[tuple[Image, Span]]:
        """Return the rows that may overlap the new ones, without those that are about to move away."""
        leaving = {self._identity(placing.old_key) for placing in self._group if placing.old_key is not None}
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

    def _stored(self, placing: Placing, found: list[tuple[Image, Span]]) -> Image | None:
        """Return the row stored at the key of a new one if an earlier call may have stored it; first as just found."""
        if not unsure_of(placing.row):
            return None
        images = (image for image, _ in found if self._interval.key_in(image) == placing.key)
        return next(images, None) or items_of(self._tx).reader.read(type(placing.row), placing.key)

    def _is_done(self, placing: Placing, image: Image | None) -> bool:
        """Tell whether an earlier call with an unknown outcome has stored the row.

        If that call stored other values, the instance becomes a copy of the stored item.
        """
        row, model = placing.row, type(placing.row)
        if image is None or versions.shape_of(model).is_expired(image):
            return False
        stored = versions.known_of(model, image)
        ours = next((each for each in unsure_of(row) if each.write_id == stored.write_id), None)
        if ours is None or stored == versions.known_state(row):
            return False
        if ours.asked == placing.asked():
            fresh = model.from_raw_data(copy.deepcopy(image))
            row.attribute_values = fresh.attribute_values
            versions.copy_state(fresh, row)
            return True
        if ours.kind in _FOLLOWS[placing.kind]:
            versions.set_known(row, stored)
            placing.is_adopted = True
        return False

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
    model, ends = type(placing.row), dict(zip(interval.stored, interval.ends(placing.span), strict=True))
    return also(OverlapError, error)(
        f"the {model.__name__} of {placing.hash_key!r:.80} from {placing.span} was refused, and nothing was written: "
        f"{whose} a part of that interval ({where}).",
        found=tuple((interval.model, image) for image, _ in others),
        asked=(model, placing.row.serialize(null_check=False) | ends | placing.key),
    )


# Stores rows where no other row is: reads, and writes only if no other writer has stored a row there meanwhile.


#: After so many refusals a call takes its turn.
_REFUSALS: Final = 3


@dataclass
class Disjoint:
    """Stores rows where no other row is, all or none.

    It retries until the deadline, by the monotonic clock. An `OverlapError` is also an `error` of PynamoDB. `is_locked`
    rows are written under range locks, one for each hash key.
    """

    _interval: IntervalAttributes
    _placings: Sequence[Placing]
    _deadline: float
    _error: type[Exception]
    is_locked: InitVar[bool]
    _seen: Sequence[Any] = field(default=(), init=False)
    _is_over: bool = field(default=False, init=False)
    _has_turn: bool = field(default=False, init=False)
    _has_cleared: bool = field(default=False, init=False)

    def __post_init__(self, is_locked: bool) -> None:
        self._guards, self._groups = guards_of(self._interval), by_guard(self._placings)
        self._check_size(is_locked=is_locked)

    def _check_size(self, *, is_locked: bool) -> None:
        """Refuse too many rows before any request: guards and locks are part of the deciding transaction."""
        model: Any = self._interval.model
        is_embedded = lock_attribute_of(model) is not None
        is_checked = (is_locked and not is_embedded) or enforcement_of(model) is not None
        besides = len(self._groups) * (2 if is_checked else 1)
        can_be_long = is_embedded and getattr(model.Meta, "transaction_table", None) is not None
        most = f"the {dynamodb.MOST_ACTIONS} actions of a native transaction"
        if besides >= dynamodb.MOST_ACTIONS:
            raise ConfigurationError(
                f"rows of {len(self._groups)} hash keys need more than {most}: write fewer at once."
            )
        if len(self._placings) + besides > dynamodb.MOST_ACTIONS and not can_be_long:
            raise ConfigurationError(
                f"{len(self._placings)} rows, and {besides} guards and locks of their hash keys, are more than {most}: "
                f"write fewer at once, or declare `lock = LockAttribute()` on {model.__name__} and name a "
                f"TransactionTable in Meta.transaction_table."
            )

    def run(self) -> None:
        """Store the rows, or raise as `Intervals.insert_disjoint`."""
        with contextlib.ExitStack() as turn:
            self._run(turn)

    def _run(self, turn: contextlib.ExitStack) -> None:
        before = [restoring(placing.row) for placing in self._placings]
        begun, refused, attempt = Transaction(wait=self._left()), None, 0
        while True:
            try:
                self._attempt(begun, refused)
            except BaseException as error:
                begun.rollback()
                is_refused = isinstance(error, (Conflict, OverlapError))  # else, as after an interrupt, it is unknown
                for restore, placing in zip(before, self._placings, strict=True):
                    restore()
                    if not is_refused and placing.unsure is not None:
                        versions.note(placing.row, UnknownPlacements((*unsure_of(placing.row), placing.unsure)))
                is_final = error is refused or self._is_over or isinstance(error, ItemLocked)
                if is_final or not isinstance(error, Conflict):
                    raise
                refused, attempt = error, attempt + 1
            else:
                for placing in self._placings:
                    forget_unsure(placing.row)
                return
            if attempt == _REFUSALS:
                self._take_turn(turn, refused)
            elif attempt < _REFUSALS:  # else others wait for the end of our turn
                runtime.current.sleep(min(backoff(attempt, runtime.current.jitter()), self._left()))
            begun = next_attempt(begun, Transaction(wait=self._left()))

    def _take_turn(self, turn: contextlib.ExitStack, refused: Conflict) -> None:
        """Wait until no other writer that was refused as often is before us."""
        meta: Any = self._interval.model.Meta
        try:
            turn.enter_context(Turn([meta.lock_table.locked(turn_name(name)) for name in self._groups], self._left()))
        except LockTimeout:
            raise self._too_late(refused) from refused
        self._has_turn = True

    def _left(self) -> float:
        return max(0.0, self._deadline - runtime.current.monotonic())

    def _attempt(self, begun: Transaction, refused: Conflict | None) -> None:
        guards = {name: self._guard(begun, name) for name in self._groups}
        work = [
            StagedInserts(self._interval, begun, guards[name], group, self._error)
            for name, group in self._groups.items()
        ]
        seen = [item.before.version or 0 for item in guards.values()]
        if refused is not None:
            self._check_again(refused, guards.values(), is_same=seen == [each + self._has_turn for each in self._seen])
        self._seen = seen
        for staging in work:
            staging.check_room()
        is_staged = [staging.stage() for staging in work]
        self._has_cleared = any(staging.has_cleared for staging in work)
        if any(is_staged):
            begun.commit()
        else:
            begun.rollback()

    def _guard(self, begun: Transaction, name: str) -> TransactionItem:
        """Return a guard, read or, in our turn, incremented.

        The increment refuses all writers that have read the guard before. Those that read it later write later than we.
        """
        model = self._guards
        if self._has_turn:
            with contextlib.suppress(UpdateError):
                guard = new_item(model, name)
                unchanged = model.touched.set(model.touched | [])
                image = guard.update([unchanged], model.version.exists(), add_version_condition=False)["Attributes"]
                return next(items_of(begun).found(model, [[image]]))
        return items_of(begun).counter(model, name)

    def _check_again(self, refused: Conflict, guards: Collection[TransactionItem], *, is_same: bool) -> None:
        """Raise an error that no guard has caused, and any error after the deadline.

        An unchanged guard may be about to change: DynamoDB may have applied the transaction that caused the refusal to
        a row, and not yet to the guard.
        """
        has_cleared, self._has_cleared = self._has_cleared, False  # if so, DynamoDB's TTL may have been faster
        if is_same and not has_cleared and not isinstance(refused, (TransactionConflict, TransactionAborted)):
            settle(self._guards, [guard.key for guard in guards])
            if not any(self._has_changed(guard) for guard in guards):
                raise refused
            raise also(TransactionConflict, self._error)(f"other writers changed rows of the same hash key: {refused}")
        if not self._left():
            self._is_over = True
            raise self._too_late(refused) from refused

    def _too_late(self, refused: Conflict) -> Exception:
        return also(TransactionConflict, self._error)(
            f"other writers changed rows of the same hash key until the time to wait was over; nothing was written, "
            f"and a retry is safe. The last refusal: {refused}",
            cause=refused,
        )

    def _has_changed(self, guard: TransactionItem) -> bool:
        image = IsolatedReader(SERIALIZABLE).read(self._guards, guard.key)
        return versions.known_of(self._guards, image or {}) != guard.before


class Turn:
    """Holds locks that only decide which call is first: a lost one is no error once the block has stored its rows."""

    def __init__(self, locks: Sequence[Lock[Any]], wait: float) -> None:
        self._held: Any = locked_all(*locks, wait=wait)

    def __enter__(self) -> None:
        self._held.__enter__()

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(*(() if error[0] else (LockLost,))):
            self._held.__exit__(*error)

    async def __aenter__(self) -> None:
        await self._held.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        with contextlib.suppress(*(() if error[0] else (LockLost,))):
            await self._held.__aexit__(*error)
