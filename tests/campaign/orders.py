"""What both kinds of histories have in common: the order of operations in time, and what a check returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.campaign.graphs import FREE, PROCESS, REALTIME, Anomaly, Graph

if TYPE_CHECKING:
    from tests.campaign.histories import Op


@dataclass
class Report:
    """What a check has found.

    Attributes:
        operations: completed operations, and those that never were, by outcome.
        micro: micro-operations of those that were done.
        anomalies: everything that must not be.
    """

    operations: Counter[str] = field(default_factory=Counter)
    micro: Counter[str] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)

    @property
    def kinds(self) -> set[str]:
        """The names of what was found."""
        return {anomaly.kind for anomaly in self.anomalies}


class Moments:
    """When operations began and ended; what they did is not kept.

    Args:
        report: counts them, and has what is wrong with them.
    """

    def __init__(self, report: Report) -> None:
        self.indices: list[int] = []
        self.outcomes: list[str] = []
        self._report = report
        self._begins: list[tuple[int, int]] = []
        self._ends: list[tuple[int, int]] = []
        self._processes: list[Any] = []

    def add(self, op: Op) -> None:
        """Note one."""
        self._report.operations[op.outcome] += 1
        self.indices.append(op.index)
        self.outcomes.append(op.outcome)
        self._processes.append(op.process)
        if op.begin is not None and op.outcome != "fail":
            self._begins.append((op.begin, op.number))
        if op.end is not None:
            self._ends.append((op.end, op.number))

    def note(self, kind: str, message: str, *numbers: int) -> None:
        """Note an anomaly of these operations."""
        self._report.anomalies.append(Anomaly(kind, message, tuple(self.indices[number] for number in numbers)))

    def graph(self, *, strict: bool) -> Graph:
        """Return a graph with the order within each process; with ``strict``, with that of all of them in time.

        For the latter, nodes stand in line for moments: an operation comes before the next moment after its end, and
        after the last moment before its beginning. That takes one edge for each, whatever runs at once.
        """
        graph = Graph(len(self.indices))
        if not strict:
            return graph
        events: list[tuple[int, int, bool]] = [(at, number, False) for at, number in self._begins]
        events += [(at, number, True) for at, number in self._ends]
        events.sort()
        moment, is_used = graph.node(), False
        last: dict[Any, int] = {}
        for _, number, is_end in events:
            process = self._processes[number]
            if is_end:
                if is_used:
                    following = graph.node()
                    graph.add(FREE, moment, following)
                    moment, is_used = following, False
                graph.add(REALTIME, number, moment)
                last[process] = number
            else:
                is_used = True
                graph.add(FREE, moment, number)
                if process is not None and process in last:
                    graph.add(PROCESS, last[process], number)
        return graph
