"""The rows of unique values, which are written in one native transaction with their items.

A write gives up the values that its instance was read with, and takes those that it stores. It checks the version, and
its condition names the old values as well: so the rows are those of the stored item, also where the instance lacks some
of its attributes. A write that does not check the version would not know what it gives up, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.expressions.operand import Value
from pynamodb.expressions.update import RemoveAction, SetAction

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io.model_doors import refuse_apart, writer_of
from pynamo_locking._io.responses import foreign_row_error
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._items import conditions, expiry, unique_values, versions
from pynamo_locking._items.keys import ItemKey, key_of, label_of, storable
from pynamo_locking._pynamodb import hash_attribute_of, key_values_of, ttl_attribute_of
from pynamo_locking.exceptions import NotUnique, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pynamodb.exceptions import PynamoDBException
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._io.stored_rows import Image


class Holder(NamedTuple):
    """An item that has a unique value: its place, and its time of expiry in DynamoDB's form, if it has one."""

    table: str
    key: Image
    expires: Image | None = None

    def stored(self) -> Stored:
        return Stored({"M": {"table": {"S": self.table}, "key": {"M": self.key}}})


@dataclass
class UniqueRow:
    """What one transaction does to one row: it gives it to the item `to`, or removes it, if one of `of` has it."""

    table: type[Any]
    name: str
    value: unique_values.Value
    to: Holder | None = None
    of: list[Holder] = field(default_factory=list)

    def plan(self, error: type[PynamoDBException], token: str | None = None) -> tuple[Any, Any]:
        """Return the writer of the row, and its write. A row that another item has is taken once it has expired."""
        row = self.table(self.name)
        self.fill(row)
        writer, condition = writer_of(row), self.condition()
        writer.token = token
        if self.to is None:
            write = writer.plan_delete(condition, checks_version=False).but(is_optional=True)
        else:
            write = writer.plan_save(condition, checks_version=False, error=error)
        return writer, write

    def fill(self, row: Any) -> None:
        """Make an instance the row as it will be."""
        versions.note(row, self)
        if self.to is not None:
            row.holder = self.to.stored().values[0]["M"]
            expires = self.to.expires
            row.expires = None if expires is None else ttl_attribute_of(row).deserialize(expires["N"])

    def holders(self) -> list[ItemKey]:
        """Return which items may have the row before."""
        return [ItemKey.of(holder.table, holder.key) for holder in [*self.of, *([] if self.to is None else [self.to])]]

    def condition(self) -> Condition:
        free: Condition = Place(hash_attribute_of(self.table).attr_name).does_not_exist()
        for holder in [*self.of, *([] if self.to is None else [self.to])]:
            free |= Place("holder") == holder.stored()
        return free


def merged(several: Iterable[UniqueRows]) -> list[UniqueRow]:
    """Return the rows of the writes of one transaction: an item may take the value that another one gives up.

    Raises:
        NotUnique: two of the items want the same value; also a `TransactWriteError`.
    """
    rows: dict[str, UniqueRow] = {}
    for each in several:
        for name, value in {**each.released, **each.claimed}.items():
            row = rows.setdefault(name, UniqueRow(each.table, name, value))
            if name in each.released:
                row.of.append(each.holder)
            elif row.to is not None and each.kind is not None:
                raise _error(row, ItemKey.of(row.to.table, row.to.key), each.kind, None)
            else:
                row.to = each.holder
    return list(rows.values())


