"""Many threads, or tasks of asyncio, of one process that want one lock: turns, order, and what waiting takes."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contenders import Place
from benchmarks.contenders.counters import CounterFields, connected, meta
from benchmarks.locks.many import cpu_s, memory_kb
from benchmarks.locks.tables import markdown
from benchmarks.meter import metered
from pynamo_locking import LockableModel, LockAttribute, LockSettings, VersionAttribute
from pynamo_locking._locks import local_queue
from tests.support.crew import process

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

#: (kind, how many)
CROWDS: Final = (("threads", 1), ("threads", 10), ("threads", 100), ("threads", 500), ("tasks", 10), ("tasks", 1000))
_WAITED_S: Final = 20.0
_TURNS: Final = 1000
_TICK_S: Final = 0.005


@dataclass(frozen=True)
class Crowd:
    """What so many callers of one process did.

    Attributes:
        kind: threads or tasks.
        callers: how many.
        waiting_cpu_s: processor time of a minute in which all of them wait for a lock that another entry holds.
        waiting_requests: requests of that minute.
        kilobytes_each: of memory, while they wait.
        out_of_order: callers that were served before one that came earlier.
        unserved: callers that were not served.
        turns_per_s: turns a second, when each takes its next turn as soon as it has had one.
        requests_a_turn: of DynamoDB.
        stall_ms: the longest time in which the event loop did nothing else; from the start of the tasks to the end.
    """

    kind: str
    callers: int
    waiting_cpu_s: float
    waiting_requests: float
    kilobytes_each: float
    out_of_order: int
    unserved: int
    turns_per_s: float
    requests_a_turn: float
    stall_ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def measure(host: str, kind: str, callers: int) -> Crowd:
    """Let so many callers wait, and then work, in a process of their own."""
    with process(_crowd, Place(host, f"crowd-{kind}-{callers}-"), kind, callers) as pipe:
        found: Crowd = pipe.recv()
    return found


def _crowd(pipe: Connection, place: Place, kind: str, callers: int) -> None:
    class Counter(CounterFields, LockableModel):
        Meta: Any = meta(place, "counters", lock_settings=LockSettings(wait=600))
        version = VersionAttribute()
        lock = LockAttribute()

    model = connected(Counter)
    model.create_table(billing_mode="PAY_PER_REQUEST", wait=True)
    model("a", total=0).save()
    run = _Threads(model, callers) if kind == "threads" else _Tasks(model, callers)
    pipe.send(replace(run.measure(), kind=kind))


class _Run:
    """One crowd. The first turns are counted by the callers' own numbers, in the order in which they came."""

    def __init__(self, model: Any, callers: int) -> None:
        self.model = model
        self.callers = callers
        self.served: list[int] = []
        self.turns = 0
        self.stall_s = 0.0
        self._mutex = threading.Lock()

    def measure(self) -> Crowd:
        before_kb = memory_kb()
        holder = self.model.locked("a", settings=LockSettings(max_callers_per_entry=1)).acquire()  # an entry of its own
        with metered() as meter:
            self.start()
            kilobytes = (memory_kb() - before_kb) / self.callers
            before, cpu = meter.taken(), cpu_s()
            time.sleep(_WAITED_S)
            cpu, waited = cpu_s() - cpu, meter.taken() - before
            before, begin = meter.taken(), time.monotonic()
            holder.release()
            self.join()
            took_s, worked = time.monotonic() - begin, meter.taken() - before
        first = self.served[: self.callers]
        return Crowd(
            kind="",
            callers=self.callers,
            waiting_cpu_s=cpu * 60 / _WAITED_S,
            waiting_requests=waited.requests.total() * 60 / _WAITED_S,
            kilobytes_each=kilobytes,
            out_of_order=sum(number != place for place, number in enumerate(first)),
            unserved=self.callers - len(set(first)),
            turns_per_s=self.turns / took_s,
            requests_a_turn=worked.requests.total() / self.turns,
            stall_ms=1000 * self.stall_s,
        )

    def start(self) -> None:
        """Start the callers, one after the other, and return when all of them wait."""
        raise NotImplementedError

    def join(self) -> None:
        """Wait until all turns are done."""
        raise NotImplementedError

    def note(self, number: int) -> bool:
        """Count a turn; tell whether the caller shall take another one."""
        with self._mutex:
            self.turns += 1
            self.served.append(number)
            return self.turns + self.callers <= max(_TURNS, self.callers)

    def in_line(self) -> int:
        """How many wait, with the one that waits in the queue for all."""
        cohort = local_queue.local_queues.get(self.model.locked("a")._handle.target.row.identity)
        return 0 if cohort is None else len(cohort.waiting) + 1


class _Threads(_Run):
    def start(self) -> None:
        self._all = [threading.Thread(target=self._work, args=(number,)) for number in range(self.callers)]
        for number, thread in enumerate(self._all, start=1):
            thread.start()
            while self.in_line() < number:
                time.sleep(0.0005)

    def join(self) -> None:
        for thread in self._all:
            thread.join()

    def _work(self, number: int) -> None:
        goes_on = True
        while goes_on:
            with self.model.edit("a") as item:
                item.total += 1
                goes_on = self.note(number)


class _Tasks(_Run):
    def start(self) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()))
        self._thread.start()
        while self.in_line() < self.callers:
            time.sleep(0.001)

    def join(self) -> None:
        self._thread.join()

    async def _play(self) -> None:
        ticker = asyncio.create_task(self._tick())
        await asyncio.sleep(0.1)
        await asyncio.gather(*[self._work(number) for number in range(self.callers)])
        ticker.cancel()

    async def _work(self, number: int) -> None:
        goes_on = True
        while goes_on:
            async with self.model.edit("a") as item:
                item.total += 1
                goes_on = self.note(number)

    async def _tick(self) -> None:
        while True:
            begin = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self.stall_s = max(self.stall_s, time.monotonic() - begin - _TICK_S)


def as_markdown(done: list[Crowd]) -> str:
    """Return the table."""
    head = (
        "callers",
        "processor time of a waiting minute, s",
        "requests of it",
        "kB each",
        "not in order of arrival",
        "not served",
        "turns/s",
        "requests a turn",
        "longest stall of the loop, ms",
    )
    rows = [
        (
            f"{each.callers:,} {each.kind}",
            f"{each.waiting_cpu_s:.1f}",
            f"{each.waiting_requests:.0f}",
            f"{each.kilobytes_each:.0f}",
            str(each.out_of_order),
            str(each.unserved),
            f"{each.turns_per_s:.0f}",
            f"{each.requests_a_turn:.2f}",
            "-" if each.kind == "threads" else f"{each.stall_ms:.0f}",
        )
        for each in done
    ]
    return markdown(head, rows)


def run(host: str, crowds: list[tuple[str, int]], tick: Callable[[], None]) -> list[Crowd]:
    """Measure them, one after the other."""
    done = []
    for kind, callers in crowds:
        done.append(measure(host, kind, callers))
        tick()
    return done
