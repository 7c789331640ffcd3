"""Processes that work when they are told, and are killed when the time is over: nothing waits for stragglers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.meter import Meter, metered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from benchmarks.contenders import Contender, Place
    from benchmarks.locks.variants import Variant

PROCESSES: Final = 4


@dataclass
class Shift:
    """What some threads did until the time was over. Moments are of the clock that all processes share.

    Attributes:
        done: beginning and end of each cycle.
        begun: beginnings of those that were not done yet.
        ended: when the time was over.
        failed: cycles that ended with an error, by its name.
        requests: by operation.
        read_units: as DynamoDB reports them.
        write_units: as DynamoDB reports them.
        seconds: how long the time was.
    """

    done: list[tuple[float, float]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    ended: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    read_units: float = 0.0
    write_units: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Cycles a second."""
        return len(self.done) / self.seconds

    @property
    def waits(self) -> list[float]:
        """How long each cycle took; those that were not done count with the time they had."""
        return [end - begin for begin, end in self.done] + [self.ended - begin for begin in self.begun]

    def add(self, other: Shift) -> None:
        """Count what others did as well."""
        self.done += other.done
        self.begun += other.begun
        self.ended = max(self.ended, other.ended)
        self.failed += other.failed
        self.requests += other.requests
        self.read_units += other.read_units
        self.write_units += other.write_units


@contextlib.contextmanager
def process(work: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Run a function in a process of its own, and kill it at the end. Its first argument is the pipe to here."""
    here, there = _CONTEXT.Pipe()
    child = _CONTEXT.Process(target=work, args=(there, *arguments), daemon=True)
    child.start()
    there.close()
    try:
        yield here
    finally:
        child.kill()
        child.join()
        here.close()


_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["benchmarks.contenders"])


def contend(variant: Variant, place: Place, keys: list[str], contenders: int, seconds: float) -> Shift:
    """Let so many threads, in up to four processes, run cycles on the keys for a while, and return what they did.

    Each process warms up on a key of its own, ``warm-0`` to ``warm-3``.
    """
    shares = [contenders // PROCESSES + (i < contenders % PROCESSES) for i in range(PROCESSES)]
    shift = Shift()
    with contextlib.ExitStack() as stack:
        crew = [
            stack.enter_context(process(_work, variant, place, keys, f"warm-{i}", share))
            for i, share in enumerate(shares)
            if share
        ]
        for pipe in crew:
            pipe.recv()
        begin = time.monotonic() + 0.05
        for pipe in crew:
            pipe.send((begin, begin + seconds))
        for pipe in crew:
            shift.add(pipe.recv())
    return replace(shift, seconds=seconds)


def _work(pipe: Connection, variant: Variant, place: Place, keys: list[str], warm: str, threads: int) -> None:
    contender = variant.build(place)
    contender.add(warm)
    shift, mutex = Shift(), threading.Lock()
    under_way: dict[int, float] = {}
    may_begin = threading.Event()

    def cycles(i: int) -> None:
        may_begin.wait()
        k = i
        while True:
            begin = under_way[i] = time.monotonic()
            failed = _cycle(contender, keys[k % len(keys)])
            with mutex:
                shift.failed.update(failed)
                if not failed:
                    shift.done.append((begin, time.monotonic()))
            k += 1

    for i in range(threads):
        threading.Thread(target=cycles, args=(i,), daemon=True).start()
    pipe.send("ready")
    begin, end = pipe.recv()
    with metered() as meter:
        time.sleep(max(0.0, begin - time.monotonic()))
        may_begin.set()
        time.sleep(max(0.0, end - time.monotonic()))
        with mutex:
            pipe.send(_close(shift, meter, under_way, end))
        os._exit(0)


def _cycle(contender: Contender, key: str) -> list[str]:
    try:
        contender.add(key)
    except Exception as error:  # noqa: BLE001 - whatever a contender's way to give up is
        return [type(error).__name__]
    return []


def _close(shift: Shift, meter: Meter, under_way: dict[int, float], end: float) -> Shift:
    """Return what was done by the end."""
    last = {begin for begin, _ in shift.done}
    return Shift(
        [cycle for cycle in shift.done if cycle[1] <= end],
        [begin for begin in tuple(under_way.values()) if begin not in last],
        end,
        shift.failed,
        meter.by_operation,
        meter.read_units,
        meter.write_units,
    )
