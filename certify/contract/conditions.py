"""Conditions."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from certify.contract.rows import ALL_OLD, MINE, QUEUE, enter, holds, lock_map, names, same

if TYPE_CHECKING:
    from certify.contract.rows import Rows


_FREE: Final = f"attribute_not_exists({QUEUE}) OR size({QUEUE}) = :zero"
_ZERO: Final = {":zero": 0}
_WITHOUT_QUEUE: Final[tuple[dict[str, Any] | None, ...]] = ({}, {"lock": None}, {"lock": {}}, None)


def free(rows: Rows) -> None:
    """The condition for a write outside any lock: the queue is empty or missing."""
    for number, attributes in enumerate((*_WITHOUT_QUEUE, {"lock": lock_map(7)}, {"lock": lock_map(7, e1=0)})):
        if attributes is not None:
            rows.put(f"k{number}", **attributes)
        is_free = attributes is None or not (attributes.get("lock") or {}).get("queue")
        same(rows.holds(_FREE, f"k{number}", names=names(), values=_ZERO), is_free, f"free, of {attributes}")


def conditions_on_a_missing_path_are_false(rows: Rows) -> None:
    """Never an error, whichever part of the path is missing."""
    _are_false(
        rows,
        f"{QUEUE} = :zero",
        f"{MINE}.#beat < :zero",
        f"{MINE}.#beat >= :zero",
        f"{MINE}.#beat BETWEEN :zero AND :zero",
        f"{MINE}.#beat IN (:zero)",
        f"attribute_exists({MINE})",
    )


def the_size_of_a_missing_path_compares_with_nothing(rows: Rows) -> None:
    """Nor is the size of a missing path an error."""
    _are_false(rows, f"size({QUEUE}) < :zero", f"size({QUEUE}) >= :zero")


def _are_false(rows: Rows, *conditions: str) -> None:
    for number, attributes in enumerate(_WITHOUT_QUEUE):
        if attributes is not None:
            rows.put(f"k{number}", **attributes)
        for condition in conditions:
            is_true = rows.holds(condition, f"k{number}", names=names(), values=_ZERO)
            holds(not is_true, f"{condition} is true of {attributes}")


def and_or_stop_at_the_first_part_that_decides(rows: Rows) -> None:
    """A condition may ask whether a path is there before it asks for its size."""
    rows.put()
    asked: dict[str, Any] = {"names": names(), "values": _ZERO}
    same(rows.holds(f"attribute_exists({QUEUE}) AND size({QUEUE}) < :zero", **asked), needed=False)
    same(rows.holds(f"attribute_not_exists({QUEUE}) OR size({QUEUE}) < :zero", **asked), needed=True)


def a_missing_path_differs_from_every_value(rows: Rows) -> None:
    """``<>`` is true of a missing path, and so is the negation of a comparison."""
    rows.put()
    for condition in (f"{MINE}.#beat <> :zero", f"NOT {MINE}.#beat = :zero"):
        holds(rows.holds(condition, names=names(), values=_ZERO), f"{condition} is false")


def numbers_and_texts_are_not_equal(rows: Rows) -> None:
    """A comparison between types is false, not an error."""
    rows.put(version="1")
    same(rows.holds("version = :one", values={":one": 1}), needed=False)


def numbers_and_texts_have_no_order(rows: Rows) -> None:
    """Nor is one smaller than the other."""
    rows.put(version="1")
    same(rows.holds("version < :one", values={":one": 1}), needed=False)


def equality_of_a_whole_map(rows: Rows) -> None:
    """The guard of a Put: the map is as it was loaded, whatever the order of its keys."""
    rows.put(lock=lock_map(9, e1=0, e2=0))
    loaded = (rows.get() or {})["lock"]

    def equals(value: dict[str, Any]) -> bool:
        return rows.holds("#lock = :map", names=names(), values={":map": value})

    same(equals(dict(reversed(loaded.items()))), needed=True)
    same(equals({**loaded, "next": [10]}), needed=False)
    enter(rows, "e3")
    same(equals(loaded), needed=False)


def equality_of_numbers_is_by_value(rows: Rows) -> None:
    """1 and 1.0 in a map are equal: it does not matter how a client writes its numbers."""
    rows.put(lock={"next": 1})
    same(rows.holds("#lock = :map", names=names(), values={":map": {"next": Decimal("1.0")}}), needed=True)


def refused_put_brings_the_old_image(rows: Rows) -> None:
    """ALL_OLD on PutItem."""
    rows.put(balance=5)
    with rows.refused() as refusal:
        rows.client.put_item(
            TableName=rows.name, Item=rows.stored(), ConditionExpression="attribute_not_exists(pk)", **ALL_OLD
        )
    same(refusal.item, {"pk": "a", "balance": 5})


def refused_update_brings_the_old_image(rows: Rows) -> None:
    """ALL_OLD on UpdateItem: the image from before, not one with the update half applied."""
    rows.put(balance=5)
    with rows.refused() as refusal:
        rows.update("SET balance = :four", "balance = :four", values={":four": 4}, **ALL_OLD)
    same(refusal.item, {"pk": "a", "balance": 5})
    same(rows.get(), {"pk": "a", "balance": 5})


def refused_delete_brings_the_old_image(rows: Rows) -> None:
    """ALL_OLD on DeleteItem."""
    rows.put(balance=5)
    with rows.refused() as refusal:
        rows.client.delete_item(**rows.request(condition="attribute_not_exists(pk)"), **ALL_OLD)
    same(refusal.item, {"pk": "a", "balance": 5})


def no_image_unless_asked_for(rows: Rows) -> None:
    """Without ALL_OLD the error carries no item."""
    rows.put()
    with rows.refused() as refusal:
        rows.update("SET x = :one", "attribute_not_exists(pk)", values={":one": 1})
    same(refusal.item, None)


def no_image_of_a_missing_item(rows: Rows) -> None:
    """With ALL_OLD, a missing item gives no ``Item`` key, for each kind of write."""
    missing = "attribute_exists(pk)"
    with rows.refused() as put:
        rows.client.put_item(TableName=rows.name, Item=rows.stored(), ConditionExpression=missing, **ALL_OLD)
    with rows.refused() as update:
        rows.update("SET x = :one", missing, values={":one": 1}, **ALL_OLD)
    with rows.refused() as delete:
        rows.client.delete_item(**rows.request(condition=missing), **ALL_OLD)
    same([put.item, update.item, delete.item], [None, None, None])


def conditions_see_the_item_before_the_update(rows: Rows) -> None:
    """The condition is about the stored item, the update decides what it becomes."""
    rows.put(n=1)
    same(rows.update("SET n = n + :one", "n = :one", values={":one": 1})["n"], 2)
    with rows.refused():
        rows.update("SET n = :one", "n = :one", values={":one": 1})
