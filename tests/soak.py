"""Works for minutes without a fault, and looks whether anything grows that should not.

    make soak                 # 5 minutes
    SOAK_S=60 make soak

Threads do a steady mix of all operations on dynoxide. Memory, threads and open files are sampled all the
while; the medians of the second and the last fifth of the samples are compared. The first fifth is not: caches,
pools and the allocator fill up in it. Ends with 1 if anything grew by more than is allowed, or failed.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import statistics
import sys
import threading
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import rich
from rich.progress import Progress
from rich.table import Table

from pynamo_locking import LockSettings, NamedLock, TransactWrite, VersionedMixin, locked_all
from pynamo_locking.exceptions import LockTimeout
from tests.engines.engine import running
from tests.engines.servers import Servers
from tests.support.models import declare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

THREADS: Final = 6
SECONDS: Final = 300.0
SAMPLES: Final = 100
#: A thread ends after so many operations and another one takes its place: what belongs to threads must go with them.
OPERATIONS_OF_A_THREAD: Final = 200
#: A short lease, so that the heartbeat has something to do; long enough for a busy machine.
SETTINGS: Final = LockSettings(lease=6, request_timeout=1, poll_interval=0.01, max_poll_interval=0.1, wait=60)

Plain = declare("Plain", lock=True, numbers="value", lock_settings=SETTINGS)
#: Locks without items, and those of `Beside`.
Locks = declare("Locks", NamedLock, lock_settings=SETTINGS)
Beside = declare("Beside", version=True, numbers="value", lock_settings=SETTINGS, lock_table=Locks)
Free = declare("Free", VersionedMixin, version=True, numbers="value")


MODELS: Final[tuple[Any, ...]] = (Plain, Locks, Beside, Free)
COUNTED: Final[tuple[Any, ...]] = (Plain, Beside, Free)
KEYS: Final = ("a", "b", "c")
new_keys: Final = itertools.count()


# The operations. Each returns the models whose values it has increased by 1.


def _add_one(item: Any) -> None:
    item.value += 1


def locked_save(key: str) -> Sequence[Any]:
    with Plain.locked(key) as lock:
        _add_one(lock.item)
        lock.item.save()
    return [Plain]


def edit(key: str) -> Sequence[Any]:
    with Plain.edit(key) as item:
        _add_one(item)
    return [Plain]


def edit_beside(key: str) -> Sequence[Any]:
    with Beside.edit(key) as item:
        _add_one(item)
    return [Beside]


def locked_update(key: str) -> Sequence[Any]:
    with Beside.locked(key) as lock:
        lock.item.update([Beside.value.add(1)])
    return [Beside]


def name_never_used_before(_key: str) -> Sequence[Any]:
    """What is kept for each lock must go with it."""
    with Locks.locked(f"new-{next(new_keys)}"):
        return []


def renewed_by_hand(key: str) -> Sequence[Any]:
    with Locks.locked(key, heartbeat=False) as lock:
        lock.renew()
        lock.ensure_remaining(1)
    return []


def two_locks(key: str) -> Sequence[Any]:
    with locked_all(Plain.locked(key), Beside.locked(key)) as (first, second):
        for lock in (first, second):
            _add_one(lock.item)
            lock.item.save()
    return [Plain, Beside]


def no_time_to_wait(key: str) -> Sequence[Any]:
    try:
        with Plain.edit(key, wait=0) as item:
            _add_one(item)
    except LockTimeout:
        return []
    return [Plain]


def modify(key: str) -> Sequence[Any]:
    Free.modify(key, change=_add_one, attempts=50)
    return [Free]


def create_and_delete(_key: str) -> Sequence[Any]:
    item = Free(f"new-{next(new_keys)}")
    item.save()
    item.update([Free.value.add(1)])
    item.delete()
    return []


def transaction(key: str) -> Sequence[Any]:
    with (
        # In the order of `two_locks`, which is that of the names of the tables.
        locked_all(Plain.locked(key), Beside.locked(key)) as (lock, beside),
        TransactWrite(connection=Plain._get_connection().connection) as transaction,
    ):
        transaction.update(lock.item, [Plain.value.add(1)])
        transaction.update(beside.item, [Beside.value.add(1)])
    return [Plain, Beside]


OPERATIONS: Final[tuple[Any, ...]] = (
    locked_save,
    edit,
    edit_beside,
    locked_update,
    name_never_used_before,
    renewed_by_hand,
    two_locks,
    no_time_to_wait,
    modify,
    create_and_delete,
    transaction,
)


# What is measured


class Sample(NamedTuple):
    """The process at one moment."""

    rss_mb: float
    python_mb: float
    threads: int
    files: int

    @classmethod
    def take(cls) -> Sample:
        """Measure, without the garbage that happens to wait for its collection."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            tracemalloc.get_traced_memory()[0] / 1e6,
            threading.active_count(),
            len(list(Path("/proc/self/fd").iterdir())),
        )


class Tolerance(NamedTuple):
    """How much a figure may grow: a part of what it was, and at least so much."""

    part: float
    least: float


