"""What an update is made of, and what it makes of an item."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking._expressions.paths import find
from pynamo_locking._expressions.refusals import invalid
from pynamo_locking._expressions.values import ELEMENTS, add_numbers, check_levels, ordered

if TYPE_CHECKING:
    from pynamo_locking._expressions.paths import Operand, Parts, Path, Scope
    from pynamo_locking._expressions.refusals import Refusal
    from pynamo_locking._expressions.values import Item, Value


def _wrong_type() -> Refusal:
    return invalid("An operand in the update expression has an incorrect data type")


def _wrong_path() -> Refusal:
    return invalid("The document path provided in the update expression is invalid for update")


def _required(value: Value | None) -> Value:
    if value is None:
        raise invalid("The provided expression refers to an attribute that does not exist in the item")
    return value


def if_not_exists(value: Value | None, other: Value | None) -> Value:
    """Return what is there, or else the other value, which must be there in any case."""
    other = _required(other)
    return other if value is None else value


def list_append(first: Value | None, second: Value | None) -> Value:
    """Return two lists as one."""
    first, second = _required(first), _required(second)
    if "L" not in first or "L" not in second:
        raise _wrong_type()
    return {"L": first["L"] + second["L"]}


def _sum(left: Value | None, right: Value | None, *, sign: int) -> Value:
    left, right = _required(left), _required(right)
    if "N" not in left or "N" not in right:
        raise _wrong_type()
    return {"N": add_numbers(left["N"], right["N"], sign)}


#: What the signs in an update calculate.
SUMS: Final = {"+": partial(_sum, sign=1), "-": partial(_sum, sign=-1)}


@dataclass(frozen=True)
class Action:
    """One change of an update.

    Attributes:
        verb: SET, REMOVE, ADD or DELETE.
        path: what it changes.
        operand: what it takes besides, except for REMOVE.
    """

    verb: str
    path: Path
    operand: Operand | None = None

    def result(self, scope: Scope, target: Parts) -> Value | None:
        """Return what shall be at the resolved path afterwards; None for nothing."""
        if self.operand is None:
            return None
        given = _required(self.operand.value(scope))
        if self.verb == "SET":
            return given
        return (_added if self.verb == "ADD" else _without)(find(scope.item, target), given)


def _added(stored: Value | None, added: Value) -> Value:
    """Return the sum of the numbers, or the union of the sets."""
    if stored is None:
        return added
    [(kind, content)] = added.items()
    if kind not in stored:
        raise _wrong_type()
    if kind == "N":
        return {"N": add_numbers(stored["N"], content)}
    return {kind: ordered(kind, {*stored[kind], *content})}


def _without(stored: Value | None, removed: Value) -> Value | None:
    """Return the set without these elements; nothing, if none is left."""
    if stored is None:
        return None
    [(kind, content)] = removed.items()
    if kind not in stored or kind not in ELEMENTS:
        raise _wrong_type()
    left = [element for element in stored[kind] if element not in set(content)]
    return {kind: left} if left else None


def apply(targets: list[tuple[Parts, Action]], scope: Scope) -> Item:
    """Return the item after the changes of the targets, sorted by `place`. Every operand is as it was before."""
    results = [(target, action.result(scope, target)) for target, action in targets]
    item = scope.item.copy()
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
