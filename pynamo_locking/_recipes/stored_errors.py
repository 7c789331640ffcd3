"""Errors that are results of a call: what of them is stored, and what a repeat raises."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Serializer(Protocol):
    """Turns a result into text and back. The module `json` is one."""

    def dumps(self, obj: Any, /) -> str: ...

    def loads(self, s: str, /) -> Any: ...


def name_of(kind: type) -> str:
    """Return the name of a class as a traceback shows it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def error_class_named(name: str, kinds: Iterable[type[Exception]]) -> type[Exception] | None:
    """Return the class of that name among classes and all classes that derive from them: of several, the newest."""
    found = None
    for kind in kinds:
        is_it = name_of(kind) == name
        found = error_class_named(name, type.__subclasses__(kind)) or (kind if is_it else None) or found
    return found


def facts_of(error: Exception) -> list[Any] | dict[str, Any]:
    """Return what an exception carries, as the text of a result keeps it: its arguments, and its attributes if any."""
    arguments, attributes = list(error.args), dict(vars(error))
    return arguments if not attributes else {"args": arguments, "attributes": attributes}


def made_again(kind: type[Exception], facts: Any) -> Exception:
    """Return an exception with these facts. Its `__init__` is not called: it may ask for other arguments."""
    arguments, attributes = (facts, {}) if isinstance(facts, list) else (facts["args"], facts["attributes"])
    error: Exception = kind.__new__(kind, *arguments)
    error.args = tuple(arguments)
    vars(error).update(attributes)
    return error


def _shown_by(value: object) -> dict[str, Any]:
    """Return everything that an object shows, also what its class keeps outside of `vars`: slots, fields in C."""
    shown = {"args": getattr(value, "args", None), **getattr(value, "__dict__", {})}
    for kind in type(value).__mro__:
        for name, attribute in vars(kind).items() if kind not in Exception.__mro__ else ():
            is_kept_apart = inspect.ismemberdescriptor(attribute) or inspect.isgetsetdescriptor(attribute)
            if is_kept_apart and not name.startswith("__"):
                shown[name] = getattr(value, name, None)
    return shown


#: Of values that are equal to themselves alone.
_NO_EQUALITY: Final[Any] = object.__eq__


def _is_alike(one: Any, other: Any) -> bool:
    """Tell whether two values are equal, and all parts have one type: JSON makes lists of tuples, and texts of keys."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        keys = {key: key for key in other}
        same = (key in keys and _is_alike((key, one[key]), (keys[key], other[key])) for key in one)
        return len(one) == len(other) and all(same)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_alike, one, other))
    if type(one).__eq__ is _NO_EQUALITY:
        return one is other or _is_alike(_shown_by(one), _shown_by(other))
    is_no_number = isinstance(one, float) and math.isnan(one) and math.isnan(other)
    return bool(one == other) or is_no_number


def why_not_again(error: Exception, kinds: tuple[type[Exception], ...], serializer: Serializer) -> str:
    """Say why a repeat would not raise an exception that is equal to this one; empty if it would."""
    if error_class_named(name_of(type(error)), kinds) is not type(error):
        return "another exception has its name"
    try:
        again = made_again(type(error), serializer.loads(serializer.dumps(facts_of(error))))
        shown, would_show = ({**_shown_by(each), "text": str(each)} for each in (error, again))
        other = next((name for name in shown if not _is_alike(shown[name], would_show.get(name))), None)
    except Exception as failure:  # noqa: BLE001 - of the caller's serializer, or of the caller's class
        return str(failure)
    if other is None:
        return ""
    would_be, was = (f"{each.get(other)!r:.80}" for each in (would_show, shown))
    differs = f"whose {other} is {would_be}, and not {was}" if would_be != was else f"whose {other} has other types"
    return f"a repeat would raise {again!r:.80}, {differs}"
