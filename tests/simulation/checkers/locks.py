"""What must be true of locks and their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamo_locking._core.queue import EVICTION_SLOTS
from pynamo_locking._io import records
from tests.simulation.checkers.base import Checker, content_of, queue_of

if TYPE_CHECKING:
    from pynamo_locking._core.queue import LockState
    from tests.simulation.engine.network import Change, Image, Place, Request
    from tests.simulation.history import Grant, Operation
    from tests.simulation.run import Run


class OneHolder(Checker):
    """At most one party of conflicting ones believes to hold a lock, by its own clock, at any moment."""

    def on_step(self) -> None:
        """Count those who believe."""
        believers: dict[Place, Any] = {}
        for grant in self.run.history.holding:
            if self.may_be_robbed(grant) or not self.believes(grant):
                continue
            other = believers.setdefault(grant.place, grant)
            self.require(
                other.ticket == grant.ticket,
                f"{other.actor} (ticket {other.ticket}) and {grant.actor} (ticket {grant.ticket}) "
                f"both hold {grant.place}",
            )


class NoEarlyEviction(Checker):
    """Nobody but its owner removes an entry while its owner believes, by its own clock, to hold the lock."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Look for the owners of the entries that were removed."""
        for change in changes:
            if change.after is None:
                continue
            left = {entry.id for entry in queue_of(change.after).entries}
            removed = {entry.id for entry in queue_of(change.before).entries} - left
            for grant in self.run.history.grants if removed else ():
                if grant.entry_id not in removed or _is_own(request, grant) or self.may_be_robbed(grant):
                    continue
                self.require(
                    not self.believes(grant), f"{request.actor} evicted {grant.actor}, who holds {grant.place}"
                )


def _is_own(request: Request, grant: Grant) -> bool:
    """Tell whether a holder removes itself. A late copy of its last release is not meant for this entry."""
    if request.actor is None or request.actor.process is not grant.actor.process:
        return False
    done: Operation | None = request.purpose
    return done is None or done.kind != "release" or done.ticket == grant.ticket


class Fence(Checker):
    """A holder's write is accepted only while its ticket is first in the queue; one from outside only if nobody is."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Look at the queue as it was before each change of data."""
        for change in changes:
            row = self.run.workload.row_of(change.place)
            if row is None or change.place.table == "names" or content_of(change.before) == content_of(change.after):
                continue
            before = next((each.before for each in changes if each.place == row), self.run.network.image(row))
            first = [entry.ticket for entry in queue_of(before).holders]
            done: Operation | None = request.purpose and request.purpose.part_at(change.place)
            ticket = None if done is None else done.ticket_for(row)
            if ticket is not None:
                self.require(
                    first == [ticket], f"{done} wrote with ticket {ticket}, but first in the queue was {first}"
                )
            elif row == change.place:
                self.require(not first, f"{done} wrote without a lock while {first} held it")


class SoundQueue(Checker):
    """A lock document is always in order: one ticket each, taken in order, never used twice, none left behind.

    A document that is made anew, after its item was deleted, begins at the wall clock that was read before the request
    was sent: only there may a wrong clock, or a slow request, set tickets back.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._highest: dict[Place, int] = {}

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Compare the queue before and after."""
        for change in changes:
            before, after = queue_of(change.before), queue_of(change.after)
            if before.raw == after.raw:
                continue
            self._check_document(change.place, after, change.after)
            if before.exists and after.exists:
                self.require(after.since == before.since, f"{request.actor} made the document of {change.place} anew")
                self.require(after.next_ticket >= before.next_ticket, f"{change.place}: the next ticket went back")
            elif after.exists:
                self._highest[change.place] = 0
            old = {entry.id for entry in before.entries}
            for entry in after.entries:
                if entry.id not in old:
                    highest = self._highest.get(change.place, 0)
                    self.require(
                        entry.ticket > highest,
                        f"{request.operation} of {request.actor} took ticket {entry.ticket} after {highest}",
                    )
                    self._highest[change.place] = entry.ticket

    def _check_document(self, place: Place, state: LockState, image: Image | None) -> None:
        tickets = [entry.ticket for entry in state.entries]
        self.require(len(set(tickets)) == len(tickets), f"{place}: two entries with one ticket: {tickets}")
        self.require(all(ticket < state.next_ticket for ticket in tickets), f"{place}: next ticket is taken: {state}")
        document = (image or {}).get("lock", {}).get("M", {})
        named = set(document.get(records.TICKETS, {"M": {}})["M"])
        queued = set(document.get(records.QUEUE, {"M": {}})["M"])
        self.require(named == queued, f"{place}: entries {queued}, but tickets of {named}")
        self.require(len(state.evicted) <= EVICTION_SLOTS, f"{place}: traces of evictions pile up")


class Fifo(Checker):
    """Whoever entered the queue first is served first, also across deletions that set tickets back."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._arrivals: dict[tuple[Place, str, int], int] = {}
        self._served: dict[Place, int] = {}
        self._looked_at = 0

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Number the arrivals."""
        for change in changes:
            old = {(entry.id, entry.ticket) for entry in queue_of(change.before).entries}
            for entry in queue_of(change.after).entries:
                if (entry.id, entry.ticket) not in old:
                    self._arrivals[change.place, entry.id, entry.ticket] = len(self._arrivals)

    def on_step(self) -> None:
        """Compare the grants with the arrivals."""
        grants = self.run.history.grants
        for grant in grants[self._looked_at :]:
            arrival = self._arrivals[grant.place, grant.entry_id, grant.ticket]
            last = self._served.get(grant.place, -1)
            self.require(
                arrival >= last or self.may_be_robbed(grant),
                f"{grant.place}: number {arrival} ({grant.actor}) was let in after number {last}",
            )
            self._served[grant.place] = max(last, arrival)
        self._looked_at = len(grants)


class Breaking(Checker):
    """When `break_lock` has returned, that entry is not in the queue; what it returns is no more than that."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._looked_at: set[int] = set()

    def on_step(self) -> None:
        """Look at the queue right after each call."""
        for done in self.run.history.operations:
            is_over = done.kind == "break lock" and done.returned is not None and done.error is None
            if not is_over or done.number in self._looked_at or done.value is None or len(done.value) < 3:
                continue
            self._looked_at.add(done.number)
            place, ticket, _ = done.value
            tickets = [entry.ticket for entry in queue_of(self.run.network.image(place)).entries]
            self.require(ticket not in tickets, f"{done}: ticket {ticket} is still in {place}")


class Quiet(Checker):
    """In the end nobody waits: no entry is left in any queue, no thread, no mailbox, and nothing to renew."""

    def at_end(self) -> None:
        """Look at all lock documents, and into the processes that live."""
        for place in self.run.workload.rows():
            entries = queue_of(self.run.network.image(place)).entries
            self.require(not entries, f"{place} still has {[entry.owner for entry in entries]}")
        self.require(not self.run.scheduler.actors, f"still running: {self.run.scheduler.actors}")
        for process in {done.actor.process for done in self.run.history.operations if done.actor.process.is_alive}:
            boxes = process.own.get("mailboxes")
            self.require(not boxes, f"{process.name} still has mailboxes: {boxes}")
            heart = process.own.get("heart")
            if heart is not None:
                left = [str(own) for _, _, own in heart._due if not own.ended and not own.lost.is_set()]
                self.require(not heart._threads and not left, f"{process.name} still renews {left}")
