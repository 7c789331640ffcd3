"""Many workers move money between a few hot accounts: our transactions beside a retry loop on PynamoDB's own."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from benchmarks.meter import metered
from benchmarks.transaction_counts import Transactions
from pynamo_locking import LockableModel, LockAttribute, VersionAttribute, transactional
from pynamo_locking._core.lease import backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamodb.connection import Connection
    from pynamodb.expressions.update import Action

    from pynamo_locking.transactions import Transaction
    from tests.engines.engine import Engine

HOT: Final = 10
#: Rows of its own that each worker writes as well, so that a transaction needs the long path.
COLD: Final = 110
FIRST_BALANCE: Final = 1_000
#: Nobody gives up.
_ATTEMPTS: Final = 1_000_000
_WAIT_S: Final = 600.0


class Hot(LockableModel):
    """An account that everybody wants."""

    class Meta:
        table_name = "hot"
        region = "us-east-1"
        transaction_table = Transactions

    key = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=FIRST_BALANCE)
    version = VersionAttribute()
    lock = LockAttribute()


class Cold(LockableModel):
    """A row that one worker wants."""

    class Meta:
        table_name = "cold"
        region = "us-east-1"
        transaction_table = Transactions

    key = UnicodeAttribute(hash_key=True)
    total = NumberAttribute(default=0)
    version = VersionAttribute()
    lock = LockAttribute()


class Own(Model):
    """A hot account of PynamoDB's own; the version is counted by hand, as a condition of each write."""

    class Meta:
        table_name = "own"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=FIRST_BALANCE)
    version = NumberAttribute(default=1)


# The contenders: each moves one unit once, and returns how many attempts that took


def native(_: int, source: str, target: str) -> int:
    """Two items: one native transaction."""
    return _transact(lambda tx: _move(tx, source, target))


def long(worker: int, source: str, target: str) -> int:
    """Two hot items and many cold ones: header, marks, decision, finish."""

    def act(tx: Transaction) -> None:
        _move(tx, source, target)
        for number in range(COLD):
            tx.update(Cold(f"{worker}-{number}"), [Cold.total.add(1)], add_version_condition=False)

    return _transact(act)


def for_update(_: int, source: str, target: str) -> int:
    """Two items whose queue locks are taken first, in the order of their keys."""

    def act(tx: Transaction) -> None:
        for key in sorted((source, target)):
            tx.get(Hot, key, for_update=True)
        _move(tx, source, target)

    return _transact(act)


