"""So many locks held at once by one process: threads, memory, renewals, and how late they are."""

from __future__ import annotations

import gc
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contenders import Place
from benchmarks.locks.tables import markdown
from pynamo_locking import NamedLock
from pynamo_locking._locks.held_lock import HeldEntry
from tests.support.crew import process

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

COUNTS: Final = (1, 100, 1_000, 10_000)
#: The default. An entry is renewed after a third of it, and may miss two renewals.
LEASE_S: Final = 60.0
_TAKERS: Final = 8


@dataclass(frozen=True)
class Many:
    """What so many locks took while they were held.

    Attributes:
        locks: how many.
        heartbeat_threads: the most that renewed at the same time.
        renewals_per_s: while all were held.
        age_median: of an entry when its renewal began, in leases; a third is on time.
        age_max: the oldest; 1 would be a lost lock.
        late: renewals that began after two thirds of the lease, so that only one more could be missed.
        lost: locks that were lost.
        kilobytes_each: of memory.
        cpu_part: of one core, while they were held.
        take_ms: to take one, by eight threads.
    """

    locks: int
    heartbeat_threads: int
    renewals_per_s: float
    age_median: float
    age_max: float
    late: int
    lost: int
    kilobytes_each: float
    cpu_part: float
    take_ms: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def measure(host: str, locks: int) -> Many:
    """Take and hold locks in a process of its own, long enough for each to be renewed."""
    with process(_hold, Place(host, f"many-{locks}-"), locks) as pipe:
        found: Many = pipe.recv()
    return found


def _hold(pipe: Connection, place: Place, count: int) -> None:
    names: type[NamedLock] = type(
        "Names", (NamedLock,), {"Meta": type("Meta", (), {"table_name": f"{place.prefix}names", "host": place.host})}
    )
    names.create_table(billing_mode="PAY_PER_REQUEST")
    with names.locked("warm"):
        pass
    ages = _note_ages()
    before_kb, begin = memory_kb(), time.monotonic()
    locks = [names.locked(f"n{i}", lease=LEASE_S) for i in range(count)]
    with ThreadPoolExecutor(_TAKERS) as pool:
        list(pool.map(lambda lock: lock.acquire(), locks))
    taken_s = time.monotonic() - begin
    gc.collect()
    kilobytes = (memory_kb() - before_kb) / count
    ages.clear()
    threads, cpu, begin = 0, cpu_s(), time.monotonic()
    while time.monotonic() < begin + LEASE_S / 3 + 5:
        threads = max(threads, sum("heartbeat" in each.name for each in threading.enumerate()))
        time.sleep(0.05)
    held_s = time.monotonic() - begin
    seen = sorted(ages) or [0.0]
    pipe.send(
        Many(
            count,
            threads,
            len(ages) / held_s,
            seen[len(seen) // 2],
            seen[-1],
            sum(age > 2 / 3 for age in seen),
            sum(lock.lost.is_set() for lock in locks),
            kilobytes,
            (cpu_s() - cpu) / held_s,
            1000 * taken_s / count,
        )
    )


def _note_ages() -> list[float]:
    """Note from now on how old entries are, in leases, when their renewal begins."""
    ages: list[float] = []
    renew: Callable[[HeldEntry], None] = HeldEntry.renew

    def noting(own: HeldEntry) -> None:
        ages.append((time.monotonic() - (own.deadline - own.entry.lease)) / own.entry.lease)
        renew(own)

    setattr(HeldEntry, "renew", noting)  # noqa: B010 - typed as a method
    return ages


def memory_kb() -> int:
    """Return what this process has in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def cpu_s() -> float:
    """Return the processor time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def as_markdown(done: list[Many]) -> str:
    """Return the table."""
    head = (
        "locks held",
        "heartbeat threads, most",
        "renewals/s",
        "age at renewal, median, in leases",
        "oldest",
        "late",
        "lost",
        "kB each",
        "part of a core",
        "ms to take one",
    )
    rows = [
        (
            f"{each.locks:,}",
            str(each.heartbeat_threads),
            f"{each.renewals_per_s:.1f}",
            f"{each.age_median:.3f}",
            f"{each.age_max:.3f}",
            str(each.late),
            str(each.lost),
            f"{each.kilobytes_each:.1f}",
            f"{each.cpu_part:.2f}",
            f"{each.take_ms:.1f}",
        )
        for each in done
    ]
    return markdown(head, rows)
