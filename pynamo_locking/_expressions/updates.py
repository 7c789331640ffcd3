"""What an update is made of, and what it makes of an item."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pynamo_locking._expressions.paths import Literal, Operand, Path, Scope, find
from pynamo_locking._expressions.refusals import invalid
from pynamo_locking._expressions.values import ELEMENTS, add_numbers, check_levels, ordered

if TYPE_CHECKING:
    from pynamo_locking._expressions.paths import Parts
    from pynamo_locking._expressions.refusals import Refusal
    from pynamo_locking._expressions.values import Item, Value


def _wrong_type() -> Refusal:
    return invalid("An operand in the update expression has an incorrect data type")


def _wrong_path() -> Refusal:
    return invalid("The document path provided in the update expression is invalid for update")


def required(operand: Operand, scope: Scope) -> Value:
    """Return the value of an operand.

    Raises:
        Refusal: the item has none there.
    """
    value = operand.value(scope)
    if value is None:
        raise invalid("The provided expression refers to an attribute that does not exist in the item")
    return value


@dataclass(frozen=True)
class IfNotExists(Operand):
    """``if_not_exists(a, b)``."""

    path: Path
    other: Operand

    def value(self, scope: Scope) -> Value | None:
        """Return what is there, or else the other operand, which must have a value in any case."""
        other = required(self.other, scope)
        value = self.path.value(scope)
        return other if value is None else value


@dataclass(frozen=True)
class ListAppend(Operand):
    """``list_append(a, b)``."""

    first: Operand
    second: Operand

    def value(self, scope: Scope) -> Value | None:
        """Return the two lists as one."""
        first, second = required(self.first, scope), required(self.second, scope)
        if "L" not in first or "L" not in second:
            raise _wrong_type()
        return {"L": first["L"] + second["L"]}


@dataclass(frozen=True)
class Sum(Operand):
    """``a + b`` or ``a - b``."""

    left: Operand
    right: Operand
    sign: int

    def value(self, scope: Scope) -> Value | None:
        """Return the sum or difference."""
        left, right = required(self.left, scope), required(self.right, scope)
        if "N" not in left or "N" not in right:
            raise _wrong_type()
        return {"N": add_numbers(left["N"], right["N"], self.sign)}


@dataclass(frozen=True)
class Action:
    """One change of an update.

    Attributes:
        path: what it changes.
    """

    path: Path

    def result(self, scope: Scope, target: Parts) -> Value | None:
        """Return what shall be there afterwards; None for nothing."""
        raise NotImplementedError


@dataclass(frozen=True)
class Set(Action):
    """``SET a = b``."""

    source: Operand

    def result(self, scope: Scope, target: Parts) -> Value | None:  # noqa: ARG002
        """Return the new value."""
        return required(self.source, scope)


@dataclass(frozen=True)
class Remove(Action):
    """``REMOVE a``."""

    def result(self, scope: Scope, target: Parts) -> Value | None:  # noqa: ARG002
        """Return that nothing shall be there."""
        return None


@dataclass(frozen=True)
class Add(Action):
    """``ADD a :b``."""

    literal: Literal

    def result(self, scope: Scope, target: Parts) -> Value | None:
        """Return the sum of the numbers, or the union of the sets."""
        added = scope.values[self.literal.name]
        stored = find(scope.item, target)
        if stored is None:
            return added
        [(kind, content)] = added.items()
        if kind not in stored:
            raise _wrong_type()
        if kind == "N":
            return {"N": add_numbers(stored["N"], content)}
        return {kind: ordered(kind, {*stored[kind], *content})}


@dataclass(frozen=True)
class Delete(Action):
    """``DELETE a :b``."""

    literal: Literal

    def result(self, scope: Scope, target: Parts) -> Value | None:
        """Return the set without these elements; nothing, if none is left."""
        removed = scope.values[self.literal.name]
        stored = find(scope.item, target)
        if stored is None:
            return None
        [(kind, content)] = removed.items()
        if kind not in stored or kind not in ELEMENTS:
            raise _wrong_type()
        left = [element for element in stored[kind] if element not in set(content)]
        return {kind: left} if left else None


def apply(actions: tuple[Action, ...], scope: Scope) -> Item:
    """Return the item after the update. Every operand is as it was before.

    Raises:
        Refusal: an operand is missing or of the wrong type, a path leads nowhere, or the result is too deep.
    """
    targets = [(action.path.resolve(scope.names), action) for action in actions]
    results = [(target, action.result(scope, target)) for target, action in targets]
    item = scope.item.copy()
    if len(results) > 1:
        results.sort(key=_place)
    # In the order of their places, since those beyond the end of a list are appended.
    for target, value in results:
        if value is not None:
            check_levels(value, len(target) - 1)
            _put(item, target, value)
    # From the end of a list on, so that the places of the others stay.
    for target, value in reversed(results):
        if value is None:
            _drop(item, target)
    return item


def _place(result: tuple[Parts, Value | None]) -> Any:
    return [(isinstance(part, int), part) for part in result[0]]


def _put(item: Item, target: Parts, value: Value | None) -> None:
    parent, last = _parent(item, target), target[-1]
    if isinstance(last, int) and last >= len(parent):
        parent.append(value)
    else:
        parent[last] = value


def _drop(item: Item, target: Parts) -> None:
    parent, last = _parent(item, target), target[-1]
    if not isinstance(last, int):
        parent.pop(last, None)
    elif last < len(parent):
        del parent[last]


def _parent(item: Item, target: Parts) -> Any:
    """Return the map or list that the last step of a path leads from, copied with all that is around it."""
    content: Any = item
    for part, following in pairwise(target):
        value = _step(content, part)
        kind = "L" if isinstance(following, int) else "M"
        if value is None or kind not in value:
            raise _wrong_path()
        inner = value[kind].copy()
        content[part] = {kind: inner}
        content = inner
    return content


def _step(content: Any, part: str | int) -> Value | None:
    if isinstance(part, int):
        return content[part] if part < len(content) else None
    value: Value | None = content.get(part)
    return value
