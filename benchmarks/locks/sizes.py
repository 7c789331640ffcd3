"""Transactions of 2 to 1,000 items at a distance: requests, units, time, beside none and Amazon's library of 2013."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.transactions import TransactWrite as PynamoTransactWrite

from benchmarks.locks.tables import markdown, milliseconds
from benchmarks.meter import metered
from benchmarks.transaction_counts import Record, Transactions
from pynamo_locking import transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES: Final = (2, 10, 100, 1_000)
_NATIVE: Final = 100


@dataclass(frozen=True)
class Size:
    """One way to change so many items.

    Attributes:
        way: how.
        n: how many items.
        median_ms: of all samples; None where it was not run.
        ratio: to no protection; None where it was not run.
        requests: of reads and writes together.
        read_units: as DynamoDB reports them; None where it was not run.
        write_units: as DynamoDB reports them; None where it was not run.
    """

    way: str
    n: int
    median_ms: float | None
    ratio: float | None
    requests: int
    read_units: float | None
    write_units: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def _unprotected(keys: list[str]) -> None:
    for key in keys:
        record = Record.get(key, consistent_read=True)
        record.total += 1
        record.save()


def _native(keys: list[str]) -> None:
    connection = Record._get_connection().connection
    records = [*Record.batch_get(keys, consistent_read=True)]
    with PynamoTransactWrite(connection=connection) as tx:
        for record in records:
            tx.update(record, [Record.total.add(1)])


def _ours(keys: list[str]) -> None:
    with transaction(Transactions) as tx:
        for record in tx.get_all(Record, keys):
            if record is not None:
                record.total += 1
                tx.save(record)


WAYS: Final[dict[str, Callable[[list[str]], None]]] = {
    "no protection, one after the other": _unprotected,
    "PynamoDB's batch_get and TransactWrite": _native,
    "transaction()": _ours,
}


def measure(samples: int, tick: Callable[[], None]) -> list[Size]:
    """Measure each way at each size. The models are bound to an engine behind a slow network."""
    done: list[Size] = []
    for n in SIZES:
        keys = [f"size-{n}-{i:04}" for i in range(n)]
        with Record.batch_write(unguarded=True) as batch:  # new items
            for key in keys:
                batch.save(Record(key))
        done += _measure(n, keys, samples if n < SIZES[-1] else 1)
        done.append(Size("Amazon's library of 2013, 7n + 4", n, None, None, 7 * n + 4, None, None))
        tick()
    return done


def _measure(n: int, keys: list[str], samples: int) -> Iterator[Size]:
    ways = {name: way for name, way in WAYS.items() if way is not _native or n <= _NATIVE}
    times: dict[str, list[float]] = {name: [] for name in ways}
    meters = {}
    for _ in range(samples):
        for name, way in ways.items():
            begin = time.perf_counter()
            with metered() as meters[name]:
                way(keys)
            times[name].append(1000 * (time.perf_counter() - begin))
    floor = statistics.median(next(iter(times.values())))
    for name, own in times.items():
        median, meter = statistics.median(own), meters[name]
        yield Size(name, n, median, median / floor, meter.requests, meter.read_units, meter.write_units)


def as_markdown(done: list[Size]) -> str:
    """Return the table."""
    head = ("items", "way", "median, ms", "ratio", "requests", "read units", "write units")
    rows = [
        (
            f"{each.n:,}",
            each.way,
            milliseconds(each.median_ms),
            "-" if each.ratio is None else f"{each.ratio:.2f}",
            f"{each.requests:,}",
            "-" if each.read_units is None else f"{each.read_units:,.0f}",
            "-" if each.write_units is None else f"{each.write_units:,.0f}",
        )
        for each in done
        if each.median_ms is not None
    ]
    return markdown(head, rows)
