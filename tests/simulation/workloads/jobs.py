"""A job that is to succeed once in each period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from tests.simulation.models import Names
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime

if TYPE_CHECKING:
    from tests.simulation.history import History

#: So short that the parties of a run see a few.
PERIOD_S: Final = 30
AT_LEAST_S: Final = 12
#: Before a party asks, and for how long it waits then.
PAUSES_S: Final = (0.0, 20.0, 9.0)
WAITS_S: Final = (1000, 8, 0)


class Periods(Workload):
    """Some ask again later, some do not wait; some runs fail, and others use the same name without a period.

    Attributes:
        ended: the tickets of runs whose work was done; the others have failed, or are at work.
        answers: what callers were told of which period, and when.
    """

    name = "once in a period"
    halves_seeds = True
    items: ClassVar[tuple[tuple[Any, Any], ...]] = ((Names, "job"),)
    is_contended = True
    at_least_s = 0

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.ended = set[int]()

    def party(self, index: int, turn: int) -> None:
        runtime.sleep(PAUSES_S[self.pick(len(PAUSES_S), "pause")])
        if index == 2 and turn == 0:
            self.saves(Names.locked("job"))
            return
        once = Names.once("job", period=PERIOD_S, at_least=self.at_least_s, wait=WAITS_S[self.pick(3, "wait")])
        row = place(Names, "job")
        run: Any = None
        with self.history.taking("once", row):
            run = once.__enter__()
        if not run:
            return
        self.history.granted(run.lock, row)
        fails = self.pick(3, "failure") == 1
        try:
            with self.history.held(run.lock, row):
                runtime.sleep(2.0)
                if not fails:
                    self.ended.add(run.ticket)
        finally:
            self.end(once, run.ticket, fails=fails)

    def pick(self, count: int, what: str) -> int:
        return self.history.scheduler._choices.pick(count, what)

    def end(self, once: Any, ticket: int, *, fails: bool) -> None:
        """Leave the block of a run. One that fails hears of its own error, and not of a lost lock."""
        error = RuntimeError("the job has failed") if fails else None
        with self.history.taking("failure" if fails else "release", place(Names, "job"), ticket) as done:
            done.value = not fails
            once.__exit__(None, error, None)


class PeriodsApart(Periods):
    """The same with a shortest time between the beginnings of two runs."""

    name = "once in a period, at least apart"
    at_least_s = AT_LEAST_S
