"""Each planted bug is found, by the checker that is there for it; and without the bug the same runs are clean."""

from __future__ import annotations

import pytest

from pynamo_locking._core import lease
from pynamo_locking._io import protocol
from pynamo_locking._locks import acquire
from tests.simulation import checkers, planted
from tests.support.lengths import short_or_long
from tests.support.mistakes import Change, NotPlanted
from tests.support.mistakes import planted as made

#: The bug of each theme that takes the fewest runs: `make check` searches for these.
CHECKED = [min(theme, key=lambda bug: bug.search.limit) for theme in planted.THEMES]
#: Their searches take seconds: `make test-all` has them. At least nine in ten bugs are left to `make test`.
LONG_SEARCHES = {
    "a lost batch counts as not applied",
    "clean while a mark is underway",
    "last write of edit without guard",
    "locks in any order",
    "named items not settled",
    "only the first refusal of a batch is seen",
    "own repetition forgotten",
    "period compared for equality",
    "r5 plain reads validate",
    "r6 validation before everything is marked",
    "r8 placeholders after the decision",
    "read set not checked",
    "snapshots with headers of another moment",
    "write id not compared",
}


def marks_of(bug: planted.Bug) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if bug.name in LONG_SEARCHES else [pytest.mark.core] if bug in CHECKED else []


EACH_BUG = [pytest.param(bug, marks=marks_of(bug)) for bug in planted.BUGS]


@pytest.mark.long
@pytest.mark.parametrize("bug", EACH_BUG, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_and_nothing_else_is(bug: planted.Bug) -> None:
    """The search finds the bug within its limit, by the right checker; the real library passes the same runs.

    The first of these in the short form: `test_simulation` makes many runs of the real library.
    """
    first_seed, limit = bug.search.first_seed, bug.search.limit
    with bug.planted() as broken:
        runs, found = planted.search(bug, first_seed, limit)

    assert broken == [], "It raises what any test would notice."
    assert found is not None, f"{bug.breaks} Not found in {runs} runs."
    assert found.error is not None
    assert planted.checker_of(found.error) in bug.search.found_by, str(found.error)

    _, unexpected = planted.search(bug, first_seed, limit=short_or_long(1, runs))

    assert unexpected is None, str(unexpected.error)


def test_make_test_has_nine_in_ten() -> None:
    """Each that is left to `make test-all` is there."""
    assert {bug.name for bug in planted.BUGS} >= LONG_SEARCHES
    assert len(LONG_SEARCHES) <= len(planted.BUGS) / 10


def test_every_checker_is_needed() -> None:
    """Each checker is the one that finds some bug, so none is there for decoration."""
    needed = {name for bug in planted.BUGS for name in bug.search.found_by}

    assert {checker.__name__ for checker in checkers.CHECKERS} <= needed


def test_bugs_have_a_name_and_a_reason() -> None:
    """Each bug has a name of its own, and says what it breaks."""
    assert len({bug.name for bug in planted.BUGS}) == len(planted.BUGS)
    assert all(bug.breaks.endswith(".") and bug.search.found_by for bug in planted.BUGS)


class TestPlanting:
    """A mistake is in the whole process for as long as its block, and one that would not be there is an error."""

    def test_a_function_has_the_mistake_wherever_it_was_imported(self) -> None:
        change, importer = (
            Change("_core/lease.py", "return started + lease * RENEW_AFTER", "return started"),
            vars(acquire),
        )
        with made("never renewed", [change]):
            assert importer["next_renewal"](1.0, 3.0) == lease.next_renewal(1.0, 3.0) == 1.0

        assert importer["next_renewal"](1.0, 3.0) == 2.0

    def test_a_constant_has_it_and_what_is_made_of_it_too(self) -> None:
        before = protocol.OWN_ENTRY, protocol.FENCE
        with made(
            "no ticket", [Change("_io/protocol.py", 'Clause(if_="#l.#q.#me[0] = :ticket")', 'Clause(if_="#me")')]
        ):
            assert protocol.OWN_ENTRY.if_ == "#me"
            assert protocol.FENCE.if_.startswith("#me AND ")

        assert before == (protocol.OWN_ENTRY, protocol.FENCE)

    def test_what_a_function_has_returned_before_is_forgotten(self) -> None:
        before = protocol.evict(1, 0)
        with made("no beat", [Change("_io/protocol.py", "#l.#q.#e{i}[1].#b = :b{i} AND ", "")]):
            assert protocol.evict(1, 0).if_.startswith("#l.#q.#e0[0] = :t0")

        assert protocol.evict(1, 0) == before

    @pytest.mark.parametrize(
        ("right", "wrong", "why"),
        [
            ("no such text", "", "'a mistake': _core/lease.py has this 0 times"),
            ("return", "pass", "'a mistake': _core/lease.py has this [0-9]+ times"),
            (
                "# noqa: UP007 - evaluated at run time by Sphinx",
                "# noqa: UP007",
                "'a mistake' changes no function and no constant",
            ),
            ("wait: Seconds = Seconds(60.0)", "wait: Seconds = Seconds(61.0)", "'a mistake' changes no function"),
        ],
        ids=["absent", "twice", "a comment", "what a class has already"],
    )
    def test_a_mistake_that_would_not_be_there_is_an_error(self, right: str, wrong: str, why: str) -> None:
        with pytest.raises(NotPlanted, match=why), made("a mistake", [Change("_core/lease.py", right, wrong)]):
            pass

    def test_code_that_cannot_work_is_told(self) -> None:
        """Also if somebody catches its error."""
        right = "return started + lease * RENEW_AFTER"
        with made("a name", [Change("_core/lease.py", right, "return startd")]) as broken:
            with pytest.raises(NameError):
                lease.next_renewal(1.0, 3.0)
            assert broken == ["NameError(\"name 'startd' is not defined\")"]

        with made("a pause", [Change("_core/lease.py", right, "return started")]) as broken, pytest.raises(TypeError):
            lease.next_renewal()  # type: ignore[call-arg]
        assert broken == []

    def test_a_mistake_in_two_places_is_gone_after_an_error(self) -> None:
        """The second place is not there, so the first one is as it was."""
        first = Change("_core/lease.py", "return started + lease * RENEW_AFTER", "return started")
        with pytest.raises(NotPlanted), made("two", [first, Change("_core/lock_modes.py", "no such text", "")]):
            pass

        assert lease.next_renewal(1.0, 3.0) == 2.0
