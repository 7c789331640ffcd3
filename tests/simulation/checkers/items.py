"""What must be true of items and of what callers are told about them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pynamo_locking.exceptions import StaleVersion
from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.scheduler import START_S
from tests.simulation.checkers.base import Checker, content_of, log_of
from tests.simulation.checkers.lives import is_replaced
from tests.simulation.history import Told
from tests.simulation.plans import SKEWS_S

if TYPE_CHECKING:
    from pynamo_locking_testing._engine.network import Change, Image, Place, Request
    from tests.simulation.history import Operation
    from tests.simulation.run import Run

#: How often an operation may have been done that was told this.
_ALLOWED = {Told.APPLIED: {1}, Told.REFUSED: {0}, Told.UNKNOWN: {0, 1}, Told.NOTHING: {0, 1}}

#: Operations that write nothing of their own.
READS = frozenset(
    {"read", "look", "count", "look at lock", "break lock", "ttl", "touch", "batch"}
    | {"snapshot", "together", "removal", "creation", "plain read", "steady"}
)


#: Faults that prove that a request was not applied.
_WITHOUT_DOUBT = {Fault.CONFLICT, Fault.REPLICATED}


class Truth(Checker):
    """What the library told its callers is what happened: done once, not at all, or unknown; never half.

    Where nothing has gone wrong but that other writes had an item, nothing is unknown.

    Two exceptions are documented. A delete that finds no item is a success, whatever deleted it. A write that checks
    nothing of the past may be done again by its own late copy. What stock PynamoDB says may be wrong.
    """

    def at_end(self) -> None:
        """Look for the number of each operation in the items it wrote."""
        is_known = _WITHOUT_DOUBT.issuperset(self.run.faults.happened)
        for done in self.run.history.operations:
            self.require(not (is_known and done.told is Told.UNKNOWN), f"{done} was told unknown ({done.error!r})")
            if done.kind in READS:
                continue
            times = [self._times(done, place) for place in done.places]
            self.require(len(set(times)) <= 1, f"{done} was done in part: {times}")
            allowed = {0, 1} if done.is_stock and done.told is Told.REFUSED else _ALLOWED[done.told]
            self.require(
                set(times) <= allowed,
                f"{done} was told {done.told.value} ({done.error!r}), and was done {times[0] if times else 0} times",
            )

    def _times(self, done: Operation, place: Place) -> int:
        times = self.run.lives.times(place, done.number)
        if done.is_unchecked:
            times = min(times, 1)
        if times == 0 and "delete" in done.kind and done.told is Told.APPLIED and done.returned is not None:
            return int(self.run.lives.was_absent(place, done.called, done.returned))
        return times


class NothingLost(Checker):
    """A write builds upon the write before it: no accepted operation disappears from an item that lives on."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Compare the operations that the item shows before and after."""
        done: Operation | None = request.purpose
        for change in changes:
            if change.before is None or change.after is None or "log" not in change.before:
                continue
            if done is not None and (done.is_unchecked or (done.kind == "create" and is_replaced(change))):
                continue
            before, after = log_of(change.before), log_of(change.after)
            self.require(after[: len(before)] == before, f"{done} turned {before} into {after}")


