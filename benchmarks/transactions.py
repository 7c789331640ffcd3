"""Transactions: requests and units by their size, time beside a loop without protection, and contention.

Contention: threads move money between a few hot accounts, in transactions and in a retry loop of PynamoDB's own. Money
must not be lost.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from benchmarks.contenders import Place
from benchmarks.contenders.postgres import PostgreSQL
from benchmarks.harness import ROUND_TRIP_MS
from benchmarks.meter import metered
from pynamo_locking import (
    LockableModel,
    LockAttribute,
    LockSettings,
    TransactionTable,
    VersionAttribute,
    transaction,
    transactional,
)
from pynamo_locking._core.lease import backoff
from pynamo_locking.transactions import Transaction
from tests.support import crew

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.expressions.update import Action

    from benchmarks.harness import Bench

_BODY: Final = "x" * 412  # an item of half a kilobyte
#: Of what must not expire, nor be renewed, on a machine however slow.
_LEASE_S: Final = 3_600.0
#: Nobody gives up.
_ATTEMPTS: Final = 1_000_000


class Transactions(TransactionTable):
    """The headers."""

    class Meta:
        table_name = "transactions"
        region = "us-east-1"


class Record(LockableModel):
    """An item of half a kilobyte."""

    class Meta:
        lock_settings = LockSettings(lease=120, request_timeout=15)  # a busy machine sends nothing twice
        table_name = "records"
        region = "us-east-1"
        transaction_table = Transactions

    key = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(default=_BODY)
    total = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Unprotected(Model):
    """The same as PynamoDB's own model. `version` is counted by hand, as a condition of each write."""

    class Meta:
        table_name = "unprotected"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)
    body = UnicodeAttribute(default=_BODY)
    total = NumberAttribute(default=0)
    version = NumberAttribute(default=1)


# Requests and units, which are the same on each machine

SIZES: Final = (1, 10, 100, 101, 250, 1_000, 5_000)


def _update(tx: Transaction, key: str) -> None:
    record = tx.get(Record, key)
    record.total += 1
    tx.save(record)


def _insert(tx: Transaction, key: str) -> None:
    tx.save(Record(key))


def _delete(tx: Transaction, key: str) -> None:
    tx.delete(tx.get(Record, key))


#: What is done to each item.
KINDS: Final[dict[str, Callable[[Transaction, str], None]]] = {
    "updates": _update,
    "inserts": _insert,
    "deletes": _delete,
}


class Count(NamedTuple):
    """What one transaction took.

    Attributes:
        requests: of the commit.
        write_units: of the commit.
        refused: how many of the requests were refused.
        reads: requests of the transaction before the commit.
    """

    requests: int
    write_units: float
    refused: int
    reads: int


def count(kind: str, n: int) -> Count:
    """Make a transaction of so many items and count what it takes. The models are bound to an engine."""
    keys = [f"{kind}-{n}-{i:04}" for i in range(n)]
    if kind != "inserts":
        _store(keys)
    with metered() as reading:
        tx = Transaction(Transactions, wait=_LEASE_S, lease=_LEASE_S)
        for key in keys:
            KINDS[kind](tx, key)
    with metered() as committing:
        tx.commit()
    return Count(committing.requests, committing.write_units, committing.refused, reading.requests)


def _store(keys: Sequence[str]) -> None:
    with Record.batch_write(unguarded=True) as batch:
        for key in keys:
            batch.save(Record(key, version=1))


def measure_counts(bench: Bench) -> None:
    """Count each kind at each size."""

    def turn(kind: str, n: int) -> dict[str, float]:
        counted = count(kind, n)
        return {"requests": counted.requests, "write units": counted.write_units, "reads before": counted.reads}

    with bench.engine() as engine:
        engine.bind(Transactions, Record)
        for n in bench.size(SIZES, SIZES[:2]):
            bench.in_turns(f"{n:,} items", {kind: partial(turn, kind, n) for kind in KINDS}, rounds=1)


# Time beside a loop that protects nothing


def _loop(keys: list[str]) -> None:
    """A get and a put for each item, one after the other."""
    for key in keys:
        item = Unprotected.get(key, consistent_read=True)
        item.total += 1
        item.save()


def _commit(keys: list[str]) -> None:
    """All of them in one transaction."""
    with transaction(wait=_LEASE_S, lease=_LEASE_S) as tx:
        for record in tx.get_all(Record, keys):
            assert record is not None  # noqa: S101 - the benchmark is void otherwise
            record.total += 1
            tx.save(record)


