"""The row that guards a hash key: each transaction that changes an interval there increments the guard's version.

A guard names rows that may not be settled yet (see `transactional_reads.settle`), which a query may miss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamodb.attributes import Attribute, UnicodeAttribute
from pynamodb.constants import LIST
from pynamodb.models import Model
from typing_extensions import override

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.naming import plain
from pynamo_locking._io import flaws
from pynamo_locking._items import images
from pynamo_locking._models.attributes import VersionAttribute
from pynamo_locking._models.own_rows import OwnRows
from pynamo_locking._models.versioned import VersionedMixin
from pynamo_locking._transactions.guard_rows import ADVICE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamo_locking._core.intervals import Span
    from pynamo_locking._intervals.axis import Axis
    from pynamo_locking._io.stored import Image

#: The size limit of the names in a guard, in bytes: an item has at most 400 KB.
_MOST_BYTES: Final = 350_000


class _Raw(Attribute[Any]):
    """A list that stays in DynamoDB's form."""

    attr_type = LIST

    @override
    def serialize(self, value: Any) -> Any:
        return value

    @override
    def deserialize(self, value: Any) -> Any:
        return value


class IntervalGuard(OwnRows, VersionedMixin, Model):
    """The guard of the intervals of one hash key, a row in a table of locks. Each such table has a subclass."""

    _kind: ClassVar[str] = "lock"
    _has_format: ClassVar[bool] = True

    _is_guard: ClassVar[bool] = True

    name = UnicodeAttribute(hash_key=True)
    touched = _Raw(null=True)
    version = VersionAttribute()


_models: dict[type[Any], type[IntervalGuard]] = {}


def guards_of(axis: Axis) -> type[IntervalGuard]:
    """Return the model of the guards of a model's rows; it uses the connection of their table of locks."""
    table: Any = axis.model.Meta.lock_table  # type: ignore[attr-defined]
    connection = table._get_connection()
    model = _models.get(table)
    if model is None or model._connection is not connection:
        place = {name: getattr(table.Meta, name, None) for name in ("keys", "prefix")}
        meta = type("Meta", (), {"table_name": connection.table_name, **place})
        content = {"Meta": meta, "__module__": __name__}
        model = type(f"{table.__name__}Guard", (IntervalGuard,), content)
        model._connection = connection
        _models[table] = model
    return model


@dataclass(frozen=True)
class Touched:
    """A row that a transaction has written, perhaps not settled yet.

    `ends` are begin and end as they are stored, or only the range key if the row was removed.
    """

    hash_key: Image
    ends: tuple[dict[str, Any], ...]

    def key(self, axis: Axis) -> Image:
        """Return the key of the row."""
        return self.hash_key | {axis.key_name: self.ends[0 if axis.is_by_begin else -1]}

    def overlaps(self, axis: Axis, span: Span) -> bool:
        """Tell whether the row overlaps an interval."""
        its = axis.span_in(dict(zip(axis.stored, self.ends, strict=True))) if len(self.ends) > 1 else None
        return its is not None and its.overlaps(span)


def touched_in(guard: IntervalGuard, hash_key: Image) -> list[Touched]:
    """Return the rows that a guard names; `CorruptRow` if it is broken."""
    table, name = guard.Meta.table_name, guard.name
    what, key = f"the guard {plain(name)} in {table!r}", guard._own_keys.of(name)
    stored = {"touched": {LIST: guard.touched or []}}
    return flaws.read(lambda row: _touched(row, hash_key), stored, what, table=table, key=key, advice=ADVICE)


def _touched(stored: Mapping[str, Any], hash_key: Image) -> list[Touched]:
    found = [Touched(hash_key, tuple(each["L"])) for each in stored["touched"]["L"]]
    values = [value for each in found for end in each.ends for value in end.values()]
    if not all(each.ends for each in found) or not all(isinstance(value, (str, bytes, bool)) for value in values):
        raise ValueError(found)
    return found


def note_touched(guard: IntervalGuard, touched: Sequence[Touched]) -> None:
    """Make a guard name these rows; `ConfigurationError` if there are too many."""
    guard.touched = [{"L": list(each.ends)} for each in touched] or None
    if guard.touched and images.size_of({"touched": {LIST: guard.touched}}) > _MOST_BYTES:
        raise ConfigurationError(
            f"{len(touched):,} rows of one hash key are more than one call can write: its guard could not name them. "
            f"Use several calls."
        )
