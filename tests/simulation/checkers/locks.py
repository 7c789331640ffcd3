"""What must be true of locks and their queues."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tests.simulation.checkers.base import Checker, content_of, handed_over, log_of, queue_of
from tests.simulation.claims import are_rivals, fits, is_turn, queued_in, rivals_ahead

if TYPE_CHECKING:
    from pynamo_locking.inspection import LockState
    from pynamo_locking_testing._engine.network import Change, Image, Place, Request
    from tests.simulation.claims import Claimed, Queued
    from tests.simulation.history import Grant, Operation
    from tests.simulation.run import Run

#: How many evictions leave a trace in a queue at the most.
_MOST_TRACES: Final = 8


class OneHolder(Checker):
    """At most one party believes to hold a lock, by its own clock, at any moment; or as many as may hold it together.

    Readers may, and those whose ranges have no point in common, and of a semaphore as many as it has permits.
    """

    def on_step(self) -> None:
        """Count those who believe, and are in each other's way."""
        believers: dict[Place, list[Grant]] = defaultdict(list)
        for grant in self.run.history.holding:
            if self.may_be_robbed(grant) or not self.believes(grant):
                continue
            others = {
                other.ticket: other
                for other in believers[grant.place]
                if other.ticket != grant.ticket and are_rivals(other.claimed, grant.claimed)
            }
            self.require(
                fits(grant.claimed, [other.claimed for other in others.values()]),
                f"{[f'{other.actor} (ticket {other.ticket})' for other in others.values()]} and {grant.actor} "
                f"(ticket {grant.ticket}) hold {grant.place}",
            )
            believers[grant.place].append(grant)


class NoEarlyEviction(Checker):
    """No party but its owner removes an entry while its owner believes, by its own clock, to hold the lock."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Look for the owners of the entries that were removed."""
        for change in changes:
            if change.after is None:
                continue
            before, after = queue_of(change.before), queue_of(change.after)
            left = {entry.id for entry in after.entries} | {each.id for each in handed_over(before, after).values()}
            removed = {entry.id for entry in before.entries} - left
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
    """A holder's write is accepted only while it holds all of the item alone, and one from outside only if none does.

    Who shares a lock, has a permit, or has a range in which the item is not, cannot write under it. Only beside it:
    other items, in one transaction with the check of its entry.

    If ranges are enforced, a write without a lock is accepted only if no entry is in the queue for that item.

    What a transaction does by an intent is judged when it writes the intent: a crashed one may have lost its lock, and
    be finished by the next holder.

    A transaction that goes step by step is judged by the row as it is when it is decided: the row may be written, and
    the next holder in it, before the item is.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._decided: list[tuple[Request, dict[Place, Image | None]]] = []
        run.network.on_decided.append(self.on_decided)

    def _operation_of(self, request: Request, change: Change) -> Operation | None:
        """Return the operation that writes; of an intent that another thread writes the one that it shows."""
        purpose: Operation | None = request.purpose
        if purpose is not None:
            return purpose.part_at(change.place)
        intent = queue_of(change.after).intent
        shown = [] if intent is None else log_of(dict(intent.set))
        return self.run.history.operations[shown[-1] - 1] if shown else None

    def on_decided(self, request: Request) -> None:
        """Keep the rows of a transaction whose steps are still to come."""
        network = self.run.network
        self._decided.append((request, {at: network.image(at) for at in request.places if network.is_pending(at)}))

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Look at the queue as it was before each change of data."""
        for change in changes:
            row = self.run.workload.row_of(change.place)
            if row is None or change.place.table == "names" or not _is_judged(change):
                continue
            before = self._row_before(request, row, changes)
            queue = queued_in(before)
            done = self._operation_of(request, change)
            ticket = None if done is None else done.ticket_for(row)
            if done is not None and ticket is not None:
                own = next((queued for queued in queue if queued.ticket == ticket), None)
                self.require(
                    own is not None and is_turn(queue, own) and _may_write(done, own, change.place),
                    f"{done} wrote with ticket {ticket}, which does not hold {change.place} alone in {queue}",
                )
            elif self.run.workload.is_enforced:
                met = [queued for queued in queue if queued.claimed.has(change.place.key[1])]
                self.require(not met, f"{done} wrote without a lock into what others have locked or wait for: {met}")
            elif row == change.place:
                self.require(not queue, f"{done} wrote without a lock while there was a queue: {queue}")

    def _row_before(self, request: Request, row: Place, changes: list[Change]) -> Image | None:
        for decided, images in self._decided:
            if decided is request and row in images:
                return images[row]
        return next((each.before for each in changes if each.place == row), self.run.network.image(row))


def _is_judged(change: Change) -> bool:
    """Tell whether an item gets other values, or an intent that says so."""
    intents = queue_of(change.before).intent, queue_of(change.after).intent
    return intents[0] is None and (intents[1] is not None or content_of(change.before) != content_of(change.after))


def _may_write(done: Operation, own: Queued, place: Place) -> bool:
    """Tell whether what is held is enough for that write."""
    if done.kind == "write beside":
        return True
    return own.claimed.is_alone and (len(place.key) == 1 or own.claimed.has(place.key[1]))


