"""What `OutcomeUnknown.resolve` says of a write in doubt, while copies of it are on their way."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.simulation.workloads.doubt import IdleHolders
from tests.simulation.workloads.transacting import Transacting

if TYPE_CHECKING:
    from tests.simulation.history import History


class ResolvedWrites(IdleHolders):
    """Saves, alone and in a transaction, beside holders that are in the way of them and of the answer."""

    name = "resolved writes"
    halves_seeds = True
    most_actions = 100  # as ever; but a transaction takes steps, and a read may show what was before it

    def __init__(self, history: History) -> None:
        super().__init__(history)
        history.resolves = True


class ResolvedTransactions(Transacting):
    """Native ones with a record, or with a key that the next attempt has as well: it must not find it given away."""

    name = "resolved transactions"
    halves_seeds = True
    most_actions = 4

    def __init__(self, history: History) -> None:
        super().__init__(history)
        history.resolves = True
        self._numbers = itertools.count()

    def party(self, index: int, turn: int) -> None:
        """Write once with a record, or until it is done with a key."""
        number = next(self._numbers)
        if (index + turn) % 2:
            self.transact("", "ab", record=True)
        else:
            self.repeatedly("", "bc", idempotency_key=f"key {number}")
