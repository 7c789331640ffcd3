""".github/workflows: GitHub runs what `.ci/run` runs, and every action is a commit that is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[1]
WORKFLOWS: Final = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKE: Final = re.compile(r"^(?:\w+=\w+ )*make ((?:[\w=-]+ ?)+)$", re.MULTILINE)


def targets(script: str) -> set[str]:
    """What `make` is called with, without options and variables."""
    words = {word for call in MAKE.findall(script) for word in call.split()}
    return {word for word in words if not word.startswith("-") and "=" not in word}


def commands(workflow: str) -> str:
    """The command lines of a workflow, with each value of its matrix in them."""
    parsed: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{workflow}.yml").read_text(encoding="utf-8"))
    lines = []
    for job in parsed["jobs"].values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        for step in job.get("steps", ()):
            lines += [step.get("run", "").replace("$TARGETS", row.get("targets", "")) for row in rows]
    return "\n".join(lines)


def test_github_runs_what_one_machine_runs() -> None:
    """And the oldest dependencies beside it, for which another Python is needed."""
    here = targets((ROOT / ".ci/run").read_text(encoding="utf-8"))
    assert {"lint", "docs", "test", "test-all"} < here
    assert targets(commands("tests")) == here - {"set-up", "engines"} | {"check-wheel"}


def test_a_release_is_what_make_dist_builds() -> None:
    """`UPLOAD=1` refuses what is not ready for an index."""
    assert re.findall("^make .*", commands("release"), re.MULTILINE) == ["make dist UPLOAD=1"]


@pytest.mark.parametrize("workflow", [path.stem for path in WORKFLOWS])
def test_each_target_exists(workflow: str) -> None:
    """In the Makefile."""
    called = targets(commands(workflow))
    assert called
    assert (
        called - set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)) == set()
    )


def test_each_supported_python_is_tested() -> None:
    """From the oldest that the metadata allow, without a gap."""
    text = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    rows = re.findall(r'system: ubuntu\S+ python: "3\.(\d+)", targets: test \}', text)
    oldest = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert oldest
    assert [int(minor) for minor in rows] == list(range(int(oldest[1]), int(oldest[1]) + len(rows)))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_pinned_by_its_commit(workflow: Path) -> None:
    """With its version beside it, for people. A tag can be moved."""
    uses = re.findall(r"uses: (?!\$/)(.*)", workflow.read_text(encoding="utf-8"))
    assert uses
    assert [use for use in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []
