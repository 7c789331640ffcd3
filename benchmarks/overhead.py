"""The client's processor time of a write beside PynamoDB's own calls for the same writes.

    python -m benchmarks.overhead [--turns 50] [--publish]

The engine is dynoxide over the loopback: a process of its own, so its time does not count. What counts is all
processor time of this process, botocore's and the network's included. The contenders take turns, and a ratio is the
median of those of single turns; the spread has 80 % of them. `--publish` writes the table into the last section of
benchmarks/results/transactions.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import rich
from pynamodb.attributes import ListAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.attributes import VersionAttribute as PynamoVersionAttribute
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite as PynamoTransactWrite
from rich.progress import track
from rich.table import Table

from pynamo_locking import (
    LockableModel,
    LockAttribute,
    TransactionTable,
    TransactWrite,
    VersionAttribute,
    VersionedMixin,
    transaction,
)
from tests.engines.engine import DUMMY_ENVIRONMENT, running
from tests.engines.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: How many items one turn writes at least.
WRITES_A_TURN: Final = 40
HEAD: Final = ("writes", "by", "model", "median, µs", "ratio", "80 % of single ratios")
PAGE: Final = Path(__file__).parent / "results" / "transactions.md"

SECTION: Final = "## Processor time of the client\n"
# ruff: noqa: E501 - a line of Markdown is a paragraph
TEXT: Final = """
```
python -m benchmarks.overhead --publish
```

In µs, beside PynamoDB's own calls for the same writes. An item has some 200 bytes and five attributes; `Versioned` has a version, `Embedded` also a lock in the item. The engine, dynoxide, runs in another process. {turns} turns, all contenders in turns; a ratio is the median of single ratios.

{table}
"""


class Headers(TransactionTable):
    """Of transactions."""

    class Meta:
        table_name = "headers"
        region = "us-east-1"


class _Order:
    body = UnicodeAttribute(null=True)
    owner = UnicodeAttribute(default="me")
    tags: ListAttribute[Any] = ListAttribute(null=True)
    total = NumberAttribute(default=0)


class Stock(_Order, Model):
    """PynamoDB's own."""

    class Meta:
        table_name = "stock"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)
    version = PynamoVersionAttribute()


class Versioned(_Order, VersionedMixin, Model):
    """Ours."""

    class Meta:
        table_name = "versioned"
        region = "us-east-1"
        transaction_table = Headers

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()


class Embedded(_Order, LockableModel):
    """Ours, with a lock in the item."""

    class Meta:
        table_name = "embedded"
        region = "us-east-1"
        transaction_table = Headers

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    lock = LockAttribute()


def stored(model: type[Model], count: int) -> list[Any]:
    """Return that many new items of some 200 bytes; the rest of the table is deleted."""
    for old in [*model.scan()]:
        Model.delete(old, add_version_condition=False)
    items = [model(f"k{number:03}", body="x" * 100, tags=["a", "b"]) for number in range(count)]
    for item in items:
        item.save()
    return items


def save(items: Sequence[Any]) -> None:
    """Save instances."""
    for item in items:
        item.total += 1
        item.save()


def update(items: Sequence[Any]) -> None:
    """Update instances."""
    for item in items:
        item.update([type(item).total.add(1)])


def read_and_save(items: Sequence[Any]) -> None:
    """Read an item, change it, save it."""
    for item in items:
        found = type(item).get(item.key, consistent_read=True)
        found.total += 1
        found.save()


def edit(items: Sequence[Any]) -> None:
    """Do so under its lock."""
    for item in items:
        with type(item).edit(item.key) as found:
            found.total += 1


def write_together(kind: type[PynamoTransactWrite], items: Sequence[Any]) -> None:
    """Save instances in a native transaction."""
    with kind(connection=items[0]._get_connection().connection) as together:
        for item in items:
            item.total += 1
            together.save(item)


def read_and_write_together(items: Sequence[Any]) -> None:
    """Read items, and save them in a native transaction."""
    keys = [item.key for item in items]
    write_together(PynamoTransactWrite, list(type(items[0]).batch_get(keys, consistent_read=True)))


def commit(items: Sequence[Any]) -> None:
    """Save instances in a transaction."""
    with transaction() as tx:
        for item in items:
            item.total += 1
            tx.save(item)


