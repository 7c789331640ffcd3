"""A suspended transaction: a row of its table, from which any process can continue it.

Of each item the row has its version and write id, and the attributes that change. The process that continues reads the
items again, and its commit deletes the row: so the transaction is committed once.
"""

from __future__ import annotations

import json
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from pynamo_locking._core.errors import ConfigurationError, InvalidInput
from pynamo_locking._core.row_keys import brief
from pynamo_locking._core.values import Refusal, check_levels
from pynamo_locking._core.write_outcome import Known
from pynamo_locking._io import runtime
from pynamo_locking._io.model_doors import lock_attribute_of, own_keys_of, writer_of
from pynamo_locking._io.stored_rows import (
    INTEGER,
    MAP,
    TEXT,
    TEXTS,
    Codec,
    Field,
    Place,
    Stored,
    StoredRow,
    decoded,
    encoded,
    number,
    one_of,
)
from pynamo_locking._io.transaction_record import CONTENT
from pynamo_locking._items import conditions, effects, versions
from pynamo_locking._models.writes import GuardedMixin
from pynamo_locking._pynamodb import connection_of, hash_attribute_of, known_classes_of, range_attribute_of
from pynamo_locking._transactions import commit
from pynamo_locking._transactions.options import check_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pynamodb.expressions.update import Action

    from pynamo_locking._core.row_keys import OwnKeys
    from pynamo_locking._io.stored_rows import Image
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.items import TransactionItems


_KEY: Final = "key"

#: What a row says about an item: `known` if it was there, and `op` if it was not only read. As it is read, it has also
#: the `values` of its key, and `actions` unless it is deleted.
_ITEM: Final = Codec(
    SimpleNamespace,
    table=Field("table", TEXT),
    model=Field("model", TEXT, ""),
    key=Field("key", MAP),
    known=Field("known", MAP, None),
    op=Field("op", one_of("update", "delete"), None),
)
_KNOWN: Final = Codec(Known, version=Field("version", INTEGER, None), write_id=Field("write_id", TEXT, None))
_CHANGES: Final = Codec(
    SimpleNamespace, set=Field("set", MAP), deep=Field("deep", MAP, {}), remove=Field("remove", TEXTS)
)

#: So many lists and maps are around a value in the row: what is nested as deeply as DynamoDB allows is stored as text.
_AROUND: Final = 4

#: What to do about a broken row.
_ADVICE: Final = "Delete the row, and begin a new transaction."


#: An item, and what to do to it; None: delete it.
_Planned = tuple[GuardedMixin, "list[Action] | None"]


def suspend(items: TransactionItems, id_: str, idempotency_key: str | None, keep_s: float) -> str:
    """Store a transaction, in the row that it was resumed from if it was; return the id to resume it by."""
    resumed = _resumed(items)
    entries = [{"M": _entry(item)} for item in items.by_key.values() if _is_kept(item)]
    content = {"items": {"L": entries}, **({} if idempotency_key is None else {_KEY: {"S": idempotency_key}})}
    row = items.table()(commit.SUSPENDED + id_) if resumed is None else resumed.instance
    expiry_s = runtime.current.time_ms() // 1000 + int(keep_s)
    expires, name = row.get_attributes()["expires"].attr_name, own_keys_of(type(row)).hash_name
    actions: list[Action] = [Place(CONTENT).set(Stored({"M": content})), Place(expires).set(Stored(number(expiry_s)))]
    condition = Place(name).does_not_exist() if resumed is None else None
    writer_of(row).update(actions, condition, checks_version=True)
    return id_ if resumed is None else commit.suspended_id(resumed)


def _resumed(items: TransactionItems) -> TransactionItem | None:
    """Return the row of the suspended transaction that this one continues."""
    return next(
        (each for each in items.by_key.values() if each.plan.write is not None and commit.suspended_id(each)), None
    )


def _is_kept(item: TransactionItem) -> bool:
    """Tell whether an item is remembered. Guards are counted again when the writes of their items are planned again."""
    return item.is_read or (item.plan.write is not None and not commit.is_own_row(item))


def _entry(item: TransactionItem) -> Image:
    """Return what is stored of an remembered, whose write from now on requires the remembered as it is known.

    Raises:
        Conflict: a condition of the caller is not met; `StaleVersion` if the remembered is not the known one.
        ConfigurationError: it is the guard of intervals, of which no other process could name the model.
    """
    if getattr(item.model, "_is_guard", False):
        raise ConfigurationError("a transaction that places intervals cannot be suspended: place them after `resume`.")
    if item.plan.write is not None and not item.plan.is_checked:
        item.pin()
    item.load()
    after = item.shown_image()
    if not item.holds(item.stored or None):
        raise item.refused(item.stored or None)
    remembered = SimpleNamespace(table=_place_of(item.model), model=item.model.__name__, key=item.key)
    remembered.known = None if item.is_absent else _KNOWN.encode(item.before)
    if item.plan.write is None or commit.is_own_row(item):
        remembered.op = None
        return _ITEM.encode(remembered)
    remembered.op = "delete" if after is None else "update"
    return _ITEM.encode(remembered) | ({} if after is None else _CHANGES.encode(_changes(item, after)))


