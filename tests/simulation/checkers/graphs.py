"""Circles in a graph whose edges have reasons."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: By node: by successor, why it comes after.
Graph = dict[Hashable, dict[Hashable, list[str]]]


def components(graph: Graph) -> list[list[Hashable]]:
    """Return the strongly connected components: nodes that can all be reached from one another."""
    search = _Search(graph)
    for node in graph:
        if node not in search.index:
            search.walk_from(node)
    return search.found


class _Search:
    """A depth-first search without recursion, since histories are long.

    Source: Tarjan, Depth-First Search and Linear Graph Algorithms (1972).
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.index: dict[Hashable, int] = {}
        self._lowest: dict[Hashable, int] = {}
        self._open: dict[Hashable, None] = {}
        self._path: list[tuple[Hashable, Iterator[Hashable]]] = []
        self.found: list[list[Hashable]] = []

    def walk_from(self, root: Hashable) -> None:
        """Find all components that can be reached from a node."""
        self._enter(root)
        while self._path:
            node, successors = self._path[-1]
            after = next(successors, None)
            if after is None:
                self._leave(node)
            elif after not in self.index:
                self._enter(after)
            elif after in self._open:
                self._lowest[node] = min(self._lowest[node], self.index[after])

    def _enter(self, node: Hashable) -> None:
        self.index[node] = self._lowest[node] = len(self.index)
        self._open[node] = None
        self._path.append((node, iter(self._graph[node])))

    def _leave(self, node: Hashable) -> None:
        self._path.pop()
        if self._path:
            before = self._path[-1][0]
            self._lowest[before] = min(self._lowest[before], self._lowest[node])
        if self._lowest[node] == self.index[node]:
            component = list[Hashable]()
            while node in self._open:
                component.append(self._open.popitem()[0])
            self.found.append(component[::-1])


def shortest_way(graph: dict[Any, dict[Any, Any]], start: Any, end: Any, allows: Callable[[Any], bool]) -> list[Any]:
    """Return a shortest way with at least one edge, both ends included; of edges whose reason is allowed."""
    came_from: dict[Any, Any] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for after, why in graph[node].items():
            if after in came_from or not allows(why):
                continue
            came_from[after] = node
            if after == end:
                way = [end, node]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            waiting.append(after)
    return []
