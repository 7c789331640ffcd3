"""Who holds a lock together with others: readers, and those who were writers a moment ago."""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING, Any, ClassVar

from pynamo_locking import TransactWrite
from pynamo_locking.exceptions import ConfigurationError
from tests.simulation.history import Told
from tests.simulation.models import BY_LOCK_ALONE, OFTEN, Account, Device, Document, Note
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking import Lock
    from pynamo_locking_testing._engine.network import Place
    from tests.simulation.history import Grant, Operation


class Sharing(Workload):
    """What those who share have in common."""

    halves_seeds = True

    def reads(self, grant: Grant, *looks: Callable[[], list[int]], own: list[int] | None = None) -> None:
        """Look at what a lock protects, with some work in between; all must be the same, and what was written last."""
        with self.history.operation("steady") as done:
            seen = [] if own is None else [own]
            for look in looks:
                seen.append(look())
                runtime.sleep(0.5)
            if grant.is_held:
                done.value = (grant, seen)

    def seen_in(self, model: Any, key: Any) -> list[int]:
        """Read an item as everybody may."""
        with self.history.operation("read", place(model, key)) as done:
            done.value = list(model.get(*(key if isinstance(key, tuple) else (key,)), consistent_read=True).log or [])
        if done.error is not None:
            raise done.error
        return done.value or []

    def try_to_save(self, lock: Lock[Any], kind: str = "forbidden save") -> None:
        """Write the item of a lock that others may hold as well, which is refused."""
        with self.refusable(kind, self.item(lock), ticket=lock.ticket) as done:
            self.append_and_save(lock.item, done.number)
        self.take_back(lock, done)

    @contextlib.contextmanager
    def refusable(self, kind: str, *places: Place, ticket: int) -> Iterator[Operation]:
        """Report a write that is refused before any request if others may hold the lock as well."""
        done: Operation | None = None
        try:
            with self.history.operation(kind, *places, ticket=ticket) as done:
                yield done
        except ConfigurationError as error:
            if done is None:
                raise
            self.history.tell(done, error)


class _Readers(Sharing):
    """Some change two items at once under the lock of the first, others read both under the same lock, shared."""

    model: ClassVar[Any]
    second: ClassVar[Any]

    def party(self, index: int, turn: int) -> None:
        if (index + turn) % 3 == 0:
            lock = self.model.locked("a")
            self.holding(lock, lambda _: self.write_both(lock))
        else:
            lock = self.model.locked("a", shared=True)
            self.holding(lock, lambda grant: self.read_both(lock, grant))

    def write_both(self, lock: Lock[Any]) -> None:
        """Change both items, of which only one is locked."""
        places = self.item(lock), place(self.second, "b")
        with self.history.operation("transaction", *places) as done:
            done.tickets = {self.row(lock): lock.ticket}
            self.save_together(done.number, lock.item, self.second.get("b", consistent_read=True))

    def read_both(self, lock: Lock[Any], grant: Grant) -> None:
        """Read one item twice, and the other one in between."""
        self.try_to_save(lock)
        self.reads(
            grant,
            lambda: list(lock.item.log or []),
            lambda: self.seen_in(self.second, "b"),
            lambda: self.seen_in(self.model, "a"),
        )


class Readers(_Readers):
    """Readers and writers; the lock in the item."""

    name = "readers"
    model, second = Document, Note
    items = ((Document, "a"), (Note, "b"))


class ReadersOfARow(_Readers):
    """Readers and writers; the lock in a row of its own."""

    name = "readers of a row"
    model, second = Device, Note
    items = ((Device, "a"), (Note, "b"))


class SleepyReaders(Sharing):
    """A process may stand still with several readers in it, who do not renew; writers look often."""

    name = "readers who stand still"
    items = ((Account, "a"),)

    def party(self, index: int, turn: int) -> None:
        if index % 2:
            self.saves(Account.locked("a", settings=OFTEN), 0)
            return
        lock = Account.locked("a", shared=True, heartbeat=False, settings=OFTEN)

        def read(grant: Grant) -> None:
            runtime.sleep(1.0)
            self.reads(grant, lambda: list(lock.item.log or []), lambda: self.seen_in(Account, "a"))

        self.holding(lock, read)


