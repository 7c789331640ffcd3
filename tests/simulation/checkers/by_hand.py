"""Runs made by hand, for tests of the checkers."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from pynamo_locking._core.lock_modes import WHOLE, LockMode
from pynamo_locking._core.lock_queue import EntryOwnership
from pynamo_locking._io import lock_record
from pynamo_locking_testing._engine.faults import Fault
from pynamo_locking_testing._engine.network import Change, Place
from pynamo_locking_testing._engine.scheduler import START_S
from tests.simulation.checkers import CHECKERS, Lives, Violation
from tests.simulation.claims import wished
from tests.simulation.history import Line, Operation, Told
from tests.simulation.models import Purse, Register
from tests.simulation.plans import Plan

NOTE = Place("note", ("n",))
OTHER = Place("note", ("o",))
LOCKED = Place("account", ("a",))


class Process(SimpleNamespace):
    """A process that can be in a set."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class Actor(SimpleNamespace):
    """A party that acts, and is the owner of entries by that name."""

    def __str__(self) -> str:
        return str(self.name)


class History:
    """A run made by hand: operations, and the images that accepted writes have left."""

    def __init__(self, **plan: Any) -> None:
        self.plan = Plan("by hand", **plan)
        self.now = 0.0
        self.images: dict[Place, Any] = {}
        self.lives = Lives()
        self.operations: list[Any] = []
        self.takings = self.operations
        self.grants: list[Any] = []
        self.holding: list[Any] = []
        self.broken: set[Any] = set()
        self.timeouts = self.losses = 0
        self.history = self
        self.scheduler = SimpleNamespace(now=0.0, steps=0, actors=[], moment=itertools.count(100).__next__)
        self.trace: list[Any] = []
        self.faults = SimpleNamespace(happened=Counter[Fault]())
        self.network = SimpleNamespace(image=self.images.get, on_decided=[])
        self.world = SimpleNamespace(
            seen_by=lambda _: contextlib.nullcontext(), time_ms=lambda: (START_S + self.scheduler.now) * 1000
        )
        self.workload = SimpleNamespace(
            is_enforced=False,
            is_contended=False,
            trusts_clocks=True,
            jobs=((Register, "job"),),
            registers=((Register, "r"),),
            purses=((Purse, "a"), (Purse, "b")),
            row_of=lambda place: place if place.table == "account" else None,
            rows=lambda: [LOCKED],
        )
        self.process = self.new_process("p0")

    def new_process(self, name: str) -> Any:
        """Return a process that has nothing of its own yet."""
        return Process(name=name, is_alive=True, own={}, clock=SimpleNamespace(skew_ms=0))

    def actor(self, name: str = "party0", process: Any = None) -> Any:
        return Actor(name=name, process=process or self.process)

    def did(self, kind: str, *places: Place, at: tuple[int, int], told: Told = Told.APPLIED, **more: Any) -> Operation:
        """Report an operation between two steps."""
        ticket = more.pop("ticket", None)
        done = Operation(len(self.operations) + 1, kind, self.actor(), places, ticket, at[0], at[1], told)
        for name, value in more.items():
            setattr(done, name, value)
        self.operations.append(done)
        return done

    def wrote(self, checker: Any, done: Operation | None, actor: Any = None, **changes: Any) -> None:
        """Report an accepted write: what the items are after it."""
        self.scheduler.steps += 1
        after = changes["after"]
        told = [Change(place, self.images.get(place), image) for place, image in after.items()]
        self.images.update(after)
        request: Any = SimpleNamespace(
            operation="UpdateItem", actor=actor or self.actor(), purpose=done, step=changes.get("request", "")
        )
        self.lives.note(request, told, changes.get("step", self.scheduler.steps))
        checker.on_changes(request, told)

    def checked_by(self, name: str) -> Any:
        """Return a checker that looks at this run."""
        run: Any = self
        return next(checker for checker in CHECKERS if checker.__name__ == name)(run)


def log(*numbers: int, version: int | None = None, **more: Any) -> dict[str, Any]:
    """Return an item that shows these operations."""
    image: dict[str, Any] = {"log": {"L": [{"N": str(number)} for number in numbers]}, **more}
    return image if version is None else image | {"version": {"N": str(version)}}


def locked(
    *tickets: int,
    item: dict[str, Any] | None = None,
    next_ticket: int = 100,
    since: int = 1,
    sent_s: float = 0,
    named: str = "e",
    **claims: LockMode,
) -> dict[str, Any]:
    """Return an item with these tickets in the queue of its lock, by requests that were sent at that time.

    What they claim is given by the names of their entries.
    """
    sent_ms = int((START_S + sent_s) * 1000)
    names = {f"{named}{ticket}": ticket for ticket in tickets}
    document = {
        "next": {"L": [{"N": str(next_ticket)}]},
        "since": {"N": str(since)},
        "queue": {
            "M": {
                name: lock_record.new_entry("owner", claims.get(name, WHOLE), 6.0, sent_ms, ticket=ticket)
                for name, ticket in names.items()
            }
        },
        "evicted": {"M": {}},
    }
    return {**(item or log()), "lock": {"M": document}}


def grant(
    history: History,
    ticket: int,
    *,
    claim: LockMode = WHOLE,
    is_held: bool = True,
    trusts_clocks: bool = True,
    process: Any = None,
    line: Line | None = None,
) -> Any:
    """Report a lock that was taken."""
    given = SimpleNamespace(
        actor=history.actor(process=process),
        place=LOCKED,
        ticket=ticket,
        claimed=wished(claim),
        entry_id=f"e{ticket}",
        is_held=is_held,
        trusts_clocks=trusts_clocks,
        line=line,
        since=1,
    )
    history.grants.append(given)
    history.holding.append(given)
    return given


def refused(name: str) -> Any:
    """Expect a violation of that checker."""
    return pytest.raises(Violation, match=rf"^{name}: ")


def judged(name: str, is_right: bool) -> Any:
    """Expect a violation of that checker, unless all is right."""
    return contextlib.nullcontext() if is_right else refused(name)


def judging(name: str, **plan: Any) -> tuple[History, Any]:
    """Return a run, and a checker that looks at it."""
    history = History(**plan)
    return history, history.checked_by(name)


def belief(reason: str) -> EntryOwnership:
    """Return what a holder believes of its entry "e1": held, or lost for that reason."""
    return EntryOwnership("e1", 1, 1, reason=reason)
