"""One that wants much among many that want little: how many are served before it."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.support.schedule import Locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamo_locking import Lock
    from tests.engines.engine import Engine

#: The many.
CROWD: Final = 7

_SPAN: Final = 1_000


@dataclass(frozen=True)
class Fairness:
    """What one case showed.

    Attributes:
        case: in words.
        turns: of the one.
        served: turns of the many in the same time.
        overtakers: how many turns of the many that asked later, and were in its way, were granted before the one.
        most_before: the most predecessors that were granted, or were still to leave, between its asking and its turn.
        longest_wait_ms: of the one.
    """

    case: str
    turns: int
    served: int
    overtakers: int
    most_before: int
    longest_wait_ms: float


@dataclass
class _Turns:
    """Who held what, when: of the many ticket, grant and release, of the one ticket, asking and grant."""

    of_crowd: list[tuple[int, float, float]] = field(default_factory=list)
    of_one: list[tuple[int, float, float]] = field(default_factory=list)


def measure(engine: Engine, turns: int) -> Iterator[Fairness]:
    """Measure each case."""
    engine.bind(Locks)
    chooser = random.Random(1)  # noqa: S311 - the same ranges in each run

    def small() -> Lock[Any]:
        begin = chooser.randrange(_SPAN)
        return Locks.locked_range("range", begin, begin + 20)

    cases: dict[str, tuple[Callable[[], Lock[Any]], Callable[[], Lock[Any]]]] = {
        "a writer among readers": (lambda: Locks.locked("rw"), lambda: Locks.locked("rw", shared=True)),
        "a large range among small ones": (lambda: Locks.locked_range("range", 0, _SPAN + 20), small),
        "one permit of 2 among 7 others": (
            lambda: Locks.locked("permits", permits=2),
            lambda: Locks.locked("permits", permits=2),
        ),
    }
    for case, (one, crowd) in cases.items():
        yield _judge(case, _run(one, crowd, turns), allowed=1 if "permit" in case else 0)


def _run(one: Callable[[], Lock[Any]], crowd: Callable[[], Lock[Any]], turns: int) -> _Turns:
    seen, mutex, is_over = _Turns(), threading.Lock(), threading.Event()
    begin = threading.Barrier(CROWD + 1)

    def work() -> None:
        with crowd():  # the first request of a thread makes a session
            pass
        begin.wait()
        while not is_over.is_set():
            with crowd() as lock:
                granted = time.monotonic()
            with mutex:
                seen.of_crowd.append((lock.ticket, granted, time.monotonic()))

    threads = [threading.Thread(target=work) for _ in range(CROWD)]
    for thread in threads:
        thread.start()
    begin.wait()
    try:
        for _ in range(turns):
            asked = time.monotonic()
            with one() as lock:
                seen.of_one.append((lock.ticket, asked, time.monotonic()))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    return seen


def _judge(case: str, seen: _Turns, *, allowed: int) -> Fairness:
    """Compare tickets, which are drawn in the order of asking, with grants.

    Args:
        case: in words.
        seen: all turns.
        allowed: how many may hold the lock beside the one.
    """
    overtakers, before = 0, [0]
    for ticket, asked, granted in seen.of_one:
        later = [turn for turn in seen.of_crowd if turn[0] > ticket and turn[1] < granted]
        overtakers += max(0, len(later) - allowed)
        before.append(sum(turn[0] < ticket and turn[2] > asked for turn in seen.of_crowd))
    longest = max(granted - asked for _, asked, granted in seen.of_one)
    return Fairness(case, len(seen.of_one), len(seen.of_crowd), overtakers, max(before), 1000 * longest)


def as_markdown(done: list[Fairness]) -> str:
    """Return the table."""
    lines = [
        f"| case ({CROWD} others) | turns | turns of the others | overtakers | most predecessors | longest wait, ms |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {each.case} | {each.turns} | {each.served} | {each.overtakers} | {each.most_before} | "
        f"{each.longest_wait_ms:.0f} |"
        for each in done
    ]
    return "\n".join(lines)
