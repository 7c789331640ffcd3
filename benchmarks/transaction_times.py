"""How long it takes to change many items, beside a loop of reads and writes that protects nothing."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from benchmarks.meter import metered
from benchmarks.transaction_counts import ITEM_BYTES, Record, Transactions
from pynamo_locking import transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.engines.engine import Engine

SIZES: Final = (100, 1_000)
#: Of the loop and of the batch, which write single items, and of a transaction: nothing expires on a busy machine.
_LEASE_S: Final = 600.0


class Unprotected(Model):
    """The same item as PynamoDB's own model, without version and lock."""

    class Meta:
        table_name = "unprotected"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(default="x" * (ITEM_BYTES - 100))
    total = NumberAttribute(default=0)


def loop(keys: Sequence[str]) -> None:
    """A get and a put for each item, one after the other."""
    for key in keys:
        item = Unprotected.get(key, consistent_read=True)
        item.total += 1
        item.save()


def commit(keys: Sequence[str]) -> None:
    """All of them in one transaction."""
    with transaction(wait=_LEASE_S, lease=_LEASE_S) as tx:
        for record in tx.get_all(Record, keys):
            assert record is not None  # noqa: S101 - the benchmark is void otherwise
            record.total += 1
            tx.save(record)


def batch(keys: Sequence[str]) -> None:
    """A BatchGetItem for a hundred, and a guarded batch: each is checked for itself."""
    with Record.guarded_batch() as writes:
        for record in Record.batch_get(list(keys), consistent_read=True):
            record.total += 1
            writes.save(record)


CONTENDERS: Final[dict[str, Callable[[Sequence[str]], None]]] = {
    "loop": loop,
    "transaction": commit,
    "guarded_batch": batch,
}


@dataclass(frozen=True)
class Turn:
    """What one contender took for so many items, once."""

    contender: str
    n: int
    seconds: float
    requests: int
    read_units: float
    write_units: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def compare(engine: Engine, sizes: Sequence[int], names: Sequence[str], rounds: int) -> Iterator[Turn]:
    """Let the contenders take turns, each with the same items in every round."""
    engine.bind(Transactions, Record, Unprotected)
    keys = [f"i{number:04}" for number in range(max(sizes))]
    with Record.batch_write(unguarded=True) as records, Unprotected.batch_write() as unprotected:
        for key in keys:
            records.save(Record(key, version=1))
            unprotected.save(Unprotected(key))
    for n in sizes:
        for name in [*names] * rounds:
            with metered() as meter:
                begun = time.perf_counter()
                CONTENDERS[name](keys[:n])
                seconds = time.perf_counter() - begun
            yield Turn(name, n, seconds, meter.requests, meter.read_units, meter.write_units)


def as_markdown(turns: Sequence[Turn]) -> str:
    """Return the table; ratios are those of the medians."""
    lines = [
        "| items | contender | requests | read units | write units | seconds, median (fastest to slowest) | ratio |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for n in dict.fromkeys(turn.n for turn in turns):
        by_name: dict[str, list[Turn]] = {}
        for turn in turns:
            if turn.n == n:
                by_name.setdefault(turn.contender, []).append(turn)
        reference = median(turn.seconds for turn in by_name.get("loop", next(iter(by_name.values()))))
        lines += [_row(n, name, of_one, reference) for name, of_one in by_name.items()]
    return "\n".join(lines)


def _row(n: int, name: str, turns: Sequence[Turn], reference: float) -> str:
    seconds, [*_, last] = sorted(turn.seconds for turn in turns), turns
    times = f"{median(seconds):.3f} ({seconds[0]:.3f} to {seconds[-1]:.3f})"
    cells = (f"{n:,}", name, f"{last.requests:,}", f"{last.read_units:,.0f}", f"{last.write_units:,.0f}")
    return f"| {' | '.join(cells)} | {times} | {median(seconds) / reference:.3f} |"
