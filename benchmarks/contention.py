"""Many contenders for one lock: throughput, waits, who overtakes whom, and what it costs.

Threads of up to four processes want the lock again as soon as they have had it. The time in which all of them begin
does not count. Then each cycle that ends in the time that is measured counts, and those still under way at its end
count as waits of the time they had. The processes are killed then: nothing waits for stragglers.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.contenders import PLAIN, Place, variants
from benchmarks.meter import metered
from tests.support.crew import process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from benchmarks.contenders import Contender, Variant
    from benchmarks.harness import Bench

LEVELS: Final = (8, 32, 128)
PROCESSES: Final = 4


@dataclass
class Seen:
    """What some threads did. Moments are of the clock that all processes share.

    Attributes:
        done: beginning and end of each cycle that ended in the time that is measured.
        begun: beginnings of those that were not done at its end.
        in_all: cycles that ended, from the very beginning on.
        served: threads that have had a turn, from the very beginning on.
        gave_up: cycles that ended with an error.
        requests: to DynamoDB.
        written: write units.
    """

    done: list[tuple[float, float]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    in_all: int = 0
    served: int = 0
    gave_up: int = 0
    requests: int = 0
    written: float = 0.0

    def __add__(self, other: Seen) -> Seen:
        return Seen(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def figures(self, seconds: float, end: float, threads: int, total: int) -> dict[str, float]:
        """Return the row of the table.

        Args:
            seconds: how long was measured.
            end: when that was over.
            threads: how many there were.
            total: what the item says was done, from the very beginning on.
        """
        waits = [done - begun for begun, done in self.done] + [end - begun for begun in self.begun]
        cycles = max(1, len(self.done))
        return {
            "cycles/s": len(self.done) / seconds,
            "p50, ms": 1000 * statistics.median(waits or [0.0]),
            "longest, ms": 1000 * max(waits, default=0.0),
            "overtaken": statistics.fmean([*overtakings(self.done, self.begun)] or [0]),
            "requests": self.requests / cycles,
            "write units": self.written / cycles,
            "never served": threads - self.served,
            "gave up": self.gave_up,
            "lost updates": max(0, self.in_all - total),
        }


def overtakings(done: list[tuple[float, float]], begun: list[float]) -> Iterator[int]:
    """For each cycle, yield how many others began after it and ended before it.

    Args:
        done: beginning and end.
        begun: beginnings of cycles that have not ended.
    """
    cycles = sorted([*done, *((begin, float("inf")) for begin in begun)])
    for i, (_, end) in enumerate(cycles):
        count = 0
        for later_begin, later_end in cycles[i + 1 :]:
            if later_begin > end:
                break
            count += later_end < end
        yield count


def measure(bench: Bench) -> None:
    """Let all contenders take turns at each level, beside plain updates by one client."""
    crew = [PLAIN, *bench.wanted(variants())]
    times = bench.size((2.0, 5.0), (0.3, 0.5))
    for level in bench.size(LEVELS, (2,)):
        with bench.url() as url, ExitStack() as stack:
            turns = {}
            for variant in crew:
                place = Place(url, f"contention-{variant.slug}-{level}-")
                contender = variant.build(place)
                stack.callback(contender.close)
                # An item of its own for each round: those who were killed may still hold the lock of theirs.
                keys = iter([f"hot-{i}" for i in range(bench.rounds)])
                contender.create([*(f"hot-{i}" for i in range(bench.rounds)), *(f"warm-{i}" for i in range(PROCESSES))])
                threads = 1 if variant is PLAIN else level
                turns[variant.name] = partial(_turn, variant, contender, keys, threads, times)
            bench.in_turns(f"{level} contenders", turns)


def _turn(
    variant: Variant, contender: Contender, keys: Iterator[str], threads: int, times: tuple[float, float]
) -> dict[str, float]:
    key, (settle_s, seconds) = next(keys), times
    seconds = max(seconds, 2 * variant.pace_s) if seconds > 1 else seconds
    end, seen = contend(variant, contender.place, key, threads, (settle_s, seconds))
    return seen.figures(seconds, end, threads, contender.total(key))


def contend(variant: Variant, place: Place, key: str, threads: int, times: tuple[float, float]) -> tuple[float, Seen]:
    """Let so many threads, in up to four processes, run cycles on a key; return the end and what they did.

    Each process warms up on a key of its own, ``warm-0`` to ``warm-3``. Times: seconds before it is measured, of that.
    """
    settle_s, seconds = times
    shares = [threads // PROCESSES + (i < threads % PROCESSES) for i in range(PROCESSES)]
    with ExitStack() as stack:
        crew = [
            stack.enter_context(process(_work, variant, place, key, f"warm-{i}", share))
            for i, share in enumerate(shares)
            if share
        ]
        for pipe in crew:
            pipe.recv()
        begin = time.monotonic() + 0.05
        end = begin + settle_s + seconds
        for pipe in crew:
            pipe.send((begin, begin + settle_s, end))
        return end, sum((pipe.recv() for pipe in crew), Seen())


def _work(pipe: Connection, variant: Variant, place: Place, key: str, warm: str, threads: int) -> None:
    contender = variant.build(place)
    contender.add(warm)
    pipe.send("ready")
    begin, first, last = pipe.recv()
    done: list[tuple[float, float]] = []
    under_way: dict[int, float] = {}
    served, gave_up, mutex = set[int](), list[str](), threading.Lock()

    def cycles(i: int) -> None:
        _sleep_until(begin)
        while True:
            under_way[i] = time.monotonic()
            try:
                contender.add(key)
            except Exception as error:  # noqa: BLE001 - whatever a contender's way to give up is
                gave_up.append(type(error).__name__)
                continue
            with mutex:
                done.append((under_way[i], time.monotonic()))
                served.add(i)

    with metered() as meter:
        for i in range(threads):
            threading.Thread(target=cycles, args=(i,), daemon=True).start()
        _sleep_until(first)
        requests, written = meter.requests, meter.written
        _sleep_until(last)
        with mutex:
            requests, written = meter.requests - requests, meter.written - written
            counted = [cycle for cycle in done if first < cycle[1] <= last]
            ended = {begun for begun, end in done if end <= last}
            late = [begun for begun, end in done if end > last]
            begun = [each for each in {*under_way.values(), *late} - ended if each <= last]
            pipe.send(Seen(counted, begun, len(done), len(served), len(gave_up), requests, written))
        os._exit(0)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
