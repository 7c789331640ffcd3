"""Conditions, and the images that refusals bring."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from tests.contract.helpers import ALL_OLD, MINE, QUEUE, Table, enter, lock_map, names, refused

FREE: Final = f"attribute_not_exists({QUEUE}) OR size({QUEUE}) = :zero"
ZERO: Final = {":zero": 0}
WITHOUT_QUEUE: Final[tuple[dict[str, Any] | None, ...]] = ({}, {"lock": None}, {"lock": {}}, None)


def test_free(table: Table) -> None:
    """The condition for a write outside any lock: the queue is empty or missing."""
    for number, attributes in enumerate((*WITHOUT_QUEUE, {"lock": lock_map(7)}, {"lock": lock_map(7, e1=0)})):
        if attributes is not None:
            table.put(f"k{number}", **attributes)
        is_free = attributes is None or not (attributes.get("lock") or {}).get("queue")
        assert table.holds(FREE, f"k{number}", names=names(), values=ZERO) == is_free


def test_conditions_on_a_missing_path_are_false(table: Table) -> None:
    """Never an error, whichever part of the path is missing."""
    are_false(
        table,
        f"{QUEUE} = :zero",
        f"{MINE}.#beat < :zero",
        f"{MINE}.#beat >= :zero",
        f"{MINE}.#beat BETWEEN :zero AND :zero",
        f"{MINE}.#beat IN (:zero)",
        f"attribute_exists({MINE})",
    )


def test_the_size_of_a_missing_path_compares_with_nothing(table: Table) -> None:
    """Nor is the size of a missing path an error."""
    are_false(table, f"size({QUEUE}) < :zero", f"size({QUEUE}) >= :zero")


def are_false(table: Table, *conditions: str) -> None:
    for number, attributes in enumerate(WITHOUT_QUEUE):
        if attributes is not None:
            table.put(f"k{number}", **attributes)
        for condition in conditions:
            is_true = table.holds(condition, f"k{number}", names=names(), values=ZERO)
            assert not is_true, f"{condition} is true of {attributes}"


def test_and_or_stop_at_the_first_part_that_decides(table: Table) -> None:
    """A condition may ask whether a path is there before it asks for its size."""
    table.put()
    asked: dict[str, Any] = {"names": names(), "values": ZERO}
    assert not table.holds(f"attribute_exists({QUEUE}) AND size({QUEUE}) < :zero", **asked)
    assert table.holds(f"attribute_not_exists({QUEUE}) OR size({QUEUE}) < :zero", **asked)


def test_a_missing_path_differs_from_every_value(table: Table) -> None:
    """``<>`` is true of a missing path, and so is the negation of a comparison."""
    table.put()
    for condition in (f"{MINE}.#beat <> :zero", f"NOT {MINE}.#beat = :zero"):
        assert table.holds(condition, names=names(), values=ZERO), f"{condition} is false"


def test_numbers_and_texts_are_not_equal(table: Table) -> None:
    """A comparison between types is false, not an error."""
    table.put(version="1")
    assert not table.holds("version = :one", values={":one": 1})


def test_numbers_and_texts_have_no_order(table: Table) -> None:
    """Nor is one smaller than the other."""
    table.put(version="1")
    assert not table.holds("version < :one", values={":one": 1})


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
    table.put(lock={"next": 1})
    assert table.holds("#lock = :map", names=names(), values={":map": {"next": Decimal("1.0")}})


def test_refused_put_brings_the_old_image(table: Table) -> None:
    """ALL_OLD on PutItem."""
    table.put(balance=5)
    with refused() as refusal:
        table.client.put_item(
            TableName=table.name, Item=table.stored(), ConditionExpression="attribute_not_exists(pk)", **ALL_OLD
        )
    assert refusal.item == {"pk": "a", "balance": 5}


def test_refused_update_brings_the_old_image(table: Table) -> None:
    """ALL_OLD on UpdateItem: the image from before, not one with the update half applied."""
    table.put(balance=5)
    with refused() as refusal:
        table.update("SET balance = :four", "balance = :four", values={":four": 4}, **ALL_OLD)
    assert refusal.item == {"pk": "a", "balance": 5}
    assert table.get() == {"pk": "a", "balance": 5}


def test_refused_delete_brings_the_old_image(table: Table) -> None:
    """ALL_OLD on DeleteItem."""
    table.put(balance=5)
    with refused() as refusal:
        table.client.delete_item(**table.request(condition="attribute_not_exists(pk)"), **ALL_OLD)
    assert refusal.item == {"pk": "a", "balance": 5}


def test_no_image_unless_asked_for(table: Table) -> None:
    """Without ALL_OLD the error carries no item."""
    table.put()
    with refused() as refusal:
        table.update("SET x = :one", "attribute_not_exists(pk)", values={":one": 1})
    assert refusal.item is None


def test_no_image_of_a_missing_item(table: Table) -> None:
    """With ALL_OLD, a missing item gives no ``Item`` key, for each kind of write."""
    missing = "attribute_exists(pk)"
    with refused() as put:
        table.client.put_item(TableName=table.name, Item=table.stored(), ConditionExpression=missing, **ALL_OLD)
    with refused() as update:
        table.update("SET x = :one", missing, values={":one": 1}, **ALL_OLD)
    with refused() as delete:
        table.client.delete_item(**table.request(condition=missing), **ALL_OLD)
    assert [put.item, update.item, delete.item] == [None, None, None]


def test_conditions_see_the_item_before_the_update(table: Table) -> None:
    """The condition is about the stored item, the update decides what it becomes."""
    table.put(n=1)
    assert table.update("SET n = n + :one", "n = :one", values={":one": 1})["n"] == 2
    with refused():
        table.update("SET n = :one", "n = :one", values={":one": 1})
