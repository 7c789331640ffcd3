"""Conditions, and the images that refusals bring."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import pytest

from tests.contract.helpers import ALL_OLD, MINE, QUEUE, Table, enter, lock_map, names, refused

ZERO: Final = {":zero": 0}
#: Items of which a part of the path to the queue is missing. None: there is no item.
WITHOUT_QUEUE: Final[tuple[dict[str, Any] | None, ...]] = ({}, {"lock": None}, {"lock": {}}, None)
MISSING: Final = "attribute_not_exists(pk)"
THERE: Final = "attribute_exists(pk)"


def is_true(table: Table, item: dict[str, Any] | None, condition: str, values: dict[str, Any]) -> bool:
    """Whether a condition is true of this item."""
    table.client.delete_item(TableName=table.name, Key=table.key())
    if item is not None:
        table.put(**item)
    return table.holds(condition, names=names(), values=values)


def test_free(table: Table) -> None:
    """The condition for a write outside any lock: the queue is empty or missing."""
    free = f"attribute_not_exists({QUEUE}) OR size({QUEUE}) = :zero"
    assert all(is_true(table, item, free, ZERO) for item in (*WITHOUT_QUEUE, {"lock": lock_map(7)}))
    assert not is_true(table, {"lock": lock_map(7, e1=0)}, free, ZERO)


def test_conditions_on_a_missing_path_are_false(table: Table) -> None:
    """Never an error, whichever part of the path is missing; and AND stops at the first part that is false."""
    conditions = (
        f"{QUEUE} = :zero",
        f"{MINE}.#beat < :zero",
        f"{MINE}.#beat >= :zero",
        f"{MINE}.#beat BETWEEN :zero AND :zero",
        f"{MINE}.#beat IN (:zero)",
        f"attribute_exists({MINE})",
        f"attribute_exists({QUEUE}) AND size({QUEUE}) < :zero",
    )
    wrong = [(each, item) for each in conditions for item in WITHOUT_QUEUE if is_true(table, item, each, ZERO)]
    assert wrong == []


def test_the_size_of_a_missing_path_compares_with_nothing(table: Table) -> None:
    """Nor is the size of a missing path an error."""
    conditions = (f"size({QUEUE}) < :zero", f"size({QUEUE}) >= :zero")
    assert not any(is_true(table, item, condition, ZERO) for item in WITHOUT_QUEUE for condition in conditions)


def test_a_missing_path_differs_from_every_value(table: Table) -> None:
    """``<>`` is true of a missing path, and so is the negation of a comparison; OR stops at the first part that is."""
    differs, is_free = f"{MINE}.#beat <> :zero", f"attribute_not_exists({QUEUE}) OR size({QUEUE}) < :zero"
    assert is_true(table, {}, differs, ZERO)
    assert is_true(table, {}, f"NOT {MINE}.#beat = :zero", ZERO)
    assert is_true(table, {}, is_free, ZERO)


def test_numbers_and_texts_are_not_equal(table: Table) -> None:
    """A comparison between types is false, not an error."""
    assert not is_true(table, {"version": "1"}, "version = :one", {":one": 1})


def test_numbers_and_texts_have_no_order(table: Table) -> None:
    """Nor is one smaller than the other."""
    assert not is_true(table, {"version": "1"}, "version < :one", {":one": 1})


def test_equality_of_a_whole_map(table: Table) -> None:
    """The guard of a Put: the map is as it was loaded, whatever the order of its keys."""
    table.put(lock=lock_map(9, e1=0, e2=0))
    loaded = (table.get() or {})["lock"]

    def equals(value: dict[str, Any]) -> bool:
        return table.holds("#lock = :map", names=names(), values={":map": value})

    assert equals(dict(reversed(loaded.items())))
    assert not equals({**loaded, "next": [10]})
    enter(table, "e3")
    assert not equals(loaded)


def test_equality_of_numbers_is_by_value(table: Table) -> None:
    """1 and 1.0 in a map are equal: it does not matter how a client writes its numbers."""
    assert is_true(table, {"lock": {"next": 1}}, "#lock = :map", {":map": {"next": Decimal("1.0")}})


def write(table: Table, kind: str, condition: str, **options: Any) -> None:
    """Send a write of an item under this condition."""
    if kind == "put":
        table.client.put_item(TableName=table.name, Item=table.stored(), ConditionExpression=condition, **options)
    elif kind == "update":
        table.update("SET balance = :four", condition, values={":four": 4}, **options)
    else:
        table.client.delete_item(**table.request(condition=condition), **options)


@pytest.mark.parametrize("kind", ["put", "update", "delete"])
def test_a_refusal_brings_the_old_image(table: Table, kind: str) -> None:
    """With ALL_OLD: the item from before, not one with the write half applied; none if there is no item."""
    with refused() as refusal:
        write(table, kind, THERE, **ALL_OLD)
    assert refusal.item is None
    table.put(balance=5)
    with refused() as refusal:
        write(table, kind, MISSING, **ALL_OLD)
    assert refusal.item == table.get() == {"pk": "a", "balance": 5}


@pytest.mark.parametrize("kind", ["put", "update", "delete"])
def test_no_image_unless_asked_for(table: Table, kind: str) -> None:
    """Without ALL_OLD the error carries no item."""
    table.put()
    with refused() as refusal:
        write(table, kind, MISSING)
    assert refusal.item is None


def test_conditions_see_the_item_before_the_update(table: Table) -> None:
    """The condition is about the stored item, the update decides what it becomes."""
    table.put(n=1)
    assert table.update("SET n = n + :one", "n = :one", values={":one": 1})["n"] == 2
    with refused():
        table.update("SET n = :one", "n = :one", values={":one": 1})