class Downgrades(Sharing):
    """One writes, goes on as a reader, and must still see what it wrote; others write, or read."""

    name = "downgrade"
    items: ClassVar[tuple[tuple[Any, Any], ...]] = ((Account, "d"), (Device, "d"))
    models: ClassVar[tuple[Any, Any]] = (Account, Device)

    def party(self, index: int, turn: int) -> None:
        model = self.models[turn % 2]
        role = (index + turn) % 3
        lock = model.locked("d", shared=role == 1)

        def work(grant: Grant) -> None:
            if role == 1:
                self.reads(grant, *[lambda: self.seen_in(model, "d")] * 2)
                return
            written = self.save(lock)
            if role == 0:
                self.share(lock, grant, written)

        self.holding(lock, work)

    def save(self, lock: Lock[Any], kind: str = "save") -> list[int] | None:
        """Change the item; return what it is then, if that is known."""
        with self.history.operation(kind, self.item(lock), ticket=lock.ticket) as done:
            item = lock.item
            self.append(item, done.number)
            item.save(add_version_condition=not isinstance(item, BY_LOCK_ALONE))
        self.take_back(lock, done)
        return list(item.log) if done.told is Told.APPLIED else None

    def share(self, lock: Lock[Any], grant: Grant, written: list[int] | None) -> None:
        """Share the lock, and look. A write that was made ready before and is sent later does not count any more."""
        grant.is_downgraded, told = True, Told.REFUSED
        with self.refusable("transaction in doubt", self.item(lock), ticket=lock.ticket) as late:
            item = lock.item
            with TransactWrite(connection=Note._get_connection().connection) as transaction:
                transaction.update(item, [self.appended(type(item), late.number)])
                told = self.downgrade(lock)
                if told is Told.APPLIED:
                    late.kind = "forbidden transaction"
        self.take_back(lock, late)
        if told is Told.UNKNOWN:
            self.go_on_in_doubt(lock)
        elif told is Told.APPLIED:
            self.try_to_save(lock)
            self.reads(grant, *[lambda: self.seen_in(type(lock.item), "d")] * 2, own=written)

    def downgrade(self, lock: Lock[Any]) -> Told:
        """Share the lock; return what the library says of that."""
        with self.history.taking("downgrade", self.row(lock), lock.ticket) as done:
            lock.downgrade()
        self.history.losses += done.told is Told.REFUSED
        return done.told

    def go_on_in_doubt(self, lock: Lock[Any]) -> None:
        """Do what can be done while it is unknown whether the lock is shared: share it once more."""
        self.downgrade(lock)


class DowngradesInDoubt(Downgrades):
    """As before, and the holder that heard nothing of the downgrade goes on to write."""

    name = "downgrade in doubt"
    items = Downgrades.items

    def go_on_in_doubt(self, lock: Lock[Any]) -> None:
        """Write although the lock may be shared by now."""
        self.try_to_save(lock, "save in doubt")


class DowngradeBesideAChild(Downgrades):
    """While one shares its lock, a thread that it has started is about to write under it."""

    name = "downgrade beside a child"
    is_contended = True

    def share(self, lock: Lock[Any], grant: Grant, written: list[int] | None) -> None:
        """Share the lock while a child writes."""
        is_done = runtime.event()
        context = contextvars.copy_context()
        runtime.spawn(lambda: context.run(self.child, lock, is_done), "child")
        super().share(lock, grant, None)
        is_done.wait()

    def child(self, lock: Lock[Any], is_done: Any) -> None:
        """Write under the lock of the parent, as long as that is not shared."""
        try:
            with self.refusable("save of a child", self.item(lock), ticket=lock.ticket) as done:
                self.append_and_save(type(lock.item).get("d", consistent_read=True), done.number)
        finally:
            is_done.set()
