"""A test that fails is read by people: what they see first is the error, and not how a library came to its cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]

FAILS = """
def refuse_deep_inside(count):
    if count:
        refuse_deep_inside(count - 1)
    raise KeyError("the refusal")

def report():
    try:
        refuse_deep_inside(30)
    except KeyError as refusal:
        raise ValueError("what the library made of it") from refusal

def test_it():
    try:
        report()
    except ValueError as error:
        raise RuntimeError("the wrong error") from error
"""


def test_causes_take_a_few_lines(tmp_path: Path) -> None:
    """Their messages and places, without the frames between; the error itself is shown whole."""
    (tmp_path / "test_it.py").write_text(FAILS)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_runtest_makereport\n")
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path / "test_it.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    shown = done.stdout

    assert done.returncode == 1
    assert shown.index("the refusal") < shown.index("what the library made of it") < shown.index("the wrong error")
    assert "def refuse_deep_inside" not in shown
    assert "def test_it" in shown
    assert len(shown.splitlines()) < 60