class UniqueRows:
    """The unique values that a write of an item gives up and takes.

    Args:
        kind: PynamoDB's error of the write.
        old: what the stored item is, of the attributes that matter.
        new: what it will be.

    Attributes:
        released: the values that it gives up, by the names of their rows.
        claimed: the values that it takes, or keeps with another time of expiry.
    """

    def __init__(
        self, item: Model, kind: type[PynamoDBException], old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> None:
        self.kind: type[PynamoDBException] = kind
        self._model, self._old, new = type(item), old, storable(new)
        declared = unique_values.unique_of(self._model)
        assert declared is not None  # noqa: S101 - asked for only then
        self.table: type[Any] = declared.table
        self._watched = declared.watched
        refuse_apart(type(item), self.table)
        key = key_of(self._model, *key_values_of(item))
        was, now = (unique_values.held(self._model, {**image, **key}) for image in (old, new))
        ends = expiry.time_in(new, declared.expires)
        is_moved = expiry.time_in(old, declared.expires) != ends
        self.released: dict[str, unique_values.Value] = {name: value for name, value in was.items() if name not in now}
        self.claimed: dict[str, unique_values.Value] = {
            name: value for name, value in now.items() if is_moved or name not in was
        }
        self.holder: Holder = Holder(item.Meta.table_name, key, ends)

    @cached_property
    def rows(self) -> list[tuple[Any, Any]]:
        """The writers and the writes of the rows."""
        return [row.plan(self.kind) for row in merged([self])]

    def condition(self) -> Condition | None:
        """Return the condition that the stored item has the old values; a new item may replace an expired one."""
        each = (
            Place(name) == Stored(self._old[name]) if name in self._old else Place(name).does_not_exist()
            for name in sorted(self._watched)
        )
        whole = reduce(conditions.both, each, None)
        return whole if self._old else versions.shape_of(self._model).or_expired(whole)

    def is_of(self, image: Image | None) -> bool:
        """Tell whether the stored item has the old values."""
        return unique_values.watched(self._model, image) == self._old


# What a write of an item of a model with unique values does to their rows.


def rows_of_save(
    item: Model, values: Mapping[str, Any], kind: type[PynamoDBException], *, checks_version: bool
) -> UniqueRows:
    return UniqueRows(item, kind, _read_with(item, checks_version), unique_values.watched(type(item), values))


def rows_of_delete(item: Model, kind: type[PynamoDBException], *, checks_version: bool) -> UniqueRows:
    return UniqueRows(item, kind, _read_with(item, checks_version), {})


def rows_of_update(
    item: Model, actions: Sequence[Action], kind: type[PynamoDBException], *, checks_version: bool
) -> UniqueRows | None:
    """Return what an update does to the rows; None if it changes nothing that they depend on."""
    declared = unique_values.unique_of(type(item))
    names = frozenset[str]() if declared is None else declared.watched
    touching = [action for action in actions if conditions.changed_by(action) in names]
    if not touching:
        return None
    old = _read_with(item, checks_version)
    return UniqueRows(item, kind, old, reduce(_applied, touching, old))


def _read_with(item: Model, checks_version: bool) -> Mapping[str, Any]:  # noqa: FBT001
    """Return the old values, which the instance was read with; refuse a write of whatever is stored."""
    if not checks_version:
        raise ConfigurationError(
            f"{label_of(type(item), key_values_of(item))} has values that must be unique (Meta.unique), and a write "
            f"that does not check the version cannot know which of them the stored item gives up: nothing was sent. "
            f"get() the item first, and write it without add_version_condition=False."
        )
    return versions.values_of(item)[1]


def _applied(image: Mapping[str, Any], action: Action) -> Mapping[str, Any]:
    """Return an image after an action that sets or removes a whole attribute; refuse any other."""
    changed, values = conditions.changed_by(action), action.values
    if conditions.path_of(action) == (changed,):
        if isinstance(action, RemoveAction):
            return {name: value for name, value in image.items() if name != changed}
        stored: Any = values[1] if isinstance(action, SetAction) else None
        if isinstance(stored, Value):
            return {**image, changed: stored.values[0]}
    raise ConfigurationError(
        f"{action!r} changes a value that must be unique, or the time at which it is free, to what only DynamoDB "
        f"knows: set it to a value, or remove it."
    )


def not_unique(write: Any, image: Image | None, kind: type[PynamoDBException], cause: Exception | None) -> Exception:
    """Return the error for the write of a row that another item has."""
    row = versions.noted(write.item, UniqueRow)
    holder, table = unique_values.holder_of(image), write.item.Meta.table_name
    if write.is_optional or row is None or holder in row.holders():
        return also(TransactionConflict, kind)(
            f"{write.label}, which holds a unique value, has changed; nothing was written, and a retry is safe: "
            f"{cause}",
            refused_by=write.model_and_key,
            cause=cause,
        )
    if holder is None and image is not None:
        return foreign_row_error(f"{write.label} cannot hold a unique value", table, "no holder")
    return _error(row, holder, kind, cause)


def _error(row: UniqueRow, holder: ItemKey | None, kind: type[PynamoDBException], cause: Exception | None) -> NotUnique:
    value = row.value
    what = ", ".join(f"{name} {shown!r:.80}" for name, shown in zip(value.fields, value.python(), strict=True))
    return also(NotUnique, kind)(
        f"{what} of {value.model.__name__} belongs to {holder or 'another item'} already; nothing was written.",
        fields=value.fields,
        values=value.python(),
        holder=None if holder is None else dict(holder.values),
        refused_by=None if row.to is None else (value.model, row.to.key),
        cause=cause,
    )
