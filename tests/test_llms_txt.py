"""docs/_ext/llms_txt.py: what a build of the documentation says of its pages in one file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

pytest.importorskip("sphinx", reason="installed by `make docs` and `make set-up`")

pytestmark = pytest.mark.processes

EXTENSIONS: Final = Path(__file__).parents[1] / "docs/_ext"
SITE: Final = {
    "conf.py": f"""
        import sys
        sys.path.insert(0, {str(EXTENSIONS)!r})
        project = "pynamo-locking"
        extensions = ["llms_txt"]
        """,
    "index.rst": """
        Home
        ====

        .. toctree::
           :caption: Guides

           guide
           listed

        .. toctree::
           :caption: Reference

           api
        """,
    "guide.rst": """
        Use *versions*
        ==============

        Version 1.2 of ``x`` is
        old. More follows.
        """,
    "listed.rst": """
        Only a list
        ===========

        * An entry. It is not about the page.
        """,
    "api.rst": """
        API
        ===

        .. toctree::
           :hidden:

           api/locks

        Each name is here:

        * one
        """,
    "api/locks.rst": """
        Locks
        =====

        Is it held? Ask.
        """,
}


def build(directory: Path, files: Mapping[str, str]) -> Path:
    """Build a site of these files, and return where it is."""
    for name, text in files.items():
        path = directory / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub("^ {8}", "", text, flags=re.MULTILINE), encoding="utf-8")
    site = directory / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(directory / "source"), str(site)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    return site


def test_each_page_has_a_line(tmp_path: Path) -> None:
    """With its title, a link that leads to it, and its first sentence, below the section of the sidebar."""
    site = build(tmp_path, SITE)
    text = (site / "llms.txt").read_text(encoding="utf-8")
    title, summary, *sections = text.strip().split("\n\n")
    assert title == "# pynamo-locking"
    assert summary.startswith("> Distributed locks")
    assert sections == [
        "## Guides",
        "- [Use versions](guide.html): Version 1.2 of x is old.\n- [Only a list](listed.html)",
        "## Reference",
        "- [API](api.html): Each name is here\n- [Locks](api/locks.html): Is it held?",
    ]
    links = re.findall(r"\]\((.*?)\)", text)
    assert [link for link in links if not (site / link).is_file()] == []


def test_a_host_has_whole_links(tmp_path: Path) -> None:
    """A reader may have the file without the address that it comes from."""
    config = SITE["conf.py"] + 'html_baseurl = "https://docs.example.org/en/stable/"\n'
    text = (build(tmp_path, {**SITE, "conf.py": config}) / "llms.txt").read_text(encoding="utf-8")
    assert "- [Locks](https://docs.example.org/en/stable/api/locks.html): " in text
