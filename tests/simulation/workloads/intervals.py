"""Items that must not overlap, inserted, moved, made longer and deleted by several at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pynamodb.exceptions import PynamoDBException

from pynamo_locking.exceptions import ConfigurationError, LockingError, OutcomeUnknown, OverlapError
from pynamo_locking.transactions import Transaction
from tests.simulation.history import Told
from tests.simulation.models import SETTINGS, Booking, Names, Note, Stay, Tariff
from tests.simulation.workloads.base import Workload, place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamo_locking_testing._engine.network import Place

#: How long to try again, in seconds.
WAIT_S: Final = 10 * SETTINGS.lease

#: What the parties insert, in turns; the second and the third overlap the first.
SPANS: Final = ((10, 20), (15, 25), (5, 11), (20, 22), (30, 40))

#: All of them are on this hash key.
KEY: Final = "d"


class Intervals(Workload):
    """Without locks: who looks at the same time as another one is refused, and looks again."""

    name = "intervals"
    items: ClassVar[tuple[tuple[Any, str], ...]] = ()
    tables: ClassVar[tuple[Any, ...]] = (Booking,)
    is_contended = True
    most_actions = 100  # as many as DynamoDB's
    options: ClassVar[dict[str, Any]] = {"wait": WAIT_S}
    spans: ClassVar[tuple[tuple[int, int | None], ...]] = SPANS

    @property
    def model(self) -> Any:
        return self.tables[0]

    def party(self, index: int, turn: int) -> None:
        """Insert; do something to that, or to what was in its way; insert two at once."""
        begin, end = self.spans[(index + turn) % len(self.spans)]
        item = self.insert((begin, end)) or self.in_the_way(begin, end)
        if item is not None:
            (self.move, self.delete, self.extend)[(index + turn) % 3](item)
        self.insert((12, 14), (22, 24))

    def at(self, begin: int) -> Place:
        """Return where the item with that begin is."""
        return place(self.model, (KEY, begin))

    def insert(self, *spans: tuple[int, int | None]) -> Any:
        """Insert new items, all or none; return the first one, None if they were refused."""
        with self.history.operation("insert", *(self.at(begin) for begin, _ in spans)) as done:
            rows = [self.model(KEY, begin, end=end, log=[done.number]) for begin, end in spans]
            self._insert(rows)
        return rows[0] if done.told is Told.APPLIED else None

    def _insert(self, rows: Sequence[Any]) -> None:
        """Insert, and once more if it is unknown whether that was done: a party's own rows are not in its way."""
        try:
            self.model.intervals.insert_disjoint(rows, **self.options)
        except OutcomeUnknown as unknown:
            try:
                self.model.intervals.insert_disjoint(rows, **self.options)
            except OverlapError as error:
                if any(other.log == rows[0].log for other in error.rows):
                    raise  # by what they have inserted themselves: this is told wrong
                raise unknown from None  # they may have been there, and gone again
            except ConfigurationError:
                raise  # a fault of the workload
            except (LockingError, PynamoDBException):
                raise unknown from None  # that may have been after the first one was done

    def in_the_way(self, begin: int, end: int | None) -> Any:
        """Return an item that others have inserted, None if there is none any more."""
        with self.history.operation("look") as done:
            done.value = self.model.intervals.overlapping(KEY, begin, end)
        return next(iter(done.value or ()), None)

    def move(self, item: Any) -> None:
        """Give an item another interval: what was done to it elsewhere was not done where it comes to."""
        with self.history.operation("move", self.at(17)) as done:
            item.log = [*(item.log if item.begin == 17 else ()), done.number]
            self.model.intervals.move(item, 17, 29, **self.options)

    def delete(self, item: Any) -> None:
        """Delete an item, by a plain delete."""
        with self.history.operation("delete", self.at(int(item.begin))):
            item.delete()

    def extend(self, item: Any) -> None:
        """Give an item another end, by a save or by an update."""
        with self.history.operation("extend", self.at(int(item.begin))) as done:
            if done.number % 2:
                item.end += 3
                self.append_and_save(item, done.number)
            else:
                item.update([self.model.end.set(item.end + 3), self.appended(self.model, done.number)])


