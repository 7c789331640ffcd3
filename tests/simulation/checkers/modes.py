"""What must be true of locks that several hold at once, and of work that is found by looking for free ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pynamo_locking.exceptions import LockTimeout
from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.network import Place
from tests.simulation.checkers.base import Checker, queue_of
from tests.simulation.claims import is_turn, queued_in
from tests.simulation.history import Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking_testing._engine.network import Change, Request
    from tests.simulation.history import Operation
    from tests.simulation.run import Run

#: The lock's own requests that bring an entry into the queue; see `Request.step`.
_ENTER: Final = frozenset({"enter", "enter_first"})

#: The one with which a waiter finds out whether its turn has come; a renewal is the other one.
_WAIT: Final = frozenset({"look"})

_PAUSES: Final = frozenset({Fault.PAUSE_BEFORE, Fault.PAUSE_AFTER})


class Unhindered(Checker):
    """Who comes and finds no rival in its way holds the lock at once: it neither waits nor gives up.

    Readers beside readers, ranges that only touch, and one that finds a permit left. Unless something goes wrong with
    one of its own requests, or its entry is removed.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._free: dict[Operation, tuple[str, int]] = {}

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        """Note who finds no rival in its way, and forget those who are removed meanwhile."""
        for change in changes:
            before, after = ({each.id for each in queued_in(image)} for image in (change.before, change.after))
            for done, (name, _) in list(self._free.items()):
                if done.returned is None and request.purpose is not done and name in before - after:
                    del self._free[done]
            if request.step in _ENTER and request.purpose is not None and request.purpose.kind == "acquire":
                self._note(request.purpose, change, before)

    def _note(self, done: Operation, change: Change, known: set[str]) -> None:
        queue = queued_in(change.after) if queue_of(change.after).intent is None else []
        for queued in queue:
            if queued.id not in known and is_turn(queue, queued):
                self._free[done] = queued.id, len(self.run.trace)

    def at_end(self) -> None:
        # Who has stood still for a lease renews before it takes what it was let in to.
        signs = _WAIT if _PAUSES & {*self.run.faults.happened} else {*_WAIT, "renew"}
        for done, (_, came) in self._free.items():
            purpose = f"{done.kind} {done.number}"
            steps = [(at, step) for at, step in enumerate(self.run.trace) if step.purpose == purpose]
            if any(step.fault for _, step in steps):  # also before it came: its lease counts from there
                continue
            waited = any(step.step in signs for at, step in steps if at >= came)
            gave_up = done.told is Told.REFUSED and isinstance(done.error, LockTimeout)
            self.require(not waited and not gave_up, f"{done} waited, and no rival was in its way when it came")


class Steady(Checker):
    """Who holds a lock, shared or alone, sees one state of what it protects, however often and in whatever items.

    A reader reports all it has seen as ``steady``, if it still believes to hold the lock after the last answer.
    """

    def at_end(self) -> None:
        for done, grant, seen in self._reports():
            self.require(
                all(each == seen[0] for each in seen) or self.may_be_robbed(grant),
                f"{done} saw {seen} under one ticket ({grant.ticket})",
            )

    def _reports(self) -> Iterator[tuple[Operation, Any, list[Any]]]:
        for done in self.run.history.operations:
            if done.kind == "steady" and done.told is Told.APPLIED and done.value is not None:
                yield (done, *done.value)


class OnceEach(Checker):
    """Each job of a work queue is done once at most, however many look for work."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        jobs = {Place(model.Meta.table_name, (key,)) for model, key in self.run.workload.jobs}
        for change in changes:
            if change.place in jobs:
                shown = self.run.lives.shown(change.place)
                self.require(len(shown) <= 1, f"{change.place} was done by {shown}")
