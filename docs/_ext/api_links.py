"""Links from code in the text to the entries of the API reference.

A code span that names one documented object becomes a link to its entry: ``Model.locked``, ``edit()``, ``LockTimeout``,
``await lock.arenew()``. The first one in each section is enough. What could be several objects stays text. A link that
leads to the page of an entry leads to the entry.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sphinx.application import Sphinx
    from sphinx.domains.python import ObjectEntry

SPAN: Final = re.compile(r"(?:(?:async )?with |await |@)?((?:\w+\.)*)(\w+)(\((?:[^()]|\([^()]*\))*\))?")
#: What examples call the objects of these classes. `Model`: a model of the user's.
VARIABLES: Final = {
    **dict.fromkeys(("tx", "transaction"), "Transaction"),
    **dict.fromkeys(("account", "booking", "item", "room", "row", "source"), "Model"),
    "Calls": "IdempotencyTable",
    "Transactions": "TransactionTable",
    "batch": "GuardedBatch",
    "call": "IdempotentCall",
    "campaign": "LeaderElection",
    "error": "OutcomeUnknown",
    "lock": "Lock",
    "run": "OnceRun",
    "term": "LeaderTerm",
    "virtual_clock": "VirtualClock",
}
MODEL: Final = ("VersionedMixin", "LockableMixin", "IntervalMixin", "NamedLock")
#: Names of methods that, alone and without parentheses, are words of other things.
WORDS: Final = {"call", "client", "close", "free", "handle", "jump", "lead", "once", "sleep", "start", "stop"}
#: In each of these a name is a link once.
PLACES: Final = (nodes.section, nodes.row, addnodes.desc)
#: A build in which these spans of these pages are no links fails.
EXPECTED: Final = (
    ("explanation/concepts", "StaleVersion", "pynamo_locking.exceptions.StaleVersion"),
    ("how-to/use-versions", "modify", "pynamo_locking.VersionedMixin.modify"),
    ("how-to/work-queue", "locked_first", "pynamo_locking.LockableMixin.locked_first"),
    ("how-to/share-a-lock", "downgrade", "pynamo_locking.Lock.downgrade"),
    ("how-to/query-in-a-transaction", "tx.scan", "pynamo_locking.transactions.Transaction.scan"),
    ("reference/errors", "LockLost", "pynamo_locking.exceptions.LockLost"),
    ("reference/api/models", "locked", "pynamo_locking.LockableMixin.locked"),
)


class Names:
    """The documented objects, by what texts call them."""

    def __init__(self, objects: Mapping[str, str]) -> None:
        """Take the kinds of objects by their full names."""
        self._kinds = objects
        self._by_end: dict[str, list[str]] = defaultdict(list)
        for full in objects:
            parts = full.split(".")
            for start in range(len(parts)):
                self._by_end[".".join(parts[start:])].append(full)

    def find(self, span: str) -> str | None:
        """Return the full name of the one object that a code span names."""
        match = SPAN.fullmatch(span)
        if match is None:
            return None
        owner, name, is_called = match[1].rstrip("."), match[2], match[3] is not None
        if owner.endswith(".intervals"):
            owner = "Intervals"
        if not owner:
            return self._alone(name, is_called=is_called)
        if found := self._by_end[f"{owner}.{name}"]:
            return found[0] if len(found) == 1 else None
        if owner[0].isupper() and owner != "Meta" and owner not in self._by_end:
            owner = VARIABLES.get(owner, "Model")
        else:
            owner = VARIABLES.get(owner, "")
        for each in MODEL if owner == "Model" else (owner,):
            if each and len(found := self._by_end[f"{each}.{name}"]) == 1:
                return found[0]
        return None

    def _alone(self, name: str, *, is_called: bool) -> str | None:
        found = [each for each in self._by_end[name] if not each.endswith(f".AsyncTransaction.{name}")]
        if len(found) != 1 or (name in WORDS and not is_called):
            return None
        # The names of attributes are words that texts use for other things.
        return None if self._kinds[found[0]] in {"attribute", "property"} else found[0]


@cache
def _names(app: Sphinx) -> tuple[Names, Mapping[str, ObjectEntry]]:
    objects = app.env.domains.python_domain.objects
    return Names({full: entry.objtype for full, entry in objects.items() if not entry.aliased}), objects


def link_names(app: Sphinx, document: nodes.document, page: str) -> None:
    """Make links of the code spans of a page."""
    names, objects = _names(app)
    done: set[tuple[int, str]] = set()
    for span in list(document.findall(nodes.literal)):
        full = names.find(span.astext())
        if full is None:
            continue
        entry, link, place = objects[full], _around(span, nodes.title, nodes.reference), _around(span, *PLACES)
        signature = place.next_node(addnodes.desc_signature) if isinstance(place, addnodes.desc) else None
        is_its_own = signature is not None and entry.node_id in signature["ids"]
        if isinstance(link, nodes.reference) and link.astext() == span.astext():
            # The text links the page of the entry: link the entry instead.
            if link.get("refuri") == app.builder.get_relative_uri(page, entry.docname):
                link["refuri"] += f"#{entry.node_id}"
                link["classes"].append("api")
                done.add((id(place), full))
        elif link is None and not is_its_own and (id(place), full) not in done:
            parent = span.parent
            link = make_refnode(app.builder, page, entry.docname, entry.node_id, [span.deepcopy()], full)
            link["classes"].append("api")
            parent.replace(span, link)
            done.add((id(place), full))


def _around(span: nodes.Node, *kinds: type[nodes.Node]) -> nodes.Element | None:
    around = span.parent
    while around is not None and not isinstance(around, kinds):
        around = around.parent
    return around


def check_links(app: Sphinx, error: Exception | None) -> None:
    """Fail if one of `EXPECTED` is no link in what was built."""
    if error is not None or app.builder.name != "html":
        return
    for page, span, full in EXPECTED:
        text = Path(app.outdir, f"{page}.html").read_text(encoding="utf-8")
        links = re.findall(rf'<a class="[^">]*\bapi\b[^>]*#{re.escape(full)}"[^>]*>(.*?)</a>', text)
        if span not in [re.sub(r"<[^>]+>", "", each).partition("(")[0] for each in links]:
            message = f"{page}: `{span}` is no link to {full}"
            raise ExtensionError(message)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect them."""
    app.connect("doctree-resolved", link_names)
    app.connect("build-finished", check_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
