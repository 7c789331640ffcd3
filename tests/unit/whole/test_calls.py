"""How many calls of the package's functions a write takes: what is asked again and again shows here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pynamo_locking
import pynamo_locking_testing
from pynamo_locking import transaction
from pynamo_locking_testing import MemoryDynamoDB
from tests.support.models import declare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGE = f"{Path(pynamo_locking.__file__).parent}/"
ENGINE = f"{Path(pynamo_locking_testing.__file__).parent}/"


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions of the package the second call of `work` calls, without those that the engine calls."""
    count = 0

    def see(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        while frame is not None:
            if frame.f_code.co_filename.startswith(ENGINE):
                return
            frame = frame.f_back
        count += 1

    work()
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.fixture
def account_class() -> Iterator[Any]:
    account_class: Any = declare("Account", numbers="balance", version=True, lock=True)
    with MemoryDynamoDB():
        account_class.create_table(wait=True)
        for key in "abc":
            account_class(key).save()
        yield account_class


def test_a_save_asks_for_little(account_class):
    account = account_class.get("a")

    assert calls_of(account.save) <= 130


def test_an_edit_asks_for_little(account_class):
    def edit() -> None:
        with account_class.edit("a") as account:
            account.balance += 1

    assert calls_of(edit) <= 475


def test_a_commit_of_two_asks_for_little(account_class):
    def commit() -> None:
        with transaction() as tx:
            for account in (tx.get(account_class, "a"), tx.get(account_class, "b")):
                account.balance += 1
                tx.save(account)

    assert calls_of(commit) <= 610
