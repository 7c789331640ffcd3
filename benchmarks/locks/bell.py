"""Many processes with one thread each want one lock on one machine: with the bell between them, and without it."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.contenders import Place
from benchmarks.contenders.counters import CounterFields, connected, create_counters, meta
from benchmarks.locks.tables import markdown, milliseconds
from benchmarks.meter import metered
from pynamo_locking import LockableModel, LockAttribute, LockSettings, VersionAttribute
from tests.support.crew import process

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_KEY = "hot"


class Turn(NamedTuple):
    """One change. Moments are of the clock that all processes share.

    Attributes:
        total: what the counter showed after it: the order in which the changes were made.
        granted: when the process had the lock.
        left: when it began to save and to leave.
    """

    total: int
    granted: float
    left: float


@dataclass(frozen=True)
class Handovers:
    """What all processes did in one round, after the time in which they entered.

    Attributes:
        processes: how many, with one thread each.
        bell: whether they rang for each other.
        turns_per_s: changes a second.
        median_ms: from the moment when a process begins to save and to leave until another process has the lock.
        p95_ms: the same, 95 of 100.
        longest_ms: the same, the longest.
        requests: for each turn.
    """

    processes: int
    bell: bool
    turns_per_s: float
    median_ms: float
    p95_ms: float
    longest_ms: float
    requests: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def _counters(place: Place, *, bell: bool) -> Any:
    class Counter(CounterFields, LockableModel):
        Meta: Any = meta(
            place, "counters", lock_settings=LockSettings(wait=math.inf, max_waiters=400, local_wakeups=bell)
        )
        version = VersionAttribute()
        lock = LockAttribute()

    return connected(Counter)


def measure(host: str, ms: float, processes: int, bell: bool, rush_s: float, seconds: float) -> Handovers:  # noqa: FBT001
    """Let so many processes want the lock all the time, and look at them for so many seconds after the rush."""
    place = Place(host, f"bell-{bell}-{time.monotonic_ns()}-".lower(), ms)
    create_counters(_counters(place, bell=bell), [_KEY, *(f"warm-{i}" for i in range(processes))])
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bell"))
        crew = [stack.enter_context(process(_work, place, f"warm-{i}", bell, folder)) for i in range(processes)]
        for pipe in crew:
            pipe.recv()
        begin = time.monotonic() + 0.1
        for pipe in crew:
            pipe.send((begin, begin + rush_s, begin + rush_s + seconds))
        told: list[tuple[list[Turn], int]] = [pipe.recv() for pipe in crew]
    turns = sorted(turn for done, _ in told for turn in done)
    between = [1000 * (after.granted - before.left) for before, after in itertools.pairwise(turns)]
    between.sort()
    return Handovers(
        processes,
        bell,
        len(turns) / seconds,
        statistics.median(between),
        between[int(0.95 * len(between))],
        between[-1],
        sum(requests for _, requests in told) / len(turns),
    )


def _work(pipe: Connection, place: Place, warm: str, bell: bool, folder: str) -> None:  # noqa: FBT001
    os.environ["TMPDIR"] = folder
    counters, turns, may_begin = _counters(place, bell=bell), list[Turn](), threading.Event()
    with counters.edit(warm) as counter:
        counter.total += 1

    def take_turns() -> None:
        may_begin.wait()
        while True:
            with counters.edit(_KEY) as counter:
                granted = time.monotonic()
                counter.total += 1
                total, left = int(counter.total), time.monotonic()
            turns.append(Turn(total, granted, left))

    threading.Thread(target=take_turns, daemon=True).start()
    pipe.send("ready")
    begin, first, last = pipe.recv()
    with metered() as meter:
        _sleep_until(begin)
        may_begin.set()
        _sleep_until(first)
        before = meter.requests
        _sleep_until(last)
        pipe.send(([turn for turn in turns if first < turn.granted <= last], meter.requests - before))
    pipe.recv()  # until it is killed
    os._exit(0)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def compare(
    host: str, ms: float, processes: int, rounds: int, rush_s: float, seconds: float, tick: Callable[[], None]
) -> list[Handovers]:
    """Measure both, in turns."""
    done = []
    for bell in (True, False) * rounds:
        done.append(measure(host, ms, processes, bell, rush_s, seconds))
        tick()
    return done


def as_markdown(done: list[Handovers]) -> str:
    """Return the table: one row for each round."""
    head = ("processes", "bell", "turns/s", "handoff: median, ms", "95 of 100", "longest", "requests a turn")
    rows = [
        (
            str(each.processes),
            "on" if each.bell else "off",
            f"{each.turns_per_s:.1f}",
            *map(milliseconds, (each.median_ms, each.p95_ms, each.longest_ms)),
            f"{each.requests:.1f}",
        )
        for each in done
    ]
    return markdown(head, rows)
