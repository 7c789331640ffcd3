"""The plugin for pytest, in a pytest of its own: found through its entry point, cheap unless it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

PLUGIN = "pynamo_locking_testing.pytest_plugin"

USES_FIXTURES = """
import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamo_locking import LockableModel, VersionAttribute
from pynamo_locking import LockAttribute
from pynamo_locking._io import runtime
from pynamo_locking_testing import MemoryDynamoDB, VirtualClock

class Account(LockableModel):
    class Meta:
        table_name = "accounts"
    pk = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()

@pytest.mark.parametrize("again", [1, 2])
def test_database(memory_dynamodb, again):
    assert isinstance(memory_dynamodb, MemoryDynamoDB)
    assert memory_dynamodb.client().list_tables()["TableNames"] == []
    Account.create_table()
    Account("a", balance=again).save()
    assert Account.get("a").balance == again

def test_clock(virtual_clock):
    assert isinstance(virtual_clock, VirtualClock)
    runtime.current.sleep(3600)
    assert virtual_clock.elapsed == 3600

@pytest.mark.parametrize("again", [1, 2])
def test_both(virtual_clock, memory_dynamodb, again):
    Account.create_table()
    Account("a").save()
    Account.locked("a", heartbeat=False, lease=60).acquire()  # never given back

def test_afterwards():
    assert type(runtime.current) is runtime.Runtime
"""

USES_NOTHING = """
import sys

def test_nothing_was_imported():
    assert "pynamo_locking_testing.pytest_plugin" in sys.modules
    assert not [name for name in sys.modules if name.split(".")[0] in ("pynamo_locking", "pynamodb", "botocore")]
"""


def run_pytest(directory, source, *options):
    """Run a file of tests in a fresh process; its output."""
    (directory / "test_it.py").write_text(source, encoding="utf-8")
    lines = "[pytest]", "filterwarnings =", "  error", "  ignore::ResourceWarning"
    (directory / "pytest.ini").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)
    return result.stdout + result.stderr


def test_it_is_installed():
    """pytest finds it by its entry point."""
    assert [entry.value for entry in entry_points(group="pytest11", name="pynamo_locking")] == [PLUGIN]


@pytest.mark.processes
def test_the_fixtures_work(tmp_path):
    """Each test gets a database and a clock of its own, and leaves nothing behind."""
    output = run_pytest(tmp_path, USES_FIXTURES)
    assert " 6 passed" in output, output


@pytest.mark.processes
def test_the_fixtures_are_listed(tmp_path):
    """With the first line of their docstrings."""
    output = run_pytest(tmp_path, USES_NOTHING, "--fixtures")
    assert "memory_dynamodb" in output, output
    assert "virtual_clock" in output, output
    assert "An empty DynamoDB in memory" in output


@pytest.mark.processes
def test_who_does_not_use_it_does_not_pay(tmp_path):
    """Loading the plugin imports neither this package nor PynamoDB."""
    output = run_pytest(tmp_path, USES_NOTHING)
    assert " 1 passed" in output, output
