"""Items with a value that no other item may have."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.exceptions import PynamoDBException

from pynamo_locking.transactions import Transaction
from tests.simulation.history import Told
from tests.simulation.models import Badge, Headers, Pass, Person, Uniques
from tests.simulation.workloads.base import Workload, place
from tests.simulation.workloads.living import after
from tests.simulation.workloads.transacting import LEASE_S
from tests.support import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

#: More items than values.
KEYS = "abc"
VALUES = ("x", "y")


class UniqueValues(Workload):
    """Claimed, changed by saves and by updates, given up by deletes: three items, and two values."""

    name = "unique values"
    halves_seeds = True
    items: ClassVar[tuple[tuple[Any, str], ...]] = ()
    tables: ClassVar[tuple[Any, ...]] = (Person, Uniques)
    is_contended = True
    most_actions = 100  # as many as DynamoDB's

    @property
    def model(self) -> Any:
        return self.tables[0]

    def party(self, index: int, turn: int) -> None:
        """Claim a value, or the other one; change it; give it up, or take another one by an update."""
        key, value = KEYS[(index + turn) % 3], VALUES[(index + turn) % 2]
        if self.write(key, value) is None:
            self.write(key, VALUES[(index + turn + 1) % 2])
        self.write(key, None if turn % 2 else "z")
        (self.delete, self.update)[(index + turn) % 2](key)

    def write(self, key: str, value: str | None) -> Any:
        """Save an item with that value, a new one if there is none; return it, None if it was refused."""
        item, kind = self.model(key), "create"
        with contextlib.suppress(PynamoDBException):
            item, kind = self.model.get(key, consistent_read=True), "save"
        with self.history.operation(kind, place(self.model, key)) as done:
            self.change(item, value, done.number)
            item.save()
        return item if done.told is Told.APPLIED else None

    def change(self, item: Any, value: str | None, number: int) -> None:
        item.email = value
        self.append(item, number)

    def update(self, key: str) -> None:
        """Take a value, whatever the item has; a new item if there is none."""
        model, item = self.model, self.model(key)
        with contextlib.suppress(PynamoDBException):
            item = model.get(key, consistent_read=True)
        with self.history.operation("update", place(model, key)) as done:
            log = model.log.set((model.log | []).append([done.number]))
            item.update([model.email.set("y"), log])

    def delete(self, key: str) -> None:
        with self.history.operation("delete", place(self.model, key)):
            self.model.get(key, consistent_read=True).delete()


class UniqueValuesThatExpire(UniqueValues):
    """A value is free once its item has expired, and no longer if that was given more time before."""

    name = "unique values, expiring"
    tables = (Pass, Uniques)

    def party(self, index: int, turn: int) -> None:
        """Claim the same value again and again, or let it go; at last delete the item, which may have expired."""
        item = None
        for _ in range(3):
            if item is None or index % 3:
                item = self.write(KEYS[index % 3], "x") or item
            runtime.sleep(2.5)
        if item is not None:
            with self.history.operation("delete", place(self.model, item.key)):
                item.delete()

    def change(self, item: Any, value: str | None, number: int) -> None:
        """Let it live for longer as well."""
        item.expires = after(8 if item.version else 4)
        super().change(item, value, number)


class UniqueValuesInTransactions(UniqueValues):
    """Two items are written together: they take values, swap them, and one of them goes."""

    name = "unique values, transactions"

    def party(self, index: int, turn: int) -> None:
        """Save two items, swap their values, give one to the third."""
        first, second, third = (KEYS[(index + turn + number) % 3] for number in range(3))
        self.together(lambda tx, number: self.save_all(tx, number, {first: "x", second: "y"}), first, second)
        self.together(lambda tx, number: self.save_all(tx, number, {first: "y", second: "x"}), first, second)
        self.together(lambda tx, number: self.pass_on(tx, number, first, third), third)

    def together(self, act: Callable[[Transaction, int], None], *keys: str) -> None:
        """Do something in a transaction."""
        places = [place(self.model, key) for key in keys]
        with self.history.operation("transaction", *places) as done, Transaction(lease=LEASE_S, workers=1) as tx:
            act(tx, done.number)

    def save_all(self, tx: Transaction, number: int, values: dict[str, str]) -> None:
        for key, value in values.items():
            item = tx.get_or_none(self.model, key) or self.model(key)
            self.change(item, value, number)
            tx.save(item)

    def pass_on(self, tx: Transaction, number: int, giver: str, taker: str) -> None:
        """Delete an item, and give its value to another one."""
        item = tx.get_or_none(self.model, giver)
        if item is not None:
            tx.delete(item)
        self.save_all(tx, number, {taker: "z" if item is None else item.email or "z"})


class UniqueValuesInLongTransactions(UniqueValuesInTransactions):
    """The same with marks, on the items and on the rows."""

    name = "unique values, long"
    items: ClassVar[tuple[tuple[Any, str], ...]] = tuple((Badge, key) for key in KEYS)
    tables = (Badge, Uniques)
    most_actions = 2

    def clean_up(self) -> None:
        Headers.sweep()


class OneClaim(UniqueValuesInLongTransactions):
    """A single long transaction, which takes two values."""

    name = "unique values, claimed"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ((Badge, "a"), (Badge, "b"))

    def party(self, index: int, turn: int) -> None:
        self.together(lambda tx, number: self.save_all(tx, number, {"a": "x", "b": "y"}), "a", "b")
