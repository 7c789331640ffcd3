"""Candidates for one leadership: some leaders resign, the work of some hangs, and some would lead for ever."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tests.simulation.checkers.base import Violation
from tests.simulation.history import Told
from tests.simulation.models import NO_HINTS, Names, Note
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime
from tests.support.parties import SLOW_CLOCK

if TYPE_CHECKING:
    from pynamo_locking.recipes import LeaderTerm
    from pynamo_locking_testing._engine.scheduler import Process
    from tests.simulation.history import History

#: The longest term of leaders that do not resign, in seconds.
LONGEST_S = 9.0


class Led:
    """A term, as the checkers see a lock."""

    def __init__(self, term: LeaderTerm) -> None:
        self._term = term
        self._handle = term._lock._handle
        self.ticket = term.ticket
        self.add_check_to = term.add_check_to

    @property
    def is_held(self) -> bool:
        """Whether the process believes to lead."""
        return self._term.is_leader


class Leaders(Workload):
    """Each party is a candidate until its work as the leader is over, and writes beside in each term."""

    name = "leaders"
    halves_seeds = True
    items = ((Names, "leader"), (Note, "n"))
    is_contended = True
    trusts_clocks = False

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._candidates: list[Process] = []
        self._terms: list[int] = []

    def party(self, index: int, turn: int) -> None:
        process = runtime.process()
        is_over = runtime.event()
        kind = (index + turn) % 3

        def work(term: LeaderTerm) -> None:
            if is_over.is_set():  # the thread that ends the block is paused: elected again, as others hold nothing
                return
            try:
                self.lead(term, kind)
            finally:
                is_over.set()

        self._candidates.append(process)
        longest: dict[str, Any] = {"max_hold": LONGEST_S} if kind else {}
        with Names.lead("leader", on_elected=work, settings=NO_HINTS, **longest):
            is_over.wait()
        self._candidates.remove(process)

    def lead(self, term: LeaderTerm, kind: int) -> None:
        """Resign after a while, lead for the longest term, or hang; the last two while others wait.

        Work that hangs does not ask whether it still leads.
        """
        led: Any = Led(term)
        row = place(Names, "leader")
        self.history.granted(led, row)
        if term.is_leader:
            self.elected(term)
        since = self.history.scheduler.now
        with self.history.held(led, row):
            self.write(led)
            for _ in range(2) if kind == 0 else iter(lambda: self.is_wanted(term), False):
                if kind != 2:
                    if not term.is_leader:
                        break
                    self.require_last(term)
                self.require_end(term, since, LONGEST_S if kind else math.inf)
                runtime.sleep(2.5)
            self.write(led)
        term.resign()

    def write(self, led: Any) -> None:
        """Write in a term; DynamoDB refuses that once a later one has begun, whatever the leader believes."""
        later = [ticket for ticket in self._terms if ticket > led.ticket]
        if self.write_beside(led).told is Told.APPLIED and later:
            self.history.scheduler.fail(Violation(f"Terms: written in term {led.ticket} after {later} had begun"))

    def elected(self, term: LeaderTerm) -> None:
        """Note a term; each is later than those before it."""
        if self._terms and term.ticket <= max(self._terms):
            self.history.scheduler.fail(Violation(f"Terms: {term} began after {self._terms}"))
        self._terms.append(term.ticket)

    def require_end(self, term: LeaderTerm, since: float, longest_s: float) -> None:
        """Look whether a term lasts longer than it may, on a clock that may be slow."""
        lasted_s = self.history.scheduler.now - since
        if term.is_leader and lasted_s > longest_s * SLOW_CLOCK:
            self.history.scheduler.fail(Violation(f"Terms: {term} lasts for {lasted_s:.1f} s"))

    def require_last(self, term: LeaderTerm) -> None:
        """Look whether the work of an earlier term was told to go on."""
        if self._terms and max(self._terms) > term.ticket:
            message = f"Terms: the work of {term} was told to go on in term {max(self._terms)}"
            self.history.scheduler.fail(Violation(message))

    def is_wanted(self, term: LeaderTerm) -> bool:
        """Tell whether another candidate that lives has not led since that term."""
        others = [each for each in self._candidates if each.is_alive]
        return len(others) > 1 and max(self._terms, default=0) <= term.ticket
