"""Settings of Sphinx. Nothing here needs the network."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.pycode import ModuleAnalyzer

from pynamo_locking._core.transactions import AbortReason
from pynamo_locking._core.write_outcome import Resolution
from pynamo_locking._recipes.idempotency import OnAbandoned
from pynamo_locking_testing.faults import ThrottlingLimit

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "pynamo-locking"
author = "the pynamo-locking maintainers"
project_copyright = author
version = release = importlib.metadata.version("pynamo-locking")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "api_links",
    "index_terms",
    "llms_txt",
]
exclude_patterns = ["_build", "explanation/design-choices.md"]

html_theme = "furo"
# The one of the theme underlines names in code, as links are.
pygments_dark_style = "github-dark"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
html_title = f"{project} {release}"
html_logo = html_favicon = "_static/logo.svg"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["sidebar.js"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0f766e", "color-brand-content": "#0f766e"},
    "dark_css_variables": {"color-brand-primary": "#5eead4", "color-brand-content": "#5eead4"},
}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

# In docstrings, `x` is code: they are read in editors more often than here.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 88
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# Types in signatures that have no page of their own to lead to.
nitpick_ignore_regex = [
    # The standard library's and PynamoDB's pages are elsewhere, and nothing is fetched during a build.
    (r"py:.*", r"(collections\.abc\.|contextlib\.|datetime\.|logging\.|threading\.|typing\.|pynamodb\.).*"),
    (r"py:.*", r"TracerProvider|MeterProvider|Flask|Request|Response|Starlette"),
    (r"py:.*", r"((Abstract)?(Async)?ContextManager|Any|Callable|Event|Iterator|Mapping|Self|TracebackType)(\[.*)?"),
    (r"py:.*", r"(Exception|TimeoutError|ValueError|bool|dict|float|int|object|str|tuple|type|None)(\[.*)?"),
    (r"py:.*", r"(\w*Action|BatchWrite|Condition|Connection|DoesNotExist|Index|Model|ResultIterator|TransactWrite)"),
    (r"py:.*", r"(Number|Unicode)Attribute"),
    (r"py:.*", r"\w+(Error|Exception)"),
    # No private type of the package: it would be shown to readers.
    (r"py:.*", r"timedelta|asyncio\.CancelledError|AsyncResult|datetime|tzinfo|Path"),
    # Type variables.
    (r"py:.*", r"(pynamo_locking\.(\w+\.)*)?_?[MPRT]"),
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
        "intervals.Intervals",
        "Lock",
        "LockableMixin",
        "LockableModel",
        "inspection.LockState",
        "NamedLock",
        "transactions.CommitPlan",
        "transactions.Savepoint",
        "transactions.SweepReport",
        "TransactionTable",
        "VersionedMixin",
        "contrib.django.middleware.LocksMiddleware",
        "contrib.celery.TaskClaims",
        "unique.UniqueTable",
    )
} | {f"pynamo_locking_testing.{name}" for name in ("SimulatedProcess", "TimeSource", "World")}


def describe_property(_app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Keep Napoleon from taking the text before a colon in a property's first line for its type."""
    if what == "property":
        lines[:] = ["..", "", *lines]  # an empty comment


#: Private names of choices, which are shown in their place.
LITERALS = {
    "AbortReason": AbortReason,
    "OnAbandoned": OnAbandoned,
    "Resolution": Resolution,
    "ThrottlingLimit": ThrottlingLimit,
}
#: And those for which another type is shown below.
PRIVATE = r"Block|CommitPath|Duration|Edit|GuardedMixin|LambdaContext|LockMode|Once|Seconds|Serializer|WriteIntent"

#: How signatures are read by people: patterns, and what stands there instead.
PLAIN = {
    rf"~?\bpynamo_locking\.[\w.]+\.(?=(?:{'|'.join(LITERALS)}|{PRIVATE})\b)": "",
    r"~?\b(typing|datetime|collections\.abc|contextlib)\.(?=[A-Z]|timedelta)": "",
    r"(\*\*\w+): Unpack\[\w+\]": r"\1",
    r"(?<=\w): Any(?=[,)])": "",
    r"(?<=\w): Any = ": "=",
    r"\bfloat \| int \| timedelta\b|\b(Duration|Seconds)\b": "float | timedelta",
    r"\bKEEP_S\b|\b86_?400\.0\b": "86400",
    r"\b(\d+)\.0\b": r"\1",
    r"\bOnce\[Self\]": "ContextManager[OnceRun]",
    r"\b(Block|Edit)\[": "ContextManager[",
    r"\b_R\b": "Self",
    r"\bGuardedMixin\b": "Model",
    r"\bCommitPath\b": "str",
    r"\b(LockMode|WriteIntent)\b": "object",
    r": (Serializer|LambdaContext \| None) = ": "=",
    r"\b_request\b": "request",
    **{rf"\b{name}\b": str(alias).removeprefix("typing.") for name, alias in LITERALS.items()},
    r"\b_([A-Z])\b": r"\1",
}


def plain_signature(
    _app: Sphinx, what: str, name: str, obj: object, _options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Show what a caller passes and gets.

    Leave out how to make an error, which is caught, an event, which is heard, and what is in `NOT_CALLED`; and what
    only a type checker wants to know.
    """
    is_event = what == "class" and name.startswith("pynamo_locking.events.")
    if what == "exception" or name in NOT_CALLED or is_event:
        return "", None
    code = getattr(obj, "__code__", None)
    if returned and code is not None and code.co_filename == contextlib.__file__:
        returned = re.sub(r"^(Async)?(Iterator|Generator)\[", r"\1ContextManager[", returned)
    signature, returned = signature and plain(signature), returned and plain(returned)
    return signature, None if returned == "Any" else returned


def plain(text: str) -> str:
    """Write types as people read them."""
    for pattern, replacement in PLAIN.items():
        text = re.sub(pattern, replacement, text)
    return text


def plain_types(_app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Show the types of attributes as those in signatures."""
    lines[:] = [plain(line) if ":type:" in line else line for line in lines]


def forget_overloads(_app: Sphinx) -> None:
    """Show one signature, which the hooks above see, where a function has one for each type of its arguments."""
    for name in ("_locks.locked_all", "_transactions.begin", "_transactions.async_transaction"):
        analyzer = ModuleAnalyzer.for_module(f"pynamo_locking.{name}")
        analyzer.analyze()
        analyzer.overloads.clear()


def name_plots(_app: Sphinx, document: nodes.document) -> None:
    """Give the plots of benchmarks a class: a dark page inverts their colours."""
    for image in document.findall(nodes.image):
        if "benchmarks/" in image["uri"] or ("/" not in image["uri"] and image["uri"].endswith(".svg")):
            image["classes"].append("plot")


def setup(app: Sphinx) -> None:
    """Connect them. Napoleon has priority 500."""
    app.connect("doctree-read", name_plots)
    app.connect("autodoc-process-docstring", describe_property, priority=400)
    app.connect("autodoc-process-docstring", plain_types, priority=600)
    app.connect("autodoc-process-signature", plain_signature)
    app.connect("builder-inited", forget_overloads)
