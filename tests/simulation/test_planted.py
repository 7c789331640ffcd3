"""Each planted bug is found, by the checker that is there for it; and without the bug the same runs are clean."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.simulation import checkers, planted

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "testing.md"
EVIDENCE = Path(__file__).parents[1] / "evidence.md"
PLANTED = Path(__file__).parent / "planted"

#: The bug of each file of `planted` that takes the fewest runs: `make check` searches for these.
CHECKED = [
    min(bugs, key=lambda bug: bug.limit) for _, bugs in itertools.groupby(planted.BUGS, key=lambda bug: bug.module)
]
EACH_BUG = [pytest.param(bug, marks=[pytest.mark.core] if bug in CHECKED else []) for bug in planted.BUGS]


@pytest.mark.parametrize("bug", EACH_BUG, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_and_nothing_else_is(bug: planted.Bug) -> None:
    """The search finds the bug within its limit, by the right checker; the real library passes the same runs."""
    with bug.planted():
        runs, found = planted.search(bug, first_seed=bug.first_seed, limit=bug.limit)

    assert found is not None, f"{bug.breaks} Not found in {runs} runs."
    assert found.error is not None
    assert planted.checker_of(found.error) in bug.found_by, str(found.error)

    _, unexpected = planted.search(bug, first_seed=bug.first_seed, limit=runs)

    assert unexpected is None, str(unexpected.error)


def test_every_checker_is_needed() -> None:
    """Each checker is the one that finds some bug, so none is there for decoration."""
    needed = {name for bug in planted.BUGS for name in bug.found_by}

    assert {checker.__name__ for checker in checkers.CHECKERS} <= needed


def test_a_bug_is_gone_after_its_search() -> None:
    """Planting a bug replaces parts of the library, and puts the same parts back."""
    for bug in planted.BUGS:
        before = [vars(target).get(name) for target, name, _ in bug.patches]
        with bug.planted():
            assert [vars(target)[name] for target, name, _ in bug.patches] == [new for _, _, new in bug.patches]

        assert [vars(target).get(name) for target, name, _ in bug.patches] == before


def test_bugs_have_a_name_and_a_reason() -> None:
    """Each bug has a name of its own, and says what it breaks."""
    names = [bug.name for bug in planted.BUGS]

    assert len(set(names)) == len(names) >= 16
    assert all(bug.breaks.endswith(".") and bug.found_by for bug in planted.BUGS)


def test_the_page_counts_the_bugs() -> None:
    """How many each file plants, and how many there are."""
    _, _, rest = EVIDENCE.read_text().partition("## Planted bugs")
    section, _, _ = rest.partition("\n## ")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \| [\d,]+ \|$", section, re.MULTILINE)
    files = {file.stem: len(re.findall(r"^@plants\(", file.read_text(), re.MULTILINE)) for file in PLANTED.glob("*.py")}
    assert {file: int(bugs) for file, bugs in rows} == {file: bugs for file, bugs in files.items() if bugs}
    assert sum(files.values()) == len(planted.BUGS)
    assert f"in {len(planted.BUGS)} ways" in section
    assert f"in {len(planted.BUGS)} ways" in PAGE.read_text()
