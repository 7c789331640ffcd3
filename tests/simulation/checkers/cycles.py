"""Which anomalies a history of transactions shows that read lists and append to them: Elle's method.

A list shows the order of everything that was appended to it, so that dependencies need no guessing: who wrote before
whom (ww), who read from whom (wr), and who read what another one then changed (rw). With real time (rt) added, a
cycle says that no order explains what was seen. Its edges give the anomaly its name.

Source: Kingsbury and Alvaro, Elle: Inferring Isolation Anomalies from Experimental Observations (2020); Adya, Weak
Consistency (1999), for the names; https://github.com/jepsen-io/elle.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.checkers.graphs import circle_through, components, shortest_circle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.graphs import Graph

#: By register, values.
Lists = Mapping[Any, Sequence[Any]]


class Outcome(Enum):
    """What is known of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # it happened as a whole, or not at all


@dataclass(frozen=True)
class Transaction:
    """A transaction, as its caller knows it.

    Attributes:
        id: its name.
        begin: when it was begun.
        end: when its caller heard of the end; None if never.
        outcome: what the caller heard.
        reads: by register, the list that it saw; what it had appended itself may be at the end of it.
        appends: by register, the values that it appended, in order. No value is appended twice.
    """

    id: Hashable
    begin: float
    end: float | None
    outcome: Outcome = Outcome.COMMITTED
    reads: Lists = field(default_factory=dict)
    appends: Lists = field(default_factory=dict)

    def __str__(self) -> str:
        return f"T{self.id}"


