"""Batches of any number of guarded writes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from pynamodb.exceptions import PutError
from typing_extensions import Self, TypeVar

from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import is_count
from pynamo_locking._core.limits import MOST_ACTIONS, MOST_BYTES
from pynamo_locking._core.outcome import BatchResult
from pynamo_locking._io import statements
from pynamo_locking._io.pool import Pool
from pynamo_locking._items.keys import ItemKey, key_of
from pynamo_locking._models.transact_write import TransactWrite
from pynamo_locking._models.writing import GuardedMixin
from pynamo_locking._writes import together
from pynamo_locking.exceptions import BatchError, Conflict, OutcomeUnknown, also

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pynamodb.connection import Connection
    from pynamodb.expressions.condition import Condition

    from pynamo_locking._writes.together import Planned

M = TypeVar("M", bound=GuardedMixin)


@dataclass(frozen=True)
class _Job(Generic[M]):
    item: M
    operation: str
    condition: Condition | None
    checks_version: bool
    identity: ItemKey | None

    def run(self) -> None:
        self._check_key()
        write = self.item.save if self.operation == "save" else self.item.delete
        # A model may override `save` with PynamoDB's first argument only.
        write(self.condition, **({} if self.checks_version else {"add_version_condition": False}))

    @property
    def place(self) -> tuple[Connection, str] | None:
        """Where it is written; None if the model's own method has to write it."""
        method = getattr(self.item, self.operation)
        if getattr(method, "__func__", None) is not getattr(GuardedMixin, self.operation):
            return None
        connection = self.item._get_connection()
        return connection.connection, connection.table_name

    def plan(self) -> Planned | None:
        """Return it as a statement; None if there is none."""
        self._check_key()
        writer = self.item._writer()
        if writer is None:
            return None
        plan = writer.plan_save if self.operation == "save" else writer.plan_delete
        return together.planned(writer, plan(self.condition, checks_version=self.checks_version))

    def add_to(self, transaction: TransactWrite) -> None:
        self._check_key()
        add = transaction.save if self.operation == "save" else transaction.delete
        add(self.item, self.condition, add_version_condition=self.checks_version)

    def _check_key(self) -> None:
        """Refuse an instance whose key was changed after it was added."""
        if self.identity is not None and _identity_of(self.item) != self.identity:
            raise ConfigurationError(
                f"the key of this {type(self.item).__name__} was changed after it was added to the batch for "
                f"{self.identity}, and it was not written: make an instance for each item."
            )


