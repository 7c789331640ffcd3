"""The lock record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from certify.contract.rows import (
    ALL_OLD,
    CREATE,
    INVALID,
    MAY_RELEASE,
    MINE,
    QUEUE,
    RELEASE,
    enter,
    entry,
    holds,
    lock_map,
    names,
    same,
)
from certify.contract.rows import release as _release
from certify.contract.rows import renew as _renew

if TYPE_CHECKING:
    from certify.contract.rows import Rows


_EMPTY: Final = "#lock = :empty OR attribute_type(#lock, :null)"
_NO_MAP_YET: Final = f"attribute_exists(pk) AND attribute_not_exists(#lock) OR {_EMPTY}"
_NO_ROW_YET: Final = f"attribute_not_exists(pk) OR {_EMPTY}"
_WITHOUT_MAP: Final[tuple[dict[str, Any], ...]] = ({}, {"lock": None}, {"lock": {}})


def _create(rows: Rows, condition: str = _NO_MAP_YET) -> dict[str, Any]:
    values = {":map": lock_map(7), ":empty": {}, ":null": "NULL"}
    return rows.update(CREATE, condition, names=names(), values=values)


def enter_takes_the_old_counter_as_ticket(rows: Rows) -> None:
    """On the right-hand side of SET, a path has the value from before the update.

    So it does when the same update changes a part of it.
    """
    rows.put(balance=5, lock=lock_map(7))
    same(enter(rows, "e1"), {"next": [8], "queue": {"e1": [7, entry("e1")]}})
    same(enter(rows, "e2")["queue"], {"e1": [7, entry("e1")], "e2": [8, entry("e2")]})


def enter_returns_the_whole_item(rows: Rows) -> None:
    """ALL_NEW brings the item that the lock protects along: a locked read costs no request of its own."""
    rows.put(balance=5, lock=lock_map(7))
    enter(rows)
    item = rows.update("SET balance = :b", values={":b": 4})
    same((item["balance"], list(item["lock"]["queue"])), (4, ["e1"]))


def enter_twice_is_refused_with_the_entry_in_the_old_image(rows: Rows) -> None:
    """A second attempt after a lost response finds its own first write."""
    rows.put(lock=lock_map(7))
    enter(rows, "e1")
    with rows.refused() as refusal:
        enter(rows, "e1")
    same((refusal.item or {})["lock"]["queue"], {"e1": [7, entry("e1")]})


def enter_is_refused_when_the_queue_is_full(rows: Rows) -> None:
    """size() of a map counts its entries."""
    rows.put(lock=lock_map(7, e1=0, e2=0))
    with rows.refused() as refusal:
        enter(rows, "e3", max_waiters=2)
    same(sorted((refusal.item or {})["lock"]["queue"]), ["e1", "e2"])
    same(sorted(enter(rows, "e3", max_waiters=3)["queue"]), ["e1", "e2", "e3"])


def enter_without_a_map_is_refused(rows: Rows) -> None:
    """A condition on missing paths is false and comes before the update: no error for the missing map."""
    for attributes in _WITHOUT_MAP:
        rows.put(**attributes)
        with rows.refused() as refusal:
            enter(rows)
        same(refusal.item, {"pk": "a", **attributes})


def enter_without_an_item_is_refused_without_an_image(rows: Rows) -> None:
    """No ``Item`` key in the error when there is no item."""
    with rows.refused() as refusal:
        enter(rows)
    same(refusal.item, None)


def create_the_map(rows: Rows) -> None:
    """The map is made where there is none, also over NULL or an empty map."""
    for attributes in _WITHOUT_MAP:
        rows.put(balance=5, **attributes)
        same(_create(rows), {"pk": "a", "balance": 5, "lock": lock_map(7)})


def create_the_map_of_a_missing_item_or_twice_is_refused(rows: Rows) -> None:
    """An embedded lock does not create its item, nor a second map."""
    with rows.refused() as refusal:
        _create(rows)
    same(refusal.item, None)
    for there in (lock_map(9), "padlock", {"by": "them"}):
        rows.put(lock=there)
        with rows.refused():
            _create(rows)


def create_the_row_of_a_name(rows: Rows) -> None:
    """A lock without an item creates its row, goes into one that has an empty lock, and into no other row."""
    same(_create(rows, _NO_ROW_YET), {"pk": "a", "lock": lock_map(7)})
    for there in (dict[str, Any](), None):
        rows.put(balance=5, lock=there)
        same(_create(rows, _NO_ROW_YET), {"pk": "a", "balance": 5, "lock": lock_map(7)})
    for others in ({"balance": 5}, {"lock": "padlock"}, {"lock": lock_map(9)}):
        rows.put(**others)
        with rows.refused():
            _create(rows, _NO_ROW_YET)
        same(rows.get(), {"pk": "a", **others})


def renew(rows: Rows) -> None:
    """A heartbeat only goes up, and only under the ticket it was given for."""
    rows.put(lock=lock_map(8, e1=3))
    renewed = _renew(rows, "e1", ticket=7, beat=4)["lock"]["queue"]["e1"]
    same(renewed, [7, {**entry(beat=4), "r": 2_000}])
    with rows.refused() as refusal:
        _renew(rows, "e1", ticket=7, beat=4)
    same((refusal.item or {})["lock"]["queue"]["e1"][1]["b"], 4)
    with rows.refused():
        _renew(rows, "e1", ticket=6, beat=5)


def renew_of_a_missing_entry_is_refused(rows: Rows) -> None:
    """Comparison with a missing path is false and no error."""
    for attributes in ({}, {"lock": None}, {"lock": lock_map(7)}):
        rows.put(**attributes)
        with rows.refused():
            _renew(rows, "e1", ticket=7, beat=1)


def release(rows: Rows) -> None:
    """An entry leaves in one request, which returns the item; a second release is refused."""
    rows.put(balance=5, lock=lock_map(9, e1=0, e2=0))
    left = {"pk": "a", "balance": 5, "lock": {"next": [9], "queue": {"e2": [8, entry()]}}}
    same(_release(rows, "e1"), left)
    with rows.refused() as refusal:
        _release(rows, "e1")
    same(list((refusal.item or {})["lock"]["queue"]), ["e2"])


def release_of_the_last_entry_leaves_empty_maps(rows: Rows) -> None:
    """An emptied map stays: the next enter finds its parents."""
    rows.put(lock=lock_map(8, e1=0))
    same(_release(rows)["lock"], {"next": [8], "queue": {}})
    same(enter(rows, "e2")["queue"], {"e2": [8, entry("e2")]})


def evict_several_in_one_request(rows: Rows) -> None:
    """Dead entries leave together, each under the heartbeat it was last seen with; the evictor notes the ticket."""
    rows.put(lock={**lock_map(10, e1=3, e2=5, e3=0), "evicted": {}})
    update = f"REMOVE {QUEUE}.#x, {QUEUE}.#y SET #lock.#evicted.#slot = :ticket"
    condition = f"{QUEUE}.#x[1].#beat = :bx AND {QUEUE}.#y[1].#beat = :by"
    placeholders = names(x="e1", y="e2", evicted="evicted", slot="0")
    with rows.refused():
        rows.update(update, condition, names=placeholders, values={":ticket": 8, ":bx": 3, ":by": 6})
    lock = rows.update(update, condition, names=placeholders, values={":ticket": 8, ":bx": 3, ":by": 5})["lock"]
    same(lock, {"next": [10], "queue": {"e3": [9, entry()]}, "evicted": {"0": 8}})


def save_and_release_in_one_request(rows: Rows) -> None:
    """Attributes and the queue change in one UpdateItem under the guard."""
    rows.put(balance=5, colour="red", lock=lock_map(8, e1=0))
    update, condition = f"SET balance = :b, size_ = :b {RELEASE}, colour", f"attribute_exists({MINE})"
    arguments: dict[str, Any] = {"names": names(), "values": {":b": 4}, **ALL_OLD}
    saved = {"pk": "a", "balance": 4, "size_": 4, "lock": {"next": [8], "queue": {}}}
    same(rows.update(update, condition, **arguments), saved)
    with rows.refused() as refusal:
        rows.update(update, condition, **arguments)
    same(refusal.item, saved)


def set_below_a_missing_map_is_invalid(rows: Rows) -> None:
    """A nested SET does not make its parents: the map must exist first."""
    for attributes in _WITHOUT_MAP[:2]:
        rows.put(**attributes)
        with rows.refused(INVALID) as refusal:
            rows.update(f"SET {MINE} = :entry", names=names(), values={":entry": [7, entry()]})
        holds("document path" in refusal.message, refusal.message)


def set_from_a_missing_path_is_invalid(rows: Rows) -> None:
    """An operand that does not exist is an error, not a missing value."""
    rows.put()
    with rows.refused(INVALID) as refusal:
        rows.update("SET x = y + :one", values={":one": 1})
    holds("refers to an attribute that does not exist" in refusal.message, refusal.message)


def remove_of_a_missing_leaf_is_fine(rows: Rows) -> None:
    """REMOVE of an entry that is gone does nothing."""
    rows.put(lock=lock_map(7))
    same(rows.update(RELEASE, names=names())["lock"], lock_map(7))


def overlapping_paths_are_invalid(rows: Rows) -> None:
    """One UpdateItem may not write a path twice: hence `list_append` puts the ticket into the entry."""
    rows.put(lock=lock_map(8, e1=0))
    for update in (
        f"SET {MINE} = :v, {MINE}.#beat = :v",
        f"SET {MINE} = :v REMOVE {MINE}",
        "SET #lock = :v, #lock = :v",
    ):
        with rows.refused(INVALID) as refusal:
            rows.update(update, MAY_RELEASE, names=names(), values={":v": entry()})
        holds("overlap" in refusal.message, refusal.message)


def a_map_and_an_entry_of_it_overlap(rows: Rows) -> None:
    """Also with a level between them."""
    rows.put(lock=lock_map(8, e1=0))
    with rows.refused(INVALID):
        rows.update(f"SET #lock = :map REMOVE {MINE}", names=names(), values={":map": lock_map(8, e1=0)})


def lock_is_a_reserved_word(rows: Rows) -> None:
    """``lock`` needs a placeholder in every expression."""
    with rows.refused(INVALID) as refusal:
        rows.update("SET lock = :v", values={":v": 1})
    holds("reserved keyword: lock" in refusal.message, refusal.message)
