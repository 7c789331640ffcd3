"""Circles in a graph whose edges have reasons."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterator

#: By node: by successor, why it comes after.
Graph = dict["Hashable", dict["Hashable", list[str]]]


def components(graph: Graph) -> list[list[Hashable]]:
    """Return the strongly connected components: nodes that can all be reached from one another.

    Source: Tarjan, Depth-First Search and Linear Graph Algorithms (1972); without recursion.
    """
    found: list[list[Hashable]] = []
    index: dict[Hashable, int] = {}
    low: dict[Hashable, int] = {}
    open_: dict[Hashable, None] = {}
    for root in graph:
        path: list[tuple[Hashable, Iterator[Hashable]]] = []
        _enter(graph, root, index, low, open_, path)
        while path:
            node, successors = path[-1]
            for after in successors:
                if after not in index:
                    _enter(graph, after, index, low, open_, path)
                    break
                if after in open_:
                    low[node] = min(low[node], index[after])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    found.append(_closed(open_, node))
    return found


def _enter(  # noqa: PLR0913 - the state of one search
    graph: Graph,
    node: Hashable,
    index: dict[Hashable, int],
    low: dict[Hashable, int],
    open_: dict[Hashable, None],
    path: list[tuple[Hashable, Iterator[Hashable]]],
) -> None:
    if node not in index:
        index[node] = low[node] = len(index)
        open_[node] = None
        path.append((node, iter(graph[node])))


def _closed(open_: dict[Hashable, None], root: Hashable) -> list[Hashable]:
    component = list[Hashable]()
    while root in open_:
        component.append(open_.popitem()[0])
    return component[::-1]


def shortest_circle(graph: Graph, reasons: Container[str]) -> list[Hashable]:
    """Return the nodes of a shortest circle of edges that have one of these reasons; nothing if there is none."""
    circles = (path for node in graph if (path := _path(graph, node, node, reasons)))
    return min(circles, key=len, default=[])


def circle_through(graph: Graph, reason: str, others: Container[str]) -> list[Hashable]:
    """Return a shortest circle with one edge of a reason, and otherwise only edges of others."""
    circles = [
        [node, *path[:-1]] if path[-1] == node else [node, *path]
        for node, successors in graph.items()
        for after, reasons in successors.items()
        if reason in reasons and (path := _path_to(graph, after, node, others))
    ]
    return min(circles, key=len, default=[])
