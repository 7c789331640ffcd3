"""Whether a history is linearizable: the search of Wing and Gong with Lowe's memory, as in porcupine.

Sources: Wing and Gong, Testing and Verifying Concurrent Objects (1993); Lowe, Testing for Linearizability (2017);
https://github.com/anishathalye/porcupine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Model(Protocol):
    """How an object behaves that does one thing after the other."""

    def initial(self) -> Hashable: ...

    def step(self, state: Any, action: Any) -> tuple[bool, Hashable]:
        """Tell whether an action, with its result, is possible in a state; and return the state after it."""
        ...


@dataclass(frozen=True)
class Call:
    """An action that took effect at one moment between two, both included.

    Attributes:
        called: when it began.
        returned: when it ended; infinite if that is unknown.
        action: what was done and what came back, as the model understands it.
        is_certain: False if it may not have happened at all.
    """

    called: float
    returned: float
    action: Any
    is_certain: bool = True


def is_linearizable(calls: Sequence[Call], model: Model) -> bool:
    """Tell whether there is an order of the calls that the model allows and real time does, too."""
    dead_ends: set[tuple[frozenset[int], Hashable]] = set()

    def search(left: frozenset[int], state: Hashable) -> bool:
        if not any(calls[index].is_certain for index in left):
            return True
        if (left, state) in dead_ends:
            return False
        dead_ends.add((left, state))
        first_return = min(calls[index].returned for index in left)
        for index in left:
            if calls[index].called <= first_return:
                is_possible, after = model.step(state, calls[index].action)
                if is_possible and search(left - {index}, after):
                    return True
        return False

    return search(frozenset(range(len(calls))), model.initial())


class RegisterModel:
    """One value. ``("read", value)`` sees it; ``("write", seen, value)`` replaces what it has seen."""

    def __init__(self, first: int = 0) -> None:
        self._first = first

    def initial(self) -> int:
        return self._first

    def step(self, state: Any, action: Any) -> tuple[bool, Hashable]:
        """Return whether what was seen is there, and the value from then on."""
        return state == action[1], state if action[0] == "read" else action[2]


FOREVER = math.inf
