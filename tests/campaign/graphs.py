"""Who must come before whom, and the cycles in it, by the names that Adya and Elle give them.

ww: the first wrote what the second replaced. wr: the second read what the first wrote. rw: the second replaced what the
first read. A cycle of ww is G0; of ww and wr G1c; with one rw G-single; with several rw of which no two follow each
other G-nonadjacent (as in a long fork); with any others G2. With ``-process`` or ``-realtime`` behind the name, the
order of operations within a process, or of all operations in time, is part of the cycle.

Sources: Adya, Weak Consistency (1999), chapter 4; Kingsbury and Alvaro, Elle (2020), section 4;
https://github.com/jepsen-io/elle, `elle/consistency_model.clj` for the names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation.checkers.graphs import components, shortest_way

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WW, WR, RW, PROCESS, REALTIME, FREE = range(6)
#: By kind of edge; FREE leads from a helping node to an operation and says nothing by itself.
KINDS: Final = ("ww", "wr", "rw", "process", "realtime", "")
_BITS: Final = 3
_KIND: Final = 7
#: By node, by successor, the kind of an edge.
_Part = dict[Any, dict[Any, int]]
#: So many edges of a component are tried for a cycle with one rw, and so many nodes for a short cycle.
_TRIED: Final = 300
_BEGUN: Final = 20


class Anomaly(NamedTuple):
    """Something that must not be.

    Attributes:
        kind: its name, as Elle has it.
        message: what was seen.
        indices: of the operations in the file.
    """

    kind: str
    message: str
    indices: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class Graph:
    """Operations by number, helping nodes from there on, and edges of a kind. Numbers only: there may be millions.

    Args:
        size: how many operations there are.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._after: list[list[int]] = [[] for _ in range(size)]

    def node(self) -> int:
        """Return a new helping node."""
        self._after.append([])
        return len(self._after) - 1

    def add(self, kind: int, first: int, second: int) -> None:
        """Let one come before another."""
        if first != second:
            self._after[first].append(second << _BITS | kind)

    # Cycles

    def cycles(self, indices: Sequence[int]) -> Iterator[Anomaly]:
        """Yield a cycle for each set of operations that must come before one another, by the worst name that fits.

        Args:
            indices: by number, where an operation is in the file.
        """
        rest = self._in_cycles()
        told: set[int] = set()
        for suffix, more in (("", ()), ("-process", (PROCESS,)), ("-realtime", (PROCESS, REALTIME))):
            for name, kinds in (("G0", (WW,)), ("G1c", (WW, WR)), ("", (WW, WR, RW))):
                inner = self._part(rest, {*kinds, *more, FREE})
                for component in components(inner):
                    if len(component) > 1 and told.isdisjoint(component):
                        told.update(component)
                        yield self._anomaly(name, suffix, set(component), inner, indices)

    def _in_cycles(self) -> set[int]:
        """Return the nodes that are left when those without a predecessor were taken away, and so on."""
        missing = [0] * len(self._after)
        for edges in self._after:
            for edge in edges:
                missing[edge >> _BITS] += 1
        ready = [node for node, count in enumerate(missing) if not count]
        left = len(missing) - len(ready)
        while ready:
            for edge in self._after[ready.pop()]:
                node = edge >> _BITS
                missing[node] -= 1
                if not missing[node]:
                    ready.append(node)
                    left -= 1
        return {node for node, count in enumerate(missing) if count} if left else set()

    def _part(self, nodes: set[int], kinds: set[int]) -> _Part:
        """Return the edges of these kinds between these nodes: by node, by successor, the first kind of all."""
        part: _Part = {node: {} for node in nodes}
        for node, successors in part.items():
            for edge in self._after[node]:
                after, kind = edge >> _BITS, edge & _KIND
                if kind in kinds and after in nodes:
                    successors[after] = min(kind, successors.get(after, kind))
        return part

    def _anomaly(self, name: str, suffix: str, component: set[int], part: _Part, indices: Sequence[int]) -> Anomaly:
        inner = {node: {to: kind for to, kind in part[node].items() if to in component} for node in component}
        cycle = (not name and _with_one_rw(inner)) or _short_cycle(inner)
        kinds = [inner[node][after] for node, after in _around(cycle)]
        told = "".join(
            (f"{indices[node]} " if node < self._size else "") + (f"-{KINDS[kind]}-> " if kind != FREE else "")
            for node, kind in zip(cycle, kinds, strict=True)
        )
        seen = tuple(indices[node] for node in cycle if node < self._size)
        return Anomaly((name or _name_of(kinds)) + suffix, f"{told}(again)", seen)


def _name_of(kinds: list[int]) -> str:
    """Return the name of a cycle in which at least one rw is."""
    kinds = [kind for kind in kinds if kind != FREE]
    if kinds.count(RW) == 1:
        return "G-single-item"
    is_adjacent = any(first == second == RW for first, second in _around(kinds))
    return "G2-item" if is_adjacent else "G-nonadjacent-item"


def _around(cycle: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(cycle, [*cycle[1:], *cycle[:1]], strict=True)


def _with_one_rw(part: _Part) -> list[int]:
    """Return the nodes of a cycle with one rw; nothing if there is none, or it takes too long to find."""
    tried = 0
    for node, successors in part.items():
        for after, kind in successors.items():
            if kind == RW and tried < _TRIED:
                tried += 1
                way = shortest_way(part, after, node, lambda kind: kind != RW)
                if way:
                    return [node, *way[:-1]]
    return []


def _short_cycle(part: _Part) -> list[int]:
    """Return the nodes of a shortest cycle, among those through some of the nodes."""
    found = (shortest_way(part, node, node, lambda _: True) for _, node in zip(range(_BEGUN), part, strict=False))
    return min(filter(None, found), key=len)[:-1]
