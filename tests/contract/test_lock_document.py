"""The requests of the lock record."""

from __future__ import annotations

from typing import Any, Final

from tests.contract.helpers import (
    ALL_OLD,
    CREATE,
    INVALID,
    MAY_RELEASE,
    MINE,
    QUEUE,
    RELEASE,
    Table,
    deviates,
    enter,
    entry,
    lock_map,
    names,
    refused,
    release,
    renew,
)

EMPTY: Final = "#lock = :empty OR attribute_type(#lock, :null)"
NO_MAP_YET: Final = f"attribute_exists(pk) AND attribute_not_exists(#lock) OR {EMPTY}"
NO_ROW_YET: Final = f"attribute_not_exists(pk) OR {EMPTY}"
WITHOUT_MAP: Final[tuple[dict[str, Any], ...]] = ({}, {"lock": None}, {"lock": {}})


def create(table: Table, condition: str = NO_MAP_YET) -> dict[str, Any]:
    values = {":map": lock_map(7), ":empty": {}, ":null": "NULL"}
    return table.update(CREATE, condition, names=names(), values=values)


def test_enter_takes_the_old_counter_as_ticket(table: Table) -> None:
    """On the right-hand side of SET, a path has the value from before the update.

    So it does when the same update changes a part of it.
    """
    table.put(balance=5, lock=lock_map(7))
    assert enter(table, "e1") == {"next": [8], "queue": {"e1": [7, entry("e1")]}}
    assert enter(table, "e2")["queue"] == {"e1": [7, entry("e1")], "e2": [8, entry("e2")]}


def test_enter_returns_the_whole_item(table: Table) -> None:
    """ALL_NEW brings the item that the lock protects along: a locked read costs no request of its own."""
    table.put(balance=5, lock=lock_map(7))
    enter(table)
    item = table.update("SET balance = :b", values={":b": 4})
    assert (item["balance"], list(item["lock"]["queue"])) == (4, ["e1"])


def test_enter_twice_is_refused_with_the_entry_in_the_old_image(table: Table) -> None:
    """A second attempt after a lost response finds its own first write."""
    table.put(lock=lock_map(7))
    enter(table, "e1")
    with refused() as refusal:
        enter(table, "e1")
    assert (refusal.item or {})["lock"]["queue"] == {"e1": [7, entry("e1")]}


def test_enter_is_refused_when_the_queue_is_full(table: Table) -> None:
    """size() of a map counts its entries."""
    table.put(lock=lock_map(7, e1=0, e2=0))
    with refused() as refusal:
        enter(table, "e3", max_waiters=2)
    assert sorted((refusal.item or {})["lock"]["queue"]) == ["e1", "e2"]
    assert sorted(enter(table, "e3", max_waiters=3)["queue"]) == ["e1", "e2", "e3"]


def test_enter_without_a_map_is_refused(table: Table) -> None:
    """A condition on missing paths is false and comes before the update: no error for the missing map."""
    for attributes in WITHOUT_MAP:
        table.put(**attributes)
        with refused() as refusal:
            enter(table)
        assert refusal.item == {"pk": "a", **attributes}


def test_enter_without_an_item_is_refused_without_an_image(table: Table) -> None:
    """No ``Item`` key in the error when there is no item."""
    with refused() as refusal:
        enter(table)
    assert refusal.item is None


def test_create_the_map(table: Table) -> None:
    """The map is made where there is none, also over NULL or an empty map."""
    for attributes in WITHOUT_MAP:
        table.put(balance=5, **attributes)
        assert create(table) == {"pk": "a", "balance": 5, "lock": lock_map(7)}


def test_create_the_map_of_a_missing_item_or_twice_is_refused(table: Table) -> None:
    """An embedded lock does not create its item, nor a second map."""
    with refused() as refusal:
        create(table)
    assert refusal.item is None
    for there in (lock_map(9), "padlock", {"by": "them"}):
        table.put(lock=there)
        with refused():
            create(table)


def test_create_the_row_of_a_name(table: Table) -> None:
    """A lock without an item creates its row, goes into one that has an empty lock, and into no other row."""
    assert create(table, NO_ROW_YET) == {"pk": "a", "lock": lock_map(7)}
    for there in (dict[str, Any](), None):
        table.put(balance=5, lock=there)
        assert create(table, NO_ROW_YET) == {"pk": "a", "balance": 5, "lock": lock_map(7)}
    for others in ({"balance": 5}, {"lock": "padlock"}, {"lock": lock_map(9)}):
        table.put(**others)
        with refused():
            create(table, NO_ROW_YET)
        assert table.get() == {"pk": "a", **others}