def read_and_commit(items: Sequence[Any]) -> None:
    """Read items in a transaction, and save them."""
    with transaction() as tx:
        found: list[Any] = tx.get_all(type(items[0]), [item.key for item in items])
        for item in found:
            item.total += 1
            tx.save(item)


class Contender(NamedTuple):
    """An operation on items of a model."""

    name: str
    model: type[Model]
    operation: Callable[[Sequence[Any]], None]


_THEIRS: Final = Contender("PynamoDB", Stock, partial(write_together, PynamoTransactWrite))
_TOGETHER: Final = (
    _THEIRS,
    Contender("TransactWrite", Versioned, partial(write_together, TransactWrite)),
    Contender("transaction()", Versioned, commit),
    Contender("TransactWrite", Embedded, partial(write_together, TransactWrite)),
    Contender("transaction()", Embedded, commit),
)

#: What is compared: how many items, and the contenders, PynamoDB's own first.
ROUNDS: Final = (
    ("save", 1, tuple(Contender(model.__name__, model, save) for model in (Stock, Versioned, Embedded))),
    ("update", 1, tuple(Contender(model.__name__, model, update) for model in (Stock, Versioned, Embedded))),
    ("edit", 1, (Contender("get and save", Stock, read_and_save), Contender("edit()", Embedded, edit))),
    *((f"{count} saves together", count, _TOGETHER) for count in (2, 10, 100)),
    (
        "100 reads and saves together",
        100,
        (
            Contender("batch_get and TransactWrite", Stock, read_and_write_together),
            Contender("transaction()", Versioned, read_and_commit),
            Contender("transaction()", Embedded, read_and_commit),
        ),
    ),
)


def measure(contenders: Sequence[Contender], count: int, turns: int, about: str) -> list[list[float]]:
    """Return the seconds of processor time of an operation, one figure for each contender and turn."""
    repeats = -(-WRITES_A_TURN // count)
    times: list[list[float]] = [[] for _ in contenders]
    items = {contender.model: stored(contender.model, count) for contender in contenders}
    for turn in track(range(-2, turns), description=about, transient=True):
        for contender, found in zip(contenders, times, strict=True):
            gc.collect()
            start = time.process_time()
            for _ in range(repeats):
                contender.operation(items[contender.model])
            if turn >= 0:  # the first turns warm up
                found.append((time.process_time() - start) / repeats)
    return times


def rows(turns: int) -> list[tuple[str, ...]]:
    """Return the rows of the table."""
    found: list[tuple[str, ...]] = []
    for about, count, contenders in ROUNDS:
        times = measure(contenders, count, turns, about)
        for contender, own in zip(contenders, times, strict=True):
            ratios = sorted(mine / theirs for mine, theirs in zip(own, times[0], strict=True))
            spread = f"{ratios[len(ratios) // 10]:.2f} to {ratios[-1 - len(ratios) // 10]:.2f}"
            figures = (f"{statistics.median(own) * 1e6:,.0f}", f"{statistics.median(ratios):.2f}", spread)
            found.append((about, contender.name, contender.model.__name__, *figures))
    return found


def publish(found: Sequence[tuple[str, ...]], turns: int) -> None:
    """Write the table into the documentation."""
    lines = [" | ".join(row) for row in (HEAD, ("---",) * 3 + ("--:",) * 3, *found)]
    table = "\n".join(f"| {line} |" for line in lines)
    before, _, _ = PAGE.read_text().partition(SECTION)
    PAGE.write_text(before + SECTION + TEXT.format(table=table, turns=turns))


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--turns", type=int, default=50)
    options.add_argument("--publish", action="store_true")
    arguments = options.parse_args()
    os.environ.update(DUMMY_ENVIRONMENT)  # without credentials PynamoDB makes a new client for each request
    servers = Servers()
    try:
        with running("dynoxide", servers) as engine:
            for model in (Headers, Stock, Versioned, Embedded):
                engine.bind(model)
            found = rows(arguments.turns)
    finally:
        servers.close()
    table = Table(*HEAD)
    for row in found:
        table.add_row(*row)
    rich.print(table)
    if arguments.publish:
        publish(found, arguments.turns)


if __name__ == "__main__":
    main()
