"""Processes of two releases on the same locks, transactions and intervals, and kills: they understand each other.

One release is built from a commit, the other one from the working tree. Each is a wheel, installed in a folder of its
own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import fleet
from tests.support.fleet import BALANCE, MODELS, PURSES, Counter, Purse, Slot, Transactions
from tests.support.lengths import short_or_long
from tests.support.nursery import ROOT, Crew, Nursery, places_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.engine import Engine

pytestmark = [pytest.mark.alone, pytest.mark.long]

#: The other release: the last one, from 0.2 on. Until then the commit in which the numbers of the format arrived.
RELEASE: Final = "475e3fa8e852f9d9d1a65c00e87d15fe6af59267"

#: How long they work, in seconds.
LENGTH_S: Final = short_or_long(3.0, 20.0)

#: So many processes of each release.
PROCESSES: Final = 3
PATIENCE: Final = 60.0
BUILT: Final = Path(sys.prefix) / "releases"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(source: Path, folder: Path) -> Path:
    """Build a wheel of a source tree, and install it in a folder. Nothing is downloaded: hatchling is set up."""
    wheels = folder.with_suffix(".wheels")
    pip = (sys.executable, "-m", "pip", "--quiet", "--isolated", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", wheels, source)
    [wheel] = wheels.glob("*.whl")
    made = folder.with_suffix(f".{os.getpid()}")
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", "--target", made, wheel)
    made.rename(folder)
    return folder


def source_of(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a folder."""
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode != 0:
        pytest.fail(
            f"the commit {commit} is not in this clone, and the release to test against is built from it. Fetch the "
            f"whole history: git fetch --unshallow (in a workflow: actions/checkout with fetch-depth: 0)."
        )
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    run("git", "archive", "--output", archive, commit)
    run("tar", "-xf", archive, "-C", folder)
    return folder


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each release is installed."""
    made = tmp_path_factory.mktemp("releases")
    other = os.environ.get("FLEET_OTHER")  # another tree in the place of the release, to see the test fail
    earlier = BUILT / RELEASE
    if other:
        earlier = install(Path(other), made / "other")
    elif not earlier.exists():
        BUILT.mkdir(exist_ok=True)
        earlier = install(source_of(RELEASE, made / "source"), earlier)
    tree = made / "tree"
    tree.mkdir()
    shutil.copytree(ROOT / "pynamo_locking", tree / "pynamo_locking", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "_pynamo_locking_pytestplugin.py"):
        shutil.copy(ROOT / name, tree)
    return {"earlier": earlier, "working tree": install(tree, made / "now")}


@pytest.fixture
def crews(real_engine: Engine, releases: dict[str, Path], tmp_path: Path) -> Iterator[list[Crew]]:
    """Of each release, in a folder of that name, with tables and money."""
    real_engine.bind(*MODELS)
    Counter("a").save()
    for name in PURSES:
        Purse(name, balance=BALANCE).save()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    with contextlib.ExitStack() as stack:
        crews = []
        for release, place in releases.items():
            prepared = (fleet.prepare, place, places_of(real_engine, MODELS))
            nursery = Nursery(*prepared, path=str(place), environment=environment)
            folder = tmp_path / release
            folder.mkdir()
            crews.append(stack.enter_context(contextlib.closing(Crew(nursery, folder, PROCESSES, fleet.work, folder))))
        yield crews


def notes_of(crew: Crew) -> list[dict[str, Any]]:
    return [json.loads(line) for path in crew.folder.glob("*.log") for line in path.read_text().splitlines()]


@pytest.mark.timeout(LENGTH_S + 120)
def test_two_releases(crews: list[Crew]) -> None:
    """No update is lost, one process holds a lock, money stays the same, and no booking overlaps another one."""
    killed = disturb(crews)
    notes = sorted((note for crew in crews for note in notes_of(crew)), key=lambda note: note["at"])
    assert [note["why"] for note in notes if note["event"] == "refused" and not is_expected(note["why"])] == []
    check_counter(notes)
    check_holders(notes, killed)
    assert Transactions.sweep().failed == {}
    purses = [purse.balance for purse in Purse.scan(consistent_read=True)]
    assert (sum(purses), len(purses)) == (BALANCE * len(PURSES), len(PURSES))
    ends = sorted((slot.begin, slot.end) for slot in Slot.scan(consistent_read=True))
    assert [(one, after) for one, after in itertools.pairwise(ends) if after[0] < one[1]] == []


def disturb(crews: list[Crew]) -> dict[int, float]:
    """Let them work, and kill one now and then, until each has done everything; return when which was killed."""
    chooser, killed = random.Random(), dict[int, float]()
    began = time.monotonic()
    while time.monotonic() < began + LENGTH_S or missing(crews):
        assert time.monotonic() < began + LENGTH_S + PATIENCE, missing(crews)
        time.sleep(chooser.uniform(1.0, 2.0))
        dead = chooser.choice(crews).kill(chooser)
        killed[dead.pid] = time.monotonic()
    for crew in crews:
        crew.finish()
    return killed


def missing(crews: list[Crew]) -> list[tuple[str, str]]:
    """Return which kinds of work a release has not done yet."""
    done = {(crew, note["kind"]) for crew in crews for note in notes_of(crew) if note["event"] in ("applied", "left")}
    return [(crew.folder.name, kind) for crew in crews for kind in fleet.WORK if (crew, kind) not in done]


def is_expected(why: str) -> bool:
    """Tell whether an operation may end so beside others, and beside kills."""
    kinds = ("TransactionConflict", "TransactionAborted", "StaleVersion", "OverlapError", "LockTimeout", "LockLost")
    return why.startswith(kinds)


def check_counter(notes: list[dict[str, Any]]) -> None:
    """Each value was stored once, and what was answered is in it."""
    values = [note["value"] for note in notes if note["event"] == "applied" and note["kind"] == "count"]
    assert len(values) == len(set(values))
    begun = sum(note["event"] == "begin" and note["kind"] == "count" for note in notes)
    stored = int(Counter.get("a", consistent_read=True).value)
    assert max(values) <= stored <= begun
    assert len(values) <= stored


def check_holders(notes: list[dict[str, Any]], killed: dict[int, float]) -> None:
    """No two processes held a lock at one time, except one that has lost it; and tickets have only grown."""
    held = defaultdict[str, list[tuple[float, float, int]]](list)
    began = dict[tuple[int, str], dict[str, Any]]()
    for note in notes:
        if note["event"] in ("begin", "refused", "unknown"):  # an error has ended the block before
            began = {(pid, lock): each for (pid, lock), each in began.items() if pid != note["pid"]}
        elif note["event"] == "holds":
            began[note["pid"], note["lock"]] = note
        elif note["event"] == "left":
            begin = began.pop((note["pid"], note["lock"]))
            if not note["lost"]:
                held[note["lock"]].append((begin["at"], note["at"], begin["ticket"]))
    for (pid, lock), begin in began.items():
        held[lock].append((begin["at"], killed[pid], begin["ticket"]))
    for several in held.values():
        several.sort()
        for one, after in itertools.pairwise(several):
            assert one[1] <= after[0], (one, after)
            assert one[2] < after[2], (one, after)