def test_renew(table: Table) -> None:
    """A heartbeat only goes up, and only under the ticket it was given for."""
    table.put(lock=lock_map(8, e1=3))
    renewed = renew(table, "e1", ticket=7, beat=4)["lock"]["queue"]["e1"]
    assert renewed == [7, {**entry(beat=4), "r": 2_000}]
    with refused() as refusal:
        renew(table, "e1", ticket=7, beat=4)
    assert (refusal.item or {})["lock"]["queue"]["e1"][1]["b"] == 4
    with refused():
        renew(table, "e1", ticket=6, beat=5)


def test_renew_of_a_missing_entry_is_refused(table: Table) -> None:
    """Comparison with a missing path is false and no error."""
    for attributes in ({}, {"lock": None}, {"lock": lock_map(7)}):
        table.put(**attributes)
        with refused():
            renew(table, "e1", ticket=7, beat=1)


def test_release(table: Table) -> None:
    """An entry leaves in one request, which returns the item; a second release is refused."""
    table.put(balance=5, lock=lock_map(9, e1=0, e2=0))
    left = {"pk": "a", "balance": 5, "lock": {"next": [9], "queue": {"e2": [8, entry()]}}}
    assert release(table, "e1") == left
    with refused() as refusal:
        release(table, "e1")
    assert list((refusal.item or {})["lock"]["queue"]) == ["e2"]


def test_release_of_the_last_entry_leaves_empty_maps(table: Table) -> None:
    """An emptied map stays: the next enter finds its parents."""
    table.put(lock=lock_map(8, e1=0))
    assert release(table)["lock"] == {"next": [8], "queue": {}}
    assert enter(table, "e2")["queue"] == {"e2": [8, entry("e2")]}


def test_evict_several_in_one_request(table: Table) -> None:
    """Dead entries leave together, each under the heartbeat it was last seen with; the evictor notes the ticket."""
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
    saved = {"pk": "a", "balance": 4, "size_": 4, "lock": {"next": [8], "queue": {}}}
    assert table.update(update, condition, **arguments) == saved
    with refused() as refusal:
        table.update(update, condition, **arguments)
    assert refusal.item == saved


def test_set_below_a_missing_map_is_invalid(table: Table) -> None:
    """A nested SET does not make its parents: the map must exist first."""
    for attributes in WITHOUT_MAP[:2]:
        table.put(**attributes)
        with refused(INVALID) as refusal:
            table.update(f"SET {MINE} = :entry", names=names(), values={":entry": [7, entry()]})
        assert "document path" in refusal.message, refusal.message


def test_set_from_a_missing_path_is_invalid(table: Table) -> None:
    """An operand that does not exist is an error, not a missing value."""
    table.put()
    with refused(INVALID) as refusal:
        table.update("SET x = y + :one", values={":one": 1})
    assert "refers to an attribute that does not exist" in refusal.message, refusal.message


def test_remove_of_a_missing_leaf_is_fine(table: Table) -> None:
    """REMOVE of an entry that is gone does nothing."""
    table.put(lock=lock_map(7))
    assert table.update(RELEASE, names=names())["lock"] == lock_map(7)


def test_overlapping_paths_are_invalid(table: Table) -> None:
    """One UpdateItem may not write a path twice: hence `list_append` puts the ticket into the entry."""
    table.put(lock=lock_map(8, e1=0))
    for update in (
        f"SET {MINE} = :v, {MINE}.#beat = :v",
        f"SET {MINE} = :v REMOVE {MINE}",
        "SET #lock = :v, #lock = :v",
    ):
        with refused(INVALID) as refusal:
            table.update(update, MAY_RELEASE, names=names(), values={":v": entry()})
        assert "overlap" in refusal.message, refusal.message


def test_a_map_and_an_entry_of_it_overlap(table: Table) -> None:
    """Also with a level between them."""
    table.put(lock=lock_map(8, e1=0))
    with refused(INVALID):
        table.update(f"SET #lock = :map REMOVE {MINE}", names=names(), values={":map": lock_map(8, e1=0)})


def test_lock_is_a_reserved_word(table: Table) -> None:
    """``lock`` needs a placeholder in every expression."""
    with refused(INVALID) as refusal:
        table.update("SET lock = :v", values={":v": 1})
    assert "reserved keyword: lock" in refusal.message, refusal.message


def test_remove_below_a_missing_map_is_invalid(table: Table) -> None:
    """REMOVE does not make the parents of a path, nor pass over their absence."""
    table.put()
    with refused(INVALID, unless=deviates(table.engine, "accepts REMOVE below a missing map")):
        table.update(RELEASE, names=names())
