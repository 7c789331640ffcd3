"""The way of a save inside its lock, and of the commit of two items: which functions of the package it passes.

    python -m benchmarks.trace [--calls]

Prints for each: calls of functions of the package, the modules that they are in, how often the next call is in
another module, and the calls upwards: from a module of a lower floor into one of a higher floor. The floors are those
of the contracts in pyproject.toml. The in-memory engine is not counted. The methods of PynamoDB's `Model` and
`Attribute` are the user's own hooks, which any class of his may override: a call of one of these is none upwards.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pynamodb.attributes import Attribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

import pynamo_locking
from pynamo_locking import LockableModel, LockAttribute, TransactionTable, VersionAttribute
from pynamo_locking.testing import MemoryDynamoDB
from pynamo_locking.transactions import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE: Final = Path(pynamo_locking.__file__).parent
HOOKS: Final = {*vars(Model), *vars(Attribute)} - {"__init__"}
PROJECT: Final = PACKAGE.parent / "pyproject.toml"


class Transactions(TransactionTable):
    """The headers."""

    class Meta:
        table_name = "transactions"
        region = "us-east-1"


class Account(LockableModel):
    """What is written: an item with a version that carries its lock."""

    class Meta:
        table_name = "accounts"
        region = "us-east-1"
        transaction_table = Transactions

    account_id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Call(NamedTuple):
    """A call of a function of the package, and the module of the package that made it, if one did."""

    module: str
    function: str
    caller: str | None


def traced(action: Callable[[], object]) -> list[Call]:
    """Return the calls of functions of the package that an action makes in this thread."""
    calls: list[Call] = []
    engine: list[FrameType] = []  # whatever is called from the in-memory engine is the engine's

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and engine and engine[-1] is frame:
            engine.clear()
        if event != "call" or engine:
            return
        module, name = _module_of(frame), frame.f_code.co_name
        if module is not None and module.startswith("testing."):
            engine.append(frame)
        elif module is not None and (not name.startswith("<") or name == "<lambda>"):
            back = frame.f_back
            while back is not None and Path(back.f_code.co_filename).name == "contextlib.py":
                back = back.f_back
            calls.append(Call(module, name, None if back is None else _module_of(back)))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def _module_of(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts) if path.is_relative_to(PACKAGE) else None


def floors() -> dict[str, int]:
    """Return the floor of each folder and of each module, the ground floor first; {} for a project without any."""
    found: dict[str, int] = {}
    for container, layers in re.findall(
        r'^containers = \["pynamo_locking\.?([\w.]*)"\].*?^layers = \[(.*?)^\]',
        PROJECT.read_text(),
        re.DOTALL | re.MULTILINE,
    ):
        for floor, names in enumerate(reversed(re.findall(r'"([^"]+)"', layers))):
            found |= {f"{container}.{name}".lstrip("."): floor for name in names.split(" | ")}
    return found


def is_upwards(call: Call, floor: dict[str, int]) -> bool:
    """Tell whether a call goes from a lower floor into a higher one, and not into a hook of the user's."""
    if call.caller is None or call.function in HOOKS or not floor:
        return False
    (folder, *_), (from_folder, *_) = call.module.split("."), call.caller.split(".")
    if folder != from_folder:
        return floor.get(folder, 0) > floor.get(from_folder, 0)
    return floor.get(call.module, 0) > floor.get(call.caller, 0)


def report(title: str, calls: list[Call], *, shows_calls: bool) -> None:
    """Print the figures of one trace."""
    floor = floors()
    upwards = [call for call in calls if is_upwards(call, floor)]
    changes = sum(one.module != other.module for one, other in pairwise(calls))
    modules = len({call.module for call in calls})
    figures = f"{len(calls)} calls, {modules} modules, {changes} changes of module, {len(upwards)} calls upwards"
    sys.stdout.write(f"{title}: {figures}\n")
    for call in calls if shows_calls else upwards:
        mark = " (upwards)" if call in upwards else ""
        sys.stdout.write(f"    {call.caller or '-':32} -> {call.module}.{call.function}{mark}\n")


def main() -> None:
    """Trace both ways. Each is gone once before, so that what is made once is not in it."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--calls", action="store_true", help="print each call")
    shows_calls: bool = options.parse_args().calls
    os.environ.update(AWS_ACCESS_KEY_ID="none", AWS_SECRET_ACCESS_KEY="none")  # noqa: S106 - goes nowhere
    logging.getLogger("pynamo_locking").setLevel(logging.ERROR)
    with MemoryDynamoDB():
        Transactions.create_table()
        Account.create_table(billing_mode="PAY_PER_REQUEST")
        for key in "ab":
            Account(key).save()
        for _ in range(2):
            with Account.locked("a") as lock:
                account = lock.item
                account.balance += 1
                save = traced(account.save)
            transaction = Transaction()
            for key in "ab":
                account = transaction.get(Account, key)
                account.balance += 1
                transaction.save(account)
            commit = traced(transaction.commit)
    report("save() inside its lock", save, shows_calls=shows_calls)
    report("commit of two items", commit, shows_calls=shows_calls)


if __name__ == "__main__":
    main()
