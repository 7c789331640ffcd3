"""Who holds parts of a lock: ranges of a name, and of the items of a hash key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tests.simulation.models import Names, Note, Shelf, Slot
from tests.simulation.workloads.base import place
from tests.simulation.workloads.modes import Sharing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamo_locking import Lock
    from pynamo_locking_testing._engine.network import Place
    from tests.simulation.history import Grant

#: Where there is something in the ranges.
POINTS: Final = (1, 4, 6, 9)

#: What the parties take, by turn: lower and upper end, and whether they share it. The first two overlap, the third one
#: touches the first and waits behind the second; the fourth one touches both that are written, and is read.
SPANS: Final[tuple[tuple[tuple[int | None, int | None, bool], ...], ...]] = (
    ((0, 5, False), (4, 8, False), (5, 10, False), (None, 4, True)),
    ((None, 6, True), (4, 10, True), (6, None, False), (None, None, False)),
)


class _Ranges(Sharing):
    """Each party takes a range, and writes or reads the first and the last item in it."""

    spans = SPANS

    def lock_of(self, lower: int | None, upper: int | None, *, shared: bool) -> Lock[Any]:
        """Return the lock of a range."""
        raise NotImplementedError

    def party(self, index: int, turn: int) -> None:
        spans = self.spans[turn % len(self.spans)]
        lower, upper, shared = spans[index % len(spans)]
        points = [at for at in POINTS if (lower is None or lower <= at) and (upper is None or at < upper)]
        lock = self.lock_of(lower, upper, shared=shared)
        act = self.read_in if shared else self.write_in
        self.holding(lock, lambda grant: act(lock, grant, sorted({points[0], points[-1]})))

    def read_in(self, lock: Lock[Any], grant: Grant, points: Sequence[int]) -> None:
        for at in points:
            look = partial(self.seen_at, at)
            self.reads(grant, look, look)

    def write_in(self, lock: Lock[Any], grant: Grant, points: Sequence[int]) -> None:
        """Write items of the range."""
        raise NotImplementedError

    def seen_at(self, at: int) -> list[int]:
        """Read the item of a point."""
        raise NotImplementedError


class NamedRanges(_Ranges):
    """Ranges of a name. What they guard are items without locks, by a check in the same transaction."""

    name = "named ranges"
    items = ((Names, "line"), *((Note, f"n{at}") for at in POINTS))

    def lock_of(self, lower: int | None, upper: int | None, *, shared: bool) -> Lock[Any]:
        return Names.locked_range("line", lower, upper, shared=shared)

    def write_in(self, lock: Lock[Any], grant: Grant, points: Sequence[int]) -> None:
        """Write items in one transaction, if we still have the range."""
        places = [place(Note, f"n{at}") for at in points]
        with self.history.operation("write beside", *places, ticket=lock.ticket) as done:
            notes = [Note.get(f"n{at}", consistent_read=True) for at in points]
            self.save_together(done.number, *notes, lock=lock)

    def seen_at(self, at: int) -> list[int]:
        return self.seen_in(Note, f"n{at}")

    @staticmethod
    def row_of(item: Place) -> Place | None:
        return place(Names, "line")


class AdjacentRanges(NamedRanges):
    """Ranges that touch each other: no party waits for another one."""

    name = "adjacent ranges"
    spans = (((2, 5, False), (5, 8, False), (None, 2, True), (8, None, False)),)


class RangesOfItems(_Ranges):
    """Ranges of the items of a hash key, which are written under them."""

    name = "ranges of items"
    model: ClassVar[Any] = Slot
    items = tuple((Slot, ("d", at)) for at in POINTS)

    def locks(self) -> Iterator[Lock[Any]]:
        yield self.model.locked_range("d", None, None)

    def lock_of(self, lower: int | None, upper: int | None, *, shared: bool) -> Lock[Any]:
        lock: Lock[Any] = self.model.locked_range("d", lower, upper, shared=shared)
        return lock

    def write_in(self, lock: Lock[Any], grant: Grant, points: Sequence[int]) -> None:
        for at in points:
            with self.history.operation("save", place(self.model, ("d", at)), ticket=lock.ticket) as done:
                self.append_and_save(self.model.get("d", at, consistent_read=True), done.number)

    def seen_at(self, at: int) -> list[int]:
        return self.seen_in(self.model, ("d", at))


class ItemsInRanges(RangesOfItems):
    """Each item is written under its own lock as well: the range has to be held all the same."""

    name = "items in ranges"

    def write_in(self, lock: Lock[Any], grant: Grant, points: Sequence[int]) -> None:
        for at in points:
            with (
                self.history.operation("save", place(self.model, ("d", at)), ticket=lock.ticket) as done,
                self.model.edit("d", at) as item,
            ):
                self.append(item, done.number)


class EnforcedRanges(RangesOfItems):
    """Some take no lock, and write all the same: what they write is checked against the ranges of the others."""

    name = "enforced ranges"
    is_enforced = True
    is_contended = True
    model = Shelf
    items = tuple((Shelf, ("d", at)) for at in POINTS)

    def party(self, index: int, turn: int) -> None:
        """Take a range; or write without one, alone or two items at once."""
        if (index + turn) % 2 == 0:
            super().party(index // 2, turn)
            return
        for at in POINTS:
            self.write_outside(at)
        self.write_outside(POINTS[0], POINTS[-1])

    def write_outside(self, *points: int) -> None:
        """Write items without a lock."""
        with self.history.operation("outside", *(place(Shelf, ("d", at)) for at in points)) as done:
            items = [Shelf.get("d", at, consistent_read=True) for at in points]
            if len(items) == 1:
                self.append_and_save(items[0], done.number)
            else:
                self.save_together(done.number, *items)