class Versions(Checker):
    """A version grows with each write of data, and never goes back while the item lives."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        for change in changes:
            if change.before is None or change.after is None or "version" not in {*change.before, *change.after}:
                continue
            if is_replaced(change) and request.purpose is not None and request.purpose.kind == "create":
                continue
            before, after = (int(image.get("version", {"N": "0"})["N"]) for image in (change.before, change.after))
            wrote = content_of(change.before) != content_of(change.after)
            self.require(
                after > before if wrote else after == before, f"{request.purpose}: version {before} -> {after}"
            )


class RealTime(Checker):
    """Operations take effect between call and return: each item is linearizable.

    Every operation appends its number, so a read shows the order of all writes before it, and no search is needed.
    """

    def at_end(self) -> None:
        """Compare the order in each item with the order in real time."""
        for place in list(self.run.lives.events):
            log = self.run.lives.shown(place)
            operations = [done for done in self.run.history.operations if place in done.places]
            if len(set(log)) < len(log) or any(done.is_unchecked for done in operations):
                continue
            at = {number: index for index, number in enumerate(log)}
            writes = [done for done in operations if done.number in at]
            for first, second in itertools.permutations(writes, 2):
                if _is_before(first, second):
                    self.require(at[first.number] < at[second.number], f"{first} came after {second} in {log}")
            for read in operations:
                if read.kind == "read" and read.told is Told.APPLIED:
                    self._check_read(place, read, writes)

    def _check_read(self, place: Place, read: Operation, writes: list[Operation]) -> None:
        """Require that there is a state with that content, after all writes before the read, before all those after."""
        states, events = self.run.lives.states(place), self.run.lives.events[place]
        position = {number: at for at, event in enumerate(events, start=1) for number in event.numbers}
        earliest = max((position[done.number] for done in writes if _is_before(done, read)), default=0)
        latest = min((position[done.number] for done in writes if _is_before(read, done)), default=len(states)) - 1
        fitting = [at for at, state in enumerate(states) if state == tuple(read.value)]
        self.require(fitting, f"{read} saw {read.value}, but the states were {states}")
        self.require(
            any(earliest <= at <= latest for at in fitting),
            f"{read} saw {read.value}, which is too old, or was written later: {states}",
        )


def _is_before(first: Operation, second: Operation) -> bool:
    return first.told is Told.APPLIED and first.returned is not None and first.returned < second.called


class Expiry(Checker):
    """A new item replaces an expired one, and none that lives; what has expired keeps no writer from making it anew.

    Expired is meant by the clocks of those who write, which may differ from the true time.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._blocked: set[int] = set()

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        done: Operation | None = request.purpose
        for change in changes:
            if done is not None and done.kind == "create" and is_replaced(change):
                left_s = _expires_s(change.before) - START_S - self.run.scheduler.now
                skew_s = max(SKEWS_S[self.run.plan.skew])
                self.require(left_s <= skew_s + 1, f"{done} replaced an item that has {left_s:.1f} s to live")
        self.on_step()  # what lands late may be gone by the next step

    def on_step(self) -> None:
        """Note which creations have met an item that lives, and judge those that were refused."""
        for done in self.run.history.operations:
            if done.kind != "create" or done.number in self._blocked:
                continue
            if done.returned is None:
                if self._lives(done):
                    self._blocked.add(done.number)
            elif isinstance(done.error, StaleVersion):
                self.require(False, f"{done} was refused, but there was no item that lives")

    def _lives(self, done: Operation) -> bool:
        """Tell whether the item lives by the clock of its creator."""
        images = [self.run.network.image(place) for place in done.places]
        with self.run.world.seen_by(done.actor.process):
            now_s = self.run.world.time_ms() // 1000
        return any(image is not None and ("expires" not in image or _expires_s(image) > now_s) for image in images)


def _expires_s(image: Image | None) -> int:
    return int((image or {})["expires"]["N"])


class Progress(Checker):
    """Where nothing goes wrong, and no party is in another one's way by design, nothing is refused, lost or unknown."""

    def at_end(self) -> None:
        run = self.run
        is_skewed = run.plan.has_skew and run.workload.trusts_clocks
        if run.workload.is_contended or run.faults.happened or is_skewed:
            return
        for done in run.history.operations:
            expected = Told.REFUSED if done.is_forbidden else Told.APPLIED
            self.require(done.told is expected, f"{done} was told {done.told.value}: {done.error!r}")
        history = run.history
        self.require(not history.timeouts, f"{history.timeouts} did not get a lock")
        self.require(not history.losses, f"{history.losses} lost their locks")
