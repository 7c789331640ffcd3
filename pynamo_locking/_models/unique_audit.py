"""Compares the rows of unique values with the items that have them, and mends what other writers have left."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pynamodb.exceptions import TransactWriteError
from pynamodb.pagination import PageIterator

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import protocol, runtime
from pynamo_locking._io.batch_requests import transact_get
from pynamo_locking._io.model_doors import lock_row_of_key, own_keys_of
from pynamo_locking._io.stored_rows import Place, Stored
from pynamo_locking._io.write_intents import Resolver, conflicts
from pynamo_locking._items import conditions as conditions_module
from pynamo_locking._items import expiry, unique_values, versions
from pynamo_locking._items.keys import ItemKey, stored_keys
from pynamo_locking._models.tables import is_shared
from pynamo_locking._pynamodb import class_of, connection_of, discriminator_of, hash_attribute_of
from pynamo_locking._writes import send
from pynamo_locking._writes.send import RowWrite
from pynamo_locking._writes.unique_rows import Holder, UniqueRow
from pynamo_locking.exceptions import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._models.attributes import PlacedMixin


#: How often a problem is read again that other writers change meanwhile.
_MOST_READS: Final = 3

MISSING: Final = "missing row"
STRAY: Final = "stray row"
DUPLICATE: Final = "duplicate"


@dataclass(frozen=True)
class UniqueProblem:
    """A unique value whose row and items do not fit.

    Attributes:
        kind: ``"missing row"``: an item has the value, and its row is missing, or another item has it without having
            the value. ``"stray row"``: a row without an item that has its value. ``"duplicate"``: several items have
            the value; to be decided by people.
        row: the name of the row.
        fields: the names of the attributes.
        values: their values; empty for a stray row.
        items: the keys of the items that have the value, as DynamoDB keeps them.
        holder: the key of the item that has the row; None without a row.
        is_repaired: whether it was mended.
    """

    kind: str
    row: str
    fields: tuple[str, ...]
    values: tuple[Any, ...]
    items: tuple[dict[str, Any], ...]
    holder: dict[str, Any] | None
    is_repaired: bool = False


@dataclass(frozen=True)
class UniqueReport:
    """What `check_unique` and `repair_unique` have found.

    Attributes:
        items: how many items were read.
        rows: how many rows were.
        problems: what does not fit.
    """

    items: int
    rows: int
    problems: tuple[UniqueProblem, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is left to do."""
        return all(problem.is_repaired for problem in self.problems)


class _Seen(NamedTuple):
    """The items of a value, and its row, at one moment; None for what is absent."""

    items: dict[ItemKey, tuple[Image, Image | None]]
    row: Image | None


def check(model: type[PlacedMixin], *, repairs: bool) -> UniqueReport:
    """Compare all items of a model with its rows: see `VersionedMixin.check_unique`."""
    declared = unique_values.unique_of(model)
    if declared is None:
        raise ConfigurationError(f"{model.__name__} has no unique values: name them in Meta.unique.")
    audit = _Audit(model, declared)
    problems = [found for name in audit.suspects() if (found := audit.settled(name, repairs=repairs)) is not None]
    return UniqueReport(audit.items, audit.rows, tuple(problems))


