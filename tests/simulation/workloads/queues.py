"""Work queues: a worker that has time takes the next job that no other is at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.models import Account
from tests.simulation.workloads.base import Workload, place
from tests.support import runtime

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pynamo_locking import Lock

    #: Holds a lock, or None.
    Taking = AbstractContextManager[Lock[Any] | None]


class WorkQueue(Workload):
    """Each looks for a job that is free, sees whether it is done, and does it if not; with as little waiting."""

    name = "work queue"
    items = ((Account, "j1"), (Account, "j2"))
    jobs = items
    is_contended = True

    def party(self, index: int, turn: int) -> None:
        left = [key for _, key in self.items]
        for attempt in range(4):
            if not left:
                return
            key = self.work((index + turn + attempt) % 3, left)
            if key is None:
                runtime.sleep(2.0)
            else:
                left.remove(key)

    def work(self, how: int, left: list[str]) -> str | None:
        """Take a job in one of three ways, and do it; return which one, None if none was free."""
        taking: Taking
        if how == 0:
            taking = Account.locked_first(left)
        elif how == 1:
            taking = Account.try_locked(left[0])
        else:
            taking = Account.locked_first(left, wait=3)
        lock: Lock[Any] | None = None
        with self.history.taking("first", place(Account, left[0])):
            lock = taking.__enter__()
        if lock is None:
            return None
        row = self.row(lock)
        try:
            self.history.granted(lock, row)
            with self.history.held(lock, row):
                self.do(lock)
        finally:
            with self.history.taking("release", row, lock.ticket):
                taking.__exit__(None, None, None)
        return str(row.key[0])

    def do(self, lock: Lock[Any]) -> None:
        """Do the job, unless another worker has."""
        job = lock.item
        if job.log:
            return
        with self.history.operation("update", self.item(lock), ticket=lock.ticket) as done:
            job.update([self.appended(Account, done.number)], add_version_condition=False)  # the lock alone
