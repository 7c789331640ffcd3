"""Removes dead entries from the queue of a lock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pynamo_locking._core.naming import plain
from pynamo_locking._core.queue import EVICT_AT_ONCE
from pynamo_locking._io import events, requests
from pynamo_locking._io.requests import Refused

if TYPE_CHECKING:
    from pynamo_locking._core.queue import Entry, LockState
    from pynamo_locking._io.requests import Image, Row

logger = logging.getLogger("pynamo_locking")


def evict_dead(row: Row, dead: tuple[Entry, ...], state: LockState) -> Image | None:
    """Remove dead entries of a document, the first ones if there are many; return the new image.

    None: the document has changed, so that nothing was removed; perhaps one of them proved to be alive.
    """
    dead = dead[:EVICT_AT_ONCE]
    if not events.is_logged("Evicted"):
        named = ", ".join(f"ticket {entry.ticket} of {plain(entry.owner)} (lease {entry.lease:g} s)" for entry in dead)
        logger.warning("evicting from the lock %s, as not renewed for a whole lease: %s", row.label, named)
    try:
        image = requests.evict(row, dead, state.evicted)
    except Refused:
        return None
    if events.listeners:
        events.tell.evicted(row, dead)
    return image
