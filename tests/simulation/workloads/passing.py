"""A lock that is passed on between processes: detached into a token, and attached by whoever has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.checkers.base import Violation
from tests.simulation.models import Account
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime

if TYPE_CHECKING:
    from pynamo_locking import Lock
    from tests.simulation.history import History

#: How long a step takes, and how long it is until the next one.
_PAUSE_S = 1.0


class Passing(Workload):
    """Each step attaches a token, or takes the lock; it saves; and it detaches the lock, or releases it.

    Steps are run twice: tokens stay, so that old ones are attached, and two processes attach one token.
    """

    name = "passing"
    items = ((Account, "a"),)
    is_contended = True

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._tokens: list[str] = []
        self._tickets: list[int] = []  # the one of each token

    def party(self, index: int, turn: int) -> None:
        pick = self.history.scheduler._choices.pick
        for _ in range(2):
            choice = pick(len(self._tokens) + 1, "token")
            newer = self._tickets[len(self._tokens) - choice + 1 :]
            lock: Lock[Any] = Account.attach(self._tokens[-choice]) if choice else Account.locked("a", wait=15)
            if not self.taken(lock):
                continue
            if choice and lock.ticket in newer:
                self.history.scheduler.fail(Violation(f"Passing: an old token of {lock} was attached"))
            try:
                self.save_locked(lock, _PAUSE_S)
                self.save_locked(lock, _PAUSE_S)
                if pick(3, "end"):
                    self.detach(lock)
            finally:
                self.leave(lock)
            runtime.sleep(_PAUSE_S)

    def leave(self, lock: Lock[Any]) -> None:
        """Give the lock back, unless it was detached."""
        if lock._handle.held_entry().ownership.is_over:
            lock.release()
        else:
            self.give_back(lock)

    def detach(self, lock: Lock[Any]) -> None:
        """Pass the lock on."""
        ticket = lock.ticket
        with self.history.taking("detach", place(Account, "a"), ticket):
            self._tokens.append(lock.detach())
            self._tickets.append(ticket)
