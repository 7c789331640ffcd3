"""The plugin for pytest, in a pytest of its own: found through its entry point, cheap unless it is used."""

from __future__ import annotations

import os
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


LEAVES_LOCKS = """
import pytest
from moto import mock_aws
from pynamodb.attributes import UnicodeAttribute
from pynamo_locking import LockableModel, LockAttribute, VersionAttribute

class Account(LockableModel):
    class Meta:
        table_name = "accounts"
        region = "eu-west-1"
    pk = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    lock = LockAttribute()

class Other(Account):
    class Meta:
        table_name = "others"
        region = "eu-west-1"

kept = []

@pytest.fixture(scope="module")
def aws():
    with mock_aws():
        for model in (Account, Other):
            model.create_table()
        yield

@pytest.fixture(scope="module")
def held(aws):
    Other("a").save()
    with Other.locked("a"):
        yield

@pytest.fixture
def released(aws):
    Other("b").save()
    with Other.locked("b"):
        yield

def test_leaves_a_lock(aws, held):
    Account("a").save()
    kept.append(Account.locked("a").acquire())

def test_is_not_disturbed(aws, held, released):
    item = Account.get("a")
    with pytest.raises(Exception, match="another owner holds|locked by|holds the lock|held"):
        item.save()  # as another process, not as the one who has lost it
    assert not kept[0].is_held

def test_leaves_another(aws):
    kept.append(Account("b") and Other.locked("b", heartbeat=False).acquire())
"""


@pytest.mark.processes
def test_a_test_that_leaves_a_lock_fails(tmp_path):
    """Itself, by its name; the next one is not disturbed, and fixtures may hold locks for longer."""
    (tmp_path / "test_it.py").write_text(LEAVES_LOCKS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test"),
    )
    assert "3 passed, 2 errors" in done.stdout, done.stdout
    assert "this test leaves locks held: accounts/a" in done.stdout
    assert "this test leaves locks held: others/b" in done.stdout
