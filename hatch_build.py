"""What the metadata says of the project's address: its links, and those of README as an index shows it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Makes them of `ADDRESS`, which is written in one place."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the links and the README; hatchling calls it as it reads pyproject.toml."""
        root = Path(self.root)
        address = runpy.run_path(str(root / "pynamo_locking/_core/project.py"))["ADDRESS"]
        tag = f"v{metadata['version']}"

        def link_to_the_release(link: re.Match[str]) -> str:
            mark, words, file = link.groups()
            if not address:  # rather than a link to nowhere
                return words
            return f"{mark}[{words}]({address}/{'raw' if mark else 'blob'}/{tag}/{file})"

        # Links and pictures that lead to a file of the repository, not to the web and not to a heading.
        to_files = r"(!?)\[([^\[\]]*)\]\((?!https?:|#)([^()\s]+)\)"
        readme = re.sub(to_files, link_to_the_release, (root / "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
        if address:
            metadata["urls"] = {
                "Source": address,
                "Documentation": f"{address}/tree/{tag}/docs",
                "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
