"""What a versioned `save` and `update` cost more than PynamoDB's own.

    python -m benchmarks.overhead

Three places: no engine at all (the answer is there when PynamoDB hands the request to botocore: Python alone),
moto in this process, and dynoxide over the loopback. The contenders take turns, and a row of the table compares
the medians of one run; the spread is that of the ratios of single turns.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

import rich
from pynamodb.attributes import ListAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.attributes import VersionAttribute as PynamoVersionAttribute
from pynamodb.models import Model
from rich.progress import track
from rich.table import Table

from pynamo_locking import LockableModel, LockAttribute, VersionAttribute, VersionedMixin
from tests.engines.engine import DUMMY_ENVIRONMENT, running
from tests.engines.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS: Final = 300
#: Writes in one turn.
EACH: Final = {"Python alone": 20, "moto": 3, "dynoxide": 10}


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

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()


class Embedded(_Order, LockableModel):
    """Ours, with a lock in the item."""

    class Meta:
        table_name = "embedded"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    lock = LockAttribute()


MODELS: Final[tuple[type[Model], ...]] = (Stock, Versioned, Embedded)


def item_of(model: type[Model]) -> Any:
    """An item of some 200 bytes."""
    return model("k", body="x" * 100, tags=["a", "b"])


def save(item: Any) -> None:
    """One versioned save."""
    item.save()


def update(item: Any) -> None:
    """One versioned update."""
    item.update([type(item).total.add(1)])


def without_engine(model: type[Model]) -> None:
    """Let every write of a model succeed at once."""
    image = item_of(model).serialize() | {"version": {"N": "1"}, "version_write_id": {"S": "a" * 29}}
    connection: Any = model._get_connection().connection
    connection._make_api_call = lambda _operation, _kwargs: connection.client and {"Attributes": copy.copy(image)}


def measure(place: str, write: Callable[[Any], None], items: dict[type[Model], Any]) -> dict[type[Model], list[float]]:
    """Return seconds a write, one figure for each turn."""
    times: dict[type[Model], list[float]] = {model: [] for model in items}
    for _ in track(range(TURNS), description=f"{place}, {write.__name__}", transient=True):
        for model, item in items.items():
            start = time.perf_counter()
            for _ in range(EACH[place]):
                write(item)
            times[model].append((time.perf_counter() - start) / EACH[place])
    return times


def compare(table: Table, place: str) -> None:
    """Add the rows of one place."""
    items = {model: item_of(model) for model in MODELS}
    for item in items.values():
        item.save()
    for write in (save, update):
        times = measure(place, write, items)
        base = times[Stock]
        for model in MODELS:
            ratios = sorted(own / stock for own, stock in zip(times[model], base, strict=True))
            low, high = ratios[len(ratios) // 10], ratios[-len(ratios) // 10]
            median = statistics.median(times[model])
            ratio = median / statistics.median(base)
            figures = (f"{median * 1e6:.0f}", f"{ratio:.2f}", f"{low:.2f}-{high:.2f}")
            table.add_row(place, write.__name__, model.__name__, *figures)


def main() -> None:
    """Print the table."""
    os.environ.update(DUMMY_ENVIRONMENT)  # without credentials PynamoDB makes a new client for each request
    table = Table("place", "write", "model", "median, µs", "ratio of medians", "80 % of single ratios")
    servers = Servers()
    try:
        for place in ("moto", "dynoxide"):
            with running(place, servers) as engine:
                for model in MODELS:
                    engine.bind(model)
                compare(table, place)
    finally:
        servers.close()
    for model in MODELS:
        without_engine(model)
    compare(table, "Python alone")
    rich.print(table)


if __name__ == "__main__":
    main()
