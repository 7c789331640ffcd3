"""Lock documents as they are shown."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

from pynamodb.expressions.operand import Path
from rich.text import Text

from pynamo_locking._io import inspection, listing, rows
from pynamo_locking.cli import output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.attributes import Attribute

    from pynamo_locking import Entry, LockableMixin, LockState


def found(
    model: type[LockableMixin], prefix: str | None, *, with_free: bool
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the locks of a model's items, or of its table of locks, by name; and what is wrong with broken ones.

    Args:
        model: whose locks.
        prefix: with which the names begin: hash keys that are strings, or the names of locks.
        with_free: also those that nobody has or waits for.

    Cost: a consistent scan of the table that carries the locks.
    """
    attribute = model._lock_attribute()
    carrier: Any = model if attribute is not None else model._lock_table()
    lock = carrier._lock_attribute().attr_name
    begin = prefix if attribute is not None else f"{quote(model.Meta.table_name, safe='')}/{_quoted(prefix)}"
    condition = inspection.is_made(lock) if with_free else inspection.has_entries(lock)
    condition |= inspection.has_mark(lock)
    if begin:
        condition &= Path([carrier._hash_key_attribute().attr_name]).startswith(begin)
    made = [_document(model, each) for each in listing.locks_in(carrier, condition, is_consistent=True)]
    made.sort(key=lambda each: (each["name"], each["key"]["range"] or ""))
    broken = {each["name"]: each["unreadable"] for each in made if each["unreadable"]}
    return [each for each in made if not each["unreadable"]], broken


def _quoted(prefix: str | None) -> str:
    return quote(prefix or "", safe="")


def _document(model: type[LockableMixin], row: listing.Found) -> dict[str, Any]:
    """Return what is shown of the lock in a row that carries it."""
    stored = row.values
    attributes = listing.key_attributes(model)
    if model._lock_attribute() is None:
        name = stored[0]
        texts = _keys_in_name(name, attributes)
    else:
        name = stored[0] if model._lock_creates_item else rows.name_of(model, row.key)
        texts = [listing.key_to_text(each, value) for each, value in zip(attributes, stored, strict=True)]
    return document(name, [*texts, None, None][:2], row.state)


def _keys_in_name(name: str, attributes: list[Attribute[Any]]) -> list[str]:
    """Return the key of the item whose lock row has that name; nothing if it was too long for the name."""
    parts = name.split("/")[1:]
    if parts[0].startswith("#"):
        return []
    return [
        listing.key_to_text(each, unquote_to_bytes(part) if each.attr_type == "B" else unquote(part))
        for part, each in zip(parts, attributes, strict=False)
    ]


def document(name: str, key: list[str | None], state: LockState) -> dict[str, Any]:
    """Return what ``--json`` shows of a lock.

    Args:
        name: of the lock.
        key: hash key and range key of what is locked, in the form in which commands take them.
        state: of the lock.
    """
    mark = state.mark
    return {
        "name": name,
        "key": {"hash": key[0], "range": key[1]},
        "is_free": not state.entries and mark is None and not state.unreadable,
        "holders": [entry_document(entry) for entry in state.holders],
        "waiters": [entry_document(entry) for entry in state.waiters],
        "next_ticket": state.next_ticket or None,
        "broken_tickets": sorted(state.evicted.values()),
        "transaction": None if mark is None else {"id": mark.id, "table": mark.table, "operation": mark.op},
        "unreadable": state.unreadable or None,
    }


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return what ``--json`` shows of a holder, or of who waits."""
    claim = entry.claim
    return {
        "ticket": entry.ticket,
        "owner": entry.owner,
        "mode": entry.mode,
        "permits": claim.permits,
        "range_lower": None if claim.lower is None else _bound(claim.lower[1]),
        "range_upper": None if claim.upper is None else _bound(claim.upper[1]),
        "lease_s": entry.lease,
        "renewals": entry.beat,
        "guarded_writes": entry.writes,
        "since_renewal_s": entry.age,
        "lease_left_s": (entry.until_ms - entry.read_ms) / 1000,
        "lease_ends_at": output.text_of_ms(entry.until_ms),
    }


def _bound(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


COLUMNS = ("lock", "", "ticket", "owner", "mode", "renewed", "lease", "lease ends")


_STYLES: Final = {"holds": "green", "waits": "yellow"}


def shown(locks: list[dict[str, Any]], unreadable: Mapping[str, str]) -> list[tuple[object, ...]]:
    """Return the rows of the table for people: one for each entry, holders first; then the locks that are broken."""
    lines: list[tuple[object, ...]] = []
    for lock in locks:
        entries = [("holds", each) for each in lock["holders"]] + [("waits", each) for each in lock["waiters"]]
        mine: list[tuple[object, ...]] = [("", Text(role, _STYLES[role]), *_cells(entry)) for role, entry in entries]
        if lock["transaction"] is not None:
            what = f"transaction {lock['transaction']['id']}"
            mine.append(("", Text("marked", "magenta"), "", what, lock["transaction"]["operation"], "", "", ""))
        if not mine:
            mine.append(("", "free", "", "", "", "", "", ""))
        mine[0] = (lock["name"], *mine[0][1:])
        lines += mine
    lines += [(name, Text("broken", "bold red"), "", why, "", "", "", "") for name, why in unreadable.items()]
    return lines


def _cells(entry: Mapping[str, Any]) -> tuple[object, ...]:
    left = entry["lease_left_s"]
    ends = Text(f"in {output.duration(left)}") if left >= 0 else Text(f"{output.duration(-left)} ago", "bold red")
    return (
        entry["ticket"],
        entry["owner"],
        _mode(entry),
        f"{output.duration(entry['since_renewal_s'])} ago",
        output.duration(entry["lease_s"]),
        ends,
    )


def _mode(entry: Mapping[str, Any]) -> str:
    parts = [entry["mode"] if entry["permits"] == 1 else f"permits={entry['permits']}"]
    if entry["range_lower"] is not None or entry["range_upper"] is not None:
        parts.append(f"[{entry['range_lower'] or '...'}, {entry['range_upper'] or '...'})")
    return " ".join(parts)
