"""Stores rows where no other row is: by attempts of its own, or with a caller's transaction.

An attempt reads the guards of the rows' hash keys, looks for overlapping rows, and writes rows and guards in one
transaction. DynamoDB refuses it if another writer has changed a guard meanwhile. A writer that was refused a few times
takes its turn in the queue of a lock. The lock only decides the order of writers, the guards what is stored.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import TransactWriteError, UpdateError
from typing_extensions import override

from pynamo_locking._core import dynamodb
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import backoff
from pynamo_locking._core.row_keys import turn_name
from pynamo_locking._intervals.guards import StagedInserts, guards_of
from pynamo_locking._intervals.intervals import enclosing
from pynamo_locking._intervals.placings import Move, Placing, by_guard, forget_unsure, note_unsure, restoring
from pynamo_locking._io import concurrency, runtime
from pynamo_locking._io.batch_requests import settle
from pynamo_locking._io.concurrency import undone_by
from pynamo_locking._io.model_doors import enforcement_of, lock_attribute_of
from pynamo_locking._items import versions
from pynamo_locking._locks.locked_all import in_order, locked_all
from pynamo_locking._models.isolation import SERIALIZABLE, IsolatedReader
from pynamo_locking._models.mixins import LockableMixin
from pynamo_locking._models.writes import check_alone
from pynamo_locking._pynamodb import new_item
from pynamo_locking._transactions.begin import Attempts, run_attempts
from pynamo_locking._transactions.transaction_doors import check_open, is_done_before, items_of, note_end
from pynamo_locking.exceptions import (
    Conflict,
    ItemLocked,
    LockLost,
    LockTimeout,
    OverlapError,
    TransactionAborted,
    TransactionConflict,
    also,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamo_locking._core.lease import Duration
    from pynamo_locking._intervals.intervals import IntervalAttributes
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._transactions.item import TransactionItem
    from pynamo_locking._transactions.items import TransactionItems
    from pynamo_locking._transactions.transaction import Transaction


#: How long to retry, in seconds.
_WAIT_S: Final = 10.0

#: After so many refusals a call takes its turn.
_REFUSALS: Final = 3


class DisjointWrite(Attempts):
    """A call that stores rows where no other row is, all or none: attempts until one is not refused, or `wait` is over.

    After an attempt that has failed, the rows are as the caller has passed them. An `OverlapError` is also an `error`
    of PynamoDB.
    """

    def __init__(
        self,
        interval: IntervalAttributes,
        placings: Sequence[Placing],
        error: type[Exception] = TransactWriteError,
        *,
        pessimistic: bool = False,
        wait: Duration | None = None,
    ) -> None:
        for placing in placings:
            check_alone(placing.row)
        super().__init__({"wait": _WAIT_S if wait is None else wait})
        self._interval = interval
        self._placings = placings
        self._groups = by_guard(placings)
        self._guards = guards_of(interval)
        self._error = error
        self._check_size(is_locked=pessimistic)
        self._ranges = Turn(_range_locks(interval, placings) if pessimistic else [], self.left())
        self._turn = contextlib.ExitStack()
        self._restores = [restoring(placing.row) for placing in placings]
        self._refusals = 0
        # Of the last attempt:
        self._refused: Conflict | None = None
        self._work: list[StagedInserts] = []

    def _check_size(self, *, is_locked: bool) -> None:
        """Refuse too many rows before any request: guards and locks are part of the deciding transaction.

        `is_locked` rows are written under range locks, one for each hash key.
        """
        model: Any = self._interval.model
        is_embedded = lock_attribute_of(model) is not None
        is_checked = (is_locked and not is_embedded) or enforcement_of(model) is not None
        besides = len(self._groups) * (2 if is_checked else 1)
        can_be_long = is_embedded and getattr(model.Meta, "transaction_table", None) is not None
        most = f"the {dynamodb.MOST_ACTIONS} actions of a native transaction"
        if besides >= dynamodb.MOST_ACTIONS:
            raise ConfigurationError(
                f"rows of {len(self._groups)} hash keys need more than {most}: write fewer at once."
            )
        if len(self._placings) + besides > dynamodb.MOST_ACTIONS and not can_be_long:
            raise ConfigurationError(
                f"{len(self._placings)} rows, and {besides} guards and locks of their hash keys, are more than {most}: "
                f"write fewer at once, or declare `lock = LockAttribute()` on {model.__name__} and name a "
                f"TransactionTable in Meta.transaction_table."
            )

    def run(self) -> None:
        """Store the rows, or raise as `Intervals.insert_disjoint`."""
        with self._ranges:
            self._run()

    async def arun(self) -> None:
        """As `run`, but wait for the range locks in the task: their holders need the threads."""
        async with self._ranges:
            await concurrency.to_the_end(self._run)

    def _run(self) -> None:
        with self._turn:
            run_attempts(self, self._attempt)

    def _attempt(self) -> None:
        written: dict[Placing, TransactionItem] = {}
        try:
            # The guards first: whoever changes a row after that changes a guard, and this attempt is refused.
            work = [
                StagedInserts(self._interval, self.begun, self._guard(name), group, self._error)
                for name, group in self._groups.items()
            ]
            # Do the guards explain why the last attempt was refused? If not, no further attempt would help.
            self._check_again(work)
            self._work = work
            # Refuse rows that overlap others before any row is changed.
            for staging in work:
                staging.check_room()
            for staging in work:
                written |= staging.stage()
            # Nothing is left to write if an earlier call, whose outcome was unknown, has stored all rows.
            if written:
                self.begun.commit()
        except BaseException as error:
            # The rows become as they were before the call.
            for restore in self._restores:
                restore()
            # After anything else, an interrupt too, the rows may be stored: the next call finds out.
            if not isinstance(error, (Conflict, OverlapError)):
                note_unsure(written)
            raise
        for placing in self._placings:
            forget_unsure(placing.row)

    def _guard(self, name: str) -> TransactionItem:
        """Return a guard, read or, in our turn, incremented.

        The increment refuses all writers that have read the guard before. Those that read it later write later than we.
        """
        model = self._guards
        if self._has_turn:
            with contextlib.suppress(UpdateError):
                guard = new_item(model, name)
                unchanged = model.touched.set(model.touched | [])
                image = guard.update([unchanged], model.version.exists(), add_version_condition=False)["Attributes"]
                return next(items_of(self.begun).found(model, [[image]]))
        return items_of(self.begun).counter(model, name)

    @property
    def _has_turn(self) -> bool:
        return self._refusals >= _REFUSALS

    def _check_again(self, work: Sequence[StagedInserts]) -> None:
        """Raise the last refusal again if no guard has caused it, and any refusal after the deadline.

        An unchanged guard may be about to change: DynamoDB may have applied the transaction that caused the refusal to
        a row, and not yet to the guard.
        """
        refused = self._refused
        if refused is None:
            return
        is_same = _versions_in(work) == [version + self._has_turn for version in _versions_in(self._work)]
        has_cleared = any(staging.has_cleared for staging in self._work)  # if so, DynamoDB's TTL may have been faster
        if is_same and not has_cleared and not isinstance(refused, (TransactionConflict, TransactionAborted)):
            guards = [staging.guard for staging in work]
            settle(self._guards, [guard.key for guard in guards])
            if not any(self._has_changed(guard) for guard in guards):
                raise refused
            raise also(TransactionConflict, self._error)(f"other writers changed rows of the same hash key: {refused}")
        if not self.left():
            self._refused = self._too_late(refused)
            raise self._refused from refused

    def _has_changed(self, guard: TransactionItem) -> bool:
        image = IsolatedReader(SERIALIZABLE).read(self._guards, guard.key)
        return versions.known_of(self._guards, image or {}) != guard.before

    @override
    def pause_after(self, error: Exception) -> float | None:
        """Return how long to pause after a refusal, which a new look may explain; None after any other error."""
        is_final = error is self._refused or isinstance(error, ItemLocked)
        if is_final or not isinstance(error, Conflict):
            return None
        self._refused, self._refusals = error, self._refusals + 1
        if self._has_turn:  # others wait for its end
            return 0.0
        return min(backoff(self._refusals, runtime.current.jitter()), self.left())

    @override
    def begin_again(self) -> None:
        """Begin the next attempt; before the first one in our turn, wait for those who were refused before us."""
        if self._refusals == _REFUSALS:
            self._take_turn()
        super().begin_again()

    def _take_turn(self) -> None:
        meta: Any = self._interval.model.Meta
        locks = [meta.lock_table.locked(turn_name(name)) for name in self._groups]
        try:
            self._turn.enter_context(Turn(locks, self.left()))
        except LockTimeout:
            raise self._too_late(self._refused) from self._refused

    def _too_late(self, refused: Conflict | None) -> Conflict:
        return also(TransactionConflict, self._error)(
            f"other writers changed rows of the same hash key until the time to wait was over; nothing was written, "
            f"and a retry is safe. The last refusal: {refused}",
            cause=refused,
        )


def _versions_in(work: Sequence[StagedInserts]) -> list[int]:
    return [staging.guard.before.version or 0 for staging in work]


class Turn:
    """Holds locks that only decide which call is first: a lost one is no error once the block has stored its rows."""

    def __init__(self, locks: Sequence[Lock[Any]], wait: float) -> None:
        self._held: Any = locked_all(*locks, wait=wait)

    def __enter__(self) -> None:
        self._held.__enter__()

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(*(() if error[0] else (LockLost,))):
            self._held.__exit__(*error)

    async def __aenter__(self) -> None:
        await self._held.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        with contextlib.suppress(*(() if error[0] else (LockLost,))):
            await self._held.__aexit__(*error)


def _range_locks(interval: IntervalAttributes, placings: Sequence[Placing]) -> list[Lock[Any]]:
    """Return one range lock for each hash key, which spans all of its new rows."""
    model, locks = interval.model, list[Any]()
    if not issubclass(model, LockableMixin):
        raise ConfigurationError(f"{model.__name__} has no locks for pessimistic=True: derive it from LockableModel.")
    for group in by_guard(placings).values():
        spans = [placing.span for placing in group]
        if enforcement_of(model) is not None:  # the intervals that rows leave are checked too
            spans += [interval.span(*interval.ends_of(each.row)) for each in group if isinstance(each, Move)]
        locks.append(model.locked_range(group[0].hash_key, *enclosing(spans).values))
    return locks


@dataclass(frozen=True)
class Staged:
    """Rows on their way into a caller's transaction, all or none."""

    tx: Transaction
    interval: IntervalAttributes
    placings: Sequence[Placing]

    @property
    def items(self) -> TransactionItems:
        return items_of(self.tx)

    def locks(self) -> Iterator[Lock[Any]]:
        return in_order(_range_locks(self.interval, self.placings))

    def check_open(self) -> None:
        check_open(self.tx)

    def end(self) -> None:
        note_end(self.tx)

    def stage(self) -> None:
        """Add the rows. An error before the first of them leaves the transaction as it was."""
        tx, guards = self.tx, guards_of(self.interval)
        items_of(tx).note_locks()
        work = [
            StagedInserts(self.interval, tx, items_of(tx).counter(guards, name), group, TransactWriteError)
            for name, group in by_guard(self.placings).items()
        ]
        try:
            for staging in work:
                staging.check_room()
        except OverlapError:
            if is_done_before(tx, self.interval.model):  # its own rows are in the way
                return
            raise
        items_of(tx).undo += [restoring(placing.row) for placing in self.placings if isinstance(placing, Move)]
        with undone_by(tx.rollback):  # or it would have a part of the rows
            for staging in work:
                staging.stage()
