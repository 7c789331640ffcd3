"""How long a writer is kept waiting by a transaction of many items whose process was killed, in leases."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.client import BaseClient

from benchmarks.transaction_counts import Record, Transactions
from pynamo_locking import transaction
from pynamo_locking.transactions import Transaction
from tests.support import crew
from tests.support.bank_audit import marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engines.engine import Engine

#: Items of the transaction; 51 of them get a mark.
ITEMS: Final = 150
MARKED: Final = ITEMS - 99
LEASE_S: Final = 3.0
#: Beyond the lease and the clock skew that is allowed for (10 s), so that the stored end of the lease is believed.
LATE_S: Final = LEASE_S + 12.0


@dataclass(frozen=True)
class Sample:
    """One writer that was kept waiting.

    Attributes:
        case: who waits, and since when.
        killed_after: how many requests of the commit the killed process had begun.
        seconds: from his first request, which came after the kill, until his write was done.
    """

    case: str
    killed_after: int
    seconds: float

    @property
    def leases(self) -> float:
        """The same in leases of the killed transaction."""
        return self.seconds / LEASE_S

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"leases": self.leases}


# The process that is killed


def _coordinate(_pipe: object, places: crew.Places, name: str, request: int) -> None:
    """Write many items in one transaction, and die at its k-th request."""
    crew.use(places)
    with transaction(lease=LEASE_S, workers=1) as tx:  # one request at a time, so that it is known what was done
        for number in range(ITEMS):
            tx.update(tx.get(Record, f"{name}-{number:04}"), [Record.total.add(1)])
        _die_at(request)


def _die_at(request: int) -> None:
    """Kill this process when it is about to make a request."""
    client: Any = BaseClient
    call, left = client._make_api_call, [request]

    def counting(self: Any, operation: str, kwargs: dict[str, Any]) -> Any:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(self, operation, kwargs)

    client._make_api_call = counting


def _killed(engine: Engine, name: str, request: int) -> None:
    """Run a coordinator until it is dead; its marks are left."""
    places = crew.places_of(engine, (Transactions, Record))
    with crew.Child(_coordinate, places, name, request) as child:
        status, said = child.wait(), child.said()
    if status != -signal.SIGKILL:
        raise RuntimeError(f"the coordinator was to be killed, and ended with {status}: {said}")


# Those who are kept waiting


def _plain_write(_: Transaction, key: str) -> None:
    Record(key).update([Record.total.add(100)], add_version_condition=False)


def _younger(_: Transaction, key: str) -> None:
    with transaction(wait=60.0) as tx:
        tx.update(tx.get(Record, key), [Record.total.add(100)])
        tx.update(tx.get(Record, f"free-{key}"), [Record.total.add(100)])


def _older(begun: Transaction, key: str) -> None:
    begun.update(begun.get(Record, key), [Record.total.add(100)])
    begun.update(begun.get(Record, f"free-{key}"), [Record.total.add(100)])
    begun.commit()


#: Who waits; how long after the kill he comes; whether the killed one had decided.
CASES: Final[dict[str, tuple[Callable[[Transaction, str], None], float, bool]]] = {
    "a single write, at once": (_plain_write, 0.0, False),
    "a younger transaction, at once": (_younger, 0.0, False),
    "an older transaction, at once": (_older, 0.0, False),
    f"a single write, {LATE_S:g} s later": (_plain_write, LATE_S, False),
    "a single write, after the decision": (_plain_write, 0.0, True),
}


def measure(engine: Engine, samples: int, seed: str) -> Iterator[Sample]:
    """Kill coordinators at random requests, and let others write what they have marked.

    Args:
        engine: where.
        samples: of each case.
        seed: of the moments.
    """
    engine.bind(Transactions, Record)
    chooser = random.Random(seed)  # noqa: S311 - moments that can be had again
    for case in CASES:
        for number in range(samples):
            yield _sample(engine, case, f"{'-'.join(case.split())}-{number}", chooser)
    Transactions.sweep()


def _sample(engine: Engine, case: str, name: str, chooser: random.Random) -> Sample:
    write, late_s, is_decided = CASES[case]
    _fill(name)
    begun = Transaction(wait=120.0)  # older than the one that is killed
    # Undecided: after the first mark, or later, and before the decision. Decided: at least one mark is left.
    before = 1 + 1 + MARKED
    first, last = (before + 1, before + MARKED) if is_decided else (3, before)
    request = chooser.randint(first, last)
    _killed(engine, name, request)
    time.sleep(late_s)
    key = str(chooser.choice([key for image in marked(Record) if (key := image["key"]["S"]).startswith(name)]))
    Record(f"free-{key}").save()
    start = time.monotonic()
    write(begun, key)
    sample = Sample(case, request, time.monotonic() - start)
    expected = 101 if is_decided else 100
    if Record.get(key, consistent_read=True).total != expected:
        raise RuntimeError(f"{key} has not become {expected}")
    return sample


def _fill(name: str) -> None:
    for start in range(0, ITEMS, 75):
        with transaction(Transactions) as tx:
            for number in range(start, start + 75):
                tx.save(Record(f"{name}-{number:04}"))


def as_markdown(samples: list[Sample]) -> str:
    """Return the table: one row for each case."""
    head = "| writer, and when it comes | samples | least | median | longest, in leases |"
    lines = [head, "|---|---:|---:|---:|---:|"]
    for case in CASES:
        leases = sorted(sample.leases for sample in samples if sample.case == case)
        figures = (leases[0], statistics.median(leases), leases[-1])
        cells = (case, str(len(leases)), *(f"{figure:.2f}" for figure in figures))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
