"""The examples in docstrings: every block below ``Example::`` runs, on an empty DynamoDB in memory."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynamodb.attributes
import pytest
from pynamodb.models import Model

import pynamo_locking
import pynamo_locking_testing
from pynamo_locking import events, exceptions, intervals, recipes, transactions
from pynamo_locking_testing import MemoryDynamoDB

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.core

PACKAGES: Final = [Path(each.__file__).parent for each in (pynamo_locking, pynamo_locking_testing)]
#: What most programs use has one.
MOST_USED: Final = {
    "ExpiringMixin",
    "GuardedMixin.delete",
    "GuardedMixin.save",
    "GuardedMixin.update",
    "IntervalMixin",
    "IntervalQueries.free",
    "IntervalQueries.overlapping",
    "Intervals.insert_disjoint",
    "Intervals.move",
    "Lock",
    "Lock.acquire",
    "Lock.add_check_to",
    "LockSettings",
    "LockTimeout",
    "LockableMixin.break_lock",
    "LockableMixin.edit",
    "LockableMixin.lock_state",
    "LockableMixin.locked",
    "LockableMixin.locked_first",
    "LockableMixin.locked_range",
    "MemoryDynamoDB",
    "NamedLock",
    "NamedLock.lead",
    "NamedLock.once",
    "OutcomeUnknown",
    "ReadingMixin.batch_get",
    "ReadingMixin.get",
    "ReadingMixin.query",
    "StaleVersion",
    "TTLAttribute",
    "TransactWrite",
    "TransactWrite.check",
    "Transaction.after_commit",
    "Transaction.check",
    "Transaction.get",
    "Transaction.get_all",
    "Transaction.insert_disjoint",
    "Transaction.query",
    "Transaction.save",
    "Transaction.savepoint",
    "Transaction.update",
    "TransactionTable",
    "VersionAttribute",
    "VersionedMixin",
    "VersionedMixin.guarded_batch",
    "VersionedMixin.modify",
    "VersionedMixin.touch",
    "VirtualClock",
    "idempotent",
    "locked_all",
    "subscribe",
    "transaction",
    "transactional",
}
#: What the examples share.
MODELS: Final = """
class Locks(NamedLock):
    class Meta:
        table_name = "locks"

class Transactions(TransactionTable):
    class Meta:
        table_name = "transactions"

class Calls(IdempotencyTable):
    class Meta:
        table_name = "calls"

class Account(LockableModel):
    class Meta:
        table_name = "accounts"
        transaction_table = Transactions

    account_id = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()

class Line(LockableModel):
    class Meta:
        table_name = "lines"

    order_id = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)
    price = NumberAttribute()
    version = VersionAttribute()

class Ticket(ExpiringMixin, LockableModel):
    class Meta:
        table_name = "tickets"

    ticket_id = UnicodeAttribute(hash_key=True)
    expires = TTLAttribute()

class Booking(IntervalMixin, LockableModel):
    class Meta:
        table_name = "bookings"
        interval = ("begin", "end")
        lock_table = Locks

    room = UnicodeAttribute(hash_key=True)
    begin = NumberAttribute(range_key=True)
    end = NumberAttribute()
    version = VersionAttribute()

jobs = [lambda: None]

def charge(amount):
    return f"charged {amount}"

def pay_in(account_id, amount):
    return Account.modify(account_id, change=lambda account: setattr(account, "balance", account.balance + amount))
"""
#: And what is stored.
TABLES: Final = """
for model in (Locks, Transactions, Calls, Account, Line, Ticket, Booking):
    model.create_table()
Account("a-1", balance=100).save()
Account("a-2").save()
Line("o-1", 1, price=7).save()
"""


def examples() -> Iterator[tuple[str, str]]:
    """Yield each example of the package with the name of what it explains."""
    for text in [path.read_text() for package in PACKAGES for path in sorted(package.rglob("*.py"))]:
        tree = ast.parse(text if "Example::" in text else "")
        owners = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node, owner in owners.items():
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{owner.name}.{node.name}" if isinstance(owner, ast.ClassDef) else node.name
                for after in (ast.get_docstring(node) or "").split("Example::\n\n")[1:]:
                    lines = after.splitlines()
                    end = next((i for i, line in enumerate(lines) if line[:1].strip()), len(lines))
                    yield name, textwrap.dedent("\n".join(lines[:end]))


@pytest.fixture
def names() -> dict[str, Any]:
    """The public names, as after their imports, and the models."""
    modules = (exceptions, intervals, recipes, pynamo_locking_testing, transactions, pynamo_locking)
    names = {name: value for name, value in vars(pynamodb.attributes).items() if not name.startswith("_")}
    names |= {name: getattr(module, name) for module in modules for name in module.__all__}
    names |= {"Model": Model, "events": events, "pytest": pytest, "timedelta": timedelta}
    exec(MODELS, names)
    return names


EXAMPLES: Final = list(examples())


@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_example_of_a_docstring_runs(name: str, code: str, names: dict[str, Any]) -> None:
    """As it stands there, with the names and tables above; it is short, and fits a narrow column."""
    assert 0 < len(code.strip().splitlines()) <= 16, name
    assert max(map(len, code.splitlines())) <= 88, name
    has_database = "MemoryDynamoDB()" in code
    with contextlib.nullcontext() if has_database else MemoryDynamoDB():
        if not has_database:
            exec(TABLES, names)
        running = eval(compile(code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.iscoroutine(running):
            asyncio.run(running)


def test_what_is_used_most_has_an_example() -> None:
    """One each, in its docstring."""
    names = [name for name, _ in EXAMPLES]
    assert set(names) >= MOST_USED
    assert len(names) == len(set(names))