def _transact(act: Callable[[Transaction], None]) -> int:
    attempts = 0

    @transactional(attempts=_ATTEMPTS, wait=_WAIT_S)
    def run(tx: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        act(tx)

    run()
    return attempts


def _move(tx: Transaction, source: str, target: str) -> None:
    giver, taker = tx.get(Hot, source), tx.get(Hot, target)
    giver.balance -= 1
    taker.balance += 1
    tx.save(giver)
    tx.save(taker)


def first_committer_wins(_: int, source: str, target: str) -> int:
    """PynamoDB alone: get, get, TransactWrite with conditions on the versions; again after full jitter."""
    for attempt in range(1, _ATTEMPTS):
        giver, taker = (Own.get(key, consistent_read=True) for key in (source, target))
        with contextlib.suppress(TransactWriteError):
            with TransactWrite(connection=_connection()) as write:
                for item, amount in ((giver, -1), (taker, 1)):
                    actions: list[Action] = [Own.balance.add(amount), Own.version.add(1)]
                    write.update(item, actions, condition=Own.version == item.version)
            return attempt
        time.sleep(backoff(attempt, random.random()))  # noqa: S311 - the pause of `transactional`
    raise AssertionError("it never came through")


def _connection() -> Connection:
    connection: Connection = Own._get_connection().connection
    return connection


CONTENDERS: Final[dict[str, tuple[Callable[[int, str, str], int], type[Any]]]] = {
    "PynamoDB, retry loop": (first_committer_wins, Own),
    "native": (native, Hot),
    "for_update": (for_update, Hot),
    f"long, {COLD} cold rows": (long, Hot),
}


# The race


@dataclass
class Race:
    """What one contender did.

    Attributes:
        name: of the contender.
        workers: how many threads there were.
        transfers: how many transfers all of them made.
        finished: how many workers have made all of theirs.
        seconds: from the first one's start to the last one's end.
        aborts: attempts that failed.
        requests: to DynamoDB, of all kinds.
        waits_s: seconds that each transfer took, sorted.
    """

    name: str
    workers: int
    transfers: int = 0
    finished: int = 0
    seconds: float = 0.0
    aborts: int = 0
    requests: int = 0
    waits_s: list[float] = field(default_factory=list, repr=False)

    @property
    def throughput(self) -> float:
        """Transfers a second."""
        return self.transfers / self.seconds

    def wait_ms(self, part: float) -> float:
        """Return what that part of all transfers did not take longer than; 1 for the longest."""
        return 1000 * self.waits_s[min(len(self.waits_s) - 1, int(part * len(self.waits_s)))]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, with percentiles in the place of all waits."""
        data = asdict(self)
        del data["waits_s"]
        percentiles = {"p50_ms": self.wait_ms(0.5), "p99_ms": self.wait_ms(0.99), "longest_ms": self.wait_ms(1)}
        return data | percentiles | {"throughput": self.throughput}


def compare(engine: Engine, workers: int, transfers: int, rounds: int) -> Iterator[Race]:
    """Let the contenders take turns, several rounds; yield the sum of each at the end.

    Args:
        engine: where.
        workers: threads of each contender.
        transfers: how many each worker makes in a round.
        rounds: how often they take turns.
    """
    engine.bind(Transactions, Hot, Cold, Own)
    for number in range(HOT):
        Hot(str(number)).save()
        Own(str(number)).save()
    for worker in range(workers):
        for number in range(COLD):
            Cold(f"{worker}-{number}").save()
    races = {name: Race(name, workers) for name in CONTENDERS}
    for name, (mover, _) in CONTENDERS.items():
        _run(Race(name, 1), mover, 1, 1)  # the first request of each model makes a client
    for _ in range(rounds):
        for name, (mover, model) in CONTENDERS.items():
            _run(races[name], mover, workers, transfers)
            if sum(each.balance for each in model.scan(consistent_read=True)) != HOT * FIRST_BALANCE:
                raise RuntimeError(f"{name} has lost money")
    for race in races.values():
        race.finished //= rounds
        race.waits_s.sort()
        yield race


def _run(race: Race, mover: Callable[[int, str, str], int], workers: int, transfers: int) -> None:
    mutex, begin = threading.Lock(), threading.Barrier(workers + 1)

    def work(worker: int) -> None:
        chooser = random.Random(worker)  # noqa: S311 - the same transfers for all contenders
        begin.wait()
        for _ in range(transfers):
            source, target = chooser.sample(range(HOT), 2)
            start = time.monotonic()
            attempts = mover(worker, str(source), str(target))
            with mutex:
                race.waits_s.append(time.monotonic() - start)
                race.aborts += attempts - 1
                race.transfers += 1
        with mutex:
            race.finished += 1

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    begin.wait()
    start = time.monotonic()
    with metered() as meter:
        for thread in threads:
            thread.join()
    race.seconds += time.monotonic() - start
    race.requests += meter.requests


def as_markdown(races: list[Race]) -> str:
    """Return the table; ratios are to the first row."""
    head = ("contender", "finished", "transfers/s", "ratio", "aborts per transfer", "requests per transfer")
    lines = [
        "| " + " | ".join((*head, "p50, ms", "p99, ms", "longest, ms", "ratio of longest")) + " |",
        "|---|" + "---:|" * 9,
    ]
    base = races[0]
    for race in races:
        cells = (
            race.name,
            f"{race.finished} of {race.workers}",
            f"{race.throughput:.1f}",
            f"{race.throughput / base.throughput:.2f}",
            f"{race.aborts / race.transfers:.2f}",
            f"{race.requests / race.transfers:.1f}",
            *(f"{race.wait_ms(part):.0f}" for part in (0.5, 0.99, 1)),
            f"{race.wait_ms(1) / base.wait_ms(1):.2f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
