"""What must be true of overwritten values, of money, and of the order of transactions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from pynamo_locking_testing._engine.network import Place
from tests.simulation.checkers.base import Checker
from tests.simulation.checkers.graphs import components
from tests.simulation.checkers.linear import FOREVER, Call, RegisterModel, is_linearizable
from tests.simulation.history import Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamo_locking_testing._engine.network import Change, Request
    from tests.simulation.checkers.graphs import Graph
    from tests.simulation.history import Operation


class Linearizable(Checker):
    """Each overwritten value is a register: there is one order of writes and reads that fits what all have seen."""

    def at_end(self) -> None:
        for model, key in self.run.workload.registers:
            place = Place(model.Meta.table_name, (key,))
            calls = [
                call
                for done in self.run.history.operations
                if place in done.places and (call := _call_of(done)) is not None
            ]
            self.require(is_linearizable(calls, RegisterModel()), f"no order explains {calls}")


def _call_of(done: Operation) -> Call | None:
    """Return an operation as the search takes it; None if it had no effect and saw nothing."""
    if done.told is Told.REFUSED:
        return None
    is_certain = done.told is Told.APPLIED
    returned = FOREVER if done.returned is None or not is_certain else done.returned
    if done.kind == "look":
        return Call(done.called, returned, ("read", done.value)) if is_certain else None
    return None if done.seen is None else Call(done.called, returned, ("write", done.seen, done.number), is_certain)


class Bank(Checker):
    """Money is never made nor lost: the sum of all balances is the same in every state and for every reader."""

    def on_changes(self, request: Request, changes: list[Change]) -> None:
        purses = self.run.workload.purses
        if purses and any(change.place.table == "purse" for change in changes):
            places = [Place(model.Meta.table_name, (key,)) for model, key in purses]
            images = [self.run.network.image(place) or {} for place in places]
            total = sum(int(image["balance"]["N"]) for image in images)
            self.require(total == 100 * len(purses), f"{request.purpose} made the sum {total}")

    def at_end(self) -> None:
        for done in self.run.history.operations:
            if done.kind == "count" and done.told is Told.APPLIED:
                self.require(done.value == 100 * len(self.run.workload.purses), f"{done} counted {done.value}")


class OneOrder(Checker):
    """One order explains everything: what is before what in any item, for any reader, and in real time has no cycle.

    The items show the order of writes, so that dependencies need no guessing. Source: Kingsbury and Alvaro, Elle:
    Inferring Isolation Anomalies from Experimental Observations (2020), with list-append.
    """

    def at_end(self) -> None:
        if any(done.is_unchecked for done in self.run.history.operations):
            return  # these undo what others wrote
        after: Graph = defaultdict(dict)
        for first, second in [*self._in_items(), *self._seen(), *self._in_real_time()]:
            if first and second and first != second:
                after[first][second] = []
                after.setdefault(second, {})
        circles = [each for each in components(after) if len(each) > 1]
        self.require(not circles, f"operations are before one another in circles: {circles}")

    def _in_items(self) -> Iterator[tuple[int, int]]:
        for place in list(self.run.lives.events):
            shown = self.run.lives.shown(place)
            if len(set(shown)) == len(shown):
                yield from itertools.pairwise(shown)

    def _seen(self) -> Iterator[tuple[int, int]]:
        """Yield the writer of what an operation has read, and who overwrote it after that."""
        for done in self.run.history.operations:
            if done.told is not Told.APPLIED or not isinstance(done.seen, dict):
                continue
            for place, log in done.seen.items():
                states = self.run.lives.states(place)
                state = tuple(log) if log or () in states else None  # an absent item shows nothing either
                self.require(state in states, f"{done} saw {log} in {place}, but the states were {states}")
                at, events = states.index(state), self.run.lives.events[place]
                if at:
                    yield from ((number, done.number) for number in events[at - 1].numbers)
                if at < len(events):
                    yield from ((done.number, number) for number in events[at].numbers)

    def _in_real_time(self) -> Iterator[tuple[int, int]]:
        known = [done for done in self.run.history.operations if done.told is Told.APPLIED and self._is_placed(done)]
        for first in known:
            for second in known:
                if first.returned is not None and first.returned < second.called:
                    yield first.number, second.number

    def _is_placed(self, done: Operation) -> bool:
        """Tell whether it is known where it took effect. A creation may be repeated by its late copy."""
        is_seen = isinstance(done.seen, dict)
        return is_seen or any(self.run.lives.times(place, done.number) for place in done.places)