class _Audit:
    def __init__(self, model: type[PlacedMixin], declared: unique_values.Unique) -> None:
        self._model, self._table, self._expires = model, declared.table, declared.expires
        self._watched = sorted(declared.watched)
        self._to_table = connection_of(model)
        meta = model.Meta
        beside: list[Any] = [getattr(meta, name, None) for name in ("unique_table", "lock_table", "transaction_table")]
        self._shared_tables = [
            own_keys_of(each) for each in beside if is_shared(each) and each.Meta.table_name == meta.table_name
        ]
        self._prefixes = {unique_values.prefix_of(model, group): group for group in declared.groups}
        self._having: dict[str, dict[ItemKey, Image]] = defaultdict(dict)
        self.items = self.rows = 0

    def suspects(self) -> list[str]:
        """Scan items and rows, which change meanwhile; return the names of the rows that may not fit."""
        expires = dict[ItemKey | None, Any]()
        for image in _scanned(self._model):
            if self._is_mine(image):
                self.items += 1
                key = {key.attr_name: image[key.attr_name] for key in stored_keys(self._model)}
                expires[ItemKey.of(self._model.Meta.table_name, key)] = self._expires_of(image)
                for name in unique_values.held(self._model, image) if not self._is_over(image) else ():
                    self._having[name][ItemKey.of(self._model.Meta.table_name, key)] = key
        right, strays = set[str](), dict[str, None]()
        for row in _scanned(self._table):
            name = own_keys_of(self._table).name_in(row) or ""
            if self._group_of(name) is None or versions.shape_of(self._table).is_expired(row):
                continue
            self.rows += 1
            holder = unique_values.holder_of(row)
            is_same = holder in expires and expires[holder] == self._expires_of(row, self._table)
            if is_same and list(self._having.get(name, ())) == [holder]:
                right.add(name)
            else:
                strays[name] = None
        return [*(name for name in self._having if name not in right and name not in strays), *strays]

    def settled(self, name: str, *, repairs: bool) -> UniqueProblem | None:
        """Look at one value again, at one moment, and mend it if wanted; None if it is right."""
        resolver = Resolver()
        for looks in range(_MOST_READS):
            seen = self._read(name, resolver)
            problem = self._judge(name, seen)
            if problem is None or problem.kind == DUPLICATE or not repairs:
                return problem
            try:
                self._mend(name, problem, seen)
            except Conflict:
                if looks + 1 == _MOST_READS:
                    return problem
            else:
                return replace(problem, is_repaired=True)
        raise AssertionError

    def _read(self, name: str, resolver: Resolver) -> _Seen:
        row_key = own_keys_of(self._table).of(name)
        keys = dict(self._having.get(name, {}))
        while True:
            gets = [_get(self._table, row_key), *(_get(self._model, key) for key in keys.values())]
            row, *images = transact_get(self._to_table.connection, gets)
            versions.refuse_newer(self._table, row)
            intents = [
                (place, intent)
                for place, image in [
                    (lock_row_of_key(self._table, row_key), row),
                    *(
                        (lock_row_of_key(self._model, key), image)
                        for key, image in zip(keys.values(), images, strict=True)
                    ),
                ]
                if place is not None and (intent := place.state(image).intent) is not None
            ]
            holder = unique_values.holder_of(row)
            if intents:
                with conflicts(TransactWriteError):
                    resolver.resolve(*intents)
            elif holder is None or holder in keys or holder.table != self._model.Meta.table_name:
                items = dict(zip(keys, zip(keys.values(), images, strict=True), strict=True))
                return _Seen(items, row)
            elif row is not None:
                keys[holder] = row["holder"]["M"]["key"]["M"]

    def _judge(self, name: str, seen: _Seen) -> UniqueProblem | None:
        having = {
            key: image
            for key, (_, image) in seen.items.items()
            if image is not None and not self._is_over(image) and name in unique_values.held(self._model, image)
        }
        row = versions.shape_of(self._table).unexpired(seen.row)
        holder = unique_values.holder_of(row)
        values = next((unique_values.held(self._model, image)[name].python() for image in having.values()), ())
        is_foreign = holder is not None and holder.table != self._model.Meta.table_name
        if len(having) + is_foreign > 1 or (row is not None and holder is None):
            kind = DUPLICATE
        elif having and (
            holder is None
            or holder not in having
            or self._expires_of(having[holder]) != self._expires_of(row, self._table)
        ):
            kind = MISSING
        elif row is not None and not having and not is_foreign:
            kind = STRAY
        else:
            return None
        shown = None if holder is None else dict(holder.values)
        return UniqueProblem(
            kind, name, self._group_of(name) or (), values, tuple(dict(key.values) for key in having), shown
        )

    def _mend(self, name: str, problem: UniqueProblem, seen: _Seen) -> None:
        """Write or remove the row, on condition that the items and the row are what was seen."""
        table, holder = self._model.Meta.table_name, unique_values.holder_of(seen.row)
        before = [Holder(table, key) for item, (key, _) in seen.items.items() if item == holder]
        row = UniqueRow(self._table, name, unique_values.Value(self._model, (), ()), of=before)
        if problem.kind == MISSING:
            [(key, image)] = [
                (key, image)
                for key, image in seen.items.values()
                if image is not None and not self._is_over(image) and name in unique_values.held(self._model, image)
            ]
            row.to = Holder(table, key, expiry.time_in(image, self._expires))
        writer, write = row.plan(TransactWriteError)
        needed = writer.row_write(write.but(is_optional=False))
        rows = [*(self._unchanged(key, image) for key, image in seen.items.values()), needed]
        send.send(send.Work(self._to_table.connection, rows, runtime.current.token()))

    def _unchanged(self, key: Image, image: Image | None) -> RowWrite:
        """Return the check that an item has the values that were seen."""
        names, row = [hash_attribute_of(self._model).attr_name, *self._watched], lock_row_of_key(self._model, key)
        conditions = [
            Place(name).does_not_exist() if image is None or name not in image else Place(name) == Stored(image[name])
            for name in names
        ]
        condition = reduce(conditions_module.both, conditions, None)
        values: list[Any] = [next(iter(stored.values())) for stored in key.values()]
        hash_key, range_key = [*values, None][:2]
        kwargs = self._to_table.get_operation_kwargs(
            hash_key, range_key=range_key, condition=condition, return_values_on_condition_failure="ALL_OLD"
        )
        if row is not None:
            protocol.merge(kwargs, *protocol.has_no_intent(row.attribute))
        return RowWrite({"ConditionCheck": kwargs}, row)

    def _is_mine(self, image: Image) -> bool:
        if any(keys.name_in(image) is not None for keys in self._shared_tables):
            return False
        attribute = discriminator_of(self._model)
        return attribute is None or issubclass(class_of(self._model, image) or object, self._model)

    def _is_over(self, image: Image) -> bool:
        return expiry.is_past(expiry.time_in(image, self._expires))

    def _expires_of(self, image: Mapping[str, Any] | None, table: Any = None) -> Any:
        name = self._expires if table is None else expiry.attribute_name(table)
        stored = expiry.time_in(image, name)
        return None if stored is None else int(float(stored["N"]))

    def _group_of(self, name: str) -> tuple[str, ...] | None:
        return next((group for prefix, group in self._prefixes.items() if name.startswith(prefix)), None)


def _scanned(model: type[PlacedMixin]) -> Iterator[Image]:
    pages: PageIterator[Any] = PageIterator(connection_of(model).scan, (), {"consistent_read": True})
    for page in pages:
        yield from page["Items"]


def _get(model: type[PlacedMixin], key: Image) -> dict[str, Any]:
    return {"Get": {"TableName": model.Meta.table_name, "Key": key}}
