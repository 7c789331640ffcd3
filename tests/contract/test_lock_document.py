"""Enter, renew, release and evict: one UpdateItem each on the lock map."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.helpers import INVALID, Table, deviates, refused
from tests.contract.lock_requests import (
    ALL_OLD,
    CREATE,
    MAY_RELEASE,
    MINE,
    QUEUE,
    RELEASE,
    enter,
    entry,
    lock_map,
    names,
    release,
    renew,
)

EMPTY = "#lock = :empty OR attribute_type(#lock, :null)"
NO_MAP_YET = f"attribute_exists(pk) AND attribute_not_exists(#lock) OR {EMPTY}"
NO_ROW_YET = f"attribute_not_exists(pk) OR {EMPTY}"


def create(table: Table, condition: str = NO_MAP_YET) -> dict[str, Any]:
    return table.update(CREATE, condition, names=names(), values={":map": lock_map(7), ":empty": {}, ":null": "NULL"})


def test_enter_takes_the_old_counter_as_ticket(table: Table) -> None:
    """On the right-hand side of SET, a path has the value from before the update, even when the same
    update changes a part of it.
    """
    table.put(balance=5, lock=lock_map(7))
    lock = enter(table, "e1")
    assert lock == {"next": [8], "queue": {"e1": [7, entry("e1")]}}
    assert enter(table, "e2")["queue"] == {"e1": [7, entry("e1")], "e2": [8, entry("e2")]}


def test_enter_returns_the_whole_item(table: Table) -> None:
    """ALL_NEW brings the item the lock protects along: a locked read costs no request of its own."""
    table.put(balance=5, lock=lock_map(7))
    enter(table)
    item = table.update("SET balance = :b", values={":b": 4})
    assert item["balance"] == 4
    assert list(item["lock"]["queue"]) == ["e1"]


def test_enter_twice_is_refused_with_the_entry_in_the_old_image(table: Table) -> None:
    """A second attempt after a lost response finds its own first write."""
    table.put(lock=lock_map(7))
    enter(table, "e1")
    with refused() as refusal:
        enter(table, "e1")
    assert refusal.item["lock"]["queue"] == {"e1": [7, entry("e1")]}


def test_enter_is_refused_when_the_queue_is_full(table: Table) -> None:
    """size() of a map counts its entries."""
    table.put(lock=lock_map(7, e1=0, e2=0))
    with refused() as refusal:
        enter(table, "e3", max_waiters=2)
    assert sorted(refusal.item["lock"]["queue"]) == ["e1", "e2"]
    assert sorted(enter(table, "e3", max_waiters=3)["queue"]) == ["e1", "e2", "e3"]


@pytest.mark.parametrize("attributes", [{}, {"lock": None}, {"lock": {}}], ids=["no-lock", "null-lock", "empty-map"])
def test_enter_without_a_map_is_refused(table: Table, attributes: dict[str, Any]) -> None:
    """A condition on missing paths is false and comes before the update: no ValidationException for the
    missing map.
    """
    table.put(**attributes)
    with refused() as refusal:
        enter(table)
    assert refusal.item == {"pk": "a", **attributes}


def test_enter_without_an_item_is_refused_without_an_image(table: Table) -> None:
    """No ``Item`` key in the error when there is no item."""
    with refused() as refusal:
        enter(table)
    assert "Item" not in refusal.response


@pytest.mark.parametrize("attributes", [{}, {"lock": None}, {"lock": {}}], ids=["no-lock", "null-lock", "empty-map"])
def test_create_the_map(table: Table, attributes: dict[str, Any]) -> None:
    """The map is made where there is none, also over NULL or an empty map."""
    table.put(balance=5, **attributes)
    assert create(table) == {"pk": "a", "balance": 5, "lock": lock_map(7)}


def test_create_the_map_of_a_missing_item_or_twice_is_refused(table: Table) -> None:
    """An embedded lock does not create its item, nor a second map."""
    with refused() as refusal:
        create(table)
    assert "Item" not in refusal.response
    for there in (lock_map(9), "padlock", {"by": "them"}):
        table.put(lock=there)
        with refused():
            create(table)


def test_create_the_row_of_a_name(table: Table) -> None:
    """A lock without an item creates its row, goes into one that has an empty lock, and into no other."""
    assert create(table, NO_ROW_YET) == {"pk": "a", "lock": lock_map(7)}
    for there in ({}, None):
        table.put(balance=5, lock=there)
        assert create(table, NO_ROW_YET) == {"pk": "a", "balance": 5, "lock": lock_map(7)}
    for others in ({"balance": 5}, {"lock": "padlock"}, {"lock": lock_map(9)}):
        table.put(**others)
        with refused():
            create(table, NO_ROW_YET)
        assert table.get() == {"pk": "a", **others}


def test_renew(table: Table) -> None:
    """A beat only goes up, and only under the ticket it was given for."""
    table.put(lock=lock_map(8, e1=3))
    assert renew(table, "e1", ticket=7, beat=4)["lock"]["queue"]["e1"] == [7, {**entry(beat=4), "r": 2_000}]
    with refused() as refusal:
        renew(table, "e1", ticket=7, beat=4)
    assert refusal.item["lock"]["queue"]["e1"][1]["b"] == 4
    with refused():
        renew(table, "e1", ticket=6, beat=5)


@pytest.mark.parametrize(
    "attributes", [{}, {"lock": None}, {"lock": lock_map(7)}], ids=["no-lock", "null-lock", "empty-queue"]
)
def test_renew_of_a_missing_entry_is_refused(table: Table, attributes: dict[str, Any]) -> None:
    """Comparison with a missing path is false and no error."""
    table.put(**attributes)
    with refused():
        renew(table, "e1", ticket=7, beat=1)


def test_release(table: Table) -> None:
    """An entry leaves in one request, which returns the item; a second release is refused."""
    table.put(balance=5, lock=lock_map(9, e1=0, e2=0))
    assert release(table, "e1") == {
        "pk": "a",
        "balance": 5,
        "lock": {"next": [9], "queue": {"e2": [8, entry()]}},
    }
    with refused() as refusal:
        release(table, "e1")
    assert list(refusal.item["lock"]["queue"]) == ["e2"]


def test_release_of_the_last_entry_leaves_empty_maps(table: Table) -> None:
    """An emptied map stays: the next enter finds its parents."""
    table.put(lock=lock_map(8, e1=0))
    assert release(table)["lock"] == {"next": [8], "queue": {}}
    assert enter(table, "e2")["queue"] == {"e2": [8, entry("e2")]}


def test_evict_several_in_one_request(table: Table) -> None:
    """Dead entries leave together, each under the beat it was last seen with; the evictor notes the
    ticket.
    """
    table.put(lock={**lock_map(10, e1=3, e2=5, e3=0), "evicted": {}})
    update = f"REMOVE {QUEUE}.#x, {QUEUE}.#y SET #lock.#evicted.#slot = :ticket"
    condition = f"{QUEUE}.#x[1].#beat = :bx AND {QUEUE}.#y[1].#beat = :by"
    placeholders = names(x="e1", y="e2", evicted="evicted", slot="0")
    with refused():
        table.update(update, condition, names=placeholders, values={":ticket": 8, ":bx": 3, ":by": 6})
    lock = table.update(update, condition, names=placeholders, values={":ticket": 8, ":bx": 3, ":by": 5})["lock"]
    assert lock == {"next": [10], "queue": {"e3": [9, entry()]}, "evicted": {"0": 8}}


def test_save_and_release_in_one_request(table: Table) -> None:
    """Attributes and the queue change in one UpdateItem under the guard."""
    table.put(balance=5, colour="red", lock=lock_map(8, e1=0))
    update, condition = f"SET balance = :b, size_ = :b {RELEASE}, colour", f"attribute_exists({MINE})"
    arguments: dict[str, Any] = {"names": names(), "values": {":b": 4}, **ALL_OLD}
    expected = {"pk": "a", "balance": 4, "size_": 4, "lock": {"next": [8], "queue": {}}}
    assert table.update(update, condition, **arguments) == expected
    with refused() as refusal:
        table.update(update, condition, **arguments)
    assert refusal.item == expected


def test_set_below_a_missing_map_is_invalid(table: Table) -> None:
    """A nested SET does not make its parents: the map must exist first."""
    for attributes in ({}, {"lock": None}):
        table.put(**attributes)
        with refused(INVALID) as refusal:
            table.update(f"SET {MINE} = :entry", names=names(), values={":entry": [7, entry()]})
        assert "document path" in refusal.message


def test_set_from_a_missing_path_is_invalid(table: Table) -> None:
    """An operand that does not exist is an error, not a missing value."""
    table.put()
    with refused(INVALID) as refusal:
        table.update("SET x = y + :one", values={":one": 1})
    assert "refers to an attribute that does not exist" in refusal.message


def test_remove_of_a_missing_leaf_is_fine(table: Table) -> None:
    """REMOVE of an entry that is gone does nothing; below a missing map it is invalid."""
    table.put(lock=lock_map(7))
    assert table.update(RELEASE, names=names())["lock"] == lock_map(7)
    table.put()
    with refused(INVALID, unless=deviates(table.engine, "accepts REMOVE below a missing map")):
        table.update(RELEASE, names=names())


@pytest.mark.parametrize(
    "update",
    [f"SET {MINE} = :v, {MINE}.#beat = :v", f"SET {MINE} = :v REMOVE {MINE}", "SET #lock = :v, #lock = :v"],
)
def test_overlapping_paths_are_invalid(table: Table, update: str) -> None:
    """One UpdateItem may not write a path twice: hence `list_append` puts the ticket into the entry."""
    table.put(lock=lock_map(8, e1=0))
    with refused(INVALID) as refusal:
        table.update(update, MAY_RELEASE, names=names(), values={":v": entry()})
    assert "overlap" in refusal.message


def test_a_map_and_an_entry_of_it_overlap(table: Table) -> None:
    """Also with a level between them."""
    table.put(lock=lock_map(8, e1=0))
    with refused(INVALID, unless=deviates(table.engine, "misses overlapping paths two levels apart")):
        table.update(f"SET #lock = :map REMOVE {MINE}", names=names(), values={":map": lock_map(8, e1=0)})


def test_lock_is_a_reserved_word(table: Table) -> None:
    """``lock`` needs a placeholder in every expression."""
    with refused(INVALID) as refusal:
        table.update("SET lock = :v", values={":v": 1})
    assert "reserved keyword: lock" in refusal.message
