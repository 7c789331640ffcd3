"""From one holder to the next: how long a lock is nobody's after a release."""

from __future__ import annotations

import random
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contenders import Place
from benchmarks.locks.tables import markdown, milliseconds
from benchmarks.locks.variants import OUR_POLL_S, Variant, variants
from tests.support.crew import process

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from benchmarks.contenders import Contender

_KEY: Final = "handed"
#: The waiter is given this long to get into the queue and to look for the first time.
_SETTLE_S: Final = 0.3


@dataclass(frozen=True)
class Handoff:
    """Times from the beginning of a release to the grant of the one waiter.

    Attributes:
        contender: its name.
        where: whether holder and waiter share a process.
        poll_ms: interval between two looks; 0 if it does not poll.
        median_ms: of all samples.
        longest_ms: of all samples.
        samples: how many.
    """

    contender: str
    where: str
    poll_ms: float
    median_ms: float
    longest_ms: float
    samples: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def all_variants() -> list[Variant]:
    """Those that can hold a lock."""
    return list(variants(lambda kind: kind.has_lock, tuned=True))


def samples_of(variant: Variant, samples: int) -> int:
    """Return how often to measure: who sleeps for seconds is sampled less often."""
    return samples if variant.pace_s < 1 else max(4, samples // 4) if variant.pace_s > 1 else max(6, samples // 2)


def measure(host: str, ms: float, variant: Variant, samples: int) -> list[Handoff]:
    """Measure one contender within a process, and between two."""
    place = Place(host, f"handoff-{variant.slug}-", ms)
    contender = variant.build(place)
    try:
        contender.create([_KEY])
        with process(_wait_and_tell, variant, place) as other:
            other.recv()
            found = {
                "same process": [_hand_over(contender, variant, _Thread(contender)) for _ in range(samples)],
                "other process": [_hand_over(contender, variant, other) for _ in range(samples)],
            }
    finally:
        contender.close()
    return [_sum_up(variant, where, times) for where, times in found.items()]


def _sum_up(variant: Variant, where: str, times: list[float]) -> Handoff:
    pace_s = variant.pace_s or (OUR_POLL_S if variant.kind.is_ours else 0.0)
    return Handoff(variant.name, where, 1000 * pace_s, statistics.median(times), max(times), len(times))


def _hand_over(contender: Contender, variant: Variant, waiter: Any) -> float:
    """Release at a random moment of the waiter's interval, and return the milliseconds until its grant."""
    pause = _SETTLE_S + random.random() * max(variant.pace_s, 0.1)  # noqa: S311
    with contender.hold(_KEY):
        waiter.send("wait")
        time.sleep(pause)
        released = time.monotonic()
    granted: float = waiter.recv()
    return 1000 * (granted - released)


class _Thread:
    """A waiter in this process, spoken to like one in another."""

    def __init__(self, contender: Contender) -> None:
        self._thread = threading.Thread(target=self._wait, args=(contender,))
        self._granted = 0.0

    def _wait(self, contender: Contender) -> None:
        with contender.hold(_KEY):
            self._granted = time.monotonic()

    def send(self, _message: str) -> None:
        """Begin to wait."""
        self._thread.start()

    def recv(self) -> float:
        """Return when it was granted."""
        self._thread.join()
        return self._granted


def _wait_and_tell(pipe: Connection, variant: Variant, place: Place) -> None:
    contender = variant.build(place)
    with contender.hold(_KEY):
        pass
    pipe.send("ready")
    while True:
        pipe.recv()
        with contender.hold(_KEY):
            granted = time.monotonic()
        pipe.send(granted)


def as_markdown(done: list[Handoff]) -> str:
    """Return the table: one row for each contender."""
    head = ("after a release", "polls every, ms", "same process: median, ms", "longest", "other process: median, ms")
    rows = []
    for name in dict.fromkeys(each.contender for each in done):
        same, other = (each for each in done if each.contender == name)
        times = (same.median_ms, same.longest_ms, other.median_ms, other.longest_ms)
        rows.append((name, f"{same.poll_ms:g}" if same.poll_ms else "-", *map(milliseconds, times)))
    return markdown((*head, "longest"), rows)


def report(tick: Callable[[], None], host: str, ms: float, samples: int) -> list[Handoff]:
    """Measure everyone."""
    done = []
    for variant in all_variants():
        done += measure(host, ms, variant, samples_of(variant, samples))
        tick()
    return done
