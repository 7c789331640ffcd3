"""Whether a copy of an item is old: every mark upon every other one."""

from __future__ import annotations

import itertools

import pytest

from pynamo_locking._core.write_outcome import Freshness, Known, Why

BEFORE, NOW, OTHER = Known(1, "a-1"), Known(2, "a-2"), Known(3, "a-3")
STATES = [
    Freshness(),
    *(Freshness(why) for why in Why),
    *(Freshness(Why.WRITTEN, known) for known in (BEFORE, NOW)),
]


def test_nothing_says_that_a_copy_is_old() -> None:
    """It is handed out and saved."""
    assert (Freshness().is_old(NOW), Freshness().must_not_be_saved) == (False, False)


@pytest.mark.parametrize("why", Why)
def test_what_dynamodb_does_not_notice_is_refused_here(why: Why) -> None:
    """Whatever version the copy has by now."""
    assert all(Freshness(why).is_old(known) for known in (BEFORE, NOW, OTHER, Known()))
    assert Freshness(why).must_not_be_saved
    assert not Freshness(why, NOW).must_not_be_saved
    assert [Freshness(why, NOW).is_old(known) for known in (BEFORE, NOW, OTHER)] == [False, True, False]


@pytest.mark.parametrize("before", STATES, ids=str)
@pytest.mark.parametrize(("has_version", "is_locked"), list(itertools.product((False, True), repeat=2)))
def test_each_mark(before: Freshness, has_version: bool, is_locked: bool) -> None:
    """The table of what stays, and what is known anew."""

    def marked(why: Why) -> Freshness:
        return before.made_stale(why, NOW, has_version=has_version, is_locked=is_locked)

    assert marked(Why.COMMITTED) == (Freshness(Why.COMMITTED) if has_version or is_locked else before)
    assert marked(Why.UNKNOWN) == (before if has_version else Freshness(Why.UNKNOWN))
    if before.must_not_be_saved:
        assert marked(Why.WRITTEN) == before
    else:
        assert marked(Why.WRITTEN) == Freshness(Why.WRITTEN, NOW if has_version else None)


def test_the_words() -> None:
    """They are part of an error's sentence."""
    assert [str(why).partition(": ")[2] for why in Why] == [
        "saving it would take that change back",
        "saving the copy could take that change back",
        "saving this one could take that change back",
    ]
