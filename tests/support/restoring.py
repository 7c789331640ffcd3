"""An application that is restored from a snapshot, many times: as Lambda's SnapStart does it, with the means of a fork.

A restored process is a copy of the memory of another one. So is a forked child, if Python does not hear of the fork:
what it would draw anew for the child (the state of `random`) and what this package does after a fork is left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from dataclasses import dataclass, field

import snapshot_restore_py

from pynamo_locking import LockSettings
from pynamo_locking._io import client, runtime
from pynamo_locking._io.concurrency import TO_THREADS, run_steps
from pynamo_locking._locks.acquire import Acquisition
from pynamo_locking.exceptions import ConfigurationError, LockLost
from pynamo_locking.transactions import Transaction
from tests.support.crew import die_with
from tests.support.workers import Versioned, until

SETTINGS = LockSettings(lease=2, heartbeat=False, poll_interval=0.02, request_timeout=0.3, max_clock_skew=0.1)


def restore() -> int:
    """Copy this process, and tell the copy as Lambda's runtime does; 0 in the copy."""
    pid = _copy()
    if not pid:
        for hook, args, kwargs in snapshot_restore_py.get_after_restore():
            hook(*args, **kwargs)
    return pid


def restore_untold() -> int:
    """Copy this process, and tell nothing: the planted bug. Sockets are closed: copies of a machine share none."""
    pid = _copy()
    if not pid:
        client._close_after_restore()
    return pid


def _copy() -> int:
    parent = os.getpid()
    pid: int = ctypes.PyDLL(None).fork()
    if not pid:
        die_with(parent)
    return pid


@dataclass
class Report:
    """What a restored process has found and done."""

    held: str = ""
    written: str = ""
    transaction: str = ""
    inherited: str = ""
    """The entry with which the process of the snapshot was waiting."""
    waited: str = ""
    entries: list[str] = field(default_factory=list)
    process: str = ""
    pauses: list[float] = field(default_factory=list)


class Function:
    """What was initialised when the snapshot was taken: it holds a lock, waits for another, and has a transaction."""

    def __init__(self, _count: int) -> None:
        self.lock = Versioned.locked("held", settings=SETTINGS)
        self.lock.acquire()
        self.item = self.lock.item
        self.transaction = Transaction()
        self.transaction.get(Versioned, "read")
        options = Versioned.locked("waited", settings=SETTINGS, wait=30)._handle.options
        self.steps = Acquisition(Versioned.locked("waited")._handle.target.row, options).steps()
        until(lambda: next(self.steps) is not TO_THREADS and len(Versioned.lock_state("waited").entries) == 2)
        self.inherited = Versioned.lock_state("waited").entries[1].id

    def work(self, party: int, rounds: int) -> Report:
        report = Report(inherited=self.inherited)
        if party == 0:  # the process that the snapshot was taken of
            return report
        report.held = "held" if self.lock.is_held else "lost"
        self.item.value += 1
        try:
            self.item.save()
            report.written = "written"
        except LockLost as error:
            report.written = error.reason
        report.transaction = "over" if self._refuses() else "open"
        report.pauses = [runtime.current.jitter() for _ in range(3)]
        report.process = runtime.current.process_part()
        for _ in range(rounds):
            with Versioned.locked("counter", settings=SETTINGS) as lock:
                report.entries += [entry.id for entry in Versioned.lock_state("counter").entries[:1]]
                lock.item.value += 1
                lock.item.save()
        held = run_steps(self.steps)
        if held is not None:
            report.waited = held.entry.id
            with contextlib.suppress(LockLost):
                held.release()
        return report

    def _refuses(self) -> bool:
        try:
            self.transaction.get(Versioned, "read")
        except ConfigurationError as error:
            return "restored from a snapshot" in str(error)
        return False