def _batch(keys: list[str]) -> None:
    """A BatchGetItem for a hundred, and a guarded batch: each is checked for itself."""
    with Record.guarded_batch() as writes:
        for record in Record.batch_get(keys, consistent_read=True):
            record.total += 1
            writes.save(record)


def _native(keys: list[str]) -> None:
    """PynamoDB's own transaction, of a hundred items at most."""
    with TransactWrite(connection=Unprotected._get_connection().connection) as write:
        for item in Unprotected.batch_get(keys, consistent_read=True):
            write.update(item, [Unprotected.total.add(1)])


def measure_times(bench: Bench) -> None:
    """Change many items, at a distance."""
    ways = {"loop": _loop, "PynamoDB's TransactWrite": _native, "transaction": _commit, "guarded_batch": _batch}

    def turn(way: Callable[[list[str]], None], keys: list[str]) -> dict[str, float]:
        with metered() as meter:
            begun = time.perf_counter()
            way(keys)
            seconds = time.perf_counter() - begun
        units = {"read units": meter.read_units, "write units": meter.write_units}
        return {"seconds": seconds, "requests": meter.requests, **units}

    with bench.engine(ROUND_TRIP_MS) as engine:
        engine.bind(Transactions, Record, Unprotected)
        for n in bench.size((2, 10, 100, 1_000), (2,)):
            keys = [f"{n}-{number:04}" for number in range(n)]
            _store(keys)
            with Unprotected.batch_write() as batch:
                for key in keys:
                    batch.save(Unprotected(key))
            able = {name: way for name, way in ways.items() if way is not _native or n <= 100}  # noqa: PLR2004
            bench.in_turns(f"{n:,} items", {name: partial(turn, way, keys) for name, way in able.items()}, warm_up=1)


# Contention

HOT: Final = 10
WORKERS: Final = 16
PROCESSES: Final = 4
#: How many transfers each worker makes; of long ones, which take seconds, and of others.
TRANSFERS: Final = (3, 40)
#: Rows of its own that each worker writes as well, so that a transaction needs the long path.
COLD: Final = 110
FIRST_BALANCE: Final = 1_000
_KEYS: Final = [str(number) for number in range(HOT)]


def _first_committer_wins(_: int, source: str, target: str) -> int:
    """PynamoDB alone: get, get, TransactWrite with conditions on the versions; again after full jitter."""
    connection = Unprotected._get_connection().connection
    for attempt in range(1, _ATTEMPTS):
        giver, taker = (Unprotected.get(key, consistent_read=True) for key in (source, target))
        with contextlib.suppress(TransactWriteError):
            with TransactWrite(connection=connection) as write:
                for item, amount in ((giver, -1), (taker, 1)):
                    actions: list[Action] = [Unprotected.total.add(amount), Unprotected.version.add(1)]
                    write.update(item, actions, condition=Unprotected.version == item.version)
            return attempt
        time.sleep(backoff(attempt, random.random()))  # noqa: S311 - the pause of `transactional`
    raise AssertionError("it never came through")


