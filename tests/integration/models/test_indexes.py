"""Queries, scans and counts by an index: kinds of models, what the index projects, and every way to read it."""

from __future__ import annotations

import asyncio
import itertools
import types
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.indexes import (
    AllProjection,
    GlobalSecondaryIndex,
    IncludeProjection,
    KeysOnlyProjection,
    LocalSecondaryIndex,
)
from pynamodb.models import Model

from pynamo_locking import ExpiringMixin, LockableModel, LockAttribute, TTLAttribute, VersionedMixin
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.intervals import IntervalMixin
from pynamo_locking.transactions import Transaction
from tests.support.deeds import dying_at
from tests.support.interval_models import SlotLocks
from tests.support.models import declare
from tests.support.transaction_models import RowLocks, Transactions, make_long_from, marked_rows, survive

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine


pytestmark = pytest.mark.core

PROJECTIONS: Final = {
    "keys-only": KeysOnlyProjection,
    "some": lambda: IncludeProjection(["end"]),
    "with-end": lambda: IncludeProjection(["end", "exp"]),
    "with-lock": lambda: IncludeProjection(["lck", "end"]),
    "everything": AllProjection,
}
HAVE_EXPIRY: Final = ("with-end", "everything")


def index(kind: type[Any], projection: Any, hash_key: str, **range_key: Any) -> Any:
    """Return an index of that kind."""
    Meta = type("Meta", (), {"projection": projection()})  # noqa: N806
    parts = {"Meta": Meta, hash_key: UnicodeAttribute(hash_key=True), **range_key}
    return types.new_class("Index", (kind,), exec_body=lambda body: body.update(parts))()


def by_begin(kind: type[Any], hash_key: str) -> dict[str, Any]:
    """Return an index for each projection, by a hash key and the begin."""
    prefix = "global" if kind is GlobalSecondaryIndex else "local"
    return {
        f"{prefix}-{name}": index(kind, projection, hash_key, begin=NumberAttribute(range_key=True))
        for name, projection in PROJECTIONS.items()
    }


def indexed(name: str, *bases: type[Any], **parts: Any) -> Any:
    """Return a model with every index; its items are by a text and a number."""
    parts = {"hash_key": "pk", "range_key": "sk", "begin": NumberAttribute(), **parts}
    group = UnicodeAttribute(default="g")
    every = by_begin(GlobalSecondaryIndex, "group") | by_begin(LocalSecondaryIndex, "pk")
    end = NumberAttribute(default=9)
    return declare(name, *bases, version=True, group=group, end=end, **every, **parts)


def lock() -> LockAttribute:
    return LockAttribute(attr_name="lck")


LONG: Final[dict[str, Any]] = {"transaction_table": Transactions}
KINDS: Final = {
    "versions alone": indexed("Versions", VersionedMixin, Model, **LONG),
    "a lock and no long transactions": indexed("Locked", LockableModel, lock=lock()),
    "a lock": indexed("LockedLong", LockableModel, lock=lock(), **LONG),
    "a lock in a row": indexed("Beside", LockableModel, lock_table=RowLocks, **LONG),
    "expiring": indexed(
        "Expiring",
        *(ExpiringMixin, LockableModel),
        **{"lock": lock(), "expires": TTLAttribute(attr_name="exp", default=timedelta(hours=1)), **LONG},
    ),
}


async def each(found: Any) -> list[Any]:
    return [item async for item in found]


#: What each way to read the index finds of four items, as their range keys or as a number.
WAYS: Final[dict[str, tuple[Callable[[Any, Any, str], Any], Any]]] = {
    "query": (lambda _, index, key: index.query(key), [0, 1, 2, 3]),
    "query with a limit": (lambda _, index, key: index.query(key, limit=2), [0, 1]),
    "query by pages": (lambda _, index, key: index.query(key, page_size=1), [0, 1, 2, 3]),
    "query backwards": (lambda _, index, key: index.query(key, scan_index_forward=False, limit=1), [3]),
    "query a range": (lambda model, index, key: index.query(key, model.begin > 1), [2, 3]),
    "query some attributes": (lambda _, index, key: index.query(key, attributes_to_get=["sk"]), [0, 1, 2, 3]),
    "query the model": (lambda model, index, key: model.query(key, index_name=name_of(index)), [0, 1, 2, 3]),
    "query, awaited": (
        lambda model, index, key: asyncio.run(each(model.aquery(key, index_name=name_of(index)))),
        [0, 1, 2, 3],
    ),
    "count": (lambda _, index, key: index.count(key), 4),
    "count a range": (lambda model, index, key: index.count(key, model.begin < 3), 3),
    "count by the model": (lambda model, index, key: model.count(key, index_name=name_of(index)), 4),
    "count, awaited": (
        lambda model, index, key: asyncio.run(model.acount(key, index_name=name_of(index))),
        4,
    ),
    "scan": (lambda _, index, __: index.scan(), [0, 1, 2, 3]),
    "scan the model": (lambda model, index, _: model.scan(index_name=name_of(index)), [0, 1, 2, 3]),
    "scan, awaited": (
        lambda model, index, _: asyncio.run(each(model.ascan(index_name=name_of(index)))),
        [0, 1, 2, 3],
    ),
}


