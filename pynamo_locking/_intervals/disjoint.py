"""Stores rows where no other row is: reads, and writes only if no other writer has stored a row there meanwhile.

A writer that changes which intervals of a hash key are taken increments the version of the guard in the same native
transaction, on condition that it is still the version that the writer read before its query. So DynamoDB refuses one of
two concurrent writers.

Why a query misses no conflicting row: let *settled* mean that DynamoDB has nothing left to do for a row. Claim: when a
guard was written, every row written under it before was settled, or is named in it. The next writer has read the guard,
and either keeps its names and adds its own, or settles the named rows first and leaves only its own names; so the claim
holds again. A row that was settled before the guard was read shows in a later query. A named row is assumed to be where
the guard says; if that place conflicts, the row is settled and searched for.

A writer that was refused a few times takes its turn in the queue of a lock, so that no writer is refused for long. The
lock decides who is first, the guard what is stored.
"""

from __future__ import annotations

import contextlib
import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pynamodb.exceptions import UpdateError

from pynamo_locking._core import limits
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.intervals import Span, begin_of, joined
from pynamo_locking._core.lease import backoff
from pynamo_locking._core.naming import turn_name
from pynamo_locking._intervals.guard_row import Touched, guards_in, note_touched, touched_in
from pynamo_locking._intervals.placing import Memory, Placing, by_guard, forget_unsure, note_unsure, unsure_of
from pynamo_locking._intervals.search import overlapping
from pynamo_locking._io import runtime
from pynamo_locking._io.transactional_reads import settle
from pynamo_locking._items import knowledge, versions
from pynamo_locking._items.expiry import is_expired
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
    as_model,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pynamo_locking._intervals.axis import Axis
    from pynamo_locking._io.stored import Image
    from pynamo_locking._locks.lock import Lock
    from pynamo_locking._transactions.member import Member

#: A guard that names more rows is settled: with more names it would be larger than a write unit.
MOST_TOUCHED: Final = 8

#: After so many refusals a call takes its turn.
_REFUSALS: Final = 3

#: One page of this many rows nearly always shows that the interval is free.
_PAGE: Final = 5

#: The maximum number of rows in an `OverlapError`.
_MOST_TOLD: Final = 20


