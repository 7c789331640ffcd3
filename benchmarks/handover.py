"""From one holder to the next: how long a lock is nobody's after a release, beside the time of a plain update."""

from __future__ import annotations

import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.contenders import PLAIN, Place, Variant, variants
from benchmarks.contenders.ours import LockedWithoutWakeUps
from tests.support.crew import process

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from benchmarks.contenders import Contender
    from benchmarks.harness import Bench

    #: Lets somebody wait for the lock, and returns what waits for the moment of the grant.
    Ask = Callable[[], Callable[[], float]]

_KEY: Final = "handed"
#: The waiter is given this long to get into the queue and to look for the first time.
_SETTLE_S: Final = 0.3
_THREAD: Final = ThreadPoolExecutor(1)


def measure(bench: Bench) -> None:
    """Measure within a process, between two, and between two that cannot wake each other: as on two machines."""
    with bench.url() as url, ExitStack() as stack:
        plain = PLAIN.build(Place(url, "handover-plain-"))
        stack.callback(plain.close)
        plain.create([_KEY])
        same, other = ({PLAIN.name: partial(_update, plain, bench.size(20, 1))} for _ in range(2))
        for variant in bench.wanted([*variants(tuned=True), Variant(LockedWithoutWakeUps)]):
            if not variant.kind.has_lock:
                continue
            place = Place(url, f"handover-{variant.slug}-")
            contender = variant.build(place)
            stack.callback(contender.close)
            contender.create([_KEY])
            waiter = stack.enter_context(process(_wait_and_tell, variant, place))
            waiter.recv()
            samples = bench.size(5, 1)
            same[variant.name] = partial(_turn, contender, variant, partial(_ask_thread, contender), samples)
            other[variant.name] = partial(_turn, contender, variant, partial(_ask_process, waiter), samples)
        bench.in_turns("same process", same)
        bench.in_turns("other process", other)


def _update(plain: Contender, samples: int) -> dict[str, float]:
    times = []
    for _ in range(samples):
        begun = time.monotonic()
        plain.add(_KEY)
        times.append(1000 * (time.monotonic() - begun))
    return {"median, ms": statistics.median(times), "longest, ms": max(times)}


def _turn(contender: Contender, variant: Variant, ask: Ask, samples: int) -> dict[str, float]:
    """Release at random moments of the waiter's interval, and measure until its grants."""
    times = []
    for _ in range(samples):
        with contender.hold(_KEY):
            granted = ask()
            time.sleep(_SETTLE_S + random.random() * max(variant.pace_s, 0.1))  # noqa: S311
            released = time.monotonic()
        times.append(1000 * (granted() - released))
    return {"median, ms": statistics.median(times), "longest, ms": max(times)}


def _ask_thread(contender: Contender) -> Callable[[], float]:
    return _THREAD.submit(_wait, contender).result


def _ask_process(waiter: Connection) -> Callable[[], float]:
    waiter.send("wait")
    return waiter.recv


def _wait(contender: Contender) -> float:
    with contender.hold(_KEY):
        return time.monotonic()


def _wait_and_tell(pipe: Connection, variant: Variant, place: Place) -> None:
    contender = variant.build(place)
    pipe.send(_wait(contender))
    while True:
        pipe.recv()
        pipe.send(_wait(contender))
