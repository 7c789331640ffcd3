"""``llms.txt``: every page, by section of the sidebar, with its title, a link, and the first sentence of its text."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

FIRST_SENTENCE: Final = re.compile(r".+?(?:[.!?](?= |$)|(?=:(?: |$)))")


def first_sentence(document: nodes.document) -> str:
    """Return the one that a page begins with; none if it begins with a list or a table."""
    for paragraph in document.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            found = FIRST_SENTENCE.match(" ".join(paragraph.astext().split()))
            return found[0] if found else ""
    return ""


def pages(app: Sphinx, page: str) -> Iterator[str]:
    """Yield a page, and those below it."""
    yield page
    for below in app.env.toctree_includes.get(page, ()):
        yield from pages(app, below)


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the file next to the landing page."""
    if error is not None or app.builder.name != "html":
        return
    lines = [f"# {app.config.project}", "", f"> {importlib.metadata.metadata(app.config.project)['Summary']}"]
    for tree in app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree):
        lines += ["", f"## {tree['caption']}", ""]
        for page in (page for entry in tree["includefiles"] for page in pages(app, entry)):
            link = f"[{app.env.titles[page].astext()}]({app.config.html_baseurl}{app.builder.get_target_uri(page)})"
            lines.append(f"- {link}: {first_sentence(app.env.get_doctree(page))}".removesuffix(": "))
    Path(app.outdir, "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect it."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
