"""What must be true of every run, each in an object of its own."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from pynamo_locking._core.queue import EVICTION_SLOTS
from pynamo_locking._io import records
from tests.simulation.history import Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking._core.queue import LockState
    from tests.simulation.engine.network import Change, Image, Place, Request
    from tests.simulation.history import Operation
    from tests.simulation.run import Run


class Violation(AssertionError):  # noqa: N818 - what it is
    """Something that must never happen has happened."""


class Checker:
    """One thing that must be true.

    Args:
        run: what is looked at.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_step(self) -> None:
        """Look at the world between two steps."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Look at what an accepted write has changed."""

    def at_end(self) -> None:
        """Look back, once everyone has finished."""

    def require(self, condition: object, message: str) -> None:
        """Raise a violation unless the condition is true."""
        if not condition:
            raise Violation(f"{type(self).__name__}: {message}")


def log_of(image: Image | None) -> list[int]:
    """Return the numbers of the operations that an item shows."""
    return [int(entry["N"]) for entry in (image or {}).get("log", {"L": []})["L"]]


def queue_of(image: Image | None) -> LockState:
    """Return the lock document of an item."""
    return records.state_in(image, "lock")


class OneHolder(Checker):
    """At most one party of conflicting ones believes to hold a lock, by its own clock, at any moment."""

    def on_step(self) -> None:
        """Count those who believe. With clocks further apart than the locks allow, only writes are safe."""
        if self.run.plan.has_skew:
            return
        believers: dict[Place, Any] = {}
        for grant in self.run.history.holding:
            if not grant.actor.process.is_alive:
                continue
            with self.run.world.seen_by(grant.actor.process):
                believes = grant.lock.is_held
            if believes:
                other = believers.setdefault(grant.place, grant)
                self.require(
                    other.ticket == grant.ticket,
                    f"{other.actor} (ticket {other.ticket}) and {grant.actor} (ticket {grant.ticket}) "
                    f"both hold {grant.place}",
                )


class Fence(Checker):
    """A holder's write is accepted only while its ticket is first in the queue; one from outside only if nobody is."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Look at the queue as it was before each change of data."""
        for change in changes:
            if log_of(change.before) == log_of(change.after):
                continue
            row = self.run.workload.row_of(change.place)
            if row is None:
                continue
            before = next((each.before for each in changes if each.place == row), self.run.network.image(row))
            first = [entry.ticket for entry in queue_of(before).holders]
            done: Operation | None = request.purpose
            ticket = None if done is None else done.ticket_for(row)
            if ticket is not None:
                self.require(
                    first == [ticket], f"{done} wrote with ticket {ticket}, but first in the queue was {first}"
                )
            elif row == change.place:
                self.require(not first, f"{done} wrote without a lock while {first} held it")


class SoundQueue(Checker):
    """A lock document is always in order: one ticket each, taken in order, never used twice, none left behind."""

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
            old = {entry.id for entry in before.entries}
            for entry in after.entries:
                if entry.id not in old:
                    highest = self._highest.get(change.place, 0)
                    self.require(
                        entry.ticket > highest or self.run.plan.has_skew,
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
    """Whoever came first is served first."""

    def at_end(self) -> None:
        """Compare the tickets of all grants of one lock."""
        for place in {grant.place for grant in self.run.history.grants}:
            tickets = [grant.ticket for grant in self.run.history.grants if grant.place == place]
            self.require(
                tickets == sorted(tickets) or self.run.plan.has_skew, f"{place} was held in the order {tickets}"
            )


class Truth(Checker):
    """What the library told its callers is what happened: done once, not at all, or unknown; never half."""

    def at_end(self) -> None:
        """Look for the number of each operation in the items it wrote."""
        for done in self.run.history.operations:
            if done.kind == "read":
                continue
            times = [self.log(place).count(done.number) for place in done.places]
            self.require(len(set(times)) <= 1, f"{done} was done in part: {times}")
            allowed = {Told.APPLIED: {1}, Told.REFUSED: {0}, Told.UNKNOWN: {0, 1}, Told.NOTHING: {0, 1}}[done.told]
            self.require(
                set(times) <= allowed,
                f"{done} was told {done.told.value} ({done.error!r}), and was done {times[0] if times else 0} times",
            )

    def log(self, place: Place) -> list[int]:
        """Return all operations that an item has ever shown, in order, once for each time it was done."""
        return self.run.shown[place]


class NothingLost(Checker):
    """A write builds upon the write before it: no accepted operation disappears from an item."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Compare the operations that the item shows before and after."""
        for change in changes:
            before, after = log_of(change.before), log_of(change.after)
            if change.after is not None:
                self.require(after[: len(before)] == before, f"{request.purpose} turned {before} into {after}")


class Versions(Checker):
    """A version grows with each write of data, and never goes back."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Compare the versions before and after."""
        for change in changes:
            if change.before is None or change.after is None or "version" not in change.after:
                continue
            before, after = (int(image.get("version", {"N": "0"})["N"]) for image in (change.before, change.after))
            wrote = log_of(change.before) != log_of(change.after)
            self.require(
                after > before if wrote else after >= before, f"{request.purpose}: version {before} -> {after}"
            )


class RealTime(Checker):
    """Operations take effect between call and return: each item is linearizable.

    Every operation appends its number, so a read shows the order of all writes before it, and no search is needed.
    """

    def at_end(self) -> None:
        """Compare the order in each item with the order in real time."""
        for place, log in self.run.shown.items():
            if len(set(log)) < len(log) or place in self.run.recreated:
                continue
            operations = [done for done in self.run.history.operations if place in done.places]
            at = {number: index for index, number in enumerate(log)}
            writes = [done for done in operations if done.number in at]
            for first, second in itertools.permutations(writes, 2):
                if first.told is Told.APPLIED and first.returned is not None and first.returned < second.called:
                    self.require(at[first.number] < at[second.number], f"{first} came after {second} in {log}")
            for read in operations:
                if read.kind == "read" and read.told is Told.APPLIED:
                    self._check_read(read, writes, log)

    def _check_read(self, read: Operation, writes: list[Operation], log: list[int]) -> None:
        seen = read.value
        self.require(log[: len(seen)] == seen, f"{read} saw {seen}, but the order was {log}")
        for write in writes:
            if write.told is Told.APPLIED and write.returned is not None and write.returned < read.called:
                self.require(write.number in seen, f"{read} saw {seen}, without {write}, which was before it")
            if read.returned is not None and write.called > read.returned:
                self.require(write.number not in seen, f"{read} saw {write}, which came later")


class Quiet(Checker):
    """In the end nobody waits, no entry is left in any queue, and no thread."""

    def at_end(self) -> None:
        """Look at all lock documents."""
        for place, image in self._rows():
            entries = queue_of(image).entries
            self.require(not entries, f"{place} still has {[entry.owner for entry in entries]}")

    def _rows(self) -> Iterator[tuple[Place, Image | None]]:
        for place in self.run.workload.rows():
            yield place, self.run.network.image(place)


CHECKERS: tuple[type[Checker], ...] = (
    OneHolder,
    Fence,
    SoundQueue,
    Fifo,
    Truth,
    NothingLost,
    Versions,
    RealTime,
    Quiet,
)
