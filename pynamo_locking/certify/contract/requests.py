"""The requests of the lock document, as the design spells them, in plain expressions."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking.certify.contract.rows import ALL_OLD

if TYPE_CHECKING:
    from pynamo_locking.certify.contract.rows import Rows

QUEUE: Final = "#lock.#queue"
NEXT: Final = "#lock.#next"
MINE: Final = f"{QUEUE}.#me"
_WORDS: Final = {"#lock": "lock", "#queue": "queue", "#next": "next", "#beat": "b", "#renewed": "r"}

ENTER: Final = f"SET {MINE} = list_append({NEXT}, :entry), {NEXT}[0] = {NEXT}[0] + :one"
MAY_ENTER: Final = f"attribute_exists({NEXT}) AND attribute_not_exists({MINE}) AND size({QUEUE}) < :max"
RELEASE: Final = f"REMOVE {MINE}"
MAY_RELEASE: Final = f"attribute_exists({MINE})"
CREATE: Final = "SET #lock = :map"
RENEW: Final = f"SET {MINE}[1].#beat = :beat, {MINE}[1].#renewed = :renewed"
MAY_RENEW: Final = f"{MINE}[0] = :ticket AND {MINE}[1].#beat < :beat"


def names(me: str = "e1", **more: str) -> dict[str, str]:
    """Return the names of expressions, for the entry of this caller."""
    return {**_WORDS, "#me": me, **{f"#{key}": name for key, name in more.items()}}


def entry(owner: str = "o", beat: int = 0) -> dict[str, Any]:
    """Return what an entry says."""
    return {"o": owner, "l": 30_000, "b": beat, "e": 1_000, "w": 0}


def lock_map(next_ticket: int = 7, **beats: int) -> dict[str, Any]:
    """Return a lock map with entries of these beats; they hold the tickets just before ``next_ticket``."""
    first = next_ticket - len(beats)
    return {
        "next": [next_ticket],
        "queue": {me: [first + place, entry(beat=beat)] for place, (me, beat) in enumerate(beats.items())},
    }


def enter(rows: Rows, me: str = "e1", pk: str = "a", *, max_waiters: int = 100, **options: Any) -> dict[str, Any]:
    """Enter the queue; return the lock map after it."""
    values = {":entry": [entry(me)], ":one": 1, ":max": max_waiters}
    item = rows.update(ENTER, MAY_ENTER, pk, names=names(me), values=values, **ALL_OLD, **options)
    lock: dict[str, Any] = item["lock"]
    return lock


def release(rows: Rows, me: str = "e1", pk: str = "a") -> dict[str, Any]:
    """Leave the queue; return the item after it."""
    return rows.update(RELEASE, MAY_RELEASE, pk, names=names(me), **ALL_OLD)


def renew(rows: Rows, me: str, ticket: int, beat: int) -> dict[str, Any]:
    """Renew an entry; return the item after it."""
    values = {":ticket": Decimal(ticket), ":beat": beat, ":renewed": 2_000}
    return rows.update(RENEW, MAY_RENEW, names=names(me), values=values, **ALL_OLD)
