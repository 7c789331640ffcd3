"""The pages that describe the protocol say what the table of its conditions and changes says, clause by clause."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final

import pytest

from pynamo_locking._io import protocol
from pynamo_locking._io.protocol import Clause
from pynamo_locking.exceptions import LockLost
from pynamo_locking_testing import MemoryClient, MemoryDynamoDB, VirtualClock
from tests.support.models import declare
from tests.support.parties import in_thread

PAGES: Final = [
    Path(__file__).parents[3] / "docs" / "explanation" / name for name in ("protocol.md", "transactions.md")
]

#: The clauses that functions make, each as an example.
MADE: Final = {
    "EVICT": protocol.evict(1, 1),
    "APPLY_INTENT": protocol.apply_intent(1, 1),
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


# From the page alone: the requests of two callers, of whom the first is paused


Tally = declare("Tally", hash_key="pk", numbers="n", lock=True)
#: What the page says of the number of the format.
STORES_FORMAT: Final = {"ENQUEUE", "RENEW", "EVICT"}
WHOLE_MAP: Final = {"ENQUEUE_FIRST"}


def on_the_wire(*names: str) -> tuple[set[str], set[str]]:
    """Conditions and changes that the page has under these names, with the placeholders of its table."""
    said = [of_the_pages()[name] for name in names]
    if not WHOLE_MAP & {*names}:
        said.append(of_the_pages()["FORMAT_KEPT" if STORES_FORMAT & {*names} else "KNOWN_FORMAT"])
    conditions = {part for each in said for part in each.get("IF", "").split(" AND ") if part}
    changes = {part for each in said for verb in ("SET", "REMOVE") for part in split_changes(each.get(verb, ""))}
    return {placeholders(part) for part in conditions}, {placeholders(part) for part in changes}


def split_changes(text: str) -> list[str]:
    """At commas outside of parentheses."""
    return [part for part in re.split(r", (?![^(]*\))", text) if part]


def placeholders(text: str) -> str:
    for there, here in (
        ("lock.queue.#me.ticket", "#l.#q.#me[0]"),
        ("lock.queue.#e0.ticket", "#l.#q.#e0[0]"),
        ("#me.beat", "#me[1].#b"),
        ("#e0.beat", "#e0[1].#b"),
        ("#me.renewed", "#me[1].#r"),
        ("#me.granted", "#me[1].#g"),
        ("#me.writes", "#me[1].#w"),
        ("lock.tx.format", "#l.#tx.#f"),
        ("lock.tx", "#l.#tx"),
        ("lock.format", "#l.#f"),
        ("lock.next", "#l.#n"),
        ("lock.queue", "#l.#q"),
        ("lock.evicted", "#l.#evicted"),
    ):
        text = text.replace(there, here)
    return re.sub(r"\block\b", "#l", re.sub(r"\bkey\b", "#h", text))


def sent(call: tuple[str, dict[str, Any]]) -> tuple[set[str], set[str]]:
    """The same of a request, without what the item itself gets."""
    _, request = call
    changes = re.split(r"(?:^| )(?:SET|REMOVE|ADD) ", request["UpdateExpression"])
    parts = {part for text in changes for part in split_changes(text) if not re.match(r"#\d+ (= |:)", part)}
    asked = request["ConditionExpression"].split(" AND ")
    return {part for part in asked if not re.fullmatch(r"\(?#\d+ = :\d+\)?", part)}, parts


def test_the_requests_of_a_crash_and_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the pictures of the page: enter, poll, evict, a fenced save, and the save that comes too late."""
    calls: list[tuple[str, dict[str, Any]]] = []
    real = MemoryClient._make_api_call

    def log(self: MemoryClient, operation: str, arguments: dict[str, Any]) -> Any:
        calls.append((operation, arguments))
        return real(self, operation, arguments)

    with MemoryDynamoDB(), VirtualClock() as clock:
        Tally.create_table()
        Tally("a", n=0).save()
        monkeypatch.setattr(MemoryClient, "_make_api_call", log)
        paused = in_thread(Tally.locked("a", heartbeat=False, lease=60).acquire)
        item = paused.item
        with clock.another_process(), Tally.edit("a", wait=100) as other:
            other.n = 1
        item.n = 2
        with pytest.raises(LockLost):
            item.save()

    polls = [request for operation, request in calls if operation == "GetItem"]
    assert polls
    assert not any(request["ConsistentRead"] or "ProjectionExpression" in request for request in polls)
    writes = [call for call in calls if call[0] != "GetItem"]
    assert all(request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD" for _, request in writes)
    renewals = [call for call in writes if sent(call) == on_the_wire("RENEW")]
    assert [sent(call) for call in writes if call not in renewals] == [
        on_the_wire("ENQUEUE"),
        on_the_wire("ENQUEUE_FIRST"),
        on_the_wire("ENQUEUE"),
        on_the_wire("EVICT"),
        on_the_wire("FENCE", "REMOVE_ENTRY"),
        on_the_wire("FENCE", "COUNT_WRITE"),
    ]
    assert renewals
    returned = [call[1].get("ReturnValues") for call in writes if call not in renewals]
    assert returned == ["ALL_NEW", "ALL_NEW", "ALL_NEW", "ALL_NEW", None, None]
