"""Processes that book the same devices at the same time: nothing overlaps, and every refusal has its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.schedule import Insert, Job, Story, fill

ONE = Insert("d", 5, 9, "a", "stored", (), 0.0, 1.0)
ROW = ("a", "d", 5, 9)
REFUSED = Insert("d", 7, 8, "b", "refused", ("a",), 0.5, 2.0)


@pytest.mark.alone
@pytest.mark.processes
@pytest.mark.parametrize("pessimistic", [False, True], ids=["optimistic", "pessimistic"])
def test_nothing_overlaps(real_engine, pessimistic):
    """8 processes, few devices and little room; the table is swept past the library."""
    story = fill(real_engine, Job(8, 15, devices=3, horizon=150, pessimistic=pessimistic))
    assert story.problems() == []
    said = [one.said for one in story.inserts]
    assert said.count("stored") > 20
    assert said.count("refused") > 20
    assert said.count("gave up") == 0


@pytest.mark.parametrize(
    ("inserts", "rows", "problem"),
    [
        ([ONE, replace(ONE, by="b", begin=8, end=10)], [ROW, ("b", "d", 8, 10)], "overlap"),
        ([ONE], [], "is said to be stored"),
        ([], [ROW], "is not said to be stored"),
        ([ONE, replace(REFUSED, begin=9, end=10)], [ROW], "was refused for"),
        ([ONE, replace(REFUSED, device="e")], [ROW], "was refused for"),
        ([replace(ONE, started=3.0), REFUSED], [ROW], "was refused for"),
        ([ONE, replace(REFUSED, in_the_way=())], [ROW], "was refused for"),
        ([ONE, replace(REFUSED, in_the_way=("c",))], [ROW], "was refused for"),
    ],
)
def test_what_is_wrong_is_found(inserts, rows, problem):
    """Each kind of lie or overlap; and nothing where nothing is wrong."""
    assert problem in " ".join(Story(inserts, rows).problems())
    assert Story([ONE, REFUSED], [ROW]).problems() == []
