"""An import of the package leaves the classes and functions of PynamoDB and botocore as they are."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import importlib, pkgutil, sys
import botocore.client, botocore.endpoint, botocore.session, boto3
import pynamodb

for each in pkgutil.walk_packages(pynamodb.__path__, "pynamodb."):
    importlib.import_module(each.name)

def seen():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("pynamodb", "botocore", "boto3"):
            for place in [module, *(each for each in vars(module).values() if isinstance(each, type))]:
                for attribute, value in list(vars(place).items()):
                    if callable(value) or isinstance(value, (property, classmethod, staticmethod)):
                        found[name, getattr(place, "__qualname__", ""), attribute] = value
    return found

before = seen()
import pynamo_locking, pynamo_locking_testing
ours = (pynamo_locking, pynamo_locking_testing)
for each in [each for ours in ours for each in pkgutil.walk_packages(ours.__path__, f"{ours.__name__}.")]:
    if not each.name.endswith("__main__"):
        try:
            importlib.import_module(each.name)
        except Exception as error:
            print("not imported", each.name, type(error).__name__, file=sys.stderr)
{break_it}
modules = {name for name, _, _ in before}
after = {place: value for place, value in seen().items() if place[0] in modules}
print(len(before), [place for place in before.keys() | after.keys() if before.get(place) is not after.get(place)])
"""


def changed(break_it: str) -> tuple[int, str]:
    script = SCRIPT.replace("{break_it}", break_it)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    count, _, places = done.stdout.strip().partition(" ")
    return int(count), places


@pytest.mark.processes
def test_an_import_changes_no_class_of_pynamodb_or_botocore() -> None:
    """In a fresh process; every module of the package that can be imported is."""
    count, places = changed("")
    assert count > 1000
    assert places == "[]"


@pytest.mark.processes
def test_a_replaced_method_would_be_seen() -> None:
    """So the comparison can fail."""
    _, places = changed("pynamodb.connection.Connection.dispatch = lambda *_: None")
    assert "('pynamodb.connection.base', 'Connection', 'dispatch')" in places
