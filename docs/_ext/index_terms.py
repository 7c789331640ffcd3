"""What people search for, and the page about it: main entries of the index, which the search puts first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sphinx import addnodes
from sphinx.errors import ExtensionError

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

#: In the plural, which is found by the singular too; by page, or heading of a page.
TERMS: Final = {
    "how-to/apply-each-message-once": ("exactly-once", "deduplication", "partial batch responses"),
    "explanation/concepts#lost-updates-optimistic-and-pessimistic-locking": ("lost updates", "pessimistic locking"),
    "explanation/concepts#queue-ticket-and-fencing-token": ("fencing tokens",),
    "how-to/disjoint-intervals": ("exclusion constraints",),
    "how-to/choose-lease-and-wait": ("blocking", "timeout"),
    "how-to/elect-a-leader": ("leader election",),
    "how-to/expire-items": ("TTL",),
    "how-to/hot-keys": ("hot keys", "lock contention"),
    "how-to/idempotency": ("idempotency keys",),
    "how-to/large-transactions": ("two-phase commit", "2PC"),
    "how-to/lock-a-range": ("predicate locks",),
    "how-to/lock-several": ("deadlocks",),
    "how-to/lock-without-an-item": ("distributed locks", "mutexes"),
    "how-to/move-money": ("ACID", "with_for_update", "write skew"),
    "how-to/operate": ("runbooks",),
    "how-to/outbox": ("transactional outbox",),
    "how-to/query-in-a-transaction": ("phantoms", "serializable"),
    "how-to/run-once": ("cron", "multiple machines", "multiple servers", "CronJobs", "EventBridge", "scheduled jobs"),
    "how-to/set-up": ("IAM policies",),
    "how-to/share-a-lock": ("reader-writer locks", "readers-writer locks", "semaphores"),
    "how-to/unique-values": ("unique constraints",),
    "how-to/use-versions": ("optimistic locking", "optimistic concurrency control", "StaleDataError", "version_id_col"),
    "how-to/use-with-asyncio": ("gevent",),
    "how-to/watch-and-break": ("force unlock", "unlock"),
    "how-to/web-frameworks": ("ETags",),
    "how-to/work-queue": ("SKIP LOCKED", "work queues"),
}


def add_terms(app: Sphinx, document: nodes.document) -> None:
    """Add the entries of a page to it."""
    page = app.env.docname
    for place, terms in TERMS.items():
        name, _, anchor = place.partition("#")
        if name != page:
            continue
        if anchor and anchor not in document.ids:
            message = f"{page} has no heading #{anchor}"
            raise ExtensionError(message)
        entries = [("single", term, anchor, "main", None) for term in terms]
        document.insert(0, addnodes.index(entries=entries))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect it."""
    app.connect("doctree-read", add_terms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