class GuardedBatch(Generic[M]):
    """Collects saves and deletes of one model, and writes them when the ``with`` block ends.

    Each write is guarded as it would be alone: by its version, its lock, its condition. A refused write does not
    stop the other writes, except those of the same native transaction.

    Unlike PynamoDB's `batch_write`, nothing is written if the block raises, and every write has a result.
    Made by `VersionedMixin.guarded_batch`.

    Attributes:
        results: one `BatchResult` for each write, in the order in which they were added; empty until the
            block has ended.
    """

    def __init__(self, *, transactions: bool, workers: int, on_progress: Callable[[int, int], object] | None) -> None:
        if not is_count(workers):
            raise ConfigurationError(f"a batch needs at least one worker, not {workers!r}.")
        self._transactions = transactions
        self._workers = workers
        self._on_progress = on_progress
        self._jobs: list[_Job[M]] = []
        self._seen: set[Any] = set()
        self._errors: dict[int, Exception | None] = {}
        self._planned: dict[int, Planned] = {}
        self._begun: set[int] = set()
        self._at_rest: set[int] = set()
        self._has_ended = False
        self.results: tuple[BatchResult, ...] = ()

    def save(self, item: M, condition: Condition | None = None, *, add_version_condition: bool = True) -> None:
        """Add a save. The item is written as it is when the block ends.

        Args:
            item: the model instance.
            condition: has to be true for this item.
            add_version_condition: with False the item is written whatever its version.

        Raises:
            ConfigurationError: the batch has a write of this item, or of this instance, already.
        """
        self._add(_Job(item, "save", condition, add_version_condition, _identity_of(item)))

    def delete(self, item: M, condition: Condition | None = None, *, add_version_condition: bool = True) -> None:
        """Add a delete. Arguments and errors are those of `save`."""
        self._add(_Job(item, "delete", condition, add_version_condition, _identity_of(item)))

    def _check_open(self) -> None:
        if self._has_ended:
            raise ConfigurationError("this batch has ended: make a new one with guarded_batch().")

    def _add(self, job: _Job[M]) -> None:
        self._check_open()
        if job.identity is not None and job.identity in self._seen:
            raise ConfigurationError(
                f"a batch allows one write for each item, since they are written in any order, and this batch has "
                f"two for {job.identity}: join them."
            )
        if id(job.item) in self._seen:
            raise ConfigurationError(
                f"this {type(job.item).__name__} is in the batch already, and an instance is written once, as it is "
                f"when the block ends: make one for each item."
            )
        self._seen |= {job.identity, id(job.item)}
        self._jobs.append(job)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._has_ended = True
        if error is None:
            self._commit()

    def _commit(self) -> None:
        jobs = self._jobs
        try:
            self._run(self._batches(), self._send)
            self._run(self._groups(), self._write)
        finally:
            in_doubt = self._begun - self._at_rest
            self.results = tuple(
                BatchResult(job.item, job.operation, self._errors.get(number, _interrupted(number in in_doubt)))
                for number, job in enumerate(jobs)
            )
        failed = [result for result in self.results if result.error is not None]
        if failed:
            raise also(BatchError, PutError)(
                f"{len(failed)} of {len(jobs)} writes of the batch were not applied (`results` has all of them); "
                f"the first: {failed[0].error}",
                results=self.results,
                cause=failed[0].error,
            )

    def _run(self, groups: list[list[int]], act: Callable[[list[int]], None]) -> None:
        pool = Pool([partial(act, group) for group in groups], self._workers, lambda _: self._tell())
        try:
            pool.run()
        finally:
            self._begun |= {number for index in pool.begun for number in groups[index]}

    def _batches(self) -> list[list[int]]:
        """Return which writes are sent in one request, if there are statements for them."""
        if self._transactions:
            return []
        return [batch for batch in statements.batches(job.place for job in self._jobs) if len(batch) > 1]

    def _send(self, batch: list[int]) -> None:
        """Send writes in one request, and note those that were applied, or can never be."""
        for number in batch:
            error = _failure_of(lambda number=number: self._plan(number))  # type: ignore[misc]
            if error is not None:
                self._errors[number] = error
        sent = [number for number in batch if number in self._planned]
        results = together.send([self._planned[number] for number in sent])
        for number, is_applied in zip(sent, results, strict=True):
            if is_applied:
                self._errors[number] = _failure_of(self._planned[number].done)
        self._at_rest |= {number for number in batch if not self._is_unanswered(number)}

    def _is_unanswered(self, number: int) -> bool:
        return number in self._planned and self._planned[number].write.is_unanswered

    def _plan(self, number: int) -> None:
        planned = self._jobs[number].plan()
        if planned is not None:
            self._planned[number] = planned

    def _groups(self) -> list[list[int]]:
        """Return which of the writes that are left are sent together."""
        if not self._transactions:
            return [[number] for number in range(len(self._jobs)) if number not in self._errors]
        groups: list[list[int]] = []
        room = bytes_left = 0
        for number, job in enumerate(self._jobs):
            actions, size = job.item._most_actions(), _size_of(job)
            if not groups or room < actions or bytes_left < size:
                groups.append([])
                room, bytes_left = MOST_ACTIONS, MOST_BYTES
            groups[-1].append(number)
            room, bytes_left = room - actions, bytes_left - size
        return groups

    def _write(self, group: list[int]) -> None:
        """Write one item, or some in one transaction, and note the results."""
        self._at_rest.difference_update(group)
        members = [self._jobs[number] for number in group]
        if self._transactions:
            errors = _transact(members)
        else:
            planned = self._planned.pop(group[0], None)
            errors = [_failure_of(members[0].run if planned is None else planned.send_alone)]
        self._errors.update(zip(group, errors, strict=True))

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(len(self._errors), len(self._jobs))


def _failure_of(act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - it is the result
        return error
    except BaseException as error:  # noqa: BLE001 - in a worker thread, where it would be lost
        return OutcomeUnknown(f"the write was broken off by {error!r}, and may or may not have been applied")
    return None


def _transact(jobs: list[_Job[M]]) -> list[Exception | None]:
    """Write all items or none, and return why each was refused."""
    transaction = TransactWrite(connection=jobs[0].item._get_connection().connection)
    errors = [_failure_of(lambda job=job: job.add_to(transaction)) for job in jobs]  # type: ignore[misc]
    if not any(errors):
        error = _failure_of(transaction._commit)
        is_explained = any(transaction._refusals) and not isinstance(error, OutcomeUnknown)
        errors = transaction._refusals if is_explained else [error] * len(jobs)
    first = next((error for error in errors if error is not None), None)
    return errors if first is None else [error or _with_another(first) for error in errors]


def _with_another(first: Exception) -> Exception:
    return Conflict(f"not written, since another write of the same transaction was refused: {first}", cause=first)


def _interrupted(is_begun: bool) -> Exception:  # noqa: FBT001
    if is_begun:
        return OutcomeUnknown("the batch was interrupted while this was written; it may or may not have been applied")
    return Conflict("not written: the batch was interrupted before")


def _identity_of(item: GuardedMixin) -> ItemKey | None:
    """Return the table and the key of an item; None for an invalid key, which the write itself will refuse."""
    try:
        return ItemKey.of(type(item).Meta.table_name, key_of(type(item), *item._key_values()))
    except ConfigurationError:
        return None


def _size_of(job: _Job[M]) -> int:
    """Return the maximum size of an item in bytes; 0 for an item that the write itself will refuse."""
    if job.operation == "delete":
        return 0
    try:
        return len(repr(job.item.serialize(null_check=False)).encode())
    except Exception:  # noqa: BLE001 - whatever an attribute raises
        return 0
