"""Which modules of the package a save, an edit and a commit enter, in order: ``python -m tests.support.walks``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pynamo_locking import transaction
from pynamo_locking_testing import MemoryDynamoDB
from tests.support.models import declare

if TYPE_CHECKING:
    from collections.abc import Callable

Account: Any = declare("Account", numbers="balance", version=True, lock=True)

#: What the engine works with, too.
_VALUES = "_core.values"


def entered(work: Callable[[], object]) -> list[str]:
    """Return the modules in the order in which the second call enters them."""
    found: dict[str, None] = {}

    def see(frame: Any, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("pynamo_locking."):
            name = module.removeprefix("pynamo_locking.")
            if name != _VALUES:
                found.setdefault(name)

    work()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return list(found)


def edit() -> None:
    with Account.edit("a") as account:
        account.balance += 1


def commit() -> None:
    with transaction() as tx:
        for key in "ab":
            account = tx.get(Account, key)
            account.balance += 1
            tx.save(account)


def walks() -> dict[str, list[str]]:
    """Return the walk of each, of items with a version and a lock."""
    with MemoryDynamoDB():
        Account.create_table(wait=True)
        for key in "abc":
            Account(key).save()
        return {"save": entered(Account.get("c").save), "edit": entered(edit), "commit": entered(commit)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(walks()))
