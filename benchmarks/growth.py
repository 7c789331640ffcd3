"""What grows with what: requests and units of transactions, their remains and their readers, by the number of items.

Counted on the engine in memory, by a clock that nobody waits for: the same on each machine.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from pynamodb.connection import Connection

from pynamo_locking import transaction
from pynamo_locking._core import dynamodb
from pynamo_locking.exceptions import Conflict
from pynamo_locking.transactions import Transaction
from pynamo_locking_testing import VirtualClock
from pynamo_locking_testing._engine.partitions import READS
from tests.engines.engine import running
from tests.support.deeds import dying_at
from tests.support.parties import in_thread
from tests.support.schedule import MODELS, Booking
from tests.support.transaction_models import Entry, Purse, Transactions, make_long_from, survive

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness import Bench
    from tests.engines.engine import Engine

SIZES: Final = (10, 100, 1_000, 10_000)
#: Longer than any of it takes.
_LEASE_S: Final = 3600.0
#: How many rows are asked for, of many.
FOUND: Final = 10


def _changed(prefix: str, n: int) -> Transaction:
    """Return a transaction that changes so many new items, all of them read."""
    keys = [f"{prefix}{number:05}" for number in range(n)]
    with Purse.batch_write(unguarded=True) as batch:
        for key in keys:
            batch.save(Purse(key, balance=1, version=1))
    tx = Transaction(workers=1, wait=_LEASE_S, lease=_LEASE_S)
    for item in tx.get_all(Purse, keys):
        assert item is not None  # noqa: S101 - the benchmark is void otherwise
        item.balance += 1
        tx.save(item)
    return tx


def _left(prefix: str, n: int) -> None:
    """Let a process die right after the decision of a long commit, also of few items."""
    tx = _changed(prefix, n)
    with pytest.MonkeyPatch.context() as patch:
        make_long_from(patch, min(n // 2, dynamodb.MOST_ACTIONS), statements=dynamodb.MOST_STATEMENTS)
        with dying_at(patch, "decision", is_answer_lost=True):
            in_thread(lambda: survive(tx.commit))


def _commit(n: int) -> Callable[[], object]:
    return _changed("c", n).commit


def _abort(n: int) -> Callable[[], object]:
    """The last item was changed by another party, which the last marks find."""
    tx = _changed("a", n)
    Purse(f"a{n - 1:05}").update([Purse.balance.add(1)], add_version_condition=False)

    def commit() -> None:
        with suppress(Conflict):
            tx.commit()

    return commit


def _sweep(n: int) -> Callable[[], object]:
    """A process died right after the decision."""
    _left("s", n)
    return Transactions.sweep


def _read_marks(n: int) -> Callable[[], object]:
    """The same, and a transaction reads all of its items."""
    _left("r", n)

    def read() -> None:
        with transaction(isolation="read_committed") as tx:
            tx.get_all(Purse, [f"r{number:05}" for number in range(n)])

    return read


def _query(n: int) -> Callable[[], object]:
    """The first row of many, in a transaction."""
    with Entry.batch_write(unguarded=True) as batch:
        for number in range(n):
            batch.save(Entry("b", number, version=1))

    def query() -> None:
        with transaction() as tx:
            assert len(tx.query(Entry, "b", limit=1)) == 1  # noqa: S101 - the benchmark is void otherwise

    return query


def _fill_device(n: int) -> None:
    """Store rows with gaps between them."""
    with Booking.batch_write(unguarded=True) as batch:
        for place in range(n):
            batch.save(Booking("d", place * 10, end=place * 10 + 5, by="filler", version=1))


def _overlapping(n: int) -> Callable[[], object]:
    """Ten intervals of many, at the end of the hash key."""
    _fill_device(n)

    def overlapping() -> None:
        assert len(list(Booking.intervals.overlapping("d", (n - FOUND) * 10, n * 10))) == FOUND  # noqa: S101 - the benchmark is void otherwise

    return overlapping


def _insert_disjoint(n: int) -> Callable[[], object]:
    """One into a gap in the middle of many."""
    _fill_device(n)
    begin = n // 2 * 10 + 5
    return partial(Booking.intervals.insert_disjoint, [Booking("d", begin, end=begin + 1, by="counted")])


KINDS: Final[dict[str, Callable[[int], Callable[[], object]]]] = {
    "commit of n updates": _commit,
    "abort, refused by the last item": _abort,
    "sweep of n decided items": _sweep,
    "get_all of n decided items": _read_marks,
    "tx.query(limit=1) of n rows": _query,
    "overlapping(): 10 of n rows": _overlapping,
    "insert_disjoint() beside n rows": _insert_disjoint,
}


def measure(bench: Bench) -> None:
    """Count each kind at each size."""

    def turn(kind: str, n: int) -> dict[str, float]:
        with running("memory", bench.servers) as engine:
            return count(engine, kind, n)

    for n in bench.size(SIZES, SIZES[:1]):
        bench.in_turns(f"n = {n:,}", {kind: partial(turn, kind, n) for kind in KINDS}, rounds=1)


def count(engine: Engine, kind: str, n: int) -> dict[str, float]:
    """Count all requests of one kind, also those that are refused, and the units of those that are not."""
    original, requests, units = Connection.dispatch, list[str](), Counter[bool]()

    def dispatch(connection: Connection, operation: str, kwargs: dict[str, Any], *args: Any) -> Any:
        requests.append(operation)
        answer: Any = original(connection, operation, {**kwargs, "ReturnConsumedCapacity": "TOTAL"}, *args)
        consumed = answer.get("ConsumedCapacity", [])
        for each in consumed if isinstance(consumed, list) else [consumed]:
            units[operation in READS] += each["CapacityUnits"]
        return answer

    engine.bind(Purse, Entry, Transactions, *MODELS)
    with VirtualClock():
        call = KINDS[kind](n)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "dispatch", dispatch)
            call()
    return {"requests": len(requests), "write units": units[False], "read units": units[True]}
