"""How many requests an insert makes as more and more rows of its device are stored."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Final

from benchmarks.meter import metered
from tests.support.schedule import MODELS, Booking

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.engines.engine import Engine

SIZES: Final = (10, 100, 1_000, 10_000, 100_000)

#: Inserts that are counted beside each number of rows.
_COUNTED: Final = 20

#: One row each so many units; the first half of them is taken.
_STEP: Final = 10


@dataclass(frozen=True)
class Growth:
    """What an insert cost beside so many rows.

    Attributes:
        rows: of the same device.
        requests: on average.
        most_requests: of the most expensive one.
        read_units: on average.
        write_units: on average.
    """

    rows: int
    requests: float
    most_requests: int
    read_units: float
    write_units: float


def grow(engine: Engine, sizes: Sequence[int]) -> Iterator[Growth]:
    """Fill one device, and insert into its gaps now and then."""
    engine.bind(*MODELS)
    filled = 0
    for size in sizes:
        with Booking.batch_write(unguarded=True) as batch:
            for place in range(filled, size):
                batch.save(Booking("d", place * _STEP, end=place * _STEP + _STEP // 2, by="filler", version=1))
        filled = size
        yield _count(size)


def _count(size: int) -> Growth:
    requests, reads, writes = list[int](), list[float](), list[float]()
    for number in range(_COUNTED):
        begin = (number * size // _COUNTED) * _STEP + _STEP // 2
        row = Booking("d", begin, end=begin + 1, by="counted")
        with metered() as meter:
            Booking.intervals.insert_disjoint([row])
        requests.append(meter.requests)
        reads.append(meter.read_units)
        writes.append(meter.write_units)
        row.delete()
    return Growth(size, mean(requests), max(requests), mean(reads), mean(writes))


def as_markdown(done: list[Growth]) -> str:
    """Return the table."""
    lines = ["| rows | requests | most | read units | write units |", "|---:|---:|---:|---:|---:|"]
    lines += [
        f"| {each.rows:,} | {each.requests:.2f} | {each.most_requests} | {each.read_units:.2f} | "
        f"{each.write_units:.2f} |"
        for each in done
    ]
    return "\n".join(lines)