TOLERANCES: Final = {
    "rss_mb": Tolerance(0.05, 4.0),
    "python_mb": Tolerance(0.05, 0.5),
    "threads": Tolerance(0.0, 2.0),  # of the heartbeat
    "files": Tolerance(0.0, 4.0),
}


class Verdict(NamedTuple):
    """One figure: the medians of the second and the last fifth of its samples."""

    name: str
    before: float
    after: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.after - self.before <= self.allowed


def verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """Compare the second fifth of the samples with the last one."""
    fifth = len(samples) // 5
    assert fifth, "too few samples"
    found = []
    for name, tolerance in TOLERANCES.items():
        before, after = (
            statistics.median(getattr(sample, name) for sample in part)
            for part in (samples[fifth : 2 * fifth], samples[-fifth:])
        )
        found.append(Verdict(name, before, after, max(tolerance.part * before, tolerance.least)))
    return found


# The run


@dataclass
class Soak:
    """Threads at work.

    Attributes:
        operations: to choose from.
        moments: how often to sample the process.
        samples: the process at those moments, evenly over the run.
        done: how often each operation was done.
        added: how much each model's values must have grown.
        errors: what the operations raised.
        seed: of the choices.
    """

    operations: Sequence[Any] = OPERATIONS
    moments: int = SAMPLES
    samples: list[Sample] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    added: Counter[Any] = field(default_factory=Counter)
    errors: list[BaseException] = field(default_factory=list)
    seed: int = 0
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def run(self, progress: Callable[[], float], show: Callable[[float], None] = lambda part: None) -> None:
        """Work until `progress` says 1, and sample the process at each step of it."""
        is_traced = tracemalloc.is_tracing()
        if not is_traced:
            tracemalloc.start()
        places = [threading.Thread(target=self._place, args=(number,)) for number in range(THREADS)]
        try:
            for place in places:
                place.start()
            while (part := progress()) < 1 and not self.errors:
                if part * self.moments >= len(self.samples):
                    self.samples.append(Sample.take())
                show(part)
                self._is_over.wait(0.01)
        finally:
            self._is_over.set()
            for place in places:
                place.join()
            if not is_traced:
                tracemalloc.stop()
        if self.errors:
            raise self.errors[0]

    def total(self) -> int:
        """How many operations are done."""
        return self.done.total()

    def _place(self, number: int) -> None:
        """One thread after the other, for as long as the run goes on."""
        for generation in itertools.count():
            if self._is_over.is_set():
                return
            worker = threading.Thread(target=self._work, args=(random.Random(f"{self.seed}/{number}/{generation}"),))
            worker.start()
            worker.join()

    def _work(self, chooser: random.Random) -> None:
        """Do all operations in one order, then in another one, and so on."""
        order: list[Any] = []
        try:
            for _ in range(OPERATIONS_OF_A_THREAD):
                if self._is_over.is_set():
                    return
                order = order or chooser.sample(self.operations, len(self.operations))
                operation = order.pop()
                added = operation(chooser.choice(KEYS))
                with self._mutex:
                    self.done[operation.__name__] += 1
                    self.added.update(added)
        except BaseException as error:  # noqa: BLE001 - raised again by `run`
            self.errors.append(error)

    def check(self) -> None:
        """Nothing failed, so every increment counts once, and no lock is held."""
        for model in COUNTED:
            items = [model.get(key, consistent_read=True) for key in KEYS]
            assert sum(item.value for item in items) == self.added[model], model.__name__
        for model in (Plain, Beside):
            assert all(model.lock_state(key).entries == () for key in KEYS), model.__name__


def prepare(engine: Any) -> None:
    """Give the models tables, and the items that everybody writes."""
    engine.bind(*MODELS)
    for model in COUNTED:
        for key in KEYS:
            model(key).save()


def _table(soak: Soak, found: list[Verdict]) -> Table:
    table = Table(title=f"{soak.total()} operations, {len(soak.samples)} samples, no error")
    for column in ("figure", "second fifth", "last fifth", "grew by", "allowed", ""):
        table.add_column(column, justify="left" if column in {"figure", ""} else "right")
    for one in found:
        figures = (f"{value:.2f}" for value in (one.before, one.after, one.after - one.before, one.allowed))
        table.add_row(one.name, *figures, "[green]flat" if one.is_flat else "[red]grows")
    return table


def main() -> int:
    """Run for SOAK_S seconds."""
    seconds = float(os.environ.get("SOAK_S", SECONDS))
    servers, soak = Servers(), Soak()
    try:
        with running("dynoxide", servers) as engine, Progress() as bar:
            prepare(engine)
            task, started = bar.add_task(f"soak for {seconds:g} s", total=1.0), time.monotonic()
            soak.run(lambda: (time.monotonic() - started) / seconds, lambda part: bar.update(task, completed=part))
            bar.update(task, completed=1.0)
            soak.check()
    finally:
        servers.close()
    found = verdicts(soak.samples)
    rich.print(_table(soak, found))
    rich.print(f"{soak.total() / seconds:.0f} operations/s:", dict(soak.done))
    return 0 if all(one.is_flat for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
