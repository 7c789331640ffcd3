"""``python -m demo`` shows what it says it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.alone, pytest.mark.processes]

ROOT = Path(__file__).resolve().parents[3]


def figures(output, label):
    """The two cells of a row of the table: without protection, and with locks."""
    row = re.search(rf"^│ {re.escape(label)} +│ (.*?) +│ +(.*?) +│$", output, re.MULTILINE)
    assert row is not None, output
    return row[1].strip(), row[2].strip()


def test_money_is_lost_without_protection_and_none_with_locks(tmp_path):
    """Exit code, table and picture, without a terminal, as CI runs it."""
    run = subprocess.run(
        [sys.executable, "-m", "demo", "--transfers", "96"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        timeout=100,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    # Money lost and money made up may cancel out in the sum; over the single accounts they do not.
    without, with_locks = figures(run.stdout, "Changes that got lost")
    assert int(without.split()[0]) > 0
    assert with_locks == "0 of 192"
    without, with_locks = figures(run.stdout, "Wrong balances")
    assert without != "0 of 4"
    assert with_locks == "0 of 4"
    assert figures(run.stdout, "Money at the end")[1] == "40,000"
    assert figures(run.stdout, "Money lost or made up")[1] == "0"
    assert figures(run.stdout, "Turns in order, one at a time")[1] == "193 of 193"
    assert "SIGKILL" in run.stdout
    assert (tmp_path / "demo-locks.svg").stat().st_size > 10_000
