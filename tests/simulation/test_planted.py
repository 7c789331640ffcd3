"""Each planted bug is found, by the checker that is there for it; and without the bug the same runs are clean."""

from __future__ import annotations

import pytest

from tests.simulation import checkers, planted

#: The bug of each theme that takes the fewest runs: `make check` searches for these.
CHECKED = [min(theme, key=lambda bug: bug.search.limit) for theme in planted.THEMES]
EACH_BUG = [pytest.param(bug, marks=[pytest.mark.core] if bug in CHECKED else []) for bug in planted.BUGS]


@pytest.mark.parametrize("bug", EACH_BUG, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_and_nothing_else_is(bug: planted.Bug) -> None:
    """The search finds the bug within its limit, by the right checker; the real library passes the same runs."""
    first_seed, limit = bug.search.first_seed, bug.search.limit
    with bug.planted():
        runs, found = planted.search(bug, first_seed, limit)

    assert found is not None, f"{bug.breaks} Not found in {runs} runs."
    assert found.error is not None
    assert planted.checker_of(found.error) in bug.search.found_by, str(found.error)

    _, unexpected = planted.search(bug, first_seed, limit=runs)

    assert unexpected is None, str(unexpected.error)


def test_every_checker_is_needed() -> None:
    """Each checker is the one that finds some bug, so none is there for decoration."""
    needed = {name for bug in planted.BUGS for name in bug.search.found_by}

    assert {checker.__name__ for checker in checkers.CHECKERS} <= needed


def test_bugs_have_a_name_and_a_reason() -> None:
    """Each bug has a name of its own, and says what it breaks."""
    assert len({bug.name for bug in planted.BUGS}) == len(planted.BUGS)
    assert all(bug.breaks.endswith(".") and bug.search.found_by for bug in planted.BUGS)
