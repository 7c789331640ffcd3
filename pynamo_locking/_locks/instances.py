"""The instances of a locked item that were handed out under one entry, and which of them are old."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.freshness import Why
from pynamo_locking._items import knowledge
from pynamo_locking.exceptions import OutcomeUnknown

if TYPE_CHECKING:
    from pynamodb.models import Model


class Copies:
    """The instances of one item that blocks of one thread or task have: one, unless it was read anew.

    Whoever writes one of them makes the others old. Those are not handed out any more, and not saved either: with a
    version DynamoDB refuses it, without one `versions.check_current` does. Each is right again once it is refreshed.

    Attributes:
        writes: how many writes of the item are known to have been applied.
        edits: how many `edit` blocks are going to save the item.
    """

    def __init__(self) -> None:
        self._given: list[Any] = []
        self.writes = 0
        self.edits = 0

    @property
    def current(self) -> Any:
        """The instance to be handed out; None if there is none, or it is old."""
        newest = self._given[-1] if self._given else None
        return None if newest is None or knowledge.is_old(newest) else newest

    def hand_out(self, item: Model) -> Any:
        """Remember an instance that was read; return that, or the one that somebody else has read meanwhile."""
        current = self.current
        if current is None:
            self._given.append(item)
            return item
        return current

    def forget(self) -> None:
        """Let the item be read anew."""
        self._given.clear()

    def note_write(self, writer: Model) -> None:
        """Note that a write of an instance was applied."""
        if not any(isinstance(writer, type(item)) or isinstance(item, type(writer)) for item in self._given):
            return  # what the lock has handed out is something else, or nothing
        self.writes += 1
        if knowledge.freshness(writer).why is Why.WRITTEN:  # it was saved although it was old
            del vars(writer)[knowledge._FRESHNESS]
        for item in self._given:
            if item is not writer:
                knowledge.mark_old(item, Why.WRITTEN)


class EditUndo:
    """What an instance was when an inner block began.

    Args:
        item: the instance.
        copies: those of its entry.
    """

    def __init__(self, item: Model, copies: Copies) -> None:
        self._item = item
        self._copies = copies
        self._writes = copies.writes
        self._values = copy.deepcopy(item.attribute_values)

    def restore(self, error: BaseException | None) -> None:
        """Take back what was done to the instance since; it is old if something was stored, or may have been.

        Args:
            error: why.
        """
        self._item.attribute_values = self._values
        if self._copies.writes != self._writes or isinstance(error, OutcomeUnknown):
            knowledge.mark_old(self._item, Why.WRITTEN)
