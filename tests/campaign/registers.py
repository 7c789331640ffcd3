"""Checks histories of registers that transactions read and write (Elle's rw-register), from the operations alone.

Each value is written once to a key. In which order follows from three things: the initial state, which is nil, comes
first; who has read a value and writes another one replaces it; and with ``strict``, what an operation saw or left of a
key comes before what a later one saw or left of it.

Source: Kingsbury and Alvaro, Elle (2020), section 5.2; https://github.com/jepsen-io/elle, `elle/rw_register.clj`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.campaign.graphs import FREE, RW, WR, WW, Graph
from tests.campaign.orders import Moments, Report
from tests.simulation.checkers.graphs import components

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.campaign.histories import Op


class Touch(NamedTuple):
    """What an operation did to a key: which value it saw first, and which it left.

    Attributes:
        number: of the operation.
        begin: when it began; None if that is not known.
        end: when it ended; None if that is not known.
        has_read: whether it saw one that it had not written.
        seen: that value.
        has_written: whether it left one.
        left: that value.
    """

    number: int
    begin: int | None
    end: int | None
    has_read: bool
    seen: Any
    has_written: bool
    left: Any

    @property
    def first(self) -> Any:
        """The earliest version that it knows."""
        return self.seen if self.has_read else self.left

    @property
    def last(self) -> Any:
        """The latest version that it knows."""
        return self.left if self.has_written else self.seen


def check(ops: Iterable[Op], *, strict: bool = True) -> Report:
    """Return what is wrong with a history; with ``strict``, what contradicts the order in time as well."""
    history = Registers()
    for op in ops:
        history.add(op)
    return history.report(strict=strict)


class Registers:
    """What is kept of a history."""

    def __init__(self) -> None:
        self._report = Report()
        self._moments = Moments(self._report)
        self._touches: defaultdict[Any, list[Touch]] = defaultdict(list)
        #: By key, by value: who has written it.
        self._writers: defaultdict[Any, dict[Any, int]] = defaultdict(dict)
        #: By key: values that were not the last that their transaction wrote to it.
        self._within: defaultdict[Any, set[Any]] = defaultdict(set)

    def add(self, op: Op) -> None:
        """Take in one operation."""
        self._moments.add(op)
        seen: dict[Any, Any] = {}
        left: dict[Any, Any] = {}
        is_ok = op.outcome == "ok"
        for f, key, value in op.value:
            if f == "w":
                self._write(op, key, value)
                if key in left:
                    self._within[key].add(left[key])
                left[key] = value
            elif is_ok:
                expected = left.get(key, seen.get(key, value))
                if value != expected:
                    self._moments.note("internal", f"{key} was read as {value}, after {expected}", op.number)
                if key not in left:
                    seen.setdefault(key, value)
        if is_ok:
            self._report.micro.update(f for f, _, _ in op.value)
        if op.outcome == "fail":
            return
        for key in seen.keys() | left.keys():
            touch = Touch(op.number, op.begin, op.end, key in seen, seen.get(key), key in left, left.get(key))
            self._touches[key].append(touch)

    def _write(self, op: Op, key: Any, value: Any) -> None:
        if value in self._writers[key]:
            self._moments.note("duplicate-writes", f"{value} is written to {key} twice: nothing can be told", op.number)
        self._writers[key][value] = op.number

    # At the end

    def report(self, *, strict: bool) -> Report:
        """Return what is wrong."""
        graph = self._moments.graph(strict=strict)
        for key, touches in self._touches.items():
            self._check_values(key, touches)
            following = self._versions(key, touches, strict=strict)
            cycles = [part for part in components(following) if len(part) > 1]
            for part in cycles:
                self._moments.note(
                    "cyclic-versions", f"values of {key} that come before one another: {sorted(part, key=str)}"
                )
            self._depend(graph, key, touches, {} if cycles else following)
        self._report.anomalies += graph.cycles(self._moments.indices)
        return self._report

    def _check_values(self, key: Any, touches: list[Touch]) -> None:
        """Find reads of what did not happen, and two operations that have replaced the same value."""
        replaced: dict[Any, int] = {}
        for touch in touches:
            if not touch.has_read:
                continue
            writer = self._writers[key].get(touch.seen)
            if touch.seen is not None and writer is None:
                self._moments.note("garbage-read", f"{touch.seen} in {key} was written by no operation", touch.number)
            elif writer is not None and self._moments.outcomes[writer] == "fail":
                self._moments.note(
                    "G1a", f"{touch.seen} in {key} was read, and its transaction had failed", writer, touch.number
                )
            elif writer is not None and writer != touch.number and touch.seen in self._within[key]:
                self._moments.note("G1b", f"{touch.seen} in {key} was read, within a transaction", writer, touch.number)
            if touch.has_written:
                before = replaced.setdefault(touch.seen, touch.number)
                if before != touch.number:
                    self._moments.note(
                        "lost-update", f"both have read {touch.seen} in {key}, and written", before, touch.number
                    )

    def _versions(self, key: Any, touches: list[Touch], *, strict: bool) -> dict[Any, dict[Any, None]]:
        """Return which values of a key follow which."""
        following: dict[Any, dict[Any, None]] = {None: {}}
        for touch in touches:
            for value in (touch.seen, touch.left):
                if value is not None:
                    following.setdefault(value, {})
                    following[None][value] = None
            if touch.has_read and touch.has_written:
                following[touch.seen][touch.left] = None
        for first, second in _in_time(touches) if strict else ():
            if first != second:
                following[first][second] = None
        return following

    def _depend(self, graph: Graph, key: Any, touches: list[Touch], following: dict[Any, dict[Any, None]]) -> None:
        """Add who has read or replaced what another operation wrote, and who has replaced what another one read."""
        writers, outcomes = self._writers[key], self._moments.outcomes
        nexts: dict[Any, list[int]] = {}  # by value: who has replaced it
        between: dict[Any, int] = {}  # by value: a node between who only reads it, and who has replaced it
        for value, successors in following.items():
            nexts[value] = [writers[each] for each in successors if each in writers]
            nexts[value] = [writer for writer in nexts[value] if outcomes[writer] != "fail"]
            between[value] = graph.node()
            for writer in nexts[value]:
                graph.add(FREE, between[value], writer)
                if value in writers:
                    graph.add(WW, writers[value], writer)
        for touch in touches:
            if not touch.has_read:
                continue
            if touch.seen in writers:
                graph.add(WR, writers[touch.seen], touch.number)
            if touch.has_written:  # by the node between them it would come before itself
                for writer in nexts.get(touch.seen, ()):
                    graph.add(RW, touch.number, writer)
            elif touch.seen in between:
                graph.add(RW, touch.number, between[touch.seen])


def _in_time(touches: list[Touch]) -> Iterator[tuple[Any, Any]]:
    """Yield a value that an operation left or saw, and one that a later operation saw or left; not what follows."""
    events = [(touch.begin, False, touch) for touch in touches if touch.begin is not None]
    events += [(touch.end, True, touch) for touch in touches if touch.end is not None]
    events.sort(key=lambda event: event[0])
    last: list[Touch] = []
    for _, is_end, touch in events:
        if is_end:
            begin = -1 if touch.begin is None else touch.begin
            last = [each for each in last if each.end is not None and each.end >= begin] + [touch]
        else:
            yield from ((each.last, touch.first) for each in last)