class Disjoint:
    """Stores rows where no other row is, all or none.

    It retries until the deadline, by the monotonic clock. The guards are in the `table` of locks. An `OverlapError` is
    also an `error` of PynamoDB. `is_locked` rows are written under range locks, one for each hash key.
    """

    def __init__(
        self,
        axis: Axis,
        table: type[Any],
        placings: Sequence[Placing],
        deadline: float,
        error: type[Exception],
        *,
        is_locked: bool,
    ) -> None:
        self._axis = axis
        self._table = table
        self._guards = guards_in(table)
        self._placings = placings
        self._deadline = deadline
        self._error = error
        self._seen: list[Any] = []
        self._is_over = False
        self._has_turn = False
        self._expired: list[Image] = []
        self._has_cleared = False
        self._groups = by_guard(placings)
        self._check_size(is_locked=is_locked)

    def _check_size(self, *, is_locked: bool) -> None:
        """Refuse too many rows before any request: guards and locks are part of the deciding transaction."""
        model: Any = self._axis.model
        is_embedded = model._lock_attribute() is not None
        besides = len(self._groups) * (2 if is_locked and not is_embedded else 1)
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
        try:
            turn.enter_context(behind([self._table.lock(turn_name(name)) for name in self._groups], self._left()))
        except LockTimeout:
            raise self._too_late(refused) from refused
        self._has_turn = True

    def _left(self) -> float:
        return max(0.0, self._deadline - runtime.current.monotonic())

    def _attempt(self, begun: Transaction, refused: Conflict | None) -> None:
        guards = {name: self._guard(begun, name) for name in self._groups}
        for guard in guards.values():
            guard.rely()
        seen = [member.before.version or 0 for member in guards.values()]
        if refused is not None:
            self._check_again(refused, guards.values(), is_same=seen == [each + self._has_turn for each in self._seen])
        self._seen = seen
        left = [self._prepare(begun, guard, self._groups[name]) for name, guard in guards.items()]
        if any(left):
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

    def _prepare(self, begun: Transaction, guard: Member, group: list[Placing]) -> bool:
        """Add the rows of one hash key, and its guard, to a transaction; False if all rows are stored already."""
        item: Any = guard.item
        hash_key, self._expired = group[0].stored_hash_key, []
        touched, placings = self._look(begun, touched_in(item, hash_key), group)
        for placing in placings:
            placing.member = placing.write(begun)
            begun._count_in_guard(placing.member)
            if placing.leaves is not None:
                touched.append(Touched(hash_key, (placing.leaves[self._axis.key_name],)))
            touched.append(Touched(hash_key, self._axis.ends(placing.span)))
        if placings:
            self._clear(begun)
            newest = {repr(each.key(self._axis)): each for each in touched}  # the last write of each row counts
            note_touched(item, list(newest.values()))
            guard.save(None, checks=True)
        return bool(placings)

    def _clear(self, begun: Transaction) -> None:
        """Delete expired rows that overlap: a late save of a stale copy could extend their lifetime."""
        kept = [key for placing in self._placings for key in (placing.key, placing.leaves)]
        for image in {repr(self._axis.key_in(each)): each for each in self._expired}.values():
            item = as_model(self._axis.model, image)
            if self._axis.key_in(image) not in kept and knowledge.known(item).version is not None:
                begun._members.of(item, is_write=True, replaces=False).delete(None, checks=True)
                self._has_cleared = True

    def _look(
        self, begun: Transaction, touched: list[Touched], group: list[Placing]
    ) -> tuple[list[Touched], list[Placing]]:
        """Return which touched rows the guard must still name, and which rows must still be written."""
        for placing in group:
            placing.is_adopted = False  # each attempt finds out anew
        in_the_way = any(
            each.overlaps(self._axis, placing.span) and each.key(self._axis) != placing.leaves
            for each in touched
            for placing in group
        )
        is_unsure = any(unsure_of(placing.row) for placing in group)
        if in_the_way or is_unsure or len(touched) > MOST_TOUCHED:
            touched = self._settle(touched)
        found = self._search(begun, group)
        keys = [each.key(self._axis) for each in touched]
        if any(self._axis.key_in(image) in keys for image, _ in found):  # the row may have moved away already
            touched = self._settle(touched)
            found = self._search(begun, group)
        group = [placing for placing in group if not self._is_done(placing, self._stored(begun, placing, found))]
        leaving = [placing.leaves for placing in group]
        found = [each for each in found if self._axis.key_in(each[0]) not in leaving]
        for placing in group:
            self._check_free(placing, found)
        return touched, group

    def _settle(self, touched: list[Touched]) -> list[Touched]:
        settle(self._axis.model, [each.key(self._axis) for each in touched])
        return []

    def _search(self, begun: Transaction, group: list[Placing]) -> list[tuple[Image, Span]]:
        """Return the stored rows that overlap the new ones, without those that are about to move away."""
        leaving = [placing.leaves for placing in group]
        most, found = _MOST_TOLD + len(group), list[Any]()
        for span in joined(placing.span for placing in group):
            rows = overlapping(
                self._axis, group[0].hash_key, span, begun._members.reader, page_size=_PAGE, expired=self._expired
            )
            found += [each for each in islice(rows, most) if self._axis.key_in(each[0]) not in leaving]
        return found

    def _stored(self, begun: Transaction, placing: Placing, found: list[tuple[Image, Span]]) -> Image | None:
        """Return the row stored at the key of a new one if an earlier call may have stored it; first as just found."""
        if not unsure_of(placing.row):
            return None
        images = (image for image, _ in found if self._axis.key_in(image) == placing.key)
        return next(images, None) or begun._members.reader.read(type(placing.row), placing.key)

    def _is_done(self, placing: Placing, image: Image | None) -> bool:
        """Tell whether an earlier call with an unknown outcome has stored the row.

        If that call stored other values, the instance becomes a copy of the stored item.
        """
        row, model = placing.row, type(placing.row)
        if image is None or is_expired(model, image):
            return False
        stored = versions.known_of(model, image)
        ours = next((each for each in unsure_of(row) if each.write_id == stored.write_id), None)
        if ours is None or stored == knowledge.known(row):
            return False
        if ours.asked == placing.asked():
            fresh = model.from_raw_data(copy.deepcopy(image))
            row.attribute_values = fresh.attribute_values
            knowledge.copy_knowledge(fresh, row)
            return True
        if ours.may_be_followed_by(placing.kind):
            knowledge.set_known(row, stored)
            placing.is_adopted = True
        return False

    def _check_free(self, placing: Placing, found: list[tuple[Image, Span]]) -> None:
        """Refuse a row that overlaps stored rows."""
        others = [(image, span) for image, span in found if span.overlaps(placing.span)]
        if others:
            others.sort(key=lambda each: begin_of(each[1]))
            raise overlap(self._axis, placing, others[:_MOST_TOLD], self._error)


@contextlib.contextmanager
def behind(locks: Sequence[Lock[Any]], wait: float) -> Iterator[None]:
    """Hold locks that only decide who is first: that one was lost is no error once the block has stored its rows."""
    is_done = False
    try:
        with locked_all(*locks, wait=wait):
            yield
            is_done = True
    except LockLost:
        if not is_done:
            raise


def overlap(
    axis: Axis,
    placing: Placing,
    others: Sequence[tuple[Image, Span]],
    error: type[Exception],
    *,
    is_same_call: bool = False,
) -> OverlapError:
    """Return the error for a row whose interval overlaps others."""
    where = ", ".join(_text(span) for _, span in others[:3]) + (", ..." if len(others) > 3 else "")  # noqa: PLR2004
    whose = "another row of the same call has" if is_same_call else f"{len(others)} stored row(s) of that hash key have"
    model, ends = type(placing.row), dict(zip(axis.stored, axis.ends(placing.span), strict=True))
    return also(OverlapError, error)(
        f"a {model.__name__} of {placing.hash_key!r} from {_text(placing.span)} was refused, and nothing was written: "
        f"{whose} a part of that interval ({where}).",
        found=tuple((axis.model, image) for image, _ in others),
        asked=(model, placing.row.serialize(null_check=False) | ends | placing.key),
    )


def _text(span: Span) -> str:
    ends = ["..." if edge is None else str(edge.value) for edge in (span.lower, span.upper)]
    return " to ".join(ends)
