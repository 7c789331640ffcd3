"""The mistakes of `tests.mistakes` can still be planted; not part of `make check`, which would notice each by this."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes import MISTAKES, PACKAGE, Mistake

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).parents[2] / "evidence.md"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_right_code_is_there_once(mistake: Mistake) -> None:
    text = (PACKAGE / mistake.file).read_text()
    assert text.count(mistake.right) == 1
    compile(text.replace(mistake.right, mistake.wrong), mistake.file, "exec")
    if mistake.test:
        file, _, name = mistake.test.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text()
    else:
        assert f"| {mistake.name} |" in TABLE.read_text()
