"""Which locks this context holds, and under which entry an item is written.

The held entries of a context are in a context variable. So threads and tasks that are started under a lock write under
it, although they do not hold it. An entry belongs to the thread or task that has acquired it, which may acquire the
lock again without a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._io import runtime
from pynamo_locking._items import versions
from pynamo_locking._locks.held_lock import HeldEntry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamodb.models import Model

    from pynamo_locking._core.lock_modes import LockMode
    from pynamo_locking._io.lock_record import LockRow


#: A context keeps its entries in so many parts, and a change copies one part: after n acquisitions, a 256th of n.
_PARTS: Final = 256
_Held = Mapping[int, tuple[HeldEntry, ...]]
held_by_context: ContextVar[_Held] = ContextVar("pynamo_locking_held", default={})  # noqa: B039 - never mutated


def add(held: HeldEntry) -> None:
    number = _number(held.row)
    parts = _parts_without(held, number)
    held_by_context.set({**parts, number: (*parts.get(number, ()), held)})


def remove(held: HeldEntry) -> None:
    """Let this context hold an entry no longer. One that is over is skipped, and removed with a later change."""
    number = _number(held.row)
    if held in held_by_context.get().get(number, ()):
        held_by_context.set(_parts_without(held, number))


def _number(row: LockRow) -> int:
    return hash(row.identity) % _PARTS


def _parts_without(held: HeldEntry, number: int) -> dict[int, tuple[HeldEntry, ...]]:
    """Return what this context holds, except an entry of a part, and those in it and the oldest part that are over."""
    parts = dict(held_by_context.get())
    for part in (next(iter(parts), number), number):
        if part not in parts:
            continue
        kept = tuple([each for each in parts.pop(part) if each is not held and not each.ownership.is_over])
        if kept:
            parts[part] = kept
    return parts


def _entries_in(row: LockRow) -> tuple[HeldEntry, ...]:
    """Return our entries in that lock that this context has not released, the last one first."""
    part = reversed(held_by_context.get().get(_number(row), ()))
    return tuple(held for held in part if held.row.identity == row.identity and not held.ownership.is_over)


def entry_in(row: LockRow, *extents: LockMode) -> HeldEntry | None:
    """Return our entry in that lock that this context has not released: of all of it, or of a part of the extents."""
    entries = _entries_in(row) if held_by_context.get() else ()
    return next(
        (
            held
            for held in entries
            if (
                any(held.entry.lock_mode.intersects(extent) for extent in extents)
                if extents
                else not held.entry.lock_mode.is_ranged
            )
        ),
        None,
    )


def holds_nothing() -> bool:
    """Tell whether this context knows of no entry. It may know some that are over: see `holds_a_lock`."""
    return not held_by_context.get()


def holds_a_lock() -> bool:
    """Tell whether this context holds a lock that it has neither released nor lost."""
    return any(held.ownership.is_held for part in held_by_context.get().values() for held in part)


def read_under(item: Model) -> HeldEntry | None:
    """Return the entry under which an instance was read; None if it was read outside of a lock."""
    return versions.noted(item, HeldEntry)


def entry_for_write(held: HeldEntry | None, row: LockRow) -> HeldEntry | None:
    """Return the entry under which an item is written: the one it was read under, if that is given, or the context's.

    Raises:
        LockLost: that entry is known to be lost.
    """
    if held is not None and held.row is not row and held.row.identity != row.identity:
        held = None  # the item got another key since it was read
    if held is None or (held.ownership.is_over and not held.ownership.reason):
        held = entry_in(row)
    return usable(held)


def entry_held_here(row: LockRow, lock_mode: LockMode, last: HeldEntry | None) -> HeldEntry | None:
    """Return the entry of this thread or task that covers a mode; `last` if that does.

    Raises:
        ConfigurationError: an entry of this thread or task conflicts, behind which it would wait for ever.
    """
    if holds_nothing():
        return None
    here = runtime.current.thread_or_task()
    entries = [held for held in _entries_in(row) if held.thread_or_task == here]
    covering = [held for held in entries if held.entry.lock_mode.covers(lock_mode)]
    found = last if last in covering else next(iter(covering), None)
    in_the_way = next((held for held in entries if held.entry.lock_mode.conflicts(lock_mode)), None)
    if found is None and in_the_way is not None and not in_the_way.ownership.is_copied:
        raise ConfigurationError(
            f"{row.label} is held {in_the_way.entry.lock_mode} here, and {lock_mode} was asked for: a lock is not "
            f"upgraded, since two holders that tried would wait for each other for ever. Acquire the whole lock from "
            f"the start, or release it, acquire it again, and read again."
        )
    return found


def in_order(entries: Iterable[HeldEntry]) -> list[HeldEntry]:
    """Return entries in the order in which all writers lock them for writing, so that writers cannot deadlock."""
    return sorted(entries, key=lambda held: held.entry.id)


def usable(held: HeldEntry | None) -> HeldEntry | None:
    """Return an entry that a write may name, None if it has been released.

    Raises:
        LockLost: it is known to be lost.
        ConfigurationError: others may hold the lock, too, so it does not protect writes.
    """
    if held is None:
        return None
    if held.ownership.reason:
        raise held.loss()
    if held.ownership.is_over:
        return None
    held.refuse_if_shared()
    return held
