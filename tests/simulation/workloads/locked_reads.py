"""Transactions that lock what they read, alone or among readers, also what does not exist: none is ever refused."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from pynamo_locking.transactions import Transaction
from tests.simulation.models import Card
from tests.simulation.workloads.base import Workload, place
from tests.simulation.workloads.transacting import LEASE_S

#: What a party shares, reads without a lock, and writes. All lock "a" first: it protects "b", which is why the party
#: that has "a" alone may read "b" without a lock.
_ROLES: Final = (("a", "", "b"), ("", "b", "a"), ("a", "", "x"), ("x", "", "a"))


class LockedReads(Workload):
    """Cards a and b are there, x is created by the first that wants to write it."""

    name = "locked reads"
    halves_seeds = True
    items: ClassVar[tuple[tuple[Any, str], ...]] = ((Card, "a"), (Card, "b"))

    def party(self, index: int, turn: int) -> None:
        self.transact(*_ROLES[(index + turn) % 4])
        self.transact(*_ROLES[2 + (index + turn) % 2])

    def transact(self, shares: str, reads: str, writes: str) -> None:
        """Lock cards in the order of their keys; append to some."""
        isolation = "serializable" if reads else "read_committed"
        with self.history.operation("transaction", *(place(Card, key) for key in writes)) as done:
            seen = {}
            with Transaction(lease=LEASE_S, workers=1, wait=100, isolation=isolation) as tx:
                for key in sorted(shares + reads + writes):
                    card = tx.get_or_none(Card, key, for_share=key in shares, for_update=key in writes)
                    done.tickets = {self.row(lock): lock.ticket for lock in tx._items.locks.held}
                    seen[place(Card, key)] = [] if card is None else list(card.log)
                    if key in writes:
                        card = card or Card(key)
                        self.append(card, done.number)
                        tx.save(card)
            done.seen = seen


class Creators(LockedReads):
    """All want to write a card that is not there."""

    name = "creators"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ()
    tables: ClassVar[tuple[Any, ...]] = (Card,)

    def party(self, index: int, turn: int) -> None:
        for _ in range(2):
            self.transact("", "", "x")
