"""What an instance remembers of writes with an unknown outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pynamo_locking._models.writing import GuardedMixin

#: Where an instance notes them.
_NAME: Final = "_pynamo_locking_unsure"

#: The kinds of writes. A save stores all values of the instance. A move does too, with another interval, which the
#: instance shows only afterwards. An update applies actions, whose result the instance does not show before.
SAVE: Final = "save"
MOVE: Final = "move"
UPDATE: Final = "update"

#: The kinds of unknown writes that each kind may follow with other values. A save after an unknown update would undo
#: it, since the instance does not show the update: if the update was applied, the instance is stale.
_FOLLOWS: Final = {SAVE: (SAVE,), MOVE: (SAVE, MOVE), UPDATE: (SAVE, MOVE, UPDATE)}


@dataclass(frozen=True)
class Unsure:
    """A write with an unknown outcome; `asked` is a digest of its request."""

    write_id: str
    kind: str
    asked: str

    def may_be_followed_by(self, kind: str) -> bool:
        """Tell whether a write of that kind, with other values, undoes nothing that its caller has not seen."""
        return self.kind in _FOLLOWS[kind]


def unsure_of(item: GuardedMixin) -> tuple[Unsure, ...]:
    """Return the writes of an instance with an unknown outcome."""
    known: tuple[Unsure, ...] = vars(item).get(_NAME, ())
    return known


def note_unsure(item: GuardedMixin, unsure: Unsure) -> None:
    """Remember a write with an unknown outcome."""
    vars(item)[_NAME] = (*unsure_of(item), unsure)


def forget_unsure(item: GuardedMixin) -> None:
    """Forget the writes, whose outcome is known now."""
    vars(item).pop(_NAME, None)


class Memory:
    """The state of an instance before it became part of a transaction."""

    def __init__(self, item: GuardedMixin) -> None:
        self._item = item
        self._state, self._values = dict(vars(item)), dict(item.attribute_values)

    def restore(self) -> None:
        """Restore the state, except for the remembered writes."""
        state, unsure = vars(self._item), unsure_of(self._item)
        state.clear()
        state.update(self._state)
        self._item.attribute_values = dict(self._values)
        if unsure:
            state[_NAME] = unsure
