"""Removes dead entries from the queue of a lock."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.naming import plain
from pynamo_locking._core.queue import EVICT_AT_ONCE, dead_among
from pynamo_locking._io import event_stream, lock_requests, reports, retries, runtime
from pynamo_locking._io.retries import Refused

if TYPE_CHECKING:
    from pynamo_locking._core.queue import LockState, QueueEntry
    from pynamo_locking._io.lock_document import LockRow
    from pynamo_locking._io.stored import Image


def evict_all(row: LockRow, state: LockState, model: type[Any]) -> bool:
    """Empty a queue in which all entries are dead; False if one may be alive."""
    settings = model.lock_settings()
    while state.entries:
        now_ms, image = runtime.current.time_ms(), None
        dead = dead_among(state.entries, {}, 0.0, now_ms, settings.max_clock_skew, settings.max_lease)
        if len(dead) == len(state.entries):
            with contextlib.suppress(retries.Unavailable):
                image = evict_dead(row, dead, state)
        if image is None:
            return False
        state = row.state(image)
    return True


logger = logging.getLogger("pynamo_locking")


def evict_dead(row: LockRow, dead: tuple[QueueEntry, ...], state: LockState) -> Image | None:
    """Remove dead entries of a document, up to `EVICT_AT_ONCE`; return the new image.

    None: nothing was removed, because the document has changed; perhaps an entry was renewed.
    """
    dead = dead[:EVICT_AT_ONCE]
    if not event_stream.is_logged("Evicted"):
        named = ", ".join(f"ticket {entry.ticket} of {plain(entry.owner)} (lease {entry.lease:g} s)" for entry in dead)
        logger.warning("evicting from the lock %s, as not renewed for a whole lease: %s", row.label, named)
    try:
        image = lock_requests.evict(row, dead, state.evicted)
    except Refused:
        return None
    if event_stream.listeners:
        reports.evicted(row, dead)
    return image