class Anomaly(NamedTuple):
    """Something that must not be.

    Attributes:
        kind: its name: G0, G1a, G1b, G1c, G-single, G2 or real-time for what Elle names; otherwise in words.
        message: what was seen.
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class History:
    """Transactions, and what the lists are in the end.

    Args:
        transactions: all that were begun.
        final: by register, the list; a register that is not there is empty.

    Raises:
        ValueError: a value was appended twice.
    """

    def __init__(self, transactions: Sequence[Transaction], final: Lists) -> None:
        self.transactions = transactions
        self.final = final
        self.writers: dict[tuple[Hashable, Hashable], Transaction] = {}
        for transaction in transactions:
            for register, value in _pairs(transaction.appends):
                if (register, value) in self.writers:
                    raise ValueError(f"{value} is appended to {register} twice, so nothing can be told")
                self.writers[register, value] = transaction
        shown = dict.fromkeys(_pairs(final))
        self.happened = [
            each
            for each in transactions
            if each.outcome is Outcome.COMMITTED
            or (each.outcome is Outcome.UNKNOWN and any(pair in shown for pair in _pairs(each.appends)))
        ]

    def seen_by(self, transaction: Transaction, register: Hashable) -> list[Hashable]:
        """Return what a transaction read that it had not appended itself."""
        seen = list(transaction.reads[register])
        own = transaction.appends.get(register, ())
        while seen and seen[-1] in own:
            seen.pop()
        return seen

    def is_prefix(self, register: Hashable, seen: Sequence[Hashable]) -> bool:
        """Tell whether the register was like that at some time, as far as the order of values goes."""
        return list(self.final.get(register, ()))[: len(seen)] == list(seen)


def anomalies(transactions: Sequence[Transaction], final: Lists) -> list[Anomaly]:
    """Return everything that is wrong with a history; nothing if it is strictly serializable.

    Args:
        transactions: all that were begun.
        final: by register, the list in the end.

    Raises:
        ValueError: a value was appended twice.
    """
    history = History(transactions, final)
    return [*wrong_writes(history), *wrong_reads(history), *cycles(edges(history))]


def _pairs(lists: Lists) -> Iterator[tuple[Hashable, Hashable]]:
    return ((register, value) for register, values in lists.items() for value in values)


# Values


def wrong_writes(history: History) -> Iterator[Anomaly]:
    """Yield what does not fit what callers were told: lost, done twice, done in part, done though it was aborted."""
    shown = Counter(_pairs(history.final))
    for (register, value), times in shown.items():
        if (register, value) not in history.writers:
            yield Anomaly("unknown value", f"{register} shows {value}, which no transaction has appended")
        if times > 1:
            yield Anomaly("done twice", f"{register} shows {value} {times} times")
    for each in history.transactions:
        done = [shown[pair] > 0 for pair in _pairs(each.appends)]
        if each.outcome is Outcome.COMMITTED and not all(done):
            yield Anomaly("lost write", f"{each} was committed, and {_missing(each, shown)} is not there")
        if each.outcome is Outcome.ABORTED and any(done):
            yield Anomaly("aborted write", f"{each} was aborted, and has left something of {dict(each.appends)}")
        if each.outcome is Outcome.UNKNOWN and any(done) and not all(done):
            yield Anomaly("done in part", f"of {each}, {_missing(each, shown)} is not there, but the rest is")


def _missing(transaction: Transaction, shown: Counter[tuple[Hashable, Hashable]]) -> str:
    return ", ".join(
        f"{value} in {register}" for register, value in _pairs(transaction.appends) if not shown[register, value]
    )


def wrong_reads(history: History) -> Iterator[Anomaly]:
    """Yield the reads of what was never committed: of aborted transactions, of half a transaction, or in another order.

    Only of transactions that happened: another one may have seen anything, as it was aborted for that.
    """
    for reader in history.happened:
        for register in reader.reads:
            found = _wrong_read(history, reader, register)
            if found is not None:
                yield found


def _wrong_read(history: History, reader: Transaction, register: Hashable) -> Anomaly | None:
    seen = history.seen_by(reader, register)
    for value in seen:
        writer = history.writers.get((register, value))
        if writer is not None and writer.outcome is Outcome.ABORTED:
            return Anomaly("G1a", f"{reader} saw {value} in {register}, of {writer}, which was aborted")
    writer = history.writers.get((register, seen[-1])) if seen else None
    if writer is not None and seen[-1] != writer.appends[register][-1]:
        return Anomaly("G1b", f"{reader} saw {register} as {seen}, in the middle of {writer}")
    if not history.is_prefix(register, seen):
        final = list(history.final.get(register, ()))
        return Anomaly("not a prefix", f"{reader} saw {register} as {seen}, which became {final}")
    return None


# Edges


def edges(history: History) -> Graph:
    """Return who is before whom, among the transactions that happened, and why."""
    graph: Graph = {each.id: {} for each in history.happened}
    for kind, first, second in (*_written(history), *_read(history), *in_real_time(history.happened)):
        if first.id != second.id and first.id in graph and second.id in graph:
            graph[first.id].setdefault(second.id, []).append(kind)
    return graph


def _written(history: History) -> Iterator[tuple[str, Transaction, Transaction]]:
    for register, values in history.final.items():
        writers = [history.writers[register, value] for value in values if (register, value) in history.writers]
        for first, second in itertools.pairwise(writers):
            yield "ww", first, second


def _read(history: History) -> Iterator[tuple[str, Transaction, Transaction]]:
    for reader in history.happened:
        for register in reader.reads:
            seen = history.seen_by(reader, register)
            if _wrong_read(history, reader, register) is not None:
                continue  # an anomaly by itself
            if seen and (register, seen[-1]) in history.writers:
                yield "wr", history.writers[register, seen[-1]], reader
            for value in list(history.final.get(register, ()))[len(seen) : len(seen) + 1]:
                if (register, value) in history.writers:
                    yield "rw", reader, history.writers[register, value]


def in_real_time(transactions: Sequence[Transaction]) -> Iterator[tuple[str, Transaction, Transaction]]:
    """Yield who had ended before another one began; what follows from two others is left out.

    One of unknown outcome may take effect at any time after it began.
    """
    moments = [(each.begin, 0, number) for number, each in enumerate(transactions)]
    for number, each in enumerate(transactions):
        if each.end is not None and each.outcome is Outcome.COMMITTED:
            moments.append((each.end, 1, number))
    last: list[tuple[float, Transaction]] = []
    for moment, is_end, number in sorted(moments):
        one = transactions[number]
        if is_end:
            last = [(end, each) for end, each in last if end >= one.begin] + [(moment, one)]
        else:
            yield from (("rt", each, one) for _, each in last)


# Cycles

_WRITTEN = ("ww",)
_KNOWN = ("ww", "wr")
_DATA = ("ww", "wr", "rw")
_ALL = ("ww", "wr", "rw", "rt")


def cycles(graph: Graph) -> Iterator[Anomaly]:
    """Yield an anomaly for each set of transactions that are before one another, by the worst name that fits."""
    for component in components(graph):
        if len(component) > 1:
            inner = {node: {to: why for to, why in graph[node].items() if to in component} for node in component}
            kind, circle = _worst(inner)
            yield Anomaly(kind, _told(inner, circle))


def _worst(graph: Graph) -> tuple[str, list[Hashable]]:
    for kind, reasons in (("G0", _WRITTEN), ("G1c", _KNOWN)):
        circle = shortest_circle(graph, reasons)
        if circle:
            return kind, circle
    circle = circle_through(graph, "rw", _KNOWN)
    if circle:
        return "G-single", circle
    circle = shortest_circle(graph, _DATA)
    return ("G2", circle) if circle else ("real-time", shortest_circle(graph, _ALL))


def _told(graph: Graph, circle: Sequence[Hashable]) -> str:
    """Return a circle as text, with the first reason for each of its edges."""
    text = f"T{circle[0]}"
    for node, after in zip(circle, [*circle[1:], circle[0]], strict=True):
        text += f" -{min(graph[node][after], key=_ALL.index)}-> T{after}"
    return text
