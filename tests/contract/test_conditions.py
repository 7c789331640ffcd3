"""What conditions say about missing paths, sizes and whole maps, and the image that a refusal brings back."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.helpers import Table, deviates, refused, wire_item
from tests.contract.lock_requests import ALL_OLD, MINE, QUEUE, enter, lock_map, names

if TYPE_CHECKING:
    from collections.abc import Callable

FREE = f"attribute_not_exists({QUEUE}) OR size({QUEUE}) = :zero"
ZERO = {":zero": 0}


@pytest.mark.parametrize(
    ("attributes", "free"),
    [
        (None, True),
        ({}, True),
        ({"lock": None}, True),
        ({"lock": {}}, True),
        ({"lock": lock_map(7)}, True),
        ({"lock": lock_map(7, e1=0)}, False),
    ],
    ids=["no-item", "no-lock", "null-lock", "empty-map", "empty-queue", "held"],
)
def test_free(table: Table, attributes: dict[str, Any] | None, free: bool) -> None:
    """The condition for a write outside any lock: nobody is in the queue."""
    if attributes is not None:
        table.put(**attributes)
    assert table.holds(FREE, names=names(), values=ZERO) is free


@pytest.mark.parametrize(
    "attributes",
    [{}, {"lock": None}, {"lock": {}}, None],
    ids=["no-lock", "null-lock", "empty-map", "no-item"],
)
@pytest.mark.parametrize(
    "condition",
    [
        f"size({QUEUE}) < :zero",
        f"size({QUEUE}) >= :zero",
        f"{QUEUE} = :zero",
        f"{MINE}.#beat < :zero",
        f"{MINE}.#beat >= :zero",
        f"{MINE}.#beat BETWEEN :zero AND :zero",
        f"{MINE}.#beat IN (:zero)",
        f"attribute_exists({MINE})",
    ],
)
def test_conditions_on_a_missing_path_are_false(
    table: Table, attributes: dict[str, Any] | None, condition: str
) -> None:
    """Never an error, whichever part of the path is missing."""
    if attributes is not None:
        table.put(**attributes)
    if condition.startswith("size") and deviates(table.engine, "crashes on size() of a missing path"):
        with pytest.raises(ValueError, match="Invalid attribute name"):
            table.holds(condition, names=names(), values=ZERO)
    else:
        assert not table.holds(condition, names=names(), values=ZERO)


def test_and_or_stop_at_the_first_part_that_decides(table: Table) -> None:
    """What every engine takes: look whether the path is there before asking for its size."""
    table.put()
    assert not table.holds(f"attribute_exists({QUEUE}) AND size({QUEUE}) < :zero", names=names(), values=ZERO)
    assert table.holds(f"attribute_not_exists({QUEUE}) OR size({QUEUE}) < :zero", names=names(), values=ZERO)


def test_a_missing_path_differs_from_every_value(table: Table) -> None:
    """``<>`` is true of a missing path, and so is the negation of a comparison."""
    table.put()
    assert table.holds(f"{MINE}.#beat <> :zero", names=names(), values=ZERO)
    assert table.holds(f"NOT {MINE}.#beat = :zero", names=names(), values=ZERO)


def test_numbers_and_texts_do_not_compare(table: Table) -> None:
    """A comparison between types is false, not an error."""
    table.put(version="1")
    assert not table.holds("version = :one", values={":one": 1})
    if deviates(table.engine, "crashes on an order between types"):
        with pytest.raises(TypeError, match="not supported between"):
            table.holds("version < :one", values={":one": 1})
    else:
        assert not table.holds("version < :one", values={":one": 1})


def test_equality_of_a_whole_map(table: Table) -> None:
    """The guard of a Put: the map is as it was loaded, whatever the order of its keys."""
    table.put(lock=lock_map(9, e1=0, e2=0))
    loaded = (table.get() or {})["lock"]
    assert table.holds("#lock = :map", names=names(), values={":map": dict(reversed(loaded.items()))})
    assert not table.holds("#lock = :map", names=names(), values={":map": {**loaded, "next": [10]}})
    enter(table, "e3")
    assert not table.holds("#lock = :map", names=names(), values={":map": loaded})


def test_equality_of_numbers_is_by_value(table: Table) -> None:
    """1 and 1.0 in a map are equal: it does not matter how a client writes its numbers."""
    table.put(lock={"next": 1})
    assert table.holds("#lock = :map", names=names(), values={":map": {"next": Decimal("1.0")}})


def test_refused_put_brings_the_old_image(table: Table) -> None:
    """ALL_OLD on PutItem."""
    table.put(balance=5)
    with refused() as refusal:
        table.client.put_item(
            TableName=table.name,
            Item=wire_item({"pk": "a"}),
            ConditionExpression="attribute_not_exists(pk)",
            **ALL_OLD,
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
    assert "Item" not in refusal.response


def test_no_image_of_a_missing_item(table: Table) -> None:
    """With ALL_OLD, a missing item gives no ``Item`` key, for each kind of write."""
    missing = "attribute_exists(pk)"
    writes: list[Callable[[], Any]] = [
        lambda: table.client.put_item(
            TableName=table.name, Item=wire_item({"pk": "a"}), ConditionExpression=missing, **ALL_OLD
        ),
        lambda: table.update("SET x = :one", missing, values={":one": 1}, **ALL_OLD),
        lambda: table.client.delete_item(**table.request(condition=missing), **ALL_OLD),
    ]
    for write in writes:
        with refused() as refusal:
            write()
        assert "Item" not in refusal.response


def test_conditions_see_the_item_before_the_update(table: Table) -> None:
    """The condition is about the stored item, the update decides what it becomes."""
    table.put(n=1)
    assert table.update("SET n = n + :one", "n = :one", values={":one": 1})["n"] == 2
    with refused():
        table.update("SET n = :one", "n = :one", values={":one": 1})
