"""The pages that describe the protocol say what the table of its conditions and changes says, clause by clause."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Final

import pytest

from pynamo_locking._io import protocol
from pynamo_locking._io.protocol import Clause

PAGES: Final = [
    Path(__file__).parents[3] / "docs" / "explanation" / name for name in ("protocol.md", "transactions.md")
]

#: The clauses that functions make, each as an example.
MADE: Final = {
    "EVICT": protocol.evict(1, 1),
    "APPLY_INTENT": protocol.apply_intent(1, 1),
    "CHANGE_ROW": protocol.change_row(("beat",), ("content",), ("state",)),
}
CLAUSES: Final = {
    **{name: each for name, each in vars(protocol).items() if isinstance(each, Clause) and not name.startswith("_")},
    **MADE,
}

#: The words of the pages for placeholders of one letter; a longer one is its own word.
WORDS: Final = {
    "l": "lock",
    "h": "key",
    "n": "next",
    "q": "queue",
    "b": "beat",
    "r": "renewed",
    "g": "granted",
    "w": "writes",
    "f": "format",
}
#: What each request gives a name for stays a placeholder: entries, slots of evicted tickets, attributes of an intent.
GIVEN: Final = re.compile(r"(me|you|[esr]\d)$")

#: The pages say once, under these names, that each condition and change has them.
SAID_ONCE: Final = {"KNOWN_FORMAT", "SET_FORMAT", "FORMAT_KEPT", "KNOWN_ROW_FORMAT"}


def in_words(text: str) -> str:
    """The words of the pages: an entry of the queue is a list of its ticket and a map of the rest."""
    text = re.sub(r"(#(?:me|you|e\d))\[0\]", r"\1.ticket", text)
    text = re.sub(r"(#(?:me|you|e\d))\[1\]", r"\1", text)
    return re.sub(r"#(\w+)", lambda found: found[0] if GIVEN.match(found[1]) else WORDS.get(found[1], found[1]), text)


def without_formats(parts: dict[str, str]) -> dict[str, str]:
    """Leave out what the pages say once."""
    for path in ("lock.format", "format"):
        known = f"(attribute_not_exists({path}) OR {path} <= :format)"
        kept = f"{path} = if_not_exists({path}, :format)"
        asked = re.sub(rf" AND {re.escape(known)}|{re.escape(known)}( AND )?", "", parts.get("IF", ""))
        changed = re.sub(rf", {re.escape(kept)}|(?<!\.){re.escape(kept)}(, )?", "", parts.get("SET", ""))
        parts = {**parts, "IF": asked, "SET": changed}
    return parts


def of_the_table(name: str) -> dict[str, str]:
    clause = CLAUSES[name]
    parts = {"SET": clause.set_, "REMOVE": clause.remove, "ADD": clause.add, "IF": clause.if_}
    said = {verb: in_words(text) for verb, text in parts.items()}
    return {verb: text for verb, text in (said if name in SAID_ONCE else without_formats(said)).items() if text}


@functools.cache
def of_the_pages() -> dict[str, dict[str, str]]:
    """Each clause on its page: a line with its name, then indented lines, of which the first words are verbs."""
    found: dict[str, dict[str, str]] = {}
    for page in PAGES:
        for block in re.findall(r"^```text\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            if not re.match(r"[A-Z_]+\b.*\n  (SET|REMOVE|ADD|IF) ", block):
                continue
            for name, text in re.findall(r"^([A-Z_]+)\b.*\n((?:  .*\n)+)", block, re.MULTILINE):
                assert name not in found, f"{name} is on two pages, or twice on one"
                parts = re.findall(r"^  ([A-Z]+) +(.*\n(?:   .*\n)*)", text, re.MULTILINE)
                found[name] = {verb: " ".join(said.split()) for verb, said in parts}
    return found


@pytest.mark.parametrize("name", CLAUSES)
def test_the_page_says_what_the_table_says(name: str) -> None:
    assert of_the_pages().get(name) == of_the_table(name), f"{name} is described otherwise than it is sent"


def test_the_pages_have_no_other_clause() -> None:
    assert sorted(of_the_pages().keys() - CLAUSES.keys()) == []