def _changes(item: TransactionItem, after: Image) -> SimpleNamespace:
    shape, lock = versions.shape_of(item.model), lock_attribute_of(item.model)
    ours = {each.attr_name for each in (shape.attribute, lock) if each is not None} | {shape.write_id_name}
    set_, removed = effects.difference(item.stored, after, keys=item.key)
    kept = {name: value for name, value in set_.items() if name not in ours}
    deep = {name: {"S": json.dumps(value, default=encoded)} for name, value in kept.items() if _is_deep(value)}
    flat = {name: value for name, value in kept.items() if name not in deep}
    return SimpleNamespace(set=flat, deep=deep, remove=[name for name in removed if name not in ours])


def _is_deep(value: Image) -> bool:
    try:
        check_levels(value, _AROUND)
    except Refusal:
        return True
    return False


def _from_text(text: str) -> Image:
    return cast("Image", decoded(json.loads(text), text.encode()))


def resume(
    items: TransactionItems, id_: str, models: Sequence[type[GuardedMixin]]
) -> tuple[str | None, list[_Planned]]:
    """Rely on all that a suspended transaction had read; return its idempotency key, and its writes to plan again.

    The commit deletes its row, on condition that no other process has gone on with it meanwhile. For the errors see
    `Transaction.resume`.
    """
    if not isinstance(id_, str):
        raise InvalidInput(f"the id of a suspended transaction is a text, not {id_!r:.80}.")
    if _resumed(items) is not None:
        raise ConfigurationError("a transaction can resume one suspended transaction: use another one for the next.")
    table = items.table(next((model for model in models if hasattr(model.Meta, "transaction_table")), None))
    row = items.counter(table, commit.SUSPENDED + id_)
    if row.is_absent:
        raise table.DoesNotExist(f"no transaction {id_!r:.80} is suspended: it was committed, or has expired.")
    by_table: dict[str, list[type[GuardedMixin]]] = {}
    for model in (*models, table):
        by_table.setdefault(_place_of(model), []).append(model)
    of_row = StoredRow(f"the row of the suspended transaction {id_!r:.80}", row.table, row.key, _ADVICE)
    key, entries = of_row.read(row.stored, CONTENT, lambda content: _content(content["M"], by_table, _place_of(table)))
    planned = list[_Planned]()
    for (of_table, name), group in groupby(sorted(entries, key=_model_of), _model_of):
        of_model = _chosen(by_table.get(of_table, []), name)
        if of_model is None:
            raise ConfigurationError(
                f"the suspended transaction {id_!r:.80} has items of {of_table!r}: name their model, {brief(name)}."
            )
        planned += _found(items, of_model, list(group))
    row.delete(None, checks=True)
    return key, planned


def _content(
    content: Mapping[str, Any], models: Mapping[str, list[type[GuardedMixin]]], own: str
) -> tuple[str | None, list[SimpleNamespace]]:
    key = content[_KEY]["S"] if _KEY in content else None
    return key, [_remembered(each["M"], models, own) for each in content["items"]["L"]]


def _remembered(entry: Mapping[str, Any], models: Mapping[str, list[type[GuardedMixin]]], own: str) -> SimpleNamespace:
    item: SimpleNamespace = _ITEM.decode(entry)
    if item.op is not None and item.table == own:  # rows of the table itself are only relied on
        raise ValueError(item.op)
    item.actions = None
    if item.op == "update":
        changes = _CHANGES.decode(entry)
        values = changes.set | {name: _from_text(text["S"]) for name, text in changes.deep.items()}
        actions: list[Action] = [Place(name).set(Stored(value)) for name, value in values.items()]
        actions += [Place(name).remove() for name in changes.remove]
        item.actions = actions or [conditions.nothing()]
    model = _chosen(models.get(item.table, []), item.model)
    item.values = (None, None) if model is None else _values(model, item.key)
    item.known = None if item.known is None else _KNOWN.decode(item.known)
    return item


def _place_of(model: type[GuardedMixin]) -> str:
    """Return the table of a model; of rows of ours also their prefix, if items of others are in that table."""
    table: str = connection_of(model).table_name
    keys: OwnKeys | None = getattr(model, "_own_keys", None)
    return table if keys is None else keys.place(table)


def _chosen(models: list[type[GuardedMixin]], name: str) -> type[GuardedMixin] | None:
    """Return the model of an item among those of its table, and the classes of each: by its name, or the only one."""
    known = [each for model in models for each in known_classes_of(model)]
    named = next((each for each in known if each.__name__ == name), None)
    return models[0] if named is None and len(models) == 1 else cast("type[GuardedMixin] | None", named)


def _model_of(entry: SimpleNamespace) -> tuple[str, str]:
    return entry.table, entry.model


def _found(items: TransactionItems, model: type[GuardedMixin], entries: list[SimpleNamespace]) -> Iterator[_Planned]:
    check_model(model)
    found = items.find_all(model, [entry.values for entry in entries])
    for item, entry in zip(found, entries, strict=True):
        _check(item, entry.known)
        if entry.op is not None:
            yield item.instance, entry.actions


def _values(model: type[GuardedMixin], key: Image) -> tuple[Any, Any]:
    attributes = (hash_attribute_of(model), range_attribute_of(model))
    values = [None if each is None else each.deserialize(key[each.attr_name][each.attr_type]) for each in attributes]
    return values[0], values[1]


def _check(item: TransactionItem, known: Known | None) -> None:
    """Rely on an item, and refuse it if it was changed since the transaction was suspended."""
    is_same = item.before == (known or Known()) and item.is_absent == (known is None)
    item.before = known or Known()
    item.check()
    if not is_same:
        raise item.refused(item.stored or None)
