"""gevent: what is promised in a process whose threads it has replaced, and what is refused in others."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tests.support.crew import ROOT
from tests.support.workers import PATIENCE

pytestmark = pytest.mark.processes

#: Takes a lock in the main greenlet and in another one; prints what it got, or why it did not.
PROGRAM: Final = """
import sys
import gevent
from gevent import monkey
{before}
from pynamodb.attributes import UnicodeAttribute
from pynamo_locking import LockAttribute, LockableModel, VersionAttribute
from pynamo_locking.exceptions import ConfigurationError
from pynamo_locking_testing import MemoryDynamoDB
{after}

class Item(LockableModel):
    class Meta:
        table_name = "items"
    name = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    lock = LockAttribute()

def work():
    try:
        with Item.locked("a", wait=0):
            return "in"
    except ConfigurationError as error:
        return str(error).partition(",")[0]

with MemoryDynamoDB():
    Item.create_table()
    Item("a").save()
    print(work(), gevent.spawn(work).get(), sep="; ")
"""


def said(*arguments: str) -> list[str]:
    """Run Python, where warnings are errors; return the lines that it printed."""
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.splitlines()


def test_what_is_promised(dynoxide):
    """Locks, heartbeats, kills, transactions, in greenlets of one thread: see `tests.support.greenlets`."""
    names = [dynoxide.new_name(), dynoxide.new_name()]
    lines = said("-m", "tests.support.greenlets", str(dynoxide.host), dynoxide.region, *names)
    assert lines[-1] == "nothing_is_left"


LATE: Final = "gevent replaced threads after pynamo_locking was imported"
NOT: Final = "gevent has not replaced threads"
SILENT: Final = "import warnings; warnings.simplefilter('ignore'); "


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("", f"{SILENT}monkey.patch_all()", f"{LATE}; {LATE}"),
        ("monkey.patch_all(thread=False)", "", f"in; {NOT}"),
    ],
    ids=["late", "never"],
)
def test_when_threads_are_replaced(before, after, told):
    """After the import, or never: greenlets would be taken for one thread, so they are refused."""
    assert said("-c", PROGRAM.format(before=before, after=after)) == [told]
