"""The expressions of one request, bound to its names and values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._expressions.condition_parser import parse_condition
from pynamo_locking._expressions.paths import Scope, clash, place, project, tree_of
from pynamo_locking._expressions.refusals import INVALID, Refusal, invalid
from pynamo_locking._expressions.update_parser import parse_projection, parse_update
from pynamo_locking._expressions.updates import apply
from pynamo_locking._expressions.values import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamo_locking._expressions.conditions import Condition
    from pynamo_locking._expressions.parsing import Parsed
    from pynamo_locking._expressions.paths import Parts, Tree
    from pynamo_locking._expressions.updates import Action
    from pynamo_locking._expressions.values import Item, Value

_Root = TypeVar("_Root")

_NAMES: Final = "ExpressionAttributeNames"
_VALUES: Final = "ExpressionAttributeValues"
_IS_NAME: Final = re.compile(r"#[A-Za-z0-9_]+").fullmatch
_IS_VALUE: Final = re.compile(r":[A-Za-z0-9_]+").fullmatch


class BoundCondition:
    """A condition with its names and values."""

    def __init__(self, parsed: Parsed[Condition], names: Mapping[str, str], values: Mapping[str, Value]) -> None:
        self.root = parsed.root
        self._paths = parsed.paths
        self.names = names
        self.values = values

    def holds(self, item: Item) -> bool:
        """Tell whether it is true of an item; of no item at all, if that is empty."""
        return self.root.holds(Scope(item, self.names, self.values))

    def attributes(self) -> set[str]:
        """Return the names of the attributes that it is about."""
        return {str(path.resolve(self.names)[0]) for path in self._paths}


class BoundUpdate:
    """An update with its names and values.

    Attributes:
        paths: what it changes, sorted by `place`.
    """

    def __init__(self, actions: tuple[Action, ...], names: Mapping[str, str], values: Mapping[str, Value]) -> None:
        targets = [(action.path.resolve(names), action) for action in actions]
        self._targets = sorted(targets, key=lambda target: place(target[0])) if len(targets) > 1 else targets
        self.paths = [path for path, _ in self._targets]
        self._names = names
        self._values = values

    def apply(self, item: Item) -> Item:
        """Return the item after the update."""
        return apply(self._targets, Scope(item, self._names, self._values))

    def updated(self, item: Item) -> Item:
        """Return the part of an item that the update is about."""
        return project(item, tree_of(self.paths), whole_lists=True)


class BoundProjection:
    """A projection with its names.

    Attributes:
        paths: what it names.
    """

    def __init__(self, paths: list[Parts]) -> None:
        self.paths = paths
        self._tree: Tree = tree_of(paths)

    def of(self, item: Item) -> Item:
        """Return the part of an item that it names."""
        return project(item, self._tree)


class Expressions:
    """The expressions of one request.

    Args:
        request: the arguments of the request, or of one action of a transaction.
        kinds: the arguments that are expressions, as ``ConditionExpression``.
    """

    def __init__(self, request: Mapping[str, Any], *kinds: str) -> None:
        self._request = request
        self._kinds = kinds
        self._names: Mapping[str, str] = request.get(_NAMES, {})
        self._values: Mapping[str, Value] = {}
        self._used: frozenset[str] = frozenset()
        if _NAMES in request:
            self._check_placeholders(_NAMES, _IS_NAME)
        if _VALUES in request:
            self._check_placeholders(_VALUES, _IS_VALUE)
            self._values = _bound_values(request[_VALUES])

    def condition(self, kind: str = "ConditionExpression") -> BoundCondition | None:
        """Return a condition of the request, or None if it has none."""
        if kind not in self._request:
            return None
        parsed = parse_condition(kind, self._request[kind])
        self._bind(parsed)
        return BoundCondition(parsed, self._names, self._values)

    def update(self) -> BoundUpdate | None:
        """Return the update of the request, or None if it has none."""
        text = self._request.get("UpdateExpression")
        if not text:  # an empty one is taken for none
            return None
        update = BoundUpdate(self._bind(parse_update(text)), self._names, self._values)
        _check_paths("UpdateExpression", update.paths)
        return update

    def projection(self) -> BoundProjection | None:
        """Return the projection of the request, or None if it has none."""
        kind = "ProjectionExpression"
        if kind not in self._request:
            return None
        paths = self._bind(parse_projection(self._request[kind]))
        resolved = [path.resolve(self._names) for path in paths]
        _check_paths(kind, sorted(resolved, key=place))
        return BoundProjection(resolved)

    def check_all_used(self) -> None:
        """Refuse the request if a name or value occurs in no expression."""
        for parameter, given in ((_NAMES, self._names), (_VALUES, self._values)):
            if not given.keys() <= self._used:
                keys = ", ".join(sorted(given.keys() - self._used))
                raise invalid(f"Value provided in {parameter} unused in expressions: keys: {{{keys}}}")

    def _check_placeholders(self, parameter: str, is_placeholder: Callable[[str], object]) -> None:
        if not any(self._request.get(kind) for kind in self._kinds):
            message = f"{parameter} can only be specified when using expressions"
            if parameter == _VALUES:
                message += f": {' and '.join(self._kinds)} {'is' if len(self._kinds) == 1 else 'are'} null"
            raise invalid(message)
        given = self._request[parameter]
        if not given:
            raise invalid(f"{parameter} must not be empty")
        for key in given:
            if not is_placeholder(key):
                raise invalid(f'{parameter} contains invalid key: Syntax error; key: "{key}"')
            if not given[key] and parameter == _NAMES:
                raise invalid(f"{_NAMES} contains invalid value: Empty attribute name for key {key}")

    def _bind(self, parsed: Parsed[_Root]) -> _Root:
        for given, used, what in (
            (self._names, parsed.names, "name used in the document path is not defined; attribute name"),
            (self._values, parsed.values, "value used in expression is not defined; attribute value"),
        ):
            if not given.keys() >= used:
                missing = min(used - given.keys())
                raise invalid(f"Invalid {parsed.kind}: An expression attribute {what}: {missing}")
        self._used |= parsed.placeholders
        for rule in parsed.rules:
            message = rule(self._names, self._values)
            if message is not None:
                raise invalid(f"Invalid {parsed.kind}: {message}")
        return parsed.root


def _bound_values(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Value]:
    values, key = dict[str, "Value"](), ""
    try:
        for key, value in given.items():
            values[key] = canonical(value)
    except Refusal as error:
        if error.code != INVALID:
            raise
        raise invalid(f"{_VALUES} contains invalid value: {error.message} for key {key}") from None
    return values


def _check_paths(kind: str, in_order: list[Parts]) -> None:
    message = clash(in_order)
    if message is not None:
        raise invalid(f"Invalid {kind}: {message}")
