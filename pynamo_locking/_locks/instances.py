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
    """The instances of one item that the blocks of one thread or task share: one, unless it was read anew.

    A write of one instance makes the others old. Old instances are neither handed out nor saved: with a version
    DynamoDB refuses it, without one `versions.check_current` does. A refresh makes them current again.

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
        """Remember an instance that was read; return it, or an instance that another thread has read meanwhile."""
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
            return  # the lock has handed out instances of another model, or none
        self.writes += 1
        if knowledge.freshness(writer).why is Why.WRITTEN:  # DynamoDB has accepted an old instance
            del vars(writer)[knowledge._FRESHNESS]
        for item in self._given:
            if item is not writer:
                knowledge.mark_old(item, Why.WRITTEN)


class EditUndo:
    """The state of an instance, which has those copies, when an inner block began."""

    def __init__(self, item: Model, copies: Copies) -> None:
        self._item = item
        self._copies = copies
        self._writes = copies.writes
        self._values = copy.deepcopy(item.attribute_values)

    def restore(self, error: BaseException | None) -> None:
        """Restore the instance. It is old if it was stored in the block, or if `error` says that it may have been."""
        self._item.attribute_values = self._values
        if self._copies.writes != self._writes or isinstance(error, OutcomeUnknown):
            knowledge.mark_old(self._item, Why.WRITTEN)
