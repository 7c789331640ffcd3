"""States of a transaction to go back to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._io.unit import Unread

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._io.unit import Entry


class Savepoint:
    """A state of a transaction to go back to.

    Args:
        entries: those of the transaction.
        check_open: raises `ConfigurationError` once the transaction is over.
    """

    def __init__(self, entries: dict[Any, Entry], check_open: Callable[[], None] = lambda: None) -> None:
        self._entries = entries
        self._check_open = check_open
        self._saved = {key: entry.saved() for key, entry in entries.items() if not entry.is_unused}

    def rollback(self) -> None:
        """Make the transaction, and the instances in it, what they were. What was read since stays read.

        Another instance that still shows what was done since is refused by a later `save` until `refresh`.

        Raises:
            ConfigurationError: the transaction is over.
        """
        self._check_open()
        for key, entry in list(self._entries.items()):
            if key in self._saved:
                self._entries[key] = entry.gone_back(self._saved[key])
                continue
            entry.reset()
            if isinstance(entry.base, Unread) and not entry.is_read:
                del self._entries[key]
