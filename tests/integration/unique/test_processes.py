"""Processes that claim, change and delete the same values: each has one row, and each row one holder."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.claimants import Story, claim
from tests.support.unique_models import Member, User

if TYPE_CHECKING:
    from tests.engines.engine import Engine

pytestmark = pytest.mark.alone

#: Writes of all processes together.
CLAIMS: Final = 2000


@pytest.mark.processes
@pytest.mark.timeout(120 + CLAIMS / 5)
def test_eight_processes(real_engine: Engine) -> None:
    """A set of 50 values, more items than values; items and rows are read past the library."""
    model: Any = User if real_engine.name == "dynoxide" else Member
    story = claim(real_engine, model, processes=8, writes=CLAIMS)
    print(model.__name__, real_engine.name, dict(story.ends), len(story.values))  # noqa: T201 - shown with -s
    assert story.problems() == []
    assert model.check_unique().is_sound
    assert story.ends["done"] > CLAIMS / 10
    assert story.ends["taken"] > 0
    assert story.ends["unknown"] == 0


@pytest.mark.parametrize(
    ("values", "rows", "problem"),
    [
        ({"a": "x", "b": "x"}, {"x": "a"}, "b has x"),
        ({"a": "x"}, {}, "a has x"),
        ({"a": "y"}, {"x": "a", "y": "a"}, "a row of x for a"),
        ({}, {"x": "a"}, "a row of x for a"),
    ],
)
def test_what_is_wrong_is_found(values: dict[str, str], rows: dict[str, str], problem: str) -> None:
    """Each kind of disagreement; and nothing where nothing is wrong."""
    assert problem in " ".join(Story(Counter(), values, rows).problems())
    assert Story(Counter(), {"a": "x"}, {"x": "a"}).problems() == []
