"""The mistakes of `tests.mistakes` can still be planted, and the tests that they name are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes import MISTAKES
from tests.support.mistakes import PACKAGE, Mistake, changed, copied

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_right_code_is_there_once(mistake: Mistake) -> None:
    """What it makes of a file is still Python, and the test that has to notice it exists."""
    for file, text in changed(mistake.name, [mistake.change]).items():
        compile(text, file, "exec")
    file, _, name = mistake.test.partition("::")
    assert (TESTS / file).exists()
    assert not name or f"def {name.partition('[')[0].rpartition('::')[2]}(" in (TESTS / file).read_text()


def test_a_copy_has_the_mistake_and_the_package_stays_as_it_is() -> None:
    """What runs in the folder of the copy takes the package from it, and all else from here."""
    mistake = MISTAKES[0]
    with copied(mistake) as folder:
        assert mistake.wrong in (folder / PACKAGE.name / mistake.file).read_text()
        assert (folder / "tests").samefile(TESTS)

    assert mistake.right in (PACKAGE / mistake.file).read_text()
    assert not folder.exists()
