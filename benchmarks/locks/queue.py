"""A long queue: how large the document gets, what that costs, and how seldom those far back look."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.locks.tables import markdown
from benchmarks.meter import metered
from pynamo_locking import LockSettings, NamedLock
from pynamo_locking._core.values import item_size
from tests.support.wire import count_requests

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamo_locking import Lock

LENGTHS: Final = (0, 1, 2, 5, 10, 20, 50, 99)
_WATCHED_S: Final = 8.0


class Names(NamedLock):
    """Locks in rows of their own."""

    class Meta:
        table_name = "names"
        region = "us-east-1"
        lock_settings = LockSettings(
            wait=600, lease=600, max_waiters=200, max_callers_per_entry=1
        )  # none is renewed meanwhile


@dataclass(frozen=True)
class Length:
    """A queue with so many waiters.

    Attributes:
        waiters: behind the holder.
        document_bytes: size of the row, as DynamoDB counts it.
        enter_units: write units that the last one took to enter.
        renew_units: write units.
        look_units: read units of one look.
        reads_per_s: looks of the last waiter.
    """

    waiters: int
    document_bytes: int
    enter_units: float
    renew_units: float
    look_units: float
    reads_per_s: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def measure(tick: Callable[[], None]) -> list[Length]:
    """Let waiters queue up behind a holder, and watch them. `Names` is bound to an engine."""
    threads: list[threading.Thread] = []
    holder = Names.locked("long")
    with metered() as entering:
        holder.acquire()
    done = []
    for length in LENGTHS:
        while len(threads) < length:
            with metered() as entering:
                threads.append(_wait(len(threads) + 1))
                while not entering.write_units:
                    time.sleep(0.001)  # its answer is on the way
        done.append(_measure(length, holder, entering.write_units))
        tick()
    reads = _reads_by_position()
    holder.release()
    for thread in threads:
        thread.join()
    return [replace(each, reads_per_s=reads.get(each.waiters, 0.0)) for each in done]


def _wait(position: int) -> threading.Thread:
    def work() -> None:
        with Names.locked("long"):
            pass

    thread = threading.Thread(target=work, name=f"waiter-{position}")
    thread.start()
    while len(Names.lock_state("long").waiters) < position:
        time.sleep(0.005)
    return thread


def _measure(length: int, holder: Lock[Any], enter_units: float) -> Length:
    with metered() as renewing:
        holder.renew()
    looked = Names._get_connection().connection._make_api_call(
        "GetItem",
        {"TableName": Names.Meta.table_name, "Key": {"name": {"S": "long"}}, "ReturnConsumedCapacity": "TOTAL"},
    )
    look_units = looked["ConsumedCapacity"]["CapacityUnits"]
    return Length(length, item_size(looked["Item"]), enter_units, renewing.write_units, look_units, 0.0)


def _reads_by_position() -> dict[int, float]:
    """Count the looks of each waiter for a while."""
    counts: Counter[str] = Counter()
    with count_requests() as requests:
        add = requests.add

        def noting(operation: str, body: dict[str, Any]) -> None:
            counts[threading.current_thread().name] += operation == "GetItem"
            add(operation, body)

        requests.add = noting  # type: ignore[method-assign]
        time.sleep(_WATCHED_S)
    return {int(name.removeprefix("waiter-")): count / _WATCHED_S for name, count in counts.items() if "waiter" in name}


def as_markdown(done: list[Length]) -> str:
    """Return the table."""
    head = ("waiters", "row, bytes", "units to enter", "to renew", "to look", "looks of the last, a second")
    rows = [
        (
            str(each.waiters),
            f"{each.document_bytes:,}",
            *(f"{figure:g}" for figure in (each.enter_units, each.renew_units, each.look_units)),
            f"{each.reads_per_s:.2f}" if each.waiters else "-",
        )
        for each in done
    ]
    return markdown(head, rows)
