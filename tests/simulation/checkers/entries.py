"""What must be true of single entries of a queue: how they leave it, and what their owners hear of that."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from pynamo_locking._core.lock_queue import HoldState
from pynamo_locking.exceptions import LockLost
from pynamo_locking_testing._engine.faults import TIMEOUTS, Fault
from pynamo_locking_testing._engine.scheduler import START_S
from tests.simulation.checkers.base import Checker, queue_of
from tests.simulation.checkers.items import READS
from tests.simulation.history import Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking._core.lock_queue import QueueEntry
    from pynamo_locking._locks.held_lock import HeldEntry
    from pynamo_locking_testing._engine.network import Change, Place, Request
    from pynamo_locking_testing._engine.scheduler import Actor
    from tests.simulation.history import Operation
    from tests.simulation.run import Run

#: The lock's own request that removes entries of others; see `Request.step`.
_EVICT: Final = "evict"

#: Those that let the entry of another process go.
_MOVE: Final = "move"
_TAKES_AWAY: Final = {_EVICT, _MOVE}

#: Several of these leave a release without an answer.
_UNANSWERED: Final = TIMEOUTS | {Fault.NO_CONNECTION, Fault.THROTTLED, Fault.FAILED_BEFORE, Fault.FAILED_AFTER}


class Silence(Checker):
    """An entry is evicted only a whole lease after its last sign of life was sent, whatever else goes wrong.

    Signs of life are the request to enter and each renewal; a copy of one that arrives late is none. An operator may
    break any entry, and so may everybody whose wall clock is further off than the lock allows.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._alive_at_s: dict[tuple[Place, str, int], float] = {}

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Note each sign of life, and compare each eviction with the last one."""
        now = self.run.scheduler.now
        for change in changes:
            for entry in queue_of(change.after).entries:
                self._alive_at_s.setdefault((change.place, entry.id, entry.heartbeats), _sent_s(entry, request))
            for entry in _gone(change) if request.step == _EVICT else ():
                silent_s = now - self._alive_at_s[change.place, entry.id, entry.heartbeats]
                self.require(
                    silent_s >= entry.lease or self._is_excused(change.place, entry),
                    f"{request.actor} evicted {entry.owner} (ticket {entry.ticket}), silent for {silent_s:.1f} s only",
                )

    def _is_excused(self, place: Place, entry: QueueEntry) -> bool:
        is_skewed = self.run.plan.has_skew and self.run.workload.trusts_clocks
        return is_skewed or (place, entry.ticket) in self.run.history.broken


def _sent_s(entry: QueueEntry, request: Request) -> float:
    """Return when a renewal was sent, in true time: its owner's wall clock is in it."""
    skew_ms = 0 if request.actor is None else request.actor.process.clock.skew_ms
    return (entry.until_ms - entry.lease_ms - skew_ms) / 1000 - START_S


class KeptPlace(Checker):
    """Who waits keeps the place in the queue for which it came: it leaves it only to give up.

    And where nothing has gone wrong, no other party removes it. If others did, it may come again, under another name.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._first: dict[Operation, str] = {}
        self._left: set[str] = set()
        self._removed: set[str] = set()

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Note for each acquire its first entry, and who removed it first."""
        done: Operation | None = request.purpose
        for change in changes:
            if done is not None and done.kind == "acquire":
                for entry in _come(change):
                    self._first.setdefault(done, entry.id)
            for entry in _gone(change):
                is_own = done is not None and self._first.get(done) == entry.id
                if entry.id not in self._left | self._removed:
                    (self._left if is_own else self._removed).add(entry.id)
                self._require_place(request, change, entry)

    def _require_place(self, request: Request, change: Change, entry: QueueEntry) -> None:
        """Require that who waits is not removed by others, unless there is a reason."""
        run = self.run
        is_granted = entry.token_id or entry.id in {grant.entry_id for grant in run.history.grants}
        is_waiter = change.after is not None and not is_granted
        is_broken = (change.place, entry.ticket) in run.history.broken
        is_own = request.actor is not None and acts_for(request.actor, entry)
        self.require(
            not is_waiter or is_own or run.faults.happened or run.plan.has_skew or is_broken,
            f"{request.actor} removed {entry.owner}, who waits for {change.place}, and nothing had gone wrong",
        )

    def at_end(self) -> None:
        """Compare the first entry of each acquire with the one that was granted."""
        for done, first in self._first.items():
            self.require(
                done.told is not Told.APPLIED or done.value == first or first not in self._left,
                f"{done} left its place {first}, and waited again as {done.value}",
            )


