"""The rows of unique values, which are written in one native transaction with their items.

A write names in its condition the values that it expects the stored item to have, and adds and removes their rows. So
the rows are those of the stored item, whatever the instance was: what an instance remembers is a hint, which saves a
read. If the hint is wrong, the refusal shows the stored item, and the write is sent again with its values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.expressions.operand import Value
from pynamodb.expressions.update import RemoveAction, SetAction

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.values import canonical_item
from pynamo_locking._io.model_doors import writer_of
from pynamo_locking._io.responses import foreign_row_error
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._items import conditions, expiry, unique_values, versions
from pynamo_locking._items.keys import ItemKey, key_of
from pynamo_locking._pynamodb import connection_of, hash_attribute_of, key_values_of, ttl_attribute_of
from pynamo_locking.exceptions import NotUnique, TransactionConflict, also

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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
    for claims in several:
        for name, value in {**claims.released, **claims.claimed}.items():
            row = rows.setdefault(name, UniqueRow(claims.table, name, value))
            if name in claims.released:
                row.of.append(claims.holder)
            elif row.to is not None and claims.kind is not None:
                raise _error(value, ItemKey.of(row.to.table, row.to.key), claims.kind, None)
            else:
                row.to = claims.holder
    return list(rows.values())


class UniqueRows:
    """The unique values that a write of an item gives up and takes.

    Args:
        kind: PynamoDB's error of the write.
        change: returns what the item will be, given what it is, of the attributes that matter.

    Attributes:
        old: what the stored item is expected to be, of these attributes.
        released: the values that it gives up, by the names of their rows.
        claimed: the values that it takes, or keeps with another time of expiry.
    """

    table: type[Any]
    old: Mapping[str, Any]
    released: dict[str, unique_values.Value]
    claimed: dict[str, unique_values.Value]
    holder: Holder

    def __init__(
        self,
        item: Model,
        kind: type[PynamoDBException],
        change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        old: Mapping[str, Any] | None = None,
    ) -> None:
        self.item: Model = item
        self.kind: type[PynamoDBException] = kind
        self._change = change
        declared = unique_values.unique_of(type(item))
        assert declared is not None  # noqa: S101 - asked for only then
        self.table, self._expires, self._watched = declared.table, declared.expires, declared.watched
        _check_place(item, self.table)
        self._key = key_of(type(item), *key_values_of(item))
        self.expect(versions.values_of(item)[1] if old is None else old)

    def expect(self, old: Mapping[str, Any]) -> None:
        """Plan for a stored item with these values."""
        self.old, new, model = old, canonical_item(self._change(old)), type(self.item)
        was, now = unique_values.held(model, {**old, **self._key}), unique_values.held(model, {**new, **self._key})
        ends = expiry.time_in(new, self._expires)
        is_moved = expiry.time_in(old, self._expires) != ends
        self.released = {name: value for name, value in was.items() if name not in now}
        self.claimed = {name: value for name, value in now.items() if is_moved or name not in was}
        self.holder = Holder(self.item.Meta.table_name, self._key, ends)
        self._rows: list[tuple[Any, Any]] | None = None

    @property
    def rows(self) -> list[tuple[Any, Any]]:
        """The writers and the writes of the rows."""
        if self._rows is None:
            self._rows = [row.plan(self.kind) for row in merged([self])]
        return self._rows

    def condition(self) -> Condition | None:
        """Return the condition that the stored item has the values that are expected."""
        each = (
            Place(name) == Stored(self.old[name]) if name in self.old else Place(name).does_not_exist()
            for name in sorted(self._watched)
        )
        return reduce(conditions.both, each, None)

    def learns(self, image: Image | None) -> bool:
        """Expect the values of the stored item that came with a refusal; False if these were expected."""
        seen = unique_values.watched(type(self.item), image)
        if seen == self.old:
            return False
        self.expect(seen)
        return True


def _check_place(item: Model, table: type[Model]) -> None:
    mine, rows = connection_of(item).connection, connection_of(table).connection
    if (mine.host, mine.region) != (rows.host, rows.region):
        raise ConfigurationError(
            f"{type(item).__name__} is in {mine.region} ({mine.host or 'AWS'}), and the table of its unique values in "
            f"{rows.region} ({rows.host or 'AWS'}): give both the same Meta.region and Meta.host."
        )


# What a write of an item of a model with unique values does to their rows.


def claims_of_delete(item: Model, kind: type[PynamoDBException]) -> UniqueRows:
    """Return what a delete does to the rows."""
    return UniqueRows(item, kind, lambda _: {})


def claims_of_update(item: Model, actions: Sequence[Action], kind: type[PynamoDBException]) -> UniqueRows | None:
    """Return what an update does to the rows; None if it changes nothing that they depend on."""
    declared = unique_values.unique_of(type(item))
    names = frozenset[str]() if declared is None else declared.watched
    touching = [action for action in actions if conditions.path_of(action)[0].partition("[")[0] in names]
    return UniqueRows(item, kind, lambda old: reduce(_applied, touching, old)) if touching else None


def _applied(image: Mapping[str, Any], action: Action) -> Mapping[str, Any]:
    """Return an image after an action that sets or removes a whole attribute; refuse any other."""
    path, values = conditions.path_of(action), action.values
    if len(path) == 1 and "[" not in path[0]:
        if isinstance(action, RemoveAction):
            return {name: value for name, value in image.items() if name != path[0]}
        stored: Any = values[1] if isinstance(action, SetAction) else None
        if isinstance(stored, Value):
            return {**image, path[0]: stored.values[0]}
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
            cause=cause,
        )
    if holder is None and image is not None:
        return foreign_row_error(f"{write.label} cannot hold a unique value", table, "no holder")
    return _error(row.value, holder, kind, cause)


def _error(
    value: unique_values.Value, holder: ItemKey | None, kind: type[PynamoDBException], cause: Exception | None
) -> NotUnique:
    what = ", ".join(f"{name} {shown!r:.80}" for name, shown in zip(value.fields, value.python(), strict=True))
    return also(NotUnique, kind)(
        f"{what} of {value.model.__name__} belongs to {holder or 'another item'} already; nothing was written.",
        fields=value.fields,
        values=value.python(),
        holder=None if holder is None else dict(holder.values),
        cause=cause,
    )
