"""What went wrong once is right now, and stays so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import regressions
from tests.simulation.campaign import Failure
from tests.simulation.explore import Found
from tests.simulation.plans import Plan
from tests.simulation.regressions import Regression

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.core

FILES = sorted(regressions.FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_regression(path: Path) -> None:
    """The same choices under the same plan violate nothing, and go on as the file says."""
    regression = Regression.read(path)
    result = regression.replay()
    if result.error is not None:
        raise Found(result, f"{path.name}: {regression.why}")
    if regression.then:
        went_on = regressions.after_first_fault(result)[: len(regression.then)]
        assert went_on == list(regression.then), regression.why


def test_a_failure_becomes_a_file_that_can_be_replayed(tmp_path: Path) -> None:
    """What a campaign writes down is read back as the same run."""
    plan = Plan("embedded", parties=3)
    regressions.write(Failure("what\n  how", plan, (1, 0, 2)), tmp_path / "x.json")
    assert Regression.read(tmp_path / "x.json") == Regression("what", plan, (1, 0, 2))
