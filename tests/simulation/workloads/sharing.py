"""Who shares a lock: names without data, threads of one process, operators."""

from __future__ import annotations

import contextlib
import contextvars
from typing import TYPE_CHECKING, Any

from pynamo_locking.exceptions import LockingError
from tests.simulation.models import Account, Device, Document, Names, Note, Vault
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime

if TYPE_CHECKING:
    from pynamo_locking import Lock
    from pynamo_locking_testing._engine.network import Place
    from tests.simulation.history import Grant, History


class Named(Workload):
    """A lock on a name. What it guards is an item without a lock, by a check in the same transaction."""

    name = "named"
    items = ((Note, "n"), (Names, "job"))
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        """Take it with or without patience, renew or make sure of it, write beside it."""
        lock = Names.locked("job")

        def work(_: Grant) -> None:
            try:
                (lock.renew if turn % 2 else lambda: lock.ensure_remaining(5.5))()
            except LockingError:
                self.history.losses += 1
            self.write_beside(lock)

        self.holding(lock, work, wait=(1000, 0, 8)[(index + turn) % 3])

    @staticmethod
    def row_of(item: Place) -> Place | None:
        return place(Names, "job")


class Neighbours(Workload):
    """Two threads of one process and those of others want one lock, and tell each other when they leave."""

    name = "neighbours"
    items = ((Account, "a"),)

    def party(self, index: int, turn: int) -> None:
        """Take it, and let another thread of the same process do so, too."""
        if index == 0:
            runtime.spawn(self.once, f"neighbour{turn}")
        self.once()

    def once(self) -> None:
        self.saves(Account.locked("a"), 0)


class Callers(Workload):
    """Pairs of callers in each process: some write twice, once, or nothing; some raise, give up, or do not wait.

    The lock in the item, in a row of its own, or by name.
    """

    name = "callers"
    halves_seeds = True
    items = ((Document, "d"), (Device, "d"), (Names, "job"))
    is_contended = True

    model: Any = Document

    def prepare(self) -> None:
        super().prepare()
        self.model = (Document, Device, Names)[self.history.scheduler._choices.pick(3, "model")]

    def party(self, index: int, turn: int) -> None:
        """Let another thread of the same process take the lock as well."""
        runtime.spawn(lambda: self.once(index + 1), f"caller{index}.{turn}")
        self.once(index + turn)

    def once(self, how: int) -> None:
        """Take the lock in one of several ways."""
        model = self.model
        if model is Names:
            self.saves(Names.locked("job"))
        elif how % 4 == 0:
            self.edits(model.edit("d"), fails=how % 8 == 4)
        elif how % 4 == 1:
            self.saves(model.locked("d"), 0, 0)
        elif how % 4 == 2:
            self.saves(model.locked("d", wait=3.0))
        else:
            self.edits(model.edit("d", wait=(0, 8.0)[how % 8 == 3]))

    def edits(self, edit: Any, *, fails: bool = False) -> None:
        """Edit the item, or raise instead."""
        with (
            contextlib.suppress(_Failure),
            self.history.operation("edit", place(edit.lock._handle.target.model, "d")) as done,
            edit as item,
        ):
            done.ticket = edit.lock.ticket
            self.history.granted(edit.lock, self.row(edit.lock))
            if fails:
                raise _Failure
            with self.history.held(edit.lock, self.row(edit.lock)):
                self.append(item, done.number)


class _Failure(Exception):  # noqa: N818 - of the caller's own code
    """The caller's own code fails."""


class Inherit(Workload):
    """A thread that is started inside a lock writes under it, and so does the one that started it."""

    name = "inherit"
    items = ((Document, "d"), (Device, "d"))

    def party(self, index: int, turn: int) -> None:
        model: Any = (Document, Device)[turn % 2]
        lock = model.locked("d")

        def work() -> None:
            with self.history.held(lock, self.row(lock)):
                is_done = runtime.event()
                context = contextvars.copy_context()
                runtime.spawn(lambda: context.run(self.child, model, lock, is_done), f"child{turn}")
                is_done.wait()
            self.save_locked(lock)

        self.using(lock, work)

    def child(self, model: Any, lock: Lock[Any], is_done: Any) -> None:
        """Write under the lock of the parent."""
        try:
            with self.history.operation("save of a child", place(model, "d"), ticket=lock.ticket) as done:
                self.append_and_save(model.get("d"), done.number)
        finally:
            is_done.set()


class Broken(Workload):
    """An operator breaks a lock that is held."""

    name = "break lock"
    items = ((Document, "d"), (Device, "d"))
    is_contended = True

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.models: tuple[Any, Any] = (Document, Device)

    def party(self, index: int, turn: int) -> None:
        model = self.models[turn % 2]
        if index == 0:
            self.break_it(model)
            return
        self.saves(model.locked("d"), 1.0, 0)

    def break_it(self, model: Any) -> None:
        """Remove the first entry. What was broken may believe to hold the lock until its next request."""
        with self.history.operation("look at lock") as done:
            holders = model.lock_state("d").holders
        runtime.sleep(0.5)
        if done.error is not None or not holders:
            return
        row = self.row_of(place(model, "d"))
        assert row is not None, f"the lock of {model.__name__} is in no row, so it cannot be broken"
        self.history.broken.add((row, holders[0].ticket))
        with self.history.operation("break lock") as done:
            done.value = (row, holders[0].ticket)
            done.value = (row, holders[0].ticket, model.break_lock("d", ticket=holders[0].ticket))


class NoHints(Workload):
    """No wall clock is trusted, so that they may show what they like. With and without heartbeat, with pauses."""

    name = "no hints"
    trusts_clocks = False
    items = ((Vault, "v"),)
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        self.saves(Vault.locked("v", heartbeat=bool((index + turn) % 2)), 3.0 + 4.0 * (index % 2), 0)