class ToldLoss(Checker):
    """Who gives a lock back hears whether it was lost: no release goes well after an eviction.

    Unless it cannot be known: the document that keeps the trace is gone, or no answer came to the release.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._evicted_at: dict[tuple[Place, int], int] = {}

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Note the evictions, and forget what no document knows any more."""
        for change in changes:
            if not queue_of(change.after).exists:
                for place, ticket in [key for key in self._evicted_at if key[0] == change.place]:
                    del self._evicted_at[place, ticket]
            for entry in _gone(change) if request.step == _EVICT else ():
                self._evicted_at[change.place, entry.ticket] = self.run.scheduler.moment()

    def at_end(self) -> None:
        """Compare each release with the eviction of its ticket.

        All attempts of a release may be refused while a partition is hot: it gives up then, and knows nothing.
        """
        if self.run.faults.happened[Fault.HOT]:
            return
        is_answered = not any(self.run.faults.happened[fault] for fault in _UNANSWERED)
        for done in self.run.history.takings:
            if done.kind != "release" or done.told is not Told.APPLIED or done.returned is None:
                continue
            evicted_at = self._evicted_at.get((done.places[0], done.ticket or 0))
            self.require(
                evicted_at is None or evicted_at > (done.returned if is_answered else done.called),
                f"{done} of ticket {done.ticket} went well, but that ticket was evicted before",
            )


class TrueLoss(Checker):
    """A lock counts as lost only if others have taken its entry away; and who is told so by a write has it noted.

    Others evict the entry, attach its token, or delete the item that carries it.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._taken_away: set[tuple[Place, str, int]] = set()
        self._owns: dict[tuple[Place, int], list[tuple[Actor, HeldEntry]]] = defaultdict(list)  # who attached a token
        self._looked_at = 0
        self._open: list[Operation] = []
        self._begun = 0

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        done: Operation | None = request.purpose
        for change in changes:
            is_deleted = queue_of(change.after).since != queue_of(change.before).since
            for entry in _gone(change) if is_deleted or request.step in _TAKES_AWAY else ():
                is_detached = request.step == _MOVE and request.actor is not None and acts_for(request.actor, entry)
                if not is_detached and (request.step in _TAKES_AWAY or done is None or done.ticket != entry.ticket):
                    self._taken_away.add((change.place, entry.id, entry.ticket))

    def on_step(self) -> None:
        """Keep the entries that were granted, and look at the writes that have come back."""
        history = self.run.history
        for grant in history.grants[self._looked_at :]:
            if grant.lock._handle.entry is not None and grant.lock._handle.entry.entry.ticket == grant.ticket:
                self._owns[grant.place, grant.ticket].append((grant.actor, grant.lock._handle.entry))
        self._looked_at = len(history.grants)
        self._open += history.operations[self._begun :]
        self._begun = len(history.operations)
        still_open = [done for done in self._open if done.returned is None]
        for done in self._open if len(still_open) < len(self._open) else ():
            if done.returned is not None and isinstance(done.error, LockLost) and done.kind not in READS:
                self._require_note(done)
        self._open = still_open

    def _require_note(self, done: Operation) -> None:
        for place in done.places:
            row = self.run.workload.row_of(place)
            owns = [] if row is None or done.ticket is None else self._owns[row, done.ticket]
            latest = next((own for actor, own in reversed(owns) if actor == done.actor), None)
            self.require(
                latest is None or not latest.ownership.is_held,
                f"{done} was told that ticket {done.ticket} is lost, and its lock does not know",
            )

    def at_end(self) -> None:
        """Compare what the locks believe with what has become of their entries."""
        for (place, ticket), own in [(where, own) for where, owns in self._owns.items() for _, own in owns]:
            is_taken = (place, own.entry.id, ticket) in self._taken_away
            known = own.ownership
            is_elsewhere = known.state is HoldState.DETACHED or known.reason == "forked"
            self.require(
                known.may_stand or is_elsewhere or is_taken,
                f"ticket {ticket} of {place} counts as lost ({known.reason}), and no request took it away",
            )


def acts_for(actor: Actor, entry: QueueEntry) -> bool:
    """Tell whether an actor is the owner of an entry, or makes requests for the tasks of its process."""
    return entry.owner == str(actor) or (
        actor.name.startswith(("asyncio-", "leaving-", "campaign-"))
        and entry.owner.startswith(f"{actor.process.name}.")
    )


def _come(change: Change) -> Iterator[QueueEntry]:
    """Yield the entries that a write added."""
    old = {(entry.id, entry.ticket) for entry in queue_of(change.before).entries}
    for entry in queue_of(change.after).entries:
        if (entry.id, entry.ticket) not in old:
            yield entry


def _gone(change: Change) -> Iterator[QueueEntry]:
    """Yield the entries that a write removed."""
    left = {(entry.id, entry.ticket) for entry in queue_of(change.after).entries}
    for entry in queue_of(change.before).entries:
        if (entry.id, entry.ticket) not in left:
            yield entry
