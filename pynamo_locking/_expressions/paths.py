"""Document paths: ``a.b[1]``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pynamo_locking._expressions.values import Item, Value

#: The steps of a path: names of attributes and places in lists.
Parts = tuple["str | int", ...]
#: Paths that begin alike, joined: by step, what follows it; None where a path ends.
Tree = dict["str | int", "Tree | None"]


@dataclass
class Scope:
    """What an expression is about.

    Attributes:
        item: the item as it is stored; empty if there is none.
        names: attribute names by placeholder.
        values: attribute values by placeholder.
    """

    item: Item
    names: Mapping[str, str]
    values: Mapping[str, Value]


class Operand:
    """Something in an expression that has a value."""

    __slots__ = ()

    def value(self, scope: Scope) -> Value | None:
        """Return the value, or None if the item has none there."""
        raise NotImplementedError


@dataclass(frozen=True)
class Path(Operand):
    """A document path as it is written, with placeholders."""

    parts: Parts

    def resolve(self, names: Mapping[Any, str]) -> Parts:
        """Return the path with the real names. Only placeholders begin with a #, so nothing else is replaced."""
        return tuple(map(names.get, self.parts, self.parts))

    def value(self, scope: Scope) -> Value | None:
        """Return what the item has there."""
        return find(scope.item, self.resolve(scope.names))


@dataclass(frozen=True)
class Literal(Operand):
    """A placeholder of a value."""

    name: str

    def value(self, scope: Scope) -> Value | None:
        """Return the value that was given for it."""
        return scope.values[self.name]


@dataclass(frozen=True)
class Computed(Operand):
    """What a function returns for the values of operands, as ``size(a)`` or ``a + b``."""

    function: Callable[..., Value | None]
    operands: tuple[Operand, ...]

    def value(self, scope: Scope) -> Value | None:
        """Return the result. The function is given None for an operand that has no value."""
        return self.function(*[operand.value(scope) for operand in self.operands])


def find(item: Item, parts: Parts) -> Value | None:
    """Return what an item has at a path, or None."""
    value = item.get(parts[0])  # type: ignore[arg-type] # a path begins with a name
    for part in parts[1:]:
        if value is None:
            return None
        if isinstance(part, int):
            elements = value.get("L", ())
            value = elements[part] if part < len(elements) else None
        else:
            value = value.get("M", {}).get(part)
    return value


def described(parts: Parts) -> str:
    """Return a path as DynamoDB's messages write it."""
    return "[" + ", ".join(f"[{part}]" if isinstance(part, int) else part for part in parts) + "]"


def place(parts: Parts) -> Any:
    """Return the sort key of a path: a path stands before its continuations, and places of a list in their order."""
    return [(isinstance(part, int), part) for part in parts]


def clash(in_order: Iterable[Parts]) -> str | None:
    """Return what is wrong with two paths in one expression, or None. The paths are sorted by `place`.

    Neither may be a part of the other, and what one takes for a map the other must not take for a list.
    """
    # Only neighbours can overlap: whatever stands between a path and its continuation continues it, too.
    for one, two in pairwise(in_order):
        if one == two[: len(one)]:
            verb = "overlap"
        elif _takes_list_for_map(one, two):
            verb = "conflict"
        else:
            continue
        return (
            f"Two document paths {verb} with each other; must remove or rewrite one of these paths; "
            f"path one: {described(one)}, path two: {described(two)}"
        )
    return None


def _takes_list_for_map(one: Parts, two: Parts) -> bool:
    for left, right in zip(one, two, strict=False):
        if left != right:
            return isinstance(left, int) is not isinstance(right, int)
    return False


def tree_of(paths: Iterable[Parts]) -> Tree:
    """Return paths that do not overlap as a tree."""
    tree: Tree = {}
    for parts in paths:
        branch = tree
        for part in parts[:-1]:
            inner = branch.get(part)
            if inner is None:
                inner = branch[part] = {}
            branch = inner
        branch[parts[-1]] = None
    return tree


def project(item: Item, tree: Tree, *, whole_lists: bool = False) -> Item:
    """Return the part of an item that a tree of paths names.

    Args:
        item: the item.
        tree: the paths.
        whole_lists: whether naming an element of a list means all of it.
    """
    projected: Item = {}
    for part, rest in tree.items():
        value = item.get(part)  # type: ignore[arg-type] # an item or a map has names
        inner = None if value is None else _project_value(value, rest, whole_lists=whole_lists)
        if inner is not None:
            projected[part] = inner  # type: ignore[index]
    return projected


def _project_value(value: Value, rest: Tree | None, *, whole_lists: bool) -> Value | None:
    if rest is None:
        return value
    if isinstance(next(iter(rest)), int):
        if "L" not in value:
            return None
        return value if whole_lists else _project_list(value["L"], rest)
    if "M" not in value:
        return None
    inner = project(value["M"], rest, whole_lists=whole_lists)
    return {"M": inner} if inner else None


def _project_list(elements: list[Value], rest: Tree) -> Value | None:
    found = [
        _project_value(elements[place], rest[place], whole_lists=False)
        for place in sorted(place for place in rest if isinstance(place, int))
        if place < len(elements)
    ]
    inner = [value for value in found if value is not None]
    return {"L": inner} if inner else None