class IntervalsInTurns(Intervals):
    """The first refusal is enough to take one's turn."""

    name = "intervals in turns"
    refusals = 1


class OpenIntervals(Intervals):
    """Some have no end, or lose it; others are closed by a plain write."""

    name = "open intervals"
    tables = (Tariff,)
    spans: ClassVar[tuple[tuple[int, int | None], ...]] = ((10, 20), (15, None), (5, 11), (20, None), (30, 40))

    def extend(self, item: Any) -> None:
        """Let an item go on for ever, or end it early."""
        with self.history.operation("extend", self.at(int(item.begin))) as done:
            item.update([self.model.end.remove(), self.appended(self.model, done.number)])
        if done.told is Told.APPLIED:
            self.close(item)

    delete = extend

    def close(self, item: Any) -> None:
        """Close an item, which is in the way of no other item then."""
        with self.history.operation("close"):  # leaves no number in the log
            self.model.intervals.close_at(item, item.begin + 1)


class IntervalsUnderLocks(Intervals):
    """Inserted and moved under range locks, that is one after the other; deletes and changes in between."""

    name = "intervals under locks"
    halves_seeds = True
    items = ((Names, f"{Stay.Meta.table_name}/{KEY}"),)
    tables = (Stay,)
    options: ClassVar[dict[str, Any]] = {"wait": WAIT_S, "pessimistic": True}


class IntervalsInTransactions(Intervals):
    """Inserted, moved and replaced in transactions, together with a note that all of them write."""

    name = "intervals in transactions"
    items = ((Note, "n"),)

    def party(self, index: int, turn: int) -> None:
        """Insert; replace or move that, or what was in its way; insert two at once."""
        begin, end = self.spans[(index + turn) % len(self.spans)]
        item = self.insert((begin, end)) or self.in_the_way(begin, end)
        if item is not None:
            (self.replace, self.move)[(index + turn) % 2](item)
        self.insert((12, 14), (22, 24))

    def together(self, kind: str, begins: Sequence[int], act: Callable[[Transaction, int], object]) -> bool:
        """Do something in a transaction that writes the note as well; tell whether it was committed."""
        places, told = [*map(self.at, begins), place(Note, "n")], Told.REFUSED
        for _ in range(3):
            with self.history.operation(kind, *places) as done, Transaction(wait=WAIT_S) as tx:
                act(tx, done.number)
                note = tx.get(Note, "n")
                self.append(note, done.number)
                tx.save(note)
            told = done.told
            if told is not Told.REFUSED or isinstance(done.error, OverlapError):
                break
        return told is Told.APPLIED

    def new(self, begin: int, end: int | None, number: int, log: Sequence[int] = ()) -> Any:
        return self.model(KEY, begin, end=end, log=[*log, number])

    def insert(self, *spans: tuple[int, int | None]) -> Any:
        """Insert new items, each by a call of its own, and try to insert each of them once more."""
        rows = list[Any]()

        def act(tx: Transaction, number: int) -> None:
            rows[:] = [self.new(*span, number) for span in spans]
            for row, (begin, end) in zip(rows, spans, strict=True):
                tx.insert_disjoint(self.model, [row])
                with contextlib.suppress(OverlapError):
                    tx.insert_disjoint(self.model, [self.new(begin + 1, end, number)])

        return rows[0] if self.together("insert", [begin for begin, _ in spans], act) else None

    def replace(self, item: Any) -> None:
        """Delete an item, and insert two in its place."""
        begin, end, log = int(item.begin), int(item.end), list(item.log)

        def act(tx: Transaction, number: int) -> None:
            tx.delete(item)
            tx.insert_disjoint(self.model, [self.new(begin, begin + 1, number, log)])
            tx.insert_disjoint(self.model, [self.new(begin + 1, end, number)])

        if end > begin + 1:
            self.together("replace", [begin, begin + 1], act)

    def move(self, item: Any) -> None:
        """Move an item, and insert another one where it was."""
        begin, log = int(item.begin), list(item.log)

        def act(tx: Transaction, number: int) -> None:
            item.log = [number]
            tx.move(item, 17, 29)
            tx.insert_disjoint(self.model, [self.new(begin, begin + 1, number, log)])

        if begin != 17:  # where it goes
            self.together("move", [begin, 17], act)
