"""``python -m demo`` shows what it says it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pynamodb.attributes import BinaryAttribute, BinarySetAttribute, UnicodeAttribute
from pynamodb.exceptions import PutError
from pynamodb.models import Model

from demo import engine

pytestmark = [pytest.mark.alone, pytest.mark.processes]

ROOT = Path(__file__).resolve().parents[3]


def figures(output: str, label: str) -> list[str]:
    """The cells of a row of the table: unprotected, in transactions, and under locks."""
    row = re.search(rf"^│ {re.escape(label)} +│ (.*) │$", output, re.MULTILINE)
    assert row is not None, output
    return [cell.strip() for cell in row[1].split("│")]


def test_money_is_lost_without_protection_and_none_with_it(tmp_path: Path) -> None:
    """Exit code and table, without a terminal, from pip alone."""
    run = subprocess.run(
        [sys.executable, "-m", "demo", "--transfers", "80", "--engine", engine.MEMORY],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        timeout=200,
        check=False,
    )

    assert run.returncode == 0, run.stdout
    lost, *none_lost = figures(run.stdout, "Changes that got lost")
    assert int(lost.split()[0]) > 0
    assert none_lost == ["0 of 160", "0 of 160"]
    # Money lost and money made up may cancel out in the sum; over the single accounts they do not.
    wrong, *none_wrong = figures(run.stdout, "Wrong balances")
    assert wrong != "0 of 6"
    assert none_wrong == ["0 of 6", "0 of 6"]
    assert figures(run.stdout, "Money at the end")[1:] == ["60,000", "60,000"]
    assert "SIGKILL" in run.stdout
    assert "s after the kill" in run.stdout


def test_its_server_speaks_as_dynamodb_does() -> None:
    """Bytes, a refused condition, and a table's date arrive through HTTP."""

    class Note(Model):
        class Meta:
            table_name = "notes"
            region = "eu-west-1"
            aws_access_key_id = aws_secret_access_key = "demo"
            host: str

        name = UnicodeAttribute(hash_key=True)
        content = BinaryAttribute(legacy_encoding=False)
        parts = BinarySetAttribute(legacy_encoding=False)

    with engine.running(engine.MEMORY) as (_, Note.Meta.host):
        Note.create_table(wait=True, billing_mode="PAY_PER_REQUEST")
        Note("a", content=b"\x00\xff", parts={b"\x01", b"\x02"}).save()
        read = Note.get("a")
        with pytest.raises(PutError) as refused:
            Note("a", content=b"").save(Note.name.does_not_exist())
        assert (read.content, read.parts) == (b"\x00\xff", {b"\x01", b"\x02"})
        assert refused.value.cause_response_code == "ConditionalCheckFailedException"
        assert Note.describe_table()["CreationDateTime"]
