"""Rows and the intervals that they are to have: how a transaction writes each, what an unknown outcome leaves."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.expressions.operand import Value
from pynamodb.expressions.update import RemoveAction, SetAction
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.row_keys import guard_name
from pynamo_locking._core.write_outcome import Known
from pynamo_locking._intervals.intervals import colliding, interval_attributes_of
from pynamo_locking._io.model_doors import extents_of, lock_attribute_of, own_keys_of, writer_of
from pynamo_locking._items import conditions, keys, versions
from pynamo_locking._models.writes import prepare_save, refuse_own
from pynamo_locking._pynamodb import key_values_of
from pynamo_locking._transactions.transaction_doors import count_in_guard, items_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._intervals.intervals import IntervalAttributes, Span
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._models.writes import GuardedMixin
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.transaction import Transaction


@dataclass(frozen=True, eq=False)
class Placing(ABC):
    """A row, and the interval `span` that it is to have. Each kind of write is a subclass.

    Attributes:
        key: its new key, in DynamoDB's form.
        stored_at: its stored key; None if it is not stored, as far as is known.
        extents: its old and new intervals, as the locks of ranges see them.
    """

    #: The kind of the write, and the kinds of unknown writes that it may follow with other values. A save after an
    #: unknown update would undo it, since the instance does not show the update: if it was applied, the instance is
    #: stale.
    kind: ClassVar[str]
    follows: ClassVar[tuple[str, ...]]

    interval: IntervalAttributes
    row: GuardedMixin
    span: Span
    key: Image
    stored_at: Image | None
    extents: tuple[LockMode, ...]

    @property
    def hash_key(self) -> Any:
        """The hash key, in the model's form."""
        return key_values_of(self.row)[0]

    @property
    def stored_hash_key(self) -> Image:
        return {name: value for name, value in self.key.items() if name != self.interval.key_name}

    @cached_property
    def guard(self) -> str:
        """The name of the guard of its hash key, equal for equal hash keys however they are written."""
        [stored] = self.stored_hash_key.values()
        meta: Any = self.interval.model.Meta
        longest = own_keys_of(meta.lock_table).longest_name
        return guard_name(meta.table_name, next(iter(stored.items())), longest=longest)

    @abstractmethod
    def digest(self) -> str:
        """Return a digest of what is asked, equal for equal requests."""

    @abstractmethod
    def write(self, tx: Transaction) -> TransactionItem:
        """Add the write to a transaction."""

    def _item_in(self, tx: Transaction, *, replaces: bool) -> TransactionItem:
        """Return the row as an item of a transaction, whose locks of ranges see the old and the new interval."""
        item = items_of(tx).of(self.row, is_write=True, replaces=replaces)
        item.extents = self.extents
        return item


@dataclass(frozen=True, eq=False)
class Save(Placing):
    """Stores all values of the instance, which is stored already or not."""

    kind = "save"
    follows: ClassVar[tuple[str, ...]] = ("save",)

    condition: Condition | None = None
    checks: bool = True

    @override
    def digest(self) -> str:
        """Return a digest of the row with its new interval, without its version and lock, and of the condition."""
        values = self.row.serialize(null_check=False) | self.interval.stored_ends(self.span)
        version, lock = versions.shape_of(type(self.row)).attribute, lock_attribute_of(self.row)
        besides = {attribute.attr_name for attribute in (version, lock) if attribute is not None}
        return _digest([values[name] for name in sorted(values) if name not in besides], sorted(values), self.condition)

    @override
    def write(self, tx: Transaction) -> TransactionItem:
        item = self._item_in(tx, replaces=True)
        item.save(self.condition, checks=self.checks)
        if not self.checks:
            item.rely()  # on the stored item: the instance then knows its new version
        return item


class Move(Save):
    """Stores all values of a stored row with another interval, which the instance shows only from the write on."""

    kind = "move"
    follows = ("save", "move")

    @override
    def write(self, tx: Transaction) -> TransactionItem:
        if self.key != self.stored_at:
            _delete_stored(tx, self.row)
        self.interval.show(self.row, self.span.values)
        return super().write(tx)


@dataclass(frozen=True, eq=False)
class Update(Placing):
    """Applies actions that change the end, or the begin if the end is the range key; they show only afterwards."""

    kind = "update"
    follows = ("save", "move", "update")

    actions: list[Action]
    condition: Condition | None
    checks: bool

    @override
    def digest(self) -> str:
        return _digest(self.kind, self.actions, self.condition)

    @override
    def write(self, tx: Transaction) -> TransactionItem:
        item = self._item_in(tx, replaces=False)
        item.update(self.actions, self.condition, checks=self.checks)
        if self.checks:
            item.shown_image()
        else:
            item.rely()
        return item


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


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


