"""What an instance remembers of writes of which nobody knows whether they were applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pynamo_locking._models.writing import GuardedMixin

#: Where an instance notes them.
_NAME: Final = "_pynamo_locking_unsure"

#: What a write was: all values of the instance as the caller has set them; the same with another interval, which is
#: in the instance only once that is done; actions, of which nothing is in the instance before.
SAVE: Final = "save"
MOVE: Final = "move"
UPDATE: Final = "update"

#: After which writes another one may follow that asks for something else. A save after an update of which nobody knows
#: would take that back, since the instance does not show it: if the update was applied, the instance is stale.
_FOLLOWS: Final = {SAVE: (SAVE,), MOVE: (SAVE, MOVE), UPDATE: (SAVE, MOVE, UPDATE)}


@dataclass(frozen=True)
class Unsure:
    """A write of which nobody knows.

    Attributes:
        write_id: of the write.
        kind: what it was.
        asked: what was asked for; equal if the same was.
    """

    write_id: str
    kind: str
    asked: str

    def may_be_followed_by(self, kind: str) -> bool:
        """Tell whether a write that asks for something else takes back nothing that its caller has not seen."""
        return self.kind in _FOLLOWS[kind]


def unsure_of(item: GuardedMixin) -> tuple[Unsure, ...]:
    """Return the writes of an instance of which nobody knows."""
    known: tuple[Unsure, ...] = vars(item).get(_NAME, ())
    return known


def note_unsure(item: GuardedMixin, unsure: Unsure) -> None:
    """Add one."""
    vars(item)[_NAME] = (*unsure_of(item), unsure)


def forget_unsure(item: GuardedMixin) -> None:
    """Note that nothing is left to be known."""
    vars(item).pop(_NAME, None)


class Memory:
    """What an instance was before it became part of a transaction."""

    def __init__(self, item: GuardedMixin) -> None:
        self._item = item
        self._state, self._values = dict(vars(item)), dict(item.attribute_values)

    def restore(self) -> None:
        """Make it that again, but for what it remembers."""
        state, unsure = vars(self._item), unsure_of(self._item)
        state.clear()
        state.update(self._state)
        self._item.attribute_values = dict(self._values)
        if unsure:
            state[_NAME] = unsure
