"""Items as DynamoDB stores them, and what PynamoDB's actions and conditions make of them, without a request.

An image is an item in DynamoDB's JSON form, with binary values as bytes. The results are canonical (numbers in one
spelling, sets sorted) and share nothing with the arguments, which stay unchanged.

PynamoDB's trees are evaluated as they are, and not the text that they become in a request.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from pynamodb.expressions.operand import Path, Value

from pynamo_locking._core.dynamodb import KeyRule
from pynamo_locking._core.errors import ConfigurationError
from pynamo_locking._core.values import (
    ELEMENTS,
    SCALARS,
    add_numbers,
    canonical,
    canonical_item,
    check_levels,
    comparable,
    copy_of,
    invalid,
    invalid_value,
    item_size,
    ordered,
    type_of,
)
from pynamo_locking._io.stored_rows import steps_of
from pynamo_locking._items.keys import as_input, storable
from pynamo_locking._pynamodb import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamo_locking._core.values import Refusal
    from pynamo_locking._io.stored_rows import Image, Steps


def check(*nodes: Any) -> None:
    """Refuse conditions and actions with a class that a user has derived from PynamoDB's; None is no condition.

    Raises:
        ConfigurationError: what such a class means is not known here. The message names it.
    """
    for node in nodes:
        if node is not None and _name_of(node) not in {_PATH, _VALUE}:
            check(*node.values)


def holds(image: Image | None, condition: Condition | None) -> bool:
    """Tell whether a condition is true of an item; of no item, if that is None. Raises as `check` and `storable`."""
    with as_input():
        return condition is None or bool(_evaluated(condition, canonical_item(image or {})))


def updated(image: Image | None, key: Image, actions: Iterable[Action]) -> Image:
    """Return an item as it is after an UpdateItem; of no item, one with this key.

    The result may be too large, or break an index: see `dynamodb.problems`. `Refusal` if DynamoDB would refuse the
    actions, as an ADD to a string. Raises as `check`, too.
    """
    before = canonical_item(image or key)
    targets = sorted(((steps_of(action.values[0]), action) for action in actions), key=lambda each: _order(each[0]))
    _check_apart([steps for steps, _ in targets])
    for steps, _ in targets:
        if steps[0] in key:
            raise invalid_value(f"Cannot update attribute {steps[0]}. This attribute is part of the key")
    results = [(steps, _result(action, before, steps)) for steps, action in targets]
    after = before.copy()
    for steps, value in results:  # in order: what is set beyond the end of a list is appended
        if value is not None:
            check_levels(value, len(steps) - 1)
            _put(after, steps, value)
    for steps, value in reversed(results):  # from the end of a list on, so that the other places stay
        if value is None:
            _drop(after, steps)
    return copy_of(after)  # two attributes may share an object: SET a = b


def difference(
    before: Image | None, after: Image, *, keys: Collection[str] = ()
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the attributes to set, and the names of those to remove, that turn one image into another.

    Values are compared as in DynamoDB: the spelling of a number and the order of a set do not count. Attributes are set
    as a whole, even if only a part of a map differs. Key attributes, named in `keys`, are left out; that is needed only
    if there was no item before.
    """
    old, new = storable(before or {}), storable(after)
    changed = {name: value for name, value in new.items() if name not in keys and old.get(name) != value}
    return changed, sorted(name for name in old if name not in new and name not in keys)


def size_of(image: Image) -> int:
    """Return the size of an item in bytes, names included, as DynamoDB counts it. Raises as `storable`."""
    return item_size(storable(image))


# Paths


def _order(steps: Steps) -> list[tuple[bool, str | int]]:
    """Sort paths: one before its continuations, and the places of a list in their order."""
    return [(isinstance(step, int), step) for step in steps]


def _check_apart(paths: list[Steps]) -> None:
    """Refuse paths, in order, of which one is a part of another."""
    for one, two in pairwise(paths):  # only neighbours can: what comes between a path and its parts is its part, too
        if one == two[: len(one)]:
            raise invalid(f"Invalid UpdateExpression: Two document paths overlap with each other: {one}, {two}")


def _found(item: Image, steps: Steps) -> Any:
    content: Any = {"M": item}
    try:
        for step in steps:
            content = content["L" if isinstance(step, int) else "M"][step]
    except LookupError:
        return None
    return content


def _put(item: Image, steps: Steps, value: Any) -> None:
    parent, last = _parent(item, steps), steps[-1]
    if isinstance(last, int) and last >= len(parent):
        parent.append(value)
    else:
        parent[last] = value


def _drop(item: Image, steps: Steps) -> None:
    parent = _parent(item, steps)
    with suppress(LookupError):
        del parent[steps[-1]]


def _parent(item: Image, steps: Steps) -> Any:
    """Return the map or list that the last step leads from, copied with all that is around it."""
    content: Any = item
    for step, following in pairwise(steps):
        kind = "L" if isinstance(following, int) else "M"
        try:
            inner = content[step][kind].copy()
        except LookupError:
            raise invalid("The document path provided in the update expression is invalid for update") from None
        content[step] = {kind: inner}
        content = inner
    return content


# Values and conditions. None stands for an attribute that is not there.


#: Whose classes have the meaning that their names say.
_KNOWN_LIBRARIES: Final = frozenset({"pynamodb", "pynamo_locking"})

_PATH: Final = "path"
_VALUE: Final = "value"


def _name_of(node: Any) -> str:
    """Return the name of what a part of a condition or of an action does, by which the tables below have it."""
    kind = type(node)
    if isinstance(node, Path):
        name = _PATH
    elif isinstance(node, Value):
        name = _VALUE
    else:
        name = getattr(node, "operator", kind.__name__)
    if kind.__module__.partition(".")[0] not in _KNOWN_LIBRARIES or name not in _NAMES:
        raise ConfigurationError(
            f"{node!r} is a {kind.__module__}.{kind.__qualname__}, which is no class of PynamoDB's that is known here. "
            f"A transaction evaluates conditions and actions itself, so make them of PynamoDB's own classes, as "
            f"Model.attribute == value does."
        )
    return name


