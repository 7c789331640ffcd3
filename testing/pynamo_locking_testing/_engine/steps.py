"""Who takes the steps of DynamoDB's transactions: their callers while they wait, or no actor in particular."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.scheduler import Landing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking_testing._engine.faults import Faults
    from pynamo_locking_testing._engine.native import Native, Transaction
    from pynamo_locking_testing._engine.scheduler import Process, Scheduler
    from pynamo_locking_testing._engine.wire import Request

#: DynamoDB finishes a transaction that no caller waits for within that time, or at the next request after it.
LONGEST_S: Final = 5.0


class Steps:
    """Lets transactions go on.

    A caller that waits takes each step in its own turn, so that it can be interrupted there as at any request, and no
    time passes. Without a caller - it died, stands still or has given up - the next step is a landing.

    Args:
        native: knows what each step is.
        scheduler: says who runs.
        faults: are told that a landing is late.
        heard: is told of the end of a transaction without a caller.
    """

    def __init__(
        self, native: Native, scheduler: Scheduler, faults: Faults, heard: Callable[[Request, Fault | None, Any], None]
    ) -> None:
        self.native = native
        self._scheduler = scheduler
        self._faults = faults
        self._heard = heard

    def begin(self, request: Request) -> Transaction:
        """Begin a transaction; the caller of this decides who goes on with it."""
        return self.native.begin(request, self._scheduler.now, self._scheduler.time_ms())

    def wait_for(self, transaction: Transaction) -> None:
        while not transaction.is_over:
            self._scheduler.hand_over(transaction)
            self._take_back(transaction)
            self._step(transaction)

    def _step(self, transaction: Transaction) -> None:
        if not transaction.is_over:
            self.native.step(transaction, self._scheduler.time_ms())

    def leave(self, transaction: Transaction) -> None:
        """Let it go on by itself, at any later steps of the scheduler."""
        if transaction.landing is None and not transaction.is_over:
            transaction.landing = Landing(str(transaction), partial(self._land, transaction))
            self._scheduler.landings.append(transaction.landing)

    def detach_callers_of(self, process: Process) -> None:
        """Let transactions go on by themselves whose callers die or stand still now."""
        for transaction in self.native.running:
            actor = transaction.request.actor
            if actor is not None and actor.process is process:
                self.leave(transaction)

    def _land(self, transaction: Transaction) -> None:
        transaction.landing = None
        self._faults.last_at = self._scheduler.now
        self._step(transaction)
        if transaction.is_over:
            self._heard(transaction.request, Fault.LATE, transaction.outcome)
        else:
            self.leave(transaction)

    def _take_back(self, transaction: Transaction) -> None:
        if transaction.landing is not None:
            self._scheduler.landings.remove(transaction.landing)
            transaction.landing = None

    def finish_overdue(self) -> None:
        """Finish what no caller waits for and has taken too long: DynamoDB leaves nothing half done for ever."""
        for transaction in list(self.native.running):
            is_overdue = self._scheduler.now - transaction.begun_s > LONGEST_S
            while transaction.landing is not None and is_overdue:
                self._take_back(transaction)
                self._land(transaction)
