"""What the metadata of the distributions says of the project's address, which is in one file of the package."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: A link or picture of the README that leads to a file of the repository.
RELATIVE_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?!https?:|#)([^()\s]+)\)")


def readme_of(text: str, address: str, version: str) -> str:
    """Lead its relative links to the files of this release at the address; without an address they are plain text."""

    def link(found: re.Match[str]) -> str:
        mark, words, path = found.groups()
        return f"{mark}[{words}]({address}/{'raw' if mark else 'blob'}/v{version}/{path})" if address else words

    return RELATIVE_LINK.sub(link, text)


class ProjectMetadata(MetadataHookInterface):
    """The links of an index, and its form of the README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what pyproject.toml calls dynamic."""
        root = Path(self.root)
        project = runpy.run_path(str(root / "pynamo_locking" / "_core" / "project.py"))
        address = project["ADDRESS"]
        metadata["urls"] = {}
        if address:
            metadata["urls"] = {
                "Source": address,
                "Documentation": f"{project['FILES']}/docs/index.md",
                "Changelog": f"{project['FILES']}/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        text = (root / "README.md").read_text(encoding="utf-8")
        readme = readme_of(text, address, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
