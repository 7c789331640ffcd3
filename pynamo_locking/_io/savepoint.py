"""States of a transaction to go back to."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pynamo_locking._io.unit import Unread

if TYPE_CHECKING:
    from pynamo_locking._io.unit import Entry


class Savepoint:
    """A state of a transaction to go back to.

    Args:
        entries: those of the transaction.
    """

    def __init__(self, entries: dict[Any, Entry]) -> None:
        self._entries = entries
        self._saved = {
            key: (copy.copy(entry), copy.deepcopy(entry.item.attribute_values)) for key, entry in entries.items()
        }

    def rollback(self) -> None:
        """Make the transaction, and the instances in it, what they were. What was read since stays read."""
        for key, entry in list(self._entries.items()):
            if key in self._saved:
                saved, values = self._saved[key]
                self._entries[key] = copy.copy(saved)
                saved.item.attribute_values = copy.deepcopy(values)
                self._entries[key].is_read = saved.is_read or entry.is_read
            elif isinstance(entry.base, Unread) and not entry.is_read:
                del self._entries[key]
            else:
                entry.reset()
