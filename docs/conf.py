"""Settings of Sphinx. Nothing here needs the network."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "pynamo-locking"
author = "the authors of pynamo-locking"
project_copyright = author
version = release = importlib.metadata.version("pynamo-locking")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = project
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]

myst_heading_anchors = 3
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

# In docstrings, `x` is code: they are read in editors more often than here.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Types in signatures that have no page of their own to lead to.
nitpick_ignore_regex = [
    # The standard library's and PynamoDB's pages are elsewhere, and nothing is fetched during a build.
    (r"py:.*", r"(collections\.abc\.|contextlib\.|datetime\.|logging\.|threading\.|typing\.|pynamodb\.).*"),
    (r"py:.*", r"TracerProvider|MeterProvider|Flask|Request|Response|Starlette"),
    (r"py:.*", r"(Abstract(Async)?ContextManager|Any|Callable|Event|Iterator|Mapping|Self|TracebackType)(\[.*)?"),
    (r"py:.*", r"(Exception|TimeoutError|ValueError|bool|dict|float|int|object|str|tuple|type|None)(\[.*)?"),
    (r"py:.*", r"(\w*Action|BatchWrite|Condition|DoesNotExist|Index|Model|ResultIterator|TransactWrite)"),
    (r"py:.*", r"\w+(Error|Exception)"),
    # Private names, and type variables.
    (
        r"py:.*",
        r"pynamo_locking\._.*|Block|Edit|(Lock|Transaction|Range)Keywords|Resolution|timedelta|asyncio\.CancelledError|[MT]|Duration",
    ),
    (
        r"py:.*",
        r"(pynamo_locking\.contrib\.(flask|django\.http|starlette)\.)?_[MPRT]|GuardedMixin|WriteIntent|Savepoint|Path",
    ),
    (r"py:.*", r"AsyncResult|Serializer|LambdaContext|datetime|tzinfo|AbortReason|RunStatus|Heartbeat|Once"),
]

#: Classes that are subclassed or handed out; nobody calls them with arguments.
NOT_CALLED = {
    f"pynamo_locking.{name}"
    for name in (
        "batches.BatchResult",
        "inspection.QueueEntry",
        "ExpiringMixin",
        "batches.GuardedBatch",
        "recipes.IdempotencyTable",
        "recipes.IdempotentCall",
        "recipes.LeaderElection",
        "recipes.LeaderTerm",
        "recipes.OnceRun",
        "recipes.RunRecord",
        "intervals.IntervalMixin",
        "Lock",
        "LockableMixin",
        "LockableModel",
        "inspection.LockState",
        "NamedLock",
        "transactions.CommitPlan",
        "transactions.SweepReport",
        "TransactionTable",
        "VersionedMixin",
        "contrib.django.middleware.LocksMiddleware",
        "telemetry.opentelemetry.Installation",
    )
}


def describe_property(_app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Keep Napoleon from taking the text before a colon in a property's first line for its type."""
    if what == "property":
        lines[:] = ["..", "", *lines]  # an empty comment


def hide_signature(
    _app: Sphinx, what: str, name: str, _obj: object, _options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Leave out how to make an error, which is caught, an event, which is heard, and what is in `NOT_CALLED`."""
    is_event = what == "class" and name.startswith("pynamo_locking.events.")
    return ("", None) if what == "exception" or name in NOT_CALLED or is_event else (signature, returned)


def setup(app: Sphinx) -> None:
    """Connect the two; the first before Napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", describe_property, priority=400)
    app.connect("autodoc-process-signature", hide_signature)
