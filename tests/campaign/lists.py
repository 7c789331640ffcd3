"""Checks histories of lists that transactions read and append to (Elle's list-append), from the operations alone.

The longest list that was read of a key shows the order of its versions, so nothing has to be guessed. Of each read only
its length is kept, once it has been compared with that list; so a million operations fit into memory.

Source: Kingsbury and Alvaro, Elle: Inferring Isolation Anomalies from Experimental Observations (2020).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.campaign.graphs import FREE, RW, WR, WW, Graph
from tests.campaign.orders import Moments, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.campaign.histories import Op


def check(ops: Iterable[Op], *, strict: bool = True) -> Report:
    """Return what is wrong with a history; with ``strict``, what contradicts the order in time as well."""
    history = Lists()
    for op in ops:
        history.add(op)
    return history.report(strict=strict)


class Lists:
    """What is kept of a history."""

    def __init__(self) -> None:
        self._report = Report()
        self._moments = Moments(self._report)
        #: By key: the longest list that was read, and by which operation.
        self._longest: dict[Any, list[Any]] = {}
        #: Key, list and reader, of lists that do not fit the longest.
        self._unfit: list[tuple[Any, list[Any], int]] = []
        self._read_by: dict[Any, int] = {}
        #: By key, by element: who has appended it.
        self._writers: defaultdict[Any, dict[Any, int]] = defaultdict(dict)
        #: By key: elements that were not the last that their transaction appended to it.
        self._within: defaultdict[Any, set[Any]] = defaultdict(set)
        #: Operation, key, and how many elements it saw that were not its own.
        self._reads: list[tuple[int, Any, int]] = []
        self._appending: dict[Any, set[int]] = {}

    def add(self, op: Op) -> None:
        """Take in one operation."""
        self._moments.add(op)
        last: dict[Any, Any] = {}
        for f, key, element in op.value:
            if f != "append":
                continue
            if element in self._writers[key]:
                self._moments.note(
                    "duplicate-appends", f"{element} is appended to {key} twice: nothing can be told", op.number
                )
            self._writers[key][element] = op.number
            if key in last:
                self._within[key].add(last[key])
            last[key] = element
        if op.outcome == "ok":
            self._report.micro.update(f for f, _, _ in op.value)
            for key, seen, length in self._seen_by(op):
                if self._fits(op, key, seen) and length is not None:
                    self._reads.append((op.number, key, length))

    def _seen_by(self, op: Op) -> Iterator[tuple[Any, list[Any], int | None]]:
        """Yield what a transaction read, and how much of it was not its own; None if that was known from a first read.

        Looks whether its reads fit each other.
        """
        known: dict[Any, list[Any]] = {}
        own: defaultdict[Any, list[Any]] = defaultdict(list)
        mine = {(key, element) for f, key, element in op.value if f == "append"}
        for f, key, value in op.value:
            if f == "append":
                own[key].append(value)
                continue
            seen, written = value or [], own[key]
            expected = [*known[key], *written] if key in known else written
            if (seen if key in known else seen[len(seen) - len(written) :]) != expected:
                self._moments.note(
                    "internal", f"{key} was read as {seen}, after {expected} by the same transaction", op.number
                )
                continue
            if key not in known:
                known[key] = seen[: len(seen) - len(written)]
                if any((key, element) in mine for element in known[key]):
                    self._moments.note("future-read", f"{key} was read as {seen} before it was appended", op.number)
                yield key, seen, len(known[key])
            else:
                yield key, seen, None

    def _fits(self, op: Op, key: Any, seen: list[Any]) -> bool:
        """Look whether one of two reads is the beginning of the other."""
        longest = self._longest.setdefault(key, [])
        if len(seen) > len(longest):
            if seen[: len(longest)] == longest:
                self._longest[key], self._read_by[key] = seen, op.number
                return True
        elif longest[: len(seen)] == seen:
            return True
        self._moments.note(
            "incompatible-order", f"{key} was read as {seen} and as {longest}", self._read_by[key], op.number
        )
        self._unfit.append((key, seen, op.number))
        if len(seen) > len(longest):
            self._unfit[-1] = (key, longest, self._read_by[key])
            self._longest[key], self._read_by[key] = seen, op.number
        return False

    # At the end

    def report(self, *, strict: bool) -> Report:
        """Return what is wrong."""
        graph = self._moments.graph(strict=strict)
        keys = self._writers.keys() | self._longest.keys()
        for key, elements, reader in [
            (key, self._longest.get(key, []), self._read_by.get(key)) for key in keys
        ] + self._unfit:
            self._check_elements(key, elements, reader)
        self._check_reads()
        self._depend(graph, {key: self._order(graph, key) for key in keys})
        self._report.anomalies += graph.cycles(self._moments.indices)
        return self._report

    def _check_elements(self, key: Any, elements: list[Any], reader: Any) -> None:
        """Find what was never appended, appended by nothing that happened, or appended once and read twice."""
        writers = self._writers[key]
        if len(set(elements)) < len(elements):
            self._moments.note("duplicate-elements", f"{key} was read as {elements}", reader)
        aborted = None
        for element in elements:
            writer = writers.get(element)
            if writer is None:
                self._moments.note("garbage-read", f"{element} in {key} was appended by no operation", reader)
            elif self._moments.outcomes[writer] == "fail":
                aborted = writer
                self._moments.note(
                    "G1a", f"{element} in {key} was read, and its transaction had failed", writer, reader
                )
            elif aborted is not None and self._moments.outcomes[writer] == "ok":
                self._moments.note(
                    "dirty-update", f"{element} in {key} stands on what a failed transaction did", aborted, writer
                )
                aborted = None

    def _check_reads(self) -> None:
        """Find reads of half a transaction, and two transactions that have replaced the same version."""
        replaced: dict[tuple[Any, int], int] = {}
        for reader, key, length in self._reads:
            last = self._longest[key][length - 1] if length else None
            if last in self._within[key] and self._writers[key][last] != reader:
                self._moments.note(
                    "G1b", f"{key} was read up to {last}, within a transaction", self._writers[key][last], reader
                )
            if reader in self._appenders(key):
                before = replaced.setdefault((key, length), reader)
                if before != reader:
                    self._moments.note(
                        "lost-update", f"both have read {length} elements of {key}, and appended", before, reader
                    )

    def _appenders(self, key: Any) -> set[int]:
        if key not in self._appending:
            self._appending[key] = set(self._writers[key].values())
        return self._appending[key]

    def _order(self, graph: Graph, key: Any) -> tuple[int, list[int]]:
        """Add the order of appends to a key; return a node before all that were never read, so come last, and these."""
        writers, shown = self._writers[key], dict.fromkeys(self._longest.get(key, ()))
        order = [writers[element] for element in shown if element in writers]
        for first, second in itertools.pairwise(order):
            graph.add(WW, first, second)
        end, outcomes = graph.node(), self._moments.outcomes
        unread = [each for element, each in writers.items() if element not in shown and outcomes[each] != "fail"]
        for each in unread:
            graph.add(FREE, end, each)
        if order:
            _before_all(graph, WW, order[-1], end, unread)
        return end, unread

    def _depend(self, graph: Graph, ends: dict[Any, tuple[int, list[int]]]) -> None:
        """Add who has read what another transaction wrote, and who has replaced what another transaction read."""
        for reader, key, length in self._reads:
            longest, writers = self._longest[key], self._writers[key]
            if length and longest[length - 1] in writers:
                graph.add(WR, writers[longest[length - 1]], reader)
            if length == len(longest):
                _before_all(graph, RW, reader, *ends[key])
            elif longest[length] in writers:
                graph.add(RW, reader, writers[longest[length]])


def _before_all(graph: Graph, kind: int, first: int, end: int, unread: list[int]) -> None:
    """Let one come before all of these, by the node before them; not one of these itself, or it came before itself."""
    if first not in unread:
        graph.add(kind, first, end)
        return
    for each in unread:
        graph.add(kind, first, each)
