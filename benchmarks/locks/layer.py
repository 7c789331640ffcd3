"""What our layer takes of a processor: per cycle, beside PynamoDB's own get and save, and to import."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from benchmarks.locks.tables import markdown, spread
from pynamo_locking import LockableModel, LockAttribute, NamedLock, VersionAttribute, VersionedMixin

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.engine import Engine

_IN_ONE_TURN: Final = 5


class _Counter:
    body = UnicodeAttribute(default="x" * 400)
    total = NumberAttribute(default=0)


class Plain(_Counter, Model):
    """PynamoDB's own, without any protection."""

    class Meta:
        table_name = "plain"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)


class Versioned(_Counter, VersionedMixin, Model):
    """Ours, with a version."""

    class Meta:
        table_name = "versioned"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()


class Embedded(_Counter, LockableModel):
    """Ours, with the lock in the item."""

    class Meta:
        table_name = "embedded"
        region = "us-east-1"

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    lock = LockAttribute()


class Names(NamedLock):
    """Locks in rows of their own."""

    class Meta:
        table_name = "names"
        region = "us-east-1"


class Beside(_Counter, LockableModel):
    """Ours, with the lock in a row of its own."""

    class Meta:
        table_name = "beside"
        region = "us-east-1"
        lock_table = Names

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()


MODELS: Final[tuple[type[Model], ...]] = (Plain, Versioned, Embedded, Names, Beside)


def _unprotected() -> None:
    counter = Plain.get("k", consistent_read=True)
    counter.total += 1
    counter.save()


def _version() -> None:
    Versioned.modify("k", _add)


def _edit() -> None:
    with Embedded.edit("k") as counter:
        counter.total += 1


def _locked() -> None:
    with Embedded.locked("k") as lock:
        counter = lock.item
        counter.total += 1
        counter.save()


def _beside() -> None:
    with Beside.edit("k") as counter:
        counter.total += 1


def _named() -> None:
    with Names.locked("k"):
        pass


def _add(counter: Any) -> None:
    counter.total += 1


CASES: Final[dict[str, Callable[[], None]]] = {
    "PynamoDB: get + save, no protection": _unprotected,
    "modify(): a version": _version,
    "edit(): lock in the item": _edit,
    "locked() + save(): lock in the item": _locked,
    "edit(): lock in a row": _beside,
    "NamedLock: lock and unlock": _named,
}


@dataclass(frozen=True)
class Cpu:
    """Processor time of one cycle in the calling thread.

    Attributes:
        engine: which one answered; the one in memory answers in the same thread, so its time is in it.
        case: what a cycle is.
        median_us: of all turns.
        ratio: to PynamoDB's own get and save.
        ratios: of single turns, the middle 80 %.
    """

    engine: str
    case: str
    median_us: float
    ratio: float
    ratios: str

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def measure(engine: Engine, turns: int, tick: Callable[[], None]) -> list[Cpu]:
    """Let all cases take turns on an engine."""
    engine.bind(*MODELS)
    for model in (Plain, Versioned, Embedded, Beside):
        model("k").save()
    for case in CASES.values():
        case()
        case()
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(turns):
        for name, case in CASES.items():
            begin = time.thread_time()
            for _ in range(_IN_ONE_TURN):
                case()
            times[name].append((time.thread_time() - begin) / _IN_ONE_TURN)
        tick()
    floor = next(iter(times.values()))
    return [_sum_up(engine.name, name, own, floor) for name, own in times.items()]


def _sum_up(engine: str, name: str, own: list[float], floor: list[float]) -> Cpu:
    ratios = spread([mine / theirs for mine, theirs in zip(own, floor, strict=True)])
    return Cpu(engine, name, 1e6 * statistics.median(own), statistics.median(own) / statistics.median(floor), ratios)


def cpu_as_markdown(done: list[Cpu]) -> str:
    """Return the table."""
    head = ("one cycle, processor time", "median, µs", "ratio", "80 % of single ratios")
    rows = [
        (each.case, f"{each.median_us:.0f}", f"{each.ratio:.2f}", each.ratios)
        for each in done
        if each.engine == "dynoxide"
    ]
    return markdown(head, rows)


#: What a program imports that uses PynamoDB, and the same with us.
IMPORTS: Final = {
    "pynamodb": "import pynamodb.models, pynamodb.attributes, pynamodb.transactions, pynamodb.connection",
    "pynamo_locking": "import pynamo_locking",
    "with transactions": "import pynamo_locking; pynamo_locking.transaction; pynamo_locking.transactions.Transaction",
}
_TIMED: Final = "import time; b = time.thread_time(); {}; print(time.thread_time() - b)"


@dataclass(frozen=True)
class Import:
    """Processor time to import something in a fresh interpreter.

    Attributes:
        what: it is.
        median_ms: of all turns.
        above_ms: PynamoDB's own time; median of the differences of single turns.
    """

    what: str
    median_ms: float
    above_ms: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def measure_imports(turns: int, tick: Callable[[], None]) -> list[Import]:
    """Import each in turn, in processes of their own."""
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(turns):
        for name, text in IMPORTS.items():
            command = [sys.executable, "-c", _TIMED.format(text)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout  # noqa: S603
            times[name].append(1000 * float(answer))
        tick()
    floor = times["pynamodb"]
    return [
        Import(name, statistics.median(own), statistics.median(a - b for a, b in zip(own, floor, strict=True)))
        for name, own in times.items()
    ]


def imports_as_markdown(done: list[Import]) -> str:
    """Return the table."""
    head = ("import", "median, ms", "above PynamoDB's, ms")
    return markdown(head, [(each.what, f"{each.median_ms:.0f}", f"{each.above_ms:.1f}") for each in done])
