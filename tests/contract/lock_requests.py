"""The requests of the lock document, as the design spells them (section 3), in plain expressions."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.contract.helpers import Table

QUEUE, NEXT = "#lock.#queue", "#lock.#next"
MINE = f"{QUEUE}.#me"
ALL_OLD: dict[str, Any] = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
WORDS = {
    "#lock": "lock",
    "#queue": "queue",
    "#next": "next",
    "#beat": "b",
    "#renewed": "r",
}

ENTER = f"SET {MINE} = list_append({NEXT}, :entry), {NEXT}[0] = {NEXT}[0] + :one"
MAY_ENTER = f"attribute_exists({NEXT}) AND attribute_not_exists({MINE}) AND size({QUEUE}) < :max"
RELEASE = f"REMOVE {MINE}"
MAY_RELEASE = f"attribute_exists({MINE})"
CREATE = "SET #lock = :map"
RENEW = f"SET {MINE}[1].#beat = :beat, {MINE}[1].#renewed = :renewed"
MAY_RENEW = f"{MINE}[0] = :ticket AND {MINE}[1].#beat < :beat"


def names(me: str = "e1", **more: str) -> dict[str, str]:
    return {**WORDS, "#me": me, **{f"#{key}": name for key, name in more.items()}}


def entry(owner: str = "o", beat: int = 0) -> dict[str, Any]:
    return {"o": owner, "l": 30_000, "b": beat, "e": 1_000, "w": 0}


def lock_map(next_ticket: int = 7, **beats: int) -> dict[str, Any]:
    """A lock map whose entries are given by their beats; they hold the tickets just before
    ``next_ticket``.
    """
    first = next_ticket - len(beats)
    return {
        "next": [next_ticket],
        "queue": {me: [first + place, entry(beat=beat)] for place, (me, beat) in enumerate(beats.items())},
    }


def enter(table: Table, me: str = "e1", pk: str = "a", *, max_waiters: int = 100, **options: Any) -> dict[str, Any]:
    """Enter the queue; the lock map after it."""
    values = {":entry": [entry(me)], ":one": 1, ":max": max_waiters}
    item = table.update(ENTER, MAY_ENTER, pk, names=names(me), values=values, **ALL_OLD, **options)
    lock: dict[str, Any] = item["lock"]
    return lock


def release(table: Table, me: str = "e1", pk: str = "a") -> dict[str, Any]:
    """Leave the queue; the item after it."""
    return table.update(RELEASE, MAY_RELEASE, pk, names=names(me), **ALL_OLD)


def renew(table: Table, me: str, ticket: int, beat: int) -> dict[str, Any]:
    values = {":ticket": Decimal(ticket), ":beat": beat, ":renewed": 2_000}
    return table.update(RENEW, MAY_RENEW, names=names(me), values=values, **ALL_OLD)
