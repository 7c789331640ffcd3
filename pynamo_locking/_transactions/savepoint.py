"""States of a transaction to which it can go back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking._transactions.members import Members


class Savepoint:
    """A state of a transaction to which it can roll back; `check_open` raises once the transaction has ended."""

    def __init__(self, members: Members, check_open: Callable[[], None]) -> None:
        self._members = members
        self._check_open = check_open
        self._saved = {key: member.saved() for key, member in members.by_key.items() if not member.is_unused}
        self._moved = len(members.undo)

    def rollback(self) -> None:
        """Restore the transaction and its instances as they were. Items read since stay read, and are still checked.

        A later `save` refuses another instance that still shows changes made since, until `refresh`.

        Raises:
            ConfigurationError: the transaction has ended.
        """
        self._check_open()
        self._members.undo_from(self._moved)
        for key, member in list(self._members.by_key.items()):
            if key in self._saved:
                self._saved[key](member)
                continue
            member.reset()
            if member.is_unused:
                del self._members.by_key[key]
