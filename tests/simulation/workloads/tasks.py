"""Tasks of asyncio: several in one event loop, each of which takes the lock, and some of which are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamodb.exceptions import PynamoDBException

from pynamo_locking.exceptions import ConfigurationError, LockingError
from pynamo_locking_testing._engine import loop
from tests.simulation.checkers.base import Violation
from tests.simulation.history import Told, _inherited
from tests.simulation.models import Account, Device
from tests.simulation.workloads.base import Workload
from tests.support import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamo_locking import Lock
    from tests.simulation.history import History, Operation

#: When a task is cancelled, in seconds: within its first requests, or while it waits or works.
CANCELLED_AFTER_S: Final = (0.0, 0.001, 0.002, 0.003, 0.004, 1.5, 8.0)

#: How many tasks are in one loop.
TASKS: Final = 2


class Tasks(Workload):
    """The lock in the item; tasks take it, work, save in a thread, and give it back. No task is cancelled."""

    name = "tasks"
    halves_seeds = True
    items: ClassVar[tuple[tuple[Any, Any], ...]] = ((Account, "a"),)
    model: Any = Account
    key = "a"
    work_s = 0.5

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.inside = set[int]()

    def party(self, index: int, turn: int) -> None:
        process = runtime.process()
        loop.run(self.together, process.own.setdefault("loops", []).append)

    async def together(self) -> None:
        """Run the tasks of one party."""
        tasks = [asyncio.ensure_future(self.task(has_heir=i == 0)) for i in range(TASKS)]
        await self.disturb(tasks)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [each for each in results if isinstance(each, BaseException)]
        others = [each for each in errors if not isinstance(each, asyncio.CancelledError)]
        if others:
            raise others[0]

    async def disturb(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        """Leave them alone."""

    async def task(self, *, has_heir: bool = False) -> None:
        """Take, work, save, release; perhaps with another task that is begun under the lock, and has to wait for it."""
        lock = self.model.locked(self.key)
        if not await self.ataken(lock):
            return
        heir = asyncio.ensure_future(self.task()) if has_heir else None
        try:
            with self.history.held(lock, self.row(lock)), self.alone(lock.ticket):
                await asyncio.sleep(self.work_s)
                await self.asave(lock)
        except GeneratorExit:  # of a dead process, collected after the run
            raise
        except BaseException:
            await self.agive_back(lock)
            raise
        await self.agive_back(lock)
        if heir is not None:
            await heir

    @contextlib.contextmanager
    def alone(self, ticket: int) -> Iterator[None]:
        """Require that no other task is in under the same ticket; two tickets are looked at by the checkers."""
        if ticket in self.inside:
            raise Violation(f"OneHolder: two tasks hold {self.key} with ticket {ticket}")
        self.inside.add(ticket)
        try:
            yield
        finally:
            self.inside.discard(ticket)

    async def agive_back(self, lock: Lock[Any]) -> None:
        """Give a lock back, whatever became of it."""
        with self.atask("release", lock):
            await lock.arelease()

    async def ataken(self, lock: Lock[Any]) -> bool:
        """Take a lock; tell whether that went well."""
        with self.atask("acquire", lock) as done:
            await lock.aacquire()
        if done.told is Told.APPLIED:
            self.history.granted(lock, self.row(lock))
        return done.told is Told.APPLIED

    async def asave(self, lock: Lock[Any]) -> None:
        """Change the item under the lock, to the end even if the task is cancelled meanwhile."""
        with self.atask("save", lock) as done:
            item = await lock.aitem()
            self.append(item, done.number)
            await item.asave()

    @contextlib.contextmanager
    def atask(self, kind: str, lock: Lock[Any]) -> Iterator[Operation]:
        """Report an operation of a task, whose requests are made by other actors that inherit its context.

        What a cancelled one did, it was not told.
        """
        is_write = kind == "save"
        place = self.item(lock) if is_write else self.row(lock)
        done = self.history._begin(kind, place, ticket=None if kind == "acquire" else lock.ticket)
        if not is_write:
            self.history.operations.remove(done)
            done.number = -1 - len(self.history.takings)
            self.history.takings.append(done)
        token = _inherited.set(done)
        try:
            yield done
            done.told = Told.APPLIED
        except ConfigurationError:
            raise
        except GeneratorExit:
            raise
        except (LockingError, PynamoDBException) as error:
            self.history.tell(done, error)
        except BaseException:
            self._end(done, token)
            raise
        self._end(done, token)

    def _end(self, done: Operation, token: Any) -> None:
        done.returned = self.history.scheduler.moment()
        _inherited.reset(token)


class TasksBeside(Tasks):
    """The same with the lock in a row of its own: the item is read, and the write is a transaction."""

    name = "tasks, separate row"
    items = ((Device, "d"),)
    model: Any = Device
    key = "d"


class CancelledTasks(Tasks):
    """One task of each party is cancelled at some moment, and perhaps once more."""

    name = "cancelled tasks"

    async def disturb(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        choices = self.history.scheduler._choices
        for _ in range(1 + choices.pick(2, "cancel again")):
            await asyncio.sleep(CANCELLED_AFTER_S[choices.pick(len(CANCELLED_AFTER_S), "cancel")])
            tasks[0].cancel()


class TasksLeft(Tasks):
    """The program ends while its tasks are at work, and cancels all of them."""

    name = "tasks left at the end"

    async def together(self) -> None:
        for _ in range(TASKS):
            asyncio.ensure_future(self.task())  # noqa: RUF006 - that is the point
        choices = self.history.scheduler._choices
        await asyncio.sleep(CANCELLED_AFTER_S[choices.pick(len(CANCELLED_AFTER_S), "end")])
