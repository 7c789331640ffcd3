"""What must be true of callers of one process that share an entry: whose turn it is, and under which ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pynamo_locking_testing._engine.faults import Fault
from tests.simulation.checkers.base import Checker, content_of, handed_over, queue_of
from tests.simulation.checkers.entries import acts_for
from tests.simulation.models import WITHOUT_LOCK

if TYPE_CHECKING:
    from pynamo_locking_testing._engine.network import Change, Place, Request
    from pynamo_locking_testing._engine.scheduler import Process
    from tests.simulation.history import Grant, Operation
    from tests.simulation.run import Run


class Growing(Checker):
    """The tickets of accepted writes grow: each caller's is larger than those of all callers that wrote before it.

    Also within the tickets that a process draws at once, and whatever becomes of its requests.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._last: dict[Place, tuple[int, int, str]] = {}

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Compare each write under a lock with the one before it, in the same lock document."""
        for change in changes:
            row = self.run.workload.row_of(change.place)
            done: Operation | None = request.purpose and request.purpose.part_at(change.place)
            ticket = None if done is None or row is None else done.ticket_for(row)
            may_be_range = len(change.place.key) > 1 or change.place.table in WITHOUT_LOCK
            if row is None or ticket is None or may_be_range or content_of(change.before) == content_of(change.after):
                continue
            state = queue_of(change.before if row == change.place else self.run.network.image(row))
            own = next((entry for entry in state.entries if entry.ticket == ticket), None)
            # Whoever attaches a token goes on with its ticket, and nobody else.
            goes_on = own is not None and own.token_id != "" and done is not None and acts_for(done.actor, own)
            writer = "" if own is None else own.id
            since, last, before = self._last.get(row, (state.since, 0, ""))
            self.require(
                since != state.since
                or ticket > last
                or (ticket == last and (writer == before or own is None or goes_on)),
                f"{done} wrote with ticket {ticket} after one of {last}",
            )
            self._last[row] = state.since, ticket, writer or before


class Draw(NamedTuple):
    """Tickets that a process has drawn at once."""

    process: Process
    place: Place
    moment: int
    first: int
    callers: int


class Turns(Checker):
    """Callers of one process are served in the order in which they lined up, and soon have a ticket.

    A process that stands still for a lease may find all its callers awake at once, and the first of them without an
    entry: then the next one does not wait for it.

    No draw of a process has more tickets than a block. A draw passes a caller in line over if it has that many, so the
    caller is late by a block at most for each block of callers that were in line before it. One more draw may have been
    under way when the caller lined up. That is looked at where nothing has gone wrong: else tickets get lost.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._draws: list[Draw] = []
        self._looked_at = 0
        self._is_calm = True

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        self._is_calm &= request.step != "evict"
        for change in changes:
            before, after = queue_of(change.before), queue_of(change.after)
            old = {entry.id for entry in before.entries} | {*handed_over(before, after)}
            for entry in after.entries:
                if entry.id not in old and request.actor is not None:
                    moment = self.run.scheduler.moment()
                    process = request.actor.process
                    self._draws.append(Draw(process, change.place, moment, entry.ticket, entry.callers))
                    self.require(
                        entry.callers <= self.run.plan.block,
                        f"{request.actor} drew {entry.callers} tickets of {change.place} at once",
                    )

    def on_step(self) -> None:
        """Compare each caller that was served with those of its process that were served before."""
        grants = self.run.history.grants
        for i in range(self._looked_at, len(grants)):
            for other in grants[:i]:
                self._require_order(*sorted((other, grants[i]), key=lambda grant: grant.ticket))
        self._looked_at = len(grants)

    def _require_order(self, first: Grant, second: Grant) -> None:
        if self.run.faults.happened.keys() & {Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER}:
            return
        is_same = (first.actor.process, first.place) == (second.actor.process, second.place)
        if not (is_same and first.line and second.line and first.since == second.since):
            return
        self.require(
            second.line.joined > first.line.began,
            f"{second.place}: {second.actor} was in line before {first.actor} came, which was served first",
        )

    def at_end(self) -> None:
        run = self.run
        if run.faults.happened or run.plan.has_skew or run.history.broken or not self._is_calm:
            return
        grants = [grant for grant in run.history.grants if grant.line]
        for grant in grants:
            passed = [draw for draw in self._draws if self._passes_over(draw, grant) and _is_used_up(draw, grants)]
            self.require(
                len(passed) <= 1,
                f"{grant.place}: {grant.actor} was in line, and had no ticket in {passed}, but {grant.ticket}",
            )

    def _passes_over(self, draw: Draw, grant: Grant) -> bool:
        is_same = (draw.process, draw.place) == (grant.actor.process, grant.place)
        is_behind = grant.line is not None and draw.moment > grant.line.joined
        has_room = draw.callers < self.run.plan.block
        return is_same and is_behind and has_room and draw.first + draw.callers <= grant.ticket


def _is_used_up(draw: Draw, grants: list[Grant]) -> bool:
    """Tell whether each of its tickets came to a caller: else it was lost, or a caller has left the line."""
    served = {grant.ticket for grant in grants if grant.place == draw.place}
    return served.issuperset(range(draw.first, draw.first + draw.callers))
