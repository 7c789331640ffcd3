"""Processes that work when they are told, and are killed when the time is over: nothing waits for stragglers."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.meter import Taken, metered
from tests.support.crew import process

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.contenders import Contender, Place, Turn
    from benchmarks.locks.variants import Variant

PROCESSES: Final = 4


@dataclass
class Shift:
    """What some threads did for some time. Moments are of the clock that all processes share.

    Attributes:
        done: beginning and end of each cycle that ended in that time.
        begun: beginnings of those that were not done at its end.
        ended: when the time was over.
        failed: cycles that ended with an error, by its name.
        taken: of DynamoDB.
        seconds: how long the time was.
    """

    done: list[tuple[float, float]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    ended: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)
    taken: Taken = field(default_factory=Taken)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Cycles a second."""
        return len(self.done) / self.seconds if self.seconds else 0.0

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
        self.taken += other.taken


@dataclass
class Round:
    """What some threads did, all of it.

    Attributes:
        rush: from the moment when all of them began until each had had its first turn, or until it took too long.
        steady: from then on.
        served: how many had had a turn when the rush was over.
        turns: of all of it, for those who have tickets.
        refused: requests that were refused in all of it since a partition had no units left.
    """

    rush: Shift = field(default_factory=Shift)
    steady: Shift = field(default_factory=Shift)
    served: int = 0
    turns: list[Turn] = field(default_factory=list)
    refused: int = 0

    @property
    def out_of_order(self) -> int:
        """How many changes were made under a smaller ticket than the change before."""
        ordered = sorted(self.turns)
        return sum(later.ticket <= earlier.ticket for earlier, later in itertools.pairwise(ordered))

    def add(self, other: Round) -> None:
        """Count what another process did as well."""
        self.rush.add(other.rush)
        self.steady.add(other.steady)
        self.served += other.served
        self.turns += other.turns
        self.refused += other.refused


def contend(variant: Variant, place: Place, keys: list[str], contenders: int, rush_s: float, seconds: float) -> Round:
    """Let so many threads, in up to four processes, run cycles on the keys, and return what they did.

    Each process warms up on a key of its own, ``warm-0`` to ``warm-3``.

    Args:
        variant: of whom.
        place: where.
        keys: of the counters.
        contenders: how many threads.
        rush_s: the longest to wait until each of them has had its first turn.
        seconds: how long they go on after that.
    """
    shares = [contenders // PROCESSES + (i < contenders % PROCESSES) for i in range(PROCESSES)]
    done = Round()
    with contextlib.ExitStack() as stack:
        crew = [
            stack.enter_context(process(_work, variant, place, keys, f"warm-{i}", share))
            for i, share in enumerate(shares)
            if share
        ]
        _hear(crew)
        begin = _tell(crew, rush_s)
        _hear(crew)
        first = _tell(crew, seconds)
        for pipe in crew:
            done.add(pipe.recv())
    done.rush.seconds, done.steady.seconds = first - begin, seconds
    return done


def _hear(crew: list[Connection]) -> None:
    for pipe in crew:
        pipe.recv()


def _tell(crew: list[Connection], seconds: float) -> float:
    """Tell all when to begin and to end what comes next, and return the beginning."""
    begin = time.monotonic() + 0.05
    for pipe in crew:
        pipe.send((begin, begin + seconds))
    return begin


def _work(pipe: Connection, variant: Variant, place: Place, keys: list[str], warm: str, threads: int) -> None:
    contender = variant.build(place)
    contender.add(warm)
    hands = _Hands(contender, keys, threads)
    pipe.send("ready")
    begin, latest = pipe.recv()
    with metered() as meter:
        _sleep_until(begin)
        hands.may_begin.set()
        hands.all_served.wait(latest - time.monotonic())
        pipe.send("all served, or it took too long")
        first, last = pipe.recv()
        _sleep_until(first)
        rushed, served = meter.taken(), len(hands.served)
        _sleep_until(last)
        with hands.mutex:
            rush = hands.shift(begin, first, rushed)
            steady = hands.shift(first, last, meter.taken() - rushed)
            steady.failed = hands.failed
            pipe.send(Round(rush, steady, served, hands.turns, meter.throttled))
        os._exit(0)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


class _Hands:
    """The threads of one process, and what they have done."""

    def __init__(self, contender: Contender, keys: list[str], threads: int) -> None:
        self.done: list[tuple[float, float]] = []
        self.failed: Counter[str] = Counter()
        self.turns: list[Turn] = []
        self.served: set[int] = set()
        self.may_begin, self.all_served = threading.Event(), threading.Event()
        self.mutex = threading.Lock()
        self._contender = contender
        self._keys = keys
        self._threads = threads
        self._under_way: dict[int, float] = {}
        for i in range(threads):
            threading.Thread(target=self._cycles, args=(i,), daemon=True).start()

    def shift(self, begin: float, end: float, taken: Taken) -> Shift:
        """Return what was done in this time."""
        done = [cycle for cycle in self.done if begin < cycle[1] <= end]
        last = {begun for begun, ended in self.done if ended <= end}
        open_then = {*self._under_way.values(), *(begun for begun, ended in self.done if ended > end)}
        return Shift(done, [begun for begun in open_then - last if begun <= end], end, Counter(), taken)

    def _cycles(self, i: int) -> None:
        self.may_begin.wait()
        for k in itertools.count(i):
            begin = self._under_way[i] = time.monotonic()
            try:
                turn = self._contender.add(self._keys[k % len(self._keys)])
            except Exception as error:  # noqa: BLE001 - whatever a contender's way to give up is
                with self.mutex:
                    self.failed[type(error).__name__] += 1
                continue
            self._note(i, begin, turn)

    def _note(self, i: int, begin: float, turn: Turn | None) -> None:
        with self.mutex:
            self.done.append((begin, time.monotonic()))
            self.turns += [turn] if turn is not None else []
            self.served.add(i)
            if len(self.served) == self._threads:
                self.all_served.set()
