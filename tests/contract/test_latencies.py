"""Ten operations of this package and of PynamoDB, each done and timed: `make aws` shows how long they took."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from pynamo_locking import NamedLock, TransactionTable, transaction
from tests.support.models import declare

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

#: More than one native transaction takes.
LONG = 104

Stock = declare("Stock", Model, numbers="n")
Mutexes = declare("Mutexes", NamedLock)
Commits = declare("Commits", TransactionTable)
Unversioned = declare("Unversioned", lock=True, numbers="n")
Row: Any = declare("Row", lock=True, version=True, numbers="n", transaction_table=Commits)


def add_under_lock() -> None:
    with Row.edit("edited") as row:
        row.n += 1


def lock_a_name() -> None:
    with Mutexes.locked("a"):
        pass


def write_natively() -> None:
    with TransactWrite(connection=Stock._get_connection().connection) as tx:
        tx.update(Stock("b"), actions=[Stock.n.add(1)])
        tx.update(Stock("c"), actions=[Stock.n.add(1)])


def commit(items: int) -> None:
    with transaction() as tx:
        keys = [f"{items}-{number}" for number in range(items)]
        for key, found in zip(keys, tx.get_all(Row, keys), strict=True):
            row = found or Row(key)
            row.n += 1
            tx.save(row)


def test_ten_operations(concurrent_engine: Engine, record_property: Callable[[str, object], None]) -> None:
    """Each can be done again and again."""
    times = 20 if concurrent_engine.is_aws else 2
    concurrent_engine.bind(Stock, Mutexes, Commits, Unversioned, Row)
    Row("a").save()
    Row("edited").save()
    operations: dict[str, Callable[[], object]] = {
        "get": lambda: Row.get("a"),
        "get, consistent": lambda: Row.get("a", consistent_read=True),
        "save of PynamoDB's own model": Stock("a").save,
        "save without a version": Unversioned("a").save,
        "save with a version": Row.get("a", consistent_read=True).save,
        "edit: lock, read, save, unlock": add_under_lock,
        "lock and unlock a name": lock_a_name,
        "TransactWrite of 2 items": write_natively,
        "transaction of 2 items": lambda: commit(2),
        f"transaction of {LONG} items": lambda: commit(LONG),
    }
    for name, operation in operations.items():
        took = []
        for _ in range(times):
            begun = time.perf_counter()
            operation()
            took.append(time.perf_counter() - begun)
        record_property(name, (statistics.median(took), max(took)))
    assert Row.get("edited", consistent_read=True).n == Stock.get("c", consistent_read=True).n == times
    assert {Row.get(key, consistent_read=True).n for key in ("2-1", f"{LONG}-{LONG - 1}")} == {times}
