"""A process beside a program that runs under a lock: it ends the program if the holder of the lock cannot.

It is run as a script of its own and imports nothing of the package, so that it starts in milliseconds. The holder
writes lines to its standard input: ``<process group> <seconds>`` says how long the lease lasts from now on, ``done``
that nothing is left to be guarded.

Signals that are meant for all processes of a service, such as the SIGTERM by which it is stopped, do not end the
guardian, because the program may take a while to stop. It ends when it reads ``done``, or when the holder has died.

* The end of the input without ``done``: the holder died. The program is told to stop, and killed before its lease ends.
* No line before the lease has ended: the holder was stopped, or hangs. The program is killed at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

#: A program whose holder has died gets so long to stop by itself, in seconds.
_GRACE_S = 5.0


def guard(source: int) -> None:
    """Read lines from a file descriptor until there is nothing left to guard."""
    group, unread = 0, b""
    ends: float | None = None
    while True:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        if not select.select([source], [], [], left)[0]:
            _send(group, signal.SIGKILL)
            return
        got = os.read(source, 4096)
        if not got:
            end_slowly(group, 0.0 if left is None else min(left, _GRACE_S))
            return
        *lines, unread = (unread + got).split(b"\n")
        if b"done" in lines:
            return
        if lines:
            first, second = lines[-1].split()
            group, ends = int(first), time.monotonic() + float(second)


def end_slowly(group: int, grace: float) -> None:
    """Tell the processes of a group to stop, and kill those that are still there after so many seconds."""
    ends = time.monotonic() + grace
    _send(group, signal.SIGTERM)
    while time.monotonic() < ends and _send(group, 0):
        time.sleep(0.02)
    _send(group, signal.SIGKILL)


def _send(group: int, number: int) -> bool:
    """Send a signal to a process group; return whether there is one."""
    if not group:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def ignore_signals() -> None:
    """Let the guardian survive the signals that end a service."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


if __name__ == "__main__":
    ignore_signals()
    guard(sys.stdin.fileno())
