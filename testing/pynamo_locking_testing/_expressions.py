"""Conditions, updates and projections: parsed, bound to the names and values of a request, evaluated."""

from __future__ import annotations

import operator
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pynamo_locking._core.values import (
    ELEMENTS,
    INVALID,
    SCALARS,
    Refusal,
    add_numbers,
    canonical,
    check_levels,
    comparable,
    invalid,
    ordered,
    type_of,
)
from pynamo_locking_testing._expression_parser import (
    Computed,
    Literal,
    Operand,
    Parsed,
    Parser,
    Path,
    Scope,
    bounds_in_order,
    check_paths,
    find,
    place,
    project,
    tree_of,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamo_locking._core.values import Item, Value
    from pynamo_locking_testing._expression_parser import Parts, Tree


# What a condition is made of, and whether it holds.


#: Types whose ``size()`` is defined.
SIZED: Final = frozenset({"S", "B", "SS", "NS", "BS", "L", "M"})


@dataclass(frozen=True)
class Test(Operand):
    """Something in an expression that is true or false, as ``a < b``, ``attribute_exists(a)`` or ``NOT a``."""

    name: str
    operands: tuple[Operand, ...]

    def value(self, scope: Scope) -> bool:
        """Tell whether the values pass; a missing one passes ``<>`` and ``attribute_not_exists`` only."""
        values = [operand.value(scope) for operand in self.operands]
        if None in (values[:1] if self.name == "IN" else values):
            return self.name in {"<>", "attribute_not_exists"}
        return _TESTS[self.name](*values)


def size(value: Value | None) -> Value | None:
    """Return the number of characters, bytes or elements of a value; None where that says nothing."""
    if value is None:
        return None
    [(kind, content)] = value.items()
    if kind == "S" and not content.isascii():  # characters as Java counts them
        return {"N": str(len(content.encode("utf-16-le", "surrogatepass")) // 2)}
    return {"N": str(len(content))} if kind in SIZED else None


def _in_order(compare: Callable[[Any, Any], bool], left: Value, right: Value) -> bool:
    kind = type_of(left)
    return kind in SCALARS and kind in right and compare(comparable(left), comparable(right))


def _between(value: Value, low: Value, high: Value) -> bool:
    return _in_order(operator.ge, value, low) and _in_order(operator.le, value, high)


def _begins_with(value: Value, prefix: Value) -> bool:
    [(kind, content)] = value.items()
    return kind in {"S", "B"} and kind in prefix and content.startswith(prefix[kind])


def _contains(value: Value, element: Value) -> bool:
    """Tell whether a text or bytes have this part, or a set or list this element."""
    [(kind, content)] = value.items()
    if kind == "L":
        return element in content
    part = ELEMENTS.get(kind, kind if kind in {"S", "B"} else None)
    return part in element and element[part] in content


#: What each operator or function says of values that are there.
_TESTS: Final[dict[str, Callable[..., bool]]] = {
    "AND": lambda *parts: all(parts),
    "OR": lambda *parts: any(parts),
    "NOT": operator.not_,
    "=": operator.eq,
    "<>": operator.ne,
    "<": partial(_in_order, operator.lt),
    "<=": partial(_in_order, operator.le),
    ">": partial(_in_order, operator.gt),
    ">=": partial(_in_order, operator.ge),
    "BETWEEN": _between,
    "IN": lambda value, *choices: value in choices,
    "attribute_exists": lambda _: True,
    "attribute_not_exists": lambda _: False,
    "attribute_type": lambda value, kind: kind["S"] in value,
    "begins_with": _begins_with,
    "contains": _contains,
}


# What an update is made of, and what it makes of an item.


def _wrong_type() -> Refusal:
    return invalid("An operand in the update expression has an incorrect data type")


def _required(value: Value | None) -> Value:
    if value is None:
        raise invalid("The provided expression refers to an attribute that does not exist in the item")
    return value


def if_not_exists(value: Value | None, other: Value | None) -> Value:
    """Return what is there, or else the other value, which must be there in any case."""
    other = _required(other)
    return other if value is None else value


def list_append(first: Value | None, second: Value | None) -> Value:
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
    """One change of an update: SET, REMOVE, ADD or DELETE. All but REMOVE take an operand."""

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


def _put(item: Item, target: Parts, value: Value | None) -> None:
    parent, last = _parent(item, target), target[-1]
    if isinstance(last, int) and last >= len(parent):
        parent.append(value)
    else:
        parent[last] = value


def _drop(item: Item, target: Parts) -> None:
    parent = _parent(item, target)
    with suppress(LookupError):
        del parent[target[-1]]


def _parent(item: Item, target: Parts) -> Any:
    """Return the map or list that the last step of a path leads from, copied with all that is around it."""
    content: Any = item
    for part, following in pairwise(target):
        kind = "L" if isinstance(following, int) else "M"
        try:
            inner = content[part][kind].copy()
        except LookupError:
            raise invalid("The document path provided in the update expression is invalid for update") from None
        content[part] = {kind: inner}
        content = inner
    return content


# From the text of a condition to what it says.


_MOST_CHOICES: Final = 100
_SIGNS: Final = frozenset({"=", "<>", "<", "<=", ">", ">=", "BETWEEN", "IN"})
_PREFIXES: Final = frozenset({"S", "B"})
_TEXTS: Final = frozenset({"S"})


@lru_cache(maxsize=4096)
def parse_condition(kind: str, text: str) -> Parsed[Operand]:
    parser = _ConditionParser(kind, text)
    return parser.finish(parser.condition())


class _ConditionParser(Parser):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self._last_group = (-1, -1)  # the places of its parentheses

    def condition(self) -> Operand:
        return self._must_be_condition(self._any_of())

    # Each of these returns an operand that is no condition if that is all there is: a parenthesis may stand around it.

    def _any_of(self) -> Operand:
        return self._joined("OR", lambda: self._joined("AND", self._negation))

    def _joined(self, word: str, part: Callable[[], Operand]) -> Operand:
        first = part()
        if self.next.upper() != word:
            return first
        parts = [self._must_be_condition(first)]
        while self.accept(word):
            self.count_operator()
            parts.append(self._must_be_condition(part()))
        return Test(word, tuple(parts))

    def _negation(self) -> Operand:
        negations = 0
        while self.accept("NOT"):
            self.count_operator()
            negations += 1
        inner = self._comparison()
        for _ in range(negations):
            inner = Test("NOT", (self._must_be_condition(inner),))
        return inner

    def _comparison(self) -> Operand:
        left = self._primary()
        sign = self.next.upper()
        if isinstance(left, Test) or sign not in _SIGNS:
            return left
        self.take()
        self.count_operator()
        if sign == "BETWEEN":
            return self._between(left)
        right = self._choices() if sign == "IN" else (self.operand(),)
        self.demand_distinct(left, right, sign)
        if sign not in {"=", "<>", "IN"}:
            self._demand_order(sign, left, *right)
        return Test(sign, (left, *right))

    def _demand_order(self, sign: str, *operands: Operand) -> None:
        for operand in operands:
            self.demand_type(operand, SCALARS, sign)

    def _between(self, operand: Operand) -> Operand:
        low = self.operand()
        self.expect("AND")
        high = self.operand()
        self._demand_order("BETWEEN", operand, low, high)
        if isinstance(low, Literal) and isinstance(high, Literal):
            self.demand(bounds_in_order, low.name, high.name)
        return Test("BETWEEN", (operand, low, high))

    def _choices(self) -> tuple[Operand, ...]:
        choices = self.operands()
        if len(choices) > _MOST_CHOICES:
            raise self.error(f"The IN operator is provided with too many operands; number of operands: {len(choices)}")
        return choices

    def operand(self) -> Operand:
        operand = self._primary()
        if isinstance(operand, Test):
            raise self.syntax_error()
        return operand

    def _must_be_condition(self, found: Operand) -> Operand:
        if isinstance(found, Test):
            return found
        raise self.syntax_error()

    def _primary(self) -> Operand:
        if self.next == "(":
            return self._group()
        return self._function() if self.is_function else self.path_or_literal()

    def _group(self) -> Operand:
        opened = self.place
        self.expect("(")
        inner = self._any_of()
        closed = self.place
        self.expect(")")
        if self._last_group == (opened + 1, closed - 1):
            raise self.error("The expression has redundant parentheses;")
        self._last_group = (opened, closed)
        return inner

    def _function(self) -> Operand:
        name, operands = self.function("a condition")
        self.count_operator()
        first, last = operands[0], operands[-1]
        if name == "size":
            self.demand_type(first, SIZED, name)
            return Computed(size, operands)
        if name in {"begins_with", "contains"}:
            self.demand_distinct(first, (last,), name)
        else:
            self.must_be_path(first, name)
        if name == "begins_with":
            self.demand_type(first, _PREFIXES, name)
            self.demand_type(last, _PREFIXES, name)
        elif name == "attribute_type":
            self._demand_type_name(last)
        return Test(name, operands)

    def _demand_type_name(self, operand: Operand) -> None:
        if not isinstance(operand, Literal):
            raise self.syntax_error()
        self.demand_type(operand, _TEXTS, "attribute_type")
        self.demand(type_name, operand.name)


# From the text of an update or a projection to what it says.


_NUMBERS: Final = frozenset({"N"})
_LISTS: Final = frozenset({"L"})
_SETS: Final = frozenset(ELEMENTS)
_VERBS: Final = frozenset({"SET", "REMOVE", "ADD", "DELETE"})


@lru_cache(maxsize=4096)
def parse_update(text: str) -> Parsed[tuple[Action, ...]]:
    parser = _UpdateParser("UpdateExpression", text)
    return parser.finish(parser.actions())


@lru_cache(maxsize=4096)
def parse_projection(text: str) -> Parsed[tuple[Path, ...]]:
    parser = Parser("ProjectionExpression", text)
    paths = [parser.path()]
    while parser.accept(","):
        paths.append(parser.path())
    return parser.finish(tuple(paths))


class _UpdateParser(Parser):
    def actions(self) -> tuple[Action, ...]:
        found = list[Action]()
        seen = set[str]()
        while self.next or not seen:
            verb = self.next.upper()
            if verb not in _VERBS:
                raise self.syntax_error()
            if verb in seen:
                raise self.error(f'The "{verb}" section can only be used once in an update expression;')
            seen.add(verb)
            self.take()
            found.append(self._action(verb))
            while self.accept(","):
                found.append(self._action(verb))
        return tuple(found)

    def _action(self, verb: str) -> Action:
        path = self.path()
        if verb == "REMOVE":
            return Action(verb, path)
        if verb == "SET":
            self.expect("=")
            return Action(verb, path, self._source())
        literal = self.literal()
        self.demand_type(literal, _NUMBERS | _SETS if verb == "ADD" else _SETS, verb)
        return Action(verb, path, literal)

    def _source(self) -> Operand:
        """Take the right side of SET: an operand, or the sum of two, with or without parentheses."""
        left = self._group(self._source) if self.next == "(" else self.operand()
        sign = self.next
        if sign not in SUMS or (isinstance(left, Computed) and left.function in SUMS.values()):
            return left
        self.take()
        operands = left, self.operand()
        for operand in operands:
            self.demand_type(operand, _NUMBERS, sign)
        return Computed(SUMS[sign], operands)

    def operand(self) -> Operand:
        if self.next == "(":
            return self._group(self.operand)
        return self._function() if self.is_function else self.path_or_literal()

    def _group(self, inner: Callable[[], Operand]) -> Operand:
        self.expect("(")
        if self.next == "(":
            raise self.error("The expression has redundant parentheses;")
        operand = inner()
        self.expect(")")
        return operand

    def _function(self) -> Operand:
        name, operands = self.function("an update")
        if name == "if_not_exists":
            self.must_be_path(operands[0], name)
            return Computed(if_not_exists, operands)
        for operand in operands:
            self.demand_type(operand, _LISTS, name)
        return Computed(list_append, operands)


# The expressions of one request, bound to its names and values.


_Root = TypeVar("_Root")

_NAMES: Final = "ExpressionAttributeNames"
_VALUES: Final = "ExpressionAttributeValues"
_IS_NAME: Final = re.compile(r"#[A-Za-z0-9_]+").fullmatch
_IS_VALUE: Final = re.compile(r":[A-Za-z0-9_]+").fullmatch


@dataclass(frozen=True)
class BoundCondition:
    """A condition with its names and values, and the paths in it."""

    root: Operand
    paths: tuple[Path, ...]
    names: Mapping[str, str]
    values: Mapping[str, Value]

    def holds(self, item: Item) -> bool:
        return bool(self.root.value(Scope(item, self.names, self.values)))

    def attributes(self) -> set[str]:
        return {str(path.resolve(self.names)[0]) for path in self.paths}


class BoundUpdate:
    """An update with its names and values; what it changes is in `paths`, sorted by `place`."""

    def __init__(self, actions: tuple[Action, ...], names: Mapping[str, str], values: Mapping[str, Value]) -> None:
        targets = [(action.path.resolve(names), action) for action in actions]
        self._targets = sorted(targets, key=lambda target: place(target[0])) if len(targets) > 1 else targets
        self.paths = [path for path, _ in self._targets]
        self._names = names
        self._values = values

    def apply(self, item: Item) -> Item:
        """Return the item afterwards. Every operand is as it was before."""
        scope = Scope(item, self._names, self._values)
        results = [(target, action.result(scope, target)) for target, action in self._targets]
        item = item.copy()
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

    def updated(self, item: Item) -> Item:
        return project(item, tree_of(self.paths), whole_lists=True)


class BoundProjection:
    """A projection with its names."""

    def __init__(self, paths: list[Parts]) -> None:
        self.paths = paths
        self._tree: Tree = tree_of(paths)

    def of(self, item: Item) -> Item:
        return project(item, self._tree)


class Expressions:
    """The expressions of one request, or of one action of a transaction: its arguments of these kinds."""

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
        if kind not in self._request:
            return None
        parsed = parse_condition(kind, self._request[kind])
        return BoundCondition(self._bind(parsed), parsed.paths, self._names, self._values)

    def update(self) -> BoundUpdate | None:
        text = self._request.get("UpdateExpression")
        if not text:  # an empty one is taken for none
            return None
        update = BoundUpdate(self._bind(parse_update(text)), self._names, self._values)
        check_paths("UpdateExpression", update.paths)
        return update

    def projection(self) -> BoundProjection | None:
        kind = "ProjectionExpression"
        if kind not in self._request:
            return None
        paths = self._bind(parse_projection(self._request[kind]))
        resolved = [path.resolve(self._names) for path in paths]
        check_paths(kind, sorted(resolved, key=place))
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
        missing = parsed.placeholders - self._names.keys() - self._values.keys()
        if missing:
            first = min(missing)
            what = "value used in expression is not defined; attribute value"
            if first.startswith("#"):
                what = "name used in the document path is not defined; attribute name"
            raise invalid(f"Invalid {parsed.kind}: An expression attribute {what}: {first}")
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
