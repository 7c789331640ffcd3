"""What people on call ask of locks: who holds them, who waits, and to break one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pynamo_locking._core import naming
from pynamo_locking._io import inspection, listing
from pynamo_locking.contrib._meta import with_tables
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking.models import LockableMixin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pynamo_locking._core.queue import LockState

logger = logging.getLogger("pynamo_locking")

#: What is shown of an entry, in this order.
COLUMNS = ("model", "key", "ticket", "state", "owner", "claim", "age", "lease")

Row = dict[str, Any]


def listed(models: Iterable[Any]) -> Iterator[Row]:
    """Yield an entry for each holder and waiter of all locks that these models have.

    Cost: a scan of each table that carries locks, eventually consistent: half a read unit for each 4 KB of it.
    """
    model: Any
    for model in with_tables(models):
        attribute = model._lock_attribute() if issubclass(model, LockableMixin) else None
        if attribute is not None:
            is_used = inspection.has_entries(attribute.attr_name)
            for found in listing.locks_in(model, is_used, is_consistent=False):
                texts = map(listing.key_to_text, listing.key_attributes(model), found.values)
                yield from _rows(model, list(texts), found.state)


def shown(models: Iterable[Any], name: str, key: Sequence[str]) -> list[Row]:
    """Return an entry for each holder and waiter of one lock. Cost: 1 consistent read.

    Args:
        models: where to look for the model.
        name: its class or table.
        key: the hash key, and the range key if it has one, as text; bytes in base 64. Without the range key: the
            ranges of that hash key.
    """
    model = _find(models, name)
    return list(_rows(model, key, model.lock_state(*_values(model, key))))


def broken(models: Iterable[Any], name: str, key: Sequence[str], ticket: int) -> bool:
    """Remove an entry from a queue, and write that into the log; return whether it was there.

    Cost: 1 read, 1 write.
    """
    model = _find(models, name)
    is_gone: bool = model.break_lock(*_values(model, key), ticket=ticket)
    what = "was broken by hand" if is_gone else "was to be broken by hand, and is not in the queue"
    logger.warning("ticket %d of the lock %s %s %s", ticket, name, naming.plain("/".join(key)), what)
    return is_gone


def table(rows: Iterable[Row]) -> str:
    """Return entries as lines of text, with a heading."""
    lines = [COLUMNS, *(tuple(_cell(row[column]) for column in COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, float) else naming.plain(value)


def _rows(model: Any, key: Sequence[str], state: LockState) -> Iterator[Row]:
    if state.unreadable:
        logger.warning("the lock %s %s is broken: %s", model.__name__, naming.plain("/".join(key)), state.unreadable)
    holding = {entry.ticket for entry in state.holders}
    for entry in state.entries:
        yield {
            "model": model.__name__,
            "key": "/".join(key),
            "ticket": entry.ticket,
            "state": "holds" if entry.ticket in holding else "waits",
            "owner": entry.owner,
            "claim": str(entry.claim),
            "age": round(entry.age, 1),
            "lease": entry.lease,
        }


def _find(models: Iterable[Any], name: str) -> Any:
    lockable = [model for model in with_tables(models) if issubclass(model, LockableMixin)]
    for model in lockable:
        if name in (model.__name__, model.Meta.table_name):
            return model
    known = ", ".join(model.__name__ for model in lockable) or "none"
    raise ConfigurationError(f"{name!r} is no model with locks; there are: {known}.")


def _values(model: Any, texts: Sequence[str]) -> list[Any]:
    keys = listing.key_attributes(model)
    if not 1 <= len(texts) <= len(keys):
        names = " and ".join(key.attr_name for key in keys)
        raise ConfigurationError(f"the key of {model.__name__} is {names}: {len(texts)} values were given.")
    return [listing.key_from_text(key, text) for key, text in zip(keys, texts, strict=False)]
