"""What everybody did, when, and what they were told."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from pynamodb.exceptions import PynamoDBException

from pynamo_locking.exceptions import ConfigurationError, LockingError, OutcomeUnknown
from tests.simulation import claims

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking import Lock
    from pynamo_locking_testing._engine.network import Place
    from pynamo_locking_testing._engine.scheduler import Actor, Scheduler


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
        called: the moment at which it began.
        returned: the moment at which it ended.
        told: what the caller was told.
        value: what a read returned.
        error: what the library raised.
        tickets: by row, if there are several locks.
        seen: what a write found before it: a value, or by place the log.
        parts: by place, the operations that it consists of and that are told of one by one.
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
    seen: Any = None
    parts: dict[Place, Operation] | None = None

    def part_at(self, place: Place) -> Operation:
        """Return what it does to one item."""
        return self if self.parts is None else self.parts.get(place, self)

    @property
    def is_unchecked(self) -> bool:
        """Whether it overwrites what others wrote, by design, and perhaps more than once."""
        return self.kind.startswith("unchecked")

    @property
    def is_forbidden(self) -> bool:
        """Whether it has to be refused, whatever happens."""
        return self.kind.startswith("forbidden")

    @property
    def is_stock(self) -> bool:
        """Whether it is made without this package, and what it is told may be wrong."""
        return self.kind.startswith("stock")

    def ticket_for(self, row: Place) -> int | None:
        """Return the ticket under which it writes what this row protects."""
        return self.ticket if self.tickets is None else self.tickets.get(row)

    def __str__(self) -> str:
        return f"operation {self.number}: {self.actor} {self.kind} {', '.join(map(str, self.places))}"


#: The operation for which a thread was started.
_inherited: ContextVar[Operation | None] = ContextVar("inherited operation", default=None)


#: What the answer to a later question says.
_RESOLVED: Final = {"applied": Told.APPLIED, "not applied": Told.REFUSED, "unknown": Told.UNKNOWN}


def _told_by(error: BaseException | None) -> Told:
    if error is None:
        return Told.APPLIED
    return Told.UNKNOWN if isinstance(error, OutcomeUnknown) else Told.REFUSED


class Line(NamedTuple):
    """When a caller lined up behind the others of its process: the moments before and after."""

    began: int
    joined: int


@dataclass
class Grant:
    """A lock that was taken, as its holder knows it."""

    lock: Lock[Any]
    actor: Actor
    place: Place
    ticket: int
    line: Line | None = None
    is_downgraded: bool = False

    @property
    def claimed(self) -> claims.Claimed:
        """What of the lock it believes to hold; once it has asked for it to be shared, no more than that."""
        asked = claims.wished(self.lock._handle.options.lock_mode)
        return asked._replace(is_shared=asked.is_shared or self.is_downgraded)

    @property
    def entry_id(self) -> str:
        """The name of its entry in the queue."""
        own = self.lock._handle.entry
        return "" if own is None else own.entry.id

    @property
    def since(self) -> int:
        """The first ticket of the lock document in which it was taken."""
        own = self.lock._handle.entry
        return 0 if own is None else own.ownership.since

    @property
    def is_held(self) -> bool:
        """Whether the holder believes to hold it, on the clock that is being looked at."""
        return self.lock.is_held

    @property
    def trusts_clocks(self) -> bool:
        """Whether waiters for that lock may believe a wall clock."""
        return self.lock._handle.options.settings.max_clock_skew is not None


@dataclass
class History:
    """Everything that the parties report.

    Attributes:
        operations: all of them that read or write, in the order in which they began.
        takings: the same of those that take a lock or give it back; they leave nothing in items, and their numbers
            are negative.
        grants: all locks that were taken, in order.
        holding: the grants that were not given back yet.
        timeouts: waits that ended without a lock.
        losses: locks that were found lost.
        broken: rows and tickets that an operator has begun to break.
        lines: when those who wait for a lock together with others of their process lined up.
        resolves: whether `OutcomeUnknown.resolve` is asked of each operation in doubt.
    """

    scheduler: Scheduler
    operations: list[Operation] = field(default_factory=list)
    takings: list[Operation] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    holding: list[Grant] = field(default_factory=list)
    timeouts: int = 0
    losses: int = 0
    broken: set[tuple[Place, int]] = field(default_factory=set)
    lines: WeakKeyDictionary[Any, Line] = field(default_factory=WeakKeyDictionary)
    resolves: bool = False
    _current: dict[Actor, Operation] = field(default_factory=dict)

    def _me(self) -> Actor:
        assert self.scheduler.current is not None, "an operation was reported outside of a run"
        return self.scheduler.current

    @property
    def is_alive(self) -> bool:
        """Whether the process that runs is alive: what comes in `finally` of a dead one tells nothing."""
        return self._me().process.is_alive

    def purpose_of(self, actor: Actor) -> Operation | None:
        """Return what an actor is doing."""
        return self._current.get(actor) or _inherited.get()

    def _begin(self, kind: str, *places: Place, ticket: int | None = None) -> Operation:
        done = Operation(len(self.operations) + 1, kind, self._me(), places, ticket, self.scheduler.moment())
        self.operations.append(done)
        return done

    @contextlib.contextmanager
    def several(self, kind: str, kinds: dict[Place, str]) -> Iterator[dict[Place, Operation]]:
        """Report operations that are made at once, also by threads that inherit the context; see `tell`."""
        with self.operation(kind) as whole:
            whole.parts = {place: self._begin(each, place) for place, each in kinds.items()}
            token = _inherited.set(whole)
            try:
                yield whole.parts
            finally:
                _inherited.reset(token)
                for part in whole.parts.values():
                    part.returned = self.scheduler.moment()

    def tell(self, done: Operation, error: BaseException | None) -> None:
        """Note what the library said of an operation."""
        done.error, done.told = error, _told_by(error)

    def operation(
        self, kind: str, *places: Place, ticket: int | None = None
    ) -> contextlib.AbstractContextManager[Operation]:
        """Report an operation; errors of the library are noted, and go no further."""
        return self._reported(self._begin(kind, *places, ticket=ticket))

    def taking(self, kind: str, row: Place, ticket: int | None = None) -> contextlib.AbstractContextManager[Operation]:
        """Report that a lock is taken or given back, as an operation."""
        number = -1 - len(self.takings)
        self.takings.append(Operation(number, kind, self._me(), (row,), ticket, self.scheduler.moment()))
        return self._reported(self.takings[-1])

    @contextlib.contextmanager
    def _reported(self, done: Operation) -> Iterator[Operation]:
        me = self._me()
        outer, self._current[me] = self._current.get(me), done
        try:
            yield done
            done.told = Told.APPLIED
        except ConfigurationError:
            raise  # a fault of the workload
        except (LockingError, PynamoDBException) as error:
            self.tell(done, error)
            if self.resolves and isinstance(error, OutcomeUnknown):
                done.told = _RESOLVED[error.resolve()]
        finally:
            done.returned = self.scheduler.moment()
            if outer is None:
                del self._current[me]
            else:
                self._current[me] = outer

    def lining_up(self, join: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Return a function that lines a caller up, and notes when."""

        def noted(caller: Any) -> bool:
            began = self.scheduler.moment()
            leads = join(caller)
            self.lines[caller] = Line(began, self.scheduler.moment())
            return leads

        return noted

    def granted(self, lock: Lock[Any], place: Place) -> None:
        """Report that a lock was taken, unless its process stood still until its lease was over."""
        if lock.is_held:
            assert lock._handle.entry is not None, f"{lock.name} says that it is held, and has no entry"
            line = None if lock._handle.entry.caller is None else self.lines.get(lock._handle.entry.caller)
            self.grants.append(Grant(lock, self._me(), place, lock.ticket, line))

    @contextlib.contextmanager
    def held(self, lock: Lock[Any], place: Place) -> Iterator[Grant]:
        """Report that a lock is held, until it is going to be given back."""
        grant = Grant(lock, self._me(), place, lock.ticket)
        self.holding.append(grant)
        try:
            yield grant
        finally:
            self.holding.remove(grant)