def _evaluated(node: Any, item: Image) -> Any:
    name = _name_of(node)
    if name == _PATH:
        return _found(item, steps_of(node))
    if name == _VALUE:
        return canonical(node.value)
    operands = [_evaluated(each, item) for each in node.values]
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*operands)
    if None in (operands[:1] if name == "IN" else operands):
        return name in {"<>", "attribute_not_exists"}  # the only ones that are true of what is not there
    return _TESTS[name](*operands)


def _size(value: Any) -> Any:
    """Return the number of characters, bytes or elements; None where that says nothing."""
    if value is None:
        return None
    [(kind, content)] = value.items()
    if kind in {"N", "BOOL", "NULL"}:
        return None
    # Characters as Java counts them.
    return {"N": str(len(content.encode("utf-16-le", "surrogatepass")) // 2 if kind == "S" else len(content))}


def _sum(left: Any, right: Any, *, sign: int) -> Any:
    if "N" not in _required(left) or "N" not in _required(right):
        raise _wrong_type()
    return {"N": add_numbers(left["N"], right["N"], sign)}


def _list_append(first: Any, second: Any) -> Any:
    if "L" not in _required(first) or "L" not in _required(second):
        raise _wrong_type()
    return {"L": first["L"] + second["L"]}


def _if_not_exists(value: Any, other: Any) -> Any:
    other = _required(other)  # DynamoDB evaluates both
    return other if value is None else value


def _in_order(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    kind = type_of(left)
    return kind in SCALARS and kind in right and compare(comparable(left), comparable(right))


def _begins_with(value: Any, prefix: Any) -> bool:
    [(kind, content)] = value.items()
    return kind in {"S", "B"} and kind in prefix and content.startswith(prefix[kind])


def _contains(value: Any, element: Any) -> bool:
    [(kind, content)] = value.items()
    if kind == "L":
        return element in content
    part = ELEMENTS.get(kind, kind if kind in {"S", "B"} else None)
    return part in element and element[part] in content


#: What PynamoDB's functions make of values, some of which may not be there; by the names of their classes.
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_Size": _size,
    "_Increment": partial(_sum, sign=1),
    "_Decrement": partial(_sum, sign=-1),
    "_ListAppend": _list_append,
    "_IfNotExists": _if_not_exists,
}

#: What each operator says of values that are there.
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
    "BETWEEN": lambda value, low, high: _TESTS[">="](value, low) and _TESTS["<="](value, high),
    "IN": lambda value, *choices: value in choices,
    "attribute_exists": lambda _: True,
    "attribute_not_exists": lambda _: False,
    "attribute_type": lambda value, kind: kind["S"] in value,
    "begins_with": _begins_with,
    "contains": _contains,
}


# Actions


def _result(action: Action, item: Image, steps: Steps) -> Any:
    """Return what is at the path of an action afterwards; None for nothing."""
    name, operands = _name_of(action), action.values[1:]
    given = [_required(_evaluated(each, item)) for each in operands]
    return _ACTIONS[name](_found(item, steps), *given)


def _added(stored: Any, added: Any) -> Any:
    if stored is None:
        return added
    [(kind, content)] = added.items()
    if kind not in stored:
        raise _wrong_type()
    if kind == "N":
        return {"N": add_numbers(stored["N"], content)}
    return {kind: ordered(kind, {*stored[kind], *content})}


def _without(stored: Any, removed: Any) -> Any:
    if stored is None:
        return None
    [(kind, content)] = removed.items()
    if kind not in stored or kind not in ELEMENTS:
        raise _wrong_type()
    left = [element for element in stored[kind] if element not in set(content)]
    return {kind: left} if left else None


#: What PynamoDB's actions make of what is stored, by the names of their classes.
_ACTIONS: Final[dict[str, Callable[..., Any]]] = {
    "SetAction": lambda _, given: given,
    "SetStored": lambda _, given: given,
    "RemoveAction": lambda _: None,
    "AddAction": _added,
    "DeleteAction": _without,
}

#: All that is evaluated here.
_NAMES: Final = frozenset({_PATH, _VALUE, *_FUNCTIONS, *_TESTS, *_ACTIONS})


def _required(value: Any) -> Any:
    if value is None:
        raise invalid("The provided expression refers to an attribute that does not exist in the item")
    return value


def _wrong_type() -> Refusal:
    return invalid("An operand in the update expression has an incorrect data type")


# Keys of tables and indexes


def key_rules(model: type[Model]) -> tuple[KeyRule, ...]:
    """Return the key attributes of a table and of all its indexes, those of other classes of the table included."""
    schema = schema_of(model)
    rules = _rules(schema, None)
    for index in [*schema["local_secondary_indexes"], *schema["global_secondary_indexes"]]:
        rules += _rules(index, index["index_name"])
    return tuple(rules)


def _rules(schema: Any, index: str | None) -> list[KeyRule]:
    # The definitions of a table include its indexes' keys, behind its own: the first of each name counts.
    types = {each["AttributeName"]: each["AttributeType"] for each in reversed(schema["attribute_definitions"])}
    roles: dict[str, Literal["hash", "range"]] = {"HASH": "hash", "RANGE": "range"}
    rules = [
        KeyRule(each["AttributeName"], types[each["AttributeName"]], roles[each["KeyType"]], index)
        for each in schema["key_schema"]
    ]
    return sorted(rules, key=lambda rule: rule.role)
