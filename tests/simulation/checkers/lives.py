"""What the items have been, one state after the other: most checkers look at this."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.checkers.base import content_of, is_placeholder, log_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking_testing._engine.network import Change, Place, Request
    from tests.simulation.history import Operation

#: Stands for a deletion that no operation made.
NOBODY = 0


class Event(NamedTuple):
    """One accepted write of the data of one item.

    Attributes:
        step: when it was accepted.
        numbers: the operations that it shows first; of a deletion, the operation that deleted.
        log: what the item shows from then on; None if there is no item.
        creates: whether there was no item before, or an expired one.
    """

    step: int
    numbers: tuple[int, ...]
    log: tuple[int, ...] | None
    creates: bool


class Lives:
    """The events of each item."""

    def __init__(self) -> None:
        self.events: dict[Place, list[Event]] = defaultdict(list)
        self.first: dict[Place, tuple[int, ...] | None] = {}

    def note(self, request: Request, changes: list[Change], step: int) -> None:
        """Note what an accepted write has changed."""
        for change in map(_without_ghosts, changes):
            if content_of(change.before) == content_of(change.after):
                continue
            self.first.setdefault(change.place, None if change.before is None else tuple(log_of(change.before)))
            self.events[change.place] += _in_turn(_event(request, change, step), request.purpose)

    def shown(self, place: Place) -> list[int]:
        """Return all operations of an item, in order; a deletion is one as well."""
        return [number for event in self.events[place] for number in event.numbers]

    def times(self, place: Place, number: int) -> int:
        """Return how often an operation was done. A late copy may make an item anew: that is one creation."""
        events = [event for event in self.events[place] if number in event.numbers]
        creations = sum(event.creates for event in events)
        return len(events) - creations + min(creations, 1)

    def states(self, place: Place) -> list[tuple[int, ...] | None]:
        """Return what the item showed, before the first event and after each; None where there was no item."""
        return [self.first.get(place, ()), *(event.log for event in self.events[place])]

    def was_absent(self, place: Place, since: int, until: int) -> bool:
        """Tell whether there was no item at some moment in that time."""
        return any(log is None and start <= until and end >= since for start, end, log in self._spans(place))

    def _spans(self, place: Place) -> Iterator[tuple[float, float, tuple[int, ...] | None]]:
        """Yield from when to when the item showed what."""
        events = self.events[place]
        starts = [float("-inf"), *(event.step for event in events)]
        yield from zip(starts, [*starts[1:], float("inf")], self.states(place), strict=True)


def _without_ghosts(change: Change) -> Change:
    """Return a change in which the placeholder of a transaction is what it means: no item."""
    before, after = (None if is_placeholder(image) else image for image in (change.before, change.after))
    return change._replace(before=before, after=after)


def _event(request: Request, change: Change, step: int) -> Event:
    before, after = log_of(change.before), log_of(change.after)
    done = None if request.purpose is None else request.purpose.part_at(change.place)
    if change.after is None:
        is_asked_for = done is not None and "delete" in done.kind
        return Event(step, (done.number if done is not None and is_asked_for else NOBODY,), None, creates=False)
    creates = change.before is None or (is_replaced(change) and done is not None and done.kind == "create")
    return Event(step, _fresh(before, after, done, creates=creates), tuple(after), creates)


def _in_turn(event: Event, done: Operation | None) -> Iterator[Event]:
    """Yield the events of transactions that one request has committed together: each sees what those before leave."""
    is_group = done is not None and done.kind == "transaction" and not event.creates
    if not is_group or event.log is None or len(event.numbers) == 1:
        yield event
        return
    for i, number in enumerate(event.numbers):
        later = len(event.numbers) - 1 - i
        yield event._replace(numbers=(number,), log=event.log[: len(event.log) - later])


def _fresh(before: list[int], after: list[int], done: Operation | None, *, creates: bool) -> tuple[int, ...]:
    """Return which operations an item shows that did not; one that is done twice shows twice."""
    if creates:
        return tuple(after)
    if after[: len(before)] == before and not (done is not None and done.is_unchecked):
        return tuple(after[len(before) :])
    # Overwritten: with what its writer had read, of which only his own number is new.
    return (done.number,) if done is not None and done.number in after else ()


def is_replaced(change: Change) -> bool:
    """Tell whether an item that can expire shows nothing of what it was."""
    before, after = log_of(change.before), log_of(change.after)
    can_expire = "expires" in (change.before or {})
    return can_expire and change.after is not None and (not before or after[: len(before)] != before)
