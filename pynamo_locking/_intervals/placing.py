"""New places of rows, how a transaction writes each row, and what an instance remembers of unknown outcomes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.expressions.operand import Value
from pynamodb.expressions.update import RemoveAction, SetAction

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.intervals import colliding
from pynamo_locking._core.naming import guard_name
from pynamo_locking._core.outcome import Known
from pynamo_locking._items import clauses, expiry, keys, knowledge, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamo_locking._core.intervals import Span
    from pynamo_locking._intervals.axis import Axis
    from pynamo_locking._io.stored import Image
    from pynamo_locking._models.writing import GuardedMixin
    from pynamo_locking._transactions.member import Member
    from pynamo_locking._transactions.transaction import Transaction

#: Where an instance notes its writes with an unknown outcome.
_NAME: Final = "_pynamo_locking_unsure"

#: The kinds of writes. A save stores all values of the instance. A move does too, with another interval, which the
#: instance shows only afterwards. An update applies actions, whose result the instance does not show before.
SAVE: Final = "save"
MOVE: Final = "move"
UPDATE: Final = "update"

#: The kinds of unknown writes that each kind may follow with other values. A save after an unknown update would undo
#: it, since the instance does not show the update: if the update was applied, the instance is stale.
_FOLLOWS: Final = {SAVE: (SAVE,), MOVE: (SAVE, MOVE), UPDATE: (SAVE, MOVE, UPDATE)}


@dataclass(frozen=True)
class Unsure:
    """A write with an unknown outcome; `asked` is a digest of its request."""

    write_id: str
    kind: str
    asked: str

    def may_be_followed_by(self, kind: str) -> bool:
        """Tell whether a write of that kind, with other values, undoes nothing that its caller has not seen."""
        return self.kind in _FOLLOWS[kind]


def unsure_of(item: GuardedMixin) -> tuple[Unsure, ...]:
    """Return the writes of an instance with an unknown outcome."""
    known: tuple[Unsure, ...] = vars(item).get(_NAME, ())
    return known


def note_unsure(item: GuardedMixin, unsure: Unsure) -> None:
    """Remember a write with an unknown outcome."""
    vars(item)[_NAME] = (*unsure_of(item), unsure)


def forget_unsure(item: GuardedMixin) -> None:
    """Forget the writes, whose outcome is known now."""
    vars(item).pop(_NAME, None)


class Memory:
    """The state of an instance before it became part of a transaction."""

    def __init__(self, item: GuardedMixin) -> None:
        self._item = item
        self._state, self._values = dict(vars(item)), dict(item.attribute_values)  # the dict itself is in the state

    def restore(self) -> None:
        """Restore the state, except for the remembered writes."""
        state, unsure = vars(self._item), unsure_of(self._item)
        state.clear()
        state.update(self._state)
        self._item.attribute_values.clear()
        self._item.attribute_values.update(self._values)
        if unsure:
            state[_NAME] = unsure


@dataclass
class Placing:
    """A row, and its new interval.

    Attributes:
        row: the instance.
        span: its new interval.
        write: adds the write to a transaction, and returns the member.
        kind: of the write: `SAVE`, `MOVE` or `UPDATE`.
        asked: returns a digest of the request, equal for equal requests.
        hash_key: its hash key, as the model has it.
        key: its new key, in DynamoDB's form.
        guard: the name of the guard of its hash key, equal for equal hash keys however they are written.
        stored_at: its stored key, in DynamoDB's form; None if it is not stored, as far as the caller knows.
        is_adopted: whether an earlier call with an unknown outcome has stored it at its new key.
        member: what `write` has returned.
    """

    axis: Axis
    row: GuardedMixin
    span: Span
    write: Callable[[Transaction], Member]
    kind: str
    asked: Callable[[], str]
    hash_key: Any = field(init=False)
    key: Image = field(init=False)
    guard: str = field(init=False)
    stored_at: Image | None = field(default=None, init=False)
    is_adopted: bool = field(default=False, init=False)
    member: Member | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.hash_key = self.row._key_values()[0]
        edge = self.span.lower if self.axis.is_by_begin else self.span.upper
        assert edge is not None  # noqa: S101 - `whole` has checked it
        self.key = keys.key_of(type(self.row), self.hash_key, edge.value)
        [stored] = self.stored_hash_key.values()
        meta: Any = self.axis.model.Meta
        longest = meta.lock_table._own_keys.longest_name
        self.guard = guard_name(meta.table_name, next(iter(stored.items())), longest=longest)

    @property
    def stored_hash_key(self) -> Image:
        """Its hash key, in DynamoDB's form."""
        return {name: value for name, value in self.key.items() if name != self.axis.key_name}

    @property
    def leaves(self) -> Image | None:
        """Its stored key, as far as is known."""
        return self.key if self.is_adopted else self.stored_at

    @property
    def unsure(self) -> Unsure | None:
        """The write, once there is one, to be remembered if its outcome is unknown."""
        write = None if self.member is None else self.member.write
        if write is None or write.part.write_id is None:
            return None
        return Unsure(write.part.write_id, self.kind, self.asked())


def whole(axis: Axis, begin: Any, end: Any) -> Span:
    """Return an interval of a row; refuse ends that are missing, do not fit the model, or are not in order."""
    for value, name in zip((begin, end), axis.names, strict=True):
        axis.value(value, name)
    return axis.span(begin, end)


