"""Who counts items by a guarded query, and adds one if there are not too many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamo_locking.transactions import Transaction
from tests.simulation.checkers.intervals import LIMITS
from tests.simulation.history import Told
from tests.simulation.models import Seat
from tests.simulation.workloads.base import Workload, place
from tests.simulation.workloads.transacting import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.history import Operation

#: All of them are on this hash key.
KEY = "d"


class GuardedQueries(Workload):
    """Adds, takes away and changes: what a query did not show must not have appeared when it is relied on."""

    name = "guarded queries"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ()
    tables: ClassVar[tuple[Any, ...]] = (Seat,)
    is_contended = True
    most_actions = 100  # as many as DynamoDB's

    def party(self, index: int, turn: int) -> None:
        """Add what the other adds as well; take something away, or change it; add something else."""
        at = 100 * index + 10 * turn
        first, second = ("desk", "chair")[:: 1 - 2 * (turn % 2)]
        self.repeatedly("add", lambda tx, done: self.add(tx, done, at, first))
        if (index + turn) % 2:
            self.repeatedly("delete", lambda tx, done: self.remove(tx, done, first))
        else:
            self.repeatedly("change", lambda tx, done: self.change(tx, done, second, first))
        self.repeatedly("add", lambda tx, done: self.add(tx, done, at + 1, second))

    def repeatedly(self, kind: str, work: Callable[[Transaction, Operation], None]) -> None:
        """Transact until it is not refused, three times at most."""
        for _ in range(3):
            with self.history.operation(kind) as done, Transaction(lease=LEASE_S, workers=1, wait=100) as tx:
                work(tx, done)
            if done.told is not Told.REFUSED:
                return

    def found(self, tx: Transaction, kind: str) -> list[Any]:
        return tx.query(Seat, KEY, filter_condition=Seat.kind == kind)

    def add(self, tx: Transaction, done: Operation, at: int, kind: str) -> None:
        """Add a seat, if there is room for it."""
        if len(self.found(tx, kind)) < LIMITS[kind]:
            done.places = (place(Seat, (KEY, at)),)
            tx.save(Seat(KEY, at, kind=kind, log=[done.number]))

    def remove(self, tx: Transaction, done: Operation, kind: str) -> None:
        """Delete a seat, if there is one."""
        for seat in self.found(tx, kind)[:1]:
            done.places = (place(Seat, (KEY, int(seat.at))),)
            tx.delete(seat)

    def change(self, tx: Transaction, done: Operation, old: str, new: str) -> None:
        """Make a seat one of another kind, if there is room for it."""
        if len(self.found(tx, new)) < LIMITS[new]:
            for seat in self.found(tx, old)[:1]:
                done.places = (place(Seat, (KEY, int(seat.at))),)
                self.append(seat, done.number)
                seat.kind = new
                tx.save(seat)
