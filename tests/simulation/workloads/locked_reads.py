"""Transactions that lock what they read, alone or among readers, also what does not exist: none is ever refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamo_locking.transactions import Transaction
from tests.simulation.models import Card, Crate
from tests.simulation.workloads.base import Workload, place
from tests.simulation.workloads.transacting import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamo_locking import Lock

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


class LockedWrites(Workload):
    """Transactions that write what they have locked: their commits give back the locks, unless an outer block has them.

    A card carries its lock, and loses the entry with its write; the lock of a crate is in another row. Some commits are
    refused, since they rely on a card that is read without its lock.
    """

    name = "locked writes"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ((Card, "a"), (Card, "b"), (Crate, "c"))
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        a, b, c = self.items
        for way in (index + turn, index + turn + 1):
            if way % 4 == 0:
                self.saves_around(Card.locked("a"), a, c)
            elif way % 4 == 1:
                self.transact(b)
                self.transact(a, reads=[b])
            elif way % 4 == 2:
                self.saves_around(Crate.locked("c"), c)
            else:
                self.transact(a, c, reads=[b])

    def saves_around(self, lock: Lock[Any], *writes: tuple[Any, str]) -> None:
        """Transact under a lock of one of the items, and save that item under it once more."""

        def transact_and_save() -> None:
            self.transact(*writes)
            self.save_locked(lock)

        self.using(lock, transact_and_save)

    def transact(self, *writes: tuple[Any, str], reads: Sequence[tuple[Any, str]] = ()) -> None:
        """Read some items without a lock; lock others in one order, and append to them."""
        with self.history.operation("transaction", *(place(*each) for each in writes)) as done:
            done.seen = seen = {}
            with Transaction(lease=LEASE_S, workers=1, wait=100) as tx:
                for model, key in (*reads, *writes):
                    item = tx.get(model, key, for_update=(model, key) in writes)
                    done.tickets = {self.row(lock): lock.ticket for lock in tx._items.locks.held}
                    seen[place(model, key)] = list(item.log)
                    if (model, key) in writes:
                        self.append(item, done.number)
                        tx.save(item)


class LongLockedWrites(LockedWrites):
    """The same in long ones: the decision gives back the locks of what it writes; a card with an intent keeps its lock.

    Without an early check of what was read, since a card that is only reserved for the decision shows no operation.
    """

    name = "locked writes, long"
    items: ClassVar[tuple[tuple[Any, str], ...]] = tuple((Card, key) for key in "abcde")
    most_actions = 4

    def party(self, index: int, turn: int) -> None:
        *most, last = self.items
        for way in (index + turn, index + turn + 1):
            if way % 2:
                self.saves_around(Card.locked("a"), *most, last)
            else:
                self.transact(*most, reads=[last])