# Making them


def saving(
    interval: IntervalAttributes,
    row: GuardedMixin,
    condition: Condition | None = None,
    *,
    checks: bool = True,
    was: Span | None = None,
) -> Save:
    """Return the placing of a save of a row, stored or not. `was` is its stored interval, if the caller knows it."""
    span = interval.whole(*interval.ends_of(row))
    key, extents = interval.key_of(row, span), _extents(interval, row, span, was)
    is_stored = not checks or versions.known_state(row).version is not None
    return Save(interval, row, span, key, key if is_stored else None, extents, condition, checks)


def updating(
    interval: IntervalAttributes, row: GuardedMixin, actions: list[Action], condition: Condition | None, *, checks: bool
) -> Update:
    """Return the placing of an update that changes the end of a row, or its begin if the end is the range key."""
    begin, end = interval.ends_of(row)
    changed = _literal_end(interval, ends_in(interval, actions))
    span = interval.whole(begin, changed) if interval.is_by_begin else interval.whole(changed, end)
    key = interval.key_of(row, span)
    return Update(interval, row, span, key, key, _extents(interval, row, span), actions, condition, checks)


def moving(row: GuardedMixin, begin: Any, end: Any) -> Move:
    """Return the placing of a move of a stored row. `before_save` sees it in its new interval."""
    interval = interval_attributes_of(type(row))
    span, before = interval.whole(begin, end), interval.ends_of(row)
    stored_at = keys.key_of(type(row), *key_values_of(row))
    placing = Move(interval, row, span, interval.key_of(row, span), stored_at, _extents(interval, row, span))
    try:
        interval.show(row, span.values)
        prepare_save(row, "move()")
    finally:
        interval.show(row, before)
    if placing.key != placing.stored_at:
        refuse_own(row, "delete", "move() to another range key")
    held: Any = getattr(writer_of(row), "held", None)
    if held is not None and held.item.edits and placing.key != placing.stored_at:
        raise ConfigurationError(
            f"this {type(row).__name__} is inside edit(), which saves it at its old place at the end: later changes of "
            f"a row that moves away would be lost. Use locked() and move(lock.item), or move it after the block."
        )
    return placing


def _extents(
    interval: IntervalAttributes, row: GuardedMixin, span: Span, was: Span | None = None
) -> tuple[LockMode, ...]:
    """Return what a row takes of its hash key: as its instance shows it, as it is to be, and as it was."""
    return (*extents_of(row), *(interval.extent(each) for each in (span, was) if each is not None))


def ends_in(interval: IntervalAttributes, actions: Any) -> list[Action]:
    given = actions if isinstance(actions, list) else []  # `check_actions` refuses anything else
    return [action for action in given if conditions.changed_by(action) in interval.stored]


def _literal_end(interval: IntervalAttributes, actions: list[Action]) -> Any:
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


def by_guard(placings: Iterable[Placing]) -> dict[str, list[Placing]]:
    """Return the rows of each hash key, by the name of its guard."""
    groups: dict[str, list[Placing]] = {}
    for placing in placings:
        groups.setdefault(placing.guard, []).append(placing)
    return groups


def overlapping_pair(placings: Sequence[Placing]) -> tuple[Placing, Placing] | None:
    """Return two rows of one call that overlap each other, as rows with the same key do; None if no two do."""
    for group in by_guard(placings).values():
        pair = colliding([placing.span for placing in group])
        if pair is not None:
            return group[pair[1]], group[pair[0]]
    return None


# What an instance remembers of writes with an unknown outcome


@dataclass(frozen=True)
class UnknownPlacement:
    """A write with an unknown outcome, of a `kind`; `asked` is the digest of its request."""

    write_id: str
    kind: str
    asked: str


class UnknownPlacements(tuple[UnknownPlacement, ...]):
    """The writes of an instance with an unknown outcome."""

    __slots__ = ()


def unsure_of(item: GuardedMixin) -> UnknownPlacements:
    return versions.noted(item, UnknownPlacements) or UnknownPlacements()


def note_unsure(written: Mapping[Placing, TransactionItem]) -> None:
    """Note with the instances what was written, perhaps; beside what they remember of earlier writes."""
    for placing, item in written.items():
        write = item.plan.write
        if write is not None and write.part.write_id is not None:
            unknown = UnknownPlacement(write.part.write_id, placing.kind, placing.digest())
            versions.note(placing.row, UnknownPlacements((*unsure_of(placing.row), unknown)))


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