class SoundQueue(Checker):
    """A lock document is always in order: one ticket each, taken in order, never used twice, none left behind.

    A document that is made anew, after its item was deleted, begins at the wall clock that was read before the request
    was sent: only there may a wrong clock, or a slow request, set tickets back.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._highest: dict[Place, int] = {}

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        for change in changes:
            before, after = queue_of(change.before), queue_of(change.after)
            if before.raw == after.raw:
                continue
            self._check_document(change.place, after)
            if before.exists and after.exists:
                self.require(after.since == before.since, f"{request.actor} made the document of {change.place} anew")
                self.require(after.next_ticket >= before.next_ticket, f"{change.place}: the next ticket went back")
            elif after.exists:
                self._highest[change.place] = 0
            old = {entry.id for entry in before.entries} | {*handed_over(before, after)}
            for entry in after.entries:
                if entry.id not in old:
                    highest = self._highest.get(change.place, 0)
                    self.require(
                        entry.ticket > highest,
                        f"{request.operation} of {request.actor} took ticket {entry.ticket} after {highest}",
                    )
                    self._highest[change.place] = entry.last_ticket

    def _check_document(self, place: Place, state: LockState) -> None:
        self.require(not state.unreadable, f"{place}: {state.unreadable} in {state.raw}")
        tickets = [entry.ticket + i for entry in state.entries for i in range(entry.callers)]
        self.require(len(set(tickets)) == len(tickets), f"{place}: two entries with one ticket: {tickets}")
        self.require(all(ticket < state.next_ticket for ticket in tickets), f"{place}: next ticket is taken: {state}")
        self.require(len(state.evicted) <= _MOST_TRACES, f"{place}: traces of evictions pile up")


class Fifo(Checker):
    """The party that entered the queue first is served first, also across deletions that set tickets back.

    Of those who are in each other's way: a reader does not overtake a writer who waits, nor a small range a large one.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._arrivals: dict[tuple[Place, str, int], int] = {}
        self._number = 0
        self._served: dict[Place, list[tuple[int, Claimed]]] = defaultdict(list)
        self._looked_at = 0

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Number the arrivals: a caller whose entry is handed over arrived when its ticket was drawn."""
        for change in changes:
            before, after = queue_of(change.before), queue_of(change.after)
            old, places = {(entry.id, entry.ticket) for entry in before.entries}, handed_over(before, after)
            for entry in after.entries:
                if (entry.id, entry.ticket) not in old:
                    place = places.get(entry.id)
                    number = None if place is None else self._arrivals[change.place, place.id, place.ticket]
                    self._arrivals[change.place, entry.id, entry.ticket] = self._number if number is None else number
                    self._number += 1

    def on_step(self) -> None:
        """Compare the grants with the arrivals, and with those who are still ahead in the queue."""
        grants = self.run.history.grants
        for grant in grants[self._looked_at :]:
            arrival = self._arrivals.get((grant.place, grant.entry_id, grant.ticket), -1)
            self.require(arrival >= 0, f"{grant.place}: {grant.actor} was let in without an entry")
            served = self._served[grant.place]
            last = max((number for number, claimed in served if _excludes(claimed, grant.claimed)), default=-1)
            self.require(
                arrival >= last or self.may_be_robbed(grant),
                f"{grant.place}: number {arrival} ({grant.actor}) was let in after number {last}",
            )
            served.append((arrival, grant.claimed))
            self._require_turn(grant)
        self._looked_at = len(grants)

    def _require_turn(self, grant: Grant) -> None:
        """Require that those who came earlier have left; one that was ahead can only leave, never come."""
        queue = queued_in(self.run.network.image(grant.place))
        own = next((each for each in queue if (each.id, each.ticket) == (grant.entry_id, grant.ticket)), None)
        ahead = [] if own is None else rivals_ahead(queue, own)
        self.require(
            fits(grant.claimed, [other.claimed for other in ahead]) or self.may_be_robbed(grant),
            f"{grant.place}: {grant.actor} (ticket {grant.ticket}) was let in before {ahead}",
        )


def _excludes(one: Claimed, other: Claimed) -> bool:
    """Tell whether two never hold a lock together; of a semaphore they may be let in at once, in any order."""
    return are_rivals(one, other) and one.permits == other.permits == 1


class Breaking(Checker):
    """When `break_lock` has returned, that entry is not in the queue; what it returns is no more than that."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._looked_at: set[int] = set()

    def on_step(self) -> None:
        for done in self.run.history.operations:
            is_over = done.kind == "break lock" and done.returned is not None and done.error is None
            if not is_over or done.number in self._looked_at or done.value is None or len(done.value) < 3:
                continue
            self._looked_at.add(done.number)
            place, ticket, _ = done.value
            tickets = [entry.ticket for entry in queue_of(self.run.network.image(place)).entries]
            self.require(ticket not in tickets, f"{done}: ticket {ticket} is still in {place}")


class Quiet(Checker):
    """In the end no party waits: no entry is left in any queue, no thread, no mailbox, and nothing to renew."""

    def at_end(self) -> None:
        """Look at all lock documents, and into the processes that live."""
        for place in self.run.workload.rows():
            entries = queue_of(self.run.network.image(place)).entries
            self.require(not entries, f"{place} still has {[entry.owner for entry in entries]}")
        self.require(not self.run.scheduler.actors, f"still running: {self.run.scheduler.actors}")
        for process in {done.actor.process for done in self.run.history.operations if done.actor.process.is_alive}:
            for name in ("mailboxes", "cohorts", "lines"):
                left_there = process.own.get(name)
                self.require(not left_there, f"{process.name} still has {name}: {left_there}")
            renewing = process.own.get("heartbeat")
            if renewing is not None:
                left = [str(held) for _, _, held in renewing._due if held.ownership.is_held]
                self.require(not renewing._threads and not left, f"{process.name} still renews {left}")
