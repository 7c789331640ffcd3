"""Machines whose clocks differ start the same job in each period; some are killed in the middle of it.

One process is forked for each machine and period, as cron would start them. All of them ask at once, and those whose
clocks are behind believe that it is still the period before. What they did goes into a log of JSON lines.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from pynamo_locking import LockSettings, NamedLock
from pynamo_locking.exceptions import LockLost
from tests.support import runtime
from tests.support.crew import Child, Log, Places, use

if TYPE_CHECKING:
    from pathlib import Path

PERIOD_S: Final = 3600
#: How far the clocks of two machines differ at most; those that are behind most are in the period before.
SPREAD_S: Final = 10.0
JOB_S: Final = 0.1
SETTINGS: Final = LockSettings(lease=2.4, request_timeout=0.4, poll_interval=0.02, max_poll_interval=0.2)


class Jobs(NamedLock):
    """The job's lock."""

    class Meta:
        table_name = "jobs"
        lock_settings = SETTINGS


class Shifted(runtime.Runtime):
    """A machine whose wall clock is ahead by that much."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self._ahead_us = int(ahead_s * 1_000_000)

    def time_us(self) -> int:
        return super().time_us() + self._ahead_us


def _machine(
    _pipe: object, places: Places, path: Path, ahead_s: float, number: int, killed_after_s: float | None
) -> None:
    """Ask for a run, and do the job if it is ours."""
    use(places)
    log = Log(path)

    def note(event: str, **facts: Any) -> None:
        log.note({"event": event, "machine": number, **facts})

    once = Jobs.once("nightly", period=PERIOD_S)
    try:
        with runtime.installed(Shifted(ahead_s)), once as run:
            facts = {"period": run.period_begins.timestamp()}
            if run:
                note("began", ticket=run.ticket, **facts)
                if killed_after_s is not None:
                    time.sleep(killed_after_s)
                    note("killed", **facts)
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(JOB_S)
        note("succeeded" if run else run.status, **facts)
    except LockLost:  # the machine that these tests run on was busy for a whole lease
        note("lost", **facts)


def play(places: Places, log: Path, seed: int, machines: int, periods: int, killed: float) -> None:
    """Let them all ask in each period, and wait for them."""
    dice = random.Random(seed)
    first_s = time.time() // PERIOD_S * PERIOD_S
    for number in range(periods):
        # It is two seconds after the beginning of the period by a clock that is right.
        shift_s = first_s + number * PERIOD_S + 2 - time.time()
        with contextlib.ExitStack() as stack:
            children = []
            for each in range(machines):
                ahead_s = shift_s + SPREAD_S * (each / (machines - 1) - 0.5)
                killed_after_s = dice.uniform(0, JOB_S) if dice.random() < killed else None
                child = Child(_machine, places, log, ahead_s, each, killed_after_s)
                children.append(stack.enter_context(child))
            for child in children:
                assert child.wait() in (0, -signal.SIGKILL), child.said()
