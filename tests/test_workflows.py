""".github/workflows: GitHub runs what `.ci/run` runs, and every action is a commit that is named."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
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
    """Those that the metadata name, from the oldest that they allow."""
    text = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    tested = re.findall(r'system: ubuntu\S+ python: "(3\.\d+)", targets: test \}', text)
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', metadata)
    assert f'requires-python = ">={named[0]}"' in metadata
    assert set(named) - set(tested) == set()


def test_what_runs_on_windows_is_there() -> None:
    """By pip and pytest, without make: with the group and the folders that are named."""
    [install] = re.findall(r"^python -m pip install (.*--group.*)", commands("tests"), re.MULTILINE)
    [call] = re.findall("^python -m pytest (.*)", commands("tests"), re.MULTILINE)
    assert install.split() == ["--editable", ".", "--editable", "testing", "--group", "test"]
    paths = [word for word in shlex.split(call) if word.startswith("tests/")]
    assert paths
    assert [path for path in paths if not (ROOT / path).is_dir()] == []


def prepared() -> dict[str, dict[str, Any]]:
    """Of each job that runs commands: the actions before its first command, and what they are told."""
    found = {}
    for workflow in WORKFLOWS:
        for name, job in yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].items():
            actions = list(itertools.takewhile(lambda step: "uses" in step, job.get("steps", ())))
            if len(actions) < len(job.get("steps", ())):
                found[name] = {step["uses"].partition("@")[0]: step.get("with") for step in actions}
    return found


def test_a_command_runs_in_a_clone_of_depth_1() -> None:
    """It is checked out, with the Python of the job; and of git, commands only ask which files it has."""
    assert {"check", "windows", "build"} <= set(prepared())
    for actions in prepared().values():
        assert actions["actions/checkout"] == {"persist-credentials": False}, "depth 1, as nothing else is said"
        assert actions["actions/setup-python"]["python-version"]
    files = [ROOT / "Makefile", *(ROOT / ".ci").iterdir()]
    asked = {word for file in files for word in re.findall(r"\bgit (?:-C \w+ )?([a-z-]+)", file.read_text("utf-8"))}
    assert asked == {"ls-files"}


@pytest.mark.processes
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_make_finds_all_that_it_needs_in_a_clone_of_depth_1(tmp_path: Path) -> None:
    """Each target of the workflows is planned there, without a file that git does not know."""
    clone = tmp_path / "clone"
    for command in (
        ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(clone)],
        ["make", "--dry-run", f"--directory={clone}", *sorted(targets(commands("tests")) | {"dist"})],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_pinned_by_its_commit(workflow: Path) -> None:
    """With its version beside it, for people. A tag can be moved."""
    uses = re.findall(r"uses: (?!\$/)(.*)", workflow.read_text(encoding="utf-8"))
    assert uses
    assert [use for use in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)] == []
