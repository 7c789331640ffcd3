"""What everybody did, when, and what they were told."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException

from pynamo_locking import LockingError, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking import Lock
    from tests.simulation.engine.network import Place
    from tests.simulation.engine.scheduler import Actor, Scheduler


class Told(Enum):
    """What the library told its caller about an operation."""

    APPLIED = "applied"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    NOTHING = "nothing"  # the process died


@dataclass(eq=False)
class Operation:
    """One operation on one item, or several at once.

    Attributes:
        number: unique; what the operation leaves in the items, so that its effect can be found.
        kind: what it is, for people.
        actor: who does it.
        places: the items it writes, or reads.
        ticket: the ticket under which it is done; None without a lock.
        called: the step at which it began.
        returned: the step at which it ended.
        told: what the caller was told.
        value: what a read returned.
        error: what the library raised.
        tickets: by row, if there are several locks.
    """

    number: int
    kind: str
    actor: Actor
    places: tuple[Place, ...]
    ticket: int | None
    called: int
    returned: int | None = None
    told: Told = Told.NOTHING
    value: Any = None
    error: BaseException | None = None
    tickets: dict[Place, int] | None = None

    def ticket_for(self, row: Place) -> int | None:
        """Return the ticket under which it writes what this row protects."""
        return self.ticket if self.tickets is None else self.tickets.get(row)

    def __str__(self) -> str:
        return f"operation {self.number}: {self.actor} {self.kind} {', '.join(map(str, self.places))}"


@dataclass
class Grant:
    """A lock that was taken, as its holder knows it."""

    lock: Lock[Any]
    actor: Actor
    place: Place
    ticket: int


@dataclass
class History:
    """Everything that the parties report.

    Attributes:
        operations: all of them, in the order in which they began.
        grants: all locks that were taken, in order.
        holding: the grants that were not given back yet.
        timeouts: waits that ended without a lock.
        losses: locks that were found lost.
    """

    scheduler: Scheduler
    operations: list[Operation] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    holding: list[Grant] = field(default_factory=list)
    timeouts: int = 0
    losses: int = 0
    _current: dict[Actor, Operation] = field(default_factory=dict)

    def _me(self) -> Actor:
        assert self.scheduler.current is not None
        return self.scheduler.current

    def purpose_of(self, actor: Actor) -> Operation | None:
        """Return what an actor is doing."""
        return self._current.get(actor)

    @contextlib.contextmanager
    def operation(self, kind: str, *places: Place, ticket: int | None = None) -> Iterator[Operation]:
        """Report an operation; errors of the library are noted, and go no further."""
        me = self._me()
        done = Operation(len(self.operations) + 1, kind, me, places, ticket, self.scheduler.steps)
        self.operations.append(done)
        outer, self._current[me] = self._current.get(me), done
        try:
            yield done
            done.told = Told.APPLIED
        except OutcomeUnknown as error:
            done.told, done.error = Told.UNKNOWN, error
        except (LockingError, PynamoDBException) as error:
            done.told, done.error = Told.REFUSED, error
        finally:
            done.returned = self.scheduler.steps
            if outer is None:
                del self._current[me]
            else:
                self._current[me] = outer

    def granted(self, lock: Lock[Any], place: Place) -> None:
        """Report that a lock was taken, unless its process stood still until its lease was over."""
        if lock.is_held:
            self.grants.append(Grant(lock, self._me(), place, lock.ticket))

    @contextlib.contextmanager
    def held(self, lock: Lock[Any], place: Place) -> Iterator[Grant]:
        """Report that a lock is held, until it is going to be given back."""
        grant = Grant(lock, self._me(), place, lock.ticket)
        self.holding.append(grant)
        try:
            yield grant
        finally:
            self.holding.remove(grant)