def _values(axis: Axis, row: GuardedMixin, span: Span, condition: Condition | None = None) -> str:
    """Return a digest of the row as stored with that interval, without its version and lock."""
    values = row.serialize(null_check=False) | dict(zip(axis.stored, axis.ends(span), strict=True))
    version, lock = versions.shape_of(type(row)).attribute, row._lock_attribute()
    besides = {attribute.attr_name for attribute in (version, lock) if attribute is not None}
    return _digest([values[name] for name in sorted(values) if name not in besides], sorted(values), condition)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def saving(axis: Axis, row: GuardedMixin, condition: Condition | None = None, *, checks: bool = True) -> Placing:
    """Return the placing of a save of a row, stored or not."""

    def write(tx: Transaction) -> Member:
        member = tx._members.of(row, is_write=True, replaces=True)
        member.save(condition, checks=checks)
        if not checks:
            member.rely()  # on the stored item: the instance then knows its new version
        return member

    span = whole(axis, *(getattr(row, name) for name in axis.names))
    placing = Placing(axis, row, span, write, SAVE, lambda: _values(axis, row, span, condition))
    if not checks or knowledge.known(row).version is not None:
        placing.stored_at = placing.key
    return placing


def updating(
    axis: Axis, row: GuardedMixin, end: Any, actions: list[Action], condition: Condition | None, *, checks: bool
) -> Placing:
    """Return the placing of an update that changes the end of a row, or its begin if the end is the range key."""

    def write(tx: Transaction) -> Member:
        member = tx._members.of(row, is_write=True, replaces=False)
        member.update(actions, condition, checks=checks)
        if checks:
            member.look()
        else:
            member.rely()
        return member

    fixed = getattr(row, axis.names[0 if axis.is_by_begin else 1])
    ends = (fixed, end) if axis.is_by_begin else (end, fixed)
    placing = Placing(axis, row, whole(axis, *ends), write, UPDATE, lambda: _digest(UPDATE, actions, condition))
    placing.stored_at = placing.key
    return placing


def moving(axis: Axis, row: GuardedMixin, begin: Any, end: Any) -> Placing:
    """Return the placing of a move of a stored row."""

    def write(tx: Transaction) -> Member:
        if placing.key != placing.leaves:
            _leave(tx, row)
        for name, value in zip(axis.names, (begin, end), strict=True):
            setattr(row, name, value)
        member = tx._members.of(row, is_write=True, replaces=True)
        member.save(None, checks=True)
        return member

    span = whole(axis, begin, end)
    placing = Placing(axis, row, span, write, MOVE, lambda: _values(axis, row, span))
    placing.stored_at = keys.key_of(type(row), *row._key_values())
    return placing


def _leave(tx: Transaction, row: GuardedMixin) -> None:
    """Delete the stored row, and make the instance a new row."""
    old = type(row)()
    old.attribute_values = dict(row.attribute_values)
    vars(old).update({name: value for name, value in vars(row).items() if name != "attribute_values"})
    known = tx._members.written(row)
    is_same = known is not None and known.item is row
    member = known if known is not None and is_same else tx._members.of(old, is_write=True, replaces=False)
    member.item = old  # also if it was the instance, which becomes the new row
    expires = expiry.attribute_name(type(row))
    member.delete(None if expires is None else expiry.alive(expires), checks=True)
    tx._count_in_guard(member)
    knowledge.set_known(row, Known())
    lock = row._lock_attribute()
    for name in [name for name, each in row.get_attributes().items() if lock is not None and each is lock]:
        row.attribute_values.pop(name, None)


def ends_in(axis: Axis, actions: Any) -> list[Action]:
    """Return the actions of an update that change begin or end."""
    given = actions if isinstance(actions, list) else []  # `check_actions` refuses anything else
    return [action for action in given if clauses.path_of(action)[0] in axis.stored]


def literal_end(axis: Axis, actions: list[Action]) -> Any:
    """Return the value that an action assigns to the end that is not the range key; None if it removes the end."""
    [action, *more] = actions
    path = clauses.path_of(action)
    if axis.key_name in {clauses.path_of(each)[0] for each in actions}:
        raise ConfigurationError(f"{axis.key_name!r} is the range key, which no update can change: use move().")
    if isinstance(action, RemoveAction) and len(path) == 1 and not more:
        return None
    value = action.values[1] if isinstance(action, SetAction) else None
    if more or len(path) > 1 or not isinstance(value, Value):
        raise ConfigurationError(
            f"{action!r} would change {path[0]!r} to a value that only DynamoDB knows, so overlaps could not be "
            f"checked: set it to a value, or use move()."
        )
    attribute: Any = axis.model.get_attributes()[axis.other]
    return attribute.deserialize(attribute.get_value(value.values[0]))


def by_guard(placings: Sequence[Placing]) -> dict[str, list[Placing]]:
    """Return the rows of each hash key, by the name of its guard."""
    groups: dict[str, list[Placing]] = {}
    for placing in placings:
        groups.setdefault(placing.guard, []).append(placing)
    return groups


def check_together(placings: Sequence[Placing]) -> tuple[Placing, Placing] | None:
    """Return two rows of one call that overlap each other, None if no two do; refuse two rows with the same key."""
    seen = list[Any]()
    for placing in placings:
        if placing.key in seen:
            raise ConfigurationError(f"two of the rows have the same key: {placing.key}. Each row can be stored once.")
        seen.append(placing.key)
    for group in by_guard(placings).values():
        pair = colliding([placing.span for placing in group])
        if pair is not None:
            return group[pair[1]], group[pair[0]]
    return None
