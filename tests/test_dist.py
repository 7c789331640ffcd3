"""The distributions: what their metadata says of the project, and when they may go to an index."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hatchling.build
import pytest
from packaging.metadata import RawMetadata, parse_email

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[1]
ADDRESS: Final = "https://example.com/somebody/pynamo-locking"
VERSION: Final = importlib.metadata.version("pynamo-locking")
SOURCE: Final = Path("pynamo_locking", "_core", "project.py")
TREE: Final = ["CHANGELOG.md", "LICENSE", "Makefile", "README.md", "hatch_build.py", "pyproject.toml", SOURCE]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the metadata is made of."""
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def metadata(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], RawMetadata]:
    """Make it, as pip does before it installs."""

    def make() -> RawMetadata:
        monkeypatch.chdir(tree)
        made = tree / hatchling.build.prepare_metadata_for_build_wheel(str(tree)) / "METADATA"
        raw, unknown = parse_email(made.read_bytes())
        assert unknown == {}
        return raw

    return make


def set_address(tree: Path, address: str) -> None:
    """Do what CONTRIBUTING.md asks for before the first release; or take it back."""
    file = tree / SOURCE
    text, found = re.subn(r'(?m)^ADDRESS: Final = ".*"$', f'ADDRESS: Final = "{address}"', file.read_text("utf-8"))
    assert found == 1
    file.write_text(text, encoding="utf-8")


def test_without_an_address_nothing_is_linked(tree: Path, metadata: Callable[[], RawMetadata]) -> None:
    """Rather than to somewhere else: no addresses, and a README whose links to files are their words."""
    set_address(tree, "")
    made = metadata()
    assert made.get("project_urls", {}) == {}
    assert "](docs/" not in made["description"]
    assert "](CONTRIBUTING" not in made["description"]
    assert "| notice that another process has changed my item | `VersionAttribute`: another" in made["description"]
    assert "for [PynamoDB](https://github.com/pynamodb/PynamoDB) models" in made["description"]


def test_one_constant_is_the_address_of_all_links(tree: Path, metadata: Callable[[], RawMetadata]) -> None:
    """Those of the metadata, and of README and its pictures to the files of the release."""
    set_address(tree, ADDRESS)
    made = metadata()
    version, text = made["version"], made["description"]
    assert made["project_urls"] == {
        "Source": ADDRESS,
        "Documentation": f"{ADDRESS}/tree/v{version}/docs",
        "Changelog": f"{ADDRESS}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
    }
    assert f"[Guarantees]({ADDRESS}/blob/v{version}/docs/explanation/guarantees.md)" in text
    assert f"under locks, none]({ADDRESS}/raw/v{version}/docs/pictures/demo.svg)" in text
    assert "for [PynamoDB](https://github.com/pynamodb/PynamoDB) models" in text


def make_dist(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run it where nothing can be built: there is no Python."""
    command = ["make", "dist", "UPLOAD=1", "PYTHON=no-python"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.processes
def test_nothing_is_made_for_upload_before_all_is_decided(tree: Path) -> None:
    """One after the other: the address, what the pages say of installing it, the date of the release."""
    set_address(tree, "")
    for page in ("README.md", "testing/README.md", "docs/tutorial.md"):
        (tree / page).parent.mkdir(exist_ok=True)
        (tree / page).write_text("The package is on PyPI.")
    (tree / "docs" / "tutorial.md").write_text("In a clone: `pip install .`")
    (tree / "CHANGELOG.md").write_text("## First release (unreleased)\n")
    done = make_dist(tree)
    assert done.returncode != 0
    assert "Not for upload: the project has no address yet. Set ADDRESS in " in done.stderr

    set_address(tree, ADDRESS)
    assert "Not for upload: these lines say that there is no release." in make_dist(tree).stderr

    (tree / "docs" / "tutorial.md").write_text("Install it.")
    change(tree / "pyproject.toml", f'version = "{VERSION}"', 'version = "7.8.9"')
    assert "Not for upload: CHANGELOG.md has no section of 7.8.9 with its date." in make_dist(tree).stderr

    (tree / "CHANGELOG.md").write_text("## 7.8.9 (2026-12-24)\n")
    done = make_dist(tree)
    assert "no-python" in done.stderr, "the build begins"
    assert "Not for upload" not in done.stderr


def test_both_distributions_have_one_version() -> None:
    """The test doubles replace private parts of the package, which names them in an extra."""
    assert importlib.metadata.version("pynamo-locking-testing") == VERSION
    assert f"pynamo-locking=={VERSION}" in (importlib.metadata.requires("pynamo-locking-testing") or [])
    named = [each for each in importlib.metadata.requires("pynamo-locking") or [] if "testing" in each]
    assert named == [f"pynamo-locking-testing=={VERSION}; extra == 'testing'"]
