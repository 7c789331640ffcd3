"""Locks as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from pynamo_locking._edge import inspection
from pynamo_locking.cli import output

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = ("lock", "", "ticket", "owner", "mode", "renewed", "lease", "lease ends")

_STYLES: Final = {"holds": "green", "waits": "yellow"}


def lines(locks: list[dict[str, Any]], unreadable: Mapping[str, str]) -> list[tuple[object, ...]]:
    """Return the rows of the table for people: one for each entry, holders first; then the locks that are broken."""
    made: list[tuple[object, ...]] = []
    for lock in locks:
        entries = inspection.entries(lock)
        mine: list[tuple[object, ...]] = [("", Text(role, _STYLES[role]), *_cells(entry)) for role, entry in entries]
        if lock["transaction"] is not None:
            what = f"transaction {lock['transaction']['id']}"
            mine.append(("", Text("marked", "magenta"), "", what, lock["transaction"]["operation"], "", "", ""))
        if not mine:
            mine.append(("", "free", "", "", "", "", "", ""))
        mine[0] = (lock["name"], *mine[0][1:])
        made += mine
    made += [(name, Text("broken", "bold red"), "", why, "", "", "", "") for name, why in unreadable.items()]
    return made


def _cells(entry: Mapping[str, Any]) -> tuple[object, ...]:
    left = entry["lease_left_s"]
    ends = Text(f"in {output.duration(left)}") if left >= 0 else Text(f"{output.duration(-left)} ago", "bold red")
    return (
        entry["ticket"],
        entry["owner"],
        inspection.claim_of(entry),
        f"{output.duration(entry['since_renewal_s'])} ago",
        output.duration(entry["lease_s"]),
        ends,
    )
