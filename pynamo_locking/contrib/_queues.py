"""What operators ask of locks: to show the holders and the waiters, and to break a lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pynamo_locking import ConfigurationError, LockableMixin
from pynamo_locking._edge import inspection, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

logger = logging.getLogger("pynamo_locking")

#: What is shown of an entry, in this order.
COLUMNS = ("model", "key", "ticket", "state", "owner", "claim", "for", "age", "lease")

Row = dict[str, Any]


def listed(models: Iterable[Any]) -> Iterator[Row]:
    """Yield an entry for each holder and waiter of all locks that these models have.

    Cost: a scan of each table that carries locks, eventually consistent: half a read unit for each 4 KB of it.
    """
    model: Any
    for model in inspection.with_tables(models):
        if issubclass(model, LockableMixin) and model._lock_attribute() is not None:
            for lock in inspection.listed(model, is_consistent=False):
                yield from _rows(model, lock)


def shown(models: Iterable[Any], name: str, key: Sequence[str]) -> list[Row]:
    """Return an entry for each holder and waiter of one lock. Cost: 1 consistent read.

    The model is found by the name of its class or table. The key is text, with bytes in base 64. Without its range key
    it stands for the ranges of the hash key.
    """
    model = _find(models, name)
    state = model.lock_state(*inspection.keys_from_text(model, key))
    return list(_rows(model, inspection.shown("/".join(key), key, state)))


def broken(models: Iterable[Any], name: str, key: Sequence[str], ticket: int) -> bool:
    """Remove an entry from a queue, and write that into the log; return whether it was there.

    Cost: 1 read, 1 write.
    """
    model = _find(models, name)
    is_gone: bool = model.break_lock(*inspection.keys_from_text(model, key), ticket=ticket)
    what = "was broken by hand" if is_gone else "was to be broken by hand, and is not in the queue"
    logger.warning("ticket %d of the lock %s %s %s", ticket, name, plain("/".join(key)), what)
    return is_gone


def table(rows: Iterable[Row]) -> str:
    """Return entries as lines of text, with a heading."""
    lines = [COLUMNS, *(tuple(_cell(row[column]) for column in COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(value: Any) -> str:
    return f"{value:.1f} s" if isinstance(value, float) else plain(value)


def _rows(model: Any, lock: Row) -> Iterator[Row]:
    key = "/".join(filter(None, lock["key"].values()))
    if lock["unreadable"]:
        logger.warning("the lock %s %s is broken: %s", model.__name__, plain(key), lock["unreadable"])
    for state, entry in inspection.entries(lock):
        yield {
            "model": model.__name__,
            "key": key,
            "ticket": entry["ticket"],
            "state": state,
            "owner": entry["owner"],
            "claim": inspection.claim_of(entry),
            "for": round(inspection.lasted(entry), 1),
            "age": round(entry["since_renewal_s"], 1),
            "lease": entry["lease_s"],
        }


def _find(models: Iterable[Any], name: str) -> Any:
    lockable = [model for model in inspection.with_tables(models) if issubclass(model, LockableMixin)]
    for model in lockable:
        if name in (model.__name__, model.Meta.table_name):
            return model
    known = ", ".join(model.__name__ for model in lockable) or "none"
    raise ConfigurationError(f"{name!r} is no model with locks; there are: {known}.")