def name_of(index: Any) -> str:
    return str(index.Meta.index_name)


def shown(found: Any) -> Any:
    return found if isinstance(found, int) else sorted(int(item.sk) for item in found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_read_every_index_of_every_kind_of_model(concurrent_engine: Engine, kind: str) -> None:
    """It shows all items, whatever the index projects; only expired items need their time of expiry there."""
    model = KINDS[kind]
    concurrent_engine.bind(model, Transactions, RowLocks)
    for number in range(4):
        model("a", number, begin=number).save()
    wrong = dict[tuple[str, str], Any]()
    for (name, index), (way, (read, expected)) in itertools.product(model._indexes.items(), WAYS.items()):
        try:
            found: Any = shown(read(model, index, "g" if name.startswith("global") else "a"))
        except Exception as error:  # noqa: BLE001 - every cell is looked at
            found = type(error) if isinstance(error, ConfigurationError) else error
        is_refused = kind == "expiring" and not name.endswith(HAVE_EXPIRY)
        if found != (ConfigurationError if is_refused else expected):
            wrong[name, way] = found
    assert not wrong


#: An item that a transaction is about to create is in an index that needs no other keys than those of the table.
TURNED: Final = {
    name.title(): declare(
        *("Turned", LockableModel),
        **{"hash_key": "pk", "version": True, "lock": lock(), "end": NumberAttribute(default=9), **LONG},
        sk=UnicodeAttribute(range_key=True),
        turned=index(GlobalSecondaryIndex, projection, "sk", pk=UnicodeAttribute(range_key=True)),
    )
    for name, projection in PROJECTIONS.items()
    if "end" not in name
}


@pytest.mark.parametrize("name", TURNED)
def test_an_index_with_the_lock_shows_no_placeholders(
    memory: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One without it may show the key of an item that is not there yet, which no get finds."""
    model = TURNED[name]
    memory.bind(model, Transactions)
    make_long_from(monkeypatch)
    model("a", "there").save()
    tx = Transaction()
    for number in range(6):
        tx.save(model(f"{number}", "new"))
    with dying_at(monkeypatch, "decision"):
        assert not survive(tx.commit)
    placeholders = [row["pk"]["S"] for row in marked_rows(model, "lck")]
    assert placeholders
    expected = placeholders if name in ("Keys-Only", "Some") else []
    assert sorted(item.pk for item in model.turned.query("new")) == sorted(expected)
    assert model.turned.count("new") == len(expected)
    assert sorted(item.pk for item in model.turned.scan()) == sorted(["a", *expected])
    for key in placeholders:
        with pytest.raises(model.DoesNotExist):
            model.get(key, "new", consistent_read=True)


def stay(name: str, **parts: Any) -> Any:
    """Return a model of intervals with an index of its rows by the begin for each projection."""
    end, group = NumberAttribute(null=True), UnicodeAttribute(default="g")
    options = {"interval": ("begin", "end"), "lock_table": SlotLocks, "range_key": "begin", **LONG}
    every = by_begin(GlobalSecondaryIndex, "group")
    return declare(name, IntervalMixin, LockableModel, version=True, end=end, group=group, **every, **options, **parts)


STAYS: Final = {"a lock": stay("Stay", lock=lock()), "no lock": stay("Visit")}


@pytest.mark.parametrize("kind", STAYS)
def test_overlapping_rows_by_every_index(concurrent_engine: Engine, kind: str) -> None:
    """Rows are found if the index has their ends; otherwise the call says what is missing."""
    model = STAYS[kind]
    concurrent_engine.bind(model, SlotLocks, Transactions)
    model.intervals.insert_disjoint([model("a", 1, end=3), model("a", 5, end=7), model("a", 9)])
    for name, of_index in model._indexes.items():
        assert [int(row.begin) for row in model.intervals.overlapping_in(["g"], None, 9, index=of_index)] == [1, 5]
        if name == "global-keys-only":
            with pytest.raises(ConfigurationError, match="does not have 'end'"):
                model.intervals.overlapping_in(["g"], 6, 10, index=of_index)
        else:
            found = model.intervals.overlapping_in(["g"], 6, 10, index=of_index)
            assert [int(row.begin) for row in found] == [5, 9], name
