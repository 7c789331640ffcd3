"""Stores rows where no other row is: reads, and writes only if no other writer has stored a row there meanwhile.

How one attempt finds out what is free stands in `staging`. A writer that was refused a few times takes its turn in the
queue of a lock, so that no writer is refused for long. The lock decides the order of writers, the guard what is stored.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import UpdateError

from pynamo_locking._core import limits
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.lease import backoff
from pynamo_locking._core.naming import turn_name
from pynamo_locking._intervals.guard_row import guards_of
from pynamo_locking._intervals.placing import Memory, Placing, by_guard, forget_unsure, note_unsure
from pynamo_locking._intervals.staging import Staging
from pynamo_locking._io import runtime
from pynamo_locking._io.transactional_reads import settle
from pynamo_locking._items import versions
from pynamo_locking._locks.several import locked_all
from pynamo_locking._models.isolation import Reader
from pynamo_locking._transactions.transaction import Transaction
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
    from collections.abc import Collection, Iterator, Sequence

    from pynamo_locking._intervals.axis import Axis
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._transactions.member import Member

#: After so many refusals a call takes its turn.
_REFUSALS: Final = 3


class Disjoint:
    """Stores rows where no other row is, all or none.

    It retries until the deadline, by the monotonic clock. An `OverlapError` is also an `error` of PynamoDB. `is_locked`
    rows are written under range locks, one for each hash key.
    """

    def __init__(
        self,
        axis: Axis,
        placings: Sequence[Placing],
        deadline: float,
        error: type[Exception],
        *,
        is_locked: bool,
    ) -> None:
        self._axis = axis
        self._guards = guards_of(axis)
        self._placings = placings
        self._deadline = deadline
        self._error = error
        self._seen: list[Any] = []
        self._is_over = False
        self._has_turn = False
        self._has_cleared = False
        self._groups = by_guard(placings)
        self._check_size(is_locked=is_locked)

    def _check_size(self, *, is_locked: bool) -> None:
        """Refuse too many rows before any request: guards and locks are part of the deciding transaction."""
        model: Any = self._axis.model
        is_embedded = model._lock_attribute() is not None
        is_checked = (is_locked and not is_embedded) or model._enforces() is not None
        besides = len(self._groups) * (2 if is_checked else 1)
        can_be_long = is_embedded and getattr(model.Meta, "transaction_table", None) is not None
        most = f"the {limits.MOST_ACTIONS} actions of a native transaction"
        if besides >= limits.MOST_ACTIONS:
            raise ConfigurationError(
                f"rows of {len(self._groups)} hash keys need more than {most}: write fewer at once."
            )
        if len(self._placings) + besides > limits.MOST_ACTIONS and not can_be_long:
            raise ConfigurationError(
                f"{len(self._placings)} rows, and {besides} guards and locks of their hash keys, are more than {most}: "
                f"write fewer at once, or declare `lock = LockAttribute()` on {model.__name__} and name a "
                f"TransactionTable in Meta.transaction_table."
            )

    def run(self) -> None:
        """Store the rows, or raise as `IntervalMixin.insert_disjoint`."""
        with contextlib.ExitStack() as turn:
            self._run(turn)

    def _run(self, turn: contextlib.ExitStack) -> None:
        before = [Memory(placing.row) for placing in self._placings]
        begun, refused, attempt = Transaction(wait=self._left()), None, 0
        while True:
            try:
                self._attempt(begun, refused)
            except BaseException as error:
                begun.rollback()
                is_refused = isinstance(error, (Conflict, OverlapError))  # else, as after an interrupt, it is unknown
                for memory, placing in zip(before, self._placings, strict=True):
                    memory.restore()
                    if not is_refused and placing.unsure is not None:
                        note_unsure(placing.row, placing.unsure)
                if (
                    error is refused
                    or self._is_over
                    or not isinstance(error, Conflict)
                    or isinstance(error, ItemLocked)
                ):
                    raise
                refused, attempt = error, attempt + 1
            else:
                for placing in self._placings:
                    forget_unsure(placing.row)
                return
            if attempt == _REFUSALS:
                self._take_turn(turn, refused)
            elif attempt < _REFUSALS:  # else others wait for the end of our turn
                runtime.current.sleep(min(backoff(attempt, runtime.current.jitter()), self._left()))
            begun = begun._again(Transaction(wait=self._left()))

    def _take_turn(self, turn: contextlib.ExitStack, refused: Conflict) -> None:
        """Wait until no other writer that was refused as often is before us."""
        meta: Any = self._axis.model.Meta
        try:
            turn.enter_context(behind([meta.lock_table.lock(turn_name(name)) for name in self._groups], self._left()))
        except LockTimeout:
            raise self._too_late(refused) from refused
        self._has_turn = True

    def _left(self) -> float:
        return max(0.0, self._deadline - runtime.current.monotonic())

    def _attempt(self, begun: Transaction, refused: Conflict | None) -> None:
        guards = {name: self._guard(begun, name) for name in self._groups}
        work = [Staging(self._axis, begun, guards[name], group, self._error) for name, group in self._groups.items()]
        seen = [member.before.version or 0 for member in guards.values()]
        if refused is not None:
            self._check_again(refused, guards.values(), is_same=seen == [each + self._has_turn for each in self._seen])
        self._seen = seen
        for staging in work:
            staging.look()
        is_staged = [staging.stage() for staging in work]
        self._has_cleared = any(staging.has_cleared for staging in work)
        if any(is_staged):
            begun.commit()
        else:
            begun.rollback()

    def _guard(self, begun: Transaction, name: str) -> Member:
        """Return a guard, read or, in our turn, incremented.

        The increment refuses all writers that have read the guard before. Those that read it later write later than we.
        """
        model = self._guards
        if self._has_turn:
            with contextlib.suppress(UpdateError):
                guard = model(name)
                unchanged = model.touched.set(model.touched | [])
                image = guard.update([unchanged], model.version.exists(), add_version_condition=False)["Attributes"]
                return next(begun._members._found(model, [[image]]))
        return begun._members.counter(model, name)

    def _check_again(self, refused: Conflict, guards: Collection[Member], *, is_same: bool) -> None:
        """Raise an error that no guard has caused, and any error after the deadline.

        An unchanged guard may be about to change: DynamoDB may have applied the transaction that caused the refusal to
        a row, and not yet to the guard.
        """
        has_cleared, self._has_cleared = self._has_cleared, False  # if so, DynamoDB's TTL may have been faster
        if is_same and not has_cleared and not isinstance(refused, (TransactionConflict, TransactionAborted)):
            settle(self._guards, [guard.key for guard in guards])
            if not any(self._has_changed(guard) for guard in guards):
                raise refused
            raise also(TransactionConflict, self._error)(f"other writers changed rows of the same hash key: {refused}")
        if not self._left():
            self._is_over = True
            raise self._too_late(refused) from refused

    def _too_late(self, refused: Conflict) -> Exception:
        return also(TransactionConflict, self._error)(
            f"other writers changed rows of the same hash key until the time to wait was over; nothing was written, "
            f"and a retry is safe. The last refusal: {refused}",
            cause=refused,
        )

    def _has_changed(self, guard: Member) -> bool:
        image = Reader("serializable").read(self._guards, guard.key)
        return versions.known_of(self._guards, image or {}) != guard.before


@contextlib.contextmanager
def behind(locks: Sequence[Lock[Any]], wait: float) -> Iterator[None]:
    """Hold locks that only decide which call is first: a lost one is no error once the block has stored its rows."""
    is_done = False
    try:
        with locked_all(*locks, wait=wait):
            yield
            is_done = True
    except LockLost:
        if not is_done:
            raise