def _transfer(
    worker: int, source: str, target: str, *, for_update: bool = False, combine: bool = False, cold: int = 0
) -> int:
    """Two items in a transaction, and some that nobody else wants; return how many attempts that took."""
    attempts = 0

    @transactional(attempts=_ATTEMPTS, combine=combine, wait=600.0)
    def run(tx: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        if for_update:
            for key in sorted((source, target)):
                tx.get(Record, key, for_update=True)
        giver, taker = tx.get(Record, source), tx.get(Record, target)
        giver.total -= 1
        taker.total += 1
        tx.save(giver)
        tx.save(taker)
        for number in range(cold):
            tx.update(Record(f"{worker}-{number}"), [Record.total.add(1)], add_version_condition=False)

    run()
    return attempts


_LONG: Final = f"long, {COLD} cold rows"
#: Each moves one unit once, and returns how many attempts that took. PynamoDB's own first.
MOVERS: Final[dict[str, Callable[[int, str, str], int]]] = {
    "PynamoDB, retry loop": _first_committer_wins,
    "transactional": _transfer,
    "transactional, for_update": partial(_transfer, for_update=True),
    "transactional(combine=True)": partial(_transfer, combine=True),
    _LONG: partial(_transfer, cold=COLD),
}


def _mover_in(database: PostgreSQL) -> Callable[[int, str, str], int]:
    """PostgreSQL: both rows locked in the order of their keys, which no other transfer can be in the way of."""

    def move(_: int, source: str, target: str) -> int:
        database.move(source, target)
        return 1

    return move


def measure_transfers(bench: Bench) -> None:
    """Let threads move money, at a distance: of one process, and of four."""
    short, long = bench.size(TRANSFERS[::-1], (1, 1))
    workers, processes = bench.size((WORKERS, PROCESSES), (2, 2))
    with bench.engine(ROUND_TRIP_MS) as engine, contextlib.ExitStack() as stack:
        engine.bind(Transactions, Record, Unprotected)
        for key in _KEYS:
            Record(key, total=FIRST_BALANCE).save()
            Unprotected(key, total=FIRST_BALANCE).save()
        _store([f"{worker}-{number}" for worker in range(workers) for number in range(COLD)])
        places = crew.places_of(engine, (Transactions, Record, Unprotected))
        database: Place | None = None
        if not PostgreSQL.unavailable():
            database = Place(str(engine.host), f"transfers-{time.monotonic_ns()}-", ROUND_TRIP_MS)
            server = PostgreSQL(database)
            stack.callback(server.close)
            server.create(_KEYS)

        def turn(name: str, shares: Sequence[int]) -> dict[str, float]:
            figures = _race(name, places, database, shares, long if name == _LONG else short)
            for model in (Record, Unprotected):
                if sum(each.total for each in model.batch_get(_KEYS, consistent_read=True)) != HOT * FIRST_BALANCE:
                    raise RuntimeError("money was lost")
            return figures

        names = [*MOVERS, *([] if database is None else [PostgreSQL.name])]
        together, apart = [workers], [workers // processes] * processes
        bench.in_turns(f"{workers} threads", {name: partial(turn, name, together) for name in names}, warm_up=1)
        names.remove(_LONG)
        case = f"{processes} processes of {apart[0]} threads"
        bench.in_turns(case, {name: partial(turn, name, apart) for name in names}, warm_up=1)


class _Job(NamedTuple):
    """What one process does: so many transfers by each of its workers; `database` is that of PostgreSQL."""

    mover: str
    database: Place | None
    workers: range
    transfers: int


class _Raced(NamedTuple):
    """What the workers of a process did. Moments are of the clock that all processes share.

    Attributes:
        waits_ms: from the first attempt of each transfer until it was committed.
        attempts: of all transfers.
        requests: to DynamoDB.
        begun, ended: when all of them began, and when the last one was done.
    """

    waits_ms: list[float]
    attempts: int
    requests: int
    begun: float
    ended: float


def _race(
    name: str, places: crew.Places, database: Place | None, shares: Sequence[int], transfers: int
) -> dict[str, float]:
    """Let processes of so many threads each make transfers."""
    firsts = [sum(shares[:number]) for number in range(len(shares))]
    jobs = [
        _Job(name, database, range(first, first + share), transfers)
        for first, share in zip(firsts, shares, strict=True)
    ]
    raced: list[_Raced] = crew.at_once(places, _warm_up, _work, jobs)
    waits_ms = [wait for each in raced for wait in each.waits_ms]
    done = sum(shares) * transfers
    if len(waits_ms) < done:
        raise RuntimeError(f"only {len(waits_ms)} of {done} transfers came through")
    return {
        "transfers/s": done / (max(each.ended for each in raced) - min(each.begun for each in raced)),
        "aborts": sum(each.attempts for each in raced) / done - 1,
        "requests": sum(each.requests for each in raced) / done,
        "p50, ms": statistics.median(waits_ms),
        "p99, ms": statistics.quantiles(waits_ms, n=100, method="inclusive")[98],
        "longest, ms": max(waits_ms),
    }


def _warm_up() -> None:
    """Connect: the first requests of a process are not measured."""
    Record.get(_KEYS[0])
    Unprotected.get(_KEYS[0])


def _work(job: _Job) -> _Raced:
    """Be one of the processes."""
    mover = MOVERS[job.mover] if job.database is None or job.mover in MOVERS else _mover_in(PostgreSQL(job.database))
    waits_ms: list[float] = []
    attempts: list[int] = []

    def work(worker: int) -> None:
        chooser = random.Random(worker)  # noqa: S311 - the same transfers for all contenders
        for _ in range(job.transfers):
            source, target = chooser.sample(_KEYS, 2)
            start = time.monotonic()
            attempts.append(mover(worker, source, target))
            waits_ms.append(1000 * (time.monotonic() - start))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in job.workers]
    begun = time.monotonic()
    with metered() as meter:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return _Raced(waits_ms, sum(attempts), meter.requests, begun, time.monotonic())
