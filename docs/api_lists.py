"""Rewrites the lists of names that the pages of the API reference begin with: `python -m docs.api_lists`.

A reader of a clone sees them, where Sphinx has built nothing. What stands behind a name is the first sentence of its
docstring.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

PAGES: Final = sorted((Path(__file__).parent / "reference/api").glob("*.md"))
BEGIN: Final = "<!-- names: python -m docs.api_lists -->\n"
END: Final = "<!-- end of names -->\n"
DIRECTIVE: Final = re.compile(r"^\.\. auto(?:class|exception|function):: (\S+)\n((?:   .*\n|\n)*)", re.MULTILINE)
SENTENCE: Final = re.compile(r".+?(?:[.!?](?= [A-Z`]|$)|:(?=:?$))")


def documented(text: str) -> Iterator[tuple[str, Any, list[str] | None]]:
    """Yield each class and function of a page with its name, and the members that the page lists, in order.

    None in place of a list for all members that are its own.
    """
    for name, below in DIRECTIVE.findall(text):
        module, _, attribute = name.rpartition(".")
        options = re.search(r"^   :members:(.*)$", below, re.MULTILINE)
        listed = re.findall(r"\w+", options[1]) if options else []
        listed += re.findall(r"^   \.\. auto\w+:: (\w+)$", below, re.MULTILINE)
        takes_all = options is not None and not listed
        yield name, getattr(importlib.import_module(module), attribute), None if takes_all else listed


def own_members(of: type) -> list[str]:
    """Return what a class defines for its users, in the order of the source."""
    members = [(name, value) for name, value in vars(of).items() if not name.startswith("_")]
    return [name for name, value in members if callable(value) or isinstance(value, (property, classmethod))]


def first_sentence(thing: object) -> str:
    """Return that of a docstring."""
    text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    found = SENTENCE.match(text)
    return (found[0] if found else text).rstrip(":").removesuffix(".") + "."


def both(name: str, names: Container[str]) -> str | None:
    """Return a name and that of its awaited form, as code; None for an awaited form, which stands with its twin."""
    module, dot, last = name.rpartition(".")
    if last.startswith("a") and f"{module}{dot}{last[1:]}" in names:
        return None
    awaited = f"{module}{dot}a{last}"
    return f"`{name}`, `{awaited}`" if awaited in names else f"`{name}`"


def list_of(text: str) -> str:
    """Return the list for a page: classes and functions by where they are imported from, with members below."""
    things = {name: (thing, members) for name, thing, members in documented(text)}
    lines = []
    for name, (thing, listed) in things.items():
        if (code := both(name, things)) is not None:
            lines.append(f"* {code}: {first_sentence(thing)}\n")
        members = own_members(thing) if listed is None else listed
        named = [(code, member) for member in members if (code := both(member, members)) is not None]
        lines += [f"  * {code}: {first_sentence(inspect.getattr_static(thing, each))}\n" for code, each in named]
    return "".join(lines)


def with_list(text: str) -> str:
    """Return a page with its list as it should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{list_of(text)}\n{END}{after}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_list(page.read_text(encoding="utf-8")), encoding="utf-8")
