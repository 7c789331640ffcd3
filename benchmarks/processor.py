"""The client's processor time of a write, beside PynamoDB's own calls for the same writes.

The engine is dynoxide over the loopback: a process of its own, so its time does not count. What counts is all
processor time of this process, botocore's and the network's included.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import ListAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.attributes import VersionAttribute as PynamoVersionAttribute
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite as PynamoTransactWrite

from pynamo_locking import (
    LockableModel,
    LockAttribute,
    NamedLock,
    TransactionTable,
    TransactWrite,
    VersionAttribute,
    VersionedMixin,
    transaction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.harness import Bench

#: How many items one turn writes at least.
WRITES_A_TURN: Final = 200


class Headers(TransactionTable):
    """Of transactions."""

    class Meta:
        table_name = "headers"
        region = "us-east-1"


class Names(NamedLock):
    """Locks in rows of their own."""

    class Meta:
        table_name = "names"
        region = "us-east-1"


class _Order:
    """An item of some 200 bytes."""

    key = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(default="x" * 100)
    owner = UnicodeAttribute(default="me")
    tags: ListAttribute[Any] = ListAttribute(default=lambda: ["a", "b"])
    total = NumberAttribute(default=0)


class Stock(_Order, Model):
    """PynamoDB's own."""

    class Meta:
        table_name = "stock"
        region = "us-east-1"

    version = PynamoVersionAttribute()


class Versioned(_Order, VersionedMixin, Model):
    """Ours."""

    class Meta:
        table_name = "versioned"
        region = "us-east-1"
        transaction_table = Headers

    version = VersionAttribute()


class Embedded(_Order, LockableModel):
    """Ours, with a lock in the item."""

    class Meta:
        table_name = "embedded"
        region = "us-east-1"
        transaction_table = Headers

    version = VersionAttribute()
    lock = LockAttribute()


class Beside(_Order, LockableModel):
    """Ours, with the lock in a row of its own."""

    class Meta:
        table_name = "beside"
        region = "us-east-1"
        lock_table = Names

    version = VersionAttribute()


MODELS: Final[tuple[Any, ...]] = (Stock, Versioned, Embedded, Beside)


def _save(items: Sequence[Any]) -> None:
    for item in items:
        item.total += 1
        item.save()


def _read_and_save(items: Sequence[Any]) -> None:
    for item in items:
        found = type(item).get(item.key, consistent_read=True)
        found.total += 1
        found.save()


def _one_more(item: Any) -> None:
    item.total += 1


def _modify(items: Sequence[Any]) -> None:
    for item in items:
        type(item).modify(item.key, _one_more)


def _edit(items: Sequence[Any]) -> None:
    for item in items:
        with type(item).edit(item.key) as found:
            found.total += 1


def _save_locked(items: Sequence[Any]) -> None:
    for item in items:
        with type(item).locked(item.key) as lock:
            lock.item.total += 1
            lock.item.save()


def _name(items: Sequence[Any]) -> None:
    for item in items:
        with Names.locked(item.key):
            pass


def _together(kind: type[PynamoTransactWrite], items: Sequence[Any]) -> None:
    with kind(connection=items[0]._get_connection().connection) as write:
        for item in items:
            item.total += 1
            write.save(item)


def _read_together(items: Sequence[Any]) -> None:
    _together(PynamoTransactWrite, [*type(items[0]).batch_get([item.key for item in items], consistent_read=True)])


def _commit(items: Sequence[Any]) -> None:
    with transaction() as tx:
        for item in items:
            item.total += 1
            tx.save(item)


def _read_and_commit(items: Sequence[Any]) -> None:
    with transaction() as tx:
        found: list[Any] = tx.get_all(type(items[0]), [item.key for item in items])
        for item in found:
            item.total += 1
            tx.save(item)


Contenders = dict[str, tuple[type[Model], "Callable[[Sequence[Any]], None]"]]
_TOGETHER: Final[Contenders] = {
    "PynamoDB's TransactWrite": (Stock, partial(_together, PynamoTransactWrite)),
    "TransactWrite, a version": (Versioned, partial(_together, TransactWrite)),
    "transaction(), a version": (Versioned, _commit),
    "TransactWrite, a lock": (Embedded, partial(_together, TransactWrite)),
    "transaction(), a lock": (Embedded, _commit),
}

#: How many items, and who writes them, PynamoDB's own first.
CASES: Final[dict[str, tuple[int, Contenders]]] = {
    "save": (1, {"PynamoDB": (Stock, _save), "a version": (Versioned, _save), "a lock": (Embedded, _save)}),
    "one cycle": (
        1,
        {
            "PynamoDB: get and save": (Stock, _read_and_save),
            "modify(): a version": (Versioned, _modify),
            "edit(): lock in the item": (Embedded, _edit),
            "locked() and save(): lock in the item": (Embedded, _save_locked),
            "edit(): lock in a row": (Beside, _edit),
            "NamedLock: lock and unlock": (Stock, _name),
        },
    ),
    **{f"{count} saves together": (count, _TOGETHER) for count in (2, 10, 100)},
    "100 reads and saves together": (
        100,
        {
            "PynamoDB: batch_get and TransactWrite": (Stock, _read_together),
            "transaction(), a version": (Versioned, _read_and_commit),
            "transaction(), a lock": (Embedded, _read_and_commit),
        },
    ),
}


#: What a program with models imports, PynamoDB's first.
IMPORTED: Final = ("pynamodb.models", "pynamo_locking")


def measure(bench: Bench) -> None:
    """Let the contenders of each case take turns."""
    with bench.engine() as engine:
        engine.bind(Headers, Names, *MODELS)
        for case, (count, contenders) in CASES.items():
            repeats = bench.size(-(-WRITES_A_TURN // count), 1)
            items = {model: _stored(model, count) for model, _ in contenders.values()}
            turns = {
                name: partial(_turn, operation, items[model], repeats)
                for name, (model, operation) in contenders.items()
            }
            bench.in_turns(case, turns, warm_up=1)
    bench.in_turns("import", {name: partial(_import, name) for name in IMPORTED}, warm_up=1)


def _stored(model: type[Model], count: int) -> list[Any]:
    """Return that many items as if they were new."""
    for old in [*model.scan()]:
        Model.delete(old, add_version_condition=False)
    items = [model(f"k{number:03}") for number in range(count)]
    for item in items:
        item.save()
    return items


def _turn(operation: Callable[[Sequence[Any]], None], items: Sequence[Any], repeats: int) -> dict[str, float]:
    gc.collect()
    start = time.process_time()
    for _ in range(repeats):
        operation(items)
    return {"µs": 1e6 * (time.process_time() - start) / repeats}


def _import(module: str) -> dict[str, float]:
    """Import in a process of its own. What is installed was compiled, so the warm-up compiles what is not."""
    program = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
    compiles = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=compiles)  # noqa: S603 - our own words
    return {"µs": 1e6 * float(done.stdout)}
