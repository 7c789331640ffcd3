"""Locks together with everything else: updates, batches, expiry, deletes in transactions."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.exceptions import TransactGetError

from pynamo_locking import TransactWrite, locked_all
from pynamo_locking.exceptions import BatchError, ItemNotFound, LockingError
from tests.simulation.history import Told
from tests.simulation.models import Account, Crate, Device, Document, Note, Voucher
from tests.simulation.workloads.base import Workload, place
from tests.simulation.workloads.living import _Prolonged, after
from tests.support import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking import Lock
    from tests.simulation.history import Grant


class LockedUpdates(Workload):
    """Updates that append, under a lock, with and without a look at the version: done once each."""

    name = "locked updates"
    items: ClassVar[tuple[tuple[Any, Any], ...]] = ((Document, "d"), (Device, "d"), (Account, "d"))

    def party(self, index: int, turn: int) -> None:
        model: Any = (Document, Device, Account)[turn % 3 if index < 3 else 1]
        lock = model.locked("d")

        def work(_: Grant) -> None:
            for checks in (False, True):
                self.update(lock, checks_version=checks)

        self.holding(lock, work)

    def update(self, lock: Lock[Any], *, checks_version: bool) -> None:
        with self.history.operation("update", self.item(lock), ticket=lock.ticket) as done:
            item = lock.item
            item.update([self.appended(type(item), done.number)], add_version_condition=checks_version)


class UpdatesBeside(LockedUpdates):
    """The same, with the lock in another row, which DynamoDB may write before it writes the item; and then a save."""

    name = "updates beside"
    items = ((Crate, "c"), (Device, "d"))
    most_actions = 100  # as many as DynamoDB's

    def party(self, index: int, turn: int) -> None:
        """Take, update, save what the update has left here, release."""
        model, key = self.items[turn % 2]
        lock = model.locked(key)

        def work() -> None:
            self.update(lock, checks_version=bool(index % 2))
            self.save_locked(lock)

        self.using(lock, work)


class LockedBatch(Workload):
    """A batch under several locks: its threads write under the locks of their caller."""

    name = "locked batch"
    items = ((Document, "d"), (Document, "e"), (Device, "f"))

    def party(self, index: int, turn: int) -> None:
        locks: list[Any] = [Document.locked("d"), Document.locked("e"), Device.locked("f")]
        try:
            with locked_all(*locks[:: 1 - 2 * (index % 2)]):
                self.write(locks, transactions=bool((index + turn) % 2))
        except (LockingError, TransactGetError):
            self.history.losses += 1

    def write(self, locks: list[Lock[Any]], *, transactions: bool) -> None:
        """Append to all items in one batch."""
        items = {self.item(lock): lock.item for lock in locks}
        with self.history.several("batch", dict.fromkeys(items, "save")) as parts:
            for lock in locks:
                parts[self.item(lock)].tickets = {self.row(lock): lock.ticket}
            batch: Any = Document.guarded_batch(transactions=transactions, workers=2)
            try:
                with batch:
                    for at, item in items.items():
                        self.append(item, parts[at].number)
                        batch.save(item)
            except BatchError:
                pass
            for result in batch.results:
                self.history.tell(parts[place(type(result.item), result.item.key)], result.error)


class DeletedTogether(Workload):
    """A transaction deletes a locked item, and its lock with it, and changes another item; then it is made anew."""

    name = "transact delete"
    items = ((Document, "d"), (Note, "n"))
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        lock = Document.locked("d")
        self.using(lock, lambda: self.delete(lock))
        self.plain_create(Document, "d")

    def delete(self, lock: Lock[Any]) -> None:
        """Delete the one, change the other."""
        at, other = self.item(lock), place(Note, "n")
        with self.history.several("delete", {at: "delete", other: "save"}) as parts:
            parts[at].ticket = lock.ticket
            error: Exception | None = None
            try:
                self.transact(lock, parts[other].number)
            except Exception as failure:
                error = failure
                raise
            finally:
                for part in parts.values():
                    if error is not None or self.history.is_alive:
                        self.history.tell(part, error)

    def transact(self, lock: Lock[Any], number: int) -> None:
        item, note = lock.item, Note.get("n", consistent_read=True)
        self.append(note, number)
        with TransactWrite(connection=Note._get_connection().connection) as transaction:
            transaction.delete(item)
            transaction.save(note)


class ExpiringLocks(_Prolonged):
    """Locked items that expire: no party gets the lock of an expired item, and it can be made anew."""

    name = "expiring lock"
    items = ((Voucher, "v"),)
    model = Voucher

    def party(self, index: int, turn: int) -> None:
        """Use it, sleep, make it anew, change it from outside."""
        self.use()
        runtime.sleep(2.0 + index)
        self.create()
        if index % 2:
            self.prolong()
        self.use()

    def use(self) -> None:
        """Save under the lock; then it lives for longer."""
        lock = Voucher.locked("v")

        def save(_: Grant) -> None:
            with self.history.operation("save", self.item(lock), ticket=lock.ticket) as done:
                item = lock.item
                item.expires = after(4)
                self.append_and_save(item, done.number)
            if done.told is Told.REFUSED:
                self.history.losses += 1

        self.holding(lock, save)

    def locks(self) -> Iterator[Lock[Any]]:
        """Take the lock as often as it takes to be told that there is nothing to lock: that empties the queue, too."""
        with contextlib.suppress(ItemNotFound), Voucher.locked("v"):
            pass
        yield from ()
