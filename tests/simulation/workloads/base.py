"""What every workload has: its items, and what a party can do with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.exceptions import DoesNotExist

from pynamo_locking import TransactWrite
from pynamo_locking._locks.context import entry_in
from pynamo_locking._locks.lock import handle_of
from pynamo_locking_testing._engine.network import Place
from tests.simulation.history import Told
from tests.simulation.models import BY_LOCK_ALONE, LOCKED_ELSEWHERE, WITHOUT_LOCK, Names, Note, has_lock
from tests.support import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking import Lock
    from tests.simulation.history import Grant, History, Operation


class Workload:
    """What the parties do.

    Args:
        history: where they report it.

    Attributes:
        items: what exists at the beginning: a model and a key each.
        tables: models of which only the tables exist at the beginning.
        is_contended: whether an operation may be refused although nothing went wrong.
        is_enforced: whether a write without a lock meets the locks in other rows.
        trusts_clocks: whether any of its locks believes wall clocks.
        registers: the items whose `value` is overwritten, which must be linearizable.
        purses: the items whose sum of balances never changes.
        jobs: the items that are to be written once.
        final_ttl_s: how long the header of a transaction is kept that is over, if DynamoDB's TTL is at work.
        most_actions: how many a native transaction holds; fewer than DynamoDB's, so that few items make a long one.
        refusals: after how many an insert of an interval takes its turn; fewer than usual, so that few parties do.
        most_statements: how many a batch of statements holds; 1: none are sent.
        halves_seeds: whether tests make half as many seeds: one of many workloads for one rule, or one that takes long.
    """

    name: ClassVar[str]
    items: ClassVar[tuple[tuple[Any, Any], ...]]
    tables: ClassVar[tuple[Any, ...]] = ()
    is_contended: ClassVar[bool] = False
    is_enforced: ClassVar[bool] = False
    trusts_clocks: ClassVar[bool] = True
    registers: ClassVar[tuple[tuple[Any, str], ...]] = ()
    purses: ClassVar[tuple[tuple[Any, str], ...]] = ()
    jobs: ClassVar[tuple[tuple[Any, str], ...]] = ()
    final_ttl_s: ClassVar[int | None] = None
    most_actions: ClassVar[int | None] = None
    refusals: ClassVar[int | None] = None
    most_statements: ClassVar[int] = 1
    halves_seeds: ClassVar[bool] = False

    def __init__(self, history: History) -> None:
        self.history = history

    def prepare(self) -> None:
        """Make what exists at the beginning."""
        for model, key in self.items:
            if model is not Names:
                model(*_parts(key)).save()

    def clean_up(self) -> None:
        """Do what a party that comes by later does about what the dead have left."""

    def party(self, index: int, turn: int) -> None:
        """Do one turn of one party."""
        raise NotImplementedError

    # Where things are

    def rows(self) -> list[Place]:
        """Return the rows that carry locks."""
        rows = (self.row_of(place(model, key)) for model, key in self.items)
        return list(dict.fromkeys(row for row in rows if row is not None))

    def locks(self) -> Iterator[Lock[Any]]:
        """Return one lock for each row that is there."""
        for model, key in self.items:
            if has_lock(model) and self.exists(model, key):
                yield model.locked(key)

    @staticmethod
    def exists(model: Any, key: str) -> bool:
        """Tell whether an item is there, or needs not be for its lock."""
        if model is Names or getattr(model.Meta, "lock_table", None) is not None:
            return True
        try:
            model.get(key, consistent_read=True)
        except DoesNotExist:
            return False
        return True

    @staticmethod
    def row_of(item: Place) -> Place | None:
        """Return which row carries the lock of an item; None if it has no lock."""
        if item.table in WITHOUT_LOCK:
            return None
        return Place("names", (f"{item.table}/{item.key[0]}",)) if item.table in LOCKED_ELSEWHERE else item

    # What a party can do

    def append(self, item: Any, done: int) -> None:
        """Let an item show the number of an operation."""
        item.log = [*(item.log or []), done]

    def append_and_save(self, item: Any, done: int) -> None:
        """Let an item show the number of an operation, and save it."""
        self.append(item, done)
        item.save(add_version_condition=not isinstance(item, BY_LOCK_ALONE))

    def appended(self, model: Any, done: int) -> Any:
        """Return the action that lets an item show the number of an operation."""
        return model.log.set(model.log.append([done]))

    def plain_save(self, model: Any, key: str, kind: str = "save") -> None:
        """Read an item and save it, without a lock."""
        with self.history.operation(kind, place(model, key)) as done:
            self.append_and_save(model.get(key, consistent_read=True), done.number)

    def modify(self, model: Any, key: str, **options: Any) -> Operation:
        """Let an item show the number of an operation by `modify`, whose second attempt holds the lock."""
        with self.history.operation("modify", place(model, key)) as done:
            row = handle_of(lock := model.locked(key)).target.row

            def change(item: Any) -> None:
                held = entry_in(row)
                done.tickets = {} if held is None else {self.row(lock): held.entry.ticket}
                done.seen = {place(model, key): list(item.log or [])}
                self.append(item, done.number)

            model.modify(key, change, **options)
        return done

    def plain_create(self, model: Any, key: str, condition: Any = None, **values: Any) -> None:
        """Make an item, if there is none."""
        with self.history.operation("create", place(model, key)) as done:
            model(key, log=[done.number], **values).save(condition)

    def plain_delete(self, model: Any, key: str, kind: str = "delete") -> None:
        """Read an item and delete it, without a lock."""
        with self.history.operation(kind, place(model, key)):
            model.get(key, consistent_read=True).delete()

    def save_together(self, done: int, *items: Any, lock: Lock[Any] | None = None, kind: Any = TransactWrite) -> None:
        """Let items show the number of an operation in one native transaction, perhaps only if we still have a lock."""
        with kind(connection=Note._get_connection().connection) as transaction:
            if lock is not None:
                lock.add_check_to(transaction)
            for item in items:
                self.append(item, done)
                transaction.save(item)

    def until_not_refused(self, act: Callable[[], Told], attempts: int) -> None:
        """Do something again as long as it is refused."""
        for _ in range(attempts):
            if act() is not Told.REFUSED:
                return

    def using(self, lock: Lock[Any], work: Callable[[], object], **arguments: Any) -> None:
        """Take a lock, work, and give it back."""
        if self.taken(lock, **arguments):
            try:
                work()
            finally:
                self.give_back(lock)

    def holding(self, lock: Lock[Any], work: Callable[[Grant], object], **arguments: Any) -> None:
        """Take a lock, work while it counts as held, and give it back."""

        def held() -> None:
            with self.history.held(lock, self.row(lock)) as grant:
                work(grant)

        self.using(lock, held, **arguments)

    def saves(self, lock: Lock[Any], *work_s: float) -> None:
        """Take a lock, save once after each time of work, and give it back."""

        def save() -> None:
            for seconds in work_s:
                self.save_locked(lock, seconds)

        self.using(lock, save)

    def save_locked(self, lock: Lock[Any], work_s: float = 0) -> None:
        """Change an item under its lock."""
        with self.history.held(lock, self.row(lock)):
            if work_s:
                runtime.sleep(work_s)
            with self.history.operation("save", self.item(lock), ticket=lock.ticket) as done:
                self.append_and_save(lock.item, done.number)
            self.take_back(lock, done)

    def take_back(self, lock: Lock[Any], done: Operation) -> None:
        """Undo a refused change in memory, or the next save of the same object would write it."""
        item = lock._handle._given
        if done.told is Told.REFUSED and item is not None and done.number in item.log:
            item.log.remove(done.number)

    def write_beside(self, lock: Lock[Any]) -> Operation:
        """Change an item that has no lock, if we still have ours."""
        with self.history.operation("write beside", place(Note, "n"), ticket=lock.ticket) as done:
            self.save_together(done.number, Note.get("n", consistent_read=True), lock=lock)
        return done

    def read(self, model: Any, key: str) -> None:
        """Read an item."""
        with self.history.operation("read", place(model, key)) as done:
            done.value = list(model.get(key, consistent_read=True).log or [])

    def item(self, lock: Lock[Any]) -> Place:
        """Return the item that a lock protects."""
        return place(lock._handle.target.model, lock._handle.target.carrier[1].rpartition("/")[2])

    def row(self, lock: Lock[Any]) -> Place:
        """Return the row that carries a lock."""
        return place(lock._handle.target.carrier[0], lock._handle.target.carrier[1])

    def taken(self, lock: Lock[Any], **arguments: Any) -> bool:
        """Take a lock; tell whether that went well."""
        row = self.row(lock)
        with self.history.taking("acquire", row) as done:
            lock.acquire(**arguments)
            assert lock._handle.entry is not None, f"acquire() of {lock.name} has returned, and no entry is held"
            done.value = lock._handle.entry.entry.id
        if done.told is not Told.APPLIED:
            self.history.timeouts += 1
            return False
        self.history.granted(lock, row)
        return True

    def give_back(self, lock: Lock[Any]) -> None:
        """Give a lock back, whatever became of it."""
        kind = "release" if lock._handle.entry is not None and lock._handle.entry.depth == 1 else "inner release"
        with self.history.taking(kind, self.row(lock), lock.ticket) as done:
            lock.release()
        if done.told is not Told.APPLIED:
            self.history.losses += 1


def place(model: Any, key: Any) -> Place:
    """Return where the item of a model is; its key may have two parts."""
    return Place(model.Meta.table_name, _parts(key))


def _parts(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)
